package frontend

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/ringfence/ringfence/cp"
	"github.com/ringfence/ringfence/fence"
)

// Offsets is where a consumer stands in a topic: its position in each range it consumes. A
// range without an entry goes on where the ranges it came from stand, or at the start of
// everything if none of them has an entry either.
//
// A position maps the sources of a range (the range and its ancestors) that are not finished to
// their next offsets. So a split child starts from its parent's map and a merge child from the
// union of both.
type Offsets map[fence.RangeID]cp.Position

// Source is one range that a consumer can read now.
type Source struct {
	Cursor fence.RangeID // the entry of Offsets that advances
	Range  fence.RangeID // the range to read: Cursor or an ancestor
	From   uint64        // next offset
	// Start and End bound the key positions [Start, End) that the cursor is about. Other records
	// of the range are somebody else's, unless Whole says that there are none.
	Start, End uint64
	Whole      bool
	// Final says that the range takes no more, and Limit where it ends: a reader that gets there
	// is finished with it.
	Final  bool
	Limit  uint64
	Origin Origin
}

// Wants says whether a record at that key position is the cursor's.
func (s *Source) Wants(position uint32) bool {
	return s.Whole || s.Start <= uint64(position) && uint64(position) < s.End
}

// Advance moves the cursor of a source that was read up to next. It is true when that finished
// the source: plan again, for what may be read after it.
func (o Offsets) Advance(s Source, next uint64) (finished bool) {
	pos := o[s.Cursor]
	if pos == nil {
		pos = cp.Position{}
		o[s.Cursor] = pos
	}
	if s.Final && next >= s.Limit {
		if s.Range == s.Cursor {
			pos[s.Range] = s.Limit
		} else {
			delete(pos, s.Range)
		}
		return true
	}
	pos[s.Range] = max(pos[s.Range], next)
	return false
}

// Clone is a copy that shares nothing.
func (o Offsets) Clone() Offsets {
	c := make(Offsets, len(o))
	for id, p := range o {
		c[id] = maps.Clone(p)
	}
	return c
}

// Plan says what a consumer that stands at those offsets can read now, and returns its offsets
// with an entry for every range it stands in: commit those, advanced by [Offsets.Advance].
// Only limits it to some of the topic's current ranges, the members' share of a group; nil means
// all of them. The arguments are not kept nor changed.
//
// A range is readable once everything before it is finished: its parents' records up to their
// sealed ends, for a merge those of both. So the records of one key come in the order they were
// produced. Records of one key never come from two sources of the same plan.
//
// Ranges that have retired are read on under their own entry as long as the consumer has all that
// came of them, so that history is read once and not once for each child; where it has only some,
// each of those children gets its own entry, cut to its slice. A merge whose two sides stand at
// different offsets of an ancestor they share is not started before both sides are finished:
// nothing is read twice and nothing is left out.
//
// Errors: cp.ErrNoSuchTopic, cp.ErrNoSuchRange (the view is behind the offsets; refresh),
// [ErrInvalidPosition].
func (f *Frontend) Plan(topic string, at Offsets, only []fence.RangeID) (Offsets, []Source, error) {
	f.meta.RLock()
	defer f.meta.RUnlock()
	p, err := f.planner(topic, at, only)
	if err != nil {
		return nil, nil, err
	}
	p.settleCursors()
	offsets, sources := p.result()
	return offsets, sources, nil
}

// StartPosition is where a consumer that stands at those offsets begins to read one range: its own
// entry, else its parent's map for a split child, else the union of both for a merge child. An
// ancestor that both parents have an entry of, at different offsets, is taken at the lower one:
// nothing is lost, some of it may come again. [Frontend.Plan] avoids that. Errors: cp.ErrNoSuchRange,
// [ErrInvalidPosition].
func (f *Frontend) StartPosition(id fence.RangeID, at Offsets) (cp.Position, error) {
	f.meta.RLock()
	defer f.meta.RUnlock()
	t := f.view.TopicByID(id.Topic)
	if t == nil || f.view.Range(id) == nil {
		return nil, rangeErr(id, cp.ErrNoSuchRange)
	}
	p, err := f.planner(t.Name, at, nil)
	if err != nil {
		return nil, err
	}
	r := p.state.Range(id)
	pos := cp.Position{}
	for _, c := range p.covering(r) {
		for source, offset := range p.derive(r, c) {
			if have, ok := pos[source]; !ok || offset < have {
				pos[source] = offset
			}
		}
	}
	return pos, nil
}

