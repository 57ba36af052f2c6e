package segfile

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/ringfence/ringfence/fence"
	"github.com/ringfence/ringfence/segfile/disk"
	"github.com/ringfence/ringfence/segfile/record"
)

// ReadFrames reads frames of the segment from the one at pos into dst. It
// returns those that came whole, padding between them included (take them apart
// with [Walk], and believe nothing before record.Verify), and the position to go
// on at. There may be none of them where no record is missing. Whether their offsets
// follow one another is for the caller to see, as in [Reader.Scan]. At the end it is
// io.EOF, where the first frame does not fit a [BufferError], and damage is a
// [HoleError] or a [CorruptError].
func (r *Reader) ReadFrames(dst []byte, pos int64) (frames []byte, next int64, err error) {
	end := r.end
	limit, past := end, end.Position
	for _, h := range r.holes {
		switch {
		case pos >= h.Position+h.Length:
			continue
		case pos >= h.Position && h.Records == 0:
			return nil, h.Position + h.Length, nil
		case pos >= h.Position:
			return nil, pos, r.hole(h)
		}
		limit, past = fence.End{Offset: h.Offset, Position: h.Position}, h.Position
		if h.Records == 0 {
			past += h.Length
		}
		break
	}
	f, err := r.File()
	if err != nil {
		return nil, pos, err
	}
	frames, next, err = ReadFrames(f, r.hdr.Salt, dst, pos, limit)
	if next == limit.Position {
		next = past
	}
	if errors.Is(err, io.EOF) && limit != end {
		return nil, next, nil // only marks came before the hole
	}
	if !errors.Is(err, ErrDamaged) {
		return frames, next, err
	}
	all, lerr := r.allHoles() // it may be damage that somebody has seen and accepted
	if lerr != nil {
		return nil, pos, errors.Join(err, lerr)
	}
	for _, h := range all {
		if pos >= h.Position && pos < h.Position+h.Length {
			return nil, pos, &HoleError{r.name, h}
		}
	}
	return nil, pos, err
}

func (r *Reader) hole(h Hole) error {
	all, err := r.allHoles()
	if err != nil {
		return err
	}
	for _, a := range all {
		if a.Position == h.Position && a.Accepted {
			h.Accepted = true
		}
	}
	return &HoleError{r.name, h}
}

// Scan calls fn for every frame of the segment from the one at pos on, marks
// included, after it held it against its checksums. The frame is good until fn
// returns, and nil where it is a lent one whose payload is damaged. Offsets that are left out, as where a frame was turned to zeros, which look
// like padding, are a [CorruptError].
func (r *Reader) Scan(pos int64, fn func(pos int64, h record.Head, frame []byte) error) error {
	buf := make([]byte, windowMax)
	due, at := r.hdr.Base, pos // the offset that comes next, and where
	known := pos == DataStart
	gap := func(have uint64) error {
		if !known || have == due {
			return nil
		}
		return &CorruptError{File: r.name, Byte: at, Reason: fmt.Sprintf("offset %d comes where %d is due", have, due)}
	}
	for {
		frames, next, err := r.ReadFrames(buf, pos)
		var small *BufferError
		switch {
		case errors.As(err, &small):
			buf = make([]byte, small.Need)
			continue
		case errors.Is(err, io.EOF):
			return gap(r.end.Offset)
		case err != nil:
			return err
		}
		err = Walk(frames, pos, r.hdr.Salt, func(pos int64, h record.Head, frame []byte) error {
			if _, err := record.Check(frame, r.hdr.Salt); err != nil && !h.Lent() {
				return &CorruptError{File: r.name, Byte: pos, Reason: err.Error()}
			} else if err != nil {
				frame = nil
			}
			if err := gap(h.Base); err != nil {
				return err
			}
			known, due, at = true, h.Next(), alignFrame(pos+int64(h.FrameLen))
			return fn(pos, h, frame)
		})
		if err != nil {
			return err
		}
		pos = next
	}
}

// Replay brings a producer table up to date with the segment's frames: the table
// at the end of the segment before, where this one's is not known. It takes nothing from
// payloads, so that one of a lent frame may be damaged.
func (r *Reader) Replay(t *ProducerTable) error {
	return r.Scan(DataStart, func(_ int64, h record.Head, _ []byte) error {
		t.Update(&h)
		return nil
	})
}

