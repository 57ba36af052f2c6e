package store

import (
	"errors"
	"io/fs"
	"math/rand/v2"
	"slices"
	"syscall"
	"testing"

	"github.com/ringfence/ringfence/fence"
	"github.com/ringfence/ringfence/segfile"
	"github.com/ringfence/ringfence/segfile/disk"
	"github.com/ringfence/ringfence/segfile/disk/simdisk"
)

// A start that found a segment has found it for good, also when the process before
// died in its birth and the power goes next.
func TestNamesThatAStartFoundStay(t *testing.T) {
	back := 0
	for seed := range seeds(30) {
		rng := rand.New(rand.NewPCG(seed, 31))
		d := newDisk(seed)
		s, _, err := Open(d, testOptions(), nil)
		must(t, err)
		newSegment(t, s, segID(0, 0), 0, nil)
		renames := 0
		fault := d.Fail(func(e simdisk.Event) error {
			if e.Action == simdisk.Rename {
				renames++
			}
			if e.Action == simdisk.SyncDir || renames > 1 {
				return syscall.EIO // the birth stops behind the rename
			}
			return nil
		})
		if _, err := s.Create(t.Context(), metaOf(segID(0, 1), 0), nil); err == nil || fault.ErrorCount() < 2 {
			t.Fatalf("create: %v, %d faults", err, fault.ErrorCount())
		}
		fault.Stop()
		killed := d.Kill()
		abandon(s)
		if _, err := d.Crash(rng).Open(segfile.Name(segID(0, 1)), true); err != nil {
			back++ // the name could still be lost
		}
		s, rec := openStore(t, killed, testOptions())
		if len(rec.Recovered) != 2 {
			t.Fatalf("seed %d: %+v", seed, rec)
		}
		after := killed.Crash(rng)
		closeStore(t, s)
		s, _ = openStore(t, after, testOptions())
		if end, ok := mustSegment(t, s, segID(0, 1)).Fenced(); !ok || end.Offset != 0 {
			t.Fatalf("seed %d: %+v", seed, end)
		}
		closeStore(t, s)
	}
	if back == 0 {
		t.Fatal("the name was never at risk")
	}
}

// Options that mean nothing are refused, and the disk is given back.
func TestOptionsAreChecked(t *testing.T) {
	for _, o := range []Options{{Shards: -1}, {Flushes: -1}, {QueueDepth: -2}, {Recoveries: -1}, {QueueBytes: -1}, {SegmentBytes: -1}, {OverlapBytes: -1}, {SpaceEvery: -1}} {
		d := newDisk(1)
		if _, _, err := Open(d, o, nil); err == nil {
			t.Errorf("%+v was taken", o)
		}
		if _, err := d.List(""); !errors.Is(err, disk.ErrClosed) {
			t.Errorf("the disk was not closed: %v", err)
		}
	}
}

// A second process is kept out, and does no harm.
func TestOneProcess(t *testing.T) {
	rng := rand.New(rand.NewPCG(6, 30))
	d := newDisk(6)
	s, _ := openStore(t, d, testOptions())
	seg := newSegment(t, s, segID(0, 0), 0, nil)
	p := &source{id: 7}
	a, b := p.next(rng, 1, 100), p.next(rng, 1, 100)
	put(t, seg, a)
	second := d.Reopen()
	if _, _, err := Open(second, testOptions(), nil); !errors.Is(err, ErrLocked) {
		t.Fatalf("a second process: %v", err)
	}
	if _, err := second.List(""); !errors.Is(err, disk.ErrClosed) {
		t.Fatalf("the refused disk was not closed: %v", err)
	}
	put(t, seg, b)
	holds(t, seg, a, b)
	closeStore(t, s)
	s, rec := openStore(t, d.Reopen(), testOptions())
	if len(rec.Recovered) != 1 {
		t.Fatalf("%+v", rec)
	}
	holds(t, mustSegment(t, s, segID(0, 0)), a, b)
}

// A start that cannot read, or cannot write, is refused with an error, or goes on without
// the one file that it was about, and can be repeated; what it read before does not turn
// into damage.
func TestStartThatFails(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 30))
	d := newDisk(7)
	s, _ := openStore(t, d, testOptions())
	want := map[fence.SegmentID]*batch{}
	for i := range uint32(6) {
		seg := newSegment(t, s, segID(i, 0), 0, nil)
		b := (&source{id: 7}).next(rng, 3, 2000)
		put(t, seg, b)
		want[seg.ID()] = b
		if i%2 == 0 {
			if _, err := seg.Fence(); err != nil {
				t.Fatal(err)
			}
		}
	}
	closeStore(t, s)
	base := d.Reopen()
	failed, without := map[simdisk.Action]int{}, map[simdisk.Action]int{}
	for _, action := range []simdisk.Action{simdisk.Lock, simdisk.Mkdir, simdisk.SyncDir, simdisk.List, simdisk.Open, simdisk.Size, simdisk.Read, simdisk.Write} {
		for n := 1; n < 40; n += 1 + n/4 {
			d := base.Clone()
			view := d.Reopen()
			fault := view.Fail(simdisk.Nth(n, syscall.EIO, simdisk.On(action)))
			s, rec, err := Open(view, testOptions(), nil)
			fault.Stop()
			switch {
			case err != nil && fault.ErrorCount() == 0:
				t.Fatalf("%s %d: %v", action, n, err)
			case err != nil:
				failed[action]++
				if !errors.Is(err, syscall.EIO) {
					t.Fatalf("%s %d: %v", action, n, err)
				}
				if in := view.Arena().InUse(); in != 0 {
					t.Fatalf("%s %d: %d bytes in use", action, n, in)
				}
				s, rec = openStore(t, d.Reopen(), testOptions())
				fallthrough
			default:
				for _, n := range rec.Damaged {
					if fault.ErrorCount() == 0 || !errors.Is(n.Err, syscall.EIO) {
						t.Fatalf("%s: %+v", action, n)
					}
					if _, err := s.Segment(n.ID); !errors.Is(err, ErrNoSegment) {
						t.Fatalf("%s: %v", action, err)
					}
				}
				if n := len(rec.Damaged); n > 0 { // what it is about is unknown, and so the next start finds it
					without[action]++
					if n+len(rec.Recovered)+rec.Fenced != len(want) && action != simdisk.List {
						t.Fatalf("%s: %+v", action, rec)
					}
					closeStore(t, s)
					s, rec = openStore(t, d.Reopen(), testOptions())
				}
				if len(rec.Damaged)+len(rec.Unknown) > 0 {
					t.Fatalf("%s %d: %+v", action, n, rec)
				}
				for id, b := range want {
					holds(t, mustSegment(t, s, id), b)
				}
				closeStore(t, s)
			}
		}
	}
	if len(failed) < 4 || len(without) < 6 {
		t.Fatalf("failed starts: %v, and without a file: %v", failed, without)
	}
}

