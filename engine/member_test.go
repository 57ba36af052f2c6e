package engine

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/ringfence/ringfence/cp"
	"github.com/ringfence/ringfence/engine/api"
	"github.com/ringfence/ringfence/engine/server"
)

// drainShare reads a member's ranges until it has caught up, and says which came to
// their ends.
func drainShare(t *testing.T, c server.Consumer) (records int, finished []uint32, skips []Skip) {
	t.Helper()
	for {
		p, err := c.FetchFrames(1, false)
		must(t, err)
		for _, f := range p.Frames {
			if len(f) > 0 {
				records += int(p.Next - p.First)
			}
		}
		finished, skips = append(finished, p.Finished...), append(skips, p.Skips...)
		if p.CaughtUp {
			return records, finished, skips
		}
	}
}

func toRead(t *testing.T, b server.Engine) []uint32 {
	t.Helper()
	_, list, err := b.Unread("t", "g")
	must(t, err)
	return list
}

// L01: a member reads its range to the end and no further; its children are to be read
// once that end is committed, of a merge those of both halves.
func TestL01_MemberStopsAtTheEndOfItsRange(t *testing.T) {
	e := open(t, t.TempDir(), Options{})
	b := e.Backend()
	newTopic(t, e, "t")
	p := newProducer(t, e, ProducerOptions{Topic: "t"})
	fill := func() {
		for i := range 20 {
			produce(t, p, fmt.Sprint("key-", i), "v")
		}
	}
	commit := func(c server.Consumer) {
		t.Helper()
		must(t, b.CommitRanges(within(t), "t", "g", c.Cursor(), 1<<32))
	}
	member := func(cursor string, ranges ...uint32) server.Consumer {
		t.Helper()
		c, err := b.OpenMember("t", "g", ranges, cursor)
		must(t, err)
		t.Cleanup(func() { c.Close() })
		return c
	}
	fill()
	is(t, b.FenceGroup(within(t), "t", "\u009b2J", 1<<32), ErrInvalidGroup)
	must(t, b.FenceGroup(within(t), "t", "g", 1<<32))
	root := member("", 0)
	if n, finished, _ := drainShare(t, root); n != 20 || finished != nil {
		t.Fatalf("%d records, finished %v", n, finished)
	}
	left, right, err := e.SplitRange(within(t), "t", 0)
	must(t, err)
	fill()
	if n, finished, _ := drainShare(t, root); n != 0 || !slices.Equal(finished, []uint32{0}) {
		t.Fatalf("behind a split: %d records, finished %v", n, finished)
	}
	if got := toRead(t, b); !slices.Equal(got, []uint32{0}) {
		t.Fatalf("before the commit: unread are %v", got)
	}
	_, err = b.OpenMember("t", "g", []uint32{left}, "")
	is(t, err, errTooEarly)
	commit(root)
	if got := toRead(t, b); !slices.Equal(got, []uint32{left, right}) {
		t.Fatalf("unread are %v", got)
	}
	l, r := member("", left), member("", 0, right) // the root is finished, whoever has it
	nl, _, _ := drainShare(t, l)
	nr, finished, _ := drainShare(t, r)
	if nl+nr != 20 || nl == 0 || nr == 0 || !slices.Equal(finished, []uint32{0}) {
		t.Fatalf("%d and %d records, finished %v", nl, nr, finished)
	}
	merged, err := e.MergeRanges(within(t), "t", left, right)
	must(t, err)
	fill()
	commit(l)
	if got := toRead(t, b); !slices.Equal(got, []uint32{right}) {
		t.Fatalf("one half is committed: unread are %v", got)
	}
	// What is read and not committed is kept by the cursor.
	again := member(r.Cursor(), right)
	if n, finished, _ := drainShare(t, again); n != 0 || !slices.Equal(finished, []uint32{right}) {
		t.Fatalf("%d records, finished %v", n, finished)
	}
	commit(again)
	if got := toRead(t, b); !slices.Equal(got, []uint32{merged}) {
		t.Fatalf("both are: unread are %v", got)
	}
	if n, _, _ := drainShare(t, member("", merged)); n != 20 {
		t.Fatalf("%d records behind the merge", n)
	}
	// L04: commits that are late, repeated, or of a server before this one.
	commit(root)
	commit(l)
	if got := toRead(t, b); !slices.Equal(got, []uint32{merged}) {
		t.Fatalf("unread are %v", got)
	}
	is(t, b.CommitRanges(within(t), "t", "g", l.Cursor(), 1<<31), cp.ErrStaleGeneration)
	_, err = e.NewConsumer(ConsumerOptions{Topic: "t", Group: "g", Member: "m"})
	if err == nil {
		t.Error("a linked consumer is a member")
	}
}

