package store

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/ringfence/ringfence/fence"
	"github.com/ringfence/ringfence/segfile"
	"github.com/ringfence/ringfence/segfile/disk"
	"github.com/ringfence/ringfence/segfile/disk/simdisk"
)

// leaveOpen makes a segment of these batches and ends the store without a fence.
func leaveOpen(t testing.TB, d *simdisk.Disk, id fence.SegmentID, base uint64, batches ...*batch) (name string) {
	t.Helper()
	s, _ := openStore(t, d, testOptions())
	seg := newSegment(t, s, id, base, nil)
	for _, b := range batches {
		put(t, seg, b)
	}
	closeStore(t, s)
	return seg.File()
}

func contents(t testing.TB, d disk.Disk, name string) []byte {
	t.Helper()
	f, err := d.Open(name, true)
	must(t, err)
	defer f.Close()
	size, err := f.Size()
	must(t, err)
	b := make([]byte, size)
	if size > 0 {
		_, err = f.ReadAt(b, 0)
		must(t, err)
	}
	return b
}

// write puts a file of whole blocks there, in place of what was.
func write(t testing.TB, d disk.Disk, name string, b []byte) {
	t.Helper()
	d.Remove(name)
	f, err := d.Create(name)
	must(t, err)
	if n := len(b) / disk.Block * disk.Block; n > 0 {
		must(t, f.WriteAt(b[:n], 0))
	}
	if len(b)%disk.Block != 0 {
		must(t, f.WriteAt(append(slices.Clone(b[len(b)/disk.Block*disk.Block:]), make([]byte, disk.Block-len(b)%disk.Block)...), int64(len(b)/disk.Block*disk.Block)))
		must(t, f.Truncate(int64(len(b))))
		must(t, f.Sync())
	}
	must(t, f.Close())
}

// A01, A02, A05, A10: an open file cut off, or zeroed, at every sector of its last
// flush and before: it ends with the last whole batch, its successor goes on there,
// and the next start has nothing to do.
func TestA01TornTails(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 30))
	d := newDisk(1)
	p := &source{id: 7}
	batches := []*batch{p.next(rng, 3, 100), p.next(rng, 2, 4096-350), p.next(rng, 3, 3000)}
	name := leaveOpen(t, d, segID(0, 0), 70, batches...)
	d = d.Reopen()
	whole := contents(t, d, name)
	lost := 0
	for cut := int64(len(whole)); cut >= segfile.DataStart+4096; cut -= 512 {
		for _, zeros := range []bool{false, true} {
			bad := d.Clone()
			b := slices.Clone(whole[:cut])
			if zeros {
				b = append(b, make([]byte, int64(len(whole))-cut)...)
			}
			write(t, bad, name, b)
			for range 2 {
				s, rec := openStore(t, bad, testOptions())
				if len(rec.Damaged)+len(rec.Unknown)+len(rec.Faulty) > 0 {
					t.Fatalf("cut at %d: %+v", cut, rec)
				}
				seg, err := s.Segment(segID(0, 0))
				must(t, err)
				end, _ := seg.Fenced()
				items, err := readSegment(seg, 70)
				must(t, err)
				contiguous(t, items, 70, end.Offset)
				n := 0
				for i := 0; i < len(items); n++ {
					for _, v := range batches[n].values {
						if !bytes.Equal(items[i].value, v) {
							t.Fatalf("cut at %d: record %d is another one", cut, i)
						}
						i++
					}
				}
				if end.Position > roundUp64(cut, disk.Block) && !zeros {
					t.Fatalf("cut at %d, ends at %d", cut, end.Position)
				}
				if n < len(batches) {
					lost++
				}
				next := segID(0, 1)
				if seg, err = s.Segment(next); err != nil { // the first time
					table, err := mustSegment(t, s, segID(0, 0)).Producers()
					must(t, err)
					seg = newSegment(t, s, next, end.Offset, table.Clone())
					for _, b := range batches[n:] {
						if f := put(t, seg, b); f.Duplicate || f.First < end.Offset {
							t.Fatalf("cut at %d: sent again and stored at %d, duplicate %v", cut, f.First, f.Duplicate)
						}
					}
				}
				holds(t, seg, batches[n:]...)
				closeStore(t, s)
				bad = bad.Reopen()
			}
		}
	}
	if lost == 0 {
		t.Fatal("nothing was cut off")
	}
}

