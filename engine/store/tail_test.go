package store

import (
	"bytes"
	"math/rand/v2"
	"testing"
)

// A tail answers what was added last, whatever the sizes and the gaps, and a snapshot that a
// reader has stays what it is.
func TestTailKeepsTheNewest(t *testing.T) {
	for seed := range uint64(4) {
		rng := rand.New(rand.NewPCG(seed, 7))
		var tl tail
		var all []chunk
		var old, was []chunk // a snapshot, and what it was
		most := 1 << (12 + 3*seed)
		pos, copied := int64(0), 0
		for round := range 6000 >> seed {
			if rng.IntN(10) == 0 {
				pos += int64(1 + rng.IntN(5000)) // what nobody kept
			}
			c := chunk{pos, make([]byte, 1+rng.IntN(most))}
			for i := 0; i < len(c.data); i += 64 {
				c.data[i] = byte(rng.Uint32())
			}
			tl.add(c.pos, c.data)
			all = append(all, c)
			pos += int64(len(c.data))

			kept, n := 0, 0
			for i := len(all) - 1; i >= 0 && (n == 0 || kept+len(all[i].data) <= tailBytes); i-- {
				kept += len(all[i].data)
				n++
			}
			snap := *tl.snap.Load()
			if len(snap) != n {
				t.Fatalf("seed %d: %d chunks are kept of %d bytes, want %d", seed, len(snap), kept, n)
			}
			if tl.gone > n/8 {
				t.Fatalf("seed %d: %d chunks are gone and lie in memory beside %d", seed, tl.gone, n)
			}
			if len(all) > n && tl.gone == 0 {
				copied++
			}
			at := all[len(all)-1-rng.IntN(min(len(all), 2*n))]
			in := rng.IntN(len(at.data))
			got := tl.from(at.pos + int64(in))
			if want := at.pos >= snap[0].pos; want != (got != nil) || want && !bytes.Equal(got, at.data[in:]) {
				t.Fatalf("seed %d: byte %d is in the tail: %v, got %d bytes", seed, at.pos+int64(in), want, len(got))
			}
			if round%50 > 0 {
				continue
			}
			for i := range old {
				if old[i].pos != was[i].pos || &old[i].data[0] != &was[i].data[0] {
					t.Fatalf("seed %d: a snapshot changed", seed)
				}
			}
			old, was = snap, append(was[:0], snap...)
		}
		if tl.from(pos) != nil || tl.from(-1) != nil {
			t.Fatalf("seed %d: the tail has what was never added", seed)
		}
		last := all[len(all)-1]
		if tl.from(last.pos-1) != nil && last.pos-1 >= all[len(all)-2].pos+int64(len(all[len(all)-2].data)) {
			t.Fatalf("seed %d: the tail has a gap", seed)
		}
		if copied == 0 || seed == 0 && copied > len(all)/20 {
			t.Fatalf("seed %d: of %d tails %d were copied", seed, len(all), copied)
		}
		tl.drop()
		if tl.from(last.pos) != nil {
			t.Fatalf("seed %d: a dropped tail has something", seed)
		}
		tl.add(last.pos, last.data)
		if snap := *tl.snap.Load(); len(snap) != 1 || tl.bytes != int64(len(last.data)) {
			t.Fatalf("seed %d: %d chunks of %d bytes after a drop", seed, len(snap), tl.bytes)
		}
	}
}
