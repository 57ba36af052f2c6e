package engine

import (
	"runtime"
	"sync"
	"testing"
)

// Callers that wait for one record each, again and again, end up in one flush: those
// who were answered together come again before the next one leaves. On one processor
// this is so however busy the machine is.
func TestCallersShareFlushes(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	e := open(t, t.TempDir(), Options{})
	newTopic(t, e, "t")
	p := newProducer(t, e, ProducerOptions{Topic: "t"})
	const callers, each = 16, 100
	ctx := within(t)
	before := e.Stats().Store.Flushes
	var group sync.WaitGroup
	for range callers {
		group.Go(func() {
			for range each {
				if _, err := p.Produce(ctx, Record{Value: []byte("v")}); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	group.Wait()
	flushes := e.Stats().Store.Flushes - before
	t.Logf("%d records in %d flushes", callers*each, flushes)
	if flushes > each+each/10 {
		t.Errorf("%d records of %d callers took %d flushes, want few more than %d", callers*each, callers, flushes, each)
	}
}
