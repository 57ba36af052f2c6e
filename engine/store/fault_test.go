package store

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
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

// A fence whose own writes fail gives no answer, can be asked again, and then ends
// where the first one would have.
func TestFenceThatFailsCanBeAskedAgain(t *testing.T) {
	failed := 0
	for seed := range seeds(60) {
		rng := rand.New(rand.NewPCG(seed, 3))
		d := newDisk(seed)
		s, _ := openStore(t, d, testOptions())
		seg := newSegment(t, s, segID(0, 0), 50, nil)
		p := &source{id: 7}
		var acked []*batch
		for range 1 + rng.IntN(4) {
			b := p.next(rng, 1+rng.IntN(3), rng.IntN(6000))
			put(t, seg, b)
			acked = append(acked, b)
		}
		want := seg.CommitMark()
		writes := 0
		fault := d.Fail(func(e simdisk.Event) error {
			if e.Action != simdisk.Write || e.Name != seg.File() {
				return nil
			}
			if writes++; rng.IntN(2) == 0 {
				return []error{syscall.EIO, syscall.ENOSPC, simdisk.Short(512)}[rng.IntN(3)]
			}
			return nil
		})
		for try := range 3 {
			end, err := seg.Fence()
			if err == nil {
				if end.Offset != want {
					t.Fatalf("seed %d: fenced at %d, want %d", seed, end.Offset, want)
				}
				break
			}
			failed++
			if !errors.Is(err, ErrStorage) {
				t.Fatalf("seed %d, try %d: %v", seed, try, err)
			}
			if _, ok := seg.Fenced(); ok {
				t.Fatalf("seed %d: fenced without an answer", seed)
			}
			if _, err := send(t, seg, p.next(rng, 1, 10)); !errors.Is(err, ErrStorage) {
				t.Fatalf("seed %d: an append after a failed fence: %v", seed, err)
			}
			if rng.IntN(3) == 0 { // or the power goes, and the next start fences
				break
			}
		}
		fault.Stop()
		if rng.IntN(2) == 0 {
			end, err := seg.Fence()
			if err != nil || end.Offset != want {
				t.Fatalf("seed %d: fenced at %d, want %d: %v", seed, end.Offset, want, err)
			}
			holds(t, seg, acked...)
		}
		after := d.Crash(rng)
		s2, rec := openStore(t, after, testOptions())
		if len(rec.Damaged) > 0 {
			t.Fatalf("seed %d: %v", seed, rec.Damaged[0].Err)
		}
		seg2, err := s2.Segment(seg.ID())
		must(t, err)
		if e, ok := seg2.Fenced(); !ok || e.Offset != want {
			t.Fatalf("seed %d: after the crash fenced at %d, want %d", seed, e.Offset, want)
		}
		holds(t, seg2, acked...)
		closeStore(t, s2)
		closeStore(t, s)
	}
	if failed < 20 {
		t.Errorf("%d fences failed", failed)
	}
}

