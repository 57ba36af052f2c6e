package segfile

import (
	"math/rand/v2"
	"syscall"
	"testing"

	"github.com/ringfence/ringfence/fence"
	"github.com/ringfence/ringfence/segfile/disk/simdisk"
)

// A latch that is seen may be one whose write failed and that the device never kept. Once it
// is renewed its blocks may be given back: after a power cut the file is neither open again
// nor shorter than an open one can be.
func TestRenewLatch(t *testing.T) {
	seen, lost := 0, 0
	for seed := range uint64(60) {
		d := newDisk(seed)
		p, err := NewPool(d, PoolOptions{SegmentBytes: 1 << 20})
		must(t, err)
		filled(t, p, 9, 900<<10)
		must(t, p.Recycle(Name(testID(9))))
		w := create(t, p, testMeta(1))
		if p.Stats().Recycled != 1 {
			t.Fatalf("%+v", p.Stats())
		}
		write(t, w, rand.New(rand.NewPCG(seed, 4)), 3, 5, 1000)
		end := w.End()
		fault := d.Fail(simdisk.Nth(1, syscall.EIO, func(e simdisk.Event) bool { return e.Action == simdisk.Write && e.Off == slotA }))
		if _, err := w.Fence(end, testNow, 77); err == nil || fault.ErrorCount() != 1 {
			t.Fatalf("seed %d: fence: %v", seed, err)
		}
		fault.Stop()
		must(t, w.Close())
		v, err := Recover(d, seg1)
		must(t, err)
		if v.Latch.State() == fence.Open {
			continue
		}
		seen++
		rng := rand.New(rand.NewPCG(seed, 5))
		if before, err := Recover(d.Crash(rng), seg1); err == nil && before.Latch.State() == fence.Open {
			lost++
		}
		must(t, RenewLatch(d, seg1))
		must(t, Trim(d, seg1))
		for range 8 {
			v, err := Recover(d.Crash(rng), seg1)
			must(t, err)
			if err := v.Err(); err != nil {
				t.Fatalf("seed %d: after a power cut: %v", seed, err)
			}
			if got, ok := v.Latch.End(); !ok || got != end {
				t.Fatalf("seed %d: after a power cut the file is fenced at %+v, %v, and was at %+v", seed, got, ok, end)
			}
		}
	}
	if seen == 0 || lost == 0 {
		t.Errorf("%d latches were seen whose write failed, %d of them could be lost", seen, lost)
	}
}
