package store

import (
	"errors"
	"math/rand/v2"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ringfence/ringfence/fence"
	"github.com/ringfence/ringfence/segfile/disk/simdisk"
)

// tightWorld is a store on a disk whose space runs out where a test wants it to.
type tightWorld struct {
	t     *testing.T
	rng   *rand.Rand
	d     *simdisk.Disk
	s     *Store
	p     *source
	seg   *Segment
	acked []*batch
}

func newTightWorld(t *testing.T, seed uint64, o Options) *tightWorld {
	t.Helper()
	w := &tightWorld{t: t, rng: rand.New(rand.NewPCG(seed, 31)), d: newDisk(seed), p: &source{id: 7}}
	w.s, _ = openStore(t, w.d, o)
	w.seg = newSegment(t, w.s, segID(0, 0), 0, nil)
	for range 5 {
		w.put(3000)
	}
	return w
}

func (w *tightWorld) put(size int) {
	w.t.Helper()
	b := w.p.next(w.rng, 2, size)
	put(w.t, w.seg, b)
	w.acked = append(w.acked, b)
}

// fill leaves so many bytes.
func (w *tightWorld) fill(left int64) {
	w.t.Helper()
	total, free, err := w.d.Space()
	must(w.t, err)
	w.d.SetCapacity(int64(total-free) + left)
}

func (w *tightWorld) free() int64 {
	w.t.Helper()
	_, free, err := w.d.Space()
	must(w.t, err)
	return int64(free)
}

// failed counts the operations of a kind that found no space.
func (w *tightWorld) failed(match func(simdisk.Event) bool) (n int) {
	for _, e := range w.d.Trace() {
		if errors.Is(e.Err, syscall.ENOSPC) && match(e) {
			n++
		}
	}
	return n
}

// refused sends a batch that is to be refused, at once or later.
func (w *tightWorld) refused(size int) {
	w.t.Helper()
	before := *w.p
	f, err := send(w.t, w.seg, w.p.next(w.rng, 2, size))
	if err == nil {
		f.wait(w.t)
		err = f.Err
	}
	if !errors.Is(err, ErrOutOfSpace) || !strings.Contains(err.Error(), "free space") {
		w.t.Fatalf("an append without space: %v", err)
	}
	*w.p = before
}

// goesOn gives space back: the segment is closed where its last acknowledged record
// ends, appends go on behind it, and all of it outlives a power cut.
func (w *tightWorld) goesOn() {
	t := w.t
	t.Helper()
	holds(t, w.seg, w.acked...)
	w.d.SetCapacity(1 << 40)
	if w.s.opts.SpaceEvery > time.Second {
		w.s.lookAtSpace()
	}
	eventually(t, "appends are taken again", func() bool { return !w.s.OutOfSpace() })
	end, err := w.seg.Fence()
	must(t, err)
	if n := uint64(2 * len(w.acked)); end.Offset != n {
		t.Fatalf("fenced at offset %d, %d were acknowledged", end.Offset, n)
	}
	holds(t, w.seg, w.acked...)
	next := successor(t, w.seg, end)
	var more []*batch
	for range 5 {
		b := w.p.next(w.rng, 2, 3000)
		put(t, next, b)
		more = append(more, b)
	}
	for range 3 {
		after := w.d.Crash(w.rng)
		s, rec := openStore(t, after, testOptions())
		if len(rec.Damaged)+len(rec.Faulty)+len(rec.Unknown)+len(rec.Unfenced) > 0 {
			t.Fatalf("%+v", rec)
		}
		for seg, want := range map[*Segment][]*batch{w.seg: w.acked, next: more} {
			seg, err := s.Segment(seg.ID())
			must(t, err)
			holds(t, seg, want...)
			sound(t, after, seg.File())
		}
		closeStore(t, s)
	}
}

// watched are options with free space looked at all the time.
func watched() Options {
	o := testOptions()
	o.SpaceEvery = time.Millisecond
	return o
}

// leftOpen ends the process, or the power, and starts on the full disk, twice.
func (w *tightWorld) leftOpen() {
	t := w.t
	t.Helper()
	d := w.d.Crash(w.rng)
	total, free, err := d.Space()
	must(t, err)
	d.SetCapacity(int64(total - free))
	w.d = d
	for last := range 2 {
		w.d = w.d.Reopen()
		s, rec := openStore(t, w.d, watched())
		w.s = s
		if len(rec.Unfenced) != 1 || len(rec.Recovered)+rec.Fenced+len(rec.Damaged)+len(rec.Unknown)+len(rec.Faulty) != 0 {
			t.Fatalf("%+v", rec)
		}
		if n := w.failed(simdisk.OnFile(w.seg.File(), simdisk.Write)); n == 0 {
			t.Fatal("the start's fence found space")
		}
		w.seg, err = s.Segment(rec.Unfenced[0].ID)
		must(t, err)
		w.reading()
		w.refused(10)
		if _, err := w.seg.Fence(); !errors.Is(err, ErrOutOfSpace) {
			t.Fatalf("a fence without space: %v", err)
		}
		if table, err := w.seg.Producers(); err == nil {
			t.Fatalf("its producers are known before it is fenced: %v", table)
		}
		if last == 0 {
			closeStore(t, s)
		}
	}
	// A scanner from before the fence reads on behind it.
	sc, err := w.seg.Scan(0)
	must(t, err)
	defer sc.Close()
	first, err := sc.Next()
	must(t, err)
	n := first.Len()
	w.goesOn()
	rest, err := drain(sc, uint64(n))
	must(t, err)
	contiguous(t, rest, uint64(n), uint64(2*len(w.acked)))
}

// reading checks every way into a segment that is left open.
func (w *tightWorld) reading() {
	t := w.t
	t.Helper()
	end, fenced := w.seg.Fenced()
	if n := uint64(2 * len(w.acked)); fenced || !w.seg.LeftOpen() || w.seg.Writable() || w.seg.CommitMark() != n || end.Offset != n || w.seg.Bytes() == 0 {
		t.Fatalf("left open: fenced %v, %+v, commit mark %d, want %d", fenced, end, w.seg.CommitMark(), n)
	}
	holds(t, w.seg, w.acked...)
	last := uint64(2*len(w.acked) - 1)
	items, err := readSegment(w.seg, last)
	must(t, err)
	contiguous(t, items, last, last+1)
	sc, err := w.seg.ScanTime(testNow + int64(last) + 1)
	must(t, err)
	defer sc.Close()
	items, err = drain(sc, last)
	must(t, err)
	contiguous(t, items, last, last+1)
}

// retired puts a segment's file of a size into the pool.
func (w *tightWorld) retired(id fence.SegmentID, size int64) {
	w.t.Helper()
	seg := newSegment(w.t, w.s, id, 0, nil)
	for p := (&source{id: 99}); seg.Position() < size; {
		put(w.t, seg, p.next(w.rng, 1, 60_000))
	}
	if _, err := seg.Fence(); err != nil {
		w.t.Fatal(err)
	}
	must(w.t, w.s.Delete(id))
	eventually(w.t, "the file is in the pool", func() bool { return w.s.pool.Stats().Files > 0 })
}