// D01, D05: on a full disk one copy fails, then everything is refused with one
// error; reads and deletes go on, deleting and the pool give space back, and appends
// are taken again without a restart.
func TestD01FullDisk(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 4))
	d := newDisk(1)
	o := testOptions()
	o.ReserveBytes = 1 << 20
	s, _ := openStore(t, d, o)
	p := &source{id: 7}
	seg := newSegment(t, s, segID(0, 0), 0, nil)
	var acked []*batch
	for seg.Position() < 1200<<10 {
		b := p.next(rng, 4, 8000)
		put(t, seg, b)
		acked = append(acked, b)
	}
	end, err := seg.Fence()
	must(t, err)

	next := successor(t, seg, end)
	// A retired file in the pool takes space that appends need more.
	gone := newSegment(t, s, segID(9, 0), 0, nil)
	for g := (&source{id: 99}); gone.Position() < 900<<10; {
		put(t, gone, g.next(rng, 1, 60_000))
	}
	if _, err := gone.Fence(); err != nil {
		t.Fatal(err)
	}
	must(t, s.Delete(gone.ID()))
	eventually(t, "the file is in the pool", func() bool { return s.pool.Stats().Files == 1 })

	// The open one grows into the end of the disk, faster than anybody looks.
	s.lookAtSpace()
	total, free, err := d.Space()
	must(t, err)
	used := int64(total - free)
	d.SetCapacity(used + 60<<10)
	var stored []*batch
	var refused error
	for range 100 {
		b := p.next(rng, 4, 8000)
		f, err := send(t, next, b)
		must(t, err)
		f.wait(t)
		if refused = f.Err; refused != nil {
			p.seq, p.prev = b.first-1, b.prev
			break
		}
		stored = append(stored, b)
	}
	if !errors.Is(refused, ErrOutOfSpace) || !errors.Is(refused, ErrStorage) || d.Counts().Errors == 0 {
		t.Fatalf("the write that found no space was answered %v (%d errors)", refused, d.Counts().Errors)
	}
	if !s.OutOfSpace() || !s.Stats().OutOfSpace {
		t.Fatal("the store does not say that there is no space")
	}
	for _, id := range []fence.SegmentID{segID(3, 0), segID(4, 0)} {
		if _, err := s.Create(t.Context(), metaOf(id, 0), nil); !errors.Is(err, ErrOutOfSpace) {
			t.Fatalf("create on a full disk: %v", err)
		}
	}
	holds(t, seg, acked...)
	holds(t, next, stored...)

	// The retired file goes by itself; then there is room for the fence.
	eventually(t, "the pool gave its space back", func() bool {
		_, free, err := d.Space()
		return err == nil && free > 500<<10
	})
	nextEnd, err := next.Fence()
	must(t, err)
	if nextEnd.Offset != end.Offset+uint64(4*len(stored)) {
		t.Fatalf("fenced at %d", nextEnd.Offset)
	}

	// Still below the reserve: refused without a write.
	total, free, err = d.Space()
	must(t, err)
	d.SetCapacity(int64(total-free) + 100<<10)
	s.lookAtSpace()
	if !s.OutOfSpace() {
		t.Fatal("below the reserve and not out of space")
	}
	if _, err := s.Create(t.Context(), metaOf(segID(5, 0), 0), nil); !errors.Is(err, ErrOutOfSpace) || errors.Is(err, ErrStorage) {
		t.Fatalf("create below the reserve: %v", err)
	}

	// Deleting frees, though the pool would have kept the file.
	must(t, s.Delete(seg.ID()))
	s.lookAtSpace()
	if n := s.pool.Stats().Files; n != 0 {
		t.Fatalf("the pool keeps %d files on a full disk", n)
	}
	if s.OutOfSpace() {
		_, free, _ := d.Space()
		t.Fatalf("still out of space with %d bytes free", free)
	}
	last := successor(t, next, nextEnd)
	for i := range 10 {
		put(t, last, p.next(rng, 4, 1000))
		if i == 5 {
			d.SetCapacity(1 << 40)
		}
	}
	holds(t, next, stored...)
}

