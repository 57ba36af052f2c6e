package engine

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
)

// A batch that nobody waits for may land and be used again while the Append that
// filled it still returns.
func TestAppendBesideLandings(t *testing.T) {
	e := open(t, t.TempDir(), Options{})
	newTopic(t, e, "logs")
	p, err := e.NewProducer(ProducerOptions{Topic: "logs", BatchBytes: 4 << 10})
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	const writers, each = 4, 2000
	var group sync.WaitGroup
	var stored atomic.Int64
	for w := range writers {
		group.Go(func() {
			for i := range each {
				err := p.Append(ctx, Record{Key: fmt.Append(nil, w), Value: fmt.Appendf(nil, "%d %d", w, i)}, func(_ Placement, err error) {
					if err == nil {
						stored.Add(1)
					}
				})
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	group.Wait()
	if err := p.Flush(ctx); err != nil {
		t.Fatal(err)
	}
	if n := stored.Load(); n != writers*each {
		t.Fatalf("%d of %d acknowledged", n, writers*each)
	}
	if got := readAll(t, e, "logs", FromStart()); len(got) != writers*each {
		t.Fatalf("%d records", len(got))
	}
}
