package store

import (
	"errors"
	"os"
	"sync"

	"github.com/ringfence/ringfence/segfile/disk"
	"github.com/ringfence/ringfence/segfile/record"
)

// Stretch is whole frames of a fenced segment as they lie in its file, one after another, with
// the zeros between them. Only their heads were looked at.
type Stretch struct {
	File             *os.File // read through the page cache; the receiver closes it
	Position, Length int64    // of the first frame, and up to the end of the last
	Next             uint64   // the offset after the last record

	seg *Segment
}

// Give says whether a descriptor of File may be given to another process for good: the file
// holds only this segment, and will never hold anything else. Call it before the scanner's
// next call.
func (st *Stretch) Give() bool { return st.seg.give() }

// give prepares the segment's file for that, once. If that fails it is not tried again: reads
// through this process do as well.
func (s *Segment) give() bool {
	s.giving.Do(func() {
		err := s.reader.Load().Give() // stretches have one
		s.given = err == nil
		if err != nil && !errors.Is(err, errors.ErrUnsupported) {
			s.store.log.Warn("a closed segment's file is not given to clients, which read it through the server", "file", s.name, "err", err)
		}
	})
	return s.given
}

const (
	// stretchMin is the least that is worth it: copying less costs no more.
	stretchMin = 64 << 10
	// headsBytes is how close the heads of frames must be to be read together.
	headsBytes = 16 << 10
)

// Stretch returns the next frames, about most bytes of them and at least one, and moves on
// behind them. The first frame holds the offset that is wanted next; no frame is left out, and
// no mark or void frame is among them. If there is no such stretch, ok is false and the
// scanner has not moved: Next says what there is instead, or what is wrong.
//
// The file is not reused before the scanner's next call.
func (sc *Scanner) Stretch(most int64) (st Stretch, ok bool) {
	s := sc.seg
	commit, end := s.commit.Load(), s.durable.Load()
	if sc.loose || sc.next >= commit || min(most, end-sc.pos) < stretchMin {
		return st, false
	}
	f := s.buffered()
	if f == nil {
		return st, false
	}
	w := strider{f: f, salt: s.meta.Salt, pos: sc.pos, next: sc.next, end: end, commit: commit}
	w.run(most)
	if w.to-w.from < stretchMin || !w.there() {
		f.Close()
		return st, false
	}
	sc.stopAhead()
	sc.win = nil
	sc.pos, sc.next = roundUp64(w.to, record.FrameAlign), w.next
	return Stretch{File: f, Position: w.from, Length: w.to - w.from, Next: w.next, seg: s}, true
}

// buffered opens a fenced segment's file for reads through the page cache; nil if that is not
// possible. Open segments are written with direct I/O, with which the page cache does not
// keep in step.
func (s *Segment) buffered() *os.File {
	r := s.reader.Load()
	if r == nil {
		return nil
	}
	f, err := r.File()
	if err != nil {
		return nil // Next meets the same error, and reports it
	}
	b, ok := f.(disk.Buffered)
	if !ok {
		return nil
	}
	h, err := b.Buffered()
	if err != nil {
		return nil
	}
	return h
}

// strider goes from frame to frame by their heads.
type strider struct {
	f         *os.File
	salt      uint64
	pos       int64  // where the next frame is looked for
	next      uint64 // the offset that is due
	end       int64  // no frame reaches beyond
	commit    uint64 // likewise
	from, to  int64  // the frames found
	heads     []byte // the file from headsFrom on
	headsFrom int64
	buf       *[headsBytes]byte
	last      int64 // where the frame before began
}

var headBuffers = sync.Pool{New: func() any { return new([headsBytes]byte) }}

// run finds frames until there is one that does not fit, or that is not as it should be.
func (w *strider) run(most int64) {
	w.buf = headBuffers.Get().(*[headsBytes]byte)
	defer headBuffers.Put(w.buf)
	w.last = w.pos
	for w.next < w.commit && w.pos < w.end {
		b := w.peek()
		if len(b) < record.HeaderSize {
			return
		}
		if in := w.pos % disk.Block; isPadding(b) && in != 0 {
			w.pos += disk.Block - in
			continue
		}
		h, err := record.ParseHead(b, w.salt)
		to := w.pos + int64(h.FrameLen)
		switch {
		case err != nil || to > w.end || h.Next() > w.commit || h.Void() && h.Next() > w.next:
			return
		case h.Mark() || h.Next() <= w.next:
			if w.to > 0 {
				return
			}
		case w.to > 0 && (h.Base != w.next || to-w.from > most):
			return
		case w.to == 0 && h.Base > w.next:
			return
		default:
			if w.to == 0 {
				w.from = w.pos
			}
			w.to, w.next = to, h.Next()
		}
		w.last, w.pos = w.pos, roundUp64(to, record.FrameAlign)
	}
}

// peek returns what is at pos: a head at least, unless the file ends before. Where frames are
// short it reads the heads behind it as well.
func (w *strider) peek() []byte {
	if in := w.pos - w.headsFrom; in >= 0 && in+record.HeaderSize <= int64(len(w.heads)) {
		return w.heads[in:]
	}
	n := headsBytes
	if w.pos-w.last > headsBytes || w.to == 0 && len(w.heads) == 0 {
		n = record.HeaderSize
	}
	got, _ := w.f.ReadAt(w.buf[:n], w.pos) // what cannot be read counts as no head
	w.heads, w.headsFrom = w.buf[:got], w.pos
	return w.heads
}

// there says whether the file has all that was found: the last payload may be cut off.
func (w *strider) there() bool {
	st, err := w.f.Stat()
	return err == nil && st.Size() >= w.to
}