// cursor is an entry of Offsets on its way through a plan.
type cursor struct {
	r      *cp.Range
	pos    cp.Position
	origin Origin
	users  []*cp.Range // current ranges that read through it
}

type planner struct {
	f       *Frontend
	state   *cp.State
	leaves  []*cp.Range // what is current: ranges without children, by position
	only    map[fence.RangeID]bool
	cursors map[fence.RangeID]*cursor
	units   []*cursor // those that stay as they are
	done    map[fence.RangeID]bool
}

// planner opens the entries. Meta is held.
func (f *Frontend) planner(topic string, at Offsets, only []fence.RangeID) (*planner, error) {
	state := f.view.of(topic)
	if state == nil || state.Topic(topic) == nil {
		return nil, topicErr(topic, cp.ErrNoSuchTopic)
	}
	p := &planner{f: f, state: state, cursors: map[fence.RangeID]*cursor{}, done: map[fence.RangeID]bool{}}
	for r := range state.Ranges(topic) {
		if len(r.Children) == 0 {
			p.leaves = append(p.leaves, r)
		}
	}
	slices.SortFunc(p.leaves, func(a, b *cp.Range) int { return cmp.Compare(a.Start, b.Start) })
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
	for _, leaf := range p.leaves {
		for _, c := range p.covering(leaf) {
			c.users = append(c.users, leaf)
		}
	}
	return p, nil
}

// covering lists the cursors that a range is read through: its own, else those of the nearest
// ancestors that have one, else one at the start of the root. Together they cover its slice, and
// no two overlap in it.
func (p *planner) covering(r *cp.Range) []*cursor {
	var found []*cursor
	seen := map[fence.RangeID]bool{}
	queue := []*cp.Range{r}
	for len(queue) > 0 {
		at := queue[0]
		queue = queue[1:]
		if seen[at.ID] || !overlap(at, r) {
			continue
		}
		seen[at.ID] = true
		c := p.cursors[at.ID]
		if c == nil && len(at.From) == 0 {
			c = &cursor{r: at, pos: cp.Position{at.ID: 0}, origin: FromStart}
			p.cursors[at.ID] = c
		}
		if c != nil {
			found = append(found, c)
			continue
		}
		for _, from := range at.From {
			queue = append(queue, p.state.Range(from))
		}
	}
	return found
}

// settleCursors moves cursors from ranges that are finished to their children, until each is one
// that can be read or that has to wait.
func (p *planner) settleCursors() {
	var work []*cursor
	for _, c := range p.cursors {
		if len(c.users) > 0 {
			work = append(work, c)
		}
	}
	slices.SortFunc(work, func(a, b *cursor) int { return a.r.ID.Compare(b.r.ID) })
	for len(work) > 0 {
		c := work[0]
		work = append(work[1:], p.settle(c)...)
	}
}

// settle decides on one cursor and returns those that take its place and are to be decided on.
//
//	the cursor's range                          what becomes of it
//	current                                     read
//	retired, not all that came of it is wanted  each wanted range gets its own, cut to its slice
//	retired, not finished                       read
//	split and finished                          the two halves take its place
//	merged and finished, other side finished    the sum takes the place of both
//	merged and finished, other side not         waits
func (p *planner) settle(c *cursor) []*cursor {
	if p.done[c.r.ID] {
		return nil
	}
	p.done[c.r.ID] = true
	switch {
	case len(c.r.Children) == 0:
		if p.wanted(c.r.ID) {
			p.units = append(p.units, c)
		}
		return nil
	case !p.owned(c.r, c):
		p.divide(c)
		return nil
	case !p.finished(c):
		p.units = append(p.units, c)
		return nil
	case len(c.r.Children) == 2:
		return []*cursor{p.enter(c.r.Children[0], c), p.enter(c.r.Children[1], c)}
	}
	return p.join(c)
}

// join takes a finished side of a merge to the sum of both, if the other side is there too.
func (p *planner) join(c *cursor) []*cursor {
	sum := p.state.Range(c.r.Children[0])
	other := p.cursors[sum.From[0]]
	if sum.From[0] == c.r.ID {
		other = p.cursors[sum.From[1]]
	}
	if other != nil && p.done[other.r.ID] && p.owned(other.r, other) && p.finished(other) {
		p.units = slices.DeleteFunc(p.units, func(u *cursor) bool { return u == other })
		return []*cursor{p.enter(sum.ID, c, other)}
	}
	// The other side may come later, through its own cursor or an ancestor's. It never will where
	// somebody else reads it, or where it was passed long ago.
	if p.passed(sum, c) {
		p.divide(c)
		return nil
	}
	p.units = append(p.units, c)
	return nil
}

