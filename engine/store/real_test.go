package store

import (
	"errors"
	"io"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ringfence/ringfence/fence"
	"github.com/ringfence/ringfence/segfile/disk"
)

// On the real disks, io_uring and the pool of workers: producers that lead and that
// do not, rolls, deletes and readers at once, then a start that finds it all. The
// race detector watches, and the collector runs all the time. (E20, F01, F02)
func TestRealDisks(t *testing.T) {
	for _, engine := range []string{"io_uring", "pool"} {
		t.Run(engine, func(t *testing.T) {
			dir := t.TempDir()
			open := func() *Store {
				d, err := disk.Open(dir, disk.Options{Engine: engine, ArenaBytes: 64 << 20})
				if err != nil && engine == "io_uring" {
					t.Skipf("io_uring is refused here: %v", err)
				}
				must(t, err)
				o := testOptions()
				o.Shards, o.OverlapBytes, o.SpaceEvery = 2, 8<<10, time.Second
				s, _ := openStore(t, d, o)
				return s
			}
			s := open()
			stop := make(chan struct{})
			var gc sync.WaitGroup
			gc.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
						runtime.GC()
					}
				}
			})
			var g sync.WaitGroup
			ends := make([][]fence.End, 3)
			for i := range uint32(3) {
				g.Go(func() { ends[i] = realRange(t, s, i) })
			}
			g.Wait()
			close(stop)
			gc.Wait()
			closeStore(t, s)
			if t.Failed() {
				return
			}
			s = open()
			for i, es := range ends {
				seqs := map[uint64]uint64{}
				next := uint64(0)
				for j, end := range es {
					seg, err := s.Segment(segID(uint32(i), uint32(j)))
					if j == 0 { // was deleted
						if !errors.Is(err, ErrNoSegment) {
							t.Fatal("a deleted segment is there")
						}
						next = end.Offset
						continue
					}
					must(t, err)
					if e, ok := seg.Fenced(); !ok || end.Offset != 0 && e != end || seg.Base() != next {
						t.Fatalf("segment %d/%d from %d ends at %+v, want %+v", i, j, seg.Base(), e, end)
					}
					items, err := readSegment(seg, seg.Base())
					must(t, err)
					contiguous(t, items, seg.Base(), seg.CommitMark())
					next = seg.CommitMark()
					for _, it := range items {
						if last, ok := seqs[it.producer]; ok && it.seq != last+1 {
							t.Fatalf("producer %d: sequence %d behind %d", it.producer, it.seq, last)
						}
						seqs[it.producer] = it.seq
					}
					sound(t, s.Disk(), seg.File())
				}
				for p, seq := range seqs {
					if seq != realBatches {
						t.Fatalf("producer %d ends at %d", p, seq)
					}
				}
			}
		})
	}
}

const realBatches = 120

// realRange runs four producers over the rolls of one range. The ends it returns are
// those of its segments; the last one was left open.
func realRange(t *testing.T, s *Store, n uint32) (ends []fence.End) {
	var mu sync.Mutex
	head := newSegment(t, s, segID(n, 0), 0, nil)
	current := func() *Segment {
		mu.Lock()
		defer mu.Unlock()
		return head
	}
	arena := s.Disk().Arena()
	var producers, readers sync.WaitGroup
	for i := range 4 {
		producers.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(n), uint64(i)))
			p := &source{id: uint64(n)*10 + uint64(i) + 1}
			for range realBatches {
				b := p.next(rng, 1, []int{10, 1000, 5000, 40_000}[rng.IntN(4)])
				for {
					seg := current()
					a := &Append{Frame: b.frame(t, arena), Lead: rng.IntN(2) == 0}
					answered := make(chan struct{})
					if !a.Lead {
						a.Done = func(*Append) { close(answered) }
					}
					err := seg.Append(a)
					if err == nil && a.Lead {
						seg.Wait(a)
						err = a.Err
					} else if err == nil {
						<-answered
						err = a.Err
					}
					arena.Free(a.Frame)
					if err == nil {
						break
					}
					if sealed := (*SealedError)(nil); !errors.As(err, &sealed) {
						t.Error(err)
						return
					}
					for current() == seg {
						runtime.Gosched()
					}
				}
			}
		})
	}
	done := make(chan struct{})
	for range 2 {
		readers.Go(func() {
			watch := s.Watch(testTopic)
			watch.Join()
			defer watch.Leave()
			for last := false; !last; {
				select {
				case <-done:
					last = true
				default:
				}
				seg := current()
				sc, err := seg.Scan(seg.Base())
				if err != nil {
					t.Error(err)
					return
				}
				next := seg.Base()
				for {
					b, err := sc.Next()
					if errors.Is(err, io.EOF) {
						break
					}
					if err != nil || b.Head.Base != next || next >= seg.CommitMark() {
						t.Errorf("offset %d: %+v, %v", next, b, err)
						break
					}
					next += uint64(b.Len())
				}
				sc.Close()
			}
		})
	}
	for range 4 {
		time.Sleep(20 * time.Millisecond)
		seg := current()
		end, err := seg.Fence()
		if err != nil {
			t.Error(err)
			break
		}
		next := successor(t, seg, end)
		mu.Lock()
		head = next
		mu.Unlock()
		ends = append(ends, end)
	}
	producers.Wait()
	close(done)
	readers.Wait()
	if err := s.Delete(segID(n, 0)); err != nil {
		t.Error(err)
	}
	return slices.Concat(ends, []fence.End{{}})
}
