package server

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/ringfence/ringfence/cp"
	"github.com/ringfence/ringfence/engine/api"
	"github.com/ringfence/ringfence/engine/wire"
	"github.com/ringfence/ringfence/fence"
)

// fakeGroups is what the fake engine knows of groups with members: the ranges that any
// of them may read, and what they did.
type fakeGroups struct {
	unread  []uint32
	fenced  []uint64 // generations
	commits []cp.Position
	slow    chan struct{} // not nil: commits wait until it is closed
	err     error         // of commits
}

var fakeTopicID = fence.TopicID{7}

func fakeCursor(at ...uint64) string {
	pos := cp.Position{}
	for i := 0; i < len(at); i += 2 {
		pos[fence.RangeID{Topic: fakeTopicID, Seq: uint32(at[i])}] = at[i+1]
	}
	return api.EncodeCursor(fakeTopicID, pos, nil)
}

func (e *fakeEngine) Incarnation() uint64 { return 3 }

func (e *fakeEngine) Unread(topic, group string) (string, []uint32, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	_, err := e.topic(topic)
	return fakeTopicID.String(), slices.Clone(e.groups.unread), err
}

func (e *fakeEngine) FenceGroup(ctx context.Context, topic, group string, generation uint64) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	t, err := e.topic(topic)
	if err == nil {
		e.groups.fenced = append(e.groups.fenced, generation)
		t.groups[group] = "0"
	}
	return err
}

func (e *fakeEngine) OpenMember(topic, group string, ranges []uint32, cursor string) (Consumer, error) {
	return e.OpenConsumer(topic, group, api.FromStart())
}

func (e *fakeEngine) CommitRanges(ctx context.Context, topic, group, cursor string, generation uint64) error {
	if err := e.wait(ctx, func() chan struct{} { return e.groups.slow }); err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	pos, _, err := api.DecodeCursor(fakeTopicID, cursor)
	e.groups.commits = append(e.groups.commits, pos)
	return errors.Join(err, e.groups.err)
}

func (e *fakeEngine) Groups(ctx context.Context, topic string) ([]string, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	t, err := e.topic(topic)
	if err != nil {
		return nil, err
	}
	return slices.Sorted(maps.Keys(t.groups)), nil
}

func (e *fakeEngine) DescribeGroup(ctx context.Context, topic, group string) (g api.GroupInfo, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	t, err := e.topic(topic)
	if err != nil {
		return g, err
	}
	at, ok := t.groups[group]
	if !ok {
		return g, &api.TopicError{Topic: topic, Range: -1, Err: api.ErrNoSuchGroup}
	}
	g = api.GroupInfo{Name: group, Lag: 3, Cursor: at, Ranges: []api.GroupRange{{Range: 1, Offset: 2, End: 5, Lag: 3, Behind: -1}}}
	return g, fmt.Errorf("range 2: %w", api.ErrDamaged)
}

func (e *fakeEngine) DeleteGroup(ctx context.Context, topic, group string) error {
	if _, err := e.DescribeGroup(ctx, topic, group); !errors.Is(err, api.ErrDamaged) {
		return err
	}
	e.set(func() { delete(e.topics[topic].groups, group) })
	return nil
}

func (e *fakeEngine) CursorRanges(topic, cursor string) ([]api.GroupRange, error) {
	n, err := e.CursorLag(topic, cursor)
	return []api.GroupRange{{Range: 0, Lag: n, Behind: 1500 * time.Millisecond}}, err
}

func (e *fakeEngine) ForgetPolicy(ctx context.Context, name string) error {
	e.set(func() { delete(e.policies, name) })
	return nil
}

func (c *client) join(name string, instance uint64) *wire.Assignment {
	c.t.Helper()
	return want[*wire.Assignment](c, wire.KeyJoinGroup, &wire.JoinGroup{Topic: "t", Group: "g", Member: name, Instance: instance})
}

func (c *client) beat(name string, generation uint64) *wire.Assignment {
	c.t.Helper()
	return want[*wire.Assignment](c, wire.KeyHeartbeat, &wire.Heartbeat{Topic: "t", Group: "g", Member: name, Generation: generation})
}

func inGroupBubble(t *testing.T, test func(w *world, c *client)) {
	inBubble(t, Options{}, func(w *world) {
		c := w.connect()
		defer c.nc.Close()
		want[*wire.Done](c, wire.KeyCreateTopic, &wire.CreateTopic{Topic: "t"})
		w.engine.set(func() { w.engine.groups.unread = []uint32{1, 2} })
		test(w, c)
	})
}

