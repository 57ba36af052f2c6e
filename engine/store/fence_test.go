package store

import (
	"errors"
	"math/rand/v2"
	"syscall"
	"testing"

	"github.com/ringfence/ringfence/fence"
	"github.com/ringfence/ringfence/segfile/disk/simdisk"
)

// A fence whose own writes fail gives no answer, can be asked again, and then ends
// where the first one would have.
func TestFenceThatFailsCanBeAskedAgain(t *testing.T) {
	failed := 0
	for seed := range seeds(60) {
		rng := rand.New(rand.NewPCG(seed, 3))
		d := newDisk(seed)
		s, _ := openStore(t, d, testOptions())
		seg := newSegment(t, s, segID(0, 0), 50, nil)
		p := &source{id: 7}
		var acked []*batch
		for range 1 + rng.IntN(4) {
			b := p.next(rng, 1+rng.IntN(3), rng.IntN(6000))
			put(t, seg, b)
			acked = append(acked, b)
		}
		want := seg.CommitMark()
		writes := 0
		fault := d.Fail(func(e simdisk.Event) error {
			if e.Action != simdisk.Write || e.Name != seg.File() {
				return nil
			}
			if writes++; rng.IntN(2) == 0 {
				return []error{syscall.EIO, syscall.ENOSPC, simdisk.Short(512)}[rng.IntN(3)]
			}
			return nil
		})
		for try := range 3 {
			end, err := seg.Fence()
			if err == nil {
				if end.Offset != want {
					t.Fatalf("seed %d: fenced at %d, want %d", seed, end.Offset, want)
				}
				break
			}
			failed++
			if !errors.Is(err, ErrStorage) {
				t.Fatalf("seed %d, try %d: %v", seed, try, err)
			}
			if _, ok := seg.Fenced(); ok {
				t.Fatalf("seed %d: fenced without an answer", seed)
			}
			if _, err := send(t, seg, p.next(rng, 1, 10)); !errors.Is(err, ErrStorage) {
				t.Fatalf("seed %d: an append after a failed fence: %v", seed, err)
			}
			if rng.IntN(3) == 0 { // or the power goes, and the next start fences
				break
			}
		}
		fault.Stop()
		if rng.IntN(2) == 0 {
			end, err := seg.Fence()
			if err != nil || end.Offset != want {
				t.Fatalf("seed %d: fenced at %d, want %d: %v", seed, end.Offset, want, err)
			}
			holds(t, seg, acked...)
		}
		after := d.Crash(rng)
		s2, rec := openStore(t, after, testOptions())
		if len(rec.Damaged) > 0 {
			t.Fatalf("seed %d: %v", seed, rec.Damaged[0].Err)
		}
		seg2, err := s2.Segment(seg.ID())
		must(t, err)
		if e, ok := seg2.Fenced(); !ok || e.Offset != want {
			t.Fatalf("seed %d: after the crash fenced at %d, want %d", seed, e.Offset, want)
		}
		holds(t, seg2, acked...)
		closeStore(t, s2)
		closeStore(t, s)
	}
	if failed < 20 {
		t.Errorf("%d fences failed", failed)
	}
}

// A failed copy that has lost acknowledged records since is damaged: no fence hides
// that, however often it is asked.
func TestFenceOfACopyThatLostRecords(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 12))
	d := newDisk(1)
	s, _ := openStore(t, d, testOptions())
	seg := newSegment(t, s, segID(0, 0), 0, nil)
	p := &source{id: 7}
	var last int64
	for range 5 {
		last = seg.Position()
		put(t, seg, p.next(rng, 1, 6000))
	}
	fault := d.Fail(simdisk.Always(syscall.EIO, appendWrite))
	f, err := send(t, seg, p.next(rng, 1, 100))
	must(t, err)
	f.wait(t)
	if !errors.Is(f.Err, ErrStorage) || fault.ErrorCount() != 1 {
		t.Fatal(f.Err)
	}
	fault.Stop()
	file, err := d.Open(seg.File(), false)
	must(t, err)
	must(t, file.WriteAt(make([]byte, 4096), last))
	must(t, file.Close())
	for range 2 {
		if end, err := seg.Fence(); !errors.Is(err, ErrDamaged) {
			t.Fatalf("fenced at %+v: %v", end, err)
		}
		if _, ok := seg.Fenced(); ok {
			t.Fatal("fenced without its records")
		}
	}
}

// While a fence is under way an append learns that it is, not where it ends.
func TestAppendWhileFencing(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 9))
	d := newDisk(1)
	s, _ := openStore(t, d, testOptions())
	seg := newSegment(t, s, segID(0, 0), 0, nil)
	hold := d.Hold(appendWrite)
	p := &source{id: 7}
	first := p.next(rng, 3, 100)
	f, err := send(t, seg, first)
	must(t, err)
	ends := make(chan fence.End, 3)
	for range 3 {
		go func() {
			end, err := seg.Fence()
			if err != nil {
				t.Error(err)
			}
			ends <- end
		}()
	}
	eventually(t, "the fence has begun", func() bool { return !seg.Writable() })
	var sealed *SealedError
	if _, err := send(t, seg, p.next(rng, 1, 100)); !errors.As(err, &sealed) || !sealed.Fencing {
		t.Fatalf("append while fencing: %v", err)
	}
	if _, ok := seg.Fenced(); ok {
		t.Fatal("fenced while a flush is in flight")
	}
	hold.Release()
	for range 3 {
		if end := <-ends; end.Offset != 3 {
			t.Fatalf("fenced at %d", end.Offset)
		}
	}
	f.wait(t)
	must(t, f.Err)
	if _, err := send(t, seg, p.next(rng, 1, 100)); !errors.As(err, &sealed) || sealed.Fencing || sealed.End != 3 {
		t.Fatalf("append after the fence: %v", err)
	}
	holds(t, seg, first)
}
