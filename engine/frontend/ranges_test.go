package frontend

import (
	"errors"
	"fmt"
	"testing"

	"github.com/ringfence/ringfence/cp"
	"github.com/ringfence/ringfence/fence"
)

func TestSplitRange(t *testing.T) {
	w := newWorld(t)
	w.n(1)
	before := w.f.hot()
	_, _, err := w.f.SplitRange(root())
	wantErr(t, err, cp.ErrActiveSegment)
	want(t, "state", w.f.hot(), before)
	left, right := w.split(root())
	want(t, "children", fmt.Sprint(left.Seq, right.Seq), "1 2")
	want(t, "active", w.f.ActiveRangeIDs(testTopic), []fence.RangeID{left, right})
	_, _, err = w.f.SplitRange(root())
	wantErr(t, err, cp.ErrRangeSealed)
	_, _, err = w.f.SplitRange(fence.RangeID{Topic: topicID(9)})
	wantErr(t, err, cp.ErrNoSuchRange)
	for _, id := range []fence.RangeID{left, right} {
		_, err := w.f.Read(id, 0, 1, w.s.read)
		wantErr(t, err, errEOF)
	}
	var re *RangeError
	if !errors.As(err, &re) || re.Range != (fence.RangeID{Topic: topicID(9)}) {
		t.Fatalf("the error does not name the range: %v", err)
	}
}

func TestSplitToTheLastPosition(t *testing.T) {
	w := newWorld(t)
	id := root()
	for range 8 {
		id, _ = w.split(id)
	}
	_, _, err := w.f.SplitRange(id)
	wantErr(t, err, cp.ErrCannotSplit)
}

func TestMergeRanges(t *testing.T) {
	w := newWorld(t)
	left, right := w.split(root())
	w.produce(many(4)...)
	before := w.f.hot()
	_, err := w.f.MergeRanges(left, right)
	wantErr(t, err, cp.ErrActiveSegment)
	want(t, "state", w.f.hot(), before)
	a, b := w.split(left)
	_, err = w.f.MergeRanges(b, right)
	wantErr(t, err, cp.ErrActiveSegment)
	w.roll(right)
	_, err = w.f.MergeRanges(b, right)
	wantErr(t, err, cp.ErrNotBuddies)
	left2 := w.merge(a, b)
	all := w.merge(left2, right)
	want(t, "active", w.f.ActiveRangeIDs(testTopic), []fence.RangeID{all})
	p := w.produce(many(3)...)
	want(t, "one range owns everything", p, Placements{all: {0, 2}})
}

func TestTopicPolicies(t *testing.T) {
	c := newTruth(t, 4)
	f := c.front(false)
	for i, name := range []string{"b", "a", "c"} {
		if _, err := f.CreateTopic(name, 8, topicID(uint64(i+1)), 1); err != nil {
			t.Fatal(err)
		}
	}
	name, err := f.TopicPolicyName("a")
	want(t, "unbound", fmt.Sprintf("%q %v", name, err), `"" <nil>`)
	for _, topic := range []string{"b", "a"} {
		if err := f.BindTopicPolicy(topic, "short"); err != nil {
			t.Fatal(err)
		}
	}
	name, err = f.TopicPolicyName("a")
	want(t, "bound", fmt.Sprintf("%s %v", name, err), "short <nil>")
	want(t, "bound to it", f.TopicsBoundTo("short"), []string{"a", "b"})
	want(t, "bound to nothing", f.TopicsBoundTo(""), []string{"c"})
	if err := f.BindTopicPolicy("a", ""); err != nil {
		t.Fatal(err)
	}
	want(t, "detached", f.TopicsBoundTo("short"), []string{"b"})
	_, err = f.TopicPolicyName("nope")
	wantErr(t, err, cp.ErrNoSuchTopic)
	wantErr(t, f.BindTopicPolicy("nope", "x"), cp.ErrNoSuchTopic)
	wantErr(t, f.BindTopicPolicy("b", string(make([]byte, 300))), cp.ErrInvalidPolicy)
}

