package store

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/ringfence/ringfence/segfile"
	"github.com/ringfence/ringfence/segfile/disk/simdisk"
)

// follow reads on from where a scanner stands and checks that it is what comes next.
func follow(t testing.TB, sc *Scanner, want []*batch, at *int) (n int) {
	t.Helper()
	for {
		mark := sc.seg.CommitMark()
		b, err := sc.Next()
		if errors.Is(err, io.EOF) {
			return n
		}
		if err != nil {
			t.Fatal(err)
		}
		if end := sc.seg.CommitMark(); b.Offset(b.Len()-1) >= end {
			t.Fatalf("offset %d was shown, the commit mark was %d and is %d", b.Offset(b.Len()-1), mark, end)
		}
		w := want[*at]
		if b.Head.Producer != w.producer || b.Head.FirstSeq != w.first || b.Len() != len(w.values) {
			t.Fatalf("batch %d is another one: %+v", *at, b.Head)
		}
		for i := range b.Len() {
			if !bytes.Equal(b.Value(i), w.values[i]) || !bytes.Equal(b.Key(i), w.keys[i]) {
				t.Fatalf("batch %d, record %d is not what was sent", *at, i)
			}
		}
		*at++
		n++
	}
}

// A reader at the tail sees each batch once it is durable, and no sooner, from
// memory when it keeps up and from disk when it does not.
func TestReadersStopAtTheCommitMark(t *testing.T) {
	for _, tailing := range []bool{false, true} {
		rng := rand.New(rand.NewPCG(1, 20))
		d := newDisk(1)
		o := testOptions()
		o.OverlapBytes = 1
		s, _ := openStore(t, d, o)
		seg := newSegment(t, s, segID(0, 0), 30, nil)
		w := s.Watch(testTopic)
		if tailing {
			w.Join()
			defer w.Leave()
		}
		sc, err := seg.Scan(0)
		must(t, err)
		defer sc.Close()
		p := &source{id: 7}
		var sent []*batch
		at := 0
		for range 60 {
			hold := d.Hold(appendWrite)
			var all []*flying
			for range 1 + rng.IntN(3) {
				b := p.next(rng, 1+rng.IntN(4), []int{10, 3000, 40_000, 300_000}[rng.IntN(4)])
				f, err := send(t, seg, b)
				must(t, err)
				all, sent = append(all, f), append(sent, b)
			}
			changed := w.Changed()
			before := at
			if n := follow(t, sc, sent, &at); n != 0 {
				t.Fatalf("%d batches were shown before they were durable", n)
			}
			select {
			case <-changed:
				t.Fatal("the watch told of something that is not durable")
			default:
			}
			hold.Release()
			for _, f := range all {
				f.wait(t)
				must(t, f.Err)
			}
			<-changed
			reads := d.Counts().Reads
			follow(t, sc, sent, &at)
			if at != len(sent) || at == before {
				t.Fatalf("%d batches of %d shown", at, len(sent))
			}
			// The start mark is not in the tail: the first batch comes with it.
			if n := d.Counts().Reads - reads; before > 0 && tailing != (n == 0) {
				t.Fatalf("tailing %v: %d reads", tailing, n)
			}
		}
		if snap := seg.tail.snap.Load(); snap != nil {
			n := 0
			for _, c := range *snap {
				n += len(c.data)
			}
			if n > tailBytes || n < tailBytes/2 {
				t.Fatalf("the tail keeps %d bytes", n)
			}
		}
		if tailing { // one that comes late finds the beginning on disk
			late, err := seg.Scan(0)
			must(t, err)
			n := 0
			reads := d.Counts().Reads
			follow(t, late, sent, &n)
			late.Close()
			if n != len(sent) || d.Counts().Reads == reads {
				t.Fatalf("%d batches, %d reads", n, d.Counts().Reads-reads)
			}
		}
		if _, err := seg.Fence(); err != nil {
			t.Fatal(err)
		}
		if follow(t, sc, sent, &at) != 0 || seg.tail.from(segfile.DataStart) != nil {
			t.Fatal("something behind the end, or a tail of a fenced segment")
		}
		sc.Close()
		closeStore(t, s)
	}
}

