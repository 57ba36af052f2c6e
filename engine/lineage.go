package engine

import (
	"errors"
	"fmt"

	"github.com/ringfence/ringfence/cp"
	"github.com/ringfence/ringfence/fence"
	"github.com/ringfence/ringfence/segfile"
)

// lineage says where to find what a range knows of its producers: in its last segment, or
// else in what the ranges it came from knew.
type lineage struct {
	id         fence.RangeID
	start, end uint64
	segments   []stretch // of the range itself, in order
	from       []*lineage
	unasked    bool                   // from was not looked for: its own segments are likely to tell
	known      *segfile.ProducerTable // what the range started from, once somebody asked; never changed
}

// stretch is a sealed segment and the offsets [start, end) it holds.
type stretch struct {
	id         fence.SegmentID
	start, end uint64
}

// lineageOf looks for the range's sealed segments before id; those that were given up count
// as expired. Only if there are none does it look at the range's parents: histories are
// long, and what is before a range's segments matters only if all of them are damaged.
// Ranges that were split and merged again can be reached on many ways; done holds those
// that were looked at.
func (e *Engine) lineageOf(s *cp.State, r *cp.Range, id fence.SegmentID, done map[fence.RangeID]*lineage) *lineage {
	if l := done[r.ID]; l != nil {
		return l
	}
	l := &lineage{id: r.ID, start: r.Start, end: r.End}
	done[r.ID] = l
	for seg := range s.Segments(r.ID) {
		if seg.ID != id && seg.Phase == cp.Sealed && !e.isGivenUp(seg.ID) {
			l.segments = append(l.segments, stretch{seg.ID, seg.Start, seg.Start + seg.Length})
		}
	}
	if l.unasked = len(l.segments) > 0; !l.unasked {
		e.lookBehind(s, r, l, done)
	}
	return l
}

// lookBehind adds the lineages of a range's parents.
func (e *Engine) lookBehind(s *cp.State, r *cp.Range, l *lineage, done map[fence.RangeID]*lineage) {
	for _, parent := range r.From {
		if p := s.Range(parent); p != nil {
			l.from = append(l.from, e.lineageOf(s, p, fence.SegmentID{}, done))
		}
	}
}

// inherit is the producer table that a new segment of the range starts from.
func (e *Engine) inherit(l *lineage) (*segfile.ProducerTable, error) {
	return e.producersBehind(l, len(l.segments))
}

// producersBehind is what the range knew of its producers after the first n of its
// segments. Where damage took that from a segment, its frames are still there: it is
// computed again from them and what was known before.
func (e *Engine) producersBehind(l *lineage, n int) (*segfile.ProducerTable, error) {
	if n == 0 {
		return e.inheritParents(l)
	}
	last := l.segments[n-1]
	if err := e.whyLost(last.id); err != nil {
		return nil, fmt.Errorf("what its range knows of its producers is lost: %w", err)
	}
	seg, err := e.store.Segment(last.id)
	if err != nil {
		return nil, fmt.Errorf("the producers of the range are in a segment that is not there: %w", err)
	}
	table, err := seg.Producers()
	if !errors.Is(err, ErrDamaged) {
		return table, err
	}
	if n > 1 && l.segments[n-2].end != last.start || n == 1 && last.start != 0 {
		return nil, err // what came before has expired
	}
	before, berr := e.producersBehind(l, n-1)
	if berr == nil {
		before = before.Clone()
		berr = seg.Replay(before)
	}
	if berr != nil {
		return nil, errors.Join(err, berr)
	}
	e.log.Warn("what a segment knew of its producers was computed again from its frames", "segment", last.id)
	return before, nil
}

// inheritParents is the table that the range itself started from.
func (e *Engine) inheritParents(l *lineage) (*segfile.ProducerTable, error) {
	if l.known != nil {
		return l.known, nil
	}
	if l.unasked {
		err := e.withTopic(l.id.Topic, func(s *cp.State, _ *cp.Topic) {
			if r := s.Range(l.id); r != nil {
				e.lookBehind(s, r, l, map[fence.RangeID]*lineage{})
			}
		})
		if err != nil {
			return nil, err
		}
		l.unasked = false
	}
	table := segfile.NewProducerTable(l.start, l.end)
	for i, from := range l.from {
		t, err := e.inherit(from)
		switch {
		case err != nil:
			return nil, err
		case i == 0:
			table = t
		default:
			table = segfile.MergeTables(table, t)
		}
	}
	if start, end := table.Bounds(); start != l.start || end != l.end {
		table = table.Slice(l.start, l.end)
	}
	l.known = table
	return table, nil
}