func mustSegment(t testing.TB, s *Store, id fence.SegmentID) *Segment {
	t.Helper()
	seg, err := s.Segment(id)
	must(t, err)
	return seg
}

// A11, A03: one damaged byte in a file that was left open. What lies before the last
// proof is damage: an error at the offset, with the rest behind it. What lies behind
// may be a torn write: it is cut off, and said so. Never a quiet shorter log.
func TestA11OpenFileDamage(t *testing.T) {
	rng := rand.New(rand.NewPCG(2, 30))
	d := newDisk(2)
	p := &source{id: 7}
	var sent []*batch
	for i := range 42 {
		sent = append(sent, p.next(rng, 1, []int{10, 3000, 20_000}[i%3]))
	}
	name := leaveOpen(t, d, segID(0, 0), 0, sent...)
	d = d.Reopen()
	size := int64(len(contents(t, d, name)))
	seen := map[string]int{}
	for range 250 {
		at := rng.Int64N(size)
		bad := d.Clone()
		must(t, bad.Rot(name, at))
		s, rec := openStore(t, bad, testOptions())
		if len(rec.Damaged) > 0 {
			t.Fatalf("byte %d: %v", at, rec.Damaged[0].Err)
		}
		seg := mustSegment(t, s, segID(0, 0))
		items, err := readSegment(seg, 0)
		for i := range items {
			if items[i].offset != uint64(i) || !bytes.Equal(items[i].value, sent[i].values[0]) {
				t.Fatalf("byte %d: record %d is another one", at, i)
			}
		}
		v := rec.Recovered[0].Verdict
		end, _ := seg.Fenced()
		switch {
		case err != nil:
			seen["damage"]++
			if !errors.Is(err, ErrDamaged) || len(rec.Faulty) == 0 && v.State != segfile.Clean {
				t.Fatalf("byte %d: %v, %+v", at, err, rec)
			}
			if end.Offset != uint64(len(sent)) && v.State == segfile.Clean {
				t.Fatalf("byte %d: %s, and ends at %d", at, v.State, end.Offset)
			}
		case len(items) == len(sent):
			seen["whole"]++
		default:
			seen["cut"]++
			if v.State != segfile.Torn || v.Cut.Position > at || v.Cut.Length == 0 || len(sent)-len(items) > 1 {
				t.Fatalf("byte %d: %d records back, %s: %s, %+v", at, len(items), v.State, v.Why, v.Cut)
			}
		}
		// The range goes on in a successor either way.
		if table, err := seg.Producers(); err == nil && table != nil {
			next := newSegment(t, s, segID(0, 1), end.Offset, table.Clone())
			put(t, next, &batch{producer: 99, first: 1, values: sent[0].values, keys: sent[0].keys})
		}
		closeStore(t, s)
	}
	if seen["damage"] == 0 || seen["whole"] == 0 || seen["cut"] == 0 {
		t.Fatal(seen)
	}
}

