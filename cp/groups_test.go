package cp_test

import (
	"maps"
	"slices"
	"testing"

	"github.com/ringfence/ringfence/cp"
	"github.com/ringfence/ringfence/fence"
	"pgregory.net/rapid"
)

func commit(generation uint64, p map[fence.RangeID]cp.Position) cp.CommitOffset {
	return cp.CommitOffset{Group: "g", Topic: "logs", Generation: generation, Positions: p}
}

// pos is a position: sources and offsets in pairs.
func pos(pairs ...uint64) cp.Position {
	p := cp.Position{}
	for i := 0; i < len(pairs); i += 2 {
		p[rangeID(uint32(pairs[i]))] = pairs[i+1]
	}
	return p
}

func (m machine) goesOn(r uint32, want cp.Position) {
	m.Helper()
	got, ok := m.Position("g", rangeID(r))
	if ok != (want != nil) || !maps.Equal(got, want) {
		m.Fatalf("range %d goes on at %v, %v; want %v", r, got, ok, want)
	}
}

func (m machine) stored(want ...uint32) {
	m.Helper()
	var got []uint32
	for id := range m.Positions("g", "logs") {
		got = append(got, id.Seq)
	}
	if slices.Sort(got); !slices.Equal(got, want) {
		m.Fatalf("positions of ranges %v are stored, want %v", got, want)
	}
}

// L04: a commit that was delayed or repeated never moves a position back, one of
// an older generation is refused, and only a reset goes back.
func TestL04_StaleCommit(t *testing.T) {
	m := newMachine(t)
	m.topic(8)
	m.fill(0, 0, 0, 100)
	m.goesOn(0, nil)
	m.do(commit(0, at(0, 50)), nil)
	m.do(commit(0, at(0, 30)), nil)
	m.goesOn(0, pos(0, 50))
	m.do(commit(0, at(0, 50)), nil)
	m.goesOn(0, pos(0, 50))

	m.do(cp.FenceGroup{Group: "g", Topic: "logs", Generation: 7}, nil)
	if r := m.do(commit(6, at(0, 60)), cp.ErrStaleGeneration); r.Generation != 7 {
		t.Fatalf("refusal says %+v", r)
	}
	m.do(cp.FenceGroup{Group: "g", Topic: "logs", Generation: 6}, cp.ErrStaleGeneration)
	m.do(cp.FenceGroup{Group: "g", Topic: "logs", Generation: 7}, nil)
	m.goesOn(0, pos(0, 50))
	if r := m.do(commit(7, at(0, 60)), nil); r.Generation != 7 {
		t.Fatalf("commit answers %+v", r)
	}
	m.do(commit(9, at(0, 70)), nil) // a newer one is the group's from now on
	m.do(commit(8, at(0, 80)), cp.ErrStaleGeneration)
	m.goesOn(0, pos(0, 70))

	back := commit(9, at(0, 5))
	back.Reset = true
	m.do(back, nil)
	m.goesOn(0, pos(0, 5))
	back.Generation = 8
	m.do(back, cp.ErrStaleGeneration)
}

