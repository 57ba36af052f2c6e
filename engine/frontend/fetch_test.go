package frontend

import (
	"fmt"
	"testing"

	"github.com/ringfence/ringfence/cp"
	"github.com/ringfence/ringfence/fence"
)

// Routing follows a split that another frontend made, as soon as a refusal shows it.
func TestPlanFollowsASplit(t *testing.T) {
	_, a, b := pair(t, 1, true)
	left, _, err := a.SplitRange(root())
	if err != nil {
		t.Fatal(err)
	}
	want(t, "B's plan", plan1(t, b).Range, left)
	_, ds, err := b.PlanProduce(testTopic, many(4), 1)
	want(t, "B's produce", fmt.Sprint(len(ds), err), "2 <nil>")

	_, a, b = pair(t, 1, true)
	if _, _, err := a.SplitRange(root()); err != nil {
		t.Fatal(err)
	}
	_, err = b.PlanBatch(testTopic, BatchInfo{Count: 2, MaxPos: positions - 1})
	wantErr(t, err, ErrStraddles)
	_, a, b = pair(t, 1, false)
	if _, _, err := a.SplitRange(root()); err != nil {
		t.Fatal(err)
	}
	_, err = b.PlanBatch(testTopic, BatchInfo{Count: 1})
	wantErr(t, err, cp.ErrRangeSealed)
	_, _, err = b.PlanProduce(testTopic, many(4), 1)
	wantErr(t, err, cp.ErrRangeSealed)
}

// A frontend whose view missed a segment splits the range: its readers must not take the parent for
// empty.
func TestSplitFromABehindView(t *testing.T) {
	c, a, b := pair(t, 1, true)
	plan1(t, a)
	c.do(cp.SealSegment{ID: seg(root(), 0), Length: 5, At: 1})
	if _, _, err := b.SplitRange(root()); err != nil {
		t.Fatal(err)
	}
	_, sources, err := b.Plan(testTopic, nil, nil)
	want(t, "plan", fmt.Sprint(len(sources), sources[0].Range, sources[0].Limit, err), fmt.Sprint(1, root(), 5, nil))
}

// A topic that was deleted and made again under its name is found by its new identity.
func TestFetchOfARecreatedTopic(t *testing.T) {
	_, a, b := pair(t, 1, true)
	if err := a.DeleteTopic(testTopic); err != nil {
		t.Fatal(err)
	}
	if _, err := a.CreateTopic(testTopic, 8, topicID(2), 1); err != nil {
		t.Fatal(err)
	}
	_, err := b.PlanBatch(testTopic, BatchInfo{Count: 1}) // B's handle is of the old one
	wantErr(t, err, cp.ErrNoSuchTopic)
	want(t, "next", plan1(t, b).Range, fence.RangeID{Topic: topicID(2)})
}

// While a topic is fetched, a command is committed and mirrored: what was read before it is not put over it.
func TestFetchOvertakenByACommand(t *testing.T) {
	c := newTruth(t, 1)
	var f *Frontend
	meanwhile := func() {}
	f = newFrontend(t, func(o *Options) {
		o.Command = c.command
		o.Fetch = func(topic string) (*cp.State, error) {
			from, err := c.fetch(topic)
			meanwhile()
			meanwhile = func() {}
			return from, err
		}
	})
	if _, err := f.CreateTopic(testTopic, 8, topicID(1), 1); err != nil {
		t.Fatal(err)
	}
	c.do(cp.RegisterSegment{ID: seg(root(), 0), Replicas: []cp.NodeID{"n9"}}) // unknown to f
	meanwhile = func() {
		cmd := cp.BindTopicPolicy{Topic: testTopic, Policy: "p"}
		c.do(cmd)
		f.ApplyCommitted(cmd)
	}
	want(t, "found by fetching", plan1(t, f).Primary, "n9")
	name, err := f.TopicPolicyName(testTopic)
	want(t, "bound meanwhile", fmt.Sprintf("%s %v", name, err), "p <nil>")
}

// A replay raises the view's count of changes without changing anything; a fetch is believed all the same.
func TestFetchAfterAReplay(t *testing.T) {
	c, a, b := pair(t, 1, true)
	b.StartJournal()
	for range 5 {
		if err := b.BindTopicPolicy(testTopic, "p"); err != nil {
			t.Fatal(err)
		}
	}
	b.Refresh(c.snapshot(), nil)
	plan1(t, a)
	want(t, "B joins A's segment", plan1(t, b).Segment, seg(root(), 0))
	want(t, "registered", len(c.log), 7)
}

// A fetch that brings nothing usable leaves the view as it was.
func TestFetchOfRubbish(t *testing.T) {
	another := cp.NewState() // has the topic under the identity of another
	another.Apply(cp.CreateTopic{Name: testTopic, Bits: 8, ID: topicID(2)})
	for what, from := range map[string]*cp.State{"nothing": nil, "another": another} {
		t.Run(what, func(t *testing.T) {
			c := newTruth(t, 1)
			fetched := 0
			f := c.front(false, func(o *Options) {
				o.Fetch = func(string) (*cp.State, error) { fetched++; return from, nil }
			})
			for i, name := range []string{testTopic, "other"} {
				if _, err := f.CreateTopic(name, 8, topicID(uint64(1+i)), 1); err != nil {
					t.Fatal(err)
				}
			}
			c.do(cp.RegisterSegment{ID: seg(root(), 0), Replicas: []cp.NodeID{"n9"}})
			_, err := f.PlanBatch(testTopic, BatchInfo{Count: 1})
			wantErr(t, err, cp.ErrSegmentExists)
			if h, err := f.Topic(testTopic); err != nil || h.ID() != topicID(1) || fetched == 0 {
				t.Fatal(h, err, fetched)
			}
			if err := f.Check(); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// A split or merge costs a frontend as much in a topic of thousands of ranges as in one of a few.
func TestFetchAfterManyChanges(t *testing.T) {
	c, a, _ := pair(t, 1, true)
	last := root()
	cycle := func() {
		left, right, err := a.SplitRange(last)
		if err == nil {
			last, err = a.MergeRanges(left, right)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	cycle()
	young := testing.AllocsPerRun(20, cycle)
	for range 5000 {
		cycle()
	}
	old := testing.AllocsPerRun(20, cycle)
	t.Logf("%v allocations, and %v after %d ranges", young, old, c.view.Topic(testTopic).NextRangeSeq)
	if old > young*3/2 {
		t.Errorf("%v allocations for a split and a merge, %v after thousands of them", young, old)
	}
}

// A topic that the control plane no longer has is gone here too once that shows.
func TestFetchOfADeletedTopic(t *testing.T) {
	_, a, b := pair(t, 1, true)
	if err := a.DeleteTopic(testTopic); err != nil {
		t.Fatal(err)
	}
	_, err := b.PlanBatch(testTopic, BatchInfo{Count: 1})
	wantErr(t, err, cp.ErrNoSuchTopic)
}
