package store

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/ringfence/ringfence/segfile"
	"github.com/ringfence/ringfence/segfile/disk/simdisk"
)

// readOver reads a segment with accepted losses, and counts what was skipped.
func readOver(t testing.TB, seg *Segment) (items []item, lost uint64) {
	t.Helper()
	sc, err := seg.Scan(seg.Base())
	must(t, err)
	defer sc.Close()
	next := seg.Base()
	for {
		b, err := sc.Next()
		skip, skipped := sc.Skipped()
		if skipped {
			if skip.From != next {
				t.Fatalf("skipped from %d, want %d", skip.From, next)
			}
			lost += skip.Offsets
			next += skip.Offsets
		}
		if errors.Is(err, io.EOF) {
			if end, _ := seg.Fenced(); next != end.Offset {
				t.Fatalf("the end came at %d of %d", next, end.Offset)
			}
			return items, lost
		}
		must(t, err)
		for i := range b.Len() {
			if b.Offset(i) != next {
				t.Fatalf("offset %d, want %d", b.Offset(i), next)
			}
			next++
			items = append(items, item{offset: b.Offset(i)})
		}
	}
}

// Holes of any length, of zeros or of rubbish, are errors until somebody accepts
// them; a scanner that reads ahead steps over one longer than all it reads ahead.
func TestHoles(t *testing.T) {
	rng := rand.New(rand.NewPCG(6, 20))
	d := simdisk.New(simdisk.Options{Seed: 6, ArenaBytes: 64 << 20})
	s, _ := openStore(t, d, testOptions())
	seg := newSegment(t, s, segID(0, 0), 0, nil)
	var sizes []int
	for range 230 {
		sizes = append(sizes, 100_000)
	}
	sent := bulk(t, s, seg, rng, sizes)
	end, _ := seg.Fenced()
	closeStore(t, s)
	for _, hole := range [][2]int64{{5 << 20, 4096}, {3 << 20, 16 << 20}, {9<<20 + 8192, 1 << 20}, {20 << 20, end.Position - 20<<20}, {segfile.DataStart + 4096, 2 << 20}} {
		for _, zeros := range []bool{true, false} {
			bad := d.Clone()
			f, err := bad.Open(seg.File(), false)
			must(t, err)
			junk := make([]byte, hole[1]/4096*4096)
			if !zeros {
				for i := range junk {
					junk[i] = byte(rng.Uint32())
				}
			}
			for at := 0; at < len(junk); at += 1 << 16 {
				must(t, f.WriteAt(junk[at:min(at+1<<16, len(junk))], hole[0]/4096*4096+int64(at)))
			}
			must(t, f.Close())
			s, _ := openStore(t, bad, testOptions())
			seg, err := s.Segment(seg.ID())
			must(t, err)
			items, err := readSegment(seg, 0)
			if !errors.Is(err, ErrDamaged) || len(items) >= len(sent) {
				t.Fatalf("hole %v: %d records, %v", hole, len(items), err)
			}
			if _, err := segfile.AcceptLoss(bad, seg.File()); err != nil {
				t.Fatal(err)
			}
			rest, lost := readOver(t, seg)
			if len(rest)+int(lost) != len(sent) || lost < uint64(hole[1]/110_000) || lost > uint64(hole[1]/100_000+2) {
				t.Fatalf("hole %v: %d records read, %d skipped, of %d", hole, len(rest), lost, len(sent))
			}
			closeStore(t, s)
		}
	}
}

