package cp_test

import (
	"maps"
	"slices"

	"github.com/ringfence/ringfence/cp"
	"github.com/ringfence/ringfence/fence"
)

func (m *model) onGroup(topic, name string, generation uint64, do func(*cp.Topic, *mGroup) error) error {
	return m.onTopic(topic, func(t *cp.Topic) error {
		if name == "" || len(name) > 255 {
			return cp.ErrInvalidGroup
		}
		k := groupKey{topic, name}
		g := m.groups[k]
		if g == nil {
			g = &mGroup{positions: map[fence.RangeID]cp.Position{}}
		}
		if generation < g.generation {
			return cp.ErrStaleGeneration
		}
		copied := &mGroup{generation: g.generation, positions: maps.Clone(g.positions)}
		if err := do(t, copied); err != nil {
			return err
		}
		m.groups[k] = copied
		return nil
	})
}

// knownEnd is where a range ends, if nothing can be appended to it now.
func (m *model) knownEnd(id fence.RangeID) (uint64, bool) {
	return m.rng(id).NextOffset, m.head(id) == nil
}

// trim drops what is read to its end and pulls back what lies past one.
func (m *model) trim(p cp.Position) cp.Position {
	out := cp.Position{}
	for source, offset := range p {
		end, known := m.knownEnd(source)
		if known && offset >= end {
			if m.rng(source).Phase == cp.Sealed {
				continue
			}
			offset = end
		}
		out[source] = offset
	}
	return out
}

// position: what is stored, else from each parent its position, or its start;
// of two offsets of one source the lower.
func (m *model) position(g *mGroup, id fence.RangeID) cp.Position {
	if p, ok := g.positions[id]; ok {
		return m.trim(p)
	}
	r := m.rng(id)
	sum := cp.Position{}
	known := false
	for _, parent := range r.From {
		p := m.position(g, parent)
		if known = known || p != nil; p == nil {
			p = cp.Position{parent: 0}
			for _, a := range m.ancestors(parent) {
				p[a] = 0
			}
		}
		for source, offset := range p {
			if have, ok := sum[source]; !ok || offset < have {
				sum[source] = offset
			}
		}
	}
	if !known {
		return nil
	}
	sum[id] = 0
	return m.trim(sum)
}

// replaced: every child has a position, or is itself replaced.
func (m *model) replaced(g *mGroup, id fence.RangeID) bool {
	children := m.rng(id).Children
	for _, c := range children {
		if _, ok := g.positions[c]; !ok && !m.replaced(g, c) {
			return false
		}
	}
	return len(children) > 0
}

func (m *model) commit(c cp.CommitOffset) error {
	return m.onGroup(c.Topic, c.Group, c.Generation, func(t *cp.Topic, g *mGroup) error {
		g.generation = c.Generation
		old := &mGroup{positions: maps.Clone(g.positions)}
		for _, id := range slices.SortedFunc(maps.Keys(c.Positions), fence.RangeID.Compare) {
			r := m.rng(id)
			if err := first(rule{id.Topic != t.ID, cp.ErrDifferentTopic}, rule{r == nil, cp.ErrNoSuchRange}); err != nil {
				return err
			}
			p := c.Positions[id]
			for _, source := range slices.SortedFunc(maps.Keys(p), fence.RangeID.Compare) {
				if source != id && !slices.Contains(m.ancestors(id), source) {
					return cp.ErrNotASource
				}
				if end, known := m.knownEnd(source); known && p[source] > end {
					return cp.ErrPastEnd
				}
			}
			before := m.position(old, id)
			next := maps.Clone(p)
			if next == nil {
				next = cp.Position{}
			}
			if before != nil && !c.Reset {
				for source := range p {
					if have, ok := before[source]; !ok {
						delete(next, source)
					} else {
						next[source] = max(next[source], have)
					}
				}
			}
			if _, ok := next[id]; !ok && r.Phase == cp.Active {
				if next[id] = p[id]; !c.Reset {
					next[id] = max(p[id], before[id])
				}
			}
			g.positions[id] = m.trim(next)
		}
		kept := maps.Clone(g.positions)
		maps.DeleteFunc(kept, func(id fence.RangeID, _ cp.Position) bool { return m.replaced(g, id) })
		g.positions = kept
		return nil
	})
}

// reached: the position, or the start.
func (m *model) reached(g *mGroup, r *cp.Range) cp.Position {
	if p := m.position(g, r.ID); p != nil {
		return p
	}
	p := cp.Position{r.ID: 0}
	for _, a := range m.ancestors(r.ID) {
		p[a] = 0
	}
	return m.trim(p)
}

func (m *model) commitRanges(c cp.CommitRanges) error {
	return m.onGroup(c.Topic, c.Group, c.Generation, func(t *cp.Topic, g *mGroup) error {
		for _, source := range slices.SortedFunc(maps.Keys(c.Sources), fence.RangeID.Compare) {
			r := m.rng(source)
			if err := first(rule{source.Topic != t.ID, cp.ErrDifferentTopic}, rule{r == nil, cp.ErrNoSuchRange}); err != nil {
				return err
			}
			if end, known := m.knownEnd(source); known && c.Sources[source] > end {
				return cp.ErrPastEnd
			}
		}
		old := &mGroup{positions: g.positions}
		g.generation, g.positions = c.Generation, map[fence.RangeID]cp.Position{}
		for _, r := range m.ranges {
			if r.ID.Topic != t.ID || len(r.Children) > 0 {
				continue
			}
			next := m.reached(old, r)
			for source, offset := range c.Sources {
				if have, ok := next[source]; ok {
					next[source] = max(have, offset)
				}
			}
			g.positions[r.ID] = m.trim(next)
		}
		return nil
	})
}

// unread: of all that is not finished for some range, what has no ancestor there.
func (m *model) unread(g *mGroup, t fence.TopicID) cp.Position {
	all := cp.Position{}
	for _, r := range m.ranges {
		if r.ID.Topic != t || len(r.Children) > 0 {
			continue
		}
		for source, offset := range m.reached(g, r) {
			if have, ok := all[source]; !ok || offset < have {
				all[source] = offset
			}
		}
	}
	next := maps.Clone(all)
	for source := range all {
		for _, a := range m.ancestors(source) {
			if _, ok := all[a]; ok {
				delete(next, source)
			}
		}
	}
	return next
}
