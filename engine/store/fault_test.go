package store

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"syscall"
	"testing"

	"github.com/ringfence/ringfence/fence"
	"github.com/ringfence/ringfence/segfile/disk/simdisk"
)

// successor opens the segment after seg, at its end and with what it knows of its
// producers.
func successor(t testing.TB, seg *Segment, end fence.End) *Segment {
	t.Helper()
	table, err := seg.Producers()
	must(t, err)
	id := seg.ID()
	id.Seq++
	return newSegment(t, seg.store, id, end.Offset, table.Clone())
}

// C02, A14, C07, C08, E01: a write fails, whole or in part, while others of the
// segment are in flight. No append in or behind it is acknowledged, nothing is
// written behind it, the copy is fenced at the last acknowledged record, and what
// the failed write left in the file neither comes back after a power cut nor makes
// the producers' repeats look stored.
func TestC02FailedWriteLatchesTheCopy(t *testing.T) {
	eio := error(syscall.EIO)
	faults := map[string]error{
		"EIO": eio, "ENOSPC": syscall.ENOSPC, "EROFS": syscall.EROFS, "ESTALE": syscall.ESTALE,
		"short 0": simdisk.Short(0), "short 512": simdisk.Short(512), "short 4096": simdisk.Short(4096), "short 16384": simdisk.Short(16384),
	}
	visible := 0
	for name, fault := range faults {
		for seed := range seeds(6) {
			t.Run(fmt.Sprint(name, "/seed=", seed), func(t *testing.T) {
				visible += failOneWrite(t, seed, fault)
			})
		}
	}
	if visible == 0 {
		t.Error("no failed write left a whole flush behind: the trap never closed")
	}
}

// failOneWrite returns how many flushes that failed could be read all the same.
func failOneWrite(t *testing.T, seed uint64, fault error) (visible int) {
	rng := rand.New(rand.NewPCG(seed, 2))
	d := newDisk(seed)
	o := testOptions()
	o.OverlapBytes, o.Flushes = 1, 4
	s, _ := openStore(t, d, o)
	seg := newSegment(t, s, segID(0, 0), 0, nil)
	other := newSegment(t, s, segID(1, 0), 0, nil)
	p, q := &source{id: 7}, &source{id: 8}
	var acked []*batch
	for range rng.IntN(3) {
		b := p.next(rng, 2, rng.IntN(9000))
		put(t, seg, b)
		acked = append(acked, b)
	}

	// Four flushes fly, one of them fails, and more wait.
	bad := rng.IntN(4)
	hold := d.Hold(func(e simdisk.Event) bool { return appendWrite(e) && e.Name == seg.File() })
	var all []*flying
	var mu sync.Mutex
	var order []*batch
	arena := s.Disk().Arena()
	for range 7 {
		b := p.next(rng, 2, 33_000)
		fl := &flying{b: b, seg: seg, done: make(chan struct{})}
		fl.Frame = b.frame(t, arena)
		fl.Done = func(a *Append) {
			arena.Free(a.Frame)
			mu.Lock()
			order = append(order, b)
			mu.Unlock()
			close(fl.done)
		}
		must(t, seg.Append(&fl.Append))
		all = append(all, fl)
	}
	if hold.Count() != 4 {
		t.Fatalf("%d flushes in flight, want 4", hold.Count())
	}
	var at []int64
	for _, e := range d.Trace() {
		if e.Action == simdisk.Submit && e.Name == seg.File() {
			at = append(at, e.Off)
		}
	}
	at = at[len(at)-4:]
	failing := d.Fail(func(e simdisk.Event) error {
		if appendWrite(e) && e.Name == seg.File() && e.Off == at[bad] {
			return fault
		}
		return nil
	})
	hold.Release()
	for i, fl := range all {
		fl.wait(t)
		if i < bad {
			must(t, fl.Err)
			acked = append(acked, fl.b)
			continue
		}
		if !errors.Is(fl.Err, ErrStorage) {
			t.Fatalf("append %d, in or behind the failed flush %d: %v", i, bad, fl.Err)
		}
		if full := errors.Is(fault, syscall.ENOSPC); errors.Is(fl.Err, ErrOutOfSpace) != full {
			t.Fatalf("the fault was %v, the answer is %v", fault, fl.Err)
		}
	}
	if failing.ErrorCount() != 1 {
		t.Fatalf("%d faults", failing.ErrorCount())
	}
	failing.Stop()
	s.full.Store(false)                // after ENOSPC until the next look at the space
	put(t, other, q.next(rng, 1, 100)) // other segments keep working
	mu.Lock()
	for i, b := range order {
		if b != all[i].b {
			t.Fatalf("answer %d is for another append", i)
		}
	}
	mu.Unlock()
	if _, err := send(t, seg, p.next(rng, 1, 10)); !errors.Is(err, ErrStorage) {
		t.Fatalf("a failed copy answered an append with %v", err)
	}
	if seg.Writable() {
		t.Fatal("a failed copy says that it is writable")
	}
	var failure *simdisk.Event
	for _, e := range d.Trace() {
		switch {
		case appendWrite(e) && e.Name == seg.File() && e.Err != nil:
			failure = &e
		case failure != nil && e.Action == simdisk.Submit && e.Name == seg.File():
			t.Fatalf("%v, and then %v", failure, e)
		}
	}
	holds(t, seg, acked...)
	visible = wholeFlush(t, d, seg, at[bad], all[bad].b)

	end, err := seg.Fence()
	must(t, err)
	if want := uint64(2 * len(acked)); end.Offset != want {
		t.Fatalf("fenced at %d, acknowledged up to %d", end.Offset, want)
	}
	if end.Position != at[bad] {
		t.Fatalf("fenced at byte %d, the failed flush lies at %d", end.Position, at[bad])
	}
	holds(t, seg, acked...)

	// The producer sends again, to the successor, all that was not acknowledged.
	next := successor(t, seg, end)
	var again []*batch
	for i := bad; i < len(all); i++ {
		fl := put(t, next, all[i].b)
		if fl.Duplicate {
			t.Fatalf("batch %d counts as stored", i)
		}
		again = append(again, all[i].b)
	}
	holds(t, next, again...)

	for i := range 3 {
		after := d.Crash(rng)
		s2, rec := openStore(t, after, testOptions())
		if len(rec.Damaged) > 0 || len(rec.Faulty) > 0 {
			t.Fatalf("crash %d: %+v", i, rec)
		}
		seg2, err := s2.Segment(seg.ID())
		must(t, err)
		if e, ok := seg2.Fenced(); !ok || e != end {
			t.Fatalf("crash %d: fenced at %+v, was %+v", i, e, end)
		}
		holds(t, seg2, acked...)
		sound(t, after, seg.File())
		next2, err := s2.Segment(next.ID())
		must(t, err)
		holds(t, next2, again...)
		closeStore(t, s2)
	}
	return visible
}