// Readers run beside producers, rolls and each other.
func TestReadersBesideWriters(t *testing.T) {
	rng := rand.New(rand.NewPCG(2, 20))
	d := newDisk(2)
	o := testOptions()
	o.OverlapBytes = 5000
	s, _ := openStore(t, d, o)
	seg := newSegment(t, s, segID(0, 0), 0, nil)
	w := s.Watch(testTopic)
	var g sync.WaitGroup
	for i := range 4 {
		g.Go(func() {
			if i%2 == 0 {
				w.Join()
				defer w.Leave()
			}
			sc, err := seg.Scan(0)
			if err != nil {
				t.Error(err)
				return
			}
			defer sc.Close()
			next, seq := uint64(0), uint64(0)
			for {
				changed := w.Changed()
				b, err := sc.Next()
				if errors.Is(err, io.EOF) {
					if end, ok := seg.Fenced(); ok && next == end.Offset {
						return
					}
					<-changed
					continue
				}
				if err != nil {
					t.Error(err)
					return
				}
				for j := range b.Len() {
					if seq++; b.Offset(j) != next || b.Seq(j) != seq || b.Offset(j) >= seg.CommitMark() {
						t.Errorf("offset %d, sequence %d: want %d and %d, below %d", b.Offset(j), b.Seq(j), next, seq, seg.CommitMark())
						return
					}
					next++
				}
			}
		})
	}
	p := &source{id: 7}
	var all []*flying
	for range 300 {
		f, err := send(t, seg, p.next(rng, 1+rng.IntN(3), rng.IntN(6000)))
		must(t, err)
		if all = append(all, f); len(all) > 5 {
			all[0].wait(t)
			must(t, all[0].Err)
			all = all[1:]
		}
	}
	end, err := seg.Fence()
	must(t, err)
	if end.Offset != p.seq {
		t.Fatalf("fenced at %d, sent %d", end.Offset, p.seq)
	}
	g.Wait()
}

// bulk fills a segment with batches of these value sizes, and fences it.
func bulk(t testing.TB, s *Store, seg *Segment, rng *rand.Rand, sizes []int) []*batch {
	t.Helper()
	p := &source{id: 7}
	var sent []*batch
	for _, n := range sizes {
		b := p.next(rng, 1, n)
		put(t, seg, b)
		sent = append(sent, b)
	}
	if _, err := seg.Fence(); err != nil {
		t.Fatal(err)
	}
	return sent
}

// Reading ahead gives every frame whole, wherever it lies across cells, laps and
// the limits of what is read ahead at all, from every start.
func TestReadAheadOverEveryBoundary(t *testing.T) {
	const mib = 1 << 20
	kinds := []int{0, 100, 4096 - 300, 4096, 60_000, 300_000, mib / 2, mib - 700, mib - 300, mib - 200, mib, mib + 4096, 3 * mib, 9 * mib}
	ahead, wide := 0, 0
	for seed := range seeds(4) {
		rng := rand.New(rand.NewPCG(seed, 21))
		d := simdisk.New(simdisk.Options{Seed: seed, ArenaBytes: 128 << 20})
		o := testOptions()
		o.QueueDepth = 1 + rng.IntN(16) // less than a scanner wants
		s, _ := openStore(t, d, o)
		var sizes []int
		for total := 0; total < 25*mib; {
			n := kinds[rng.IntN(len(kinds))]
			for range 1 + rng.IntN(max(1, min(200, mib/(n+500)))) {
				sizes = append(sizes, n)
				total += n + 500
			}
		}
		seg := newSegment(t, s, segID(0, 0), 5, nil)
		sent := bulk(t, s, seg, rng, sizes)
		var g sync.WaitGroup
		var used atomic.Int64
		for range 3 {
			from := uint64(rng.IntN(len(sent) / 2))
			g.Go(func() {
				sc, err := seg.Scan(seg.Base() + from)
				if err != nil {
					t.Error(err)
					return
				}
				defer sc.Close()
				at := int(from)
				for {
					b, err := sc.Next()
					if errors.Is(err, io.EOF) {
						break
					}
					if err != nil {
						t.Error(err)
						return
					}
					if sc.ahead != nil {
						used.Add(1)
					}
					if b.Offset(0) != 5+uint64(at) || !bytes.Equal(b.Value(0), sent[at].values[0]) {
						t.Errorf("seed %d: batch %d of %d bytes is another one", seed, at, sizes[at])
						return
					}
					at++
				}
				if at != len(sent) {
					t.Errorf("seed %d: %d batches of %d", seed, at, len(sent))
				}
			})
		}
		g.Wait()
		ahead += int(used.Load())
		for _, n := range sizes {
			if n > leadMax {
				wide++
			}
		}
		closeStore(t, s)
	}
	if ahead == 0 || wide == 0 {
		t.Fatalf("%d batches were read ahead, %d were too wide for it", ahead, wide)
	}
}

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

