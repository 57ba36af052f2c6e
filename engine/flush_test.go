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

// Flush answers for what was taken before it, however much is taken meanwhile.
func TestFlushUnderLoad(t *testing.T) {
	e := open(t, t.TempDir(), Options{})
	newTopic(t, e, "t")
	p := newProducer(t, e, ProducerOptions{Topic: "t", BatchBytes: 16 << 10})
	ctx := within(t)
	stop := make(chan struct{})
	var load sync.WaitGroup
	var taken, answered atomic.Int64
	for w := range 4 {
		load.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				err := p.Append(ctx, Record{Key: text("%d", w), Value: make([]byte, 1000)}, func(_ Placement, err error) {
					if err != nil {
						t.Error(err)
					}
					answered.Add(1)
				})
				if err != nil {
					t.Error(err)
					return
				}
				taken.Add(1)
			}
		})
	}
	for range 5 {
		time.Sleep(10 * time.Millisecond)
		before := taken.Load()
		soon(t, "Flush while others append", func() { must(t, p.Flush(ctx)) })
		if n := answered.Load(); n < before {
			t.Errorf("Flush returned with %d answers of %d", n, before)
		}
	}
	close(stop)
	load.Wait()
	must(t, p.Close(ctx))
	if taken.Load() != answered.Load() {
		t.Errorf("%d records, %d answers", taken.Load(), answered.Load())
	}
}

// Several flushes at once, and one that is cancelled, wait for all that is theirs.
func TestFlushesTogether(t *testing.T) {
	e := open(t, t.TempDir(), Options{})
	newTopic(t, e, "t")
	p := newProducer(t, e, ProducerOptions{Topic: "t", Linger: time.Hour})
	ctx := within(t)
	cancelled, cancel := context.WithCancel(ctx)
	cancel()
	var answered atomic.Int64
	for i := range 100 {
		must(t, p.Append(ctx, Record{Value: text("%d", i)}, func(Placement, error) { answered.Add(1) }))
		if i%10 == 0 {
			if err := p.Flush(cancelled); err != nil && !errors.Is(err, context.Canceled) {
				t.Fatal(err)
			}
		}
	}
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			if err := p.Flush(ctx); err != nil {
				t.Error(err)
			}
			if n := answered.Load(); n != 100 {
				t.Errorf("%d answers after Flush", n)
			}
		})
	}
	soon(t, "Flush", group.Wait)
}

// A record that lingers leaves after its time, alone, and nothing else is needed.
func TestLinger(t *testing.T) {
	e := open(t, t.TempDir(), Options{})
	newTopic(t, e, "t")
	p := newProducer(t, e, ProducerOptions{Topic: "t", Linger: 20 * time.Millisecond})
	done := make(chan error, 1)
	must(t, p.Append(within(t), Record{Value: []byte("v")}, func(_ Placement, err error) { done <- err }))
	soon(t, "linger", func() { must(t, <-done) })
}

// Callbacks of a range come in the order of its records.
func TestCallbacksInOrder(t *testing.T) {
	e := open(t, t.TempDir(), Options{})
	newTopic(t, e, "t")
	p := newProducer(t, e, ProducerOptions{Topic: "t", BatchBytes: 4 << 10})
	var mu sync.Mutex
	var order []string
	for i := range 500 {
		v := fmt.Sprint(i)
		must(t, p.Append(within(t), Record{Key: []byte("k"), Value: []byte(v)}, func(pl Placement, err error) {
			mu.Lock()
			defer mu.Unlock()
			if err != nil || pl.First != uint64(i) {
				t.Errorf("record %d: %+v %v", i, pl, err)
			}
			order = append(order, v)
		}))
	}
	must(t, p.Flush(within(t)))
	mu.Lock()
	defer mu.Unlock()
	want(t, e, "t", order...)
}