// A07, A19, B02, B04, D10: files that are no segments of this tree, whatever their
// names say: reported, set aside whole, never deleted, and never in anybody's way.
func TestStrangeFiles(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 30))
	d := newDisk(3)
	p := &source{id: 7}
	b := p.next(rng, 3, 1000)
	good := leaveOpen(t, d, segID(0, 0), 0, b)
	d = d.Reopen()
	image := contents(t, d, good)
	records := image[segfile.DataStart : segfile.DataStart+3*disk.Block] // start mark, pointer, the batch
	dir := segfile.Dir(testTopic)
	half := make([]byte, 4096)
	copy(half, image[:2048])
	strange := map[string][]byte{
		segfile.Name(segID(0, 1)):               make([]byte, 64<<10),                         // all zero: preallocated, never used
		segfile.Name(segID(0, 2)):               image,                                        // another segment's file under this name
		segfile.Name(segID(0, 3)):               {},                                           // empty
		segfile.Name(segID(0, 4)):               bytes.Repeat([]byte("not a segment. "), 900), // foreign
		segfile.Name(segID(0, 5)):               half,                                         // half a header and nothing behind
		dir + "/notes.txt":                      []byte("hello"),
		dir + "/00000000-00000000.seg.tmp":      image,
		"topics/stray":                          []byte("x"),
		"topics/stranger/00000000-00000000.seg": image,
	}
	must(t, d.Mkdir("topics/stranger"))
	must(t, d.Mkdir("topics/empty"))
	folder := segfile.Name(segID(0, 6)) // where a segment is to come
	must(t, d.Mkdir(folder))
	write(t, d, folder+"/kept", []byte("x"))
	must(t, d.SyncDir(folder))
	for name, content := range strange {
		write(t, d, name, content)
	}
	s, rec := openStore(t, d, testOptions())
	var unknown []string
	for _, n := range rec.Unknown {
		if n.Err == nil {
			t.Errorf("%s: no reason", n.File)
		}
		unknown = append(unknown, n.File)
	}
	slices.Sort(unknown)
	want := slices.Sorted(maps.Keys(strange))
	want = append(want, folder)
	slices.Sort(want)
	if !slices.Equal(unknown, want) || len(rec.Damaged) > 0 {
		t.Fatalf("unknown %v, want %v; damaged %v", unknown, want, rec.Damaged)
	}
	holds(t, mustSegment(t, s, segID(0, 0)), b)
	if n := len(s.IDs()); n != 1 {
		t.Fatalf("%d segments", n)
	}
	aside := map[string][]byte{}
	for _, n := range rec.Unknown {
		to, err := s.SetAside(n.File)
		must(t, err)
		if n.File == folder {
			aside[to+"/kept"] = []byte("x")
			continue
		}
		aside[to] = strange[n.File]
	}
	if len(aside) != len(want) {
		t.Fatalf("%d names for %d files", len(aside), len(want))
	}
	for _, id := range s.IDs() { // nobody's: as after metadata that was put back
		to, err := s.SetAsideSegment(id)
		must(t, err)
		aside[to] = nil
	}
	closeStore(t, s)
	for _, e := range d.Trace() {
		if e.Action == simdisk.Remove && e.Err == nil {
			t.Errorf("removed: %v", e)
		}
	}

	after := d.Crash(rng)
	s, rec = openStore(t, after, testOptions())
	if len(rec.Unknown)+len(rec.Damaged)+rec.Fenced > 0 {
		t.Fatalf("after the files were set aside: %+v", rec)
	}
	for name, content := range aside {
		if have := contents(t, after, name); content != nil && !bytes.Equal(have, content) {
			t.Errorf("%s changed", name)
		} else if content == nil && !bytes.Equal(have[segfile.DataStart:][:len(records)], records) {
			t.Errorf("%s lost its records", name)
		}
	}
	// The segment's name is free, and its file can be put back.
	to := slices.Collect(maps.Keys(aside))
	slices.Sort(to)
	closeStore(t, s)
	for _, name := range to {
		if aside[name] == nil {
			must(t, after.Reopen().Rename(name, good))
		}
	}
	s, _ = openStore(t, after.Reopen(), testOptions())
	holds(t, mustSegment(t, s, segID(0, 0)), b)
}

