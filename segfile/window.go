package segfile

import (
	"encoding/binary"
	"errors"
	"io"

	"github.com/zeebo/xxh3"

	"github.com/ringfence/ringfence/segfile/disk"
	"github.com/ringfence/ringfence/segfile/record"
)

// window reads a file forwards through one buffer: single blocks where it hops
// from head to head of large frames, longer and longer stretches where what it
// needs lies close together. A gap shorter than windowGap costs less to read than
// to skip.
type window struct {
	f    disk.File
	size int64

	arena *disk.Arena // where buf comes from, nil if from the heap
	buf   []byte      // windowMax bytes, or nil until something is read
	at    int64       // buf[:n] is the file from at
	n     int
	step  int // length of the last read

	read int64 // bytes read so far
}

const (
	windowMax = 1 << 20
	windowGap = 128 << 10
)

func newWindow(d disk.Disk, f disk.File, size int64) *window {
	return &window{f: f, size: size, arena: d.Arena(), step: block}
}

// room makes sure that there is a buffer: from the arena, whose pages are larger,
// unless it is full.
func (w *window) room() {
	if w.buf != nil {
		return
	}
	if w.arena != nil {
		if b, ok := w.arena.Pack(windowMax); ok {
			w.buf = b
			return
		}
		w.arena = nil
	}
	w.buf = make([]byte, windowMax)
}

func (w *window) close() {
	if w.arena != nil && w.buf != nil {
		w.arena.Free(w.buf)
	}
	w.buf, w.n = nil, 0
}

// get returns n bytes at pos, fewer only at the end of the file. They are good
// until the next call. n is at most windowMax - block.
func (w *window) get(pos int64, n int) ([]byte, error) {
	if pos >= w.size {
		return nil, nil
	}
	n = int(min(int64(n), w.size-pos))
	if pos < w.at || pos+int64(n) > w.at+int64(w.n) {
		if err := w.fill(pos, n); err != nil {
			return nil, err
		}
	}
	return w.buf[pos-w.at:][:n], nil
}

// some returns what the window has from pos on, at least one byte before the end
// of the file, reading as much as it can: for those who want it all.
func (w *window) some(pos int64) ([]byte, error) { return w.upTo(pos, pos+windowMax) }

// upTo is some for those who want nothing from end on, which lies behind pos.
func (w *window) upTo(pos, end int64) ([]byte, error) {
	if pos >= w.size {
		return nil, nil
	}
	if pos < w.at || pos >= w.at+int64(w.n) {
		w.step = windowMax
		start := pos &^ (block - 1)
		if err := w.load(start, int(min(alignBlock(end-start), windowMax))); err != nil {
			return nil, err
		}
	}
	return w.buf[pos-w.at : w.n], nil
}

func (w *window) fill(pos int64, n int) error {
	start := pos &^ (block - 1)
	need := int(alignBlock(pos + int64(n) - start))
	if gap := start - (w.at + int64(w.n)); w.n > 0 && gap < windowGap && gap >= -int64(w.n) {
		w.step = min(4*w.step, windowMax)
	} else {
		w.step = block
	}
	return w.load(start, max(need, w.step))
}

func (w *window) load(start int64, n int) error {
	w.room()
	w.n = 0
	want := int(min(int64(n), alignBlock(w.size)-start))
	got, err := w.f.ReadAt(w.buf[:want], start)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	w.at, w.n = start, got
	w.read += int64(got)
	if int64(got) < min(int64(want), w.size-start) {
		return io.ErrUnexpectedEOF // the file became shorter
	}
	return nil
}

// head reads the frame header at pos.
func (w *window) head(pos int64, salt uint64) (record.Head, error) {
	b, err := w.get(pos, record.HeaderSize)
	if err != nil {
		return record.Head{}, &readError{err}
	}
	return record.ParseHead(b, salt)
}

// readError keeps an error of the disk apart from what a parser says of bytes.
type readError struct{ error }

func (e *readError) Unwrap() error { return e.error }

func isRead(err error) bool {
	var r *readError
	return errors.As(err, &r)
}

// whole says whether the payload of the frame at pos is what its header says.
func (w *window) whole(pos int64, h *record.Head) (bool, error) {
	if pos+int64(h.FrameLen) > w.size {
		return false, nil
	}
	var x xxh3.Hasher
	for at, left := pos+record.HeaderSize, int64(h.PayloadLen); left > 0; {
		b, err := w.some(at)
		if err != nil {
			return false, err
		}
		b = b[:min(int64(len(b)), left)]
		_, _ = x.Write(b) // a hash takes everything
		at += int64(len(b))
		left -= int64(len(b))
	}
	return x.Sum64() == h.Hash, nil
}

// after is where the frame behind the one at pos starts: at the next boundary of
// 64, or, where zeros follow, in the next block.
func (w *window) after(pos int64, h *record.Head) (int64, error) {
	next := alignFrame(pos + int64(h.FrameLen))
	if next%block == 0 {
		return next, nil
	}
	// Together with the head that comes next in either case: one read for each frame.
	b, err := w.get(next, int(alignBlock(next)-next)+record.HeaderSize)
	if err != nil {
		return 0, err
	}
	if len(b) < 4 || binary.LittleEndian.Uint32(b) == 0 {
		return alignBlock(next), nil
	}
	return next, nil
}