func TestCommitRefusals(t *testing.T) {
	m := newMachine(t)
	m.do(commit(0, at(0, 0)), cp.ErrNoSuchTopic)
	m.topic(8)
	m.fill(0, 0, 0, 10)
	m.do(cp.CommitOffset{Topic: "logs", Positions: at(0, 0)}, cp.ErrInvalidGroup)
	m.do(cp.CommitOffset{Topic: "logs", Group: string(make([]byte, 256)), Positions: at(0, 0)}, cp.ErrInvalidGroup)
	m.do(commit(0, at(9, 0)), cp.ErrNoSuchRange)
	m.do(commit(0, map[fence.RangeID]cp.Position{{Topic: id(2)}: {}}), cp.ErrDifferentTopic)
	m.do(commit(0, at(0, 11)), cp.ErrPastEnd) // nothing can be there: no segment is open
	m.do(commit(0, at(0, 10)), nil)
	m.do(m.register(0, 1, 10), nil)
	m.do(commit(0, at(0, 12)), nil) // the end is not known here
	m.do(cp.SealSegment{ID: segID(0, 1), Length: 5}, nil)
	m.do(cp.SplitRange{Range: rangeID(0)}, nil)
	m.do(commit(0, at(1, 2, 0)), cp.ErrNotASource) // its sibling
	m.do(commit(0, at(0, 1, 0)), cp.ErrNotASource) // its child
	m.do(commit(0, at(1, 0, 16)), cp.ErrPastEnd)
	both := at(1, 0, 13)
	both[rangeID(2)] = pos(2, 1)
	m.do(commit(0, both), cp.ErrPastEnd) // one bad range refuses them all
	m.stored(0)
	m.do(cp.DeleteGroup{Group: "no", Topic: "logs"}, cp.ErrNoSuchGroup)
	m.do(cp.DeleteGroup{Group: "g", Topic: "no"}, cp.ErrNoSuchTopic)
	m.do(cp.DeleteGroup{Group: "g", Topic: "logs"}, nil)
	if m.Positions("g", "logs") != nil || len(slices.Collect(m.Groups("logs"))) != 0 {
		t.Fatal("the group is still there")
	}
}

// L01: children are to be read once all of their parents' records are committed, of a
// merge those of both; members that commit different ranges keep each other's positions.
func TestL01_UnreadAfterSplitAndMerge(t *testing.T) {
	m := newMachine(t)
	unread := func(want cp.Position) {
		t.Helper()
		if got := m.Unread("g", "logs"); !maps.Equal(got, want) {
			t.Fatalf("unread are %v, want %v", got, want)
		}
	}
	commit := func(pairs ...uint64) {
		t.Helper()
		m.do(cp.CommitRanges{Group: "g", Topic: "logs", Generation: 5, Sources: pos(pairs...)}, nil)
	}
	if m.Unread("g", "logs") != nil {
		t.Fatal("a topic that is not there has something to read")
	}
	m.topic(8)
	m.fill(0, 0, 0, 100)
	unread(pos(0, 0))
	m.do(cp.SplitRange{Range: rangeID(0)}, nil)
	m.fill(1, 0, 0, 10)
	m.fill(2, 0, 0, 20)
	commit(0, 60)
	unread(pos(0, 60))
	commit(0, 40) // L04: late
	unread(pos(0, 60))
	commit(0, 100)
	unread(pos(1, 0, 2, 0))
	m.do(cp.MergeRanges{A: rangeID(1), B: rangeID(2)}, nil)
	commit(1, 10)
	unread(pos(2, 0))
	commit(2, 5)
	commit(0, 70) // finished: nothing of it is left
	commit(1, 3)
	unread(pos(2, 5))
	commit(2, 20)
	unread(pos(3, 0))
	m.stored(3)
	m.do(cp.CommitRanges{Group: "g", Topic: "logs", Generation: 4, Sources: pos(3, 0)}, cp.ErrStaleGeneration)
	m.do(cp.CommitRanges{Group: "g", Topic: "logs", Generation: 5, Sources: pos(3, 1)}, cp.ErrPastEnd)
	m.do(cp.CommitRanges{Group: "g", Topic: "logs", Generation: 5, Sources: pos(9, 0)}, cp.ErrNoSuchRange)
	m.do(cp.CommitRanges{Group: "g", Topic: "logs", Generation: 5, Sources: cp.Position{{Topic: id(2)}: 0}}, cp.ErrDifferentTopic)
	m.do(cp.CommitRanges{Group: "", Topic: "logs"}, cp.ErrInvalidGroup)
	m.do(cp.CommitRanges{Group: "g", Topic: "no"}, cp.ErrNoSuchTopic)
}

