package cp

import (
	"iter"
	"maps"
	"slices"

	"github.com/ringfence/ringfence/fence"
)

// group is a consumer group of one topic. It is never changed in place.
type group struct {
	generation uint64
	positions  map[uint32]Position // by the sequence of the range
}

// Groups visits the names of a topic's groups in order.
func (s *State) Groups(topic string) iter.Seq[string] {
	return func(yield func(string) bool) {
		t := s.topic(topic)
		if t == nil {
			return
		}
		for _, name := range slices.Sorted(maps.Keys(t.groups)) {
			if !yield(name) {
				return
			}
		}
	}
}

// Generation is a group's generation, false if there is no such group.
func (s *State) Generation(group, topic string) (uint64, bool) {
	if t := s.topic(topic); t != nil && t.groups[group] != nil {
		return t.groups[group].generation, true
	}
	return 0, false
}

// Positions are the positions a group has committed, by range; nil if it never
// did. A range that was split or merged keeps its position until every child
// has one. The map is the caller's, the positions in it are not to be modified.
func (s *State) Positions(group, topic string) map[fence.RangeID]Position {
	t := s.topic(topic)
	if t == nil || t.groups[group] == nil {
		return nil
	}
	g := t.groups[group]
	all := make(map[fence.RangeID]Position, len(g.positions))
	for seq, p := range g.positions {
		all[t.rangeID(seq)] = p
	}
	return all
}

// Position is where a group goes on reading a range: what it committed there,
// else what it committed in the ranges this one comes from. It names every
// source that is not finished. The result is false for a group that committed
// nothing on the way: it reads every source from its start.
//
// A range that was merged while the group was behind in an ancestor of both
// halves goes on at the lower of the two offsets, so as to lose nothing.
func (s *State) Position(group string, id fence.RangeID) (Position, bool) {
	t := s.topicByID(id.Topic)
	if t == nil || t.rng(id.Seq) == nil || t.groups[group] == nil {
		return nil, false
	}
	p := (&resume{t: t, positions: t.groups[group].positions}).position(id.Seq)
	return maps.Clone(p), p != nil
}

// Unread is what a group reads next: the ranges that it has not finished, while it has
// finished all that they come from, with its next offset in each. A range that takes
// records is never finished. The result is nil if there is no such topic.
func (s *State) Unread(group, topic string) Position {
	t := s.topic(topic)
	if t == nil {
		return nil
	}
	w := resume{t: t}
	if g := t.groups[group]; g != nil {
		w.positions = g.positions
	}
	all, _ := w.behind(t.leaves())
	next := make(Position, len(t.active))
	for _, source := range s.Foremost(all) {
		next[source] = all[source]
	}
	return next
}

// Resume is [State.Position] for a reader that keeps its positions itself, in a
// cursor. What they name that is not in this topic, or no ancestor of the range
// it is named for, is ignored, so they may come from anywhere.
func (s *State) Resume(from map[fence.RangeID]Position, id fence.RangeID) (Position, bool) {
	t := s.topicByID(id.Topic)
	if t == nil || t.rng(id.Seq) == nil {
		return nil, false
	}
	known := make(map[uint32]Position, len(from))
	for r, p := range from {
		if r.Topic == id.Topic && t.rng(r.Seq) != nil {
			known[r.Seq] = t.sources(t.rng(r.Seq), p)
		}
	}
	p := (&resume{t: t, positions: known}).position(id.Seq)
	return maps.Clone(p), p != nil
}

// sources is p without what is neither r nor an ancestor of it.
func (t *topic) sources(r *rng, p Position) Position {
	out := make(Position, len(p))
	for source, offset := range p {
		if t.reads(r, source) {
			out[source] = offset
		}
	}
	return out
}

// reads says whether a range's reader reads this source: the range itself or an
// ancestor.
func (t *topic) reads(r *rng, source fence.RangeID) bool {
	a := t.rng(source.Seq)
	return source.Topic == t.rec.ID && a != nil && (a == r || t.isAncestor(a, r))
}

// resume computes positions of one reader.
type resume struct {
	t         *topic
	positions map[uint32]Position // what it recorded, by the sequence of the range
}

