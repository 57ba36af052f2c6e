package engine

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Close beside producers that go on: every record is either refused or stored, and
// every callback runs.
func TestCloseUnderProducers(t *testing.T) {
	for range rounds(3) {
		dir := t.TempDir()
		e := open(t, dir, Options{})
		newTopic(t, e, "t")
		ctx := within(t)
		var group sync.WaitGroup
		var mu sync.Mutex
		acked := map[string]bool{}
		var taken, answered atomic.Int64
		var ends atomic.Int64
		note := func(v string, err error) {
			if err == nil {
				mu.Lock()
				acked[v] = true
				mu.Unlock()
			} else if !errors.Is(err, ErrClosed) {
				t.Errorf("%s: %v", v, err)
			}
		}
		for w := range 6 {
			p := newProducer(t, e, ProducerOptions{Topic: "t", BatchBytes: 8 << 10})
			group.Go(func() {
				defer ends.Add(1)
				for i := 0; ; i++ {
					v := fmt.Sprintf("%d-%d", w, i)
					r := Record{Key: text("%d", w), Value: []byte(v)}
					var err error
					switch w % 3 {
					case 0:
						_, err = p.Produce(ctx, r)
						note(v, err)
					case 1:
						err = p.Append(ctx, r, func(_ Placement, err error) {
							note(v, err)
							answered.Add(1)
						})
						if err == nil {
							taken.Add(1)
						}
					default:
						var b *Batch
						if b, err = p.NewBatch(ctx, 0); err != nil {
							break
						}
						must(t, b.Add(r))
						err = b.Send(ctx, func(_ Placement, err error) {
							note(v, err)
							answered.Add(1)
						})
						if err == nil {
							taken.Add(1)
						} else {
							b.Discard()
						}
					}
					if err != nil {
						if !errors.Is(err, ErrClosed) {
							t.Error(err)
						}
						return
					}
				}
			})
		}
		group.Go(func() {
			for {
				if _, err := e.Roll(ctx, "t"); err != nil {
					if !errors.Is(err, ErrClosed) {
						t.Error(err)
					}
					return
				}
			}
		})
		time.Sleep(50 * time.Millisecond)
		var closers sync.WaitGroup
		for range 3 {
			closers.Go(func() {
				if err := e.Close(); err != nil {
					t.Error(err)
				}
			})
		}
		soon(t, "Close", closers.Wait)
		soon(t, "producers of a closed engine", group.Wait)
		shut(t, e)
		if taken.Load() != answered.Load() {
			t.Errorf("%d records were taken, %d answered", taken.Load(), answered.Load())
		}
		again := open(t, dir, Options{})
		if n := again.Opened().Recovered; n != 0 {
			t.Errorf("%d segments had to be recovered after Close", n)
		}
		seen := map[string]bool{}
		for _, v := range readAll(t, again, "t", FromStart()) {
			if seen[v] {
				t.Errorf("%s is there twice", v)
			}
			seen[v] = true
		}
		for v := range acked {
			if !seen[v] {
				t.Errorf("%s was acknowledged and is gone", v)
			}
		}
		if len(acked) == 0 {
			t.Error("nothing was acknowledged: the test tests nothing")
		}
		shut(t, again)
	}
}

// Whatever is called on what is closed says so, and nothing waits.
func TestClosed(t *testing.T) {
	e := open(t, t.TempDir(), Options{})
	newTopic(t, e, "t")
	ctx := within(t)
	p := newProducer(t, e, ProducerOptions{Topic: "t"})
	q := newProducer(t, e, ProducerOptions{Topic: "t"})
	c := newConsumer(t, e, ConsumerOptions{Topic: "t", Group: "g"})
	d := newConsumer(t, e, ConsumerOptions{Topic: "t", Group: "d"})
	b, err := q.NewBatch(ctx, 0)
	must(t, err)
	must(t, b.Add(Record{Value: []byte("late")}))
	produce(t, p, "k", "v")

	must(t, p.Close(ctx))
	must(t, p.Close(ctx))
	must(t, d.Close())
	must(t, d.Close())
	producerClosed := func(p *Producer) {
		t.Helper()
		_, err := p.Produce(ctx, Record{})
		is(t, err, ErrClosed)
		is(t, p.Append(ctx, Record{}, nil), ErrClosed)
		_, err = p.NewBatch(ctx, 0)
		is(t, err, ErrClosed)
		must(t, p.Flush(ctx))
		must(t, p.Close(ctx))
	}
	producerClosed(p)
	_, err = d.Fetch(1)
	is(t, err, ErrClosed)
	_, err = d.Poll(ctx, 1)
	is(t, err, ErrClosed)
	is(t, d.Commit(ctx), ErrClosed)

	polled := make(chan error, 1)
	go func() {
		for {
			if _, err := c.Poll(ctx, 10); err != nil {
				polled <- err
				return
			}
		}
	}()
	time.Sleep(10 * time.Millisecond)
	b.Discard()
	must(t, e.Close())
	soon(t, "Poll on a closed engine", func() { is(t, <-polled, ErrClosed) })
	producerClosed(p)
	producerClosed(q)
	_, err = c.Fetch(1)
	is(t, err, ErrClosed)
	is(t, c.Commit(ctx), ErrClosed)
	is(t, c.Reset(ctx), ErrClosed)
	_, err = c.Lag()
	is(t, err, ErrClosed)
	must(t, c.Close())

	_, err = e.NewProducer(ProducerOptions{Topic: "t"})
	is(t, err, ErrClosed)
	_, err = e.NewConsumer(ConsumerOptions{Topic: "t"})
	is(t, err, ErrClosed)
	for what, err := range map[string]error{
		"CreateTopic": e.CreateTopic(ctx, "u", TopicOptions{}), "DeleteTopic": e.DeleteTopic(ctx, "t"),
		"SetPolicy": e.SetPolicy(ctx, "p", Policy{}), "DeletePolicy": e.DeletePolicy(ctx, "p"),
		"BindPolicy": e.BindPolicy(ctx, "t", ""), "BindPolicy p": e.BindPolicy(ctx, "t", "p"),
		"Topics": second(e.Topics(ctx)), "Describe": second(e.Describe(ctx, "t")), "Policies": second(e.Policies(ctx)),
		"Roll": second(e.Roll(ctx, "t")), "Merge": second(e.MergeRanges(ctx, "t", 1, 2)), "Retain": second(e.Retain(ctx)),
	} {
		if !errors.Is(err, ErrClosed) {
			t.Errorf("%s: %v, want ErrClosed", what, err)
		}
	}
	_, _, err = e.SplitRange(ctx, "t", 0)
	is(t, err, ErrClosed)
	e.Stats()
	e.Opened()
}

