package engine

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/ringfence/ringfence/cp"
)

// change splits a range or merges two, so that there are never many.
func change(t *testing.T, e *Engine, rng *rand.Rand, topic string) {
	t.Helper()
	var active []*cp.Range
	must(t, e.lookAt(topic, func(s *cp.State, _ *cp.Topic) { active = slices.Clone(s.ActiveRanges(topic)) }))
	rng.Shuffle(len(active), func(i, j int) { active[i], active[j] = active[j], active[i] })
	if len(active) > 1 && rng.IntN(6) < len(active) {
		for i, a := range active {
			for _, b := range active[:i] {
				if a.Start == b.Start^(b.End-b.Start) && a.End-a.Start == b.End-b.Start {
					_, err := e.MergeRanges(within(t), topic, a.ID.Seq, b.ID.Seq)
					must(t, err)
					return
				}
			}
		}
	}
	_, _, err := e.SplitRange(within(t), topic, active[0].ID.Seq)
	must(t, err)
}

// A topic that was split and merged hundreds of times is read from its start like any
// other: by one consumer, by a group whose consumers end after each page, and along cursors
// that are opened anew for each; also after a restart. Every record comes once, those of a
// key in order, and no place on the way has more in it than what is being read.
func TestHistoryOfManyChanges(t *testing.T) {
	dir := t.TempDir()
	e := open(t, dir, Options{})
	newTopic(t, e, "t")
	const keys = 6
	changes, stored := rounds(600), 0
	rng := rand.New(rand.NewPCG(8, 9))
	ctx := within(t)
	p := newProducer(t, e, ProducerOptions{Topic: "t"})
	for i := range changes {
		change(t, e, rng, "t")
		if i%2 == 0 {
			continue // ranges without a record are history too
		}
		_, err := p.Produce(ctx, Record{Key: text("%d", stored%keys), Value: text("%d", stored/keys)})
		must(t, err)
		stored++
	}
	must(t, p.Close(ctx))
	var ranges uint32
	must(t, e.lookAt("t", func(_ *cp.State, topic *cp.Topic) { ranges = topic.NextRangeSeq }))
	if int(ranges) < changes {
		t.Fatalf("%d ranges after %d changes", ranges, changes)
	}
	t.Logf("%d ranges, %d records", ranges, stored)

	longest := 0
	read := func(what string, next func(c *Consumer) ConsumerOptions) {
		t.Helper()
		want, total := map[string]int{}, 0
		o := ConsumerOptions{Topic: "t", From: FromStart()}
		if next != nil {
			o = next(nil)
		}
		for c, lives := newConsumer(t, e, o), 0; ; lives++ {
			page, err := c.Fetch(7)
			must(t, err)
			longest = max(longest, len(c.pos))
			for _, r := range page.Records {
				key := string(r.Key)
				if string(r.Value) != fmt.Sprint(want[key]) {
					t.Fatalf("%s: key %s has value %s after %d of them", what, key, r.Value, want[key])
				}
				want[key]++
				total++
			}
			if len(page.Skips) > 0 {
				t.Fatalf("%s: skipped %v", what, page.Skips)
			}
			if page.CaughtUp {
				must(t, c.Close())
				if total != stored {
					t.Fatalf("%s: %d records of %d", what, total, stored)
				}
				return
			}
			if next != nil {
				o := next(c)
				must(t, c.Close())
				c = newConsumer(t, e, o)
			}
		}
	}
	all := func(group string) {
		t.Helper()
		read("one consumer", nil)
		read("a group", func(c *Consumer) ConsumerOptions {
			if c != nil {
				must(t, c.Commit(ctx))
			}
			return ConsumerOptions{Topic: "t", Group: group}
		})
		read("cursors", func(c *Consumer) ConsumerOptions {
			if c == nil {
				return ConsumerOptions{Topic: "t", From: FromStart()}
			}
			return ConsumerOptions{Topic: "t", From: FromCursor(c.Cursor())}
		})
	}
	all("before")
	shut(t, e)
	e = open(t, dir, Options{})
	all("after")
	t.Logf("at most %d sources in a place", longest)
	if longest > 64 {
		t.Errorf("a place had %d sources", longest)
	}
}