// L03: a parent that retention has taken is told of as a skip, its end can be committed,
// and then its children are read from their start.
func TestL03_MemberOfAnExpiredParent(t *testing.T) {
	now := newClock()
	e := open(t, t.TempDir(), Options{now: now.Now})
	b := e.Backend()
	bound(t, e, Policy{MaxAge: Limit(0)})
	p := newProducer(t, e, ProducerOptions{Topic: "t"})
	produce(t, p, "k", "0", "1", "2")
	_, _, err := e.SplitRange(within(t), "t", 0)
	must(t, err)
	now.Add(time.Second)
	retain(t, e)
	produce(t, p, "k", "3")
	c, err := b.OpenMember("t", "g", []uint32{0}, "")
	must(t, err)
	defer c.Close()
	n, finished, skips := drainShare(t, c)
	if n != 0 || !slices.Equal(finished, []uint32{0}) || len(skips) != 1 || skips[0] != (Skip{Range: 0, Offsets: 3}) {
		t.Fatalf("%d records, finished %v, skips %+v", n, finished, skips)
	}
	must(t, b.CommitRanges(within(t), "t", "g", c.Cursor(), 0))
	list := toRead(t, b)
	if !slices.Equal(list, []uint32{1, 2}) {
		t.Fatalf("unread are %v", list)
	}
	next, err := b.OpenMember("t", "g", list, "")
	must(t, err)
	defer next.Close()
	if n, _, skips := drainShare(t, next); n != 1 || skips != nil {
		t.Fatalf("%d records, skips %+v", n, skips)
	}
}

// L12: a stretch whose loss was accepted is told of as a skip, commits pass it, and the
// group stays behind it over a restart.
func TestL12_MemberPassesALostStretch(t *testing.T) {
	e, dir, _ := withoutFile(t, Options{}, 1)
	_, err := e.AcceptLoss(within(t), "t", 0, 1)
	must(t, err)
	_, _, err = e.SplitRange(within(t), "t", 0)
	must(t, err)
	b := e.Backend()
	c, err := b.OpenMember("t", "g", []uint32{0}, "")
	must(t, err)
	n, finished, skips := drainShare(t, c)
	if n != 2 || !slices.Equal(finished, []uint32{0}) || !slices.Equal(skips, []Skip{{Range: 0, From: 1, Offsets: 1, Damaged: true}}) {
		t.Fatalf("%d records, finished %v, skips %+v", n, finished, skips)
	}
	must(t, b.CommitRanges(within(t), "t", "g", c.Cursor(), 0))
	must(t, c.Close())
	shut(t, e)
	e = open(t, dir, Options{})
	if list := toRead(t, e.Backend()); !slices.Equal(list, []uint32{1, 2}) {
		t.Errorf("unread are %v", list)
	}
	if g := group(t, e, "g"); g.Lag != 0 {
		t.Errorf("%+v", g)
	}
}

// L10: a member's commit of what the topic does not have is refused, and nothing moves.
func TestL10_MemberCommitsWhatIsNotThere(t *testing.T) {
	e := open(t, t.TempDir(), Options{})
	b := e.Backend()
	newTopic(t, e, "t")
	newTopic(t, e, "other")
	produce(t, newProducer(t, e, ProducerOptions{Topic: "t"}), "k", "0", "1")
	c, err := b.OpenMember("t", "g", []uint32{0}, "")
	must(t, err)
	defer c.Close()
	drainShare(t, c)
	topic, err := api.TopicOfCursor(c.Cursor())
	must(t, err)
	pos, marks, err := api.DecodeCursor(topic, c.Cursor())
	must(t, err)
	for id := range pos {
		for _, tt := range []struct {
			offset uint64
			mark   uint32
			want   error
		}{{3, marks[id], ErrCursorPastEnd}, {2, marks[id] + 1, ErrCursorOfOther}} {
			cursor := api.EncodeCursor(topic, cp.Position{id: tt.offset}, api.Marks{id: tt.mark})
			is(t, b.CommitRanges(within(t), "t", "g", cursor, 0), tt.want)
			_, err = b.OpenMember("t", "g", []uint32{0}, cursor)
			is(t, err, tt.want)
		}
	}
	is(t, b.CommitRanges(within(t), "other", "g", c.Cursor(), 0), ErrForeignCursor)
	_, err = e.DescribeGroup(within(t), "t", "g")
	is(t, err, ErrNoSuchGroup)
	must(t, b.CommitRanges(within(t), "t", "g", c.Cursor(), 0))
	if g := group(t, e, "g"); g.Lag != 0 {
		t.Errorf("%+v", g)
	}
}
