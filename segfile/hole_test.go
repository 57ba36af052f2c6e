package segfile

import (
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/ringfence/ringfence/segfile/record"
)

// Zeros over frames of a closed file, or over their heads alone, are neither its end
// nor padding. Verify names the first of them, counts as lost what they lie over and
// nothing else, and reading stops there. Where they reach from inside a block to its end
// or beyond it cannot know in which the frame started, and names the later one.
func TestZerosOverFrames(t *testing.T) {
	exact, near := 0, 0
	for seed := range seeds(20) {
		rng := rand.New(rand.NewPCG(seed, 31))
		d := newDisk(seed)
		frames, latch := fenced(t, d, rng, life(seed%uint64(lives)), 200<<10)
		end, _ := latch.End()
		whole := contents(t, d, seg1)
		for range 30 {
			i := 1 + rng.IntN(len(frames)-1)
			last := i
			from, to := frames[i].pos, frames[i].pos+record.HeaderSize
			switch rng.IntN(6) {
			case 0:
				to = from + int64(frames[i].head.FrameLen)
			case 1:
				last = min(len(frames)-1, i+rng.IntN(10))
				to = frames[last].pos + int64(frames[last].head.FrameLen)
			case 2:
				last, to = len(frames)-1, end.Position
			case 3: // the footer too
				last, to = len(frames)-1, int64(len(whole))
			}
			wipe(t, d, seg1, from, to)
			rep, err := Verify(d, seg1, nil)
			var c *CorruptError
			switch {
			case !errors.As(err, &c):
				t.Fatalf("seed %d: zeros from %d to %d: %v", seed, from, to, err)
			case c.Byte == from:
				exact++
			case from%block != 0 && to >= alignBlock(from) && c.Byte == alignBlock(from):
				near++
			default:
				t.Fatalf("seed %d: zeros from %d to %d are reported at %d: %s", seed, from, to, c.Byte, c.Reason)
			}
			var lost, want uint64
			for _, h := range rep.Holes {
				lost += h.Records
			}
			for _, f := range frames[i : last+1] {
				want += uint64(f.head.Count)
			}
			if lost != want || rep.Records+lost != end.Offset-testMeta(1).Base || rep.End != end {
				t.Fatalf("seed %d: zeros from %d to %d: %d records lost, %d read, want %d lost of %d to %+v; %+v",
					seed, from, to, lost, rep.Records, want, end.Offset-testMeta(1).Base, rep.End, rep.Holes)
			}
			readsRight(t, d, frames)
			patch(t, d, seg1, 0, int64(len(whole)), func(b []byte) { copy(b, whole) })
		}
		sound(t, d, seg1)
	}
	if exact < 100 || near == 0 {
		t.Errorf("%d reported where they are, %d at the next block", exact, near)
	}
}