// D05: a start on a full disk takes the space it needs for fences from the pool; if
// that is not enough, what was left open stays open until there is space.
func TestStartOnAFullDisk(t *testing.T) {
	rng := rand.New(rand.NewPCG(8, 30))
	for _, pooled := range []bool{true, false} {
		d := newDisk(8)
		s, _ := openStore(t, d, testOptions())
		b := (&source{id: 7}).next(rng, 3, 20_000) // more than a new file's head start
		put(t, newSegment(t, s, segID(0, 0), 0, nil), b)
		if pooled {
			old := newSegment(t, s, segID(1, 0), 0, nil)
			for q := (&source{id: 8}); old.Position() < 500<<10; {
				put(t, old, q.next(rng, 1, 60_000))
			}
			if _, err := old.Fence(); err != nil {
				t.Fatal(err)
			}
			must(t, s.Delete(old.ID()))
		}
		closeStore(t, s)
		d = d.Reopen()
		if !pooled { // what a crash left of a look at the space
			f, err := d.Create(probeName)
			must(t, err)
			must(t, f.Close())
		}
		total, free, err := d.Space()
		must(t, err)
		d.SetCapacity(int64(total - free))
		s, rec, err := Open(d.Reopen(), testOptions(), nil)
		if _, perr := d.Open(probeName, true); !errors.Is(perr, fs.ErrNotExist) {
			t.Fatalf("the probe is still there: %v", perr)
		}
		must(t, err)
		seg := mustSegment(t, s, segID(0, 0))
		holds(t, seg, b)
		if _, fenced := seg.Fenced(); fenced != pooled || seg.LeftOpen() == pooled || len(rec.Unfenced) == len(rec.Recovered) {
			t.Fatalf("pooled %v: fenced %v, %+v", pooled, fenced, rec)
		}
		if !pooled {
			if _, err := seg.Fence(); !errors.Is(err, ErrOutOfSpace) {
				t.Fatalf("fence on a full disk: %v", err)
			}
			d.SetCapacity(1 << 30)
			if end, err := seg.Fence(); err != nil || end.Offset != 3 {
				t.Fatalf("fence with space: %+v %v", end, err)
			}
			holds(t, seg, b)
			sound(t, d, seg.File())
		}
		closeStore(t, s)
	}
}

// A thousand segments, some left open: one start reads little of each and reports its
// progress; the next one only opens them. (B16)
func TestManySegments(t *testing.T) {
	rng := rand.New(rand.NewPCG(10, 30))
	d := newDisk(10)
	s, _ := openStore(t, d, testOptions())
	const n = 1000
	want := map[fence.SegmentID]*batch{}
	for i := range uint32(n) {
		seg := newSegment(t, s, segID(i, 0), uint64(i), nil)
		b := (&source{id: uint64(i + 1)}).next(rng, 1, 200)
		put(t, seg, b)
		want[seg.ID()] = b
		if i%20 != 0 {
			if _, err := seg.Fence(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if st := s.Stats(); st.Segments != n || st.Open != n/20 || st.Records != n {
		t.Fatalf("%+v", st)
	}
	closeStore(t, s)
	for start := range 2 {
		d = d.Reopen()
		before := d.Counts().BytesRead
		last, total := 0, 0
		s, rec, err := Open(d, testOptions(), func(done, of int) {
			if done != last+1 {
				t.Errorf("progress went from %d to %d", last, done)
			}
			last, total = done, of
		})
		must(t, err)
		if last != n || total != n {
			t.Errorf("progress ended at %d of %d", last, total)
		}
		if open := []int{n / 20, 0}[start]; len(rec.Recovered) != open || rec.Fenced != n-open {
			t.Fatalf("%d recovered, %d fenced", len(rec.Recovered), rec.Fenced)
		}
		if read := d.Counts().BytesRead - before; read > n*64<<10 {
			t.Errorf("a start read %d bytes", read)
		}
		if len(s.IDs()) != n || !slices.IsSortedFunc(s.IDs(), fence.SegmentID.Compare) {
			t.Fatal("ids")
		}
		for id, b := range want {
			if id.Range.Seq%37 == 0 {
				holds(t, mustSegment(t, s, id), b)
			}
		}
		closeStore(t, s)
	}
}
