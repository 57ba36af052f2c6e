package store

import (
	"errors"
	"io/fs"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ringfence/ringfence/segfile"
	"github.com/ringfence/ringfence/segfile/disk/simdisk"
)

// D01, A14: the write of records finds no space. The copy takes nothing more, and is
// closed at once if what the write left makes room for the fence, or else later.
func TestD01RecordWrite(t *testing.T) {
	for _, left := range []int64{0, 4096, 16384} {
		for seed := range seeds(5) {
			w := newTightWorld(t, seed, testOptions()) // nobody looks before the write
			w.fill(left)
			w.refused(20_000)
			if w.failed(appendWrite) == 0 {
				t.Fatal("no write of records found the end of the disk")
			}
			w.refused(10)
			if w.seg.Writable() {
				t.Fatal("a copy that failed says that it is writable")
			}
			if _, err := w.seg.Fence(); (err == nil) != (left > 0) || err != nil && !errors.Is(err, ErrOutOfSpace) {
				t.Fatalf("%d bytes left: fence: %v", left, err)
			}
			w.goesOn()
		}
	}
}

// D01, D05: the footer of a fence finds no space, in a process that goes on or one
// that ends; then the next one reads what is there and closes it when it can.
func TestD01Footer(t *testing.T) {
	for seed := range seeds(10) {
		w := newTightWorld(t, seed, watched())
		w.fill(0)
		for range 3 {
			if _, err := w.seg.Fence(); !errors.Is(err, ErrOutOfSpace) {
				t.Fatalf("a fence without space: %v", err)
			}
			if _, fenced := w.seg.Fenced(); fenced {
				t.Fatal("fenced without an answer")
			}
			w.refused(10)
			holds(t, w.seg, w.acked...)
		}
		if n := w.failed(simdisk.OnFile(w.seg.File(), simdisk.Write)); n < 3 {
			t.Fatalf("%d footers found the end of the disk", n)
		}
		if seed%2 == 0 {
			w.goesOn()
			continue
		}
		w.leftOpen()
	}
}

// D01: the latch finds no space, as it may where a file system writes everything
// elsewhere. One refusal is overcome at once; for good it is like a footer's, unless
// what was refused lies there all the same.
func TestD01Latch(t *testing.T) {
	refused, overcome := 0, 0
	for seed := range seeds(20) {
		w := newTightWorld(t, seed, watched())
		latch := func(e simdisk.Event) bool {
			return e.Action == simdisk.Write && e.Name == w.seg.File() && e.Off < segfile.DataStart
		}
		match := simdisk.Nth(1, syscall.ENOSPC, latch)
		if seed%2 == 0 {
			match = simdisk.Always(syscall.ENOSPC, latch)
		}
		fault := w.d.Fail(match)
		end, err := w.seg.Fence()
		switch {
		case fault.ErrorCount() == 0:
			t.Fatal("the latch was not refused")
		case seed%2 == 0 && errors.Is(err, ErrOutOfSpace):
			refused++
		case err != nil || end.Offset != uint64(2*len(w.acked)):
			t.Fatalf("fenced at %+v: %v", end, err)
		default:
			overcome++
		}
		holds(t, w.seg, w.acked...)
		fault.Stop()
		w.goesOn()
	}
	if refused == 0 || overcome == 0 {
		t.Errorf("%d fences refused, %d overcame it", refused, overcome)
	}
}