// A topic's policy decides when its heads roll.
func TestPolicySetsTheRollSize(t *testing.T) {
	for _, tc := range []struct {
		bound cp.Bound
		rolls bool
	}{{cp.Bound{}, true}, {cp.Limit(1000), false}, {cp.Limit(50), true}, {cp.Unlimited(), false}} {
		w := newWorld(t, func(o *Options) { o.SegmentMaxBytes = 100 })
		w.f.ApplyCommitted(cp.DefinePolicy{Name: "p", Policy: cp.Policy{SegmentMaxBytes: tc.bound}})
		if err := w.f.BindTopicPolicy(testTopic, "p"); err != nil {
			t.Fatal(err)
		}
		if _, err := w.f.PlanBatch(testTopic, BatchInfo{Count: 1, Bytes: 100}); err != nil {
			t.Fatal(err)
		}
		want(t, tc.bound.String(), len(w.f.DueRolls()) == 1, tc.rolls)
	}
}

func TestPlacement(t *testing.T) {
	labels := map[cp.NodeID]Attributes{"a": {"rack": "r1"}, "b": {"rack": "r1"}, "c": {"rack": "r2"}, "d": {"rack": "r2"}}
	spread := func(o *Options) {
		o.Brokers, o.ReplicationFactor, o.SpreadBy, o.Attributes = []cp.NodeID{"a", "b", "c", "d"}, 2, "rack", labels
	}
	racks := func(w *world, n uint32) int {
		s := w.segment(seg(root(), n))
		return cp.Placement{SpreadBy: "rack", Attributes: labels}.Domains(s.Replicas)
	}
	w := newWorld(t, spread)
	for i := range uint32(8) {
		w.n(1)
		want(t, "racks", racks(w, i), 2)
		w.roll(root())
	}
	// A policy turns spreading off; one that inherits does not.
	w.f.ApplyCommitted(cp.DefinePolicy{Name: "off", Policy: cp.Policy{SpreadBy: cp.Spread{Setting: cp.Off}}})
	if err := w.f.BindTopicPolicy(testTopic, "off"); err != nil {
		t.Fatal(err)
	}
	together := false
	for i := range uint32(12) {
		w.n(1)
		together = together || racks(w, 8+i) == 1
		w.roll(root())
	}
	want(t, "some segment in one rack", together, true)

	// And one turns it on.
	w = newWorld(t, spread, func(o *Options) { o.SpreadBy = "" })
	w.f.ApplyCommitted(cp.DefinePolicy{Name: "on", Policy: cp.Policy{SpreadBy: cp.SpreadOver("rack")}})
	if err := w.f.BindTopicPolicy(testTopic, "on"); err != nil {
		t.Fatal(err)
	}
	for i := range uint32(8) {
		w.n(1)
		want(t, "racks", racks(w, i), 2)
		w.roll(root())
	}
	// The labels may change while it runs: with all nodes in one rack nothing can be spread.
	w.f.SetBrokerAttributes(map[cp.NodeID]Attributes{"a": {"rack": "r1"}, "b": {"rack": "r1"}, "c": {"rack": "r1"}, "d": {"rack": "r2"}})
	for i := range uint32(8) {
		w.n(1)
		s := w.segment(seg(root(), 8+i))
		if s.Replicas[0] != "d" && s.Replicas[1] != "d" {
			t.Fatalf("segment on %v, one rack", s.Replicas)
		}
		w.roll(root())
	}
}