// Below the reserve an open segment refuses, keeps its place and goes on later: no
// roll is needed.
func TestReserveOnlyPauses(t *testing.T) {
	rng := rand.New(rand.NewPCG(2, 4))
	d := newDisk(2)
	o := testOptions()
	o.ReserveBytes = 1 << 20
	s, _ := openStore(t, d, o)
	seg := newSegment(t, s, segID(0, 0), 0, nil)
	p := &source{id: 7}
	a := p.next(rng, 1, 100)
	put(t, seg, a)
	d.SetCapacity(1 << 20)
	s.lookAtSpace()
	b := p.next(rng, 1, 100)
	if _, err := send(t, seg, b); !errors.Is(err, ErrOutOfSpace) || errors.Is(err, ErrStorage) {
		t.Fatalf("below the reserve: %v", err)
	}
	if !seg.Writable() {
		t.Fatal("the segment must be rolled")
	}
	d.SetCapacity(1 << 30)
	s.lookAtSpace()
	put(t, seg, b)
	holds(t, seg, a, b)
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

// A segment whose birth fails at any step leaves nothing under its name and can be
// born again.
func TestCreateThatFails(t *testing.T) {
	actions := []simdisk.Action{simdisk.Create, simdisk.Write, simdisk.Rename, simdisk.SyncDir, simdisk.Mkdir, simdisk.Open}
	failed := 0
	for _, action := range actions {
		for nth := range 3 {
			rng := rand.New(rand.NewPCG(uint64(nth), 5))
			d := newDisk(uint64(nth))
			s, _ := openStore(t, d, testOptions())
			n := 0
			fault := d.Fail(func(e simdisk.Event) error {
				if e.Action == action {
					if n++; n == nth+1 {
						return syscall.EIO
					}
				}
				return nil
			})
			seg, err := s.Create(t.Context(), metaOf(segID(0, 0), 10), nil)
			fault.Stop()
			if err != nil {
				failed += fault.ErrorCount()
				if _, err := s.Segment(segID(0, 0)); !errors.Is(err, ErrNoSegment) {
					t.Fatalf("%s %d: a segment that was not born: %v", action, nth, err)
				}
				seg = newSegment(t, s, segID(0, 0), 10, nil)
			}
			b := (&source{id: 7}).next(rng, 2, 100)
			put(t, seg, b)
			s2, _ := openStore(t, d.Crash(rng), testOptions())
			seg2, err := s2.Segment(segID(0, 0))
			must(t, err)
			holds(t, seg2, b)
			closeStore(t, s2)
			closeStore(t, s)
		}
	}
	if failed < 4 {
		t.Fatalf("%d births failed", failed)
	}
}

// Two callers that create one segment get one.
func TestCreateOnce(t *testing.T) {
	s, _ := openStore(t, newDisk(1), testOptions())
	var g sync.WaitGroup
	var mu sync.Mutex
	var made []*Segment
	for range 8 {
		g.Go(func() {
			if seg, err := s.Create(t.Context(), metaOf(segID(0, 0), 0), nil); err == nil {
				mu.Lock()
				made = append(made, seg)
				mu.Unlock()
			}
		})
	}
	g.Wait()
	seg, err := s.Segment(segID(0, 0))
	if err != nil || len(made) != 1 || made[0] != seg {
		t.Fatalf("%d segments of one id: %v", len(made), err)
	}
	if _, err := s.Create(t.Context(), metaOf(segID(0, 0), 0), nil); err == nil {
		t.Fatal("made a second time")
	}
	must(t, s.bear(segID(0, 1)))
	if _, err := s.Create(t.Context(), metaOf(segID(0, 1), 0), nil); !errors.Is(err, fs.ErrExist) {
		t.Fatalf("made twice at once: %v", err)
	}
	s.born(segID(0, 1))
	newSegment(t, s, segID(0, 1), 0, nil)
}

// A failed copy that has lost acknowledged records since is damaged: no fence hides
// that, however often it is asked.
func TestFenceOfACopyThatLostRecords(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 12))
	d := newDisk(1)
	s, _ := openStore(t, d, testOptions())
	seg := newSegment(t, s, segID(0, 0), 0, nil)
	p := &source{id: 7}
	var last int64
	for range 5 {
		last = seg.Position()
		put(t, seg, p.next(rng, 1, 6000))
	}
	fault := d.Fail(simdisk.Always(syscall.EIO, appendWrite))
	f, err := send(t, seg, p.next(rng, 1, 100))
	must(t, err)
	f.wait(t)
	if !errors.Is(f.Err, ErrStorage) || fault.ErrorCount() != 1 {
		t.Fatal(f.Err)
	}
	fault.Stop()
	file, err := d.Open(seg.File(), false)
	must(t, err)
	must(t, file.WriteAt(make([]byte, 4096), last))
	must(t, file.Close())
	for range 2 {
		if end, err := seg.Fence(); !errors.Is(err, ErrDamaged) {
			t.Fatalf("fenced at %+v: %v", end, err)
		}
		if _, ok := seg.Fenced(); ok {
			t.Fatal("fenced without its records")
		}
	}
}

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

// Close answers everything that was taken, whatever it was doing, and nothing
// afterwards.
func TestCloseAnswers(t *testing.T) {
	answered := map[string]int{}
	for seed := range seeds(30) {
		rng := rand.New(rand.NewPCG(seed, 7))
		d := newDisk(seed)
		o := testOptions()
		o.Shards, o.OverlapBytes = 2, 1000
		s, _ := openStore(t, d, o)
		var g sync.WaitGroup
		var mu sync.Mutex
		acked := map[fence.SegmentID][]*batch{}
		start := make(chan struct{})
		for i := range uint32(3) {
			seg := newSegment(t, s, segID(i, 0), 0, nil)
			g.Go(func() {
				rng := rand.New(rand.NewPCG(seed, uint64(i)))
				p := &source{id: uint64(i + 1)}
				<-start
				for {
					b := p.next(rng, 1, rng.IntN(5000))
					f, err := send(t, seg, b)
					if err == nil {
						f.wait(t)
						err = f.Err
					}
					mu.Lock()
					if err != nil {
						answered[fmt.Sprint(errors.Is(err, ErrClosed))]++
						mu.Unlock()
						return
					}
					acked[seg.ID()] = append(acked[seg.ID()], b)
					mu.Unlock()
				}
			})
			if i == 2 {
				g.Go(func() {
					<-start
					if _, err := seg.Fence(); err != nil && !errors.Is(err, ErrClosed) {
						t.Error(err)
					}
				})
			}
		}
		close(start)
		for range rng.IntN(200) {
			d.Counts()
		}
		arena := s.Disk().Arena()
		closed := s.Close() // it counts what the appenders have built, too
		g.Wait()
		if n := arena.InUse(); n != 0 {
			t.Fatalf("%d bytes of the arena are in use: %v", n, closed)
		}
		if _, err := s.Create(t.Context(), metaOf(segID(8, 0), 0), nil); !errors.Is(err, ErrClosed) {
			t.Fatalf("create on a closed store: %v", err)
		}
		s2, _ := openStore(t, d.Crash(rng), testOptions())
		for id, want := range acked {
			seg, err := s2.Segment(id)
			must(t, err)
			items, err := readSegment(seg, 0)
			must(t, err)
			i := 0
			for _, b := range want {
				if i >= len(items) || !bytes.Equal(items[i].value, b.values[0]) {
					t.Fatalf("seed %d: %v: acknowledged record %d is not there", seed, id, i)
				}
				i++
			}
			if len(items) > i+1 {
				t.Fatalf("%d records, %d acknowledged", len(items), i)
			}
		}
		closeStore(t, s2)
	}
	if answered["true"] == 0 {
		t.Fatalf("nobody met the close: %v", answered)
	}
}