// Two members on two connections share a topic's ranges, and a heartbeat that waits is
// answered when there is news.
func TestMembersShareRanges(t *testing.T) {
	inGroupBubble(t, func(w *world, c *client) {
		a := c.join("a", 1)
		if !slices.Equal(a.Ranges, []uint32{1, 2}) || a.Generation>>32 != 3 || a.SessionMs != 30000 {
			t.Fatalf("%+v", a)
		}
		if !slices.Equal(w.engine.groups.fenced, []uint64{3 << 32}) {
			t.Fatalf("fenced %v", w.engine.groups.fenced)
		}
		other := w.connect()
		defer other.nc.Close()
		waiting := c.send(wire.KeyHeartbeat, &wire.Heartbeat{Topic: "t", Group: "g", Member: "a", Generation: a.Generation, WaitMs: 10000})
		start := time.Now()
		b := other.join("b", 2)
		if len(b.Ranges) != 0 {
			t.Fatalf("%+v", b)
		}
		got := c.next()
		news, ok := got.msg.(*wire.Assignment)
		if got.ID != waiting || !ok || !slices.Equal(news.Ranges, []uint32{1}) || time.Since(start) != 0 {
			t.Fatalf("%+v after %v", got, time.Since(start))
		}
		c.beat("a", news.Generation)
		if b = other.beat("b", b.Generation); !slices.Equal(b.Ranges, []uint32{2}) {
			t.Fatalf("%+v", b)
		}
		// The waiting one hears of the other's end when its session is over.
		a = c.beat("a", news.Generation)
		for len(a.Ranges) < 2 {
			a = want[*wire.Assignment](c, wire.KeyHeartbeat, &wire.Heartbeat{Topic: "t", Group: "g", Member: "a", Generation: a.Generation, WaitMs: 10000})
		}
		if d := time.Since(start); d != 30*time.Second {
			t.Fatalf("b's range is a's after %v", d)
		}
		want[*wire.Done](c, wire.KeyLeaveGroup, &wire.LeaveGroup{Topic: "t", Group: "g", Member: "a", Generation: a.Generation})
		c.refused(wire.CodeUnknownMember, wire.KeyHeartbeat, &wire.Heartbeat{Topic: "t", Group: "g", Member: "a", Generation: a.Generation})
		if len(w.engine.groups.fenced) != 1 || len(w.server.groups.co.groups) != 0 {
			t.Fatalf("fenced %v, groups %v", w.engine.groups.fenced, w.server.groups.co.groups)
		}
	})
}

// L04: a commit keeps its range with the member until it is stored, and one for a range
// that was passed on is refused.
func TestL04_MembersCommit(t *testing.T) {
	inGroupBubble(t, func(w *world, c *client) {
		a := c.join("a", 1)
		commit := func(name string, generation uint64, cursor string) *wire.Commit {
			return &wire.Commit{Topic: "t", Group: "g", Member: name, Generation: generation, Cursor: cursor}
		}
		want[*wire.Done](c, wire.KeyCommit, commit("a", a.Generation, fakeCursor(1, 5, 2, 6)))
		if len(w.engine.groups.commits) != 1 || len(w.engine.groups.commits[0]) != 2 {
			t.Fatalf("%v", w.engine.groups.commits)
		}
		c.refused(wire.CodeInvalidCursor, wire.KeyCommit, commit("a", a.Generation, "x"))
		c.refused(wire.CodeStaleGeneration, wire.KeyCommit, commit("a", a.Generation, fakeCursor(3, 5)))
		c.refused(wire.CodeUnknownMember, wire.KeyCommit, commit("b", a.Generation, fakeCursor(1, 5)))
		c.refused(wire.CodeInvalidArgument, wire.KeyCommit, &wire.Commit{Topic: "t", Group: "g", Member: "a", Generation: a.Generation, Cursor: fakeCursor(1, 5), Reset: true})
		c.refused(wire.CodeGroupInUse, wire.KeyCommit, &wire.Commit{Topic: "t", Group: "g", Cursor: "0"})
		c.refused(wire.CodeGroupInUse, wire.KeyDeleteGroup, &wire.Group{Topic: "t", Group: "g"})

		disk := make(chan struct{})
		w.engine.set(func() { w.engine.groups.slow = disk })
		other := w.connect()
		defer other.nc.Close()
		late := other.send(wire.KeyCommit, commit("a", a.Generation, fakeCursor(2, 9)))
		time.Sleep(time.Millisecond) // fake time: the commit is on its way
		b := c.join("b", 2)
		a = c.beat("a", c.beat("a", a.Generation).Generation)
		if b = c.beat("b", b.Generation); len(b.Ranges) != 0 {
			t.Fatalf("range %v is b's while a's commit of it is on its way", b.Ranges)
		}
		w.engine.set(func() { w.engine.groups.slow = nil })
		close(disk)
		if got := other.next(); got.ID != late || got.err != nil {
			t.Fatalf("%+v", got)
		}
		if b = c.beat("b", b.Generation); !slices.Equal(b.Ranges, []uint32{2}) {
			t.Fatalf("%+v", b)
		}
		a = c.beat("a", a.Generation)
		c.refused(wire.CodeStaleGeneration, wire.KeyCommit, commit("a", a.Generation, fakeCursor(2, 9)))
		open := &wire.OpenConsumer{Topic: "t", Group: "g", Member: "a", Generation: a.Generation, Ranges: []uint32{1}}
		want[*wire.OpenConsumerReply](c, wire.KeyOpenConsumer, open)
		open.Ranges = []uint32{1, 2}
		c.refused(wire.CodeStaleGeneration, wire.KeyOpenConsumer, open)
		open.Ranges = nil
		c.refused(wire.CodeInvalidArgument, wire.KeyOpenConsumer, open)
		// What the engine refuses leaves the range with its member.
		w.engine.set(func() { w.engine.groups.err = api.ErrCursorPastEnd })
		c.refused(wire.CodeCursorPastEnd, wire.KeyCommit, commit("a", a.Generation, fakeCursor(1, 99)))
		w.engine.set(func() { w.engine.groups.err = nil })
		want[*wire.Done](c, wire.KeyCommit, commit("a", a.Generation, fakeCursor(1, 9)))
	})
}