// A16: a fenced file that was cut short, at any byte, is damaged where it ends until the
// loss is accepted. Then all that is left of it can be read, what is missing is
// reported, and the segment ends where it was fenced: whether the store had the file
// open when it was cut, or is opened behind. One record a flush gives padding to cut
// in; records of 100 kB make scanners read ahead.
func TestAcceptedTruncation(t *testing.T) {
	for _, size := range []int{700, 100_000} {
		rng := rand.New(rand.NewPCG(uint64(size), 31))
		d := simdisk.New(simdisk.Options{Seed: 8, ArenaBytes: 64 << 20})
		s, _ := openStore(t, d, testOptions())
		seg := newSegment(t, s, segID(0, 0), 300, nil)
		sent := bulk(t, s, seg, rng, slices.Repeat([]int{size}, 60))
		end, _ := seg.Fenced()
		closeStore(t, s)
		d = d.Reopen()
		first := int64(segfile.DataStart + 4096)
		cuts := []int64{first, first + 1000, end.Position - 1, end.Position - 4096}
		for range 30 {
			cuts = append(cuts, first+rng.Int64N(end.Position-first))
		}
		short := 0
		for i, cut := range cuts {
			bad := d.Clone()
			var s *Store
			before := i%2 == 0
			if before {
				s, _ = openStore(t, bad, testOptions())
			}
			f, err := bad.Open(seg.File(), false)
			must(t, err)
			must(t, f.Truncate(cut))
			must(t, f.Close())
			if !before {
				s, _ = openStore(t, bad, testOptions())
			}
			seg := mustSegment(t, s, segID(0, 0))
			items, err := readSegment(seg, seg.Base())
			if err != nil && !errors.Is(err, ErrDamaged) || (err == nil) != (len(items) == len(sent)) {
				t.Fatalf("cut at %d: %d records, %v", cut, len(items), err)
			}
			if _, err := segfile.AcceptLoss(bad, seg.File()); err != nil {
				t.Fatalf("cut at %d: %v", cut, err)
			}
			for again := range 2 { // with what was open, then opened again
				rest, lost := readOver(t, seg)
				if len(rest) != len(items) || len(rest)+int(lost) != len(sent) {
					t.Fatalf("cut at %d, time %d: %d records read, %d before, %d skipped, of %d", cut, again, len(rest), len(items), lost, len(sent))
				}
				if lost > 0 {
					short++
					readLast(t, seg, end.Offset-1)
				}
				closeStore(t, s)
				bad = bad.Reopen()
				s, _ = openStore(t, bad, testOptions())
				seg = mustSegment(t, s, segID(0, 0))
			}
			closeStore(t, s)
		}
		if short < len(cuts) {
			t.Fatalf("records of %d bytes: %d of %d readings lost some", size, short, 2*len(cuts))
		}
	}
}

// readLast begins in a hole that reaches to the end.
func readLast(t *testing.T, seg *Segment, last uint64) {
	t.Helper()
	sc, err := seg.Scan(last)
	must(t, err)
	defer sc.Close()
	_, err = sc.Next()
	if skip, ok := sc.Skipped(); !errors.Is(err, io.EOF) || !ok || skip != (Skipped{From: last, Offsets: 1, Damaged: true}) {
		t.Fatalf("the last record: %v, skipped %+v", err, skip)
	}
}

// A frame in the middle of a flush whose start is zeros looks like the flush's
// padding: what follows tells that it was none.
func TestZerosInsideAFlush(t *testing.T) {
	for _, victim := range []int{0, 1, 4, 11, 12} {
		rng := rand.New(rand.NewPCG(uint64(victim), 24))
		d := newDisk(1)
		s, _ := openStore(t, d, testOptions())
		seg := newSegment(t, s, segID(0, 0), 0, nil)
		p := &source{id: 7}
		hold := d.Hold(appendWrite)
		var all []*flying
		for range 14 { // one alone, then a dozen in one flush, and one alone
			if len(all) == 13 {
				hold.Release()
				for _, f := range all {
					f.wait(t)
					must(t, f.Err)
				}
			}
			f, err := send(t, seg, p.next(rng, 1, 700))
			must(t, err)
			all = append(all, f)
		}
		all[13].wait(t)
		if n := s.Stats().Flushes; n != 3 {
			t.Fatalf("%d flushes", n)
		}
		if _, err := seg.Fence(); err != nil {
			t.Fatal(err)
		}
		closeStore(t, s)
		d = d.Reopen()
		image := contents(t, d, seg.File())
		at := int64(bytes.Index(image, all[victim].b.values[0]))
		for at -= at % 64; string(image[at:at+4]) != "RFrm"; at -= 64 {
		}
		clear(image[at : at+64])
		write(t, d, seg.File(), image)
		s, _ = openStore(t, d.Reopen(), testOptions())
		seg = mustSegment(t, s, segID(0, 0))
		items, err := readSegment(seg, 0)
		if !errors.Is(err, ErrDamaged) || len(items) != victim {
			t.Fatalf("frame %d, byte %d: %d records, %v", victim, at, len(items), err)
		}
		if _, err := segfile.AcceptLoss(d, seg.File()); err != nil {
			t.Fatal(err)
		}
		rest, lost := readOver(t, seg)
		if len(rest)+int(lost) != 14 || lost == 0 {
			t.Fatalf("frame %d: %d records read, %d skipped", victim, len(rest), lost)
		}
		closeStore(t, s)
	}
}
