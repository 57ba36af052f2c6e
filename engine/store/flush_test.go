package store

import (
	"math/rand/v2"
	"testing"

	"github.com/ringfence/ringfence/segfile/disk/simdisk"
)

// A flush that is late keeps none from starting in the place of those that are done
// behind it, up to a bound; nobody is answered before it is.
func TestLateFlushDoesNotIdleTheDevice(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	d := newDisk(1)
	o := testOptions()
	o.SegmentBytes, o.OverlapBytes = 32<<20, 1
	s, _ := openStore(t, d, o)
	seg := newSegment(t, s, segID(0, 0), 0, nil)
	p := &source{id: 1}
	first := seg.Position()
	hold := d.Hold(func(e simdisk.Event) bool { return appendWrite(e) && e.Name == seg.File() && e.Off == first })
	defer hold.Release()
	var all []*flying
	for range 12 {
		f, err := send(t, seg, p.next(rng, 1, 1<<20))
		must(t, err)
		all = append(all, f)
	}
	done := func() (n int) {
		for _, e := range d.Trace() {
			if appendWrite(e) && e.Name == seg.File() && e.Durable && e.Err == nil {
				n++
			}
		}
		return n
	}
	// Eight reach the bound of what may lie behind a gap: the late one and seven that
	// are done.
	eventually(t, "the writes behind the late one", func() bool { return done() == 7 })
	if hold.Count() != 1 || seg.CommitMark() != 0 {
		t.Fatalf("%d writes held, committed up to %d: want 1 and 0", hold.Count(), seg.CommitMark())
	}
	for i, f := range all {
		if f.answered() {
			t.Fatalf("append %d was answered before the first", i)
		}
	}
	hold.Release()
	var want uint64
	for _, f := range all {
		f.wait(t)
		must(t, f.Err)
		if f.First != want {
			t.Fatalf("offset %d, want %d", f.First, want)
		}
		want++
	}
	sound(t, d, seg.File())
}

// What lies done behind a checkpoint that is late is bounded as behind any other write.
func TestLateCheckpointBoundsWhatIsBehind(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 3))
	d := newDisk(1)
	o := testOptions()
	o.SegmentBytes, o.OverlapBytes, o.CheckpointBytes = 32<<20, 1, 1
	s, _ := openStore(t, d, o)
	seg := newSegment(t, s, segID(0, 0), 0, nil)
	hold := d.Hold(func(e simdisk.Event) bool { return appendWrite(e) && e.Name == seg.File() && e.Len < 1<<20 })
	defer hold.Release()
	p := &source{id: 1}
	var all []*flying
	for range 14 {
		f, err := send(t, seg, p.next(rng, 1, 1<<20))
		must(t, err)
		all = append(all, f)
	}
	sh := seg.shard
	eventually(t, "nothing but the checkpoint to be on its way", func() bool {
		sh.mu.Lock()
		defer sh.mu.Unlock()
		return hold.Count() == 1 && !sh.submitting && sh.q.InFlight() == 1 && !seg.mayStart()
	})
	sh.mu.Lock()
	behind, waiting := seg.unconfirmed, seg.queue.len()
	sh.mu.Unlock()
	if behind < 2*smallBytes || behind > 2*smallBytes+2<<20 || waiting == 0 {
		t.Errorf("%d bytes are done behind it and %d appends wait, want a little over %d and some", behind, waiting, 2*smallBytes)
	}
	hold.Release()
	for _, f := range all {
		f.wait(t)
		must(t, f.Err)
	}
	sound(t, d, seg.File())
}

// C07: flushes complete in any order; nobody is answered, and no reader sees a
// record, before all flushes in front are durable.
func TestC07OnlyTheContiguousPrefixIsAnswered(t *testing.T) {
	reordered := 0
	for seed := range seeds(20) {
		rng := rand.New(rand.NewPCG(seed, 7))
		d := newDisk(seed)
		o := testOptions()
		o.OverlapBytes = 1
		s, _ := openStore(t, d, o)
		seg := newSegment(t, s, segID(0, 0), 0, nil)
		p := &source{id: 1}
		hold := d.Hold(func(e simdisk.Event) bool { return appendWrite(e) && e.Off == seg.Position() })
		var all []*flying
		for range 4 {
			f, err := send(t, seg, p.next(rng, 2, 40_000))
			must(t, err)
			all = append(all, f)
		}
		// The first flush is held; the three behind it end on their own.
		eventually(t, "three flushes ended", func() bool {
			n := 0
			for _, e := range d.Trace() {
				if appendWrite(e) {
					n++
				}
			}
			return n == 3
		})
		if hold.Count() != 1 {
			t.Fatalf("%d flushes held", hold.Count())
		}
		for i, f := range all {
			if f.answered() {
				t.Fatalf("seed %d: append %d was answered before the first one was durable", seed, i)
			}
		}
		if seg.CommitMark() != 0 {
			t.Fatalf("seed %d: the commit mark stands at %d", seed, seg.CommitMark())
		}
		if items, err := readSegment(seg, 0); err != nil || len(items) != 0 {
			t.Fatalf("seed %d: %d records visible, %v", seed, len(items), err)
		}
		hold.Release()
		for i, f := range all {
			f.wait(t)
			if f.Err != nil || f.First != uint64(2*i) {
				t.Fatalf("append %d: offset %d, %v", i, f.First, f.Err)
			}
		}
		reordered += d.Counts().Reordered
		closeStore(t, s)
	}
	if reordered == 0 {
		t.Fatal("no flush was reordered")
	}
}

