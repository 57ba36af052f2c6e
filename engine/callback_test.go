package engine

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
)

// Callbacks that append again, beside others who leave no room, are refused where they would
// have to wait: everybody's answers come behind them.
func TestCallbackThatAppends(t *testing.T) {
	e := open(t, t.TempDir(), Options{ArenaBytes: MinArenaBytes})
	newTopic(t, e, "t")
	p := newProducer(t, e, ProducerOptions{Topic: "t", BatchBytes: 64 << 10})
	value := make([]byte, 1000)
	var stop atomic.Bool
	var answered, refused atomic.Int64
	var again func(Placement, error)
	again = func(_ Placement, err error) {
		answered.Add(1)
		if err != nil || stop.Load() {
			return
		}
		if err := p.Append(context.Background(), Record{Value: value}, again); err != nil {
			is(t, err, ErrOverloaded, "callback")
			refused.Add(1)
		}
	}
	var others sync.WaitGroup
	for range 4 {
		others.Go(func() {
			for !stop.Load() {
				if err := p.Append(context.Background(), Record{Value: value}, again); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	eventually(t, "callbacks are refused", func() bool { return refused.Load() > 10 })
	before := answered.Load()
	eventually(t, "records are answered behind that", func() bool { return answered.Load() > before+1000 })
	stop.Store(true)
	soon(t, "who appends", others.Wait)
	soon(t, "Flush", func() { must(t, p.Flush(context.Background())) })
	shut(t, e)
}

// What would wait for the disk in a callback is refused there, and does nothing.
func TestCallbackThatWaits(t *testing.T) {
	e := open(t, t.TempDir(), Options{})
	newTopic(t, e, "t")
	newTopic(t, e, "other")
	p := newProducer(t, e, ProducerOptions{Topic: "t"})
	other := newProducer(t, e, ProducerOptions{Topic: "other"})
	c := newConsumer(t, e, ConsumerOptions{Topic: "t", From: FromEnd()})
	ctx := context.Background()
	calls := map[string]func() error{
		"Produce": func() error { _, err := p.Produce(ctx, Record{Value: []byte("no")}); return err },
		"Produce elsewhere": func() error {
			_, err := other.Produce(ctx, Record{Value: []byte("no")})
			return err
		},
		"Flush":        func() error { return p.Flush(ctx) },
		"Close":        func() error { return p.Close(ctx) },
		"Engine.Close": e.Close,
		"Roll":         func() error { _, err := e.Roll(ctx, "t"); return err },
		"SplitRange":   func() error { _, _, err := e.SplitRange(ctx, "t", 0); return err },
		"MergeRanges":  func() error { _, err := e.MergeRanges(ctx, "t", 0, 1); return err },
		"DeleteTopic":  func() error { return e.DeleteTopic(ctx, "t") },
		"Retain":       func() error { _, err := e.Retain(ctx); return err },
		"Poll": func() error {
			for {
				if page, err := c.Poll(ctx, 1); err != nil || len(page.Records) == 0 {
					return err
				}
			}
		},
	}
	for name, call := range calls {
		done := make(chan error, 1)
		must(t, p.Append(ctx, Record{Value: []byte(name)}, func(Placement, error) {
			func() { done <- call() }()
		}))
		soon(t, name, func() { is(t, <-done, ErrOverloaded, "callback") })
		must(t, p.Flush(ctx))
	}
	// What does not wait goes on there.
	done := make(chan error, 1)
	must(t, p.Append(ctx, Record{Value: []byte("first")}, func(Placement, error) {
		if err := p.Append(ctx, Record{Value: []byte("second")}, func(_ Placement, err error) { done <- err }); err != nil {
			done <- err
		}
	}))
	soon(t, "an append of a callback", func() { must(t, <-done) })
	if got := readAll(t, e, "t", FromStart()); len(got) != len(calls)+2 {
		t.Errorf("%q", got)
	}
	if got := readAll(t, e, "other", FromStart()); len(got) != 0 {
		t.Errorf("%q", got)
	}
}
