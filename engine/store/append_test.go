package store

import (
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/ringfence/ringfence/segfile/record"
)

func TestAppendThenRead(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	d := newDisk(1)
	s, _ := openStore(t, d, testOptions())
	seg := newSegment(t, s, segID(0, 0), 1000, nil)
	p := &source{id: 7}
	var sent []*batch
	at := uint64(1000)
	for i := range 50 {
		b := p.next(rng, 1+rng.IntN(5), rng.IntN(9000))
		b.codec = record.Codec(i % 3)
		f := put(t, seg, b)
		if f.First != at || f.Last != at+uint64(len(b.values))-1 || f.Duplicate {
			t.Fatalf("batch %d got offsets %d to %d, want from %d", i, f.First, f.Last, at)
		}
		at = f.Last + 1
		sent = append(sent, b)
	}
	holds(t, seg, sent...)
	end, err := seg.Fence()
	must(t, err)
	if end.Offset != at || seg.CommitMark() != at {
		t.Fatalf("fenced at %d, want %d", end.Offset, at)
	}
	holds(t, seg, sent...)
	sound(t, d, seg.File())
	var sealed *SealedError
	if _, err := send(t, seg, p.next(rng, 1, 10)); !errors.As(err, &sealed) || sealed.End != at {
		t.Fatalf("append on a fenced segment: %v", err)
	}
}

// A frame that is not what Append asks for is refused before it touches anything.
func TestAppendRefusesWhatIsNoFrame(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 3))
	s, _ := openStore(t, newDisk(1), testOptions())
	seg := newSegment(t, s, segID(0, 0), 0, nil)
	arena := s.Disk().Arena()
	p := &source{id: 7}
	b := p.next(rng, 3, 5000)
	frame := b.frame(t, arena)
	defer arena.Free(frame)
	mark, err := record.BuildMark(make([]byte, 4096), []byte("payload"))
	must(t, err)
	flipped := append(make([]byte, 0, cap(frame)), frame...)
	flipped[40] ^= 1
	for name, f := range map[string][]byte{
		"cut":          frame[:len(frame)-1],
		"longer":       frame[:len(frame)+1],
		"no room":      frame[:len(frame):len(frame)],
		"flipped":      flipped,
		"a mark":       mark,
		"header alone": frame[:record.HeaderSize],
		"nothing":      nil,
	} {
		if err := seg.Append(&Append{Frame: f}); err == nil {
			t.Errorf("%s was taken", name)
		}
	}
	put(t, seg, b)
	holds(t, seg, b)
}

// What the producer sent before is stored once, whatever the batch borders of the
// repeat; a batch whose predecessor never came is refused.
func TestRepeatsOverlapsAndGaps(t *testing.T) {
	rng := rand.New(rand.NewPCG(2, 1))
	d := newDisk(2)
	s, _ := openStore(t, d, testOptions())
	seg := newSegment(t, s, segID(0, 0), 100, nil)
	p := &source{id: 7}
	a, b, c := p.next(rng, 5, 100), p.next(rng, 5, 100), p.next(rng, 5, 100)
	put(t, seg, a)
	put(t, seg, b)

	for _, again := range []*batch{a, b} {
		if f := put(t, seg, again); !f.Duplicate {
			t.Fatal("a repeat was stored")
		}
	}
	// Other borders: the end of a and all of b; the end of b and all of c.
	join := func(x, y *batch, skip int) *batch {
		return &batch{
			producer: p.id, first: x.first + uint64(skip), prev: x.first + uint64(skip) - 1,
			values: append(append([][]byte(nil), x.values[skip:]...), y.values...),
			keys:   append(append([][]byte(nil), x.keys[skip:]...), y.keys...),
		}
	}
	if f := put(t, seg, join(a, b, 3)); !f.Duplicate {
		t.Fatal("a repeat with other borders was stored")
	}
	if f := put(t, seg, join(b, c, 2)); f.Duplicate || f.First != 110 || f.Last != 114 {
		t.Fatalf("an overlap was stored at %d to %d, duplicate %v", f.First, f.Last, f.Duplicate)
	}
	e := p.next(rng, 1, 10)
	gap := p.next(rng, 1, 10)
	f, err := send(t, seg, gap)
	must(t, err)
	f.wait(t)
	if !errors.Is(f.Err, ErrGap) {
		t.Fatalf("a gap: %v", f.Err)
	}
	stranger := &batch{producer: 8, first: 5, prev: 4, values: e.values, keys: e.keys}
	f, err = send(t, seg, stranger)
	must(t, err)
	f.wait(t)
	if !errors.Is(f.Err, ErrUnknownProducer) {
		t.Fatalf("an unknown producer: %v", f.Err)
	}
	put(t, seg, e)
	put(t, seg, gap)
	holds(t, seg, a, b, c, e, gap)
	if n := s.Stats().Duplicates; n != 5+5+7+3 {
		t.Errorf("%d duplicates counted", n)
	}
}