// position is nil when the reader recorded none in the range or before it. Else it is what
// it recorded last on each of the ways that lead to the range, at the lower offset where
// two name one source; and what lies on these ways behind that, from the start. A way on
// which nothing was recorded counts from the root on.
func (w *resume) position(seq uint32) Position {
	if len(w.positions) == 0 {
		return nil
	}
	if p, recorded := w.behind(just(seq)); recorded {
		return p
	}
	return nil
}

// behind is what position says of several ranges, each source at the lowest offset that
// one of them has, and whether anything was recorded on the way to any. Ways that meet are
// gone once: a range costs the same however many of the others come from it.
func (w *resume) behind(seqs iter.Seq[uint32]) (sum Position, recorded bool) {
	sum = Position{}
	seen := map[uint32]bool{}
	var next, behind []uint32
	see := func(seq uint32) {
		if !seen[seq] {
			seen[seq] = true
			next = append(next, seq)
		}
	}
	for seq := range seqs {
		see(seq)
	}
	for len(next) > 0 {
		at := next[len(next)-1]
		next = next[:len(next)-1]
		if p, ok := w.positions[at]; ok {
			sum.lower(p)
			recorded = true
			continue
		}
		behind = append(behind, at)
		for _, parent := range w.t.ranges[at].rec.From {
			see(parent.Seq)
		}
	}
	for _, at := range behind {
		sum[w.t.rangeID(at)] = 0
	}
	return w.t.unfinished(sum), recorded
}

// reached is the position of a range, and its start for a reader that recorded none on
// the way.
func (w *resume) reached(seq uint32) Position {
	p, _ := w.behind(just(seq))
	return p
}

func just(seq uint32) iter.Seq[uint32] { return func(yield func(uint32) bool) { yield(seq) } }

// lower adds what q has and p has not, or has at a higher offset.
func (p Position) lower(q Position) {
	for source, offset := range q {
		if have, ok := p[source]; !ok || offset < have {
			p[source] = offset
		}
	}
}

// unfinished is p without the sources that it has read to their known ends, and
// with no offset past one.
func (t *topic) unfinished(p Position) Position {
	out := make(Position, len(p))
	for source, offset := range p {
		if offset, unfinished := t.ranges[source.Seq].goesOn(offset); unfinished {
			out[source] = offset
		}
	}
	return out
}

// goesOn is where a reader at an offset of r goes on: not past an end that is known. It is
// false for one that has read r to an end that stays.
func (r *rng) goesOn(offset uint64) (uint64, bool) {
	if end, known := r.end(); known && offset >= end {
		return end, r.rec.Phase == Active
	}
	return offset, true
}

// leaves visits the ranges without children, in no order.
func (t *topic) leaves() iter.Seq[uint32] {
	return func(yield func(uint32) bool) {
		for _, r := range t.active { // all of them, unless the topic is sealed
			if !yield(r.ID.Seq) {
				return
			}
		}
		if t.rec.Phase == Active {
			return
		}
		for _, r := range t.ranges {
			if len(r.rec.Children) == 0 && !yield(r.rec.ID.Seq) {
				return
			}
		}
	}
}

func (t *topic) rangeID(seq uint32) fence.RangeID { return fence.RangeID{Topic: t.rec.ID, Seq: seq} }

// ValidName says whether a group, a policy or a user can have this name: 1 to 255 bytes
// of UTF-8 without control characters.
func ValidName(name string) bool { return name != "" && len(name) <= MaxName && printable(name) }

// enter finds a group that a command of this generation may change, or a new
// one.
func (s *State) enter(topicName, name string, generation uint64) (*topic, *group, error) {
	t, err := s.open(topicName)
	if err != nil {
		return nil, nil, err
	}
	if !ValidName(name) {
		return nil, nil, ErrInvalidGroup
	}
	g := t.groups[name]
	switch {
	case g == nil && len(t.groups) >= MaxGroups:
		return nil, nil, ErrLimit
	case g == nil:
		g = &group{}
	case generation < g.generation:
		return t, g, ErrStaleGeneration
	}
	return t, g, nil
}
