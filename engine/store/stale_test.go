package store

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/zeebo/xxh3"

	"github.com/ringfence/ringfence/segfile"
	"github.com/ringfence/ringfence/segfile/disk"
	"github.com/ringfence/ringfence/segfile/record"
)

// A02: a process is killed where its records end a frame's alignment before, at, or
// behind a block's end, and so is the next, which stored a hundred more. Both runs are
// there, without a hole between them, whatever the file had in it before.
func TestA02EndsAroundABlock(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 40))
	seen := map[int]bool{}
	for _, recycled := range []bool{false, true} {
		for _, room := range []int{-128, -64, 0, 64, 128} { // the last frame's length, less a block
			d := newDisk(uint64(room + 1000))
			s, _ := openBriefly(t, d, testOptions())
			if recycled {
				retired(t, s, rng)
			}
			p := &source{id: 7}
			seg := newSegment(t, s, segID(0, 0), 0, nil)
			sent := []*batch{p.next(rng, 3, 100), fitting(t, s, p, rng, 4096+room)}
			for _, b := range sent {
				put(t, seg, b)
			}
			seen[roundUp(frameLen(t, s, sent[1]), record.FrameAlign)] = true
			killed := d.Kill()
			abandon(s)

			s, rec := openBriefly(t, killed, testOptions())
			if len(rec.Recovered) != 1 || rec.Recovered[0].End.Offset != 4 {
				t.Fatalf("room %d: %+v", room, rec)
			}
			seg = mustSegment(t, s, segID(0, 0))
			next := successor(t, seg, rec.Recovered[0].End)
			var more []*batch
			for range 100 {
				b := p.next(rng, 1, rng.IntN(200))
				put(t, next, b)
				more = append(more, b)
			}
			again := killed.Kill()
			abandon(s)
			for range 2 {
				s, rec = openStore(t, again, testOptions())
				if len(rec.Damaged)+len(rec.Unknown)+len(rec.Faulty) > 0 {
					t.Fatalf("room %d: %+v", room, rec)
				}
				first, second := mustSegment(t, s, segID(0, 0)), mustSegment(t, s, segID(0, 1))
				holds(t, first, sent...)
				holds(t, second, more...)
				if end, _ := first.Fenced(); end.Offset != second.Base() {
					t.Fatalf("room %d: a hole from %d to %d", room, end.Offset, second.Base())
				}
				closeStore(t, s)
				again = again.Reopen()
			}
		}
	}
	if len(seen) != 5 {
		t.Fatalf("the records ended at %d places of a block", len(seen))
	}
}

// openBriefly opens a store that the test abandons, as a process does that is killed.
func openBriefly(t *testing.T, d disk.Disk, o Options) (*Store, *Recovery) {
	t.Helper()
	s, rec, err := Open(d, o, nil)
	must(t, err)
	return s, rec
}

// retired leaves a file full of records in the pool, for the next segment.
func retired(t *testing.T, s *Store, rng *rand.Rand) {
	t.Helper()
	old := newSegment(t, s, segID(9, 0), 0, nil)
	for q := (&source{id: 99}); old.Position() < 900<<10; {
		put(t, old, q.next(rng, 1, 4096-300))
	}
	if _, err := old.Fence(); err != nil {
		t.Fatal(err)
	}
	must(t, s.Delete(old.ID()))
	eventually(t, "the file is in the pool", func() bool { return s.pool.Stats().Files == 1 })
}

// fitting is a batch of one record whose frame has about that length.
func fitting(t *testing.T, s *Store, p *source, rng *rand.Rand, length int) *batch {
	t.Helper()
	for size := length - 500; ; size += 8 {
		try := *p
		b := try.next(rng, 1, size)
		n := frameLen(t, s, b)
		if n > length-64 && n <= length {
			*p = try
			return b
		}
		if n > length {
			t.Fatalf("no batch has %d bytes", length)
		}
	}
}

func frameLen(t *testing.T, s *Store, b *batch) int {
	t.Helper()
	f := b.frame(t, s.Disk().Arena())
	defer s.Disk().Arena().Free(f)
	return len(f)
}

