package store

import (
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/ringfence/ringfence/segfile"
	"github.com/ringfence/ringfence/segfile/disk"
	"github.com/ringfence/ringfence/segfile/record"
)

const (
	windowBytes = 256 << 10 // one read of a scanner that does not run ahead
	aheadAfter  = 1 << 20   // bytes read in sequence before a scanner runs ahead
)

// Scanner reads one segment's batches in order, up to the commit mark. One
// goroutine uses it. It reads a fenced segment ahead once it, and those it follows,
// have read a megabyte in sequence.
type Scanner struct {
	seg  *Segment
	file disk.File // nil until the first read
	next uint64    // the first offset still wanted
	pos  int64     // where in the file the next frame is looked for
	due  int64     // where it was expected, before what looked like padding
	read int64     // bytes consumed in sequence, in the segments before too

	// The window: win holds the file from winPos on. It lies in slab, in what was read
	// ahead, or is nobody's.
	win    []byte
	winPos int64
	slab   []byte // arena memory for reads that do not run ahead, or nil

	ahead   *ahead // set while reading ahead
	longest int    // piece that was wanted of what is read ahead
	closed  bool
	loose   bool    // the offsets before the next batch were left out on purpose
	lost    Skipped // by the last Next
	batch   record.Batch
	work    record.Scratch
}

// Scan returns a scanner whose first batch holds offset from, or is the first behind it.
// Close it after use. ErrNoSegment if the segment was deleted.
func (s *Segment) Scan(from uint64) (*Scanner, error) {
	if err := s.use(); err != nil {
		return nil, err
	}
	return &Scanner{seg: s, next: max(from, s.meta.Base), pos: s.find(from)}, nil
}

// Follow says that the scanner goes on, in the next segment of a range, where
// another came to the end of its own: it reads ahead from its first byte if that one
// would have, and decompresses to the same memory. The other one is used no more,
// except to be closed. Call it before the first Next.
func (sc *Scanner) Follow(before *Scanner) {
	sc.read, sc.longest = before.read, min(before.longest, leadMax)
	sc.work, before.work = before.work, record.Scratch{}
}

// ScanTime is Scan from a batch on from which the first record of a time, in
// milliseconds since the epoch, is reached by reading on.
func (s *Segment) ScanTime(ms int64) (*Scanner, error) {
	sc, err := s.Scan(s.meta.Base)
	if err != nil {
		return nil, err
	}
	if r := s.reader.Load(); r != nil {
		pos, ok := r.FindTime(ms)
		if !ok {
			sc.next = s.commit.Load() // nothing that late
			return sc, nil
		}
		sc.pos = pos
	} else {
		sc.pos = s.writer.FindTime(ms)
	}
	sc.loose = true // the first batch says which offsets were left out
	return sc, nil
}

// Next returns the next batch that holds an offset still wanted. The batch is valid
// until the following call. io.EOF says that there is nothing more below the commit
// mark now; on a fenced segment that is for good. ErrDamaged names file and byte. A lent
// frame whose records are damaged is no error but Skipped: who lent it is to blame, and can
// keep nobody from reading on.
func (sc *Scanner) Next() (*record.Batch, error) {
	b, err := sc.step()
	if err != nil {
		sc.seg.note(err)
	}
	return b, err
}

func (sc *Scanner) step() (*record.Batch, error) {
	s := sc.seg
	for {
		commit := s.commit.Load()
		if sc.next >= commit {
			return nil, io.EOF
		}
		end := s.durable.Load()
		if sc.pos >= end {
			if sc.pastHole(sc.due) {
				continue
			}
			return nil, sc.damaged(sc.pos, fmt.Errorf("the records end here, before offset %d", commit))
		}
		b, err := sc.bytes(record.HeaderSize, end)
		if err != nil {
			if sc.pastShort(err) {
				continue
			}
			return nil, err
		}
		if in := sc.pos % disk.Block; isPadding(b) && in != 0 {
			sc.due = sc.pos
			sc.skip(disk.Block - in)
			continue
		}
		head, err := record.ParseHead(b, s.meta.Salt)
		if err != nil {
			if sc.pastHole(sc.due) || sc.pastHole(sc.pos) {
				continue
			}
			return nil, sc.damaged(sc.pos, err)
		}
		size := int64(roundUp(int(head.FrameLen), record.FrameAlign))
		if sc.pos+int64(head.FrameLen) > end {
			if sc.pastHole(sc.due) || sc.pastHole(sc.pos) {
				continue
			}
			return nil, sc.damaged(sc.pos, fmt.Errorf("a frame of %d bytes reaches beyond byte %d", head.FrameLen, end))
		}
		if err := sc.order(head); err != nil {
			if sc.pastHole(sc.due) || sc.pastHole(sc.pos) {
				continue
			}
			return nil, err
		}
		if head.Base+uint64(head.Count) <= sc.next || head.Count == 0 {
			sc.skip(size)
			continue
		}
		if head.Void() {
			sc.pass(head.Next(), false)
			sc.skip(size)
			continue
		}
		if b, err = sc.bytes(int(head.FrameLen), end); err != nil {
			if sc.pastShort(err) {
				continue
			}
			return nil, err
		}
		batch, err := record.Verify(b[:head.FrameLen], s.meta.Salt, &sc.work)
		if err != nil {
			if sc.pastHole(sc.pos) {
				continue
			}
			if head.Lent() { // the header holds, so all but its own records is known
				s.note(&DamageError{File: s.path(), Byte: sc.pos, Err: err, Lent: true})
				sc.pass(head.Next(), true)
				sc.skip(size)
				continue
			}
			return nil, sc.damaged(sc.pos, err)
		}
		sc.batch = batch
		sc.next = head.Base + uint64(head.Count)
		sc.skip(size)
		return &sc.batch, nil
	}
}

