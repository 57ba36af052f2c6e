package engine

import (
	"context"
	"errors"
	"runtime"
	"testing"
)

// allocations counts the heap allocations of a call, by everybody in the process.
func allocations(do func()) float64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	do()
	runtime.ReadMemStats(&after)
	return float64(after.Mallocs - before.Mallocs)
}

// Once warm, a record costs no allocation: what there is comes with batches.
func TestRecordsAllocateNothing(t *testing.T) {
	e := open(t, t.TempDir(), Options{ArenaBytes: 32 << 20})
	newTopic(t, e, "t")
	p := newProducer(t, e, ProducerOptions{Topic: "t"})
	ctx := context.Background()
	key, value := []byte("some key"), make([]byte, 100)
	done := func(_ Placement, err error) {
		if err != nil {
			t.Error(err)
		}
	}
	const n = 20_000
	ways := map[string]func(){
		"Append": func() {
			for range n {
				if err := p.Append(ctx, Record{Key: key, Value: value}, done); err != nil {
					t.Fatal(err)
				}
			}
			must(t, p.Flush(ctx))
		},
		"Append without a key": func() {
			for range n {
				if err := p.Append(ctx, Record{Value: value}, done); err != nil {
					t.Fatal(err)
				}
			}
			must(t, p.Flush(ctx))
		},
		"Batch.Add": func() {
			for left := n; left > 0; {
				b, err := p.NewBatch(ctx, 1<<20)
				must(t, err)
				for ; left > 0; left-- {
					if err := b.Add(Record{Key: key, Value: value}); err != nil {
						if !errors.Is(err, ErrBatchFull) {
							t.Fatal(err)
						}
						break
					}
				}
				must(t, b.Send(ctx, done))
			}
			must(t, p.Flush(ctx))
		},
		"Batch.Reserve": func() {
			for left := n; left > 0; {
				b, err := p.NewBatch(ctx, 1<<20)
				must(t, err)
				for ; left > 0; left-- {
					k, v, err := b.Reserve(len(key), len(value))
					if err != nil {
						if !errors.Is(err, ErrBatchFull) {
							t.Fatal(err)
						}
						break
					}
					copy(k, key)
					copy(v, value)
					must(t, b.Commit(k))
				}
				must(t, b.Send(ctx, done))
			}
			must(t, p.Flush(ctx))
		},
	}
	for name, do := range ways {
		do() // the buffers grow to what they need
		if per := allocations(do) / n; per > 0.05 {
			t.Errorf("%s: %.3f allocations for each record", name, per)
		} else {
			t.Logf("%s: %.4f allocations for each record", name, per)
		}
	}
}

// Reading a page allocates for the page, not for each record.
func TestReadingAllocatesLittle(t *testing.T) {
	e := open(t, t.TempDir(), Options{})
	newTopic(t, e, "t")
	p := newProducer(t, e, ProducerOptions{Topic: "t"})
	const n = 10_000
	for range n {
		must(t, p.Append(within(t), Record{Key: []byte("k"), Value: make([]byte, 100)}, nil))
	}
	must(t, p.Close(within(t)))
	read := func() (got int) {
		c, err := e.NewConsumer(ConsumerOptions{Topic: "t"})
		must(t, err)
		defer c.Close()
		for {
			page, err := c.Fetch(1000)
			must(t, err)
			got += len(page.Records)
			if page.CaughtUp {
				return got
			}
		}
	}
	read()
	got := 0
	if per := allocations(func() { got = read() }) / n; per > 0.2 || got != n {
		t.Errorf("%.3f allocations for each of %d records", per, got)
	} else {
		t.Logf("%.4f allocations for each record", per)
	}
}

// Nor does a record that is waited for, alone in its flush. Others in the process
// allocate beside it: the best of some rounds counts.
func TestProduceAllocatesNothing(t *testing.T) {
	e := open(t, t.TempDir(), Options{})
	newTopic(t, e, "t")
	p := newProducer(t, e, ProducerOptions{Topic: "t"})
	ctx := within(t)
	const rounds, calls = 10, 20
	best := float64(calls)
	for range rounds {
		best = min(best, allocations(func() {
			for range calls {
				if _, err := p.Produce(ctx, Record{Key: []byte("k"), Value: []byte("v")}); err != nil {
					t.Fatal(err)
				}
			}
		}))
	}
	if best > calls/2 {
		t.Errorf("%.0f allocations for %d records", best, calls)
	}
}
