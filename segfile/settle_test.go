package segfile

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/ringfence/ringfence/fence"
)

// A settlement cuts a fenced copy once, at the end of a frame; a crash in it leaves
// the copy at one of the two ends.
func TestSettle(t *testing.T) {
	var before, after int
	for seed := range seeds(60) {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 8))
			d := newDisk(seed)
			frames, latch := fenced(t, d, rng, life(seed%uint64(lives)), 60<<10)
			old, _ := latch.End()
			n := rng.IntN(len(frames))
			want := uint64(1000)
			if n > 0 {
				want = frames[n-1].head.Next()
			}
			if frames[n].head.Count > 1 {
				if _, err := Settle(d, seg1, want+1, testNow, 9); !errors.Is(err, ErrBoundary) {
					t.Fatalf("settled inside a frame: %v", err)
				}
			}
			d.CutAfter(rng.IntN(3))
			_, err := Settle(d, seg1, want, testNow, 9)
			d.CutAfter(-1)
			d = d.Crash(rng)
			v := mustRecover(t, d, seg1)
			switch {
			case v.End.Offset == want && v.Latch.State() == fence.Settled:
				after++
			case v.End == old && err != nil:
				before++
			default:
				t.Fatalf("settling at %d (%v): %v at %+v", want, err, v.Latch.State(), v.End)
			}
			l, err := Settle(d, seg1, want, testNow, 9)
			if end, _ := l.End(); err != nil || end.Offset != want || l.State() != fence.Settled {
				t.Fatalf("%v at %+v: %v", l.State(), end, err)
			}
			if _, err := Settle(d, seg1, want, testNow, 9); err != nil {
				t.Fatalf("settled again: %v", err)
			}
			if n+1 < len(frames) {
				if _, err := Settle(d, seg1, frames[n].head.Next(), testNow, 9); !errors.Is(err, fence.ErrSettled) {
					t.Fatalf("settled elsewhere: %v", err)
				}
			}
			holds(t, d, seg1, frames[:n])
			sound(t, d, seg1)
			if latched, _ := l.Latched(); latched != old {
				t.Errorf("the fence was at %+v, now the latch says %+v", old, latched)
			}
			// A and B may go: the settlement alone still says where the end is.
			wipe(t, d, seg1, slotA, slotC)
			if v := mustRecover(t, d, seg1); v.End.Offset != want || v.Latch.State() == fence.Open || len(v.Faults) == 0 {
				t.Errorf("without A and B: %v at %+v", v.Latch.State(), v.End)
			}
		})
	}
	if before == 0 || after == 0 {
		t.Errorf("%d crashes before the settlement, %d after: the test does not test both", before, after)
	}
}

func TestSettleRefuses(t *testing.T) {
	d := newDisk(1)
	w := create(t, newTestPool(t, d, lifeGrown), testMeta(1))
	write(t, w, rand.New(rand.NewPCG(1, 1)), 4, 2, 100)
	if _, err := Settle(d, seg1, 1002, testNow, 1); !errors.Is(err, fence.ErrNotFenced) {
		t.Errorf("open: %v", err)
	}
	fenceNow(t, w)
	if _, err := Settle(d, seg1, 1009, testNow, 1); !errors.Is(err, fence.ErrExtend) {
		t.Errorf("longer: %v", err)
	}
	if _, err := Settle(d, seg1, 999, testNow, 1); !errors.Is(err, fence.ErrBelowBase) {
		t.Errorf("below the base: %v", err)
	}
	if l, err := Settle(d, seg1, 1008, testNow, 1); err != nil || l.State() != fence.Fenced {
		t.Errorf("at its end: %v %v", l.State(), err)
	}
}