// Batches of one producer that go out in one flush are judged one by the other, and
// a repeat is answered only when its original, still in flight, is durable.
func TestRepeatWhileTheOriginalIsInFlight(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 1))
	d := newDisk(3)
	s, _ := openStore(t, d, testOptions())
	seg := newSegment(t, s, segID(0, 0), 0, nil)
	hold := d.Hold(appendWrite)
	p := &source{id: 7}
	a, b, c := p.next(rng, 5, 100), p.next(rng, 5, 100), p.next(rng, 5, 100)
	late := p.next(rng, 1, 100)
	gap := p.next(rng, 1, 100)
	var all []*flying
	for _, x := range []*batch{a, a, b, c, b, gap, a} {
		f, err := send(t, seg, x)
		must(t, err)
		all = append(all, f)
	}
	if hold.Count() != 1 {
		t.Fatalf("%d flushes held", hold.Count())
	}
	for i, f := range all {
		if f.answered() {
			t.Fatalf("append %d was answered while its original is in flight", i)
		}
	}
	hold.Release()
	for i, f := range all {
		f.wait(t)
		if i == 5 {
			if !errors.Is(f.Err, ErrGap) {
				t.Fatalf("append %d: %v", i, f.Err)
			}
			continue
		}
		if f.Err != nil || f.Duplicate != (i == 1 || i == 4 || i == 6) {
			t.Fatalf("append %d: duplicate %v, %v", i, f.Duplicate, f.Err)
		}
	}
	put(t, seg, late)
	put(t, seg, gap)
	holds(t, seg, a, b, c, late, gap)
	if n := s.Stats().Flushes; n > 4 {
		t.Errorf("%d flushes", n)
	}
}

// What is left of a compressed batch is plain, and may be much longer than what
// came: it still fits its flush.
func TestTrimmedBatchLongerThanItCame(t *testing.T) {
	for _, alone := range []bool{true, false} {
		rng := rand.New(rand.NewPCG(4, 1))
		d := newDisk(4)
		s, _ := openStore(t, d, testOptions())
		seg := newSegment(t, s, segID(0, 0), 0, nil)
		p := &source{id: 7}
		head := p.next(rng, 1, 10)
		put(t, seg, head)
		q := &source{id: 8}
		other := q.next(rng, 1, 10)
		fat := &batch{producer: 7, first: 1, prev: 0, codec: record.Zstd, values: append([][]byte(nil), head.values...), keys: append([][]byte(nil), head.keys...)}
		var rest []*batch
		for range 20 {
			b := p.next(rng, 1, 0)
			b.values[0] = append(b.values[0], make([]byte, 20_000)...)
			fat.values, fat.keys = append(fat.values, b.values[0]), append(fat.keys, b.keys[0])
			rest = append(rest, b)
		}
		hold := d.Hold(appendWrite)
		first, err := send(t, seg, other) // in flight, so that what follows gathers
		must(t, err)
		var all []*flying
		sends := []*batch{fat}
		if !alone {
			sends = []*batch{q.next(rng, 1, 10), fat, q.next(rng, 2, 50)}
		}
		for _, b := range sends {
			f, err := send(t, seg, b)
			must(t, err)
			if b == fat && len(f.Frame) > 8000 {
				t.Fatalf("the batch has %d bytes: it did not compress", len(f.Frame))
			}
			all = append(all, f)
		}
		hold.Release()
		first.wait(t)
		must(t, first.Err)
		for i, f := range all {
			f.wait(t)
			if f.Err != nil {
				t.Fatalf("append %d: %v", i, f.Err)
			}
		}
		items, err := readSegment(seg, 0)
		must(t, err)
		n := 0
		for _, it := range items {
			if it.producer == 7 {
				if n++; it.seq != uint64(n) {
					t.Fatalf("record %d of the producer has sequence %d", n, it.seq)
				}
			}
		}
		if n != 1+len(rest) {
			t.Fatalf("%d records of the producer", n)
		}
		if _, err := seg.Fence(); err != nil {
			t.Fatal(err)
		}
		sound(t, d, seg.File())
		closeStore(t, s)
	}
}

// A full queue refuses, and takes again when something was answered.
func TestQueueIsBounded(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 1))
	d := newDisk(5)
	o := testOptions()
	o.QueueBytes = 100_000
	s, _ := openStore(t, d, o)
	seg := newSegment(t, s, segID(0, 0), 0, nil)
	hold := d.Hold(appendWrite)
	p := &source{id: 7}
	var taken []*flying
	var sent []*batch
	for {
		b := p.next(rng, 1, 20_000)
		f, err := send(t, seg, b)
		if errors.Is(err, ErrOverloaded) {
			p.seq, p.prev = b.first-1, b.prev
			break
		}
		must(t, err)
		taken, sent = append(taken, f), append(sent, b)
		if len(taken) > 100 {
			t.Fatal("the queue has no end")
		}
	}
	hold.Release()
	for _, f := range taken {
		f.wait(t)
		must(t, f.Err)
	}
	b := p.next(rng, 1, 20_000)
	put(t, seg, b)
	holds(t, seg, append(sent, b)...)
}
