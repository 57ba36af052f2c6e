package store

import (
	"bytes"
	"errors"
	"fmt"
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
			first := true
			for range 2 {
				s, rec := openStore(t, bad, testOptions())
				faulty := 0
				if first && cut == segfile.DataStart+disk.Block { // the pointer went, too: the file may have held nothing, or much
					faulty = 1
				}
				first = false
				if len(rec.Damaged)+len(rec.Unknown) > 0 || len(rec.Faulty) != faulty {
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
				if end.Position > roundUp64(cut, disk.Block) && !zeros && cut > segfile.DataStart+disk.Block {
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

// A header that is damaged is used by its copy. It is written again in a fenced file, and
// stays among the faults where the start has fenced the file; both gone, the file is
// damaged, and set aside for nobody.
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
		if fenceFirst && len(rec.Faulty) > 0 || !fenceFirst && (len(rec.Faulty) != 1 || rec.Faulty[0].File != name || rec.Faulty[0].ID != segID(0, 0) || !errors.Is(rec.Faulty[0].Err, segfile.ErrDamaged)) {
			t.Fatalf("%+v", rec)
		}
		holds(t, mustSegment(t, s, segID(0, 0)), b)
		closeStore(t, s)
		bad = bad.Reopen()
		if fenceFirst {
			_, err := segfile.Verify(bad, name, nil)
			must(t, err)
			must(t, bad.Rot(name, 20))
		}
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

// denying is a disk with a directory that cannot be listed, a file that cannot be opened, and
// one that can only be read.
type denying struct {
	disk.Disk
	dir, file, readOnly string
	err                 error
	denied              int
}

func (d *denying) Open(name string, readOnly bool) (disk.File, error) {
	if name == d.file || name == d.readOnly && !readOnly {
		d.denied++
		return nil, &fs.PathError{Op: "open", Path: name, Err: d.err}
	}
	return d.Disk.Open(name, readOnly)
}

func (d *denying) List(dir string) ([]disk.Entry, error) {
	if dir == d.dir {
		d.denied++
		return nil, &fs.PathError{Op: "list", Path: dir, Err: d.err}
	}
	return d.Disk.List(dir)
}

// What cannot be looked at, or closed, is unknown, and neither empty nor a reason to keep the
// others from being read.
func TestWhatCannotBeLookedAt(t *testing.T) {
	other := fence.SegmentID{Range: fence.RangeID{Topic: fence.TopicID{1}}}
	id := segID(0, 0)
	name := segfile.Name(id)
	for what, no := range map[string]denying{
		"directory":           {dir: segfile.Dir(testTopic), err: fs.ErrPermission},
		"directory, broken":   {dir: segfile.Dir(testTopic), err: syscall.EIO},
		"file":                {file: name, err: fs.ErrPermission},
		"file, broken":        {file: name, err: syscall.EIO},
		"file, a loop":        {file: name, err: syscall.ELOOP},
		"file to be closed":   {readOnly: name, err: fs.ErrPermission},
		"broken when written": {readOnly: name, err: syscall.EIO},
	} {
		t.Run(what, func(t *testing.T) {
			d := newDisk(12)
			rng := rand.New(rand.NewPCG(12, 31))
			b, c := (&source{id: 7}).next(rng, 3, 100), (&source{id: 8}).next(rng, 3, 100)
			leaveOpen(t, d, other, 0, c)
			d = d.Reopen()
			leaveOpen(t, d, id, 0, b)
			no.Disk = d.Reopen()
			s, rec := openStore(t, &no, testOptions())
			if no.denied == 0 || len(rec.Damaged) != 1 || !errors.Is(rec.Damaged[0].Err, no.err) || len(rec.Unknown) > 0 {
				t.Fatalf("denied %d times: %+v", no.denied, rec)
			}
			if n := rec.Damaged[0]; n.File != no.dir && (n.File != name || n.ID != id) {
				t.Fatalf("%+v", n)
			}
			holds(t, mustSegment(t, s, other), c)
			if _, err := s.Segment(id); !errors.Is(err, ErrNoSegment) {
				t.Fatal(err)
			}
			if _, err := s.Create(t.Context(), metaOf(id, 0), nil); err == nil {
				t.Fatal("a file that may not be opened was replaced by a new segment")
			}
			closeStore(t, s)
			s, _ = openStore(t, d.Reopen(), testOptions())
			holds(t, mustSegment(t, s, id), b)
		})
	}
}

// What is the process's own fault is said of no file.
func TestStartWithoutDescriptors(t *testing.T) {
	d := newDisk(12)
	leaveOpen(t, d, segID(0, 0), 0, (&source{id: 7}).next(rand.New(rand.NewPCG(12, 32)), 3, 100))
	no := &denying{Disk: d.Reopen(), file: segfile.Name(segID(0, 0)), err: syscall.EMFILE}
	if _, rec, err := Open(no, testOptions(), nil); !errors.Is(err, syscall.EMFILE) || no.denied == 0 {
		t.Fatalf("%+v %v", rec, err)
	}
}

// A sync of a directory that failed is not tried again for the next file in it.
func TestDirectoryIsNotSyncedAgain(t *testing.T) {
	d := newDisk(12)
	s, _ := openStore(t, d, testOptions())
	for i := range uint32(3) {
		put(t, newSegment(t, s, segID(i, 0), 0, nil), (&source{id: 7}).next(rand.New(rand.NewPCG(12, 33)), 3, 100))
	}
	closeStore(t, s)
	d = d.Reopen()
	fault := d.Fail(simdisk.Nth(1, syscall.EIO, func(e simdisk.Event) bool {
		return e.Action == simdisk.SyncDir && e.Name == segfile.Dir(testTopic)
	}))
	_, rec := openStore(t, d, testOptions())
	if fault.ErrorCount() != 1 || len(rec.Damaged) != 3 {
		t.Fatalf("%d failed: %+v", fault.ErrorCount(), rec)
	}
}
