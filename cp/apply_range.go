package cp

import (
	"slices"

	"github.com/ringfence/ringfence/fence"
)

func (c SplitRange) apply(s *State) Reply { return c.split(s, withinRanges) }

func (c SplitRange) split(s *State, within limit) Reply {
	t, r, err := s.openRange(c.Range)
	switch {
	case err != nil:
		return refuse(err)
	case r.rec.Phase == Sealed:
		return refuse(ErrRangeSealed)
	case r.head != nil:
		return refuse(ErrActiveSegment)
	case r.rec.End-r.rec.Start < 2*t.unit():
		return refuse(ErrCannotSplit)
	}
	line := t.half(r)
	if !within(t, 2, line) {
		return refuse(ErrLimit)
	}
	t = s.change(t)
	t.ancestors += line.ancestors
	mid := r.rec.Start + (r.rec.End-r.rec.Start)/2
	from := []fence.RangeID{r.rec.ID}
	left := t.add(r.rec.Start, mid, from, line)
	right := t.add(mid, r.rec.End, from, line)
	t.retire(r.rec.ID.Seq, left, right)
	t.replace(1, left, right)
	return Reply{Range: left.ID, Range2: right.ID}
}

func (c MergeRanges) apply(s *State) Reply { return c.merge(s, withinRanges) }

func (c MergeRanges) merge(s *State, within limit) Reply {
	t, a, err := s.openRange(c.A)
	if err != nil {
		return refuse(err)
	}
	if a.rec.Phase == Sealed {
		return refuse(ErrRangeSealed)
	}
	b := s.rng(c.B)
	switch {
	case b == nil:
		return refuse(ErrNoSuchRange)
	case b.rec.Phase == Sealed:
		return refuse(ErrRangeSealed)
	case a.head != nil, b.head != nil:
		return refuse(ErrActiveSegment)
	case c.A.Topic != c.B.Topic:
		return refuse(ErrDifferentTopic)
	case !buddies(a.rec, b.rec):
		return refuse(ErrNotBuddies)
	}
	line := t.sum(a, b)
	if !within(t, 1, line) {
		return refuse(ErrLimit)
	}
	t = s.change(t)
	t.ancestors += line.ancestors
	start, end := min(a.rec.Start, b.rec.Start), max(a.rec.End, b.rec.End)
	child := t.add(start, end, []fence.RangeID{a.rec.ID, b.rec.ID}, line)
	t.retire(a.rec.ID.Seq, child)
	t.retire(b.rec.ID.Seq, child)
	t.replace(2, child)
	return Reply{Range: child.ID}
}

// unit is the width of one of the topic's 2^Bits positions.
func (t *topic) unit() uint64 { return 1 << (32 - t.rec.Bits) }

// buddies are the two halves of one aligned block.
func buddies(a, b *Range) bool {
	size := a.End - a.Start
	return b.End-b.Start == size && a.Start^size == b.Start
}

// add makes an active range with the topic's next sequence. It is not yet
// listed as active.
func (t *topic) add(start, end uint64, from []fence.RangeID, line line) *Range {
	rec := *t.rec
	r := &Range{ID: fence.RangeID{Topic: rec.ID, Seq: rec.NextRangeSeq}, Start: start, End: end, From: from}
	rec.NextRangeSeq++
	t.rec = &rec
	t.ranges = append(t.ranges, &rng{own: t.own, rec: r, over: line.over, ancestors: line.ancestors})
	return r
}

// retire seals a range in favour of its children.
func (t *topic) retire(seq uint32, children ...*Range) {
	r := t.change(seq)
	rec := *r.rec
	rec.Phase = Sealed
	for _, c := range children {
		rec.Children = append(rec.Children, c.ID)
	}
	r.rec = &rec
}

// replace lists with, which is in order, in place of the n active ranges that
// covered the same positions.
func (t *topic) replace(n int, with ...*Range) {
	i, _ := t.findActive(with[0].Start)
	t.active = slices.Replace(t.active, i, i+n, with...)
}