// D01: a new segment finds no space, for its bytes or for any of its names. Nothing is
// left of it, and the same one can be made when there is some. A file that the pool
// has ready takes none.
func TestD01Creation(t *testing.T) {
	for _, site := range []string{"write", "create", "mkdir", "rename", "sync directory", "full"} {
		for seed := range seeds(3) {
			w := newTightWorld(t, seed, watched())
			id := segID(1, 0)
			var happened func() bool
			stop := func() {}
			if site == "full" {
				w.fill(8192)
				_, err := w.s.dropBallast() // or it would do
				must(t, err)
				w.fill(8192)
				happened = func() bool { return w.failed(simdisk.OnFile("pool/", simdisk.Write)) > 0 }
			} else {
				id.Range.Topic[3] ^= 0xff // a topic without a directory
				dir := segfile.Dir(id.Range.Topic)
				fault := w.d.Fail(simdisk.Always(syscall.ENOSPC, func(e simdisk.Event) bool {
					switch e.Action {
					case simdisk.Write, simdisk.Create:
						return string(e.Action) == site && strings.HasPrefix(e.Name, "pool/")
					case simdisk.Mkdir, simdisk.SyncDir:
						return string(e.Action) == site && e.Name == dir
					case simdisk.Rename:
						return string(e.Action) == site && e.To == segfile.Name(id)
					}
					return false
				}))
				happened, stop = func() bool { return fault.ErrorCount() > 0 }, fault.Stop
			}
			meta := metaOf(id, 0)
			if _, err := w.s.CreateFromReserve(t.Context(), meta, nil); !errors.Is(err, ErrOutOfSpace) {
				t.Fatalf("%s: create: %v", site, err)
			}
			if !happened() {
				t.Fatalf("%s: nothing found the end of the disk", site)
			}
			if _, err := w.s.Segment(id); !errors.Is(err, ErrNoSegment) {
				t.Fatalf("%s: a segment that was not made: %v", site, err)
			}
			if _, err := w.d.Open(segfile.Name(id), true); !errors.Is(err, fs.ErrNotExist) {
				t.Fatalf("%s: its file: %v", site, err)
			}
			stop()
			w.d.SetCapacity(1 << 40)
			eventually(t, "appends are taken again", func() bool { return !w.s.OutOfSpace() })
			seg, err := w.s.Create(t.Context(), meta, nil)
			if err != nil {
				t.Fatalf("%s: with space: %v", site, err)
			}
			b := (&source{id: 9}).next(w.rng, 2, 100)
			put(t, seg, b)
			holds(t, seg, b)
			w.put(100) // the other segment never noticed
			w.goesOn()
		}
	}
}

// D01: what others wait for to be closed or deleted is made below the reserve, and
// from the pool where there is no space at all.
func TestD01CreationFromTheReserve(t *testing.T) {
	o := testOptions()
	o.ReserveBytes = 512 << 10
	w := newTightWorld(t, 1, o)
	w.retired(segID(9, 0), 700<<10)
	w.fill(0)
	w.s.full.Store(true)
	if _, err := w.s.Create(t.Context(), metaOf(segID(1, 0), 0), nil); !errors.Is(err, ErrOutOfSpace) || errors.Is(err, ErrStorage) {
		t.Fatalf("create below the reserve: %v", err)
	}
	seg, err := w.s.CreateFromReserve(t.Context(), metaOf(segID(1, 0), 0), nil)
	must(t, err)
	if w.s.pool.Stats().Recycled != 1 || w.free() != 0 {
		t.Fatalf("%+v, %d bytes free", w.s.pool.Stats(), w.free())
	}
	if end, err := seg.Fence(); err != nil || end.Offset != 0 {
		t.Fatalf("%+v %v", end, err)
	}
	eventually(t, "its blocks are given back", func() bool { return w.free() > 500<<10 })
	w.fill(100 << 10)
	w.s.lookAtSpace()
	if !w.s.OutOfSpace() {
		t.Fatal("below the reserve and not out of space")
	}
	_, err = w.s.CreateFromReserve(t.Context(), metaOf(segID(2, 0), 0), nil)
	must(t, err)
	w.d.SetCapacity(1 << 40)
	w.s.lookAtSpace()
	w.goesOn()
}

// D01: a file that is made ahead finds no space. It goes again and nobody else
// notices; while space is short none is begun.
func TestD01Preparation(t *testing.T) {
	o := testOptions()
	o.ReserveBytes, o.Now = 64<<10, time.Now
	w := newTightWorld(t, 1, o)
	zeros := func(e simdisk.Event) bool {
		return e.Action == simdisk.Write && strings.HasPrefix(e.Name, "pool/") && strings.HasSuffix(e.Name, ".new") && e.Len == 256<<10
	}
	full := newSegment(t, w.s, segID(1, 0), 0, nil)
	for p := (&source{id: 99}); full.Position() < 900<<10; {
		put(t, full, p.next(w.rng, 1, 60_000))
	}
	w.fill(200 << 10)
	if _, err := full.Fence(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "zeros find the end of the disk", func() bool { return w.failed(zeros) > 0 })
	eventually(t, "they go again", func() bool { return w.free() > 100<<10 && w.s.pool.Stats().Bytes == 0 })
	w.put(3000)
	w.goesOn()

	// With room, but not for long: nothing is made ahead.
	w.fill(1 << 20)
	w.s.lookAtSpace()
	if w.s.OutOfSpace() {
		t.Fatal("there is a megabyte")
	}
	made := func() (n int) {
		for _, e := range w.d.Trace() {
			if zeros(e) {
				n++
			}
		}
		return n
	}
	before := made()
	for range 20 {
		if wait, err := w.s.pool.Step(time.Now().Add(time.Hour)); err != nil || wait > 0 {
			t.Fatalf("the pool goes on in %v: %v", wait, err)
		}
	}
	if n := made(); n != before {
		t.Fatalf("%d writes of zeros near the end of the disk", n-before)
	}
}

