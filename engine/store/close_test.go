package store

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/ringfence/ringfence/fence"
)

// Close answers everything that was taken, whatever it was doing, and nothing
// afterwards.
func TestCloseAnswers(t *testing.T) {
	answered := map[string]int{}
	for seed := range seeds(30) {
		rng := rand.New(rand.NewPCG(seed, 7))
		d := newDisk(seed)
		o := testOptions()
		o.Shards, o.OverlapBytes = 2, 1000
		s, _ := openStore(t, d, o)
		var g sync.WaitGroup
		var mu sync.Mutex
		acked := map[fence.SegmentID][]*batch{}
		start := make(chan struct{})
		for i := range uint32(3) {
			seg := newSegment(t, s, segID(i, 0), 0, nil)
			g.Go(func() {
				rng := rand.New(rand.NewPCG(seed, uint64(i)))
				p := &source{id: uint64(i + 1)}
				<-start
				for {
					b := p.next(rng, 1, rng.IntN(5000))
					f, err := send(t, seg, b)
					if err == nil {
						f.wait(t)
						err = f.Err
					}
					mu.Lock()
					if err != nil {
						answered[fmt.Sprint(errors.Is(err, ErrClosed))]++
						mu.Unlock()
						return
					}
					acked[seg.ID()] = append(acked[seg.ID()], b)
					mu.Unlock()
				}
			})
			if i == 2 {
				g.Go(func() {
					<-start
					if _, err := seg.Fence(); err != nil && !errors.Is(err, ErrClosed) {
						t.Error(err)
					}
				})
			}
		}
		close(start)
		for range rng.IntN(200) {
			d.Counts()
		}
		arena := s.Disk().Arena()
		closed := s.Close() // it counts what the appenders have built, too
		g.Wait()
		if n := arena.InUse(); n != 0 {
			t.Fatalf("%d bytes of the arena are in use: %v", n, closed)
		}
		if _, err := s.Create(t.Context(), metaOf(segID(8, 0), 0), nil); !errors.Is(err, ErrClosed) {
			t.Fatalf("create on a closed store: %v", err)
		}
		s2, _ := openStore(t, d.Crash(rng), testOptions())
		for id, want := range acked {
			seg, err := s2.Segment(id)
			must(t, err)
			items, err := readSegment(seg, 0)
			must(t, err)
			i := 0
			for _, b := range want {
				if i >= len(items) || !bytes.Equal(items[i].value, b.values[0]) {
					t.Fatalf("seed %d: %v: acknowledged record %d is not there", seed, id, i)
				}
				i++
			}
			if len(items) > i+1 {
				t.Fatalf("%d records, %d acknowledged", len(items), i)
			}
		}
		closeStore(t, s2)
		closeStore(t, s)
	}
	if answered["true"] == 0 {
		t.Fatalf("nobody met the close: %v", answered)
	}
}

// A held flush does not let Close go before it is over, and its append is answered.
func TestCloseWaitsForTheDisk(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 8))
	d := newDisk(1)
	s, _ := openStore(t, d, testOptions())
	seg := newSegment(t, s, segID(0, 0), 0, nil)
	hold := d.Hold(appendWrite)
	p := &source{id: 7}
	var all []*flying
	for range 5 {
		f, err := send(t, seg, p.next(rng, 1, 100))
		must(t, err)
		all = append(all, f)
	}
	closed := make(chan error)
	go func() { closed <- s.Close() }()
	eventually(t, "close has begun", func() bool {
		seg.shard.mu.Lock()
		defer seg.shard.mu.Unlock()
		return seg.shard.closed
	})
	if _, err := send(t, seg, p.next(rng, 1, 100)); !errors.Is(err, ErrClosed) {
		t.Fatalf("append while closing: %v", err)
	}
	select {
	case err := <-closed:
		t.Fatalf("closed with a flush in flight: %v", err)
	default:
	}
	hold.Release()
	must(t, <-closed)
	for _, f := range all {
		f.wait(t)
		must(t, f.Err)
	}
	if _, err := send(t, seg, p.next(rng, 1, 100)); !errors.Is(err, ErrClosed) {
		t.Fatalf("append after close: %v", err)
	}
	if _, err := seg.Fence(); !errors.Is(err, ErrClosed) {
		t.Fatalf("fence after close: %v", err)
	}
}