// Scan calls fn for every frame of a segment, checked.
func Scan(r *Reader, fn func(pos int64, h record.Head, frame []byte) error) error {
	return r.Scan(DataStart, fn)
}

// ReadFrames reads frames of a file from the one at pos into dst, up to end: what
// [Reader.ReadFrames] does, for a segment that is open and whose readers may see
// what lies before end. Reads start on boundaries of a block, so dst should be
// aligned memory of whole blocks, and large enough for a frame and a block.
func ReadFrames(f disk.File, salt uint64, dst []byte, pos int64, end fence.End) (frames []byte, next int64, err error) {
	if pos >= end.Position {
		return nil, pos, io.EOF
	}
	start := pos &^ (block - 1)
	n := int(min(int64(len(dst)), alignBlock(end.Position)-start))
	got, err := f.ReadAt(dst[:n], start)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, pos, fmt.Errorf("segfile: %s: %w", f.Name(), err)
	}
	b := dst[:min(int64(got), end.Position-start)]
	at, last := int(pos-start), int(pos-start)
	next = pos
	for next < end.Position {
		if at+record.HeaderSize > len(b) {
			break
		}
		h, err := record.ParseHead(b[at:], salt)
		if err != nil {
			if last > int(pos-start) {
				break // what came before is good; the next read meets it first
			}
			return nil, pos, damaged(f.Name(), next, err)
		}
		if at+int(h.FrameLen) > len(b) {
			if last == int(pos-start) && got == n && n == len(dst) {
				return nil, pos, &BufferError{int(alignBlock(int64(at) + int64(h.FrameLen)))}
			}
			if last == int(pos-start) {
				return nil, pos, &CorruptError{File: f.Name(), Byte: next, Reason: "the frame reaches past the end"}
			}
			break
		}
		last = at + int(h.FrameLen)
		at = behind(b, start, at, int(h.FrameLen))
		next = start + int64(at)
		if h.Next() >= end.Offset && !h.Mark() {
			next = end.Position // what shares its last block was cut off
		}
	}
	if last == int(pos-start) {
		switch {
		case next >= end.Position:
			return nil, next, io.EOF
		case n == len(dst) && got == n:
			return nil, pos, &BufferError{int(pos-start) + 2*block}
		}
		return nil, pos, &CorruptError{File: f.Name(), Byte: next, Reason: "the file ends before the segment does"}
	}
	return b[pos-start : last], min(next, end.Position), nil
}

// behind is where the frame behind the one at at starts in b, whose first byte is
// at position start of the file.
func behind(b []byte, start int64, at, frameLen int) int {
	next := int(alignFrame(start+int64(at+frameLen)) - start)
	if (start+int64(next))%block == 0 || next+4 <= len(b) && binary.LittleEndian.Uint32(b[next:]) != 0 {
		return next
	}
	return int(alignBlock(start+int64(next)) - start)
}

// damaged turns a parser's complaint about the frame at pos into an error.
func damaged(file string, pos int64, err error) error {
	if errors.Is(err, record.ErrVersion) {
		return fmt.Errorf("%w: %s: frame at byte %d: %w", ErrNewer, file, pos, err)
	}
	return &CorruptError{File: file, Byte: pos, Reason: err.Error()}
}

// Walk calls fn for each frame in b, which starts with the frame at pos and ends
// with a whole one.
func Walk(b []byte, pos int64, salt uint64, fn func(pos int64, h record.Head, frame []byte) error) error {
	for at := 0; at < len(b); {
		h, err := record.ParseHead(b[at:], salt)
		if err != nil {
			return damaged("frames in memory", pos+int64(at), err)
		}
		if at+int(h.FrameLen) > len(b) {
			return damaged("frames in memory", pos+int64(at), &record.FrameError{Reason: "cut off"})
		}
		if err := fn(pos+int64(at), h, b[at:at+int(h.FrameLen):at+int(h.FrameLen)]); err != nil {
			return err
		}
		at = behind(b, pos, at, int(h.FrameLen))
	}
	return nil
}
