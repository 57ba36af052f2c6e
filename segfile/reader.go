package segfile

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"

	"github.com/ringfence/ringfence/fence"
	"github.com/ringfence/ringfence/segfile/disk"
	"github.com/ringfence/ringfence/segfile/record"
)

// Reader reads the frames of one segment file up to its end. It may be shared.
type Reader struct {
	d     disk.Disk
	name  string
	hdr   header
	latch fence.Latch
	end   fence.End

	index  index
	table  *ProducerTable
	holes  []Hole
	cut    Cut
	sums   footer // frames, digest and times
	faults []*CorruptError
	slot   slot // what it was opened by, when the footer itself was not read

	opening sync.Mutex // guards closed, and f becoming set; held while the file is opened
	closed  bool
	f       atomic.Pointer[disk.File] // nil until it is needed
}

// OpenReader opens a fenced segment file. End, index and producer table come from
// the footer, or its copy in the latch where it is short enough for one; where neither
// can be read the file's frame headers are read instead, and Faults says so. A file that is not fenced, or whose latch cannot be read, is an
// [ErrOpen] and needs [Recover]; what is no segment is refused with an error that
// says what it is.
func OpenReader(d disk.Disk, name string) (*Reader, error) {
	o, err := openFile(d, name, true)
	if err != nil {
		return nil, err
	}
	r, err := o.reader(d)
	if err != nil {
		o.close()
		return nil, err
	}
	o.release()
	return r, nil
}

// Look is [OpenReader] of a file that is fenced and [Recover] of one that is not, for who
// does not know which it is: one of the two comes back, or an error.
func Look(d disk.Disk, name string) (*Reader, *Verdict, error) {
	o, err := openFile(d, name, true)
	if err != nil {
		return nil, nil, err
	}
	r, err := o.reader(d)
	if err == nil {
		o.release()
		return r, nil, nil
	}
	defer o.close()
	if !errors.Is(err, ErrOpen) {
		return nil, nil, err
	}
	v, err := o.recover(d)
	return nil, v, err
}

func (o *opened) reader(d disk.Disk) (*Reader, error) {
	if err := o.refuse(); err != nil {
		return nil, err
	}
	r := &Reader{d: d, name: o.name, hdr: o.hdr}
	r.f.Store(&o.f)
	if o.verd == fileRestored {
		r.faults = append(r.faults, &CorruptError{File: o.name, Reason: o.why})
	}
	r.faults = append(r.faults, o.slots.faults(o.name)...)
	var err error
	if r.latch, err = o.slots.latch(o.hdr.Base); err != nil {
		return nil, fmt.Errorf("%w, as far as can be told: %w", ErrOpen, &CorruptError{File: o.name, Byte: slotA, Reason: err.Error()})
	}
	s, closed := o.slots.current()
	if !closed {
		return nil, fmt.Errorf("%w: %s", ErrOpen, o.name)
	}
	r.end = s.end
	f, err := o.shortFooter(s)
	if isRead(err) {
		return nil, err
	}
	if s.copied != "" && err == nil {
		r.slot = s
	}
	if err != nil {
		r.faults = append(r.faults, &CorruptError{File: o.name, Byte: s.footer, Reason: err.Error()})
		if f, err = o.rebuild(s); err != nil {
			return nil, err
		}
	}
	r.take(&f)
	return r, nil
}

// take gives a Reader what a footer says.
func (r *Reader) take(f *footer) {
	r.index.set(f.index)
	r.table, r.holes, r.cut, r.sums = f.table, f.holes, f.cut, *f
}

// Open is a Reader of a recovered file, fenced or not, up to the end that was
// found: for those who look into files that no engine has open.
func (v *Verdict) Open() (*Reader, error) {
	if v.refusal != nil {
		return nil, v.refusal
	}
	if v.Latch.State() != fence.Open {
		return OpenReader(v.d, v.Name)
	}
	f, err := v.d.Open(v.Name, true)
	if err != nil {
		return nil, err
	}
	r := &Reader{d: v.d, name: v.Name, hdr: v.hdr, latch: v.Latch, end: v.End, faults: v.Faults}
	r.f.Store(&f)
	ft := v.tally.footer(v.hdr.Base, v.End.Position, v.Holes, v.Cut)
	r.take(&ft)
	return r, nil
}

// Reader reads a recovered file that [Verdict.Fence] has fenced, without reading back
// what is known, through a file that it opens when that is needed.
func (v *Verdict) Reader() (*Reader, error) {
	if v.refusal != nil {
		return nil, v.refusal
	}
	end, fenced := v.Latch.End()
	if !fenced {
		return nil, fmt.Errorf("%w: %s", ErrOpen, v.Name)
	}
	r := &Reader{d: v.d, name: v.Name, hdr: v.hdr, latch: v.Latch, end: end}
	ft := v.tally.footer(v.hdr.Base, end.Position, v.Holes, v.Cut)
	r.take(&ft)
	return r, nil
}