// A file that is set aside twice at the same moment under the same name is there
// twice; one that somebody reads stays where it is.
func TestSetAsideReplacesNothing(t *testing.T) {
	rng := rand.New(rand.NewPCG(4, 30))
	d := newDisk(4)
	s, _ := openStore(t, d, testOptions())
	seg := newSegment(t, s, segID(0, 0), 0, nil)
	put(t, seg, (&source{id: 7}).next(rng, 1, 100))
	if _, err := s.SetAsideSegment(seg.ID()); err == nil {
		t.Fatal("an open segment was set aside")
	}
	names := map[string]bool{}
	for i := range 3 {
		name := segfile.Dir(testTopic) + "/stray"
		write(t, d, name, fmt.Append(nil, "stray ", i))
		to, err := s.SetAside(name)
		must(t, err)
		names[to] = true
		if got := contents(t, d, to); string(got) != fmt.Sprint("stray ", i) {
			t.Fatalf("%s holds %q", to, got)
		}
	}
	if len(names) != 3 {
		t.Fatal(names)
	}
	if _, err := seg.Fence(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the file was trimmed", func() bool {
		seg.uses.mu.Lock()
		defer seg.uses.mu.Unlock()
		return seg.uses.n == 0
	})
	sc, err := seg.Scan(0)
	must(t, err)
	if _, err := s.SetAsideSegment(seg.ID()); err == nil {
		t.Fatal("set aside under a reader")
	}
	if _, err := sc.Next(); err != nil {
		t.Fatal(err)
	}
	sc.Close()
	if _, err := s.SetAsideSegment(seg.ID()); err != nil {
		t.Fatal(err)
	}
	if _, err := seg.Scan(0); !errors.Is(err, ErrNoSegment) {
		t.Fatal(err)
	}
	if _, err := s.SetAside("topics/nothing"); err == nil {
		t.Fatal("nothing was set aside")
	}
}

// A tree that a newer version wrote to is refused, and nothing in it is touched: not
// the segments that this version could have fenced.
func TestNewerFormatIsLeftAlone(t *testing.T) {
	castagnoli := crc32.MakeTable(crc32.Castagnoli)
	for what, change := range map[string]func(b []byte, salt uint64){
		"header": func(b []byte, _ uint64) {
			binary.LittleEndian.PutUint16(b[8:], 2)
			binary.LittleEndian.PutUint32(b[4092:], crc32.Checksum(b[:4092], castagnoli))
		},
		"frame": func(b []byte, salt uint64) {
			h := b[segfile.DataStart+4096:]
			binary.LittleEndian.PutUint16(h[4:], 2)
			binary.LittleEndian.PutUint32(h[124:], crc32.Update(uint32(salt*0x9e3779b97f4a7c15>>32), castagnoli, h[:124]))
		},
	} {
		t.Run(what, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(5, 30))
			d := newDisk(5)
			s, _ := openStore(t, d, testOptions())
			for i := range uint32(20) {
				put(t, newSegment(t, s, segID(i, 0), 0, nil), (&source{id: 7}).next(rng, 2, 500))
			}
			closeStore(t, s)
			d = d.Reopen()
			name := segfile.Name(segID(13, 0))
			b := contents(t, d, name)
			change(b, metaOf(segID(13, 0), 0).Salt)
			write(t, d, name, b)
			before := map[string][]byte{}
			for i := range uint32(20) {
				n := segfile.Name(segID(i, 0))
				before[n] = contents(t, d, n)
			}
			view := d.Reopen()
			s, _, err := Open(view, testOptions(), nil)
			if !errors.Is(err, segfile.ErrNewer) || s != nil || !strings.Contains(err.Error(), name) {
				t.Fatalf("open: %v", err)
			}
			if n := view.Arena().InUse(); n != 0 {
				t.Errorf("%d bytes in use", n)
			}
			for n, was := range before {
				if !bytes.Equal(contents(t, d, n), was) {
					t.Errorf("%s was changed", n)
				}
			}
		})
	}
}

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

