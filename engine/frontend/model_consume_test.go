package frontend

import (
	"errors"

	"github.com/ringfence/ringfence/cp"
	"github.com/ringfence/ringfence/fence"
)

// reshape splits or merges through a frontend: fence, seal recorded, then the change.
func (s *sim) reshape(i int, id fence.RangeID, merge bool) {
	f := s.nodes[i].f
	ids := []fence.RangeID{id}
	if merge {
		r := f.Metadata().Range(id)
		for _, other := range f.ActiveRangeIDs(testTopic) {
			if o := f.Metadata().Range(other); o.End-o.Start == r.End-r.Start && r.Start^(r.End-r.Start) == o.Start {
				ids = append(ids, other)
			}
		}
		if len(ids) != 2 {
			return
		}
	}
	for _, id := range ids {
		roll, ok := f.ActiveRoll(id)
		if !ok {
			continue
		}
		end, bytes, ok := s.fenceCopy(roll)
		if !ok {
			return
		}
		if err := f.RecordSeal(roll, end, bytes, s.wall); err != nil {
			s.allowed(err)
			return
		}
	}
	err := s.unmoved(f, func() (err error) {
		if merge {
			_, err = f.MergeRanges(ids[0], ids[1])
		} else {
			_, _, err = f.SplitRange(ids[0])
		}
		return err
	})
	switch {
	case err == nil:
		s.did(map[bool]string{true: "merge", false: "split"}[merge])
	case errors.Is(err, cp.ErrCannotSplit) || errors.Is(err, cp.ErrNotBuddies) || errors.Is(err, cp.ErrNoSuchRange):
	default:
		s.allowed(err)
	}
}

// active lists the truth's active segments.
func (s *sim) active() (list []*cp.Segment) {
	for r := range s.truth.view.Ranges(testTopic) {
		for seg := range s.truth.view.Segments(r.ID) {
			if seg.Phase == cp.Active {
				list = append(list, seg)
			}
		}
	}
	return list
}

// orphans seals every active segment whose copy is fenced, as the healing pass does.
func (s *sim) orphans() {
	for _, seg := range s.active() {
		if c := s.copies[seg.ID]; c != nil && c.fenced {
			s.did("orphan sealed")
			s.failover(seg, 0, nil)
		}
	}
}

// consume reads a little through one frontend.
func (s *sim) consume(f *Frontend, pick, max int) (progress bool) {
	next, sources, err := f.Plan(testTopic, s.reader, nil)
	if err != nil {
		if !errors.Is(err, cp.ErrNoSuchRange) { // this frontend is behind the one that was read before
			s.allowed(err)
		}
		return false
	}
	for i := range sources {
		src := sources[(pick+i)%len(sources)]
		e, skip, err := f.Seek(src)
		end := src.From + skip.Offsets
		if err == nil {
			c := s.copies[e.Segment.ID]
			if s.deleted[e.Segment.ID] || c == nil {
				continue // the read fails; nothing moves
			}
			for o := e.From; o < min(e.Limit, e.From+uint64(max)); o++ {
				s.show(src, o, c)
				end = o + 1
			}
		}
		if end == src.From {
			continue
		}
		if skip.Offsets > 0 {
			s.did("skip")
			s.skipped = append(s.skipped, skip)
		}
		next.Advance(src, end)
		s.reader = next
		return true
	}
	return false
}

// show delivers one record to the consumer.
func (s *sim) show(src Source, o uint64, c *simCopy) {
	if o < c.base || o >= c.committed {
		s.t.Fatalf("offset %d of %v is shown and not committed: %d to %d", o, src.Range, c.base, c.committed)
	}
	r := c.log[o-c.base]
	if !src.Wants(r.pos) {
		return
	}
	if s.delivered[src.Range] == nil {
		s.delivered[src.Range] = map[uint64]bool{}
	}
	if s.delivered[src.Range][o] {
		s.t.Fatalf("offset %d of %v came twice", o, src.Range)
	}
	s.delivered[src.Range][o] = true
	if last, ok := s.lastOf[r.pos]; ok {
		if last.r == src.Range && o <= last.offset || last.r != src.Range && !s.truth.view.ofID(src.Range.Topic).IsAncestor(last.r, src.Range) {
			s.t.Fatalf("key %d: %v %d after %v %d", r.pos, src.Range, o, last.r, last.offset)
		}
	}
	s.lastOf[r.pos] = stored2{src.Range, o}
}