// CheckFooter reads the footer, if that was not done when the file was opened, because
// the latch has a copy. An ErrDamaged says that it is not what it should be, of which
// nobody is the worse as long as there is the copy: [RepairFooter] writes it again.
func (r *Reader) CheckFooter() error {
	if r.slot.copied == "" {
		return nil
	}
	f, err := r.File()
	if err != nil {
		return err
	}
	b := make([]byte, alignBlock(r.slot.length))
	n, err := f.ReadAt(b, r.slot.footer)
	if err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("segfile: %s: footer: %w", r.name, err)
	}
	if _, err := readFooter(b[:n], r.slot.length, r.hdr.Salt, r.hdr.Base, r.end); err != nil {
		return &CorruptError{File: r.name, Byte: r.slot.footer, Reason: err.Error()}
	}
	return nil
}

// shortFooter is footer, from the copy if there is one: then nothing is read. Whether the
// footer itself can be is for [Reader.CheckFooter] and [Verify] to find out.
func (o *opened) shortFooter(s slot) (footer, error) {
	if s.copied == "" || s.footer+s.length > o.size {
		return o.footer(s)
	}
	return readFooter([]byte(s.copied), s.length, o.hdr.Salt, o.hdr.Base, s.end)
}

// footer reads and checks the footer that s leads to.
func (o *opened) footer(s slot) (footer, error) {
	if s.footer+s.length > o.size {
		return footer{}, fmt.Errorf("the file ends at byte %d, before its footer", o.size)
	}
	b := make([]byte, alignBlock(s.length))
	n, err := o.f.ReadAt(b, s.footer)
	if err != nil && !errors.Is(err, io.EOF) {
		return footer{}, &readError{fmt.Errorf("segfile: %s: %w", o.name, err)}
	}
	return readFooter(b[:n], s.length, o.hdr.Salt, o.hdr.Base, s.end)
}

// Name is the file's name, Meta what its header says.
func (r *Reader) Name() string { return r.name }
func (r *Reader) Meta() Meta   { return r.hdr.Meta }

// File is the file, for reads of the caller's own. A Reader of a Writer opens it when
// it is first needed.
func (r *Reader) File() (disk.File, error) {
	if f := r.f.Load(); f != nil {
		return *f, nil
	}
	r.opening.Lock()
	defer r.opening.Unlock()
	if f := r.f.Load(); f != nil {
		return *f, nil
	}
	if r.closed {
		return nil, fmt.Errorf("segfile: %s: %w", r.name, disk.ErrClosed)
	}
	f, err := r.d.Open(r.name, true)
	if err != nil {
		return nil, fmt.Errorf("segfile: read a fenced segment: %w", err)
	}
	r.f.Store(&f)
	return f, nil
}

// Latch is what the file's latch says.
func (r *Reader) Latch() fence.Latch { return r.latch }

// End is where the segment ends, and whether it is fenced there: always, unless
// the Reader comes from [Verdict.Open].
func (r *Reader) End() (end fence.End, fenced bool) {
	return r.end, r.latch.State() != fence.Open
}

// Table is what the range knows of its producers at the segment's end. It is nil
// when the start mark was damaged: that is not knowing, never an empty table. The
// caller clones it before changing it.
func (r *Reader) Table() *ProducerTable { return r.table }

// Times are the smallest and largest time of the records, in ms; false when no
// record has one.
func (r *Reader) Times() (minTime, maxTime int64, ok bool) {
	return r.sums.minTime, r.sums.maxTime, r.sums.minTime > 0
}

// Digest is a hash of the identities of all frames, equal on every replica, and
// how many frames there are.
func (r *Reader) Digest() (digest, frames uint64) { return r.sums.digest, r.sums.frames }

// Faults is what is damaged in the file though it can be read.
func (r *Reader) Faults() []*CorruptError { return r.faults }

// Cut is what recovery set aside behind the end; zero for none.
func (r *Reader) Cut() Cut { return r.cut }

// Holes are the damaged stretches that are on record, those in which somebody
// accepted the loss included.
func (r *Reader) Holes() ([]Hole, error) {
	return r.allHoles()
}

// Find is the position of a frame from which offset can be reached by reading on;
// false when offset lies outside the segment.
func (r *Reader) Find(offset uint64) (pos int64, ok bool) {
	if offset < r.hdr.Base || offset >= r.end.Offset {
		return 0, false
	}
	if e, ok := r.index.find(offset); ok {
		return e.pos, true
	}
	return DataStart, true
}

// FindTime is Find for the first record whose time is ms or later; false when
// there is none.
func (r *Reader) FindTime(ms int64) (pos int64, ok bool) {
	if r.end.Offset == r.hdr.Base || ms > r.sums.maxTime {
		return 0, false
	}
	if e, ok := r.index.findTime(ms); ok {
		return e.pos, true
	}
	return DataStart, true
}

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

// Close closes the file.
func (r *Reader) Close() error {
	r.opening.Lock()
	defer r.opening.Unlock()
	r.closed = true
	if f := r.f.Load(); f != nil {
		return (*f).Close()
	}
	return nil
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
