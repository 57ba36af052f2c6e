package engine

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"sync"
	"testing"
	"time"

	"github.com/ringfence/ringfence/engine/client"
)

// drainClient reads until the consumer has caught up.
func drainClient(t testing.TB, c *client.Consumer) (got []entry) {
	t.Helper()
	for {
		page, err := c.Fetch(1000)
		if err != nil {
			t.Fatal(err)
		}
		if got = keep(got, page); page.CaughtUp {
			return got
		}
	}
}

// A client stores and reads what a linked program does.
func TestClientAndLinkedProgramSeeTheSame(t *testing.T) {
	e := open(t, t.TempDir(), Options{})
	clientSeesTheSame(t, e, dial(t, serve(t, e)))
}

func clientSeesTheSame(t *testing.T, e *Engine, c *client.Client) {
	ctx := within(t)
	must(t, c.CreateTopic(ctx, "t", TopicOptions{}))
	_, _, err := c.SplitRange(ctx, "t", 0)
	must(t, err)
	when := time.UnixMilli(1234567890123)
	for _, codec := range []Codec{None, S2, Zstd} {
		p, err := c.NewProducer(ProducerOptions{Topic: "t", Codec: codec, BatchBytes: 16 << 10})
		must(t, err)
		for i := range 500 {
			r := Record{Key: text("key-%d", i%11), Value: text("%v value %d of some length", codec, i), Time: when}
			switch i % 5 {
			case 1:
				r.Key = nil
			case 2:
				r.Value = nil
			case 3:
				r.Key, r.Value = []byte{}, []byte{}
			case 4:
				r.Headers = []Header{{Key: []byte("a"), Value: nil}, {Key: []byte("b"), Value: []byte("c")}}
			}
			must(t, p.Append(ctx, r, func(_ Placement, err error) {
				if err != nil {
					t.Error(err)
				}
			}))
		}
		b, err := p.NewBatch(ctx, 0)
		must(t, err)
		for i := range 100 {
			if i%3 == 0 {
				must(t, b.Add(Record{Value: text("batch %d", i)}))
				continue
			}
			key, value, err := b.Reserve(4, 5)
			must(t, err)
			copy(key, fmt.Sprintf("%04d", i))
			copy(value, "value")
			must(t, b.Commit(key))
		}
		if b.Len() != 100 {
			t.Errorf("a batch of %d records", b.Len())
		}
		must(t, b.Send(ctx, func(_ Placement, err error) {
			if err != nil {
				t.Error(err)
			}
		}))
		must(t, p.Close(ctx))
	}
	linked, _ := drain(t, newConsumer(t, e, ConsumerOptions{Topic: "t", From: FromStart()}))
	r, err := c.NewConsumer(ConsumerOptions{Topic: "t", From: FromStart(), Group: "g"})
	must(t, err)
	over := drainClient(t, r)
	if len(over) != 3*600 {
		t.Fatalf("%d records came back", len(over))
	}
	perRange := func(list []entry) map[uint32][]entry {
		m := map[uint32][]entry{}
		for _, e := range list {
			m[e.Range] = append(m[e.Range], e)
		}
		return m
	}
	if a, b := perRange(linked), perRange(over); len(a) != 2 || !reflect.DeepEqual(a, b) {
		t.Errorf("the linked program reads %d records in %d ranges, the client %d in %d, or others", len(linked), len(a), len(over), len(b))
	}
	must(t, r.Commit(ctx))
	if lag, err := r.Lag(); err != nil || lag != 0 {
		t.Errorf("lag %d, %v", lag, err)
	}
	must(t, r.Close())
	if got := readAllIn(t, e, "g"); len(got) != 0 {
		t.Errorf("behind the client's commit the group reads %d records", len(got))
	}
	clientMeetsErrors(t, c)
}

func readAllIn(t testing.TB, e *Engine, group string) []entry {
	got, _ := drain(t, newConsumer(t, e, ConsumerOptions{Topic: "t", Group: group}))
	return got
}

