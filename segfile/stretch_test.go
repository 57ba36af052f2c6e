package segfile

import (
	"math/rand/v2"
	"testing"
)

// A stretch longer than the search, gone from a file that had zeros or an earlier
// life in it, is not taken for the end: frames far behind it still tell, wherever there
// are as many as lie between two probes.
func TestALongStretchIsGone(t *testing.T) {
	const mib = 1 << 20
	for _, c := range []struct {
		size, gone, behind int64 // of the file, of what is lost in it, and of the frames behind that
		found              bool
	}{
		{16 * mib, 3 * mib, 7 * mib, true},
		{48 * mib, 20 * mib, 16 * mib, true}, // behind the probes at 4 and 16 MiB
		{48 * mib, 20 * mib, 2 * mib, false}, // between that and the next
	} {
		d := newDisk(1)
		p, err := NewPool(d, PoolOptions{SegmentBytes: c.size})
		must(t, err)
		f, err := d.Create(poolName(1, poolNew))
		must(t, err)
		must(t, f.Allocate(0, c.size))
		must(t, f.Close())
		p.keep(poolFile{num: 1, kind: poolNew, size: c.size})
		w := create(t, p, testMeta(1))
		if w.hdr.blocks != c.size {
			t.Fatalf("the file was %d bytes long", w.hdr.blocks)
		}
		rng := rand.New(rand.NewPCG(1, 1))
		write(t, w, rng, 3, 1, 700_000)
		at := w.Position()
		w.pos, w.tally.next = w.pos+c.gone, w.tally.next+1000 // as if a thousand records lay there
		for w.Position() < at+c.gone+c.behind {
			write(t, w, rng, 1, 1, 700_000)
		}
		must(t, w.Close())
		v := mustRecover(t, d, seg1)
		switch {
		case !c.found: // as probe says of itself
			if v.State != Clean || v.End.Position != at {
				t.Errorf("%d MiB gone: %s (%s) at %+v", c.gone/mib, v.State, v.Why, v.End)
			}
		case v.State != Damaged || v.End.Offset != w.NextOffset() || len(v.Holes) != 1 || v.Holes[0].Position != at || v.Holes[0].Records != 1000:
			t.Errorf("%d MiB gone: %s (%s) at %+v, holes %+v", c.gone/mib, v.State, v.Why, v.End, v.Holes)
		}
	}
}