// D01: the file of a deleted segment finds no space for its name in the pool. It is
// removed, which needs none.
func TestD01Recycling(t *testing.T) {
	for seed := range seeds(5) {
		w := newTightWorld(t, seed, watched())
		old := newSegment(t, w.s, segID(1, 0), 0, nil)
		for p := (&source{id: 99}); old.Position() < 700<<10; {
			put(t, old, p.next(w.rng, 1, 60_000))
		}
		if _, err := old.Fence(); err != nil {
			t.Fatal(err)
		}
		w.fill(0)
		fault := w.d.Fail(simdisk.Always(syscall.ENOSPC, func(e simdisk.Event) bool {
			return e.Action == simdisk.Rename && strings.HasPrefix(e.To, "pool/")
		}))
		must(t, w.s.Delete(old.ID()))
		eventually(t, "its space comes back", func() bool { return w.free() > 600<<10-ballastBytes })
		if fault.ErrorCount() == 0 {
			t.Fatal("there was space for the name")
		}
		fault.Stop()
		if _, err := w.d.Open(old.File(), true); !errors.Is(err, fs.ErrNotExist) || w.s.pool.Stats().Files != 0 {
			t.Fatalf("the file: %v, %+v", err, w.s.pool.Stats())
		}
		w.goesOn()
	}
}

// D01: a device that fills the reserve between two looks does not: appends are
// refused after an eighth of it at most, what is in flight counted as well, and no write
// finds the end of the disk.
func TestD01FastDevice(t *testing.T) {
	const reserve = 2 << 20
	for _, held := range []bool{false, true} {
		o := testOptions()
		o.ReserveBytes = reserve
		o.QueueBytes = 64 << 20
		w := newTightWorld(t, 1, o)
		w.fill(reserve + 4<<20)
		var hold *simdisk.Hold
		if held { // nothing lands: what was accepted is all that counts
			hold = w.d.Hold(appendWrite)
		}
		var flying []*flying
		taken := 0
		for {
			b := w.p.next(w.rng, 2, 30_000)
			f, err := send(t, w.seg, b)
			if err != nil {
				if !errors.Is(err, ErrOutOfSpace) || errors.Is(err, ErrStorage) {
					t.Fatal(err)
				}
				w.p.seq, w.p.prev = b.first-1, b.prev
				break
			}
			w.acked = append(w.acked, b)
			flying = append(flying, f)
			if taken += len(f.Frame); taken > 6<<20 {
				t.Fatal("everything was taken")
			}
		}
		if held {
			hold.Release()
		}
		for _, f := range flying {
			f.wait(t)
			must(t, f.Err)
		}
		if n := w.failed(simdisk.On(simdisk.Write)); taken < 2<<20 || w.free() < reserve-reserve/8-128<<10 || n > 0 {
			t.Fatalf("held %v: %d bytes taken, %d left, %d writes found no space", held, taken, w.free(), n)
		}
		for _, sh := range w.s.shards {
			if sh.owed != 0 {
				t.Fatalf("%d bytes are owed, and nothing is on its way", sh.owed)
			}
		}
		w.d.SetCapacity(1 << 40)
		w.s.lookAtSpace()
		w.put(100) // the same segment goes on: there was no write that failed
		w.goesOn()
	}
}