// clientMeetsErrors asks for what the engine refuses.
func clientMeetsErrors(t *testing.T, c *client.Client) {
	ctx := within(t)
	is(t, c.CreateTopic(ctx, "t", TopicOptions{}), ErrTopicExists, `topic "t"`)
	is(t, c.DeleteTopic(ctx, "none"), ErrNoSuchTopic, `topic "none"`)
	is(t, c.CreateTopic(ctx, "no/name", TopicOptions{}), ErrInvalidTopicName)
	is(t, c.BindPolicy(ctx, "t", "none"), client.ErrNoSuchPolicy)
	_, err := c.NewProducer(ProducerOptions{Topic: "none"})
	is(t, err, ErrNoSuchTopic)
	_, err = c.NewConsumer(ConsumerOptions{Topic: "none"})
	is(t, err, ErrNoSuchTopic)
	_, err = c.NewConsumer(ConsumerOptions{Topic: "t", From: FromCursor("rubbish")})
	is(t, err, ErrInvalidCursor)
	must(t, c.SetPolicy(ctx, "week", Policy{MaxAge: Limit(7 * 24 * 3600 * 1000), MaxBytes: Unlimited()}))
	list, err := c.Policies(ctx)
	if err != nil || list["week"].MaxAge != Limit(7*24*3600*1000) || list["week"].MaxBytes != Unlimited() || list["week"].SegmentMaxAge != (Bound{}) {
		t.Errorf("policies %v, %v", list, err)
	}
	must(t, c.BindPolicy(ctx, "t", "week"))
	d, err := c.Describe(ctx, "t")
	if err != nil || d.Policy != "week" || d.Records != 1800 || len(d.AllRanges) != 3 {
		t.Errorf("described as %+v, %v", d, err)
	}
	topics, err := c.Topics(ctx)
	if err != nil || len(topics) != 1 || topics[0].Name != "t" || topics[0].ID != d.ID {
		t.Errorf("topics %v, %v", topics, err)
	}
	if _, err := c.Roll(ctx, "t"); err != nil {
		t.Error(err)
	}
}

// Connections are cut at random under load: every acknowledged record is there once,
// those of a key in order, read by a linked program and by a client whose connection is
// cut as well.
func TestClientThroughCuts(t *testing.T) {
	e := open(t, t.TempDir(), Options{})
	proxy, addr := newCutter(t, serve(t, e))
	c := dial(t, addr)
	must(t, c.CreateTopic(within(t), "t", TopicOptions{}))
	l := &load{writers: 4, records: rounds(4000), meanwhile: func() { proxy.cut(0.2) }}
	var reader sync.WaitGroup
	var seen []entry
	reader.Go(func() {
		r, err := c.NewConsumer(ConsumerOptions{Topic: "t"})
		if err != nil {
			t.Error(err)
			return
		}
		defer r.Close()
		for ctx := within(t); len(seen) < l.writers*l.records; {
			page, err := r.Poll(ctx, 100)
			if err != nil {
				t.Errorf("after %d records: %v", len(seen), err)
				return
			}
			seen = keep(seen, page)
		}
	})
	l.run(t, c, ProducerOptions{Topic: "t", BatchBytes: 4096})
	reader.Wait()
	if proxy.cuts < 5 {
		t.Errorf("%d connections were cut", proxy.cuts)
	}
	l.check(t, seen)
	got, _ := drain(t, newConsumer(t, e, ConsumerOptions{Topic: "t", From: FromStart()}))
	l.check(t, got)
}

// Ranges split and merge while clients send and connections are cut.
func TestClientWhileRangesChange(t *testing.T) {
	e := open(t, t.TempDir(), Options{})
	proxy, addr := newCutter(t, serve(t, e))
	c := dial(t, addr)
	must(t, c.CreateTopic(within(t), "t", TopicOptions{}))
	changes, seq := 0, uint32(0)
	admin := dial(t, serve(t, e))
	stop := again(func() {
		if changes == 100 { // each costs more than the one before
			time.Sleep(time.Millisecond)
			return
		}
		left, right, err := admin.SplitRange(within(t), "t", seq)
		if err != nil {
			t.Errorf("split: %v", err)
			return
		}
		if seq, err = admin.MergeRanges(within(t), "t", left, right); err != nil {
			t.Errorf("merge: %v", err)
			return
		}
		changes++
	})
	l := &load{writers: 3, records: rounds(3000), meanwhile: func() { proxy.cut(0.1) }}
	l.run(t, c, ProducerOptions{Topic: "t", BatchBytes: 8192})
	stop()
	if changes == 0 || proxy.cuts == 0 {
		t.Errorf("%d changes of ranges, %d cuts", changes, proxy.cuts)
	}
	got, _ := drain(t, newConsumer(t, e, ConsumerOptions{Topic: "t", From: FromStart()}))
	l.check(t, got)
	r, err := c.NewConsumer(ConsumerOptions{Topic: "t", From: FromStart()})
	must(t, err)
	l.check(t, drainClient(t, r))
	must(t, r.Close())
}