func second[T any](_ T, err error) error { return err }

// Contexts that have ended are obeyed by every call that may wait, and what they
// interrupted leaves nothing behind.
func TestCancelled(t *testing.T) {
	e := open(t, t.TempDir(), Options{ArenaBytes: 4 << 20})
	newTopic(t, e, "t")
	ctx, cancel := context.WithCancel(within(t))
	p := newProducer(t, e, ProducerOptions{Topic: "t", BatchBytes: 64 << 10, Linger: time.Hour})
	c := newConsumer(t, e, ConsumerOptions{Topic: "t", Group: "g"})

	must(t, p.Append(ctx, Record{Value: []byte("lingers")}, nil))
	short, stop := context.WithTimeout(ctx, 20*time.Millisecond)
	defer stop()
	page, err := c.Poll(short, 10)
	is(t, err, context.DeadlineExceeded)
	if len(page.Records) > 0 {
		t.Error("read what was not stored")
	}

	// All memory is taken: whoever needs some waits until its context ends.
	var held []*Batch
	for {
		short, stop := context.WithTimeout(ctx, 50*time.Millisecond)
		b, err := p.NewBatch(short, 1<<20)
		stop()
		if err != nil {
			is(t, err, context.DeadlineExceeded)
			break
		}
		held = append(held, b)
	}
	for {
		b, ok := e.arena.Alloc(4096)
		if !ok {
			break
		}
		defer e.arena.Free(b)
	}
	q := newProducer(t, e, ProducerOptions{Topic: "t"})
	for _, do := range []func(context.Context) error{
		func(ctx context.Context) error { return second(q.Produce(ctx, Record{Value: []byte("no memory")})) },
		func(ctx context.Context) error { return q.Append(ctx, Record{}, nil) },
		func(ctx context.Context) error { return second(q.NewBatch(ctx, 0)) },
	} {
		short, stop := context.WithTimeout(ctx, 20*time.Millisecond)
		is(t, do(short), context.DeadlineExceeded)
		stop()
	}
	for _, b := range held {
		b.Discard()
	}
	cancel()
	for what, err := range map[string]error{
		"Produce":     second(p.Produce(ctx, Record{})),
		"Append":      p.Append(ctx, Record{}, nil),
		"Poll":        second(c.Poll(ctx, 1)),
		"CreateTopic": e.CreateTopic(ctx, "u", TopicOptions{}), "DeleteTopic": e.DeleteTopic(ctx, "t"),
		"SetPolicy": e.SetPolicy(ctx, "p", Policy{}), "DeletePolicy": e.DeletePolicy(ctx, "p"),
		"BindPolicy": e.BindPolicy(ctx, "t", ""), "Commit": c.Commit(ctx), "Reset": c.Reset(ctx),
		"Topics": second(e.Topics(ctx)), "Describe": second(e.Describe(ctx, "t")), "Policies": second(e.Policies(ctx)),
		"Roll": second(e.Roll(ctx, "t")), "Merge": second(e.MergeRanges(ctx, "t", 1, 2)), "Retain": second(e.Retain(ctx)),
	} {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v, want Canceled", what, err)
		}
	}
	_, _, err = e.SplitRange(ctx, "t", 0)
	is(t, err, context.Canceled)
	is(t, p.Flush(ctx), context.Canceled)
	must(t, p.Flush(within(t)))
}
