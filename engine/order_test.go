package engine

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ringfence/ringfence/cp"
	"github.com/ringfence/ringfence/fence"
)

// L01: keys are written without pause while ranges are split, split again, merged
// and rolled, and consumers of a group come and go in the middle. Each key's values
// arrive in order, none is missing, and none comes twice but after a consumer that
// ended without a commit.
func TestOrderOverSplitsAndMerges(t *testing.T) {
	e := open(t, t.TempDir(), Options{SegmentBytes: 1 << 20})
	newTopic(t, e, "t")
	ctx := within(t)
	const keys, writers = 8, 3
	each := 400 * rounds(1)
	var load sync.WaitGroup
	var running atomic.Int64
	for w := range writers {
		p := newProducer(t, e, ProducerOptions{Topic: "t", BatchBytes: 16 << 10})
		running.Add(1)
		load.Go(func() {
			defer running.Add(-1)
			for i := range each {
				r := Record{Key: text("%d-%d", w, i%keys), Value: text("%d", i)}
				if i%50 == 0 {
					if _, err := p.Produce(ctx, r); err != nil {
						t.Error(err)
						return
					}
					time.Sleep(time.Millisecond)
					continue
				}
				if err := p.Append(ctx, r, func(_ Placement, err error) {
					if err != nil {
						t.Error(err)
					}
				}); err != nil {
					t.Error(err)
					return
				}
			}
			if err := p.Flush(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	var changes sync.WaitGroup
	changes.Go(func() {
		rng := rand.New(rand.NewPCG(5, uint64(time.Now().UnixNano())))
		for running.Load() > 0 {
			if err := shake(ctx, e, rng, "t"); err != nil {
				t.Error(err)
				return
			}
			time.Sleep(2 * time.Millisecond)
		}
	})
	next := map[string]int{}      // of each key, by what the group was given
	committed := map[string]int{} // by what it committed
	rng := rand.New(rand.NewPCG(6, 7))
	total, lives := 0, 0
	soon(t, "the group reads everything", func() {
		for done := false; !done; lives++ {
			c, err := e.NewConsumer(ConsumerOptions{Topic: "t", Group: "g"})
			must(t, err)
			for range 1 + rng.IntN(20) {
				last := running.Load() == 0
				page, err := c.Fetch(1 + rng.IntN(50))
				must(t, err)
				for _, r := range page.Records {
					k := string(r.Key)
					var w, slot, i int
					fmt.Sscanf(k, "%d-%d", &w, &slot)
					fmt.Sscan(string(r.Value), &i)
					want := next[k]*keys + slot
					if i != want {
						t.Fatalf("key %s: got %d where %d was due", k, i, want)
					}
					next[k]++
				}
				if len(page.Skips) > 0 {
					t.Fatalf("skips %v", page.Skips)
				}
				if page.CaughtUp && last {
					done = true
					break
				}
			}
			if done || rng.IntN(3) > 0 {
				must(t, c.Commit(ctx))
				committed = map[string]int{}
				for k, n := range next {
					committed[k] = n
				}
			} else { // ended in the middle: it comes again
				next = map[string]int{}
				for k, n := range committed {
					next[k] = n
				}
			}
			must(t, c.Close())
		}
	})
	changes.Wait()
	load.Wait()
	for _, n := range next {
		total += n
	}
	if total != writers*each {
		t.Errorf("the group got %d records of %d", total, writers*each)
	}
	d, err := e.Describe(ctx, "t")
	must(t, err)
	t.Logf("%d ranges, %d consumers", len(d.AllRanges), lives)
}

// L04: a commit that comes late, from a consumer that is behind, moves the group
// nowhere; only a Reset moves it back.
func TestLateCommit(t *testing.T) {
	e := open(t, t.TempDir(), Options{})
	newTopic(t, e, "t")
	p := newProducer(t, e, ProducerOptions{Topic: "t"})
	var all []string
	for i := range 20 {
		all = append(all, fmt.Sprint(i))
	}
	produce(t, p, "k", all...)
	read := func(c *Consumer, n int) {
		t.Helper()
		for range n {
			_, err := c.Fetch(1)
			must(t, err)
		}
	}
	slow := newConsumer(t, e, ConsumerOptions{Topic: "t", Group: "g"})
	fast := newConsumer(t, e, ConsumerOptions{Topic: "t", Group: "g"})
	read(slow, 3)
	read(fast, 12)
	group := func() string {
		t.Helper()
		c := newConsumer(t, e, ConsumerOptions{Topic: "t", Group: "g"})
		defer c.Close()
		page, err := c.Fetch(1)
		must(t, err)
		return string(page.Records[0].Value)
	}
	must(t, fast.Commit(within(t)))
	must(t, slow.Commit(within(t)))
	must(t, slow.Commit(within(t)))
	if got := group(); got != "12" {
		t.Fatalf("the group stands at %s", got)
	}
	_, _, err := e.SplitRange(within(t), "t", 0)
	must(t, err)
	must(t, slow.Commit(within(t)))
	if got := group(); got != "12" {
		t.Fatalf("after a split the group stands at %s", got)
	}
	must(t, slow.Reset(within(t)))
	if got := group(); got != "3" {
		t.Fatalf("after a reset the group stands at %s", got)
	}
	_, err = e.MergeRanges(within(t), "t", 1, 2)
	must(t, err)
	must(t, fast.Commit(within(t)))
	if got := group(); got != "12" {
		t.Fatalf("after a merge the group stands at %s", got)
	}
	none := newConsumer(t, e, ConsumerOptions{Topic: "t"})
	if err := none.Commit(within(t)); err == nil {
		t.Error("committed for no group")
	}
}

// Commits beside splits and merges: what a commit answered for is not read again.
func TestCommitBesideSplits(t *testing.T) {
	e := open(t, t.TempDir(), Options{})
	newTopic(t, e, "t")
	ctx := context.Background()
	p := newProducer(t, e, ProducerOptions{Topic: "t"})
	stop := make(chan struct{})
	var changes sync.WaitGroup
	changes.Go(func() {
		rng := rand.New(rand.NewPCG(8, 9))
		for {
			select {
			case <-stop:
				return
			default:
			}
			if err := shake(ctx, e, rng, "t"); err != nil {
				t.Error(err)
				return
			}
		}
	})
	seen := map[string]bool{}
	for i := range 10 * rounds(4) {
		for k := range 5 {
			produce(t, p, fmt.Sprint("k", k), fmt.Sprintf("%d-%d", i, k))
		}
		c := newConsumer(t, e, ConsumerOptions{Topic: "t", Group: "g"})
		got, _ := drain(t, c)
		for _, v := range values(got) {
			if seen[v] {
				t.Errorf("%s was committed and came again", v)
			}
			seen[v] = true
		}
		if len(seen) != 5*(i+1) {
			t.Fatalf("%d records of %d", len(seen), 5*(i+1))
		}
		must(t, c.Commit(ctx))
		must(t, c.Close())
	}
	close(stop)
	changes.Wait()
}

// A producer with a fixed id sends everything again after a restart, a split, a merge
// and with other batch borders: each record is stored once, and each repeat says so.
func TestRerunStoresOnce(t *testing.T) {
	dir := t.TempDir()
	var all []Record
	for i := range 120 {
		r := Record{Key: text("key-%d", i%11), Value: text("%d", i)}
		if i%7 == 0 {
			r.Key = nil
		}
		all = append(all, r)
	}
	e := open(t, dir, Options{})
	newTopic(t, e, "t")
	run := func(upTo, known, batch int) {
		t.Helper()
		p := newProducer(t, e, ProducerOptions{Topic: "t", ID: 77})
		for from := 0; from < upTo; from += batch {
			list := all[from:min(from+batch, upTo)]
			places := make([]Placement, len(list))
			for i, r := range list {
				must(t, p.Append(within(t), r, func(pl Placement, err error) {
					if err != nil {
						t.Error(err)
					}
					places[i] = pl
				}))
			}
			must(t, p.Flush(within(t)))
			for i, pl := range places {
				if pl.Duplicate != (from+i < known) {
					t.Fatalf("record %d of %d known: %+v", from+i, known, pl)
				}
			}
		}
		must(t, p.Close(within(t)))
	}
	run(40, 0, 7)
	shut(t, e)
	e = open(t, dir, Options{})
	run(60, 40, 9)
	_, _, err := e.SplitRange(within(t), "t", 0)
	must(t, err)
	run(80, 60, 13)
	_, _, err = e.SplitRange(within(t), "t", 2)
	must(t, err)
	run(80, 80, 1)
	shut(t, e)
	e = open(t, dir, Options{})
	_, err = e.MergeRanges(within(t), "t", 3, 4)
	must(t, err)
	run(100, 80, 100)
	_, err = e.MergeRanges(within(t), "t", 1, 5)
	must(t, err)
	run(120, 100, 25)
	shut(t, e)
	e = open(t, dir, Options{})
	run(120, 120, 50)
	got := readAll(t, e, "t", FromStart())
	slices.Sort(got)
	if len(got) != len(all) || len(slices.Compact(got)) != len(all) {
		t.Fatalf("%d records, want %d, each once", len(got), len(all))
	}
}

// A batch whose predecessor never came is refused, and others go on.
func TestSequenceRefusals(t *testing.T) {
	e := open(t, t.TempDir(), Options{})
	newTopic(t, e, "t")
	p := newProducer(t, e, ProducerOptions{Topic: "t", ID: 5})
	produce(t, p, "k", "1", "2")
	p.mu.Lock()
	p.lanes[0].sent, p.lanes[0].landed = 9, 9 // as if more had been sent
	p.seq = 9
	p.mu.Unlock()
	_, err := p.Produce(within(t), Record{Key: []byte("k"), Value: []byte("behind a gap")})
	if err == nil {
		t.Fatal("a gap was taken")
	}
	want(t, e, "t", "1", "2")
	q := newProducer(t, e, ProducerOptions{Topic: "t", ID: 6})
	produce(t, q, "k", "3")
	want(t, e, "t", "1", "2", "3")
}

// A change of metadata whose answer did not come in time and that took effect after
// all does not leave the engine behind.
func TestUnknownOutcomeTakesEffect(t *testing.T) {
	e := open(t, t.TempDir(), Options{})
	newTopic(t, e, "t")
	ctx := within(t)
	id, err := e.rangeOf("t", 0)
	must(t, err)
	// A segment that was registered behind the frontend's back.
	var reply cp.Reply
	reply, err = e.host.Propose(ctx, "t", cp.RegisterSegment{
		ID: fence.SegmentID{Range: id, Seq: 0}, Replicas: []cp.NodeID{nodeID}, Salt: 99, Writer: e.host.Incarnation(), At: e.millis(),
	})
	must(t, errors.Join(err, reply.Err))
	p := newProducer(t, e, ProducerOptions{Topic: "t"})
	produce(t, p, "k", "v")
	want(t, e, "t", "v")
	// A topic that was made so.
	topic := fence.TopicID{1: 7, 15: 9}
	reply, err = e.host.Propose(ctx, "u", cp.CreateTopic{Name: "u", Bits: 8, ID: topic, At: e.millis()})
	must(t, errors.Join(err, reply.Err))
	if err := e.CreateTopic(ctx, "u", TopicOptions{}); !errors.Is(err, ErrTopicExists) {
		t.Fatal(err)
	}
	q := newProducer(t, e, ProducerOptions{Topic: "u"})
	produce(t, q, "k", "w")
	want(t, e, "u", "w")
	// And one that was deleted so.
	reply, err = e.host.Propose(ctx, "u", cp.DeleteTopic{Name: "u", ID: topic})
	must(t, errors.Join(err, reply.Err))
	if _, err := e.Describe(ctx, "u"); !errors.Is(err, ErrNoSuchTopic) {
		t.Fatal(err)
	}
	is(t, e.DeleteTopic(ctx, "u"), ErrNoSuchTopic)
	must(t, e.CreateTopic(ctx, "u", TopicOptions{}))
	produce(t, newProducer(t, e, ProducerOptions{Topic: "u"}), "k", "x")
	want(t, e, "u", "x")
}