// A start in the middle finds the batch that holds the offset; one behind the end
// finds nothing, and nothing of what is not committed.
func TestScanFromEverywhere(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 20))
	d := newDisk(7)
	s, _ := openStore(t, d, testOptions())
	seg := newSegment(t, s, segID(0, 0), 1000, nil)
	p := &source{id: 7}
	var owner []*batch // by offset
	for range 60 {
		b := p.next(rng, 1+rng.IntN(9), rng.IntN(9000))
		put(t, seg, b)
		for range b.values {
			owner = append(owner, b)
		}
	}
	hold := d.Hold(appendWrite)
	late := p.next(rng, 3, 10)
	f, err := send(t, seg, late)
	must(t, err)
	check := func() {
		t.Helper()
		mark := seg.CommitMark()
		for from := uint64(990); from < mark+20; from++ {
			sc, err := seg.Scan(from)
			must(t, err)
			b, err := sc.Next()
			switch {
			case from >= mark:
				if !errors.Is(err, io.EOF) {
					t.Fatalf("from %d, behind the mark %d: %v", from, mark, err)
				}
			case err != nil:
				t.Fatalf("from %d: %v", from, err)
			case b.Head.FirstSeq != owner[max(from, 1000)-1000].first:
				t.Fatalf("from %d: a batch from %d", from, b.Head.Base)
			}
			sc.Close()
		}
		for i, b := range owner {
			sc, err := seg.ScanTime(testNow + int64(i) + 1) // the time of the record
			must(t, err)
			found := false
			for !found {
				got, err := sc.Next()
				if err != nil {
					t.Fatalf("time of record %d: %v", i, err)
				}
				if got.Head.FirstSeq > b.first {
					t.Fatalf("time of record %d: only batches behind it", i)
				}
				found = got.Head.FirstSeq == b.first
			}
			sc.Close()
		}
	}
	check()
	hold.Release()
	f.wait(t)
	must(t, f.Err)
	for range late.values {
		owner = append(owner, late)
	}
	check()
	if _, err := seg.Fence(); err != nil {
		t.Fatal(err)
	}
	check()
	sc, err := seg.ScanTime(testNow + 1_000_000)
	must(t, err)
	if _, err := sc.Next(); !errors.Is(err, io.EOF) {
		t.Fatalf("records of the future: %v", err)
	}
	sc.Close()
}

// B12, B14, E13: a segment that is deleted under a scanner stays readable for it, and
// its file is not used again before; the next reader is told that it is gone.
func TestDeleteUnderAScanner(t *testing.T) {
	rng := rand.New(rand.NewPCG(8, 20))
	d := simdisk.New(simdisk.Options{Seed: 8, ArenaBytes: 64 << 20})
	o := testOptions()
	s, _ := openStore(t, d, o)
	seg := newSegment(t, s, segID(0, 0), 0, nil)
	var sizes []int
	for range 200 {
		sizes = append(sizes, 40_000)
	}
	sent := bulk(t, s, seg, rng, sizes)
	if err := s.Delete(segID(0, 1)); !errors.Is(err, ErrNoSegment) {
		t.Fatal(err)
	}
	fresh := newSegment(t, s, segID(0, 1), 200, nil)
	if err := s.Delete(fresh.ID()); err == nil {
		t.Fatal("an open segment was deleted")
	}
	sc, err := seg.Scan(0)
	must(t, err)
	at := 0
	for range 50 { // it reads ahead now
		b, err := sc.Next()
		must(t, err)
		if !bytes.Equal(b.Value(0), sent[at].values[0]) {
			t.Fatalf("batch %d is another one", at)
		}
		at++
	}
	must(t, s.Delete(seg.ID()))
	if _, err := s.Segment(seg.ID()); !errors.Is(err, ErrNoSegment) {
		t.Fatal(err)
	}
	if _, err := seg.Scan(0); !errors.Is(err, ErrNoSegment) {
		t.Fatal(err)
	}
	other := newSegment(t, s, segID(1, 0), 0, nil) // would take the retired file
	for q := (&source{id: 9}); other.Position() < 4<<20; {
		put(t, other, q.next(rng, 1, 100_000))
	}
	if n := follow(t, sc, sent, &at); at != len(sent) {
		t.Fatalf("%d batches, %d behind the delete", at, n)
	}
	if n := s.pool.Stats().Files; n != 0 {
		t.Fatal("the file was retired under a reader")
	}
	sc.Close()
	sc.Close() // again is nothing
	if _, err := d.Open(seg.File(), true); err == nil {
		t.Fatal("the file kept its name")
	}
}

