package cp

import (
	"iter"
	"slices"

	"github.com/ringfence/ringfence/fence"
)

// A range's ancestors are the ranges that it comes from, those that these come from, and
// so on. A range keeps its direct parents alone, because lists of all ancestors grow with
// the square of the splits and merges. What tells an ancestor from any other range is one
// number beside them: over, the last range before it that was twice as wide and covered it.
//
//	split    over of a half is the range that was split
//	merge    over of the sum is over of over of either side
//
// The active ranges tile the keyspace at all times, so of two ranges with a position in
// common the earlier is an ancestor of the later. One that has none in common with r is an
// ancestor all the same if it was merged into one that was then split: into the last range
// before r that covers both, or into an earlier one. That range is on the way from r over
// and over, which has 32 steps at most, to the width of the whole keyspace.

// line is a range's place among its ancestors.
type line struct {
	over      uint32
	ancestors int
}

func (t *topic) half(of *rng) line { return line{over: of.rec.ID.Seq, ancestors: of.ancestors + 1} }

// sum counts what both sides come from once: everything up to the range that was over both.
func (t *topic) sum(a, b *rng) line {
	w := t.ranges[a.over]
	return line{over: w.over, ancestors: a.ancestors + b.ancestors - w.ancestors + 1}
}

func overlap(a, b *Range) bool { return a.Start < b.End && b.Start < a.End }

// isAncestor says whether r comes from a.
func (t *topic) isAncestor(a, r *rng) bool {
	if a.rec.ID.Seq >= r.rec.ID.Seq {
		return false
	}
	for !overlap(a.rec, r.rec) {
		r = t.ranges[r.over]
	}
	return a.rec.ID.Seq < r.rec.ID.Seq
}

// lineage visits the ancestors of r from a sequence on, oldest first. Where few of the ranges
// in between can be some, it goes from parent to parent; else it looks at all of them, which
// takes less than to remember where it has been.
func (t *topic) lineage(r *rng, from uint32) iter.Seq[*rng] {
	return func(yield func(*rng) bool) {
		if r.rec.ID.Seq > from && uint64(r.ancestors)*sparse < uint64(r.rec.ID.Seq-from) {
			for _, seq := range t.parentsOn(r, from) {
				if !yield(t.ranges[seq]) {
					return
				}
			}
			return
		}
		way := []*rng{r} // over and over
		for w := r; w.rec.ID.Seq > from; {
			w = t.ranges[w.over]
			way = append(way, w)
		}
		for seq := from; seq < r.rec.ID.Seq; seq++ {
			for way[len(way)-1].rec.ID.Seq <= seq {
				way = way[:len(way)-1]
			}
			// Of those on the way that are later than a, the earliest is the widest.
			if a := t.ranges[seq]; overlap(a.rec, way[len(way)-1].rec) && !yield(a) {
				return
			}
		}
	}
}

const sparse = 16

// parentsOn lists the ancestors of r from a sequence on.
func (t *topic) parentsOn(r *rng, from uint32) (seqs []uint32) {
	seen := map[uint32]bool{}
	for at := -1; at < len(seqs); at++ {
		of := r
		if at >= 0 {
			of = t.ranges[seqs[at]]
		}
		for _, p := range of.rec.From {
			if p.Seq >= from && !seen[p.Seq] {
				seen[p.Seq] = true
				seqs = append(seqs, p.Seq)
			}
		}
	}
	slices.Sort(seqs)
	return seqs
}

// IsAncestor says whether the range r comes from the range a, by whatever number of splits
// and merges. It is false when there is no such range, and no range is its own ancestor.
func (s *State) IsAncestor(a, r fence.RangeID) bool {
	t := s.topicByID(r.Topic)
	if t == nil || a.Topic != r.Topic || t.rng(a.Seq) == nil || t.rng(r.Seq) == nil {
		return false
	}
	return t.isAncestor(t.ranges[a.Seq], t.ranges[r.Seq])
}

// Ancestors visits the ancestors of a range that have the sequence from or a higher one,
// oldest first. It costs a step for each range in between, ancestor or not, but where few are.
func (s *State) Ancestors(id fence.RangeID, from uint32) iter.Seq[*Range] {
	return func(yield func(*Range) bool) {
		t := s.topicByID(id.Topic)
		if t == nil || t.rng(id.Seq) == nil {
			return
		}
		for a := range t.lineage(t.ranges[id.Seq], from) {
			if !yield(a.rec) {
				return
			}
		}
	}
}

// Foremost lists the sources of p that come from no other source of it, by sequence:
// what is to be read first. Ranges that the state does not have are left out.
func (s *State) Foremost(p Position) []fence.RangeID {
	ids := make([]fence.RangeID, 0, len(p))
	for id := range p {
		ids = append(ids, id)
	}
	slices.SortFunc(ids, fence.RangeID.Compare)
	return s.foremost(ids)
}

// foremost compares each with those alone that it keeps: whoever comes from one of the
// others comes from one of them. Where these may be many, it looks at every range in
// between instead, once: what comes from one of ids has a parent that does, or is one.
func (s *State) foremost(ids []fence.RangeID) []fence.RangeID {
	ids = slices.DeleteFunc(ids, func(id fence.RangeID) bool { return s.rng(id) == nil })
	if len(ids) == 0 {
		return ids
	}
	base, last := ids[0].Seq, ids[len(ids)-1].Seq
	if n := uint64(len(ids)); n*n <= uint64(last-base) || ids[0].Topic != ids[n-1].Topic {
		first := ids[:0]
		for _, id := range ids {
			if !slices.ContainsFunc(first, func(a fence.RangeID) bool { return s.IsAncestor(a, id) }) {
				first = append(first, id)
			}
		}
		return first
	}
	t := s.topicByID(ids[0].Topic)
	leads := make([]bool, last-base+1) // from an id to this range
	first := ids[:0]
	at := 0
	for seq := base; ; seq++ {
		leads[seq-base] = slices.ContainsFunc(t.ranges[seq].rec.From, func(p fence.RangeID) bool { return p.Seq >= base && leads[p.Seq-base] })
		if ids[at].Seq == seq {
			if at++; !leads[seq-base] {
				first = append(first, t.rangeID(seq))
				leads[seq-base] = true
			}
			if at == len(ids) {
				return first
			}
		}
	}
}

// limit says whether a topic takes so many ranges more, of that line.
type limit func(t *topic, more int, l line) bool

func withinRanges(t *topic, more int, _ line) bool { return len(t.ranges)+more <= MaxRanges }

// Logs hold splits and merges from when each range kept a list of its ancestors and the
// lists were bounded. What was refused then is refused whenever such a log is read, or the
// commands behind it would meet another topic than the one that they were made for.
type (
	boundedSplit struct{ SplitRange }
	boundedMerge struct{ MergeRanges }
)

func (c boundedSplit) apply(s *State) Reply { return c.split(s, withinLists) }
func (c boundedMerge) apply(s *State) Reply { return c.merge(s, withinLists) }

func withinLists(t *topic, _ int, l line) bool {
	return l.ancestors <= 8192 && t.ancestors+l.ancestors <= 1<<22
}
