package store

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"sync"
	"sync/atomic"
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