// Large frames that wait together leave in one flush, from where they lie, and are on
// disk as flushes of their own would be: also when some of them are stored in part
// or not at all, and with small ones between.
func TestLargeFramesLeaveTogether(t *testing.T) {
	rng := rand.New(rand.NewPCG(9, 1))
	d := newDisk(9)
	o := testOptions()
	o.OverlapBytes = 1 << 20 // a second flush waits for the first
	s, _ := openStore(t, d, o)
	seg := newSegment(t, s, segID(0, 0), 0, nil)
	hold := d.Hold(appendWrite)
	p := &source{id: 7}
	var all []*flying
	var sent []*batch
	queue := func(b *batch) {
		f, err := send(t, seg, b)
		must(t, err)
		all = append(all, f)
	}
	for _, size := range []int{10, 40_000, 50_000, 70_000, 60_000, 10, 20, 40_000, 400_000, 150_000} {
		b := p.next(rng, 2, size/2)
		sent = append(sent, b)
		queue(b)
		if size == 70_000 {
			queue(b) // a repeat, while the original waits
		}
	}
	hold.Release()
	for i, f := range all {
		f.wait(t)
		if f.Err != nil || f.Duplicate != (i == 4) {
			t.Fatalf("append %d: duplicate %v, %v", i, f.Duplicate, f.Err)
		}
	}
	holds(t, seg, sent...)
	// The first alone, four with a repeat, two small ones, two, and the last alone.
	if got := s.Stats().Flushes; got != 5 {
		t.Errorf("%d flushes, want 5", got)
	}
	pieces := 0
	for _, e := range d.Trace() {
		if appendWrite(e) && e.Len > 200_000 {
			pieces++
		}
	}
	if pieces != 2 {
		t.Errorf("%d writes of several frames, want 2: %v", pieces, d.Trace())
	}
	if _, err := seg.Fence(); err != nil {
		t.Fatal(err)
	}
	holds(t, seg, sent...)
	closeStore(t, s)
	s, rec := openStore(t, d.Kill(), testOptions())
	if len(rec.Damaged)+len(rec.Faulty) != 0 {
		t.Fatalf("damaged %v, faulty %v", rec.Damaged, rec.Faulty)
	}
	seg, err := s.Segment(segID(0, 0))
	must(t, err)
	holds(t, seg, sent...)
}

// What those who are answered together append leaves together, in two halves, so that
// the device has one while the other is answered.
func TestWhatAnswersBringLeavesTogether(t *testing.T) {
	rng := rand.New(rand.NewPCG(10, 1))
	d := newDisk(10)
	o := testOptions()
	o.OverlapBytes = 1
	s, _ := openStore(t, d, o)
	seg := newSegment(t, s, segID(0, 0), 0, nil)
	arena := s.Disk().Arena()
	p := &source{id: 7}
	var sent []*batch
	frame := func() *flying {
		b := p.next(rng, 2, 20_000)
		sent = append(sent, b)
		return &flying{b: b, seg: seg, done: make(chan struct{}), Append: Append{Frame: b.frame(t, arena)}}
	}
	var first, second []*flying
	for range 4 {
		first = append(first, frame())
	}
	for range 4 {
		second = append(second, frame())
	}
	for i, f := range first {
		f.Done = func(a *Append) {
			arena.Free(a.Frame)
			next := second[i]
			next.Answering = true
			next.Done = func(a *Append) { arena.Free(a.Frame); close(next.done) }
			if err := seg.Append(&next.Append); err != nil {
				t.Error(err)
			}
			close(f.done)
		}
	}
	hold := d.Hold(func(e simdisk.Event) bool { return appendWrite(e) && e.Off == seg.Position() })
	for _, f := range first {
		must(t, seg.Append(&f.Append))
	}
	eventually(t, "three of four are written", func() bool {
		n := 0
		for _, e := range d.Trace() {
			if appendWrite(e) {
				n++
			}
		}
		return n == 3 && hold.Count() == 1
	})
	hold.Release() // and all four are answered
	for _, f := range append(first, second...) {
		f.wait(t)
		must(t, f.Err)
	}
	holds(t, seg, sent...)
	if got := s.Stats().Flushes; got != 4+2 {
		t.Errorf("%d flushes, want 4 and 2: %v", got, d.Trace())
	}
}

// An arena without a block for packing delays nobody: frames go out one by one.
func TestPackingWithoutMemory(t *testing.T) {
	rng := rand.New(rand.NewPCG(6, 1))
	d := simdisk.New(simdisk.Options{Seed: 6, ArenaBytes: 4 << 20})
	s, _ := openStore(t, d, testOptions())
	seg := newSegment(t, s, segID(0, 0), 0, nil)
	hold := d.Hold(appendWrite)
	p := &source{id: 7}
	var all []*flying
	var sent []*batch
	for range 9 {
		b := p.next(rng, 1, 1000)
		f, err := send(t, seg, b)
		must(t, err)
		all, sent = append(all, f), append(sent, b)
	}
	var rest [][]byte
	for size := 4 << 20; size >= 4096; size /= 2 {
		for {
			b, ok := s.Disk().Arena().Alloc(size)
			if !ok {
				break
			}
			rest = append(rest, b)
		}
	}
	hold.Release()
	for _, f := range all {
		f.wait(t)
		must(t, f.Err)
	}
	for _, b := range rest {
		s.Disk().Arena().Free(b)
	}
	holds(t, seg, sent...)
	if n := s.Stats().Flushes; n < 3 {
		t.Errorf("%d flushes: they were packed all the same", n)
	}
}