// A hundred goroutines share one producer, and one client with other uses.
func TestClientSharedByAHundred(t *testing.T) {
	e := open(t, t.TempDir(), Options{})
	c := dial(t, serve(t, e))
	must(t, c.CreateTopic(within(t), "t", TopicOptions{}))
	p, err := c.NewProducer(ProducerOptions{Topic: "t"})
	must(t, err)
	var all sync.WaitGroup
	const each = 20
	for g := range 100 {
		all.Go(func() {
			for i := range each {
				v := text("%d-%d", g, i)
				at, err := p.Produce(within(t), Record{Key: text("%d", g), Value: v})
				if err != nil || at.Duplicate || at.Unplaced {
					t.Errorf("%s: %+v, %v", v, at, err)
					return
				}
				if i%10 == 0 {
					if _, err := c.Describe(within(t), "t"); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	all.Wait()
	must(t, p.Close(within(t)))
	got, _ := drain(t, newConsumer(t, e, ConsumerOptions{Topic: "t", From: FromStart()}))
	next := map[string]int{}
	for _, e := range got {
		if want := text("%s-%d", e.Key, next[string(e.Key)]); !bytes.Equal(e.Value, want) {
			t.Fatalf("%s where %s is due", e.Value, want)
		}
		next[string(e.Key)]++
	}
	if len(got) != 100*each {
		t.Errorf("%d records, want %d", len(got), 100*each)
	}
}

// A program that names its producer's ID and sends all again after a failure stores
// each record once, also over the network.
func TestClientNamedProducerSendsAllAgain(t *testing.T) {
	e := open(t, t.TempDir(), Options{})
	addr := serve(t, e)
	ctx := within(t)
	for run := range 3 {
		c := dial(t, addr)
		if run == 0 {
			must(t, c.CreateTopic(ctx, "t", TopicOptions{}))
		}
		p, err := c.NewProducer(ProducerOptions{Topic: "t", ID: 77})
		must(t, err)
		for i := range 100 * (run + 1) {
			must(t, p.Append(ctx, Record{Key: text("%d", i%7), Value: text("%d", i)}, nil))
			if run == 1 && i == 150 {
				must(t, c.Close()) // it is gone, and nobody knows with what stored
				break
			}
		}
		if err := p.Close(ctx); err != nil && !errors.Is(err, ErrClosed) {
			t.Fatal(err)
		}
		must(t, c.Close())
	}
	seen := map[string]bool{}
	got, _ := drain(t, newConsumer(t, e, ConsumerOptions{Topic: "t", From: FromStart()}))
	for _, e := range got {
		if seen[string(e.Value)] {
			t.Errorf("record %s is there twice", e.Value)
		}
		seen[string(e.Value)] = true
	}
	if len(seen) != 300 {
		t.Errorf("%d records, want 300", len(seen))
	}
}

// The server and its engine stop in good order and start again, some times, while
// clients send and read: they go on where they were.
func TestClientOverRestarts(t *testing.T) {
	dir := t.TempDir()
	e, err := Open(dir, small(Options{}))
	must(t, err)
	addr, stop := serveFor(t, e)
	proxy, through := newCutter(t, addr)
	c := dial(t, through)
	must(t, c.CreateTopic(within(t), "t", TopicOptions{}))
	var mu sync.Mutex // one restart at a time
	restarts := 0
	restart := func() {
		mu.Lock()
		defer mu.Unlock()
		if restarts == rounds(3) {
			return
		}
		restarts++
		stop()
		shut(t, e)
		if e, err = Open(dir, small(Options{})); err != nil {
			t.Error(err)
			return
		}
		addr, stop = serveFor(t, e)
		proxy.mu.Lock()
		proxy.to = addr
		proxy.mu.Unlock()
	}
	l := &load{writers: 3, records: rounds(2000), meanwhile: restart}
	l.run(t, c, ProducerOptions{Topic: "t", BatchBytes: 4096})
	r, err := c.NewConsumer(ConsumerOptions{Topic: "t", Group: "g"})
	must(t, err)
	var seen []entry
	for n := 0; len(seen) < l.writers*l.records; n++ {
		if n == 10 {
			restarts = 0
			restart()
		}
		page, err := r.Poll(within(t), 50)
		must(t, err)
		seen = keep(seen, page)
	}
	l.check(t, seen)
	if restarts == 0 {
		t.Error("nothing started again")
	}
	must(t, r.Commit(within(t)))
	must(t, r.Close())
	must(t, c.Close())
	stop()
	l.check(t, readEntries(t, e))
	shut(t, e)
}

func readEntries(t testing.TB, e *Engine) []entry {
	c := newConsumer(t, e, ConsumerOptions{Topic: "t", From: FromStart()})
	defer c.Close()
	got, _ := drain(t, c)
	return got
}
