package simdisk_test

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ringfence/ringfence/segfile/disk"
	"github.com/ringfence/ringfence/segfile/disk/simdisk"
)

// C07: operations end in any order, each exactly once.
func TestC07CompletionsAreReordered(t *testing.T) {
	orders := map[string]bool{}
	for seed := range seeds(40) {
		d := simdisk.New(simdisk.Options{Seed: seed})
		f := create(t, d, "f")
		q, err := d.NewQueue(4)
		must(t, err)
		buf, _ := d.Arena().Alloc(4 * block)
		order := ""
		for i := range 4 {
			must(t, q.Push(&disk.Op{Kind: disk.Write, Durable: true, File: f, Off: int64(i) * block, Buf: buf[i*block:][:block],
				Done: func(*disk.Op) { order += string(rune('A' + i)) }}))
		}
		must(t, q.Submit())
		for q.InFlight() > 0 {
			_, err := q.Wait(1)
			must(t, err)
		}
		if s := []byte(order); len(s) != 4 || !strings.Contains("ABCD", string(slices.Sorted(slices.Values(s)))) {
			t.Fatalf("seed %d: ended %q", seed, order)
		}
		orders[order] = true
		if (order != "ABCD") != (d.Counts().Reordered > 0) {
			t.Fatalf("%q, counted as reordered: %d", order, d.Counts().Reordered)
		}
	}
	if len(orders) < 10 {
		t.Fatalf("only %d orders of 24", len(orders))
	}
}

// D01: on a full disk everything that needs room fails with ErrNoSpace and the rest
// works; room given back is room again.
func TestD01FullDisk(t *testing.T) {
	d := simdisk.New(simdisk.Options{Seed: 1, Capacity: 10 * block})
	f := create(t, d, "f")
	must(t, f.WriteAt(tagged(make([]byte, 8*block), 1), 0))
	err := f.WriteAt(tagged(make([]byte, 4*block), 2), 7*block) // one over old, three new: two fit
	if !errors.Is(err, disk.ErrNoSpace) || !errors.Is(err, syscall.ENOSPC) {
		t.Fatal("a write into a full disk:", err)
	}
	if _, free, _ := d.Space(); free != 0 {
		t.Fatal(free)
	}
	_, cerr := d.Create("g")
	for _, err := range []error{cerr, d.Mkdir("d"), f.Allocate(0, 20*block)} {
		if !errors.Is(err, disk.ErrNoSpace) {
			t.Fatal(err)
		}
	}
	q, err := d.NewQueue(1)
	must(t, err)
	buf, _ := d.Arena().Alloc(block)
	op := &disk.Op{Kind: disk.Write, Durable: true, File: f, Buf: buf, Off: 30 * block, Done: func(*disk.Op) {}}
	for range 10 {
		must(t, q.Push(op))
		must(t, q.Submit())
		_, err = q.Wait(1)
		must(t, err)
		if !errors.Is(op.Err, disk.ErrNoSpace) {
			t.Fatal("a queued write into a full disk:", op.Err)
		}
	}
	must(t, f.WriteAt(tagged(make([]byte, 8*block), 3), 0)) // what has its blocks can be written
	must(t, f.Sync())
	must(t, d.SyncDir(""))
	must(t, d.Rename("f", "g"))
	must(t, f.Truncate(8*block))
	if _, free, _ := d.Space(); free != 2*block {
		t.Fatal(free)
	}
	must(t, create(t, d, "h").WriteAt(make([]byte, 2*block), 0)) // zeros take room too
	must(t, d.Check())
	must(t, d.Remove("g"))
	if _, free, _ := d.Space(); free != 0 {
		t.Fatal("an open file gave its blocks back")
	}
	must(t, f.Close())
	if _, free, _ := d.Space(); free != 8*block {
		t.Fatal(free)
	}
	d.SetCapacity(20 * block)
	if total, free, _ := d.Space(); total != 20*block || free != 18*block {
		t.Fatal(total, free)
	}
	must(t, d.Check())
}