// wholeFlush says whether a flush that failed lies in the file all the same.
func wholeFlush(t *testing.T, d *simdisk.Disk, seg *Segment, at int64, b *batch) int {
	t.Helper()
	f, err := d.Open(seg.File(), true)
	must(t, err)
	defer f.Close()
	p := make([]byte, 72<<10)
	n, _ := f.ReadAt(p, at)
	for _, v := range b.values {
		if !bytes.Contains(p[:n], v) {
			return 0
		}
	}
	return 1
}

// A13: an arena block whose write failed is not given out before its write has
// ended, and later records are exact.
func TestA13BuffersOfFailedWrites(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	d := newDisk(3)
	s, _ := openStore(t, d, testOptions())
	n := 0
	fault := d.Fail(func(e simdisk.Event) error {
		if appendWrite(e) {
			if n++; n%3 == 0 {
				return syscall.EIO
			}
		}
		return nil
	})
	p := &source{id: 7}
	seg := newSegment(t, s, segID(0, 0), 0, nil)
	segs := []*Segment{seg}
	want := map[fence.SegmentID][]*batch{}
	for i := range 60 {
		b := p.next(rng, 1+rng.IntN(3), 100+1000*(i%40))
		for {
			f, err := send(t, seg, b)
			if err == nil {
				f.wait(t)
				err = f.Err
			}
			if err == nil {
				break
			}
			end, err := seg.Fence()
			must(t, err)
			seg = successor(t, seg, end)
			segs = append(segs, seg)
		}
		want[seg.ID()] = append(want[seg.ID()], b)
	}
	if fault.ErrorCount() < 10 || d.Counts().ChangedBuffers != 0 {
		t.Fatalf("%d faults, %d buffers changed in flight", fault.ErrorCount(), d.Counts().ChangedBuffers)
	}
	for _, seg := range segs {
		holds(t, seg, want[seg.ID()]...)
	}
}
