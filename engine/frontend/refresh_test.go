package frontend

import (
	"errors"
	"fmt"
	"testing"

	"github.com/ringfence/ringfence/cp"
	"github.com/ringfence/ringfence/fence"
)

// pair is two frontends of one control plane with a topic.
func pair(t *testing.T, vnodes int, fetch bool) (*truth, *Frontend, *Frontend) {
	t.Helper()
	c := newTruth(t, vnodes)
	a := c.front(fetch)
	if _, err := a.CreateTopic(testTopic, 8, topicID(1), 1); err != nil {
		t.Fatal(err)
	}
	return c, a, c.front(fetch)
}

func plan1(t *testing.T, f *Frontend) Dispatch {
	t.Helper()
	d, err := f.PlanBatch(testTopic, BatchInfo{Count: 1, Bytes: 1})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func (c *truth) do(cmds ...cp.Command) {
	c.t.Helper()
	for _, cmd := range cmds {
		if r := c.apply(cmd); r.Err != nil {
			c.t.Fatalf("%+v: %v", cmd, r.Err)
		}
	}
}

func TestDropStale(t *testing.T) {
	c, a, b := pair(t, 1, false)
	plan1(t, a)
	plan1(t, a)
	b.PutCache(c.snapshot(), nil)
	d := plan1(t, b)
	want(t, "B adopted A's head", d.Segment, seg(root(), 0))

	// Active stays.
	before := a.hot()
	a.DropStaleActiveSegments()
	want(t, "active", a.hot(), before)

	// Sealed elsewhere: A goes on at the recorded end without a single refusal (incident F34).
	c.do(cp.SealSegment{ID: seg(root(), 0), Length: 1, Bytes: 1, At: 1})
	a.PutCache(c.snapshot(), nil)
	want(t, "the refresh alone moves nothing", a.hot(), before)
	a.DropStaleActiveSegments()
	d = plan1(t, a)
	want(t, "successor", fmt.Sprint(d.Segment, d.Base, d.First), fmt.Sprint(seg(root(), 1), 1, 1))
}

// A head that was sealed, and expired since, is dropped too, and the range goes on at its floor.
func TestDropStaleOfAnExpiredHead(t *testing.T) {
	c, a, _ := pair(t, 1, false)
	plan1(t, a)
	a.RequestRolls([]cp.Segment{*c.view.Segment(seg(root(), 0))})
	c.do(cp.SealSegment{ID: seg(root(), 0), Length: 6, Bytes: 1, At: 1}, cp.DeleteSegment{ID: seg(root(), 0)})
	a.Refresh(c.snapshot(), nil)
	want(t, "owed", a.DueRolls(), nil)
	d := plan1(t, a)
	want(t, "successor", fmt.Sprint(d.Segment, d.Base), fmt.Sprint(seg(root(), 1), 6))
}

// A retired range whose segment the view still has as active: the head is dropped, and the counter
// stays, because nobody here knows where the segment ends (incident F35).
func TestDropStaleOfARetiredRange(t *testing.T) {
	_, a, _ := pair(t, 1, false)
	plan1(t, a)
	c2 := newTruth(t, 1)
	c2.do(cp.CreateTopic{Name: testTopic, Bits: 8, ID: topicID(1)},
		cp.RegisterSegment{ID: seg(root(), 0), Replicas: []cp.NodeID{"n1"}},
		cp.SealTopic{Name: testTopic})
	a.PutCache(c2.snapshot(), nil)
	a.DropStaleActiveSegments()
	s := a.shard(topicID(1))
	want(t, "head and counter", fmt.Sprint(s.at(root()).open, s.at(root()).next), "false 1")
}

// Owed rolls: dropped when sealed, or gone with the range past them; kept when merely unseen.
func TestDropStaleRolls(t *testing.T) {
	c, a, _ := pair(t, 1, false)
	plan1(t, a)
	owe := func(n uint32) {
		a.RequestRolls([]cp.Segment{{ID: seg(root(), n), Replicas: []cp.NodeID{"n1"}}})
		a.FencesToSend(0, window)
	}
	owe(3) // the view has never heard of it
	a.DropStaleActiveSegments()
	want(t, "unseen", len(a.DueRolls()), 1)
	want(t, "awaited", a.AwaitingFence(root(), seg(root(), 3), 1, window), true)
	c.do(cp.SealSegment{ID: seg(root(), 0), Length: 1, At: 1})
	c.do(cp.RegisterSegment{ID: seg(root(), 4), Start: 1, Replicas: []cp.NodeID{"n1"}})
	a.Refresh(c.snapshot(), nil)
	want(t, "superseded", len(a.DueRolls()), 0)
	want(t, "no longer awaited", a.AwaitingFence(root(), seg(root(), 3), 1, window), false)
	// So the slot is free for the new head's roll (incident F30).
	a.RequestRolls([]cp.Segment{*c.view.Segment(seg(root(), 4))})
	want(t, "new roll", a.DueRolls()[0].Segment, seg(root(), 4))
	c.do(cp.SealSegment{ID: seg(root(), 4), Length: 0, At: 1})
	a.Refresh(c.snapshot(), nil)
	want(t, "sealed", len(a.DueRolls()), 0)
}

// A vnode that could not be read keeps what was known; one that answered is believed.
func TestPutCache(t *testing.T) {
	c := newTruth(t, 4)
	f := c.front(false)
	var names []string
	for i := range 20 {
		name := fmt.Sprintf("t%02d", i)
		names = append(names, name)
		if _, err := f.CreateTopic(name, 8, topicID(uint64(i+1)), 1); err != nil {
			t.Fatal(err)
		}
	}
	silent, _ := c.view.Ring.Route(names[0])
	fresh := c.snapshot()
	fresh.Vnodes[silent] = cp.NewState() // what a reader puts where nothing answered
	f.PutCache(fresh, []cp.VnodeID{silent})
	want(t, "topics", len(f.Metadata().Topics()), 20)
	h, _ := f.Topic(names[0])

	fresh = c.snapshot()
	fresh.Vnodes[silent] = cp.NewState()
	f.PutCache(fresh, nil)
	gone := 0
	for _, name := range names {
		v, _ := c.view.Ring.Route(name)
		_, err := f.Topic(name)
		if v == silent {
			gone++
			wantErr(t, err, cp.ErrNoSuchTopic)
		} else if err != nil {
			t.Fatal(err)
		}
	}
	if gone == 0 || gone == 20 {
		t.Fatalf("%d topics of 20 were on the silent vnode", gone)
	}
	_, err := f.PlanBatchIn(h, BatchInfo{Count: 1})
	wantErr(t, err, cp.ErrNoSuchTopic)
	f.PutCache(c.snapshot(), nil)
	want(t, "topics again", len(f.Metadata().Topics()), 20)
}

// A view that goes and comes back touches neither offsets nor heads.
func TestPutCacheKeepsHotState(t *testing.T) {
	c, a, _ := pair(t, 1, false)
	plan1(t, a)
	plan1(t, a)
	before := a.hot()
	empty, _ := NewView(1)
	a.PutCache(empty, nil)
	a.PutCache(c.snapshot(), nil)
	want(t, "state", a.hot(), before)
	want(t, "goes on", plan1(t, a).First, 2)
}

func TestJournal(t *testing.T) {
	c, a, _ := pair(t, 2, false)
	want(t, "off", len(a.TakeJournal()), 0)
	a.StartJournal()
	a.StartJournal()
	old := c.snapshot() // a read that began before the writes below
	if _, err := a.CreateTopic("new", 8, topicID(2), 1); err != nil {
		t.Fatal(err)
	}
	plan1(t, a)
	_, err := a.CreateTopic("new", 8, topicID(3), 1)
	wantErr(t, err, cp.ErrTopicExists)
	journal := a.TakeJournal()
	want(t, "noted", fmt.Sprintf("%T %T", journal[0], journal[1]), "cp.CreateTopic cp.RegisterSegment")
	want(t, "in number", len(journal), 2)
	want(t, "emptied", len(a.TakeJournal()), 0)

	a.PutCache(old, nil)
	_, err = a.Topic("new")
	wantErr(t, err, cp.ErrNoSuchTopic)
	a.ReplayJournal(journal)
	if _, err := a.Topic("new"); err != nil {
		t.Fatal(err)
	}
	want(t, "replayed segment", a.Metadata().Segment(seg(root(), 0)).OpenedAt, 0)
	want(t, "replay is not noted", len(a.TakeJournal()), 0)
	a.ReplayJournal(journal) // again: what is there is refused, nothing changes
	if _, err := a.Topic("new"); err != nil {
		t.Fatal(err)
	}
}

// A command without an answer is not noted: it may never have happened (incident B3).
func TestJournalLeavesOutTheUnanswered(t *testing.T) {
	c := newTruth(t, 1)
	timeout := errors.New("no answer")
	f := newFrontend(t, func(o *Options) {
		o.Command = func(_ string, cmd cp.Command) cp.Reply {
			c.apply(cmd)
			return cp.Reply{Err: timeout}
		}
	})
	f.StartJournal()
	_, err := f.CreateTopic(testTopic, 8, topicID(1), 1)
	wantErr(t, err, timeout)
	want(t, "noted", len(f.TakeJournal()), 0)
	_, err = f.Topic(testTopic)
	wantErr(t, err, cp.ErrNoSuchTopic)
}

// A replay never takes a group back, also not by a reset (incident B2).
func TestReplayNeverTakesAGroupBack(t *testing.T) {
	c, a, b := pair(t, 1, false)
	a.StartJournal()
	id := plan1(t, a).Segment
	a.AdoptOffsets(root(), id, 9)
	b.Refresh(c.snapshot(), nil)
	b.AdoptOffsets(root(), id, 9)
	commit := func(f *Frontend, offset uint64, reset bool) {
		t.Helper()
		if err := f.Commit(Commit{Group: "g", Topic: testTopic, Offsets: Offsets{root(): {root(): offset}}, Reset: reset}); err != nil {
			t.Fatal(err)
		}
	}
	commit(a, 6, false)
	commit(a, 5, true)
	commit(b, 10, false)
	a.Refresh(c.snapshot(), nil)
	want(t, "group", a.CommittedOffsets("g", testTopic), Offsets{root(): {root(): 10}})
}

// A replayed delete takes only the topic that it deleted, not one made since under its name.
func TestReplayedDeleteIsOfOneTopic(t *testing.T) {
	c, a, b := pair(t, 1, false)
	a.StartJournal()
	if err := a.DeleteTopic(testTopic); err != nil {
		t.Fatal(err)
	}
	b.Refresh(c.snapshot(), nil)
	if _, err := b.CreateTopic(testTopic, 8, topicID(2), 1); err != nil {
		t.Fatal(err)
	}
	a.Refresh(c.snapshot(), nil)
	h, err := a.Topic(testTopic)
	if err != nil {
		t.Fatal(err)
	}
	want(t, "topic", h.ID(), topicID(2))
}

// A topic created while a snapshot was read is still there after it is installed (incident B1).
func TestRefreshKeepsOwnWrites(t *testing.T) {
	c, a, _ := pair(t, 3, false)
	a.StartJournal()
	for i := range 5 {
		old := c.snapshot()
		name := fmt.Sprintf("new%d", i)
		if _, err := a.CreateTopic(name, 8, topicID(uint64(10+i)), 1); err != nil {
			t.Fatal(err)
		}
		a.Refresh(old, nil)
		if _, err := a.Topic(name); err != nil {
			t.Fatalf("after refresh %d: %v", i, err)
		}
	}
}

// So is a split, which is fetched and not mirrored; and a newer view wins over what was fetched.
func TestRefreshKeepsOwnSplits(t *testing.T) {
	c, a, b := pair(t, 1, true)
	a.StartJournal()
	old := c.snapshot()
	plan1(t, a)
	c.do(cp.SealSegment{ID: seg(root(), 0), Length: 1, At: 1})
	left, right, err := a.SplitRange(root())
	if err != nil {
		t.Fatal(err)
	}
	newer := c.snapshot()
	a.Refresh(old, nil)
	want(t, "after an older view", fmt.Sprint(a.ActiveRangeIDs(testTopic), a.Metadata().Range(root()).NextOffset), fmt.Sprint([]fence.RangeID{left, right}, 1))

	plan1(t, b) // refused, and fetched
	b.StartJournal()
	if _, err := b.MergeRanges(left, right); err == nil {
		t.Fatal("merged a range with a head")
	}
	c.do(cp.SealSegment{ID: seg(left, 0), Length: 1, At: 1})
	m, err := b.MergeRanges(left, right)
	if err != nil {
		t.Fatal(err)
	}
	b.Refresh(newer, nil)
	want(t, "merged", b.ActiveRangeIDs(testTopic), []fence.RangeID{m})
	l2, r2, err := a.SplitRange(m)
	if err != nil {
		t.Fatal(err)
	}
	journal := a.TakeJournal()
	if _, _, err := b.SplitRange(l2); err != nil {
		t.Fatal(err)
	}
	a.PutCache(c.snapshot(), nil)
	a.ReplayJournal(journal)
	want(t, "a newer view stays", len(a.ActiveRangeIDs(testTopic)), 3)
	_ = r2
}

func TestApplyCommitted(t *testing.T) {
	c, a, b := pair(t, 1, false)
	left := fence.RangeID{Topic: topicID(1), Seq: 1}
	plan1(t, a)
	b.ApplyCommitted(c.log[len(c.log)-1])
	for _, cmd := range []cp.Command{
		cp.SealSegment{ID: seg(root(), 0), Length: 3, At: 1},
		cp.SplitRange{Range: root()},
		cp.RegisterSegment{ID: seg(left, 0), Replicas: []cp.NodeID{"n1"}},
		cp.SealSegment{ID: seg(left, 0), Length: 4, At: 1},
	} {
		c.do(cmd)
		for range 2 { // late repeats do no harm
			a.ApplyCommitted(cmd)
			b.ApplyCommitted(cmd)
		}
		if err := a.Check(); err != nil {
			t.Fatal(err)
		}
	}
	want(t, "A's head of the root", a.shard(topicID(1)).at(root()).open, false)
	d := plan1(t, a)
	want(t, "A goes on in the left half", fmt.Sprint(d.Range, d.Segment.Seq, d.Base), fmt.Sprint(left, 1, 4))
	want(t, "B's view", fmt.Sprint(b.Metadata().Range(root()).NextOffset, b.ActiveRangeIDs(testTopic)[0]), fmt.Sprint(3, left))
	b.ApplyCommitted(cp.DeleteTopic{Name: testTopic})
	_, err := b.Topic(testTopic)
	wantErr(t, err, cp.ErrNoSuchTopic)
	b.ApplyCommitted(cp.DeleteTopic{Name: testTopic})
}

// Losing the race to open a head: the refusal is followed to the winner where the control plane can be
// asked; else it surfaces, and a retry after the refresh adopts (incidents F17, F19).
func TestLosingTheRaceToOpen(t *testing.T) {
	c, a, b := pair(t, 1, true)
	plan1(t, a)
	d := plan1(t, b)
	want(t, "B joins A's segment", d.Segment, seg(root(), 0))
	want(t, "segments", len(c.log), 2)

	c, a, b = pair(t, 1, false)
	plan1(t, a)
	before := b.hot()
	_, err := b.PlanBatch(testTopic, BatchInfo{Count: 1})
	wantErr(t, err, cp.ErrSegmentExists)
	want(t, "nothing moved", b.hot(), before)
	b.PutCache(c.snapshot(), nil)
	want(t, "after a refresh", plan1(t, b).Segment, seg(root(), 0))
}

// A stale counter is refused as an overlap, and nothing is registered or cached.
func TestStaleStart(t *testing.T) {
	c, a, b := pair(t, 1, false)
	plan1(t, a)
	c.do(cp.SealSegment{ID: seg(root(), 0), Length: 8, At: 1})
	b.RequestRolls([]cp.Segment{{ID: seg(root(), 4), Replicas: []cp.NodeID{"n1"}}}) // so that the sequence is free
	before := b.hot()
	_, err := b.PlanBatch(testTopic, BatchInfo{Count: 1})
	wantErr(t, err, cp.ErrSegmentOverlap)
	want(t, "state", b.hot(), before)
	if !Retryable(err) {
		t.Fatalf("%v is not retryable", err)
	}
}

// A register without an answer surfaces; the next produce finds what came of it (incident F20).
func TestRegisterWithoutAnAnswer(t *testing.T) {
	for _, landed := range []bool{false, true} {
		c := newTruth(t, 1)
		timeout := errors.New("no answer")
		lose := false
		f := newFrontend(t, func(o *Options) {
			o.Fetch = c.fetch
			o.Command = func(_ string, cmd cp.Command) cp.Reply {
				if lose && !landed {
					return cp.Reply{Err: timeout}
				}
				r := c.apply(cmd)
				if lose {
					return cp.Reply{Err: timeout}
				}
				return r
			}
		})
		if _, err := f.CreateTopic(testTopic, 8, topicID(1), 1); err != nil {
			t.Fatal(err)
		}
		lose = true
		before := f.hot()
		_, err := f.PlanBatch(testTopic, BatchInfo{Count: 1})
		wantErr(t, err, timeout)
		want(t, "state", f.hot(), before)
		lose = false
		want(t, "next", plan1(t, f).Segment, seg(root(), 0))
	}
}
