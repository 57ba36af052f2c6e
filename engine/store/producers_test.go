package store

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/ringfence/ringfence/segfile"
)

// Producers are known over restarts, rolls and both: repeats are recognised, however
// long ago, and gaps are gaps.
func TestProducersOverRestarts(t *testing.T) {
	rng := rand.New(rand.NewPCG(9, 30))
	d := newDisk(9)
	p, q := &source{id: 7}, &source{id: 8}
	var sent, late []*batch
	base := uint64(0)
	for i := range uint32(6) {
		s, _ := openStore(t, d, testOptions())
		var seg *Segment
		if i == 0 {
			seg = newSegment(t, s, segID(0, 0), 0, nil)
		} else {
			last := mustSegment(t, s, segID(0, i-1))
			end, ok := last.Fenced()
			if !ok || end.Offset != base {
				t.Fatalf("segment %d ends at %d, want %d", i-1, end.Offset, base)
			}
			seg = successor(t, last, end)
		}
		for _, b := range append(slices.Clone(sent), late...) {
			if f := put(t, seg, b); !f.Duplicate {
				t.Fatalf("start %d: a repeat was stored", i)
			}
		}
		b := p.next(rng, 2, 100)
		skipped := p.next(rng, 1, 100)
		f, err := send(t, seg, skipped)
		must(t, err)
		if f.wait(t); !errors.Is(f.Err, ErrGap) && !errors.Is(f.Err, ErrUnknownProducer) {
			t.Fatalf("start %d: a gap: %v", i, f.Err)
		}
		put(t, seg, b)
		put(t, seg, skipped)
		sent = append(sent, b, skipped)
		base += 3
		if i == 2 {
			x := q.next(rng, 4, 10)
			put(t, seg, x)
			late = append(late, x)
			base += 4
		}
		if rng.IntN(2) == 0 {
			if _, err := seg.Fence(); err != nil {
				t.Fatal(err)
			}
		} else if _, err := seg.Producers(); err == nil {
			t.Fatal("an open segment tells of its producers")
		}
		closeStore(t, s)
		d = d.Crash(rng)
	}
}

// What a segment tells of its producers is the caller's: whoever gets it next is told
// the same. When damage took it, nobody is told that there was nothing.
func TestProducersAreTheCallersOwn(t *testing.T) {
	rng := rand.New(rand.NewPCG(13, 30))
	d := newDisk(13)
	s, _ := openStore(t, d, testOptions())
	p := &source{id: 7}
	seg := newSegment(t, s, segID(0, 0), 0, nil)
	put(t, seg, p.next(rng, 2, 100))
	end, err := seg.Fence()
	must(t, err)
	for i := range uint32(3) { // as when a birth is tried again
		table, err := seg.Producers()
		must(t, err)
		if seq, _, ok := table.Lookup(7, 0); !ok || seq != 2 {
			t.Fatalf("time %d: the producer stands at %d", i, seq)
		}
		next := newSegment(t, s, segID(0, i+1), end.Offset, table)
		put(t, next, (&source{id: 7, seq: 2, prev: 2}).next(rng, 3, 100))
	}
	put(t, newSegment(t, s, segID(1, 0), 0, nil), (&source{id: 9}).next(rng, 1, 100))
	closeStore(t, s)
	d = d.Reopen()
	must(t, d.Rot(segfile.Name(segID(1, 0)), segfile.DataStart+200))
	s, rec := openStore(t, d.Reopen(), testOptions())
	if len(rec.Faulty) == 0 {
		t.Fatalf("%+v", rec)
	}
	if table, err := mustSegment(t, s, segID(1, 0)).Producers(); !errors.Is(err, ErrDamaged) || table != nil {
		t.Fatalf("producers of a damaged start mark: %v, %v", table, err)
	}
	var sealed *SealedError
	if _, err := send(t, mustSegment(t, s, segID(0, 0)), p.next(rng, 1, 10)); !errors.As(err, &sealed) || sealed.End != 2 {
		t.Fatalf("append on a segment of an earlier process: %v", err)
	}
}
