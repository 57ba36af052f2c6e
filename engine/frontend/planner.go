package frontend

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/ringfence/ringfence/cp"
	"github.com/ringfence/ringfence/fence"
)

// cursor is an entry of Offsets on its way through a plan.
type cursor struct {
	r      *cp.Range
	pos    cp.Position
	origin Origin
	pieces []piece // who reads through it
	fresh  bool    // entered since pieces were found; all of its slice is wanted and read through it
}

// piece is the part of a current range's slice that is read through one cursor. It is the whole
// slice of via, the range closest to the current one of which that can be said: the current one
// itself, or one that was merged into it.
type piece struct {
	leaf, via *cp.Range
}

type planner struct {
	f       *Frontend
	state   *cp.State
	leaves  []*cp.Range // what is current: ranges without children, by position
	only    map[fence.RangeID]bool
	cursors map[fence.RangeID]*cursor
	used    []*cursor // those with pieces, by range
	entered []*cursor // fresh ones still to be looked at
}

// planner opens the entries. Meta is held.
func (f *Frontend) planner(topic string, at Offsets, only []fence.RangeID) (*planner, error) {
	state := f.view.of(topic)
	if state == nil || state.Topic(topic) == nil {
		return nil, topicErr(topic, cp.ErrNoSuchTopic)
	}
	p := &planner{f: f, state: state, cursors: map[fence.RangeID]*cursor{}}
	p.leaves = leavesOf(state, topic)
	if only != nil {
		p.only = map[fence.RangeID]bool{}
		for _, id := range only {
			p.only[id] = true
		}
	}
	identity := state.Topic(topic).ID
	for id, position := range at {
		if id.Topic != identity {
			return nil, topicErr(topic, fmt.Errorf("%w: range %s is of another topic", ErrInvalidPosition, id))
		}
		r := state.Range(id)
		if r == nil {
			return nil, rangeErr(id, cp.ErrNoSuchRange)
		}
		c := &cursor{r: r, origin: FromCursor}
		if position == nil {
			c.origin = FromStart
		}
		var err error
		if c.pos, err = openPosition(state, r, position); err != nil {
			return nil, err
		}
		p.cursors[id] = c
	}
	return p, nil
}

// leavesOf lists the ranges of a topic without children, by position.
func leavesOf(state *cp.State, topic string) (leaves []*cp.Range) {
	if state.Topic(topic).Phase == cp.Active {
		return state.ActiveRanges(topic)
	}
	for r := range state.Ranges(topic) {
		if len(r.Children) == 0 {
			leaves = append(leaves, r)
		}
	}
	slices.SortFunc(leaves, func(a, b *cp.Range) int { return cmp.Compare(a.Start, b.Start) })
	return leaves
}

// covering lists the cursors that a range is read through: its own, else those of the nearest
// ancestors that have one, else one at the start of the root. Their pieces tile its slice.
func (p *planner) covering(leaf *cp.Range, found func(*cursor, piece)) {
	type step struct {
		at  *cp.Range
		via *cp.Range
	}
	seen := map[step]bool{}
	queue := []step{{at: leaf, via: leaf}}
	for len(queue) > 0 {
		s := queue[0]
		queue = queue[1:]
		if seen[s] {
			continue
		}
		seen[s] = true
		c := p.cursors[s.at.ID]
		if c == nil && len(s.at.From) == 0 {
			c = &cursor{r: s.at, pos: cp.Position{s.at.ID: 0}, origin: FromStart}
			p.cursors[s.at.ID] = c
		}
		if c != nil {
			found(c, piece{leaf: leaf, via: s.via})
			continue
		}
		for _, from := range s.at.From {
			parent := p.state.Range(from)
			switch {
			case !overlap(parent, s.via):
			case parent.End-parent.Start < s.via.End-s.via.Start: // a side of a merge
				queue = append(queue, step{at: parent, via: parent})
			default:
				queue = append(queue, step{at: parent, via: s.via})
			}
		}
	}
}

// cover finds out who reads through which cursor.
func (p *planner) cover() {
	for _, c := range p.cursors {
		c.pieces, c.fresh = nil, false
	}
	p.used = nil
	for _, leaf := range p.leaves {
		p.covering(leaf, func(c *cursor, u piece) {
			if c.pieces == nil {
				p.used = append(p.used, c)
			}
			c.pieces = append(c.pieces, u)
		})
	}
	slices.SortFunc(p.used, func(a, b *cursor) int { return a.r.ID.Compare(b.r.ID) })
}

// settle moves cursors from ranges that are finished to their children, until each is one that can
// be read or that has to wait. Every round adds an entry for a range that had none, so it ends. One
// round goes through as many generations as are finished: what takes the place of a range that was
// owned is owned too, and nobody has to look for its pieces before it is finished as well.
func (p *planner) settle() {
	for changed := true; changed; {
		p.cover()
		changed = false
		for _, c := range p.used {
			changed = p.step(c) || changed
		}
		for len(p.entered) > 0 {
			c := p.entered[len(p.entered)-1]
			p.entered = p.entered[:len(p.entered)-1]
			p.step(c)
		}
	}
}