func TestFaultsHitAndCount(t *testing.T) {
	eio := syscall.EIO
	d := simdisk.New(simdisk.Options{Seed: 2})
	f := create(t, d, "f")
	must(t, f.WriteAt(tagged(make([]byte, 2*block), 1), 0))
	second := d.Fail(simdisk.Nth(2, eio, simdisk.OnFile("f", simdisk.Write)))
	must(t, f.WriteAt(tagged(make([]byte, block), 2), 0))
	err := f.WriteAt(tagged(make([]byte, block), 3), block)
	var place *disk.OpError
	if !errors.Is(err, eio) || !errors.As(err, &place) || place.File != "f" || place.Off != block {
		t.Fatal(err)
	}
	must(t, f.WriteAt(tagged(make([]byte, block), 4), block))
	reads := d.Fail(simdisk.Always(eio, simdisk.On(simdisk.Read)))
	p := make([]byte, block)
	for range 3 {
		if _, err := f.ReadAt(p, 0); !errors.Is(err, eio) || bytes.Equal(p, tagged(make([]byte, block), 2)) {
			t.Fatal("a failed read gave the bytes:", err)
		}
	}
	names := d.Fail(simdisk.Always(syscall.EROFS, simdisk.On(simdisk.Create, simdisk.Rename, simdisk.Remove, simdisk.SyncDir, simdisk.Mkdir)))
	_, cerr := d.Create("g")
	for _, err := range []error{cerr, d.Rename("f", "g"), d.Remove("f"), d.SyncDir(""), d.Mkdir("d")} {
		if !errors.Is(err, syscall.EROFS) {
			t.Fatal(err)
		}
	}
	if second.ErrorCount() != 1 || reads.ErrorCount() != 3 || names.ErrorCount() != 5 || d.ErrorCount() != 9 {
		t.Fatal(second.ErrorCount(), reads.ErrorCount(), names.ErrorCount(), d.ErrorCount())
	}
	reads.Stop()
	names.Stop()
	if _, err := f.ReadAt(p, 0); err != nil || reads.ErrorCount() != 3 {
		t.Fatal(err, reads.ErrorCount())
	}
	if names := files(t, d); len(names) != 1 {
		t.Fatalf("failed operations changed names: %v", names)
	}
	trace := d.Trace()
	failed := slices.DeleteFunc(slices.Clone(trace), func(e simdisk.Event) bool { return e.Err == nil })
	if len(failed) != 9 || d.Counts().Errors != 9 || trace[0].Action != simdisk.Create || trace[0].Seq != 1 {
		t.Fatalf("%d failed events of %d, first %v", len(failed), len(trace), trace[0])
	}
}

// E01: a short transfer moves so many bytes and no more, and is an error.
func TestE01ShortTransfers(t *testing.T) {
	for _, n := range []int{0, 511, 512, 4095, 4096, 5000, 8191} {
		d := simdisk.New(simdisk.Options{Seed: uint64(n)})
		f := create(t, d, "f")
		must(t, f.WriteAt(tagged(make([]byte, 3*block), 1), 0))
		fault := d.Fail(simdisk.Nth(1, simdisk.Short(n), simdisk.On(simdisk.Write)))
		if err := f.WriteAt(tagged(make([]byte, 2*block), 2), 0); !errors.Is(err, disk.ErrShort) || fault.ErrorCount() != 1 {
			t.Fatal(err)
		}
		for i, tag := range tagsOf(t, f) {
			if want := map[bool]uint64{true: 2, false: 1}[(i+1)*sector <= n]; tag != want {
				t.Fatalf("short after %d bytes: sector %d holds %d, want %d", n, i, tag, want)
			}
		}
		d.Fail(simdisk.Nth(1, simdisk.Short(n), simdisk.On(simdisk.Read)))
		p := bytes.Repeat([]byte{1}, 2*block)
		if got, err := f.ReadAt(p, 0); got != n || !errors.Is(err, disk.ErrShort) {
			t.Fatalf("short read of %d: %d, %v", n, got, err)
		}
	}
}