// passed says whether some current range of a merge's sum will never be read through both sides:
// it is not wanted, or it has a cursor behind the merge.
func (p *planner) passed(sum *cp.Range, c *cursor) bool {
	for _, leaf := range p.leaves {
		if !overlap(leaf, sum) {
			continue
		}
		if !p.wanted(leaf.ID) {
			return true
		}
		for _, k := range p.cursors {
			if slices.Contains(k.users, leaf) && (k.r.ID == sum.ID || isAncestor(k.r, sum.ID)) {
				return true
			}
		}
	}
	return false
}

// enter starts a range whose parents are all finished.
func (p *planner) enter(id fence.RangeID, from ...*cursor) *cursor {
	c := &cursor{r: p.state.Range(id), pos: cp.Position{id: 0}, origin: from[0].origin}
	for _, f := range from {
		for _, u := range f.users {
			if overlap(u, c.r) && !slices.Contains(c.users, u) {
				c.users = append(c.users, u)
			}
		}
	}
	p.cursors[id] = c
	return c
}

// wanted says whether a current range is one the consumer reads.
func (p *planner) wanted(id fence.RangeID) bool { return p.only == nil || p.only[id] }

// owned says whether every current range in r's slice is wanted and reads through c.
func (p *planner) owned(r *cp.Range, c *cursor) bool {
	for _, leaf := range p.leaves {
		if overlap(leaf, r) && (!p.wanted(leaf.ID) || !slices.Contains(c.users, leaf)) {
			return false
		}
	}
	return true
}

// finished says whether a retired range has nothing left to read.
func (p *planner) finished(c *cursor) bool {
	return len(c.pos) == 1 && isFinal(p.state, c.r) && c.pos[c.r.ID] >= c.r.NextOffset
}

// divide gives each wanted range that reads through c a cursor of its own.
func (p *planner) divide(c *cursor) {
	for _, leaf := range c.users {
		if p.wanted(leaf.ID) && p.cursors[leaf.ID] == nil {
			own := &cursor{r: leaf, pos: p.derive(leaf, c), origin: c.origin, users: []*cp.Range{leaf}}
			p.cursors[leaf.ID] = own
			p.units = append(p.units, own)
		}
	}
}

// derive is the position of a range that reads through c: what c has left of the range's keys, then
// every range between the two from its start.
func (p *planner) derive(r *cp.Range, c *cursor) cp.Position {
	pos := cp.Position{}
	for source, offset := range c.pos {
		s := p.state.Range(source)
		if source == r.ID || overlap(s, r) && !(isFinal(p.state, s) && offset >= s.NextOffset) {
			pos[source] = offset
		}
	}
	for _, source := range append(r.Parents[:len(r.Parents):len(r.Parents)], r.ID) {
		s := p.state.Range(source)
		if isAncestor(s, c.r.ID) && overlap(s, r) {
			pos[source] = 0
		}
	}
	return pos
}

// result lists the entries that stay, and for each the sources with nothing unfinished before them.
func (p *planner) result() (Offsets, []Source) {
	slices.SortFunc(p.units, func(a, b *cursor) int {
		return cmp.Or(cmp.Compare(a.r.Start, b.r.Start), a.r.ID.Compare(b.r.ID))
	})
	offsets := Offsets{}
	var sources []Source
	for _, c := range p.units {
		offsets[c.r.ID] = c.pos
		for _, id := range slices.SortedFunc(maps.Keys(c.pos), fence.RangeID.Compare) {
			s := p.state.Range(id)
			waits := slices.ContainsFunc(s.Parents, func(a fence.RangeID) bool { _, ok := c.pos[a]; return ok })
			if waits || p.isDone(c, s) {
				continue
			}
			sources = append(sources, Source{
				Cursor: c.r.ID, Range: id, From: c.pos[id], Start: c.r.Start, End: c.r.End,
				Whole: c.r.Start <= s.Start && s.End <= c.r.End,
				Final: isFinal(p.state, s), Limit: s.NextOffset, Origin: c.origin,
			})
		}
	}
	return offsets, sources
}

// isDone says whether a cursor has read a source to its end.
func (p *planner) isDone(c *cursor, s *cp.Range) bool {
	return isFinal(p.state, s) && c.pos[s.ID] >= s.NextOffset
}

// isAncestor says whether a is an ancestor of r.
func isAncestor(r *cp.Range, a fence.RangeID) bool {
	_, ok := slices.BinarySearchFunc(r.Parents, a, fence.RangeID.Compare)
	return ok
}
