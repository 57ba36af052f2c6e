package frontend

import (
	"fmt"
	"testing"

	"github.com/ringfence/ringfence/cp"
	"github.com/ringfence/ringfence/fence"
)

// The old primary named an end above the one that a failover recorded. The range sits too high until its
// successor opens, which is exactly at the recorded end, and what is planned into it begins there.
func TestSuccessorOfAFailoverBelowTheRefusal(t *testing.T) {
	c, a, _ := pair(t, 1, true)
	for range 3 {
		plan1(t, a)
	}
	a.ForgetSealed(root(), seg(root(), 0), 9)
	c.do(cp.SealSegment{ID: seg(root(), 0), Length: 2, At: 1})
	d := plan1(t, a)
	want(t, "successor", fmt.Sprint(d.Segment, d.Base, d.First), fmt.Sprint(seg(root(), 1), 2, 2))
	want(t, "and on", plan1(t, a).First, 3)
}

// Two frontends on one range: one rolls by size while the other goes on with a stale head. The
// length is what the fence answered, and every record is there once (incidents F3, F9).
func TestTwoFrontendsOneRoll(t *testing.T) {
	truth, s := newTruth(t, 1), newCopies()
	a := truth.front(true, func(o *Options) { o.SegmentMaxBytes = 100 })
	if _, err := a.CreateTopic(testTopic, 8, topicID(1), 1); err != nil {
		t.Fatal(err)
	}
	b := truth.front(true)
	stored := map[string]bool{}
	put := func(f *Frontend, key string) {
		t.Helper()
		for range 3 {
			_, err := f.Produce(testTopic, []Record{at(key, 0)}, 1, s.append)
			if err == nil {
				stored[key] = true
				return
			}
			wantErr(t, err, fence.ErrFenced)
		}
		t.Fatalf("%s was not stored", key)
	}
	for i := range 4 {
		put(a, fmt.Sprintf("a%d", i))
		put(b, fmt.Sprintf("b%d", i))
	}
	roll := a.FencesToSend(0, window)[0]
	end, bytes := s.fence(roll)
	if err := a.RecordFence(roll, end, bytes, 1); err != nil {
		t.Fatal(err)
	}
	want(t, "length", truth.view.Segment(roll.Segment).Length, 8)
	b.Refresh(truth.snapshot(), nil)
	put(b, "b4")
	put(a, "a4")
	got, err := a.ReadHistory(root(), s.read)
	want(t, "read back", fmt.Sprint(len(got), len(stored), err), "10 10 <nil>")
	for _, r := range got {
		if !stored[string(r.Key)] {
			t.Fatalf("%s came twice or was never acknowledged", r.Key)
		}
		delete(stored, string(r.Key))
	}
}

// A stale frontend is refused once: its retry asks the control plane first where it can, and else is refused
// until the next refresh.
func TestOneRefusalAfterAForeignSeal(t *testing.T) {
	for _, fetch := range []bool{true, false} {
		c, a, b := pair(t, 1, fetch)
		s := newCopies()
		plan1(t, a)
		b.Refresh(c.snapshot(), nil)
		plan1(t, b)
		roll, _ := a.ActiveRoll(root())
		end, bytes := s.fence(roll)
		if err := a.RecordSeal(roll, end, bytes, 1); err != nil {
			t.Fatal(err)
		}
		_, err := b.Produce(testTopic, many(1), 1, s.append)
		wantErr(t, err, fence.ErrFenced)
		_, err = b.Produce(testTopic, many(1), 1, s.append)
		if fetch != (err == nil) {
			t.Fatalf("fetch %v: the retry answered %v", fetch, err)
		}
		b.Refresh(c.snapshot(), nil)
		if _, err = b.Produce(testTopic, many(1), 1, s.append); err != nil {
			t.Fatal(err)
		}
	}
}

// A roll of a head that is written to asks the control plane once for the seal and the successor.
func TestRecordRollMeetsOthers(t *testing.T) {
	for _, tc := range []struct {
		name    string
		before  []cp.Command // committed behind the frontend's back
		lose    bool         // no answer to either
		calls   int          // to the control plane beside the one for both
		segment uint32       // that the next plan goes to
		base    uint64
	}{
		{name: "both recorded", segment: 1, base: 2},
		{name: "no answer", lose: true, calls: 2, segment: 1, base: 2},
		{name: "sealed lower", before: []cp.Command{cp.SealSegment{ID: seg(root(), 0), Length: 1, At: 1}}, calls: 2, segment: 1, base: 1},
		{name: "sealed and reopened", before: []cp.Command{
			cp.SealSegment{ID: seg(root(), 0), Length: 2, At: 1},
			cp.RegisterSegment{ID: seg(root(), 3), Start: 2, Replicas: []cp.NodeID{"n4"}},
		}, calls: 1, segment: 3, base: 2},
	} {
		c := newTruth(t, 1)
		calls := 0
		f := c.front(true, func(o *Options) {
			o.Command = func(_ string, cmd cp.Command) cp.Reply { calls++; return c.apply(cmd) }
			o.Commands = func(_ string, cmds ...cp.Command) (replies []cp.Reply) {
				for _, cmd := range cmds {
					if tc.lose {
						return nil
					}
					replies = append(replies, c.apply(cmd))
				}
				return replies
			}
		})
		if _, err := f.CreateTopic(testTopic, 8, topicID(1), 1); err != nil {
			t.Fatal(err)
		}
		plan1(t, f)
		plan1(t, f)
		roll, _ := f.ActiveRoll(root())
		f.RequestRolls([]cp.Segment{*c.view.Segment(roll.Segment)})
		c.do(tc.before...)
		calls = 0
		if err := f.RecordRoll(roll, 2, 20, 7); err != nil {
			t.Fatalf("%s: %v", tc.name, err)
		}
		want(t, tc.name+": owed", f.DueRolls(), nil)
		d := plan1(t, f)
		want(t, tc.name, fmt.Sprint(d.Segment, d.Base, d.First, calls), fmt.Sprint(seg(root(), tc.segment), tc.base, tc.base, tc.calls))
	}
	// Without the means it is RecordFence.
	w := newWorld(t, tiny)
	w.n(1)
	roll := w.owed()
	end, bytes := w.s.fence(roll)
	if err := w.f.RecordRoll(roll, end, bytes, 1); err != nil {
		t.Fatal(err)
	}
	if _, ok := w.f.ActiveRoll(root()); ok {
		t.Fatal("a successor was opened")
	}
}

// Producing is never held back by an unknown end, and its answer ends it, also one that is just as
// planned (incident C12).
func TestProduceEndsUnrecovered(t *testing.T) {
	w := newWorld(t)
	w.f.SeedUnrecoveredRange(root(), 0)
	_, err := w.f.ReadConsume(root(), nil, 10, w.s.read)
	wantErr(t, err, ErrMetadataUnavailable)
	_, _, err = w.f.Plan(testTopic, nil, nil)
	wantErr(t, err, ErrMetadataUnavailable)
	if !Retryable(err) {
		t.Fatalf("%v is not retryable", err)
	}
	w.f.AdoptOffsets(root(), seg(root(), 9), 0)
	want(t, "another segment's answer", w.f.Unrecovered(root()), true)
	w.n(1)
	page, err := w.f.ReadConsume(root(), nil, 10, w.s.read)
	want(t, "page", fmt.Sprint(keys(page.Records), err), "[r0] <nil>")
}