// Rolls, deletes of the oldest segment and readers of it, all at once (B12, B14).
func TestRetentionBesideReaders(t *testing.T) {
	rng := rand.New(rand.NewPCG(9, 20))
	d := newDisk(9)
	o := testOptions()
	o.SegmentBytes = 128 << 10
	s, _ := openStore(t, d, o)
	var mu sync.Mutex
	live := []*Segment{newSegment(t, s, segID(0, 0), 0, nil)}
	done := make(chan struct{})
	var g sync.WaitGroup
	var read, gone atomic.Int64
	for i := range 4 {
		g.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(i), 23))
			for {
				select {
				case <-done:
					return
				default:
				}
				mu.Lock()
				seg := live[rng.IntN(min(2, len(live)))]
				mu.Unlock()
				items, err := readSegment(seg, seg.Base())
				switch {
				case errors.Is(err, ErrNoSegment):
					gone.Add(1)
				case err != nil:
					t.Error(err)
					return
				default:
					for j := range items {
						if items[j].offset != seg.Base()+uint64(j) || items[j].seq != items[j].offset+1 {
							t.Errorf("segment from %d: record %d is at %d and has sequence %d", seg.Base(), j, items[j].offset, items[j].seq)
							return
						}
					}
					read.Add(int64(len(items)))
				}
			}
		})
	}
	p := &source{id: 7}
	head := live[0]
	for roll := range 60 {
		for range 5 {
			put(t, head, p.next(rng, 1+rng.IntN(3), rng.IntN(9000)))
		}
		end, err := head.Fence()
		must(t, err)
		if roll > 20 { // now one starts in the file of a deleted one
			eventually(t, "a retired file", func() bool { return s.pool.Stats().Files > 0 })
		}
		head = successor(t, head, end)
		mu.Lock()
		live = append(live, head)
		var old *Segment
		if len(live) > 3 {
			old, live = live[0], live[1:]
		}
		mu.Unlock()
		if old != nil {
			if err := s.Delete(old.ID()); err != nil {
				t.Fatalf("roll %d: %v", roll, err)
			}
		}
	}
	close(done)
	g.Wait()
	if read.Load() == 0 || s.pool.Stats().Recycled == 0 {
		t.Fatalf("%d records read, %+v", read.Load(), s.pool.Stats())
	}
	t.Logf("%d records read, %d segments met that were gone, %+v", read.Load(), gone.Load(), s.pool.Stats())
}

// A scanner of a closed store answers with an error.
func TestScanAfterClose(t *testing.T) {
	rng := rand.New(rand.NewPCG(10, 20))
	d := simdisk.New(simdisk.Options{Seed: 10, ArenaBytes: 64 << 20})
	s, _ := openStore(t, d, testOptions())
	seg := newSegment(t, s, segID(0, 0), 0, nil)
	var sizes []int
	for range 100 {
		sizes = append(sizes, 100_000)
	}
	bulk(t, s, seg, rng, sizes)
	stop := make(chan struct{})
	var g sync.WaitGroup
	var errs atomic.Int64
	for range 3 {
		g.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				items, err := readSegment(seg, 0)
				if err != nil {
					if errors.Is(err, ErrDamaged) {
						t.Error(err)
						return
					}
					errs.Add(1)
				} else if len(items) != 100 {
					t.Errorf("%d records", len(items))
				}
			}
		})
	}
	arena := s.Disk().Arena()
	for errs.Load() == 0 && s.count.flushes.Load() > 0 {
		if d.Counts().Reads > 200 {
			s.Close() // counts what scanners hold
			break
		}
	}
	eventually(t, "a scanner met the close", func() bool { return errs.Load() > 0 })
	close(stop)
	g.Wait()
	if n := arena.InUse(); n != 0 {
		t.Fatalf("%d bytes in use", n)
	}
}