// What goes into blocks that a used file has already needs no space.
func TestRecycledFilesNeedNoSpace(t *testing.T) {
	o := testOptions()
	o.ReserveBytes = 256 << 10
	w := newTightWorld(t, 1, o)
	w.retired(segID(9, 0), 1<<20)
	seg := newSegment(t, w.s, segID(1, 0), 0, nil)
	if w.s.pool.Stats().Recycled != 1 {
		t.Fatal("the file is not used again")
	}
	w.fill(300 << 10)
	p := &source{id: 8}
	var all []*batch
	for seg.Position() < 900<<10 {
		b := p.next(w.rng, 2, 30_000)
		put(t, seg, b)
		all = append(all, b)
	}
	if w.free() != 300<<10 {
		t.Fatalf("%d bytes are free", w.free())
	}
	holds(t, seg, all...)
	err := error(nil)
	for range 100 {
		var f *flying
		if f, err = send(t, seg, p.next(w.rng, 2, 30_000)); err != nil {
			break
		}
		f.wait(t)
		must(t, f.Err)
	}
	if n := w.failed(simdisk.On(simdisk.Write)); !errors.Is(err, ErrOutOfSpace) || n > 0 {
		t.Fatalf("behind its blocks: %v, %d writes found no space", err, n)
	}
	w.d.SetCapacity(1 << 40)
	w.s.lookAtSpace()
	w.goesOn()
}

// D01: a quota is full and the file system says that there is space. One copy fails,
// not one after another, and when the quota is raised appends go on by themselves.
func TestD01Quota(t *testing.T) {
	w := newTightWorld(t, 1, watched())
	other := newSegment(t, w.s, segID(1, 0), 0, nil)
	fault := w.d.Fail(simdisk.Always(syscall.EDQUOT, simdisk.On(simdisk.Write, simdisk.Allocate)))
	w.refused(3000)
	looks := func() (n int) {
		for _, e := range w.d.Trace() {
			if e.Action == simdisk.Allocate && errors.Is(e.Err, syscall.EDQUOT) {
				n++
			}
		}
		return n
	}
	eventually(t, "the quota is tried again and again", func() bool { return looks() > 5 })
	for range 5 {
		if _, err := send(t, other, (&source{id: 8}).next(w.rng, 1, 10)); !errors.Is(err, ErrOutOfSpace) || errors.Is(err, ErrStorage) || !strings.Contains(err.Error(), "quota") {
			t.Fatalf("while the quota is full: %v", err)
		}
	}
	if n := w.s.Stats().Failures; n != 1 || fault.ErrorCount() == 0 {
		t.Fatalf("%d copies failed, %d faults", n, fault.ErrorCount())
	}
	fault.Stop()
	eventually(t, "appends are taken again", func() bool { return !w.s.OutOfSpace() })
	put(t, other, (&source{id: 8}).next(w.rng, 1, 10))
	if _, err := w.d.Open(probeName, true); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("the probe is still there: %v", err)
	}
	w.goesOn()
}

// A segment that could not be closed can be deleted; nobody can close it any more.
func TestDeleteWithoutAFence(t *testing.T) {
	for _, left := range []bool{false, true} {
		w := newTightWorld(t, 1, watched())
		w.fill(0)
		if _, err := w.seg.Fence(); !errors.Is(err, ErrOutOfSpace) {
			t.Fatalf("a fence without space: %v", err)
		}
		s, d := w.s, w.d
		if left {
			d = w.d.Crash(w.rng)
			total, free, err := d.Space()
			must(t, err)
			d.SetCapacity(int64(total - free))
			s, _ = openStore(t, d, watched())
		}
		seg, err := s.Segment(w.seg.ID())
		must(t, err)
		if seg.LeftOpen() != left {
			t.Fatalf("left open: %v", !left)
		}
		sc, err := seg.Scan(0)
		must(t, err)
		must(t, s.Delete(seg.ID()))
		if _, err := seg.Fence(); !errors.Is(err, ErrNoSegment) {
			t.Fatalf("a fence of a deleted segment: %v", err)
		}
		items, err := drain(sc, 0) // who reads it keeps it until then
		must(t, err)
		contiguous(t, items, 0, uint64(2*len(w.acked)))
		sc.Close()
		eventually(t, "the file is gone", func() bool {
			_, err := d.Open(seg.File(), true)
			_, free, serr := d.Space()
			return errors.Is(err, fs.ErrNotExist) && serr == nil && free > 0
		})
	}
	// An open one that nothing failed of cannot.
	w := newTightWorld(t, 2, testOptions())
	if err := w.s.Delete(w.seg.ID()); err == nil {
		t.Fatal("a segment that takes appends was deleted")
	}
	w.put(10)
	w.goesOn()
}