// L03: what retention removes of a parent is for its reader to skip: the children wait
// for that.
func TestL03_UnreadOfAnExpiredParent(t *testing.T) {
	m := newMachine(t)
	m.topic(8)
	m.fill(0, 0, 0, 100)
	m.do(cp.CommitRanges{Group: "g", Topic: "logs", Sources: pos(0, 60)}, nil)
	m.do(cp.SplitRange{Range: rangeID(0)}, nil)
	m.do(cp.DeleteSegment{ID: segID(0, 0)}, nil)
	if got := m.Unread("g", "logs"); !maps.Equal(got, pos(0, 60)) {
		t.Fatalf("unread are %v", got)
	}
	m.do(cp.CommitRanges{Group: "g", Topic: "logs", Sources: pos(0, 100)}, nil)
	if got := m.Unread("g", "logs"); !maps.Equal(got, pos(1, 0, 2, 0)) {
		t.Fatalf("unread are %v", got)
	}
}

// Two members that commit different ranges keep each other's positions.
func TestCommitsMergeByRange(t *testing.T) {
	m := newMachine(t)
	m.topic(8)
	m.do(cp.SplitRange{Range: rangeID(0)}, nil)
	m.fill(1, 0, 0, 10)
	m.fill(2, 0, 0, 10)
	m.do(commit(0, at(1, 5)), nil)
	m.do(commit(0, at(2, 7)), nil)
	m.goesOn(1, pos(1, 5))
	m.goesOn(2, pos(2, 7))
}

// A half starts where the range it comes from stood, and that range's position
// goes when both halves have one.
func TestPositionOverSplit(t *testing.T) {
	m := newMachine(t)
	m.topic(8)
	m.fill(0, 0, 0, 100)
	m.do(commit(0, at(0, 40)), nil)
	m.do(cp.SplitRange{Range: rangeID(0)}, nil)
	m.goesOn(0, pos(0, 40))
	m.goesOn(1, pos(0, 40, 1, 0))
	m.do(cp.SplitRange{Range: rangeID(1)}, nil) // 3 4
	m.goesOn(3, pos(0, 40, 3, 0))               // 1 has no records: nothing to read there
	m.fill(3, 0, 0, 10)

	m.do(commit(0, at(3, 0, 10, 3, 2)), nil) // the parent's 40 holds for the child
	m.goesOn(3, pos(0, 40, 3, 2))
	m.do(commit(0, at(3, 3, 5)), nil) // no source 0: finished
	m.goesOn(3, pos(3, 5))
	m.do(commit(0, at(3, 0, 50, 3, 6)), nil) // finished stays finished
	m.goesOn(3, pos(3, 6))
	m.stored(0, 3)
	m.goesOn(4, pos(0, 40, 4, 0))
	m.do(commit(0, at(4, 0, 100)), nil) // at its end is finished
	m.goesOn(4, pos(4, 0))
	m.stored(0, 3, 4)
	m.goesOn(2, pos(0, 40, 2, 0))
	m.do(commit(0, at(2, 0, 60)), nil) // the other half of 0; 1 is covered by 3 and 4
	m.stored(2, 3, 4)
	m.do(commit(0, at(0, 99)), nil) // nobody needs it any more
	m.stored(2, 3, 4)
	m.do(cp.FenceGroup{Group: "g", Topic: "logs", Generation: 1}, nil)
	m.stored(2, 3, 4)
}

// A merged range starts from both halves: what neither has finished, at the
// lower offset; a half without a position is read from its start.
func TestPositionOverMerge(t *testing.T) {
	m := newMachine(t)
	m.topic(8)
	m.fill(0, 0, 0, 100)
	m.do(cp.SplitRange{Range: rangeID(0)}, nil)
	m.fill(1, 0, 0, 10)
	m.fill(2, 0, 0, 10)
	m.do(commit(0, at(1, 0, 50, 1, 4)), nil)
	m.do(cp.MergeRanges{A: rangeID(1), B: rangeID(2)}, nil)
	m.goesOn(3, pos(0, 0, 1, 4, 2, 0, 3, 0))
	m.do(commit(0, at(2, 0, 20, 2, 10)), nil) // 2 is sealed and read to its end
	m.goesOn(2, pos(0, 20))
	m.goesOn(3, pos(0, 20, 1, 4, 3, 0))
	m.do(commit(0, map[fence.RangeID]cp.Position{rangeID(1): {}, rangeID(2): {}}), nil)
	m.goesOn(1, pos())
	m.goesOn(3, pos(3, 0)) // both halves read to their ends: nothing is read again
	m.stored(1, 2)
	m.do(commit(0, at(3, 0)), nil)
	m.stored(3)
}