// A start that cannot read, or cannot write, is refused with an error and can be
// repeated; what it read before does not turn into damage.
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
	failed := map[simdisk.Action]int{}
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
	if len(failed) < 6 {
		t.Fatalf("failed starts: %v", failed)
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

// B05, B07, B11, B16: a damaged footer, or one latch slot, is written again as it
// was at the next start or soon after, at the cost of that one file, and files do not grow by
// being opened.
func TestB05FootersAndSlotsAreMended(t *testing.T) {
	rng := rand.New(rand.NewPCG(11, 30))
	d := newDisk(11)
	s, _ := openStore(t, d, testOptions())
	seg := newSegment(t, s, segID(0, 0), 0, nil)
	var sizes []int
	for i := range 40 {
		sizes = append(sizes, 100+i*500)
	}
	sent := bulk(t, s, seg, rng, sizes)
	end, _ := seg.Fenced()
	closeStore(t, s)
	d = d.Reopen()
	name := seg.File()
	was := contents(t, d, name)
	for _, at := range []int64{4096, 4096 + 77, 8192 + 30, 8192 + 4095, end.Position, end.Position + 40, end.Position + 130, int64(len(was)) - 3000} {
		bad := d.Clone()
		must(t, bad.Rot(name, at))
		if bytes.Equal(contents(t, bad, name), was) {
			t.Fatal("nothing was damaged")
		}
		for start := range 3 {
			s, rec := openStore(t, bad, testOptions())
			if len(rec.Faulty)+len(rec.Damaged)+len(rec.Recovered) > 0 {
				t.Fatalf("byte %d, start %d: %+v", at, start, rec)
			}
			seg := mustSegment(t, s, segID(0, 0))
			holds(t, seg, sent...)
			table, err := seg.Producers()
			must(t, err)
			if seq, _, ok := table.Lookup(7, 0); !ok || seq != uint64(len(sent)) {
				t.Fatalf("byte %d: the producer stands at %d", at, seq)
			}
			eventually(t, fmt.Sprintf("byte %d, start %d: the file is what it was", at, start), func() bool { return bytes.Equal(contents(t, bad, name), was) })
			closeStore(t, s)
			bad = bad.Reopen()
		}
	}
}

// A header that is damaged is used by its copy and stays among the faults; both gone,
// the file is damaged, and set aside for nobody.
func TestDamagedHeader(t *testing.T) {
	rng := rand.New(rand.NewPCG(12, 30))
	d := newDisk(12)
	b := (&source{id: 7}).next(rng, 3, 100)
	name := leaveOpen(t, d, segID(0, 0), 0, b)
	for _, fenceFirst := range []bool{false, true} {
		bad := d.Clone()
		if fenceFirst {
			s, _ := openStore(t, bad, testOptions())
			closeStore(t, s)
			bad = bad.Reopen()
		}
		must(t, bad.Rot(name, 20))
		s, rec := openStore(t, bad, testOptions())
		if len(rec.Faulty) != 1 || rec.Faulty[0].File != name || rec.Faulty[0].ID != segID(0, 0) || !errors.Is(rec.Faulty[0].Err, segfile.ErrDamaged) {
			t.Fatalf("%+v", rec)
		}
		holds(t, mustSegment(t, s, segID(0, 0)), b)
		closeStore(t, s)
		bad = bad.Reopen()
		must(t, bad.Rot(name, segfile.DataStart+5))
		s, rec = openStore(t, bad, testOptions())
		if len(rec.Damaged) != 1 || rec.Damaged[0].File != name || len(rec.Unknown) > 0 {
			t.Fatalf("%+v", rec)
		}
		if _, err := s.Segment(segID(0, 0)); !errors.Is(err, ErrNoSegment) {
			t.Fatal(err)
		}
		if _, err := s.Create(t.Context(), metaOf(segID(0, 0), 0), nil); err == nil {
			t.Fatal("a damaged file was replaced by a new segment")
		}
		closeStore(t, s)
	}
}
