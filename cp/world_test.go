package cp_test

import (
	"maps"
	"slices"

	"github.com/ringfence/ringfence/cp"
	"github.com/ringfence/ringfence/fence"
	"pgregory.net/rapid"
)

// world is a topic of four positions with its records, kept beside the metadata,
// and one group that reads it as a consumer would: by Position and commits.
type world struct {
	s            *cp.State
	records      map[fence.RangeID][]rec // by offset
	delivered    []int                   // by record: how often
	lastOf       [4]int                  // by key: the last record delivered
	mergedBehind bool                    // a merge met a group that was not done with an ancestor
	nextSeq      map[fence.RangeID]uint32
}

type rec struct {
	key uint64 // one of four positions
	n   int    // its place in delivered
}

func newWorld(t *rapid.T) *world {
	w := &world{s: cp.NewState(), records: map[fence.RangeID][]rec{}, nextSeq: map[fence.RangeID]uint32{}}
	w.apply(t, cp.CreateTopic{Name: "logs", Bits: 2, ID: id(1)})
	return w
}

func (w *world) apply(t *rapid.T, cmd cp.Command) cp.Reply {
	r := w.s.Apply(cmd)
	if r.Err != nil {
		t.Fatalf("%+v: %v", cmd, r.Err)
	}
	return r
}

func (w *world) check(t *rapid.T) {
	if err := w.s.Check(); err != nil {
		t.Fatal(err)
	}
}

func (w *world) pick(t *rapid.T) *cp.Range {
	return rapid.SampledFrom(w.s.ActiveRanges("logs")).Draw(t, "range")
}

// produce writes a sealed segment of a few records, one key each.
func (w *world) produce(t *rapid.T) {
	r := w.pick(t)
	unit := uint64(1) << 30
	n := rapid.IntRange(0, 3).Draw(t, "n")
	for range n {
		key := rapid.Uint64Range(r.Start/unit, r.End/unit-1).Draw(t, "key")
		w.records[r.ID] = append(w.records[r.ID], rec{key: key, n: len(w.delivered)})
		w.delivered = append(w.delivered, 0)
	}
	seg := fence.SegmentID{Range: r.ID, Seq: r.NextSequence}
	w.apply(t, cp.RegisterSegment{ID: seg, Replicas: []cp.NodeID{"a"}, Start: r.NextOffset})
	w.apply(t, cp.SealSegment{ID: seg, Length: uint64(n)})
}

func (w *world) split(t *rapid.T) {
	if r := w.pick(t); r.End-r.Start > 1<<30 {
		w.apply(t, cp.SplitRange{Range: r.ID})
	}
}

func (w *world) merge(t *rapid.T) {
	a := w.pick(t)
	for _, b := range w.s.ActiveRanges("logs") {
		if b.Start == a.Start^(a.End-a.Start) && b.End-b.Start == a.End-a.Start {
			w.mergedBehind = w.mergedBehind || w.disagree(a, b)
			w.apply(t, cp.MergeRanges{A: a.ID, B: b.ID})
			return
		}
	}
}

// disagree: the halves are not at one place in an ancestor they share.
func (w *world) disagree(a, b *cp.Range) bool {
	pa, pb := w.position(a), w.position(b)
	for _, source := range ancestors(w.s, a.ID) {
		oa, unfinished := pa[source]
		ob, unfinishedToo := pb[source]
		if w.s.IsAncestor(source, b.ID) && (unfinished != unfinishedToo || oa != ob) {
			return true
		}
	}
	return false
}

// position is where the group reads a range: what the metadata says, or
// everything from its start.
func (w *world) position(r *cp.Range) cp.Position {
	p, ok := w.s.Position("g", r.ID)
	if !ok {
		p = cp.Position{r.ID: 0}
		for _, source := range ancestors(w.s, r.ID) {
			if end := w.s.Range(source).NextOffset; end > 0 {
				p[source] = 0
			}
		}
	}
	return p
}

// read takes up to limit records of one range, its ancestors first, and commits.
func (w *world) read(t *rapid.T, r *cp.Range, limit int) {
	p := w.position(r)
	unit := uint64(1) << 30
	sources := slices.SortedFunc(maps.Keys(p), fence.RangeID.Compare)
	for _, source := range sources {
		for p[source] < uint64(len(w.records[source])) && limit > 0 {
			rec := w.records[source][p[source]]
			p[source]++
			if rec.key < r.Start/unit || rec.key >= r.End/unit {
				continue
			}
			limit--
			if w.delivered[rec.n]++; w.delivered[rec.n] == 1 {
				if rec.n < w.lastOf[rec.key] {
					t.Fatalf("key %d: record %d was delivered after %d", rec.key, rec.n, w.lastOf[rec.key])
				}
				w.lastOf[rec.key] = rec.n
			}
		}
		if limit == 0 {
			break
		}
		if source != r.ID {
			delete(p, source)
		}
	}
	w.apply(t, cp.CommitOffset{Group: "g", Topic: "logs", Positions: map[fence.RangeID]cp.Position{r.ID: p}})
}