func TestMinDomains(t *testing.T) {
	three := func(o *Options) {
		o.Brokers, o.ReplicationFactor, o.SpreadBy, o.MinDomains = []cp.NodeID{"a", "b", "c"}, 3, "rack", 3
		o.Attributes = map[cp.NodeID]Attributes{"a": {"rack": "1"}, "b": {"rack": "2"}, "c": {"rack": "2"}}
	}
	w := newWorld(t, three, func(o *Options) { o.Hard = true })
	_, err := w.f.PlanBatch(testTopic, BatchInfo{Count: 1})
	wantErr(t, err, cp.ErrFewDomains)
	if w.segment(seg(root(), 0)) != nil {
		t.Fatal("a segment was registered")
	}
	w = newWorld(t, three)
	w.n(1)
	want(t, "violations", w.f.DomainViolations(), map[string]int{testTopic: 1})
	w.f.SetBrokerAttributes(map[cp.NodeID]Attributes{"a": {"rack": "1"}, "b": {"rack": "2"}, "c": {"rack": "3"}})
	want(t, "satisfied", w.f.DomainViolations(), map[string]int{})
	w = newWorld(t, three, func(o *Options) { o.MinDomains = 0 })
	w.n(1)
	want(t, "nothing asked for", w.f.DomainViolationsIn(w.f.Metadata()), map[string]int{})
}

func TestSetBrokers(t *testing.T) {
	w := newWorld(t)
	w.n(1)
	wantErr(t, w.f.SetBrokers(nil), ErrOptions)
	if err := w.f.SetBrokers([]cp.NodeID{"n7"}); err != nil {
		t.Fatal(err)
	}
	want(t, "the open segment stays", w.segment(seg(root(), 0)).Replicas, []cp.NodeID{"n1"})
	w.roll(root())
	w.n(1)
	want(t, "the next one", w.segment(seg(root(), 1)).Replicas, []cp.NodeID{"n7"})
}

func TestApplyHeal(t *testing.T) {
	// A failover seals the head: cache and roll go, the range sits at the recorded end.
	w := newWorld(t, tiny)
	w.n(3)
	want(t, "owed", len(w.f.DueRolls()), 1)
	w.f.ApplyHeal([]cp.Command{cp.SealSegment{ID: seg(root(), 0), Length: 2, Bytes: 2, At: 1}})
	s := w.f.shard(topicID(1))
	want(t, "after", fmt.Sprint(s.at(root()).open, s.at(root()).next, w.f.DueRolls()), fmt.Sprint(false, 2, []Roll{}))

	// For another segment nothing moves.
	w.n(1)
	before := w.f.hot()
	err := w.f.ApplyHealReply([]cp.Command{cp.SealSegment{ID: seg(root(), 0), Length: 2, Bytes: 9, At: 9}})
	want(t, "same length again", fmt.Sprint(err, w.f.hot() == before), "<nil> true")

	// What the metadata ended with counts, not what was asked for; and the first refusal is answered
	// while the rest is carried out.
	err = w.f.ApplyHealReply([]cp.Command{
		cp.SealSegment{ID: seg(root(), 9), Length: 1},
		cp.SealSegment{ID: seg(root(), 0), Length: 7},
		cp.SetSegmentReplicas{ID: seg(root(), 0), Replicas: []cp.NodeID{"n4", "n5"}},
	})
	wantErr(t, err, cp.ErrNoSuchSegment)
	want(t, "length", w.segment(seg(root(), 0)).Length, 2)
	want(t, "replicas", w.segment(seg(root(), 0)).Replicas, []cp.NodeID{"n4", "n5"})
	// The replicas of an active segment are never replaced.
	wantErr(t, w.f.ApplyHealReply([]cp.Command{cp.SetSegmentReplicas{ID: seg(root(), 1), Replicas: []cp.NodeID{"x"}}}), cp.ErrSegmentActive)
}

