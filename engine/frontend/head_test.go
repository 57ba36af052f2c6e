package frontend

import (
	"errors"
	"testing"

	"github.com/ringfence/ringfence/cp"
	"github.com/ringfence/ringfence/fence"
)

// rollWorld is a frontend over a control plane of its own whose batches of commands
// can be refused.
type rollWorld struct {
	f       *Frontend
	state   *cp.State
	batches int
	refuse  func(cmd cp.Command) error
}

func newRollWorld(t *testing.T) (*rollWorld, *Topic) {
	t.Helper()
	w := &rollWorld{state: cp.NewState()}
	one := func(_ string, cmd cp.Command) cp.Reply {
		if w.refuse != nil {
			if err := w.refuse(cmd); err != nil {
				return cp.Reply{Err: err}
			}
		}
		return w.state.Apply(cmd)
	}
	f, err := New(Options{
		Self: "n", Writer: 7, Bits: dice(), SegmentMaxBytes: 100, Command: one,
		Commands: func(topic string, cmds ...cp.Command) []cp.Reply {
			w.batches++
			replies := make([]cp.Reply, len(cmds))
			for i, cmd := range cmds {
				replies[i] = one(topic, cmd)
			}
			return replies
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	w.f = f
	if _, err := f.CreateTopic("t", 8, topicID(1), 1); err != nil {
		t.Fatal(err)
	}
	h, err := f.Topic("t")
	if err != nil {
		t.Fatal(err)
	}
	return w, h
}

// A size roll seals and registers in one proposal; the successor starts at exactly
// the fenced end, whatever was reserved above it, and the next plan uses it.
func TestRecordRollInOneProposal(t *testing.T) {
	w, h := newRollWorld(t)
	d, err := w.f.PlanBatchIn(h, BatchInfo{Count: 5, Bytes: 200, Now: 1})
	if err != nil || !d.Roll {
		t.Fatalf("%+v %v", d, err)
	}
	roll := w.f.FencesToSend(0, 1)[0]
	if err := w.f.RecordRoll(roll, 3, 120, 9); err != nil {
		t.Fatal(err)
	}
	if w.batches != 1 || len(w.f.DueRolls()) != 0 {
		t.Fatalf("%d proposals, owed %v", w.batches, w.f.DueRolls())
	}
	old, next := w.state.Segment(d.Segment), w.state.Head(d.Range)
	if old.Phase != cp.Sealed || old.Length != 3 || next == nil || next.Start != 3 || next.Writer != 7 || next.Salt == old.Salt {
		t.Fatalf("%+v, then %+v", old, next)
	}
	after, ok := w.f.TryPlanIn(h, BatchInfo{Count: 1})
	if ok && after.Segment != next.ID {
		t.Fatalf("planned into %s", after.Segment)
	}
	if after, err = w.f.PlanBatchIn(h, BatchInfo{Count: 1, Now: 2}); err != nil || after.Segment != next.ID || after.First < 3 {
		t.Fatalf("%+v %v", after, err)
	}
	if err := w.state.Check(); err != nil {
		t.Fatal(err)
	}
}

// What cannot be done in one proposal is done as RecordFence would.
func TestRecordRollRefused(t *testing.T) {
	refused := errors.New("refused")
	cases := map[string]struct {
		refuse func(cp.Command) error
		err    error
		head   bool // there is a successor afterwards
		sealed bool
	}{
		"the seal": {refuse: func(c cp.Command) error {
			if _, ok := c.(cp.SealSegment); ok {
				return refused
			}
			return nil
		}, err: refused, head: true},
		"the registration": {refuse: func(c cp.Command) error {
			if _, ok := c.(cp.RegisterSegment); ok {
				return refused
			}
			return nil
		}, sealed: true},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			w, h := newRollWorld(t)
			d, err := w.f.PlanBatchIn(h, BatchInfo{Count: 5, Bytes: 200, Now: 1})
			if err != nil {
				t.Fatal(err)
			}
			w.refuse = c.refuse
			roll := w.f.FencesToSend(0, 1)[0]
			if err := w.f.RecordRoll(roll, 5, 120, 9); !errors.Is(err, c.err) {
				t.Fatal(err)
			}
			head := w.state.Head(d.Range)
			if (head != nil) != c.head || (w.state.Segment(d.Segment).Phase == cp.Sealed) != c.sealed {
				t.Fatalf("head %+v", head)
			}
			if c.err != nil && len(w.f.DueRolls()) != 1 {
				t.Fatal("the roll is not owed any more")
			}
			w.refuse = nil
			if err := w.f.RecordRoll(roll, 5, 120, 9); err != nil {
				t.Fatal(err)
			}
			next, err := w.f.PlanBatchIn(h, BatchInfo{Count: 1, Now: 2})
			if err != nil || next.Segment == d.Segment || next.First != 5 {
				t.Fatalf("%+v %v", next, err)
			}
		})
	}
}

// A segment that is no longer the head, or sealed already, is settled without
// another one being registered behind its range's back.
func TestRecordRollOfAnOldHead(t *testing.T) {
	w, h := newRollWorld(t)
	d, err := w.f.PlanBatchIn(h, BatchInfo{Count: 5, Bytes: 200, Now: 1})
	if err != nil {
		t.Fatal(err)
	}
	roll := Roll{Segment: d.Segment, Primary: "n"}
	for range 2 {
		if err := w.f.RecordRoll(roll, 5, 120, 9); err != nil {
			t.Fatal(err)
		}
	}
	if n := w.batches; n != 1 {
		t.Fatalf("%d proposals of two commands", n)
	}
	if head := w.state.Head(d.Range); head == nil || head.ID != (fence.SegmentID{Range: d.Range, Seq: d.Segment.Seq + 1}) {
		t.Fatalf("%+v", head)
	}
}

// A command whose answer never came may have taken effect: following the control
// plane brings the topic, or takes it away, and without a way to fetch nothing moves.
func TestFollow(t *testing.T) {
	state := cp.NewState()
	lost := errors.New("no answer")
	f, err := New(Options{
		Self: "n", Bits: dice(),
		Command: func(_ string, cmd cp.Command) cp.Reply {
			state.Apply(cmd)
			return cp.Reply{Err: lost}
		},
		Fetch: func(string) (*cp.State, error) { return state.Clone(), nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.CreateTopic("t", 8, topicID(1), 1); !errors.Is(err, lost) {
		t.Fatal(err)
	}
	if _, err := f.Topic("t"); !errors.Is(err, cp.ErrNoSuchTopic) {
		t.Fatalf("known before it was followed: %v", err)
	}
	if !f.Follow("t") {
		t.Fatal("not followed")
	}
	if h, err := f.Topic("t"); err != nil || h.ID() != topicID(1) {
		t.Fatal(err)
	}
	if err := f.DeleteTopic("t"); !errors.Is(err, lost) {
		t.Fatal(err)
	}
	if !f.Follow("t") {
		t.Fatal("not followed")
	}
	if _, err := f.Topic("t"); !errors.Is(err, cp.ErrNoSuchTopic) {
		t.Fatalf("still there: %v", err)
	}
	deaf, err := New(Options{Self: "n", Bits: dice()})
	if err != nil {
		t.Fatal(err)
	}
	if deaf.Follow("t") {
		t.Fatal("followed without a way to")
	}
}
