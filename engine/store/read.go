package store

import (
	"fmt"
	"io"

	"github.com/ringfence/ringfence/segfile/disk"
	"github.com/ringfence/ringfence/segfile/record"
)

// Scanner reads one segment's batches in order, up to the commit mark. It is not safe for
// concurrent use. It reads ahead in a fenced segment once it, with those that it follows,
// has read a megabyte in sequence.
type Scanner struct {
	seg  *Segment
	file disk.File // nil until the first read
	next uint64    // the first offset still wanted
	pos  int64     // where in the file the next frame is looked for
	due  int64     // where it was expected, before what looked like padding
	read int64     // bytes read in sequence, including the segments before

	// The window: win holds the file from winPos on. It lies in slab, in what was read
	// ahead, or on the heap.
	win    []byte
	winPos int64
	slab   []byte // arena memory for reads that do not run ahead, or nil

	ahead   *ahead // set while reading ahead
	longest int    // the longest piece that was asked for of what is read ahead
	closed  bool
	loose   bool    // the next batch may begin at any offset: those before it are not wanted
	lost    Skipped // what the last Next skipped
	batch   record.Batch
	work    record.Scratch
}

// Scan returns a scanner whose first batch holds offset from or, if there is none, is the
// first after it. Close it after use. ErrNoSegment if the segment was deleted.
func (s *Segment) Scan(from uint64) (*Scanner, error) {
	if err := s.use(); err != nil {
		return nil, err
	}
	return &Scanner{seg: s, next: max(from, s.meta.Base), pos: s.find(from)}, nil
}

// Follow says that the scanner goes on, in the next segment of a range, where another one
// came to the end of its own: it reads ahead from its first byte if that one did, and
// decompresses to the same memory. The other one must only be closed from then on. Call
// Follow before the first Next.
func (sc *Scanner) Follow(before *Scanner) {
	sc.read, sc.longest = before.read, min(before.longest, leadMax)
	sc.work, before.work = before.work, record.Scratch{}
}

// ScanTime is Scan from a batch at or before the first record of a time, in milliseconds
// since the epoch.
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
	sc.loose = true
	return sc, nil
}

// Next returns the next batch with an offset that was not returned yet. The batch is valid
// until the following call. io.EOF says that there is nothing more below the commit mark;
// on a fenced segment there never will be. ErrDamaged names file and byte. A lent frame
// whose records are damaged is not an error but Skipped: its lender is to blame, and must
// not be able to stop those who read.
func (sc *Scanner) Next() (*record.Batch, error) {
	b, err := sc.step()
	if err != nil {
		sc.seg.note(err)
	}
	return b, err
}

// step is Next, but for telling of damage.
func (sc *Scanner) step() (*record.Batch, error) {
	for {
		commit := sc.seg.commit.Load()
		if sc.next >= commit {
			return nil, io.EOF
		}
		end := sc.seg.durable.Load()
		if sc.pos >= end {
			if sc.pastHole(sc.due) {
				continue
			}
			return nil, sc.damaged(sc.pos, fmt.Errorf("the records end here, before offset %d", commit))
		}
		head, moved, err := sc.header(end)
		if moved {
			continue
		}
		if err != nil {
			return nil, err
		}
		switch {
		case head.Base+uint64(head.Count) <= sc.next || head.Count == 0:
			sc.skip(sizeOf(&head))
			continue
		case head.Void():
			sc.pass(head.Next(), false)
			sc.skip(sizeOf(&head))
			continue
		}
		if moved, err = sc.verify(&head, end); moved {
			continue
		}
		if err != nil {
			return nil, err
		}
		sc.next = head.Base + uint64(head.Count)
		sc.skip(sizeOf(&head))
		return &sc.batch, nil
	}
}

// header reads the header of the frame at pos, which ends at or before end. moved says that
// there is none, and that the scanner moved on: over padding, or a hole that may be passed.
func (sc *Scanner) header(end int64) (head record.Head, moved bool, err error) {
	b, err := sc.bytes(record.HeaderSize, end)
	if err != nil {
		return head, sc.pastShort(err), err
	}
	if in := sc.pos % disk.Block; isPadding(b) && in != 0 {
		sc.due = sc.pos
		sc.skip(disk.Block - in)
		return head, true, nil
	}
	head, err = record.ParseHead(b, sc.seg.meta.Salt)
	switch {
	case err != nil:
		err = sc.damaged(sc.pos, err)
	case sc.pos+int64(head.FrameLen) > end:
		err = sc.damaged(sc.pos, fmt.Errorf("a frame of %d bytes reaches beyond byte %d", head.FrameLen, end))
	default:
		err = sc.order(&head)
	}
	if err != nil {
		return head, sc.pastHole(sc.due) || sc.pastHole(sc.pos), err
	}
	return head, false, nil
}

// verify makes the frame at pos the scanner's batch. moved says that it cannot be read, and
// that the scanner moved on behind it, or behind the hole that it is in.
func (sc *Scanner) verify(head *record.Head, end int64) (moved bool, err error) {
	b, err := sc.bytes(int(head.FrameLen), end)
	if err != nil {
		return sc.pastShort(err), err
	}
	sc.batch, err = record.Verify(b[:head.FrameLen], sc.seg.meta.Salt, &sc.work)
	switch {
	case err == nil:
		return false, nil
	case sc.pastHole(sc.pos):
		return true, nil
	case head.Lent(): // the header is valid: everything but the frame's own records is known
		sc.seg.note(&DamageError{File: sc.seg.path(), Byte: sc.pos, Err: err, Lent: true})
		sc.pass(head.Next(), true)
		sc.skip(sizeOf(head))
		return true, nil
	}
	return false, sc.damaged(sc.pos, err)
}

// sizeOf is the room that a frame takes in its flush.
func sizeOf(head *record.Head) int64 { return int64(roundUp(int(head.FrameLen), record.FrameAlign)) }

// order refuses a frame that does not go on where the last one ended: something between
// was lost.
func (sc *Scanner) order(h *record.Head) error {
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

// Rest gives back the memory of what was read last, which must not be used any more; reading
// ahead goes on. It is for those who may not call Next again for long.
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
