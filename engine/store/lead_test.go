package store

import (
	"math/rand/v2"
	"sync"
	"testing"
)

// F02: a completion may come before Submit has returned; E20: many goroutines append
// at once. On real disks this runs in TestRealDisks; here every flush is also held
// up and reordered.
func TestManyAppenders(t *testing.T) {
	reordered := 0
	for seed := range seeds(3) {
		d := newDisk(seed)
		o := testOptions()
		o.Shards = 2
		o.OverlapBytes = 1
		s, _ := openStore(t, d, o)
		const segments, producers, batches = 3, 4, 40
		var g sync.WaitGroup
		var segs []*Segment
		for i := range uint32(segments) {
			segs = append(segs, newSegment(t, s, segID(i, 0), 0, nil))
		}
		for i, seg := range segs {
			for j := range producers {
				g.Go(func() {
					rng := rand.New(rand.NewPCG(seed, uint64(i*producers+j)))
					p := &source{id: uint64(100*i + j + 1)}
					for k := range batches {
						b := p.next(rng, 1+rng.IntN(3), rng.IntN(3000))
						if (j+k)%2 == 0 {
							put(t, seg, b)
							continue
						}
						a := &Append{Frame: b.frame(t, s.Disk().Arena()), Lead: true}
						if err := seg.Append(a); err != nil {
							t.Error(err)
							return
						}
						seg.Wait(a)
						if a.Err != nil {
							t.Error(a.Err)
						}
						s.Disk().Arena().Free(a.Frame)
					}
				})
			}
		}
		g.Wait()
		for i, seg := range segs {
			items, err := readSegment(seg, 0)
			must(t, err)
			contiguous(t, items, 0, seg.CommitMark())
			seqs := map[uint64]uint64{}
			for _, it := range items {
				if seqs[it.producer]++; it.seq != seqs[it.producer] {
					t.Fatalf("segment %d: producer %d: sequence %d at its record %d", i, it.producer, it.seq, seqs[it.producer])
				}
			}
			if len(seqs) != producers {
				t.Fatalf("%d producers", len(seqs))
			}
			if _, err := seg.Fence(); err != nil {
				t.Fatal(err)
			}
			sound(t, d, seg.File())
		}
		reordered += d.Counts().Reordered
		closeStore(t, s)
	}
	if reordered == 0 {
		t.Error("nothing was reordered")
	}
}

// A lead whose own append needs no write does not keep others waiting for what it
// started on their behalf.
func TestLeadLeavesNobodyBehind(t *testing.T) {
	for seed := range seeds(40) {
		rng := rand.New(rand.NewPCG(seed, 6))
		d := newDisk(seed)
		s, _ := openStore(t, d, testOptions())
		seg, other := newSegment(t, s, segID(0, 0), 0, nil), newSegment(t, s, segID(1, 0), 0, nil)
		p, q := &source{id: 7}, &source{id: 8}
		b := p.next(rng, 1, 100)
		put(t, seg, b)
		var g sync.WaitGroup
		for range 2 {
			g.Go(func() {
				for range 30 {
					a := &Append{Frame: b.frame(t, s.Disk().Arena()), Lead: true}
					if err := seg.Append(a); err != nil {
						t.Error(err)
						return
					}
					seg.Wait(a)
					if !a.Duplicate {
						t.Error("a repeat was stored")
					}
					s.Disk().Arena().Free(a.Frame)
				}
			})
		}
		var sent []*batch
		for range 30 {
			x := q.next(rng, 1, 100)
			put(t, other, x)
			sent = append(sent, x)
		}
		g.Wait()
		holds(t, other, sent...)
		closeStore(t, s)
	}
}

// The same, in the one order of events that matters: while the lead is at its
// repeat, somebody else queues.
func TestLeadStartsForOthers(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 6))
	d := newDisk(1)
	s, _ := openStore(t, d, testOptions())
	seg, other := newSegment(t, s, segID(0, 0), 0, nil), newSegment(t, s, segID(1, 0), 0, nil)
	if seg.shard != other.shard {
		t.Fatal("two shards")
	}
	p, q := &source{id: 7}, &source{id: 8}
	b := p.next(rng, 1, 100)
	put(t, seg, b)
	a := &Append{Frame: b.frame(t, s.Disk().Arena()), Lead: true}
	defer s.Disk().Arena().Free(a.Frame)
	sh := seg.shard
	sh.mu.Lock()
	sh.submitting = true // as if a lead were between two looks at the queues
	sh.mu.Unlock()
	must(t, seg.Append(a))
	f, err := send(t, other, q.next(rng, 1, 100))
	must(t, err)
	sh.mu.Lock()
	sh.submitting = false
	sh.pump(true)
	sh.mu.Unlock()
	seg.Wait(a)
	if !a.Duplicate {
		t.Fatal("a repeat was stored")
	}
	f.wait(t)
	must(t, f.Err)
}
