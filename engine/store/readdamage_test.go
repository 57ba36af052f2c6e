package store

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"syscall"
	"testing"

	"github.com/ringfence/ringfence/segfile"
	"github.com/ringfence/ringfence/segfile/disk/simdisk"
)

// A read that fails is an error, not damage and not an end, and the next call goes
// on where the last one got to. (I8)
func TestReadErrorsPass(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 20))
	d := simdisk.New(simdisk.Options{Seed: 3, ArenaBytes: 64 << 20})
	s, _ := openStore(t, d, testOptions())
	seg := newSegment(t, s, segID(0, 0), 0, nil)
	var sizes []int
	for i := range 400 {
		sizes = append(sizes, []int{2000, 40_000, 120_000}[i%3])
	}
	sent := bulk(t, s, seg, rng, sizes)
	failures := 0
	for seed := range seeds(20) {
		rng := rand.New(rand.NewPCG(seed, 22))
		fault := d.Fail(func(e simdisk.Event) error {
			if e.Action == simdisk.Read && rng.IntN(12) == 0 {
				return []error{syscall.EIO, simdisk.Short(4096), simdisk.Short(0)}[rng.IntN(3)]
			}
			return nil
		})
		sc, err := seg.Scan(0)
		must(t, err)
		at, errs := 0, 0
		for {
			b, err := sc.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				if !errors.Is(err, ErrStorage) || errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), seg.File()) {
					t.Fatalf("seed %d: %v", seed, err)
				}
				if errs++; errs > 10_000 {
					t.Fatal("there is no end to the errors")
				}
				continue
			}
			if !bytes.Equal(b.Value(0), sent[at].values[0]) {
				t.Fatalf("seed %d: batch %d is another one", seed, at)
			}
			at++
		}
		sc.Close()
		fault.Stop()
		if at != len(sent) {
			t.Fatalf("seed %d: %d batches of %d", seed, at, len(sent))
		}
		if errs > fault.ErrorCount() {
			t.Fatalf("seed %d: %d errors, %d faults", seed, errs, fault.ErrorCount())
		}
		failures += errs
	}
	if failures < 20 {
		t.Fatalf("%d reads failed", failures)
	}
}

// A file that became shorter than its end is damaged where it ends, for window and
// read-ahead alike; what comes before can be read.
func TestShortFileIsDamage(t *testing.T) {
	rng := rand.New(rand.NewPCG(4, 20))
	d := simdisk.New(simdisk.Options{Seed: 4, ArenaBytes: 64 << 20})
	s, _ := openStore(t, d, testOptions())
	seg := newSegment(t, s, segID(0, 0), 0, nil)
	var sizes []int
	for range 300 {
		sizes = append(sizes, 40_000)
	}
	sent := bulk(t, s, seg, rng, sizes)
	end := seg.Position()
	for _, to := range []int64{end - 2000, end - 4096, 9<<20 + 17, end - 3<<20 + 512, 1 << 20, 300_000, segfile.DataStart + 5000} {
		f, err := d.Open(seg.File(), false)
		must(t, err)
		must(t, f.Truncate(to))
		must(t, f.Close())
		items, err := readSegment(seg, 0)
		var where *SegmentError
		if !errors.Is(err, ErrDamaged) || !errors.As(err, &where) || where.File != seg.File() || !strings.Contains(err.Error(), "at byte ") {
			t.Fatalf("cut to %d: %d records, %v", to, len(items), err)
		}
		if n := len(items); n == len(sent) || int64(n) < to/41_200-1 {
			t.Fatalf("cut to %d: %d records, %v", to, n, err)
		}
		for i := range items {
			if !bytes.Equal(items[i].value, sent[i].values[0]) {
				t.Fatalf("cut to %d: record %d is another one", to, i)
			}
		}
	}
}

// A03, A11, B01, I8: one damaged byte, anywhere in a fenced file: every record comes
// back as it was, or reading ends with an error that names the file and a byte at or
// before the damage. Never a short log, never other bytes. Losses that somebody
// accepted are stepped over and counted.
func TestA11EveryByteMatters(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 20))
	d := newDisk(5)
	s, _ := openStore(t, d, testOptions())
	seg := newSegment(t, s, segID(0, 0), 500, nil)
	name := seg.File()
	var sizes []int
	for i := range 30 {
		sizes = append(sizes, []int{10, 3000, 50_000, 4096 - 250}[i%4])
	}
	sent := bulk(t, s, seg, rng, sizes)
	end, _ := seg.Fenced()
	closeStore(t, s)
	d = d.Reopen()
	f, err := d.Open(name, true)
	must(t, err)
	size, err := f.Size()
	must(t, err)
	must(t, f.Close())

	var places []int64
	for at := int64(0); at < segfile.DataStart+8192; at += 61 {
		places = append(places, at)
	}
	for range 400 {
		places = append(places, segfile.DataStart+rng.Int64N(size-segfile.DataStart))
	}
	for at := end.Position; at < size; at += 97 {
		places = append(places, at)
	}
	whole, damaged, accepted := 0, 0, 0
	for _, at := range places {
		bad := d.Clone()
		must(t, bad.Rot(name, at))
		s, rec := openStore(t, bad, testOptions())
		seg, err := s.Segment(seg.ID())
		if err != nil {
			if len(rec.Damaged) != 1 || rec.Damaged[0].File != name {
				t.Fatalf("byte %d: %v, %+v", at, err, rec)
			}
			damaged++
			closeStore(t, s)
			continue
		}
		if e, ok := seg.Fenced(); !ok || e != end {
			t.Fatalf("byte %d: ends at %+v", at, e)
		}
		items, err := readSegment(seg, seg.Base())
		for i := range items {
			if items[i].offset != 500+uint64(i) || !bytes.Equal(items[i].value, sent[i].values[0]) {
				t.Fatalf("byte %d: record %d is another one", at, i)
			}
		}
		if err == nil {
			if len(items) != len(sent) {
				t.Fatalf("byte %d: a short log of %d records", at, len(items))
			}
			whole++
			closeStore(t, s)
			continue
		}
		damaged++
		var where *SegmentError
		if !errors.Is(err, ErrDamaged) || !errors.As(err, &where) || where.File != name || where.Topic != "orders" {
			t.Fatalf("byte %d: %v", at, err)
		}
		var named int64
		if i := strings.Index(err.Error(), "at byte "); i < 0 {
			t.Fatalf("no byte in %v", err)
		} else if _, err := fmt.Sscanf(err.Error()[i:], "at byte %d", &named); err != nil || named > at || named < at-60_000 {
			t.Fatalf("byte %d is damaged, the error names %d", at, named)
		}

		// Accepted, the rest can be read.
		if _, err := segfile.AcceptLoss(bad, name); err != nil {
			t.Fatalf("byte %d: %v", at, err)
		}
		rest, lost := readOver(t, seg)
		if len(rest)+int(lost) != len(sent) || lost == 0 {
			t.Fatalf("byte %d: %d records read, %d skipped, of %d", at, len(rest), lost, len(sent))
		}
		accepted++
		closeStore(t, s)
	}
	if whole == 0 || damaged == 0 || accepted == 0 {
		t.Fatalf("%d whole, %d damaged, %d accepted", whole, damaged, accepted)
	}
}
