package segfile

import (
	"errors"
	"math/rand/v2"
	"testing"
)

// A11, A05: an open file that is shorter than it was made is damaged, wherever it was
// cut, also between two frames, where the rest looks like all there ever was. It is
// fenced behind the last frame that is whole. One that has its length is clean.
func TestA11OpenFileIsShorterThanItWasMade(t *testing.T) {
	for _, l := range []life{lifePrepared, lifeRecycled} {
		rng := rand.New(rand.NewPCG(1, uint64(l)))
		d := newDisk(1)
		w := create(t, newTestPool(t, d, l), testMeta(1))
		frames := write(t, w, rng, 12, 2, 900)
		end := w.End()
		must(t, w.Close())
		if v := mustRecover(t, d, seg1); v.State != Clean || v.hdr.blocks <= end.Position || v.End != end {
			t.Fatalf("%s: %s at %+v, made with %d bytes", l, v.State, v.End, v.hdr.blocks)
		}
		whole := contents(t, d, seg1)
		between := 0
		for cut := frames[0].pos; cut < int64(len(whole)); cut += 512 {
			if cut > end.Position+2*block && cut%(64<<10) != 0 {
				continue
			}
			change(t, d, seg1, func([]byte) []byte { return append([]byte(nil), whole[:cut]...) })
			n := 0
			for n < len(frames) && frames[n].pos+int64(frames[n].head.FrameLen) <= cut {
				n++
			}
			want := uint64(1000)
			if n > 0 {
				want = frames[n-1].head.Next()
			}
			v := mustRecover(t, d, seg1)
			if v.State != Damaged || v.End.Offset != want || len(v.Faults) == 0 || v.Faults[0].Byte != cut || v.Table == nil {
				t.Fatalf("%s, cut to %d: %s (%s) at %d, want %d; faults %v", l, cut, v.State, v.Why, v.End.Offset, want, v.Faults)
			}
			if v.Cut.Length == 0 {
				between++
			}
			if _, err := Verify(d, seg1, nil); !errors.Is(err, ErrDamaged) {
				t.Fatalf("%s, cut to %d: Verify: %v", l, cut, err)
			}
			if _, err := v.Fence(testNow, 1); err != nil {
				t.Fatal(err)
			}
			holds(t, d, seg1, frames[:n])
			sound(t, d, seg1)
		}
		if between < len(frames) {
			t.Errorf("%s: only %d cuts left nothing broken behind", l, between)
		}
	}
}
