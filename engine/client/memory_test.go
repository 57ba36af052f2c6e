package client

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ringfence/ringfence/engine/api"
	"github.com/ringfence/ringfence/engine/wire"
)

func TestMemoryIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory(1 << 20)
		var slabs [][]byte
		for s := m.alloc(5000); s != nil; s = m.alloc(5000) {
			if len(s) != 5000 {
				t.Fatalf("a slab of %d bytes", len(s))
			}
			slabs = append(slabs, s)
		}
		if len(slabs) != 1<<20/8192 {
			t.Errorf("%d slabs of 8 KiB in 1 MiB", len(slabs))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := m.await(ctx, nil, 1); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("with none left: %v", err)
		}
		quit := make(chan struct{})
		close(quit)
		if _, err := m.await(t.Context(), quit, 1); !errors.Is(err, ErrClosed) {
			t.Errorf("at the end: %v", err)
		}
		got := make(chan []byte)
		go func() {
			s, _ := m.await(t.Context(), nil, 5000)
			got <- s
		}()
		synctest.Wait()
		m.release(slabs[0])
		if s := <-got; len(s) != 5000 {
			t.Errorf("woken up with %d bytes", len(s))
		}
		for _, s := range slabs[1:] {
			m.release(s)
		}
		if s := m.alloc(1 << 19); len(s) != 1<<19 {
			t.Error("slabs that lie about are not made into another size")
		}
	})
}

// Whatever became of its records, a producer gives its memory back.
func TestProducerGivesItsMemoryBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		n := 0
		f.on = func(s *fakeConn, h wire.Head, _, _ []byte) bool {
			if n++; h.Key == wire.KeyProduce && n%7 == 0 {
				s.close()
				return true
			}
			return false
		}
		c := f.client(t, Options{MemoryBytes: 1 << 20})
		for _, codec := range []api.Codec{api.None, api.S2} {
			p := producer(t, c, api.ProducerOptions{BatchBytes: 8192, Codec: codec})
			for i := range 500 {
				if err := p.Append(t.Context(), rec(i), nil); err != nil {
					t.Fatal(err)
				}
			}
			b, err := p.NewBatch(t.Context(), 0)
			if err != nil {
				t.Fatal(err)
			}
			b.Discard()
			b.Discard()
			if err := b.Send(t.Context(), nil); !errors.Is(err, ErrBatchSent) {
				t.Errorf("a discarded batch: %v", err)
			}
			if err := p.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		c.mem.mu.Lock()
		defer c.mem.mu.Unlock()
		whole := c.mem.left
		for class, list := range c.mem.free {
			whole += len(list) << class
		}
		if whole != 1<<20 {
			t.Errorf("%d bytes of 1 MiB came back", whole)
		}
	})
}

func TestPlacements(t *testing.T) {
	for _, tt := range []struct {
		whole api.Placement
		count int
		at    int
		want  api.Placement
	}{
		{api.Placement{Range: 3, First: 10, Last: 14}, 5, 2, api.Placement{Range: 3, First: 12, Last: 12}},
		{api.Placement{Range: 3, First: 10, Last: 14}, 5, wholeBatch, api.Placement{Range: 3, First: 10, Last: 14}},
		{api.Placement{Range: 3, First: 10, Last: 10}, 1, 0, api.Placement{Range: 3, First: 10, Last: 10}},
		{api.Placement{Range: 3, First: 10, Last: 10}, 5, 0, api.Placement{Unplaced: true}},
		{api.Placement{Range: 3, Duplicate: true, Repeats: 5}, 5, 1, api.Placement{Range: 3, Duplicate: true, Repeats: 1}},
		{api.Placement{Range: 3, Duplicate: true, Repeats: 5}, 5, wholeBatch, api.Placement{Range: 3, Duplicate: true, Repeats: 5}},
		{api.Placement{Range: 3, First: 10, Last: 12, Repeats: 2}, 5, 0, api.Placement{Unplaced: true, Repeats: 2}},
		{api.Placement{Range: 3, First: 10, Last: 12, Repeats: 2}, 5, 3, api.Placement{Unplaced: true}},
		{api.Placement{Range: 3, First: 10, Last: 12, Repeats: 2}, 5, wholeBatch, api.Placement{Range: 3, First: 10, Last: 12, Repeats: 2}},
	} {
		if got := placeIn(tt.whole, tt.count, tt.at); got != tt.want {
			t.Errorf("record %d of %d in %+v is at %+v, want %+v", tt.at, tt.count, tt.whole, got, tt.want)
		}
	}
}

// A record costs no memory of its own.
func TestAppendAllocates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		c := f.client(t, Options{})
		p := producer(t, c, api.ProducerOptions{BatchBytes: 64 << 10, Linger: time.Hour})
		r, done := rec(1), func(api.Placement, error) {}
		ctx := t.Context()
		got := testing.AllocsPerRun(20, func() {
			for range 1000 {
				if err := p.Append(ctx, r, done); err != nil {
					t.Fatal(err)
				}
			}
			if err := p.Flush(ctx); err != nil {
				t.Fatal(err)
			}
		})
		if got > 200 { // of the batches, their answers, and the fake server
			t.Errorf("1000 records allocate %v times", got)
		}
	})
}
