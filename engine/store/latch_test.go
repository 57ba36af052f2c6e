package store

import (
	"math/rand/v2"
	"syscall"
	"testing"

	"github.com/ringfence/ringfence/segfile/disk/simdisk"
)

// The write of a latch fails, though its bytes can be read; the fence that is then asked for
// again, and answered, outlives a power cut. (Of a file that was trimmed behind such a latch
// an open one, and short, would be left.)
func TestFenceAgainBehindAFailedLatch(t *testing.T) {
	seen := 0
	for seed := range seeds(40) {
		rng := rand.New(rand.NewPCG(seed, 9))
		d := newDisk(seed)
		s, _ := openStore(t, d, testOptions())
		seg := newSegment(t, s, segID(0, 0), 0, nil)
		b := (&source{id: 7}).next(rng, 2, 100)
		put(t, seg, b)
		latch := func(e simdisk.Event) bool {
			return e.Action == simdisk.Write && e.Name == seg.File() && e.Off == 4096
		}
		fault := d.Fail(simdisk.Nth(1, syscall.EIO, latch))
		if _, err := seg.Fence(); err == nil || fault.ErrorCount() != 1 {
			t.Fatalf("seed %d: %v with %d faults", seed, err, fault.ErrorCount())
		}
		fault.Stop()
		for _, c := range contents(t, d, seg.File())[4096:4104] {
			if c != 0 {
				seen++
				break
			}
		}
		end, err := seg.Fence()
		must(t, err)
		for range 4 {
			after, rec := openStore(t, d.Crash(rng), testOptions())
			if rec.Fenced != 1 || len(rec.Recovered)+len(rec.Damaged) > 0 {
				t.Fatalf("seed %d: after a power cut: %+v", seed, rec)
			}
			got := mustSegment(t, after, segID(0, 0))
			if again, ok := got.Fenced(); !ok || again != end {
				t.Fatalf("seed %d: fenced at %+v, %v, and was at %+v", seed, again, ok, end)
			}
			holds(t, got, b)
			closeStore(t, after)
		}
		closeStore(t, s)
	}
	if seen == 0 {
		t.Error("no latch was seen whose write failed")
	}
}