// L01: ranges that a split made are shared out when their parent's end is committed.
func TestL01_SplitReachesTheMembers(t *testing.T) {
	inGroupBubble(t, func(w *world, c *client) {
		a := c.join("a", 1)
		w.engine.set(func() { w.engine.groups.unread = []uint32{2, 3, 4} })
		want[*wire.Done](c, wire.KeyCommit, &wire.Commit{Topic: "t", Group: "g", Member: "a", Generation: a.Generation, Cursor: fakeCursor(1, 9)})
		// Told again, because the answer was lost: the range is a's until it adopts that.
		want[*wire.Done](c, wire.KeyCommit, &wire.Commit{Topic: "t", Group: "g", Member: "a", Generation: a.Generation, Cursor: fakeCursor(1, 9)})
		if a = c.beat("a", a.Generation); !slices.Equal(a.Ranges, []uint32{2, 3, 4}) {
			t.Fatalf("%+v", a)
		}
	})
}

func TestGroupsAreToldOf(t *testing.T) {
	inGroupBubble(t, func(w *world, c *client) {
		c.refused(wire.CodeNoSuchTopic, wire.KeyJoinGroup, &wire.JoinGroup{Topic: "no", Group: "g", Member: "a"})
		c.refused(wire.CodeInvalidGroup, wire.KeyJoinGroup, &wire.JoinGroup{Topic: "t", Group: "g"})
		c.refused(wire.CodeNoSuchGroup, wire.KeyDescribeGroup, &wire.DescribeGroup{Topic: "t", Group: "h"})
		a := c.join("a", 1)
		if got := want[*wire.ListGroupsReply](c, wire.KeyListGroups, &wire.ListGroups{Topic: "t"}); !slices.Equal(got.Groups, []string{"g"}) {
			t.Fatalf("%+v", got)
		}
		g := want[*wire.DescribeGroupReply](c, wire.KeyDescribeGroup, &wire.DescribeGroup{Topic: "t", Group: "g"})
		m := want[*wire.ListMembersReply](c, wire.KeyListMembers, &wire.ListMembers{Topic: "t", Group: "g"})
		if m.Generation != a.Generation || !slices.Equal(m.Members, []string{"a"}) || m.More {
			t.Fatalf("%+v", m)
		}
		if g.Lag != 3 || g.Cursor != "0" || g.Damage == "" ||
			len(g.Ranges) != 1 || *g.Ranges[0] != (wire.GroupRange{Range: 1, Offset: 2, End: 5, Lag: 3, LagMs: -1, Member: "a"}) {
			t.Fatalf("%+v", g)
		}
		time.Sleep(30 * time.Second) // fake time: a was killed
		want[*wire.Done](c, wire.KeyDeleteGroup, &wire.Group{Topic: "t", Group: "g"})
		c.refused(wire.CodeNoSuchGroup, wire.KeyDeleteGroup, &wire.Group{Topic: "t", Group: "g"})
		r := want[*wire.LagReply](c, wire.KeyLag, &wire.Lag{Consumer: c.consumer("t"), Ranges: true})
		if len(r.Ranges) != 1 || r.Ranges[0].LagMs != 1500 {
			t.Fatalf("%+v", r)
		}
		want[*wire.Done](c, wire.KeySetPolicy, &wire.SetPolicy{Policy: &wire.Policy{Name: "p"}})
		want[*wire.Done](c, wire.KeyDeletePolicy, &wire.DeletePolicy{Name: "p", Force: true})
		// Members of a topic that is gone are told.
		a = c.join("a", 1)
		want[*wire.Done](c, wire.KeyDeleteTopic, &wire.Topic{Topic: "t"})
		c.refused(wire.CodeNoSuchTopic, wire.KeyHeartbeat, &wire.Heartbeat{Topic: "t", Group: "g", Member: "a", Generation: a.Generation})
	})
}
