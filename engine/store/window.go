package store

import (
	"errors"
	"fmt"
	"io"

	"github.com/ringfence/ringfence/segfile/disk"
)

const (
	windowBytes = 256 << 10 // one read of a scanner that does not read ahead
	aheadAfter  = 1 << 20   // bytes read in sequence before a scanner reads ahead
)

// lend takes arena memory for a scanner. All scanners together get half of the arena: a
// reader that stands still keeps what it has, and must not take it from producers.
func (s *Store) lend(n int) ([]byte, bool) {
	arena := s.disk.Arena()
	takes := int64(arena.Takes(n)) // up to twice n
	if s.lent.Add(takes) <= arena.Size()/2 {
		if b, ok := arena.Pack(n); ok {
			return b, true
		}
	}
	s.lent.Add(-takes)
	return nil, false
}

func (s *Store) unlend(b []byte) {
	takes := cap(b)
	s.disk.Arena().Free(b)
	s.lent.Add(-int64(takes))
}

// bytes returns at least n bytes of the file from pos on, below end, in one piece.
func (sc *Scanner) bytes(n int, end int64) ([]byte, error) {
	if int64(n) > end-sc.pos {
		n = int(end - sc.pos)
	}
	if in := sc.pos - sc.winPos; in >= 0 && in+int64(n) <= int64(len(sc.win)) {
		return sc.win[in:], nil
	}
	s := sc.seg
	if _, closed := s.Fenced(); closed && (sc.ahead != nil || sc.read >= aheadAfter) {
		// What was durable a moment ago may be less than the end: the last flush and the
		// fence came in between.
		if b, ok, err := sc.runAhead(n, s.durable.Load()); ok || err != nil {
			return b, err
		}
	}
	if b := s.tail.from(sc.pos); len(b) >= n {
		return b, nil
	}
	return sc.fill(n, end)
}

// fill reads a window that starts at the block of pos.
func (sc *Scanner) fill(n int, end int64) ([]byte, error) {
	sc.stopAhead()
	sc.win = nil // its memory is read into now, or given back
	start := sc.pos / disk.Block * disk.Block
	size := max(windowBytes, roundUp(int(sc.pos-start)+n, disk.Block))
	s := sc.seg
	if len(sc.slab) < size {
		if sc.slab != nil {
			s.store.unlend(sc.slab)
			sc.slab = nil
		}
		if b, ok := s.store.lend(size); ok {
			sc.slab = b
		}
	}
	buf := sc.slab
	if buf == nil {
		buf = make([]byte, size) // the readers' share is in use: one more copy, but no wait
	}
	buf = buf[:min(int64(len(buf)), roundUp64(end-start, disk.Block))]
	f, err := sc.open()
	if err != nil {
		return nil, err
	}
	got, err := f.ReadAt(buf, start)
	if errors.Is(err, disk.ErrClosed) { // fenced meanwhile
		if f, err = sc.open(); err == nil {
			got, err = f.ReadAt(buf, start)
		}
	}
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, sc.seg.wrap(fmt.Errorf("%w: %w", ErrStorage, err))
	}
	sc.win, sc.winPos = buf[:got], start
	in := int(sc.pos - start)
	if got < in+n {
		return nil, sc.damaged(start+int64(got), fmt.Errorf("the file ends here, before byte %d", end))
	}
	return sc.win[in:], nil
}

// open returns the file to read from, which is another one once the segment is fenced.
func (sc *Scanner) open() (disk.File, error) {
	f, err := sc.seg.handle()
	if err != nil {
		return nil, sc.seg.wrap(fmt.Errorf("%w: %w", ErrStorage, err))
	}
	sc.file = f
	return f, nil
}

func (sc *Scanner) damaged(pos int64, err error) error {
	open := ""
	if _, closed := sc.seg.Fenced(); !closed {
		open = sc.seg.meta.Topic
	}
	return sc.seg.wrap(&DamageError{File: sc.seg.path(), Byte: pos, Open: open, Err: err})
}

// isPadding says whether b starts with the zeros behind a flush's last frame.
func isPadding(b []byte) bool {
	return b[0]|b[1]|b[2]|b[3] == 0
}

func roundUp64(n, to int64) int64 { return (n + to - 1) / to * to }
