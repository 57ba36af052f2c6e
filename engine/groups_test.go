package engine

import (
	"slices"
	"testing"
	"time"

	"github.com/ringfence/ringfence/segfile"
)

// group describes a group that exists.
func group(t testing.TB, e *Engine, name string) GroupInfo {
	t.Helper()
	g, err := e.DescribeGroup(within(t), "t", name)
	must(t, err)
	return g
}

// A group's place and its lag in records and in time, over a split, retention and a
// reset; and no group where there is none.
func TestDescribeGroup(t *testing.T) {
	now := newClock()
	e := open(t, t.TempDir(), Options{now: now.Now, Retention: Policy{MaxAge: Limit(3600_000)}})
	newTopic(t, e, "t")
	p := newProducer(t, e, ProducerOptions{Topic: "t"})
	produce(t, p, "k", "0", "1")
	now.Add(time.Minute)
	produce(t, p, "k", "2", "3")
	_, err := e.DescribeGroup(within(t), "t", "g")
	is(t, err, ErrNoSuchGroup, `"t"`, `"g"`)
	is(t, e.DeleteGroup(within(t), "t", "g"), ErrNoSuchGroup, `"g"`)
	_, err = e.DescribeGroup(within(t), "none", "g")
	is(t, err, ErrNoSuchTopic, `"none"`)

	c := newConsumer(t, e, ConsumerOptions{Topic: "t", Group: "g"})
	for range 3 {
		_, err := c.Fetch(1)
		must(t, err)
	}
	must(t, c.Commit(within(t)))
	now.Add(time.Second)
	names, err := e.Groups(within(t), "t")
	must(t, err)
	if !slices.Equal(names, []string{"g"}) {
		t.Errorf("groups %q", names)
	}
	want := GroupInfo{Name: "g", Lag: 1, Ranges: []GroupRange{{Range: 0, Offset: 3, End: 4, Lag: 1, Behind: time.Second}}}
	same := func(what string) {
		t.Helper()
		if g := group(t, e, "g"); g.Name != want.Name || g.Lag != want.Lag || !slices.Equal(g.Ranges, want.Ranges) {
			t.Errorf("%s: %+v, want %+v", what, g, want)
		}
	}
	same("one record behind")
	if got, _ := skipped(t, e, ConsumerOptions{Topic: "t", From: FromCursor(group(t, e, "g").Cursor)}); !slices.Equal(got, []string{"3"}) {
		t.Errorf("from the group's cursor: %q", got)
	}

	// The halves come after the range that they were: the group has read nothing there.
	a, b, err := e.SplitRange(within(t), "t", 0)
	must(t, err)
	produce(t, p, "k", "4")
	now.Add(time.Second)
	want.Ranges[0].Behind, want.Lag = 2*time.Second, 2
	want.Ranges = append(want.Ranges, GroupRange{Range: a}, GroupRange{Range: b})
	at := 1
	if d, err := e.Describe(within(t), "t"); err != nil || d.AllRanges[2].NextOffset == 1 {
		at = 2
	}
	want.Ranges[at].End, want.Ranges[at].Lag, want.Ranges[at].Behind = 1, 1, time.Second
	same("after a split")

	// At the end nothing is behind; the range that was split is finished.
	end := newConsumer(t, e, ConsumerOptions{Topic: "t", Group: "g", From: FromEnd()})
	must(t, end.Reset(within(t)))
	want.Ranges, want.Lag = want.Ranges[1:], 0
	want.Ranges[at-1] = GroupRange{Range: uint32(at), Offset: 1, End: 1}
	same("at the end")

	// Back to the start, and what is there has expired but for the last record.
	start := newConsumer(t, e, ConsumerOptions{Topic: "t", Group: "g", From: FromStart()})
	must(t, start.Reset(within(t)))
	if g := group(t, e, "g"); g.Lag != 5 || g.Ranges[0].Offset != 0 || g.Ranges[0].Behind != time.Minute+2*time.Second {
		t.Errorf("at the start: %+v", g)
	}
	now.Add(2 * time.Hour)
	if r := retain(t, e); r.Expired == 0 {
		t.Fatalf("nothing expired: %+v", r)
	}
	if g := group(t, e, "g"); g.Lag != 1 || g.Ranges[0] != (GroupRange{Range: 0, End: 4}) {
		t.Errorf("what has expired counts: %+v", g)
	}

	must(t, e.DeleteGroup(within(t), "t", "g"))
	is(t, e.DeleteGroup(within(t), "t", "g"), ErrNoSuchGroup)
	if got, _ := skipped(t, e, ConsumerOptions{Topic: "t", Group: "g"}); len(got) != 1 {
		t.Errorf("a group that was deleted reads %q, want what there is", got)
	}
}

// How long a group is behind is unknown, and said to be, where the next record cannot
// be read; the rest is told.
func TestDescribeGroupBeforeDamage(t *testing.T) {
	dir := t.TempDir()
	e := open(t, dir, Options{})
	newTopic(t, e, "t")
	c := newConsumer(t, e, ConsumerOptions{Topic: "t", Group: "g"})
	must(t, c.Commit(within(t)))
	p := newProducer(t, e, ProducerOptions{Topic: "t"})
	produce(t, p, "k", "v0", "v1")
	file := segmentFiles(t, e, "t")[0]
	must(t, c.Close())
	shut(t, e)
	flip(t, file, 0, segfile.DataStart+4096)
	e = open(t, dir, Options{})
	g := group(t, e, "g")
	if want := (GroupRange{Range: 0, End: 2, Lag: 2, Behind: -1}); g.Lag != 2 || !slices.Equal(g.Ranges, []GroupRange{want}) {
		t.Errorf("%+v, want %+v", g, want)
	}
}
