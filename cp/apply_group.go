package cp

import (
	"maps"
	"slices"

	"github.com/ringfence/ringfence/fence"
)

func (c CommitOffset) apply(s *State) Reply {
	t, g, err := s.enter(c.Topic, c.Group, c.Generation)
	if err != nil {
		return refuseGroup(err, g)
	}
	now := resume{t: t, positions: g.positions}
	next := make(map[uint32]Position, len(g.positions)+len(c.Positions))
	maps.Copy(next, g.positions)
	for _, id := range slices.SortedFunc(maps.Keys(c.Positions), fence.RangeID.Compare) {
		p := c.Positions[id]
		if err := t.admits(id, p); err != nil {
			return refuseGroup(err, g)
		}
		before := now.position(id.Seq)
		if c.Reset {
			before = nil
		}
		next[id.Seq] = t.advance(id, before, p)
	}
	t.prune(next)
	s.setGroup(t, c.Group, &group{generation: c.Generation, positions: next})
	return Reply{Generation: c.Generation}
}

// admits says whether a group may commit p for a range: it names ancestors and
// the range itself, and nothing past an end that is known.
func (t *topic) admits(id fence.RangeID, p Position) error {
	if id.Topic != t.rec.ID {
		return ErrDifferentTopic
	}
	r := t.rng(id.Seq)
	if r == nil {
		return ErrNoSuchRange
	}
	for _, source := range slices.SortedFunc(maps.Keys(p), fence.RangeID.Compare) {
		if !t.reads(r, source) {
			return ErrNotASource
		}
		if end, known := t.ranges[source.Seq].end(); known && p[source] > end {
			return ErrPastEnd
		}
	}
	return nil
}

// advance is the position p of a range after before, which is nil for the
// first: no source goes back, and one that before had finished stays finished.
// A range that still takes records is never finished.
func (t *topic) advance(id fence.RangeID, before, p Position) Position {
	next := make(Position, len(p)+1)
	for source, offset := range p {
		have, unfinished := before[source]
		if before == nil || unfinished {
			next[source] = max(offset, have)
		}
	}
	if t.ranges[id.Seq].rec.Phase == Active {
		next[id] = max(p[id], before[id])
	}
	return t.unfinished(next)
}

func (c CommitRanges) apply(s *State) Reply {
	t, g, err := s.enter(c.Topic, c.Group, c.Generation)
	if err != nil {
		return refuseGroup(err, g)
	}
	for _, source := range slices.SortedFunc(maps.Keys(c.Sources), fence.RangeID.Compare) {
		switch {
		case source.Topic != t.rec.ID:
			return refuseGroup(ErrDifferentTopic, g)
		case t.rng(source.Seq) == nil:
			return refuseGroup(ErrNoSuchRange, g)
		}
		if end, known := t.ranges[source.Seq].end(); known && c.Sources[source] > end {
			return refuseGroup(ErrPastEnd, g)
		}
	}
	now := resume{t: t, positions: g.positions}
	next := make(map[uint32]Position, len(t.active))
	for seq := range t.leaves() { // whose positions stand for all the others
		next[seq] = t.raise(now.reached(seq), c.Sources)
	}
	s.setGroup(t, c.Group, &group{generation: c.Generation, positions: next})
	return Reply{Generation: c.Generation}
}

// raise is p, which names every source that is not finished, with the sources of to
// that it names, and that to is further in, where to has them.
func (t *topic) raise(p, to Position) Position {
	next := maps.Clone(p)
	for source, have := range next { // a range names its own line alone, to may be long
		if offset, ok := to[source]; ok {
			next[source] = max(offset, have)
		}
	}
	return t.unfinished(next)
}

// prune drops the positions of ranges whose children all have one, or have been
// superseded in the same way.
func (t *topic) prune(positions map[uint32]Position) {
	low := uint32(len(t.ranges))
	for seq := range positions {
		if len(t.ranges[seq].rec.Children) > 0 {
			low = min(low, seq)
		}
	}
	superseded := make([]bool, uint32(len(t.ranges))-low) // from low on; children come after their parents
	for i := len(superseded) - 1; i >= 0; i-- {
		children := t.ranges[low+uint32(i)].rec.Children
		superseded[i] = len(children) > 0 && !slices.ContainsFunc(children, func(c fence.RangeID) bool {
			_, ok := positions[c.Seq]
			return !ok && !superseded[c.Seq-low]
		})
	}
	for seq := range positions {
		if seq >= low && superseded[seq-low] {
			delete(positions, seq)
		}
	}
}

func (c FenceGroup) apply(s *State) Reply {
	t, g, err := s.enter(c.Topic, c.Group, c.Generation)
	if err != nil {
		return refuseGroup(err, g)
	}
	s.setGroup(t, c.Group, &group{generation: c.Generation, positions: g.positions})
	return Reply{Generation: c.Generation}
}

func (c DeleteGroup) apply(s *State) Reply {
	t, err := s.open(c.Topic)
	switch {
	case err != nil:
		return refuse(err)
	case t.groups[c.Group] == nil:
		return refuse(ErrNoSuchGroup)
	}
	delete(s.change(t).groups, c.Group)
	return Reply{}
}

func (s *State) setGroup(t *topic, name string, g *group) {
	t = s.change(t)
	if t.groups == nil {
		t.groups = map[string]*group{}
	}
	t.groups[name] = g
}

// refuseGroup tells a stale member the generation that made it so.
func refuseGroup(err error, g *group) Reply {
	r := Reply{Err: err}
	if g != nil {
		r.Generation = g.generation
	}
	return r
}