func (c RegisterSegment) apply(s *State) Reply {
	t, r, err := s.openRange(c.ID.Range)
	if err != nil {
		return refuse(err)
	}
	reply := Reply{NextOffset: r.rec.NextOffset, NextSequence: r.rec.NextSequence}
	switch {
	case r.rec.Phase == Sealed:
		reply.Err = ErrRangeSealed
	case s.Segment(c.ID) != nil:
		reply.Err = ErrSegmentExists
	case r.head != nil:
		reply.Err = ErrActiveSegment
	case c.Start != r.rec.NextOffset:
		reply.Err = ErrSegmentOverlap
	case c.ID.Seq < r.rec.NextSequence:
		reply.Err = ErrSequenceUsed
	case c.ID.Seq > maxSegmentSeq:
		reply.Err = ErrInvalidSegment
	case !validReplicas(c.Replicas):
		reply.Err = ErrInvalidReplicas
	}
	if reply.Err != nil {
		return reply
	}
	t = s.change(t)
	r = t.change(c.ID.Range.Seq)
	r.head = &Segment{
		ID:       c.ID,
		Replicas: slices.Clone(c.Replicas),
		Start:    c.Start,
		OpenedAt: c.At,
		Salt:     c.Salt,
		Writer:   c.Writer,
	}
	rec := *r.rec
	rec.NextSequence = c.ID.Seq + 1
	t.setRange(r, &rec)
	return reply
}

func (c SealSegment) apply(s *State) Reply {
	t, seg, err := s.openSegment(c.ID)
	switch {
	case err != nil:
		return refuse(err)
	case seg.Phase == Sealed && seg.Length != c.Length:
		return Reply{Err: AlreadySealed{Length: seg.Length}, Length: seg.Length}
	case seg.Phase == Sealed:
		return Reply{Length: seg.Length}
	case seg.Start+c.Length < seg.Start:
		return refuse(ErrInvalidLength)
	}
	t = s.change(t)
	r := t.change(c.ID.Range.Seq)
	sealed := *seg
	sealed.Phase, sealed.Length, sealed.Bytes, sealed.SealedAt = Sealed, c.Length, c.Bytes, c.At
	r.sealed, r.head = append(r.sealed, &sealed), nil
	rec := *r.rec
	rec.NextOffset = seg.Start + c.Length
	t.setRange(r, &rec)
	return Reply{Length: c.Length}
}

func (c DeleteSegment) apply(s *State) Reply {
	t, seg, err := s.openSegment(c.ID)
	switch {
	case err != nil:
		return refuse(err)
	case seg.Phase == Active:
		return refuse(ErrSegmentActive)
	}
	t = s.change(t)
	r := t.change(c.ID.Range.Seq)
	i, _ := r.find(c.ID.Seq)
	switch {
	case len(r.sealed) == 1:
		r.sealed = nil
	case i == 0: // what retention does
		r.sealed = r.sealed[1:]
	default:
		r.sealed = slices.Concat(r.sealed[:i], r.sealed[i+1:])
	}
	return Reply{}
}

func (c SetSegmentReplicas) apply(s *State) Reply {
	t, seg, err := s.openSegment(c.ID)
	switch {
	case err != nil:
		return refuse(err)
	case seg.Phase == Active:
		return refuse(ErrSegmentActive)
	case !validReplicas(c.Replicas):
		return refuse(ErrInvalidReplicas)
	}
	t = s.change(t)
	r := t.change(c.ID.Range.Seq)
	i, _ := r.find(c.ID.Seq)
	moved := *seg
	moved.Replicas = slices.Clone(c.Replicas)
	r.sealed = slices.Clone(r.sealed)
	r.sealed[i] = &moved
	return Reply{}
}

// validReplicas: somebody holds the segment, and nobody twice.
func validReplicas(set []NodeID) bool {
	if len(set) == 0 || len(set) > MaxReplicas {
		return false
	}
	for i, n := range set {
		if n == "" || len(n) > MaxName || slices.Contains(set[:i], n) {
			return false
		}
	}
	return true
}