// Holes are the stretches of a fenced segment that cannot be read, as far as they are on
// record: found when it was closed, or accepted as lost since. Nothing is read for it
// but that record.
func (s *Segment) Holes() ([]segfile.Hole, error) {
	r := s.reader.Load()
	if r == nil {
		return nil, nil
	}
	holes, err := r.Holes()
	if err != nil {
		return nil, s.wrap(err)
	}
	return holes, nil
}

// Skipped are offsets that a Next moved past.
type Skipped struct {
	From, Offsets uint64
	Damaged       bool // at least some of them: somebody accepted the loss, or their frame was lent; else they are void
}

// Skipped returns, once, what Next moved past right before the batch or the error
// that it returned: what was damaged, and frames that are void.
func (sc *Scanner) Skipped() (Skipped, bool) {
	s := sc.lost
	sc.lost = Skipped{}
	return s, s.Offsets > 0
}

// pastHole moves past the damage that begins at or before a position if no record is
// in it or its loss was accepted (ringfence segment accept-loss), and says whether it
// did. What looked like padding may have been damage that ends inside the block: then
// that is back from where the scanner is.
func (sc *Scanner) pastHole(at int64) bool {
	r := sc.seg.reader.Load()
	if r == nil {
		return false
	}
	holes, err := r.Holes()
	if err != nil {
		return false // unknown is not accepted
	}
	for _, h := range holes {
		to := h.Position + h.Length
		if !h.Accepted && h.Records > 0 || at < h.Position || at >= to {
			continue
		}
		moved := to > sc.pos || h.Offset+h.Records > sc.next
		sc.pass(h.Offset+h.Records, true)
		if to < sc.pos && moved {
			sc.stopAhead()
			sc.win = nil
			sc.pos = to
		}
		sc.skip(max(to-sc.pos, 0))
		return moved
	}
	return false
}

// pass notes that nothing can be read up to an offset.
func (sc *Scanner) pass(end uint64, damaged bool) {
	if sc.next >= end {
		return
	}
	if sc.lost.From+sc.lost.Offsets != sc.next {
		sc.lost = Skipped{From: sc.next} // else right behind another one
	}
	sc.lost.Offsets += end - sc.next
	sc.lost.Damaged = sc.lost.Damaged || damaged
	sc.next = end
}

// pastShort is pastHole where the file was too short to be read on. It may have been
// cut in a flush's padding: what is missing then begins with the next block.
func (sc *Scanner) pastShort(err error) bool {
	if !errors.Is(err, ErrDamaged) {
		return false
	}
	if sc.pastHole(sc.pos) || sc.pastHole(sc.due) {
		return true
	}
	r := sc.seg.reader.Load()
	next := roundUp64(sc.pos, disk.Block)
	if r == nil || next == sc.pos {
		return false
	}
	holes, err := r.Holes()
	if err != nil {
		return false
	}
	starts := func(h segfile.Hole) bool { return h.Position == next && h.Offset <= sc.next }
	return slices.ContainsFunc(holes, starts) && sc.pastHole(next)
}

// order refuses a frame that leaves out offsets: something between was lost.
func (sc *Scanner) order(h record.Head) error {
	if h.Count > 0 && sc.loose {
		sc.loose, sc.next = false, max(sc.next, h.Base)
	}
	if h.Count > 0 && h.Base > sc.next {
		return sc.damaged(sc.pos, fmt.Errorf("frame starts at offset %d, want %d", h.Base, sc.next))
	}
	return nil
}

// skip moves on by n bytes.
func (sc *Scanner) skip(n int64) {
	sc.pos += n
	sc.read += n
}

// Close gives the scanner's memory back.
func (sc *Scanner) Close() {
	sc.stopAhead()
	sc.Rest()
	if !sc.closed {
		sc.closed = true
		sc.seg.unuse()
	}
}

// Rest gives back the memory of what was read last, which must not be used any more, but
// keeps reading ahead. It is for those who may not come again for long.
func (sc *Scanner) Rest() {
	if sc.slab != nil {
		sc.seg.store.unlend(sc.slab)
	}
	sc.slab = nil
	if sc.ahead == nil {
		sc.win = nil
	}
	sc.work = record.Scratch{}
}

// lend takes arena memory for a scanner. All of them together get half of the arena: a
// reader that stands still keeps what it has, and must not keep producers from theirs.
func (s *Store) lend(n int) ([]byte, bool) {
	arena := s.disk.Arena()
	takes := int64(arena.Takes(n)) // up to twice as much
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
	sc.win = nil // its memory is read into, or given back
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
		buf = make([]byte, size) // the readers' share is in use: a copy more, but no wait
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

// open says which file to read from: another one once the segment is fenced.
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