// A03, A04: of two flushes in flight a crash takes the first and leaves the second,
// whole. The file then goes to another segment, whose records end exactly where the
// stale one begins, and whose process is killed there. The stale record never comes
// back, not in its own segment and not in the other, and is stored when it is sent
// again.
func TestA03StaleNeighbour(t *testing.T) {
	for seed := range seeds(3) {
		rng := rand.New(rand.NewPCG(seed, 41))
		d := newDisk(seed)
		o := testOptions()
		o.OverlapBytes = 1
		s, _ := openStore(t, d, o)
		seg := newSegment(t, s, segID(0, 0), 0, nil)
		p := &source{id: 7, keys: 1}
		var kept []*batch
		for range 20 {
			kept = append(kept, p.next(rng, 1, 40_000))
			put(t, seg, kept[len(kept)-1])
		}
		torn := seg.Position()
		hold := d.Hold(appendWrite)
		lost, stale := p.next(rng, 1, 40_000), p.next(rng, 1, 40_000)
		var both []*flying
		for _, b := range []*batch{lost, stale} {
			f, err := send(t, seg, b)
			must(t, err)
			both = append(both, f)
		}
		if hold.Count() != 2 {
			t.Fatalf("%d flushes in flight", hold.Count())
		}
		hold.Release()
		for _, f := range both {
			f.wait(t)
		}
		closeStore(t, s)
		d = d.Reopen()
		image := contents(t, d, seg.File())
		trap := torn + int64(len(image)-int(torn))/2
		if !bytes.HasPrefix(image[trap:], []byte("RFrm")) {
			t.Fatalf("no frame at %d", trap)
		}
		clear(image[torn:trap])
		write(t, d, seg.File(), image)

		s, rec := openBriefly(t, d, o)
		if len(rec.Recovered) != 1 || rec.Recovered[0].Verdict.State != segfile.Torn || rec.Recovered[0].End.Offset != 20 {
			t.Fatalf("seed %d: %+v", seed, rec)
		}
		first := mustSegment(t, s, segID(0, 0))
		holds(t, first, kept...)
		next := successor(t, first, rec.Recovered[0].End)
		if f := put(t, next, lost); f.First != 20 || f.Duplicate {
			t.Fatalf("seed %d: sent again: %+v", seed, f)
		}
		end, err := next.Fence()
		must(t, err)
		must(t, s.Delete(first.ID()))
		eventually(t, "the file is in the pool", func() bool { return s.pool.Stats().Files == 1 })
		other := newSegment(t, s, segID(1, 0), 0, nil)
		q := &source{id: 8, keys: 1}
		var filled []*batch
		for other.Position() < trap {
			filled = append(filled, q.next(rng, 1, 40_000))
			put(t, other, filled[len(filled)-1])
		}
		if s.pool.Stats().Recycled != 1 || other.Position() != trap || !bytes.Contains(contents(t, d, other.File())[trap:], stale.values[0]) {
			t.Fatalf("seed %d: the trap is not set: %+v, at %d, want %d", seed, s.pool.Stats(), other.Position(), trap)
		}
		killed := d.Kill()
		abandon(s)
		for round := range 2 {
			s, rec = openStore(t, killed, o)
			if len(rec.Damaged)+len(rec.Unknown)+len(rec.Faulty) > 0 {
				t.Fatalf("seed %d: %+v", seed, rec)
			}
			holds(t, mustSegment(t, s, segID(0, 1)), lost)
			holds(t, mustSegment(t, s, segID(1, 0)), filled...)
			if round == 1 {
				last := successor(t, mustSegment(t, s, segID(0, 1)), end)
				if f := put(t, last, stale); f.First != 21 || f.Duplicate {
					t.Fatalf("seed %d: the stale one counts as stored: %+v", seed, f)
				}
			}
			closeStore(t, s)
			killed = killed.Crash(rng)
		}
	}
}

// J01, F06: frames whose every checksum is right and whose content is not, in a file on
// disk: reading them is an error of that segment, and others go on.
func TestJ01HostileFramesOnDisk(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 40))
	d := newDisk(3)
	p := &source{id: 7}
	var sent []*batch
	for range 3 {
		sent = append(sent, p.next(rng, 4, 60))
	}
	name := leaveOpen(t, d, segID(0, 0), 0, sent...)
	other := (&source{id: 8}).next(rng, 2, 100)
	d = d.Reopen()
	leaveOpen(t, d, segID(1, 0), 0, other)
	d = d.Reopen()
	s, _ := openStore(t, d, testOptions())
	closeStore(t, s)
	d = d.Reopen()
	image := contents(t, d, name)
	salt := metaOf(segID(0, 0), 0).Salt
	at := bytes.Index(image, sent[1].values[0]) / 4096 * 4096 // each has a flush of its own
	head, err := record.ParseHead(image[at:], salt)
	must(t, err)
	refused, served := 0, 0
	for range 600 {
		bad := slices.Clone(image)
		payload := bad[at+record.HeaderSize:][:head.PayloadLen]
		h := head
		for range 1 + rng.IntN(3) {
			switch rng.IntN(4) {
			case 0:
				payload[rng.IntN(len(payload))] = byte(rng.Uint32())
			case 1:
				copy(payload[rng.IntN(len(payload)):], payload[rng.IntN(len(payload)):])
			case 2: // the table, where all else hangs
				payload[rng.IntN(min(80, len(payload)))] += byte(1 + rng.IntN(8))
			case 3:
				h.Count += uint32(rng.IntN(3)) << (rng.IntN(4) * 8)
			}
		}
		h.Hash = xxh3.Hash(payload)
		h.Put(bad[at:], salt)
		hostile := d.Clone()
		write(t, hostile, name, bad)
		s, _ := openStore(t, hostile, testOptions())
		n, err := walk(mustSegment(t, s, segID(0, 0)))
		switch {
		case errors.Is(err, ErrDamaged) && n == 4:
			refused++
		case err == nil && n == 12: // what changed are a record's own bytes
			served++
		default:
			t.Fatalf("%d records, then %v", n, err)
		}
		holds(t, mustSegment(t, s, segID(1, 0)), other)
		closeStore(t, s)
	}
	if refused == 0 || served == 0 {
		t.Fatalf("%d refused, %d served", refused, served)
	}
}

// walk looks at every field of a segment's records, whoever made them.
func walk(seg *Segment) (n uint64, err error) {
	sc, err := seg.Scan(seg.Base())
	if err != nil {
		return 0, err
	}
	defer sc.Close()
	for {
		b, err := sc.Next()
		if errors.Is(err, io.EOF) {
			return n, nil
		}
		if err != nil {
			return n, err
		}
		for i := range b.Len() {
			if b.Offset(i) != seg.Base()+n {
				return n, fmt.Errorf("offset %d, want %d", b.Offset(i), seg.Base()+n)
			}
			_ = b.Record(i)
			n++
		}
	}
}
