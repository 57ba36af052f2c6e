package engine

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/ringfence/ringfence/cp"
	"github.com/ringfence/ringfence/engine/server"
)

// What there is very much of comes to a client whole and as the engine has it, over as
// many pages as it takes.
func TestClientListsPages(t *testing.T) {
	e := open(t, t.TempDir(), Options{})
	c := dial(t, serve(t, e))
	ctx := within(t)
	const many = 2500
	long := func(n int) string { return fmt.Sprintf("%05d", n) + strings.Repeat("x", cp.MaxName-5) }
	newTopic(t, e, "t")
	firstUser(t, e)
	var all sync.WaitGroup
	for part := range 50 {
		all.Go(func() {
			for n := part; n < many && !t.Failed(); n += 50 {
				errs := []error{
					e.CreateTopic(ctx, long(n), TopicOptions{}),
					e.PutUser(ctx, long(n), "", UserOptions{}),
					e.SetPolicy(ctx, long(n), Policy{MaxAge: Limit(int64(n))}),
					e.command("t", cp.FenceGroup{Group: long(n), Topic: "t"}).Err,
				}
				for _, err := range errs {
					if err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	all.Wait()
	var want []string
	for n := range many {
		want = append(want, long(n))
	}

	topics, err := c.Topics(ctx)
	must(t, err)
	linked, err := e.Topics(ctx)
	must(t, err)
	if len(topics) != many+1 || !reflect.DeepEqual(topics, linked) {
		t.Errorf("%d topics, the engine lists %d, want %d", len(topics), len(linked), many+1)
	}
	groups, err := c.Groups(ctx, "t")
	must(t, err)
	if !slices.Equal(groups, want) {
		t.Errorf("%d groups, want %d", len(groups), len(want))
	}
	policies, err := c.Policies(ctx)
	must(t, err)
	if len(policies) != many || policies[long(77)] != (Policy{MaxAge: Limit(77)}) {
		t.Errorf("%d policies, want %d", len(policies), many)
	}
	users, err := c.Users(ctx)
	must(t, err)
	if len(users) != many+1 || users[many-1].Name != long(many-1) {
		t.Errorf("%d users, want %d", len(users), many+1)
	}
	d, err := c.Describe(ctx, "t")
	must(t, err)
	if !slices.Equal(d.Groups, want) {
		t.Errorf("a topic with %d groups, want %d", len(d.Groups), len(want))
	}
	seen := 0
	for range c.AllTopics(ctx) { // one who has seen enough stops
		if seen++; seen == 1500 {
			break
		}
	}
	for _, err := range c.AllGroups(ctx, "none") {
		if seen++; err == nil {
			t.Error("groups of a topic that is not there")
		}
	}
	if seen != 1501 {
		t.Errorf("saw %d, want 1501", seen)
	}
}

// A topic of many segments and ranges, and a group with a place in all of them, are told
// as the engine tells them, damage and all.
func TestClientDescribesPages(t *testing.T) {
	e := open(t, t.TempDir(), Options{})
	c := dial(t, serve(t, e))
	ctx := within(t)
	must(t, e.CreateTopic(ctx, "t", TopicOptions{Bits: 12}))
	for leaves := []uint32{0}; len(leaves) < 1<<10; {
		next := make([]uint32, 2*len(leaves))
		var all sync.WaitGroup
		for i, seq := range leaves {
			all.Go(func() {
				var err error
				if next[2*i], next[2*i+1], err = e.SplitRange(ctx, "t", seq); err != nil {
					t.Error(err)
				}
			})
		}
		if all.Wait(); t.Failed() {
			return
		}
		leaves = next
	}
	reader, err := e.NewConsumer(ConsumerOptions{Topic: "t", Group: "g", From: FromEnd()})
	must(t, err)
	must(t, reader.Commit(ctx))
	must(t, reader.Close())
	p := newProducer(t, e, ProducerOptions{Topic: "t"})
	for i := range 3000 {
		_, err := p.Produce(ctx, Record{Key: text("%d", i), Value: []byte("v")})
		must(t, err)
	}
	got, err := c.Describe(ctx, "t")
	must(t, err)
	want, err := e.Describe(ctx, "t")
	must(t, err)
	if got.Segments < 800 || len(got.AllRanges) != 1<<11-1 || !reflect.DeepEqual(clean(got), clean(want)) {
		t.Errorf("%d ranges with %d segments, the engine tells %d with %d", len(got.AllRanges), got.Segments, len(want.AllRanges), want.Segments)
	}
	g, err := c.DescribeGroup(ctx, "t", "g")
	must(t, err)
	linked, err := e.DescribeGroup(ctx, "t", "g")
	must(t, err)
	forget := func(g GroupInfo) GroupInfo {
		for i := range g.Ranges {
			g.Ranges[i].Behind = 0 // it grows
		}
		return g
	}
	if g.Lag != 3000 || len(g.Ranges) != 1<<10 || !reflect.DeepEqual(forget(g), forget(linked)) {
		t.Errorf("lag %d in %d ranges, the engine tells %d in %d", g.Lag, len(g.Ranges), linked.Lag, len(linked.Ranges))
	}
	far, err := c.NewConsumer(ConsumerOptions{Topic: "t"})
	must(t, err)
	defer far.Close()
	near, err := e.NewConsumer(ConsumerOptions{Topic: "t"})
	must(t, err)
	defer near.Close()
	a, err := far.Ranges()
	must(t, err)
	b, err := near.Ranges()
	must(t, err)
	if len(a) < 1<<11-1 || !reflect.DeepEqual(forget(GroupInfo{Ranges: a}), forget(GroupInfo{Ranges: b})) {
		t.Errorf("a consumer has %d ranges before it, the engine tells %d", len(a), len(b))
	}
}

// The parts of a topic are the topic: none but the last, which has the totals, tells of more
// than was asked for, and a range says where it is also where its open segment comes later.
func TestDescribeFrom(t *testing.T) {
	e := open(t, t.TempDir(), Options{})
	b := e.Backend()
	ctx := within(t)
	newTopic(t, e, "t")
	p := newProducer(t, e, ProducerOptions{Topic: "t"})
	store := func(rolls int) {
		for i := range rolls {
			for k := range 8 {
				_, err := p.Produce(ctx, Record{Key: text("%d", k), Value: text("%d", i)})
				must(t, err)
			}
			_, err := e.Roll(ctx, "t")
			must(t, err)
		}
	}
	store(5)
	l, r, err := e.SplitRange(ctx, "t", 0)
	must(t, err)
	store(3)
	_, err = e.MergeRanges(ctx, "t", l, r)
	must(t, err)
	store(6)
	must(t, p.Flush(ctx))
	_, err = p.Produce(ctx, Record{Key: []byte("k"), Value: []byte("open")})
	must(t, err)
	want, err := e.Describe(ctx, "t")
	must(t, err)
	want.Groups = nil
	for _, limit := range []int{2, 3, 5, 1000} {
		var got TopicDetail
		parts := 0
		for at := (server.TopicPlace{}); ; parts++ {
			d, next, err := b.DescribeFrom(ctx, "t", at, limit)
			must(t, err)
			n := 0
			for _, r := range d.AllRanges {
				if r.Seq < at.Range {
					continue
				}
				r.Segments = slices.DeleteFunc(r.Segments, func(s SegmentInfo) bool { return r.Seq == at.Range && s.Seq < at.Segment })
				n += 1 + len(r.Segments)
				if last := len(got.AllRanges) - 1; last >= 0 && got.AllRanges[last].Seq == r.Seq {
					if r.NextOffset != got.AllRanges[last].NextOffset {
						t.Errorf("range %d is at %d and at %d", r.Seq, got.AllRanges[last].NextOffset, r.NextOffset)
					}
					got.AllRanges[last].Segments = append(got.AllRanges[last].Segments, r.Segments...)
				} else {
					got.AllRanges = append(got.AllRanges, r)
				}
			}
			got.TopicInfo = d.TopicInfo
			if n > limit || d.Groups != nil || next != nil && (n == 0 || d.ID != want.ID || d.Records != 0) {
				t.Fatalf("limit %d: %d ranges and segments from %+v on, then %+v: %+v", limit, n, at, next, d.TopicInfo)
			}
			if next == nil {
				break
			}
			at = *next
		}
		if !reflect.DeepEqual(clean(got), clean(want)) || parts < 10/limit {
			t.Errorf("limit %d: in %d parts it is %+v, want %+v", limit, parts, got, want)
		}
	}
	if _, _, err := b.DescribeFrom(ctx, "none", server.TopicPlace{}, 5); !errors.Is(err, ErrNoSuchTopic) {
		t.Errorf("a topic that is not there: %v", err)
	}
}

// clean makes what is empty the same whichever way it came.
func clean(d TopicDetail) TopicDetail {
	for i := range d.AllRanges {
		r := &d.AllRanges[i]
		r.Parents = append([]uint32{}, r.Parents...)
		r.Segments = append([]SegmentInfo{}, r.Segments...)
	}
	d.Groups = append([]string{}, d.Groups...)
	return d
}
