package frontend

import (
	"fmt"
	"testing"

	"github.com/ringfence/ringfence/cp"
	"github.com/ringfence/ringfence/fence"
)

func TestCommitOffset(t *testing.T) {
	w := newWorld(t)
	w.n(5)
	want(t, "never committed", w.f.CommittedOffsets("g", testTopic), Offsets{})
	want(t, "unknown topic", w.f.CommittedOffsets("g", "nope"), Offsets{})
	commit := func(offset uint64) {
		t.Helper()
		if err := w.f.CommitOffset("g", testTopic, Offsets{root(): {root(): offset}}); err != nil {
			t.Fatal(err)
		}
	}
	commit(3)
	got := w.f.CommittedOffsets("g", testTopic)
	want(t, "committed", got, Offsets{root(): {root(): 3}})
	got[root()][root()] = 99
	commit(2) // a late retry
	want(t, "never back, and not by way of an answer", w.f.CommittedOffsets("g", testTopic), Offsets{root(): {root(): 3}})
	if err := w.f.Commit(Commit{Group: "g", Topic: testTopic, Offsets: Offsets{root(): {root(): 1}}, Reset: true}); err != nil {
		t.Fatal(err)
	}
	want(t, "but by a reset", w.f.CommittedOffsets("g", testTopic), Offsets{root(): {root(): 1}})
	want(t, "another group", w.f.CommittedOffsets("h", testTopic), Offsets{})
	wantErr(t, w.f.CommitOffset("", testTopic, Offsets{}), cp.ErrInvalidGroup)
	wantErr(t, w.f.CommitOffset("g", "nope", Offsets{}), cp.ErrNoSuchTopic)
}

// Nobody commits past what is committed: not past the mark, and not what was only planned.
func TestCommitNeverPassesTheCommitMark(t *testing.T) {
	w := newWorld(t)
	w.n(2)
	plan1(t, w.f)
	wantErr(t, w.f.CommitOffset("g", testTopic, Offsets{root(): {root(): 3}}), ErrInvalidPosition)
	want(t, "nothing was committed", w.f.CommittedOffsets("g", testTopic), Offsets{})
	left, _ := w.split(root())
	wantErr(t, w.f.CommitOffset("g", testTopic, Offsets{left: {root(): 4}}), ErrInvalidPosition)
	w.n(1)
	// Where the end is not known it cannot be judged.
	f2 := newFrontend(t, func(o *Options) { o.View = w.f.Metadata() })
	f2.SeedUnrecoveredRange(left, 0)
	wantErr(t, f2.CommitOffset("g", testTopic, Offsets{left: {left: 1}}), ErrMetadataUnavailable)
	f2.SeedRangeState(left, 1, 0)
	if err := f2.CommitOffset("g", testTopic, Offsets{left: {left: 1}}); err != nil {
		t.Fatal(err)
	}
}

// The start of everything is spelled out, or the control plane would take every ancestor for finished.
func TestCommitOfTheStart(t *testing.T) {
	w := newWorld(t)
	w.n(5)
	left, _ := w.split(root())
	for _, start := range []cp.Position{nil, {}} {
		if err := w.f.CommitOffset("g", testTopic, Offsets{left: start}); err != nil {
			t.Fatal(err)
		}
		at := w.f.CommittedOffsets("g", testTopic)
		want(t, "offsets", at, Offsets{left: {root(): 0, left: 0}})
		_, sources := w.plan(at, left)
		want(t, "plan", brief(sources), []string{"1 reads 0 from 0"})
	}
}

// An entry of a retired range goes when every child has one; a member that commits its half does not
// take the other half's place away (incident C28).
func TestCommitOfSomeRanges(t *testing.T) {
	w := newWorld(t)
	w.produce(many(8)...)
	if err := w.f.CommitOffset("g", testTopic, Offsets{root(): {root(): 3}}); err != nil {
		t.Fatal(err)
	}
	left, right := w.split(root())
	for i, id := range []fence.RangeID{left, right} {
		at, sources := w.plan(w.f.CommittedOffsets("g", testTopic), id)
		want(t, "goes on where the parent stood", sources[0].From, 3)
		at.Advance(sources[0], 8)
		if err := w.f.CommitOffset("g", testTopic, at); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			want(t, "after one", w.f.CommittedOffsets("g", testTopic), Offsets{root(): {root(): 3}, left: {left: 0}})
		}
	}
	want(t, "after both", w.f.CommittedOffsets("g", testTopic), Offsets{left: {left: 0}, right: {right: 0}})
}

func TestCommitCarriesTheGeneration(t *testing.T) {
	w := newWorld(t)
	w.n(5)
	commit := func(generation, offset uint64) error {
		return w.f.Commit(Commit{Group: "g", Topic: testTopic, Generation: generation, Offsets: Offsets{root(): {root(): offset}}})
	}
	if err := commit(4, 1); err != nil {
		t.Fatal(err)
	}
	wantErr(t, commit(3, 2), cp.ErrStaleGeneration)
	want(t, "kept", w.f.CommittedOffsets("g", testTopic), Offsets{root(): {root(): 1}})
}

func TestEndOffsets(t *testing.T) {
	w := newWorld(t)
	w.n(3)
	left, right := w.split(root())
	w.n(2)
	at, err := w.f.EndOffsets(testTopic)
	want(t, "end", fmt.Sprint(at, err), fmt.Sprint(Offsets{left: {left: 2}, right: {right: 0}}, nil))
	if err := w.f.CheckOffsets(testTopic, at); err != nil {
		t.Fatal(err)
	}
	r := &reader{w: w, at: at}
	if got, ok := r.step(0, 10); ok {
		t.Fatalf("read %v from the end", keys(got))
	}
	w.produce(many(2)...)
	got, _ := r.step(0, 10)
	want(t, "from now on", keys(got), []string{"k000"})
	w.f.SeedUnrecoveredRange(fence.RangeID{Topic: topicID(1), Seq: right.Seq}, 0) // known already: no effect
	if _, err := w.f.EndOffsets(testTopic); err != nil {
		t.Fatal(err)
	}
	f2 := newFrontend(t, func(o *Options) { o.View = w.f.Metadata() })
	f2.SeedUnrecoveredRange(right, 0)
	_, err = f2.EndOffsets(testTopic)
	wantErr(t, err, ErrMetadataUnavailable)
	_, err = w.f.EndOffsets("nope")
	wantErr(t, err, cp.ErrNoSuchTopic)
}
