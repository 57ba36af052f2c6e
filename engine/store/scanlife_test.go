package store

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/ringfence/ringfence/segfile/disk/simdisk"
)

// B12, B14, E13: a segment that is deleted under a scanner stays readable for it, and
// its file is not used again before; the next reader is told that it is gone.
func TestDeleteUnderAScanner(t *testing.T) {
	rng := rand.New(rand.NewPCG(8, 20))
	d := simdisk.New(simdisk.Options{Seed: 8, ArenaBytes: 64 << 20})
	o := testOptions()
	s, _ := openStore(t, d, o)
	seg := newSegment(t, s, segID(0, 0), 0, nil)
	var sizes []int
	for range 200 {
		sizes = append(sizes, 40_000)
	}
	sent := bulk(t, s, seg, rng, sizes)
	if err := s.Delete(segID(0, 1)); !errors.Is(err, ErrNoSegment) {
		t.Fatal(err)
	}
	fresh := newSegment(t, s, segID(0, 1), 200, nil)
	if err := s.Delete(fresh.ID()); err == nil {
		t.Fatal("an open segment was deleted")
	}
	sc, err := seg.Scan(0)
	must(t, err)
	at := 0
	for range 50 { // it reads ahead now
		b, err := sc.Next()
		must(t, err)
		if !bytes.Equal(b.Value(0), sent[at].values[0]) {
			t.Fatalf("batch %d is another one", at)
		}
		at++
	}
	must(t, s.Delete(seg.ID()))
	if _, err := s.Segment(seg.ID()); !errors.Is(err, ErrNoSegment) {
		t.Fatal(err)
	}
	if _, err := seg.Scan(0); !errors.Is(err, ErrNoSegment) {
		t.Fatal(err)
	}
	other := newSegment(t, s, segID(1, 0), 0, nil) // would take the retired file
	for q := (&source{id: 9}); other.Position() < 4<<20; {
		put(t, other, q.next(rng, 1, 100_000))
	}
	if n := follow(t, sc, sent, &at); at != len(sent) {
		t.Fatalf("%d batches, %d behind the delete", at, n)
	}
	if n := s.pool.Stats().Files; n != 0 {
		t.Fatal("the file was retired under a reader")
	}
	sc.Close()
	sc.Close() // again is nothing
	if _, err := d.Open(seg.File(), true); err == nil {
		t.Fatal("the file kept its name")
	}
}

// Readers that stand still keep half of the arena from those who append at most, also where
// each holds little more than half a block of it.
func TestReadersThatStandStillLeaveHalfOfTheArena(t *testing.T) {
	d := simdisk.New(simdisk.Options{Seed: 9, ArenaBytes: 8 << 20})
	s, _ := openStore(t, d, testOptions())
	seg := newSegment(t, s, segID(0, 0), 0, nil)
	sent := bulk(t, s, seg, rand.New(rand.NewPCG(9, 21)), []int{600_000, 600_000})
	arena := d.Arena()
	before := arena.InUse()
	for n := range 12 {
		sc, err := seg.Scan(0)
		must(t, err)
		defer sc.Close()
		b, err := sc.Next()
		must(t, err)
		if !bytes.Equal(b.Value(0), sent[0].values[0]) {
			t.Fatal("another batch")
		}
		switch held := arena.InUse() - before; {
		case held > arena.Size()/2:
			t.Fatalf("%d readers that stand still hold %d bytes of %d", n+1, held, arena.Size())
		case n == 3 && held < arena.Size()/4:
			t.Fatalf("four readers hold %d bytes", held)
		}
	}
}

// Rolls, deletes of the oldest segment and readers of it, all at once (B12, B14).
func TestRetentionBesideReaders(t *testing.T) {
	rng := rand.New(rand.NewPCG(9, 20))
	d := newDisk(9)
	o := testOptions()
	o.SegmentBytes = 128 << 10
	s, _ := openStore(t, d, o)
	var mu sync.Mutex
	live := []*Segment{newSegment(t, s, segID(0, 0), 0, nil)}
	done := make(chan struct{})
	var g sync.WaitGroup
	var read, gone atomic.Int64
	for i := range 4 {
		g.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(i), 23))
			for {
				select {
				case <-done:
					return
				default:
				}
				mu.Lock()
				seg := live[rng.IntN(min(2, len(live)))]
				mu.Unlock()
				items, err := readSegment(seg, seg.Base())
				switch {
				case errors.Is(err, ErrNoSegment):
					gone.Add(1)
				case err != nil:
					t.Error(err)
					return
				default:
					for j := range items {
						if items[j].offset != seg.Base()+uint64(j) || items[j].seq != items[j].offset+1 {
							t.Errorf("segment from %d: record %d is at %d and has sequence %d", seg.Base(), j, items[j].offset, items[j].seq)
							return
						}
					}
					read.Add(int64(len(items)))
				}
			}
		})
	}
	p := &source{id: 7}
	head := live[0]
	for roll := range 60 {
		for range 5 {
			put(t, head, p.next(rng, 1+rng.IntN(3), rng.IntN(9000)))
		}
		end, err := head.Fence()
		must(t, err)
		if roll > 20 { // now one starts in the file of a deleted one
			eventually(t, "a retired file", func() bool { return s.pool.Stats().Files > 0 })
		}
		head = successor(t, head, end)
		mu.Lock()
		live = append(live, head)
		var old *Segment
		if len(live) > 3 {
			old, live = live[0], live[1:]
		}
		mu.Unlock()
		if old != nil {
			if err := s.Delete(old.ID()); err != nil {
				t.Fatalf("roll %d: %v", roll, err)
			}
		}
	}
	close(done)
	g.Wait()
	if read.Load() == 0 || s.pool.Stats().Recycled == 0 {
		t.Fatalf("%d records read, %+v", read.Load(), s.pool.Stats())
	}
	t.Logf("%d records read, %d segments met that were gone, %+v", read.Load(), gone.Load(), s.pool.Stats())
}

// A scanner of a closed store answers with an error.
func TestScanAfterClose(t *testing.T) {
	rng := rand.New(rand.NewPCG(10, 20))
	d := simdisk.New(simdisk.Options{Seed: 10, ArenaBytes: 64 << 20})
	s, _ := openStore(t, d, testOptions())
	seg := newSegment(t, s, segID(0, 0), 0, nil)
	var sizes []int
	for range 100 {
		sizes = append(sizes, 100_000)
	}
	bulk(t, s, seg, rng, sizes)
	stop := make(chan struct{})
	var g sync.WaitGroup
	var errs atomic.Int64
	for range 3 {
		g.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				items, err := readSegment(seg, 0)
				if err != nil {
					if errors.Is(err, ErrDamaged) {
						t.Error(err)
						return
					}
					errs.Add(1)
				} else if len(items) != 100 {
					t.Errorf("%d records", len(items))
				}
			}
		})
	}
	arena := s.Disk().Arena()
	for errs.Load() == 0 && s.count.flushes.Load() > 0 {
		if d.Counts().Reads > 200 {
			s.Close() // counts what scanners hold
			break
		}
	}
	eventually(t, "a scanner met the close", func() bool { return errs.Load() > 0 })
	close(stop)
	g.Wait()
	if n := arena.InUse(); n != 0 {
		t.Fatalf("%d bytes in use", n)
	}
}