func TestHoldKeepsOperationsInFlight(t *testing.T) {
	d := simdisk.New(simdisk.Options{Seed: 4})
	f := create(t, d, "f")
	q, err := d.NewQueue(4)
	must(t, err)
	hold := d.Hold(func(e simdisk.Event) bool { return e.Action == simdisk.Sync })
	buf, _ := d.Arena().Alloc(block)
	ended := make(chan disk.Kind, 2)
	done := func(op *disk.Op) { ended <- op.Kind }
	must(t, q.Push(&disk.Op{Kind: disk.Sync, File: f, Done: done}))
	must(t, q.Push(&disk.Op{Kind: disk.Write, File: f, Buf: buf, Done: done}))
	must(t, q.Submit())
	if n, err := q.Wait(1); n != 1 || err != nil || <-ended != disk.Write {
		t.Fatal(n, err)
	}
	if n, err := q.Wait(0); n != 0 || err != nil || hold.Count() != 1 || q.InFlight() != 1 {
		t.Fatal(n, err, hold.Count(), q.InFlight())
	}
	go q.Wait(1)
	select {
	case <-ended:
		t.Fatal("a held operation ended")
	case <-time.After(5 * time.Millisecond):
	}
	hold.Release()
	if k := <-ended; k != disk.Sync {
		t.Fatal(k)
	}
}

func TestRotChangesWhatIsStored(t *testing.T) {
	d := simdisk.New(simdisk.Options{Seed: 5})
	f := lasting(t, d, "f")
	image := tagged(make([]byte, 2*block), 9)
	must(t, f.WriteAt(image, 0))
	must(t, d.Rot("f", 5000))
	for _, view := range []*simdisk.Disk{d, d.Crash(nil), d.Clone()} {
		got := make([]byte, len(image))
		_, err := open(t, view, "f").ReadAt(got, 0)
		must(t, err)
		for i := range got {
			if (got[i] != image[i]) != (i == 5000) {
				t.Fatalf("byte %d is %#x, was %#x", i, got[i], image[i])
			}
		}
	}
	if err := d.Rot("g", 0); !errors.Is(err, syscall.ENOENT) {
		t.Fatal(err)
	}
	if err := d.Rot("f", 2*block); err == nil {
		t.Fatal("rotted beyond the end")
	}
	must(t, d.Check())
}

// C10, E19: a buffer that changes in flight is noticed, one that is freed is a bug.
func TestBuffersInFlightAreWatched(t *testing.T) {
	d := simdisk.New(simdisk.Options{Seed: 6})
	f := create(t, d, "f")
	q, err := d.NewQueue(1)
	must(t, err)
	buf, _ := d.Arena().Alloc(block)
	op := &disk.Op{Kind: disk.Write, File: f, Buf: buf, Done: func(*disk.Op) {}}
	for want := range 2 {
		must(t, q.Push(op))
		must(t, q.Submit())
		buf[100] += byte(want)
		_, err := q.Wait(1)
		must(t, err)
		if n := d.Counts().ChangedBuffers; n != want {
			t.Fatalf("%d buffers changed, counted %d", want, n)
		}
	}
	must(t, q.Push(op))
	must(t, q.Submit())
	d.Arena().Free(buf)
	defer func() {
		if recover() == nil {
			t.Fatal("a buffer freed in flight went unnoticed")
		}
	}()
	q.Wait(1)
}