// A cursor that its reader keeps goes on like a group's positions do, and what
// it names that is not there is ignored.
func TestResume(t *testing.T) {
	m := newMachine(t)
	m.topic(8)
	m.fill(0, 0, 0, 100)
	m.do(cp.SplitRange{Range: rangeID(0)}, nil)
	m.fill(1, 0, 0, 10)
	m.fill(2, 0, 0, 10)
	for _, c := range []struct {
		from map[fence.RangeID]cp.Position
		want cp.Position
	}{
		{nil, nil},
		{at(0, 40), pos(0, 40, 1, 0)},
		{at(1, 0, 7, 1, 3), pos(0, 7, 1, 3)},
		{at(2, 2, 3), nil}, // its sibling's
		{at(1, 0, 1000, 1, 1000), pos(1, 10)},
		{at(1, 2, 5, 99, 5, 1, 4), pos(1, 4)},
		{map[fence.RangeID]cp.Position{{Topic: id(7)}: {{Topic: id(7)}: 1}, rangeID(99): {}}, nil},
	} {
		got, ok := m.Resume(c.from, rangeID(1))
		if ok != (c.want != nil) || !maps.Equal(got, c.want) {
			t.Errorf("from %v: %v, %v; want %v", c.from, got, ok, c.want)
		}
	}
	if _, ok := m.Resume(at(0, 40), rangeID(99)); ok {
		t.Error("an unknown range has a position")
	}
	m.do(commit(0, at(0, 40)), nil)
	for r := range uint32(3) {
		group, _ := m.Position("g", rangeID(r))
		if cursor, _ := m.Resume(m.Positions("g", "logs"), rangeID(r)); !maps.Equal(group, cursor) {
			t.Errorf("range %d: the group is at %v, a cursor with its positions at %v", r, group, cursor)
		}
	}
}

// L03: retention took the parent while the group was away. What the group knows
// stays, so a reader can say what it missed and go on with the children.
func TestL03_ParentExpired(t *testing.T) {
	m := newMachine(t)
	m.topic(8)
	m.fill(0, 0, 0, 100)
	m.do(commit(0, at(0, 40)), nil)
	m.do(cp.SplitRange{Range: rangeID(0)}, nil)
	m.do(cp.DeleteSegment{ID: segID(0, 0)}, nil)
	m.goesOn(1, pos(0, 40, 1, 0))
	if r := m.Range(rangeID(0)); r.NextOffset != 100 {
		t.Fatalf("the parent ends at %d: nobody can tell that 60 records are gone", r.NextOffset)
	}
}

// L01: a group that reads a topic while its ranges split and merge gets every
// record, and a key's records in their order; one that never stands behind a
// merge gets each once.
func TestL01_GroupLosesNothing(t *testing.T) {
	behind := 0
	checkUntil(t, "a group behind a merge", &behind, func(t *rapid.T) {
		w := newWorld(t)
		t.Repeat(map[string]func(*rapid.T){
			"produce": w.produce, "split": w.split, "merge": w.merge,
			"read": func(t *rapid.T) { w.read(t, w.pick(t), rapid.IntRange(1, 6).Draw(t, "max")) },
			"":     func(t *rapid.T) { w.check(t) },
		})
		for _, r := range slices.Clone(w.s.ActiveRanges("logs")) {
			w.read(t, r, len(w.delivered)+1)
		}
		for i, n := range w.delivered {
			if n == 0 {
				t.Fatalf("record %d was never delivered", i)
			}
			if n > 1 && !w.mergedBehind {
				t.Fatalf("record %d was delivered %d times", i, n)
			}
		}
		if w.mergedBehind {
			behind++
		}
	})
}
