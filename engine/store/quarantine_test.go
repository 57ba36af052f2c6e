package store

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/ringfence/ringfence/segfile"
	"github.com/ringfence/ringfence/segfile/disk"
	"github.com/ringfence/ringfence/segfile/disk/simdisk"
)

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
			binary.LittleEndian.PutUint16(h[4:], 3)
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