// C13: a disk that only claims to be durable loses what it acknowledged, and says how
// often it lied.
func TestC13LyingDisk(t *testing.T) {
	lost := 0
	for seed := range seeds(30) {
		d := simdisk.New(simdisk.Options{Seed: seed})
		f := lasting(t, d, "f")
		must(t, f.WriteAt(tagged(make([]byte, block), 1), 0))
		d.Lie(true)
		must(t, f.WriteAt(tagged(make([]byte, block), 2), 0))
		must(t, f.Sync())
		must(t, create(t, d, "g").Close())
		must(t, d.SyncDir(""))
		if n := d.Counts().Lies; n != 3 {
			t.Fatal(n)
		}
		after := d.Crash(nil)
		if _, err := after.Open("g", true); err != nil && slices.Contains(tagsOf(t, open(t, after, "f")), 1) {
			lost++
		}
		if got := d.Unsynced(); !slices.Equal(got, []string{"file f", "name g"}) {
			t.Fatal(got)
		}
		d.Lie(false)
		must(t, f.Sync())
		must(t, d.SyncDir(""))
		if got := d.Unsynced(); len(got) != 0 {
			t.Fatal(got)
		}
		if tags := tagsOf(t, open(t, d.Crash(nil), "f")); slices.Contains(tags, 1) {
			t.Fatal("an honest sync proved nothing")
		}
	}
	if lost == 0 {
		t.Fatal("nothing was lost")
	}
}

func TestTraceIsBoundedAndCountsAreNot(t *testing.T) {
	d := simdisk.New(simdisk.Options{Seed: 7, TraceMax: 10})
	f := create(t, d, "f")
	for range 100 {
		must(t, f.Sync())
	}
	d.Note("end")
	trace := d.Trace()
	if last := trace[len(trace)-1]; len(trace) != 10 || last.Action != simdisk.Note || last.Seq != 102 || d.Counts().Syncs != 100 {
		t.Fatal(len(trace), last, d.Counts())
	}
}

// C11: the self-test finds a disk that drops a block or puts it in the wrong place.
func TestC11SelfTestFindsLies(t *testing.T) {
	must(t, disk.SelfTest(simdisk.New(simdisk.Options{Seed: 8})))
	for name, lie := range map[string]func(p []byte, off int64) ([]byte, int64){
		"drops a block":        func(p []byte, off int64) ([]byte, int64) { return p[:len(p)-block], off },
		"shifts a block":       func(p []byte, off int64) ([]byte, int64) { return p, off + block },
		"repeats a block":      func(p []byte, off int64) ([]byte, int64) { return append(slices.Clone(p[block:]), p[block:]...), off },
		"writes zeros instead": func(p []byte, off int64) ([]byte, int64) { return make([]byte, len(p)), off },
	} {
		d := simdisk.New(simdisk.Options{Seed: 8})
		if err := disk.SelfTest(liar{d, lie}); !errors.Is(err, disk.ErrSelfTest) {
			t.Errorf("%s: %v", name, err)
		}
		if left := files(t, d); len(left) != 0 {
			t.Errorf("%s: the scratch file stayed", name)
		}
	}
	d := simdisk.New(simdisk.Options{Seed: 9})
	fault := d.Fail(simdisk.Nth(1, syscall.EIO, simdisk.On(simdisk.Sync)))
	if err := disk.SelfTest(d); !errors.Is(err, syscall.EIO) || errors.Is(err, disk.ErrSelfTest) || fault.ErrorCount() != 1 {
		t.Errorf("a failing sync: %v", err)
	}
}

// liar is a disk whose blocking writes do something else.
type liar struct {
	*simdisk.Disk
	lie func(p []byte, off int64) ([]byte, int64)
}

type liarFile struct {
	disk.File
	lie func(p []byte, off int64) ([]byte, int64)
}

func (l liar) Create(name string) (disk.File, error) {
	f, err := l.Disk.Create(name)
	return &liarFile{f, l.lie}, err
}

func (l liar) NewQueue(depth int) (disk.Queue, error) {
	q, err := l.Disk.NewQueue(depth)
	return liarQueue{q}, err
}

// liarQueue gives the wrapped file to the real queue.
type liarQueue struct{ disk.Queue }

func (q liarQueue) Push(op *disk.Op) error {
	if f, ok := op.File.(*liarFile); ok {
		op.File = f.File
	}
	return q.Queue.Push(op)
}

func (f *liarFile) WriteAt(p []byte, off int64) error { return f.File.WriteAt(f.lie(p, off)) }