// A held flush does not let Close go before it is over, and its append is answered.
func TestCloseWaitsForTheDisk(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 8))
	d := newDisk(1)
	s, _ := openStore(t, d, testOptions())
	seg := newSegment(t, s, segID(0, 0), 0, nil)
	hold := d.Hold(appendWrite)
	p := &source{id: 7}
	var all []*flying
	for range 5 {
		f, err := send(t, seg, p.next(rng, 1, 100))
		must(t, err)
		all = append(all, f)
	}
	closed := make(chan error)
	go func() { closed <- s.Close() }()
	eventually(t, "close has begun", func() bool {
		seg.shard.mu.Lock()
		defer seg.shard.mu.Unlock()
		return seg.shard.closed
	})
	if _, err := send(t, seg, p.next(rng, 1, 100)); !errors.Is(err, ErrClosed) {
		t.Fatalf("append while closing: %v", err)
	}
	select {
	case err := <-closed:
		t.Fatalf("closed with a flush in flight: %v", err)
	default:
	}
	hold.Release()
	must(t, <-closed)
	for _, f := range all {
		f.wait(t)
		must(t, f.Err)
	}
	if _, err := send(t, seg, p.next(rng, 1, 100)); !errors.Is(err, ErrClosed) {
		t.Fatalf("append after close: %v", err)
	}
	if _, err := seg.Fence(); !errors.Is(err, ErrClosed) {
		t.Fatalf("fence after close: %v", err)
	}
}

// While a fence is under way an append learns that it is, not where it ends.
func TestAppendWhileFencing(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 9))
	d := newDisk(1)
	s, _ := openStore(t, d, testOptions())
	seg := newSegment(t, s, segID(0, 0), 0, nil)
	hold := d.Hold(appendWrite)
	p := &source{id: 7}
	first := p.next(rng, 3, 100)
	f, err := send(t, seg, first)
	must(t, err)
	ends := make(chan fence.End, 3)
	for range 3 {
		go func() {
			end, err := seg.Fence()
			if err != nil {
				t.Error(err)
			}
			ends <- end
		}()
	}
	eventually(t, "the fence has begun", func() bool { return !seg.Writable() })
	var sealed *SealedError
	if _, err := send(t, seg, p.next(rng, 1, 100)); !errors.As(err, &sealed) || !sealed.Fencing {
		t.Fatalf("append while fencing: %v", err)
	}
	if _, ok := seg.Fenced(); ok {
		t.Fatal("fenced while a flush is in flight")
	}
	hold.Release()
	for range 3 {
		if end := <-ends; end.Offset != 3 {
			t.Fatalf("fenced at %d", end.Offset)
		}
	}
	f.wait(t)
	must(t, f.Err)
	if _, err := send(t, seg, p.next(rng, 1, 100)); !errors.As(err, &sealed) || sealed.Fencing || sealed.End != 3 {
		t.Fatalf("append after the fence: %v", err)
	}
	holds(t, seg, first)
}

// C04: nothing is acknowledged in a file whose name, or that of a directory above
// it, is not durable; C01: the durable write ends before the answer.
func TestC04NamesAreDurableBeforeTheFirstAnswer(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 10))
	d := newDisk(1)
	s, _ := openStore(t, d, testOptions())
	for i := range uint32(3) {
		seg := newSegment(t, s, segID(i, 0), 0, nil)
		arena := s.Disk().Arena()
		b := (&source{id: 7}).next(rng, 1, 100)
		a := &Append{Frame: b.frame(t, arena)}
		done := make(chan []string)
		a.Done = func(a *Append) {
			d.Note("answered " + seg.File())
			done <- d.Unsynced()
		}
		must(t, seg.Append(a))
		if left := <-done; len(left) > 0 {
			t.Fatalf("answered while a crash could undo %v", left)
		}
		arena.Free(a.Frame)
		at := -1 // of the durable write
		for i, e := range d.Trace() {
			switch {
			case appendWrite(e) && e.Name == seg.File() && e.Durable && e.Err == nil:
				at = i
			case e.Action == simdisk.Note && e.Name == "answered "+seg.File() && at < 0:
				t.Fatal("answered before the write")
			}
		}
		if at < 0 {
			t.Fatal("there was no durable write")
		}
	}
}
