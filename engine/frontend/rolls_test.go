package frontend

import (
	"errors"
	"fmt"
	"testing"

	"github.com/ringfence/ringfence/cp"
	"github.com/ringfence/ringfence/fence"
)

const (
	ms     = 1_000_000 // nanoseconds
	window = 1000 * ms
)

// tiny makes every record cross the roll threshold.
func tiny(o *Options) { o.SegmentMaxBytes = 1 }

func (w *world) owed() Roll {
	w.t.Helper()
	due := w.f.DueRolls()
	if len(due) != 1 {
		w.t.Fatalf("due: %v, want one roll", due)
	}
	return due[0]
}

func (w *world) next(id fence.RangeID) uint64 {
	s := w.f.shardOf(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.at(id).next
}

// Crossing the threshold closes nothing: the range owes a roll, the segment takes more, and the
// fence covers it.
func TestThresholdOwesARoll(t *testing.T) {
	w := newWorld(t, func(o *Options) { o.SegmentMaxBytes = 60 })
	w.n(1)
	want(t, "below the threshold", w.f.DueRolls(), nil)
	w.n(1)
	roll := w.owed()
	want(t, "roll", roll, Roll{Segment: seg(root(), 0), Primary: "n1", Start: 0})
	w.n(1)
	want(t, "still one roll", w.owed(), roll)
	end, bytes := w.s.fence(roll)
	if err := w.f.RecordFence(roll, end, bytes, 9000); err != nil {
		t.Fatal(err)
	}
	want(t, "due", w.f.DueRolls(), nil)
	s := w.segment(seg(root(), 0))
	want(t, "sealed", fmt.Sprint(s.Phase, s.Length, s.Bytes, s.SealedAt), fmt.Sprint(cp.Sealed, 3, 30, 9000))
}

// A planned batch that crosses the threshold owes the roll of the segment it lands in.
func TestPlannedBatchOwesARoll(t *testing.T) {
	w := newWorld(t, func(o *Options) { o.SegmentMaxBytes = 100 })
	d, err := w.f.PlanBatch(testTopic, BatchInfo{Count: 1, Bytes: 99})
	if err != nil {
		t.Fatal(err)
	}
	want(t, "due", w.f.DueRolls(), nil)
	if d, err = w.f.PlanBatch(testTopic, BatchInfo{Count: 1, Bytes: 1}); err != nil {
		t.Fatal(err)
	}
	want(t, "owed", fmt.Sprint(w.owed().Segment, d.Roll), fmt.Sprint(d.Segment, true))
	d, err = w.f.PlanBatch(testTopic, BatchInfo{Count: 1, Bytes: 1})
	want(t, "since before", fmt.Sprint(d.Roll, err), "false <nil>")
}

// A file that has grown past the threshold owes the roll, however little of it was sent from
// here; one that is not the head owes nothing.
func TestFileOwesARoll(t *testing.T) {
	w := newWorld(t, func(o *Options) { o.SegmentMaxBytes = 100 })
	d, err := w.f.PlanBatch(testTopic, BatchInfo{Count: 1, Bytes: 10})
	if err != nil {
		t.Fatal(err)
	}
	want(t, "short", w.f.AdoptSize(d.Range, d.Segment, 99), false)
	want(t, "another's", w.f.AdoptSize(d.Range, seg(root(), 7), 1000), false)
	want(t, "shorter than before", w.f.AdoptSize(d.Range, d.Segment, 5), false)
	want(t, "due", w.f.DueRolls(), nil)
	want(t, "long enough", w.f.AdoptSize(d.Range, d.Segment, 100), true)
	want(t, "owed", w.owed().Segment, d.Segment)
	want(t, "since before", w.f.AdoptSize(d.Range, d.Segment, 4096), false)
	if _, err := w.f.PlanBatch(testTopic, BatchInfo{Count: 1, Bytes: 1}); err != nil {
		t.Fatal(err)
	}
}

// Three rolls: sequences 0, 1, 2, starts 0, 1, 2.
func TestRollsFollowOnEachOther(t *testing.T) {
	w := newWorld(t, tiny)
	for i := range uint32(3) {
		w.n(1)
		roll := w.owed()
		want(t, "segment", roll, Roll{Segment: seg(root(), i), Primary: "n1", Start: uint64(i)})
		end, bytes := w.s.fence(roll)
		if err := w.f.RecordFence(roll, end, bytes, 1); err != nil {
			t.Fatal(err)
		}
	}
	got, err := w.f.ReadHistory(root(), w.s.read)
	want(t, "read back", fmt.Sprint(len(got), err), "3 <nil>")
}

func TestFencesToSend(t *testing.T) {
	w := newWorld(t, tiny)
	w.n(1)
	roll := w.owed()
	for _, step := range []struct {
		now  Instant
		sent int
	}{{5 * ms, 1}, {6 * ms, 0}, {5*ms + window - 1, 0}, {5*ms + window, 1}, {5*ms + window + 1, 0}} {
		got := w.f.FencesToSend(step.now, window)
		if len(got) != step.sent || len(got) == 1 && got[0] != roll {
			t.Fatalf("at %d: %v, want %d", step.now, got, step.sent)
		}
	}
	want(t, "the roll stays owed", w.owed(), roll)
}

// A thousand batches over the threshold in one window cause one fence (incident F14).
func TestOneFencePerWindow(t *testing.T) {
	w := newWorld(t, tiny)
	fences := 0
	for i := range 1000 {
		if _, err := w.f.PlanBatch(testTopic, BatchInfo{Count: 1, Bytes: 10}); err != nil {
			t.Fatal(err)
		}
		fences += len(w.f.FencesToSend(Instant(i)*ms, window))
	}
	want(t, "fences", fences, 1)
}

func TestAwaitingFence(t *testing.T) {
	w := newWorld(t, tiny)
	w.n(1)
	roll := w.owed()
	awaits := func(now Instant) bool { return w.f.AwaitingFence(root(), roll.Segment, now, window) }
	want(t, "before it is sent", awaits(0), false)
	w.f.FencesToSend(0, window)
	want(t, "999 ms", awaits(999*ms), true)
	want(t, "1000 ms", awaits(1000*ms), false)
	want(t, "another segment", w.f.AwaitingFence(root(), seg(root(), 1), 1, window), false)
	want(t, "another range", w.f.AwaitingFence(fence.RangeID{Topic: topicID(1), Seq: 3}, roll.Segment, 1, window), false)
	w.f.ForgetFence(Roll{Segment: seg(root(), 4)})
	want(t, "forgetting another", awaits(1), true)

	// A refusal keeps it: that is how the frontend knows its own overtaken batch.
	w.f.ForgetSealed(root(), roll.Segment, 1)
	want(t, "after a refusal", awaits(1), true)
	want(t, "nothing is owed any more", w.f.DueRolls(), nil)
	w.f.ForgetFence(roll)
	want(t, "after it failed", awaits(1), false)
}

func TestForgetFenceKeepsTheRollOwed(t *testing.T) {
	w := newWorld(t, tiny)
	w.n(1)
	roll := w.owed()
	w.f.FencesToSend(0, window)
	w.f.ForgetFence(roll)
	want(t, "owed", w.owed(), roll)
	want(t, "not before the window ends", w.f.FencesToSend(1, window), nil)
	want(t, "sent again", w.f.FencesToSend(window, window), []Roll{roll})
}

func TestRangeAwaitingFence(t *testing.T) {
	w := newWorld(t, tiny)
	left, right := w.split(root())
	if _, err := w.f.CreateTopic("other", 8, topicID(2), 1); err != nil {
		t.Fatal(err)
	}
	w.produce(many(2)...)
	w.f.FencesToSend(0, window)
	id, ok := w.f.RangeAwaitingFence(testTopic, 1, window)
	want(t, "lowest range", fmt.Sprint(id, ok), fmt.Sprint(left, true))
	_, ok = w.f.RangeAwaitingFence("other", 1, window)
	want(t, "another topic", ok, false)
	_, ok = w.f.RangeAwaitingFence("nope", 1, window)
	want(t, "unknown topic", ok, false)
	w.roll(left)
	id, _ = w.f.RangeAwaitingFence(testTopic, 1, window)
	want(t, "after an answer", id, right)
	_, ok = w.f.RangeAwaitingFence(testTopic, window, window)
	want(t, "after the window", ok, false)
}

// A seal sets the next offset, up and down (incident F10).
func TestRecordSealSetsTheOffset(t *testing.T) {
	for _, end := range []uint64{2, 9} {
		w := newWorld(t)
		for range 5 {
			if _, err := w.f.PlanBatch(testTopic, BatchInfo{Count: 1}); err != nil {
				t.Fatal(err)
			}
		}
		r, _ := w.f.ActiveRoll(root())
		if err := w.f.RecordSeal(r, end, 1, 77); err != nil {
			t.Fatal(err)
		}
		want(t, "next", w.next(root()), end)
		d, err := w.f.PlanBatch(testTopic, BatchInfo{Count: 1})
		want(t, "successor", fmt.Sprint(d.Segment, d.Base, d.First, err), fmt.Sprint(seg(root(), 1), end, end, nil))
	}
}

// The first length recorded wins, with its bytes and its time; the loser sits behind it.
func TestAlreadySealedConverges(t *testing.T) {
	for _, fetch := range []bool{false, true} {
		truth := newTruth(t, 1)
		a := truth.front(fetch)
		if _, err := a.CreateTopic(testTopic, 8, topicID(1), 1); err != nil {
			t.Fatal(err)
		}
		if _, err := a.PlanBatch(testTopic, BatchInfo{Count: 5}); err != nil {
			t.Fatal(err)
		}
		b := truth.front(fetch)
		r, ok := b.ActiveRoll(root())
		if !ok {
			t.Fatal("B does not see A's head")
		}
		if err := a.RecordSeal(r, 3, 30, 100); err != nil {
			t.Fatal(err)
		}
		if err := b.RecordSeal(r, 5, 50, 200); err != nil {
			t.Fatal(err)
		}
		want(t, "B sits at", b.shard(topicID(1)).at(root()).next, 3)
		s := truth.view.Segment(r.Segment)
		want(t, "the winner's", fmt.Sprint(s.Length, s.Bytes, s.SealedAt), fmt.Sprint(3, 30, 100))
		if fetch {
			want(t, "B sees the seal", b.Metadata().Segment(r.Segment).Phase, cp.Sealed)
		}
	}
}

// A seal that cannot be recorded changes nothing, and can be repeated.
func TestFailedSealChangesNothing(t *testing.T) {
	truth := newTruth(t, 1)
	timeout := errors.New("no answer")
	down := false
	f := newFrontend(t, tiny, func(o *Options) {
		o.Command = func(_ string, cmd cp.Command) cp.Reply {
			if down {
				return cp.Reply{Err: timeout}
			}
			return truth.apply(cmd)
		}
	})
	if _, err := f.CreateTopic(testTopic, 8, topicID(1), 1); err != nil {
		t.Fatal(err)
	}
	if _, err := f.PlanBatch(testTopic, BatchInfo{Count: 2, Bytes: 9}); err != nil {
		t.Fatal(err)
	}
	roll := f.FencesToSend(0, window)[0]
	down = true
	before := f.hot()
	wantErr(t, f.RecordSeal(roll, 2, 9, 1), timeout)
	wantErr(t, f.RecordFence(roll, 2, 9, 1), timeout)
	want(t, "state", f.hot(), before)
	want(t, "still awaited", f.AwaitingFence(root(), roll.Segment, 1, window), true)
	wantErr(t, f.RecordSeal(Roll{Segment: roll.Segment, Start: 5}, 4, 9, 1), timeout)
	down = false
	if err := f.RecordFence(roll, 2, 9, 1); err != nil {
		t.Fatal(err)
	}
	want(t, "owed", f.DueRolls(), nil)
}

// An end below the segment's start is nobody's answer.
func TestRecordSealBelowTheStart(t *testing.T) {
	w := newWorld(t)
	w.n(3)
	w.roll(root())
	w.n(1)
	r, _ := w.f.ActiveRoll(root())
	before := w.f.hot()
	wantErr(t, w.f.RecordSeal(r, 2, 1, 1), cp.ErrInvalidLength)
	want(t, "state", w.f.hot(), before)
}

// The refusal comes first and clears the roll; the fence's answer is recorded all the same
// (incident F12).
func TestFenceAnswerAfterARefusal(t *testing.T) {
	w := newWorld(t, tiny)
	w.n(2)
	roll := w.f.FencesToSend(0, window)[0]
	end, bytes := w.s.fence(roll)
	_, err := w.f.Produce(testTopic, many(1), 1, w.s.append)
	wantErr(t, err, fence.ErrFenced)
	want(t, "owed", w.f.DueRolls(), nil)
	if err := w.f.RecordFence(roll, end, bytes, 1); err != nil {
		t.Fatal(err)
	}
	want(t, "sealed", w.segment(roll.Segment).Phase, cp.Sealed)
	want(t, "awaited", w.f.AwaitingFence(root(), roll.Segment, 1, window), false)
	// A late repeat of the answer only clears.
	before := w.f.hot()
	if err := w.f.RecordFence(roll, end+5, bytes, 1); err != nil {
		t.Fatal(err)
	}
	want(t, "state after a repeat", w.f.hot(), before)
}

// The answer for a head that this frontend's view never had is recorded by the control plane
// (incident F31); one that nobody has is cleared.
func TestFenceAnswerForAnUnseenSegment(t *testing.T) {
	truth := newTruth(t, 1)
	a := truth.front(false)
	if _, err := a.CreateTopic(testTopic, 8, topicID(1), 1); err != nil {
		t.Fatal(err)
	}
	b := truth.front(false) // before A opens anything
	if _, err := a.PlanBatch(testTopic, BatchInfo{Count: 4}); err != nil {
		t.Fatal(err)
	}
	b.RequestRolls([]cp.Segment{*truth.view.Segment(seg(root(), 0))})
	roll := b.FencesToSend(0, window)[0]
	if err := b.RecordFence(roll, 4, 40, 6); err != nil {
		t.Fatal(err)
	}
	want(t, "sealed", truth.view.Segment(roll.Segment).Length, 4)

	ghost := cp.Segment{ID: seg(root(), 77), Replicas: []cp.NodeID{"n1"}}
	b.RequestRolls([]cp.Segment{ghost})
	roll = b.FencesToSend(0, window)[0]
	if err := b.RecordFence(roll, 9, 40, 6); err != nil {
		t.Fatal(err)
	}
	want(t, "owed", b.DueRolls(), nil)
	want(t, "awaited", b.AwaitingFence(root(), ghost.ID, 1, window), false)
}

func TestRequestRolls(t *testing.T) {
	w := newWorld(t)
	before := w.f.hot()
	w.f.RequestRolls([]cp.Segment{
		{ID: seg(root(), 5), Phase: cp.Sealed, Replicas: []cp.NodeID{"n1"}},
		{ID: seg(root(), 5)},
	})
	want(t, "sealed or without a replica", w.f.hot(), before)
	w.f.RequestRolls([]cp.Segment{{ID: seg(root(), 5), Start: 3, Replicas: []cp.NodeID{"x", "y"}}})
	want(t, "owed", w.owed(), Roll{Segment: seg(root(), 5), Primary: "x", Start: 3})
	w.f.RequestRolls([]cp.Segment{{ID: seg(root(), 6), Replicas: []cp.NodeID{"x"}}})
	want(t, "not replaced", w.owed().Segment, seg(root(), 5))
	// The next segment opened here has a sequence past both (incident F32).
	d, err := w.f.PlanBatch(testTopic, BatchInfo{Count: 1})
	want(t, "next", fmt.Sprint(d.Segment, err), fmt.Sprint(seg(root(), 7), nil))
}

// An age roll seals an empty head once, at length 0, and opens no successor.
func TestAgeRollOfAnEmptyHead(t *testing.T) {
	w := newWorld(t)
	if _, err := w.f.OpenHead(root(), 1); err != nil {
		t.Fatal(err)
	}
	w.f.RequestRolls([]cp.Segment{*w.segment(seg(root(), 0))})
	roll := w.f.FencesToSend(0, window)[0]
	end, bytes := w.s.fence(roll)
	if err := w.f.RecordFence(roll, end, bytes, 3); err != nil {
		t.Fatal(err)
	}
	want(t, "length", w.segment(roll.Segment).Length, 0)
	if _, ok := w.f.ActiveRoll(root()); ok {
		t.Fatal("a successor was opened")
	}
	w.f.RequestRolls([]cp.Segment{*w.segment(roll.Segment)})
	want(t, "no longer due", w.f.DueRolls(), nil)
	want(t, "produce goes on", w.produce(many(1)...), Placements{root(): {0, 0}})
}

func TestActiveRoll(t *testing.T) {
	truth := newTruth(t, 1)
	a := truth.front(false)
	if _, err := a.CreateTopic(testTopic, 8, topicID(1), 1); err != nil {
		t.Fatal(err)
	}
	b := truth.front(false)
	if _, ok := a.ActiveRoll(root()); ok {
		t.Fatal("a roll without a head")
	}
	if _, err := a.PlanBatch(testTopic, BatchInfo{Count: 1}); err != nil {
		t.Fatal(err)
	}
	r, ok := a.ActiveRoll(root())
	want(t, "A's head", fmt.Sprint(r, ok), fmt.Sprint(Roll{Segment: seg(root(), 0), Primary: "n1"}, true))
	// The node that splits has usually never produced there: the view knows the head (incident F1).
	b.PutCache(truth.snapshot(), nil)
	r2, ok := b.ActiveRoll(root())
	want(t, "from the view", fmt.Sprint(r2, ok), fmt.Sprint(r, true))
	// A cached head counts where the view has none.
	v, _ := NewView(1)
	a.PutCache(v, nil)
	r3, ok := a.ActiveRoll(root())
	want(t, "from the cache", fmt.Sprint(r3, ok), fmt.Sprint(r, true))
}

func TestForgetSealed(t *testing.T) {
	w := newWorld(t)
	w.n(2)
	before := w.f.hot()
	w.f.ForgetSealed(root(), seg(root(), 1), 9) // a refusal for another segment (incident F13)
	w.f.ForgetSealed(fence.RangeID{Topic: topicID(1), Seq: 3}, seg(root(), 0), 9)
	want(t, "state", w.f.hot(), before)
	if _, err := w.f.PlanBatch(testTopic, BatchInfo{Count: 9}); err != nil {
		t.Fatal(err)
	}
	w.f.ForgetSealed(root(), seg(root(), 0), 2)
	want(t, "set, not raised", w.next(root()), 2)
	want(t, "heads", len(w.f.shard(topicID(1)).heads), 0)
	// Named by the owed roll alone, it still counts.
	w.f.RequestRolls([]cp.Segment{{ID: seg(root(), 0), Replicas: []cp.NodeID{"n1"}}})
	w.f.ForgetSealed(root(), seg(root(), 0), 1)
	want(t, "by the roll", fmt.Sprint(w.next(root()), w.f.DueRolls()), fmt.Sprint(1, []Roll{}))
}

// The worked example of a size roll under load, both orders of refusal and answer.
func TestRollUnderLoad(t *testing.T) {
	for _, refusalFirst := range []bool{false, true} {
		w := newWorld(t, func(o *Options) { o.SegmentMaxBytes = 60 })
		w.n(2)
		roll := w.f.FencesToSend(0, window)[0]
		d, err := w.f.PlanBatch(testTopic, BatchInfo{Count: 1, Bytes: 30})
		want(t, "planned into the old head", fmt.Sprint(d.Segment, d.First, err), fmt.Sprint(seg(root(), 0), 2, nil))
		want(t, "behind its own fence", w.f.AwaitingFence(root(), d.Segment, 5, window), true)
		end, bytes := w.s.fence(roll)
		want(t, "end", end, 2)
		answer := func() {
			if err := w.f.RecordFence(roll, end, bytes, 1); err != nil {
				t.Fatal(err)
			}
		}
		if !refusalFirst {
			answer()
		}
		w.f.ForgetSealed(root(), d.Segment, end)
		if refusalFirst {
			want(t, "hold it", w.f.AwaitingFence(root(), d.Segment, 6, window), true)
			answer()
		}
		want(t, "replan now", w.f.AwaitingFence(root(), d.Segment, 6, window), false)
		d, err = w.f.PlanBatch(testTopic, BatchInfo{Count: 1, Bytes: 30})
		want(t, "replanned", fmt.Sprint(d.Segment, d.Base, d.First, err), fmt.Sprint(seg(root(), 1), 2, 2, nil))
	}
}

func TestSeeds(t *testing.T) {
	w := newWorld(t)
	id := root()
	want(t, "at first", w.f.Unrecovered(id), false)
	w.f.SeedUnrecoveredRange(id, 3)
	want(t, "unknown end", w.f.Unrecovered(id), true)
	w.f.SeedUnrecoveredRange(id, 0)
	want(t, "stays unknown", w.f.Unrecovered(id), true)
	want(t, "others", w.f.Unrecovered(fence.RangeID{Topic: topicID(1), Seq: 9}), false)
	w.f.SeedRangeState(id, 7, 2)
	m, _ := w.f.CommitMark(id)
	want(t, "learned", fmt.Sprint(w.f.Unrecovered(id), w.next(id), m), "false 7 7")
	w.f.SeedRangeState(id, 5, 0)
	want(t, "only raises", w.next(id), 7)
	w.f.SeedUnrecoveredRange(id, 0) // a later probe times out (incident C11)
	want(t, "keeps serving", w.f.Unrecovered(id), false)
	d, err := w.f.PlanBatch(testTopic, BatchInfo{Count: 1})
	want(t, "sequence", fmt.Sprint(d.Segment.Seq, err), "3 <nil>")
}
