package store

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/ringfence/ringfence/segfile"
	"github.com/ringfence/ringfence/segfile/disk"
	"github.com/ringfence/ringfence/segfile/disk/simdisk"
)

// The last flush of a segment that was quiet is missed when it is lost, though nothing lies
// behind it, after a kill and after a power cut. Nobody misses that of one which was not.
func TestLastFlushOfAQuietSegmentIsMissed(t *testing.T) {
	for seed := range seeds(20) {
		rng := rand.New(rand.NewPCG(seed, 40))
		d := newDisk(seed)
		s, _, err := Open(d, testOptions(), nil)
		must(t, err)
		quiet, busy := newSegment(t, s, segID(0, 0), 0, nil), newSegment(t, s, segID(1, 0), 0, nil)
		p, q := &source{id: 1}, &source{id: 2}
		var at [2]int64 // of the last flush
		for range 1 + rng.IntN(5) {
			at = [2]int64{quiet.Position(), busy.Position()}
			put(t, quiet, p.next(rng, 2, 3000))
			put(t, busy, q.next(rng, 2, 3000))
		}
		s.proveQuiet()
		at[1] = busy.Position()
		put(t, busy, q.next(rng, 2, 3000))
		s.proveQuiet()
		settled(t, quiet)
		settled(t, busy)
		ends := [2]uint64{quiet.CommitMark(), busy.CommitMark()}
		if rng.IntN(2) == 0 {
			d = d.Kill()
			abandon(s)
		} else {
			d.CutAfter(-1)
			cut := d.Crash(rng)
			must(t, s.Close())
			d = cut
		}
		for i, name := range []string{quiet.File(), busy.File()} {
			b := contents(t, d, name)
			if isZeros(b[at[i]:]) {
				t.Fatalf("seed %d: the last flush of %s is not there", seed, name)
			}
			clear(b[at[i]:])
			write(t, d, name, b)
		}
		s, rec := openStore(t, d, testOptions())
		for i, id := range []uint32{0, 1} {
			seg := mustSegment(t, s, segID(id, 0))
			v := rec.Recovered[slices.IndexFunc(rec.Recovered, func(v Verdict) bool { return v.ID == segID(id, 0) })]
			end, _ := seg.Fenced()
			_, err := readSegment(seg, 0)
			switch {
			case i == 1:
				if v.Verdict.State != segfile.Clean || end.Offset != ends[1]-2 || err != nil {
					t.Fatalf("seed %d: the busy one: %s, to %d of %d: %v", seed, v.Verdict.State, end.Offset, ends[1], err)
				}
			case v.Verdict.State != segfile.Damaged || end.Offset != ends[0] || !errors.Is(err, ErrDamaged) || v.Verdict.Holes[0].Position != at[0] || v.Verdict.Holes[0].Records != 2:
				t.Fatalf("seed %d: the quiet one: %s (%s), to %d of %d, holes %+v: %v", seed, v.Verdict.State, v.Verdict.Why, end.Offset, ends[0], v.Verdict.Holes, err)
			}
		}
		closeStore(t, s)
	}
}

// A segment is proved once for each time that it falls quiet, in place, and takes appends
// and its fence as ever; one whose write is late is not quiet.
func TestQuietSegmentsAreProvedOnce(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 41))
	d := newDisk(1)
	s, _ := openStore(t, d, testOptions())
	seg := newSegment(t, s, segID(0, 0), 0, nil)
	p := &source{id: 1}
	pointers := d.Hold(func(e simdisk.Event) bool { return appendWrite(e) && e.Off < segfile.DataStart+2*disk.Block })
	look := func(want int) {
		t.Helper()
		s.proveQuiet()
		if n := pointers.Count(); n != want {
			t.Fatalf("%d pointers were written, want %d", n, want)
		}
	}
	look(0)
	look(0) // there is nothing to prove
	var all []*batch
	for n := range 3 {
		all = append(all, p.next(rng, 3, 100))
		put(t, seg, all[n])
		at := seg.Position()
		look(0) // it may just have come
		look(1)
		look(1) // on its way
		pointers.Release()
		settled(t, seg)
		if seg.Position() != at {
			t.Fatalf("the file grew from %d to %d", at, seg.Position())
		}
		pointers = d.Hold(func(e simdisk.Event) bool { return appendWrite(e) && e.Off < segfile.DataStart+2*disk.Block })
		look(0)
	}
	pointers.Release()
	hold := d.Hold(func(e simdisk.Event) bool { return appendWrite(e) })
	all = append(all, p.next(rng, 3, 100))
	f, err := send(t, seg, all[3])
	must(t, err)
	eventually(t, "the write", func() bool { return hold.Count() == 1 })
	s.proveQuiet()
	s.proveQuiet()
	if n := hold.Count(); n != 1 {
		t.Fatalf("%d writes beside a late one", n-1)
	}
	hold.Release()
	f.wait(t)
	must(t, f.Err)
	holds(t, seg, all...)
	_, err = seg.Fence()
	must(t, err)
	s.proveQuiet()
	s.proveQuiet()
	sound(t, d, seg.File())
}

// So many segments fall quiet at a time that not all pointers fit one look.
func TestManyQuietSegments(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 42))
	s, _ := openStore(t, newDisk(1), testOptions())
	var all []*Segment
	for i := range uint32(3 * quietMost) {
		all = append(all, newSegment(t, s, segID(i, 0), 0, nil))
		put(t, all[i], (&source{id: uint64(i) + 1}).next(rng, 1, 10))
	}
	proved := func() (n int) {
		for _, seg := range all {
			settled(t, seg)
			if seg.proved > 0 {
				n++
			}
		}
		return n
	}
	for _, want := range []int{0, quietMost, 2 * quietMost, 3 * quietMost, 3 * quietMost} {
		s.proveQuiet()
		if n := proved(); n != want {
			t.Fatalf("%d are proved, want %d", n, want)
		}
	}
}

// settled waits until nothing of a segment is on its way.
func settled(t *testing.T, seg *Segment) {
	t.Helper()
	eventually(t, "the segment to be quiet", func() bool {
		seg.shard.mu.Lock()
		defer seg.shard.mu.Unlock()
		return seg.flushes.len() == 0
	})
}

func isZeros(b []byte) bool { return !slices.ContainsFunc(b, func(c byte) bool { return c != 0 }) }