// step decides on one cursor and says whether others take its place.
//
//	the cursor's range                          what becomes of it
//	current                                     read
//	retired, not all that came of it is wanted  each wanted piece gets its own cursor
//	retired, not finished                       read
//	split and finished                          the two halves take its place
//	merged and finished, other side finished    the sum takes the place of both
//	merged and finished, other side not         waits
func (p *planner) step(c *cursor) bool {
	switch {
	case len(c.r.Children) == 0:
		return false
	case !p.owned(c):
		return p.divide(c)
	case !p.finished(c):
		return false
	case len(c.r.Children) == 2:
		left := p.enter(c.r.Children[0], c.origin)
		return p.enter(c.r.Children[1], c.origin) || left
	}
	sum := p.state.Range(c.r.Children[0])
	both := true
	for _, id := range sum.From {
		side := p.cursors[id]
		both = both && side != nil && p.owned(side) && p.finished(side)
	}
	switch {
	case both:
		return p.enter(sum.ID, c.origin)
	case !c.fresh && p.passed(sum): // of a fresh one the next round finds out
		return p.divide(c)
	}
	return false
}

// enter starts a range whose parents are all finished.
func (p *planner) enter(id fence.RangeID, origin Origin) bool {
	if p.cursors[id] != nil {
		return false
	}
	c := &cursor{r: p.state.Range(id), pos: cp.Position{id: 0}, origin: origin, fresh: true}
	p.cursors[id] = c
	p.entered = append(p.entered, c)
	return true
}

// divide gives each wanted piece that is read through c a cursor of its own.
func (p *planner) divide(c *cursor) (changed bool) {
	for _, u := range c.pieces {
		if p.wanted(u.leaf) && u.via != c.r && p.cursors[u.via.ID] == nil {
			p.cursors[u.via.ID] = &cursor{r: u.via, pos: p.derive(u.via, c), origin: c.origin}
			changed = true
		}
	}
	return changed
}

// passed says whether a merge will never be read as one: a part of its sum is not wanted, or has a
// cursor behind it already.
func (p *planner) passed(sum *cp.Range) bool {
	for _, c := range p.used {
		for _, u := range c.pieces {
			if overlap(u.via, sum) && (!p.wanted(u.leaf) || c.r.ID == sum.ID || p.state.IsAncestor(sum.ID, c.r.ID)) {
				return true
			}
		}
	}
	return false
}

// wanted says whether a current range is one the consumer reads.
func (p *planner) wanted(leaf *cp.Range) bool { return p.only == nil || p.only[leaf.ID] }

// owned says whether all of a cursor's slice is read through it, and wanted.
func (p *planner) owned(c *cursor) bool {
	if c.fresh {
		return true
	}
	width := uint64(0)
	for _, u := range c.pieces {
		if !p.wanted(u.leaf) {
			return false
		}
		width += u.via.End - u.via.Start
	}
	return width == c.r.End-c.r.Start
}

// finished says whether a retired range has nothing left to read.
func (p *planner) finished(c *cursor) bool { return len(c.pos) == 1 && p.isDone(c, c.r) }

// isDone says whether a cursor has read a source to its end.
func (p *planner) isDone(c *cursor, s *cp.Range) bool {
	return isRead(p.state, s, c.pos[s.ID])
}

// derive is the position of a range that reads through c: what c has left of the range's keys, then
// every range between the two from its start.
func (p *planner) derive(r *cp.Range, c *cursor) cp.Position {
	pos := cp.Position{}
	for source, offset := range c.pos {
		s := p.state.Range(source)
		if source == r.ID || overlap(s, r) && !p.isDone(c, s) {
			pos[source] = offset
		}
	}
	for s := range p.state.Ancestors(r.ID, c.r.ID.Seq) {
		if p.state.IsAncestor(c.r.ID, s.ID) && overlap(s, r) && !isRead(p.state, s, 0) {
			pos[s.ID] = 0
		}
	}
	if p.state.IsAncestor(c.r.ID, r.ID) {
		pos[r.ID] = 0
	}
	return pos
}

// result lists the entries that stay, and for each the sources with nothing unfinished before them.
func (p *planner) result() (Offsets, []Source, error) {
	slices.SortFunc(p.used, func(a, b *cursor) int {
		return cmp.Or(cmp.Compare(a.r.Start, b.r.Start), a.r.ID.Compare(b.r.ID))
	})
	offsets := Offsets{}
	var sources []Source
	for _, c := range p.used {
		if !slices.ContainsFunc(c.pieces, func(u piece) bool { return p.wanted(u.leaf) }) {
			continue
		}
		offsets[c.r.ID] = c.pos
		for _, id := range p.state.Foremost(c.pos) {
			s := p.state.Range(id)
			if p.isDone(c, s) {
				continue
			}
			source := Source{
				Cursor: c.r.ID, Range: id, From: c.pos[id], Start: c.r.Start, End: c.r.End,
				Whole: c.r.Start <= s.Start && s.End <= c.r.End, Final: isFinal(p.state, s), Origin: c.origin,
			}
			switch {
			case source.Final:
				source.Limit = s.NextOffset
			case p.f.Unrecovered(id):
				return nil, nil, rangeErr(id, ErrMetadataUnavailable)
			}
			sources = append(sources, source)
		}
	}
	return offsets, sources, nil
}
