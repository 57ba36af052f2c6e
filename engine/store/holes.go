package store

import (
	"errors"
	"slices"

	"github.com/ringfence/ringfence/segfile"
	"github.com/ringfence/ringfence/segfile/disk"
)

// Holes are the stretches of a fenced segment that cannot be read, as far as they are on
// record: found when it was closed, or accepted as lost since. It reads only that record.
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
	// Damaged: at least some of them are damaged, and their loss was accepted or their frame
	// was lent. Otherwise their frames are void.
	Damaged bool
}

// Skipped returns, once, what Next moved past before the batch or the error that it
// returned: what was damaged, and frames that are void.
func (sc *Scanner) Skipped() (Skipped, bool) {
	s := sc.lost
	sc.lost = Skipped{}
	return s, s.Offsets > 0
}

// pastHole moves past the hole that a position is in, if no record is in the hole or its
// loss was accepted (ringfence segment accept-loss), and says whether it did. What looked
// like padding may have been a hole that ends inside the block: then the scanner moves back
// to that end.
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

// pass notes that nothing can be read up to an offset, and goes on there.
func (sc *Scanner) pass(end uint64, damaged bool) {
	if sc.next >= end {
		return
	}
	if sc.lost.From+sc.lost.Offsets != sc.next {
		sc.lost = Skipped{From: sc.next} // else it joins the one right before it
	}
	sc.lost.Offsets += end - sc.next
	sc.lost.Damaged = sc.lost.Damaged || damaged
	sc.next = end
}

// pastShort is pastHole for a file that is too short. It may have been cut inside a flush's
// padding: then what is missing begins with the next block.
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