// A failover seal that finds another length recorded seats the frontend behind that one, also where
// its view does not have it yet.
func TestApplyHealLosesToAnotherSeal(t *testing.T) {
	for _, fetch := range []bool{false, true} {
		c, a, _ := pair(t, 1, fetch)
		for range 5 {
			plan1(t, a)
		}
		c.do(cp.SealSegment{ID: seg(root(), 0), Length: 3, At: 1})
		wantErr(t, a.ApplyHealReply([]cp.Command{cp.SealSegment{ID: seg(root(), 0), Length: 4, At: 1}}), cp.ErrAlreadySealed)
		s := a.shard(topicID(1))
		want(t, "after", fmt.Sprint(s.at(root()).open, s.at(root()).next), "false 3")
	}
}

// A failover seal without an answer drops the head and moves nothing: nobody knows where it ends.
func TestApplyHealWithoutAnAnswer(t *testing.T) {
	c := newTruth(t, 1)
	timeout := errors.New("no answer")
	down := false
	f := newFrontend(t, func(o *Options) {
		o.Command = func(_ string, cmd cp.Command) cp.Reply {
			if down {
				return cp.Reply{Err: timeout}
			}
			return c.apply(cmd)
		}
	})
	if _, err := f.CreateTopic(testTopic, 8, topicID(1), 1); err != nil {
		t.Fatal(err)
	}
	plan1(t, f)
	down = true
	wantErr(t, f.ApplyHealReply([]cp.Command{cp.SealSegment{ID: seg(root(), 0), Length: 0, At: 1}}), timeout)
	s := f.shard(topicID(1))
	want(t, "after", fmt.Sprint(s.at(root()).open, s.at(root()).next), "false 1")
}

func TestDeleteSegment(t *testing.T) {
	w := newWorld(t)
	w.n(2)
	wantErr(t, w.f.DeleteSegment(seg(root(), 0)), cp.ErrSegmentActive)
	w.roll(root())
	if err := w.f.DeleteSegment(seg(root(), 0)); err != nil {
		t.Fatal(err)
	}
	wantErr(t, w.f.DeleteSegment(seg(root(), 0)), cp.ErrNoSuchSegment)
	// Offsets and sequences are never used again, although no segment is left, by a new frontend too.
	d, err := w.f.PlanBatch(testTopic, BatchInfo{Count: 1})
	want(t, "next", fmt.Sprint(d.Segment, d.Base, err), fmt.Sprint(seg(root(), 1), 2, nil))
	w2 := newFrontend(t, func(o *Options) { o.View = w.f.Metadata() })
	w2.ApplyCommitted(cp.SealSegment{ID: seg(root(), 1), Length: 3, At: 1})
	w2.ApplyCommitted(cp.DeleteSegment{ID: seg(root(), 1)})
	d, err = w2.PlanBatch(testTopic, BatchInfo{Count: 1})
	want(t, "after a restart", fmt.Sprint(d.Segment, d.Base, err), fmt.Sprint(seg(root(), 2), 5, nil))
}

func TestMetadata(t *testing.T) {
	w := newWorld(t)
	w.n(1)
	v := w.f.Metadata()
	w.roll(root())
	if _, err := w.f.CreateTopic("later", 8, topicID(2), 1); err != nil {
		t.Fatal(err)
	}
	want(t, "a view never changes", fmt.Sprint(len(v.Topics()), v.Segment(seg(root(), 0)).Phase), fmt.Sprint(1, cp.Active))
	v = w.f.Metadata()
	want(t, "union", []string{v.Topics()[0].Name, v.Topics()[1].Name, v.TopicByID(topicID(2)).Name}, []string{"later", "logs", "later"})
	n := 0
	for range v.Ranges(testTopic) {
		n++
	}
	for range v.Segments(root()) {
		n++
	}
	want(t, "ranges and segments", n, 2)
	var none View
	want(t, "an empty view", fmt.Sprint(none.Topic("x"), none.Range(root()), none.Segment(seg(root(), 0)), none.Topics()),
		fmt.Sprint((*cp.Topic)(nil), (*cp.Range)(nil), (*cp.Segment)(nil), []*cp.Topic{}))
}
