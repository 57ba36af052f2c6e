package segfile

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/ringfence/ringfence/fence"
	"github.com/ringfence/ringfence/segfile/disk/simdisk"
	"github.com/ringfence/ringfence/segfile/record"
)

// fenced makes a fenced segment with frames of many sizes, several in a flush.
func fenced(t testing.TB, d *simdisk.Disk, rng *rand.Rand, l life, bytes int64) (frames []sent, latch fence.Latch) {
	t.Helper()
	w := create(t, newTestPool(t, d, l), testMeta(1))
	dr := newDriver(t, rng, d, w)
	for w.Position() < bytes {
		dr.step()
	}
	dr.drain()
	must(t, dr.q.Close())
	must(t, w.WriteProof())
	latch = fenceNow(t, w)
	must(t, Trim(d, seg1))
	w.Close()
	return dr.sent, latch
}

// Any byte of a closed file that is wrong is found and named: exactly, or by the
// frame that it lies in. Recovery still says where the segment ends, or that it
// cannot be read; reading gives the right bytes or an error. (B01, B03)
func TestEveryByteOfAClosedFile(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 3))
	d := newDisk(3)
	frames, latch := fenced(t, d, rng, lifeRecycled, 200<<10)
	whole := contents(t, d, seg1)
	sound(t, d, seg1)
	end, _ := latch.End()
	places := []int64{0, hoBase, hoSalt, blockCRC, 3000, slotA, slotA + 20, slotB, slotB + 3000, slotC, slotC + 4095, DataStart, end.Position, int64(len(whole)) - 1}
	for range seeds(300) {
		places = append(places, rng.Int64N(int64(len(whole))))
	}
	for _, at := range places {
		mask := byte(1) << rng.IntN(8)
		flip(t, d, seg1, at, mask)
		_, err := Verify(d, seg1, nil)
		var c *CorruptError
		if !errors.As(err, &c) || c.File != seg1 {
			t.Fatalf("byte %d wrong: %v", at, err)
		}
		lo, hi := at, at+1
		for _, f := range frames {
			if f.pos <= at && at < f.pos+alignFrame(int64(f.head.FrameLen))+64 {
				lo, hi = f.pos, at+1
			}
		}
		if from := at &^ (block - 1); from >= DataStart && from < end.Position {
			if h, err := record.ParseHead(whole[from:], testMeta(1).Salt); err == nil && h.Mark() {
				lo = from // each fits a block
			}
		}
		if c.Byte < lo || c.Byte >= hi {
			t.Fatalf("byte %d wrong, reported at %d: %s", at, c.Byte, c.Reason)
		}
		v := mustRecover(t, d, seg1)
		if v.End != end || v.Latch.State() != fence.Fenced {
			t.Fatalf("byte %d wrong: recovered to %+v (%s)", at, v.End, v.Why)
		}
		readsRight(t, d, frames)
		flip(t, d, seg1, at, mask)
	}
	sound(t, d, seg1)
}

// readsRight reads all it can and wants nothing but what was sent, in order.
func readsRight(t *testing.T, d *simdisk.Disk, frames []sent) {
	t.Helper()
	r, err := OpenReader(d, seg1)
	must(t, err)
	defer r.Close()
	i := 0
	err = Scan(r, func(pos int64, h record.Head, frame []byte) error {
		if h.Mark() {
			return nil
		}
		if pos != frames[i].pos || !bytes.Equal(frame, frames[i].frame) {
			t.Fatalf("the frame at %d is not the one that was sent", pos)
		}
		i++
		return nil
	})
	if err == nil && i != len(frames) || err != nil && !errors.Is(err, ErrDamaged) {
		t.Fatalf("%d of %d frames: %v", i, len(frames), err)
	}
}

// A wrong bit anywhere in an open file never shortens the segment silently: the
// end stays where it was, or what is missing is reported and its bytes are kept.
func TestOneBitNeverShortensSilently(t *testing.T) {
	silent, cut, stayed := 0, 0, 0
	for seed := range seeds(40) {
		rng := rand.New(rand.NewPCG(seed, 4))
		d := newDisk(seed)
		w := create(t, newTestPool(t, d, life(seed%uint64(lives))), testMeta(1))
		dr := newDriver(t, rng, d, w)
		for range 25 {
			dr.step()
		}
		dr.drain()
		must(t, dr.q.Close())
		end := w.End()
		w.Close()
		for range 10 {
			at, mask := rng.Int64N(end.Position), byte(1)<<rng.IntN(8)
			if rng.IntN(3) == 0 { // the last frames' heads, where it is hardest
				s := dr.sent[len(dr.sent)-1-rng.IntN(min(len(dr.sent), 3))]
				at = s.pos + rng.Int64N(record.HeaderSize)
			}
			flip(t, d, seg1, at, mask)
			v := mustRecover(t, d, seg1)
			switch {
			case v.End.Offset == end.Offset:
				stayed++
			case v.State == Torn && v.Cut.Position <= at && at < v.Cut.Position+v.Cut.Length:
				cut++
				if v.Cut.Records != 0 && v.End.Offset+v.Cut.Records != end.Offset {
					t.Errorf("seed %d, byte %d: cut %d records at %d, the end was %d", seed, at, v.Cut.Records, v.End.Offset, end.Offset)
				}
			default:
				silent++
				t.Errorf("seed %d (%s), byte %d of %d: %s at %d of %d, cut %+v, %s", seed, life(seed%uint64(lives)), at, end.Position, v.State, v.End.Offset, end.Offset, v.Cut, v.Why)
			}
			flip(t, d, seg1, at, mask)
		}
	}
	if cut == 0 || stayed == 0 {
		t.Errorf("%d cut, %d stayed: the test does not test both", cut, stayed)
	}
}

// B05, B07, B09: a damaged footer is made again from the frames, the same bytes;
// reads work meanwhile.
func TestB05FooterIsRebuilt(t *testing.T) {
	for seed := range seeds(20) {
		rng := rand.New(rand.NewPCG(seed, 5))
		d := newDisk(seed)
		frames, latch := fenced(t, d, rng, life(seed%uint64(lives)), 100<<10+rng.Int64N(1<<20))
		end, _ := latch.End()
		whole := contents(t, d, seg1)
		for _, damage := range []func(b []byte) []byte{
			func(b []byte) []byte { b[end.Position+rng.Int64N(int64(len(b))-end.Position)] ^= 1; return b },
			func(b []byte) []byte { clear(b[end.Position:]); return b },
			func(b []byte) []byte { return b[:end.Position] },
		} {
			change(t, d, seg1, damage)
			readsRight(t, d, frames)
			r, err := OpenReader(d, seg1)
			must(t, err)
			if len(r.Faults()) != 1 || r.Table() == nil {
				t.Errorf("faults %v, table %v", r.Faults(), r.Table())
			}
			r.Close()
			if _, err := Verify(d, seg1, nil); !errors.Is(err, ErrDamaged) {
				t.Errorf("Verify: %v", err)
			}
			must(t, RepairFooter(d, seg1))
			must(t, RepairFooter(d, seg1)) // B11: nothing happens twice
			if have := contents(t, d, seg1); !bytes.Equal(have, whole) {
				t.Fatalf("seed %d: the footer is not what it was: differs at %d", seed, firstDifference(have, whole))
			}
		}
		sound(t, d, seg1)
	}
}

// B09: a rebuilt index is the one that was written, for frames of any size around
// the stretches that are read at once.
func TestB09IndexOfAnySize(t *testing.T) {
	sizes := []int{windowMax - 300, windowMax - record.HeaderSize, windowMax, windowMax + 1, 2 * windowMax, record.MaxFrame - 4096}
	d := newDisk(1)
	w := create(t, newTestPool(t, d, lifeGrown), testMeta(1))
	rng := rand.New(rand.NewPCG(1, 6))
	g := &producerModel{id: 3}
	for _, n := range sizes {
		put(t, w, g.frame(rng, 1, n), g.frame(rng, 2, 100))
	}
	v := mustRecover(t, d, seg1)
	if v.End != w.End() || v.State != Clean {
		t.Fatalf("%s at %+v, want %+v", v.State, v.End, w.End())
	}
	mine, theirs := w.tally.footer(1000, w.pos, nil, Cut{}), v.tally.footer(1000, w.pos, nil, Cut{})
	a, _ := mine.encode(1)
	b, _ := theirs.encode(1)
	if !bytes.Equal(a, b) {
		t.Error("recovery counts something else than the writer")
	}
	if len(mine.index) != len(sizes)+1 { // the small frame behind the largest is far enough from it
		t.Errorf("%d index entries", len(mine.index))
	}
	fenceNow(t, w)
	sound(t, d, seg1)
	r, err := OpenReader(d, seg1)
	must(t, err)
	defer r.Close()
	n := 0
	must(t, Scan(r, func(int64, record.Head, []byte) error { n++; return nil }))
	if n != 2*len(sizes)+2 { // with start mark and pointer
		t.Errorf("%d frames", n)
	}
}

// B06: an index or a latch that points behind the end is an error or refused,
// never a loop that reads for ever.
func TestB06NoEndlessRead(t *testing.T) {
	d := newDisk(1)
	frames, latch := fenced(t, d, rand.New(rand.NewPCG(1, 7)), lifeGrown, 64<<10)
	end, _ := latch.End()
	entries := []entry{{1000, DataStart + block, 0}}
	for _, bad := range [][]entry{
		{{999, DataStart, 0}}, {{end.Offset, DataStart, 0}}, {{1000, end.Position, 0}}, {{1000, 0, 0}},
		append(entries, entries...), append(entries, entry{1001, DataStart, 0}), append(entries, entry{1000, 1 << 16, 0}),
	} {
		if checkIndex(bad, 1000, end.Offset, end.Position) == nil {
			t.Errorf("index %v is taken", bad)
		}
	}
	last := frames[len(frames)-1]
	cutTo(t, d, seg1, last.pos) // the latch now reaches into nothing
	before := d.Counts().Reads
	r, err := OpenReader(d, seg1)
	must(t, err)
	err = Scan(r, func(int64, record.Head, []byte) error { return nil })
	r.Close()
	if !errors.Is(err, ErrDamaged) {
		t.Fatalf("%v", err)
	}
	if n := d.Counts().Reads - before; n > 40 {
		t.Errorf("%d reads", n)
	}
	v := mustRecover(t, d, seg1)
	if v.State != Damaged || v.End != end {
		t.Errorf("%s at %+v", v.State, v.End)
	}
}

// A settlement cuts a fenced copy once, at the end of a frame; a crash in it leaves
// the copy at one of the two ends.
func TestSettle(t *testing.T) {
	var before, after int
	for seed := range seeds(60) {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 8))
			d := newDisk(seed)
			frames, latch := fenced(t, d, rng, life(seed%uint64(lives)), 60<<10)
			old, _ := latch.End()
			n := rng.IntN(len(frames))
			want := uint64(1000)
			if n > 0 {
				want = frames[n-1].head.Next()
			}
			if frames[n].head.Count > 1 {
				if _, err := Settle(d, seg1, want+1, testNow, 9); !errors.Is(err, ErrBoundary) {
					t.Fatalf("settled inside a frame: %v", err)
				}
			}
			d.CutAfter(rng.IntN(3))
			_, err := Settle(d, seg1, want, testNow, 9)
			d.CutAfter(-1)
			d = d.Crash(rng)
			v := mustRecover(t, d, seg1)
			switch {
			case v.End.Offset == want && v.Latch.State() == fence.Settled:
				after++
			case v.End == old && err != nil:
				before++
			default:
				t.Fatalf("settling at %d (%v): %v at %+v", want, err, v.Latch.State(), v.End)
			}
			l, err := Settle(d, seg1, want, testNow, 9)
			if end, _ := l.End(); err != nil || end.Offset != want || l.State() != fence.Settled {
				t.Fatalf("%v at %+v: %v", l.State(), end, err)
			}
			if _, err := Settle(d, seg1, want, testNow, 9); err != nil {
				t.Fatalf("settled again: %v", err)
			}
			if n+1 < len(frames) {
				if _, err := Settle(d, seg1, frames[n].head.Next(), testNow, 9); !errors.Is(err, fence.ErrSettled) {
					t.Fatalf("settled elsewhere: %v", err)
				}
			}
			holds(t, d, seg1, frames[:n])
			sound(t, d, seg1)
			if latched, _ := l.Latched(); latched != old {
				t.Errorf("the fence was at %+v, now the latch says %+v", old, latched)
			}
			// A and B may go: the settlement alone still says where the end is.
			wipe(t, d, seg1, slotA, slotC)
			if v := mustRecover(t, d, seg1); v.End.Offset != want || v.Latch.State() == fence.Open || len(v.Faults) == 0 {
				t.Errorf("without A and B: %v at %+v", v.Latch.State(), v.End)
			}
		})
	}
	if before == 0 || after == 0 {
		t.Errorf("%d crashes before the settlement, %d after: the test does not test both", before, after)
	}
}

func TestSettleRefuses(t *testing.T) {
	d := newDisk(1)
	w := create(t, newTestPool(t, d, lifeGrown), testMeta(1))
	write(t, w, rand.New(rand.NewPCG(1, 1)), 4, 2, 100)
	if _, err := Settle(d, seg1, 1002, testNow, 1); !errors.Is(err, fence.ErrNotFenced) {
		t.Errorf("open: %v", err)
	}
	fenceNow(t, w)
	if _, err := Settle(d, seg1, 1009, testNow, 1); !errors.Is(err, fence.ErrExtend) {
		t.Errorf("longer: %v", err)
	}
	if _, err := Settle(d, seg1, 999, testNow, 1); !errors.Is(err, fence.ErrBelowBase) {
		t.Errorf("below the base: %v", err)
	}
	if l, err := Settle(d, seg1, 1008, testNow, 1); err != nil || l.State() != fence.Fenced {
		t.Errorf("at its end: %v %v", l.State(), err)
	}
}

// A slot of the latch that is lost is written again from the other, and the other
// is never touched.
func TestMendLatch(t *testing.T) {
	for _, at := range []int64{slotA, slotB} {
		d := newDisk(1)
		_, latch := fenced(t, d, rand.New(rand.NewPCG(1, 1)), lifeGrown, 64<<10)
		whole := contents(t, d, seg1)
		flip(t, d, seg1, at+100, 1)
		v := mustRecover(t, d, seg1)
		if v.Latch != latch || len(v.Faults) != 1 {
			t.Fatalf("%v %v", v.Latch, v.Faults)
		}
		n := d.Counts().BytesWritten
		if l, err := v.Fence(testNow+5, 5); err != nil || l != latch {
			t.Fatal(l, err)
		}
		if n = d.Counts().BytesWritten - n; n != block {
			t.Errorf("%d bytes written", n)
		}
		if !bytes.Equal(contents(t, d, seg1), whole) {
			t.Error("the latch is not what it was")
		}
		n = d.Counts().BytesWritten
		if _, err := mustRecover(t, d, seg1).Fence(testNow, 1); err != nil || d.Counts().BytesWritten != n {
			t.Error("a whole latch was written again", err)
		}
	}
}

// Fencing is idempotent, refuses another end, and costs two durable writes.
func TestFence(t *testing.T) {
	d := newDisk(1)
	w := create(t, newTestPool(t, d, lifePrepared), testMeta(1))
	write(t, w, rand.New(rand.NewPCG(1, 1)), 4, 2, 100)
	end := w.End()
	for _, wrong := range []fence.End{{}, {Offset: end.Offset - 1, Position: end.Position, Bytes: end.Bytes}, {Offset: end.Offset, Position: end.Position + block, Bytes: end.Bytes}} {
		if _, err := w.Fence(wrong, testNow, 1); !errors.Is(err, ErrEnd) {
			t.Errorf("fenced at %+v: %v", wrong, err)
		}
	}
	if err := w.Trim(); !errors.Is(err, ErrOpen) {
		t.Errorf("trimmed while open: %v", err)
	}
	before := d.Counts()
	one, err := w.Fence(end, testNow, 1)
	must(t, err)
	after := d.Counts()
	if n := after.DurableWrites - before.DurableWrites; n != 2 || after.Writes-before.Writes != 2 || after.Syncs != before.Syncs || after.DirSyncs != before.DirSyncs {
		t.Errorf("%d durable writes, %d writes", n, after.Writes-before.Writes)
	}
	two, err := w.Fence(end, testNow+9, 2)
	if err != nil || one != two || d.Counts().Writes != after.Writes {
		t.Error("fencing twice is not fencing once", err)
	}
	if _, err := w.Fence(fence.End{Offset: 5}, testNow, 1); !errors.Is(err, fence.ErrOtherEnd) {
		t.Error(err)
	}
	must(t, Trim(d, seg1))
	if rep := sound(t, d, seg1); rep.Slack != 0 {
		t.Errorf("%d bytes behind the footer", rep.Slack)
	}
}

// A write of the fence that fails is an error, and recovery decides what became of it.
func TestFenceFails(t *testing.T) {
	for nth := 1; nth <= 2; nth++ {
		for seed := range uint64(20) {
			d := newDisk(seed)
			w := create(t, newTestPool(t, d, lifeGrown), testMeta(1))
			frames := write(t, w, rand.New(rand.NewPCG(1, 1)), 4, 2, 100)
			end := w.End()
			f := d.Fail(simdisk.Nth(nth, errIO, simdisk.On(simdisk.Write)))
			if _, err := w.Fence(end, testNow, 1); !errors.Is(err, errIO) || f.ErrorCount() != 1 {
				t.Fatalf("%v after %d errors", err, f.ErrorCount())
			}
			f.Stop()
			v := mustRecover(t, d, seg1)
			if v.End != end {
				t.Fatalf("seed %d: write %d failed: ends at %+v, want %+v (%s)", seed, nth, v.End, end, v.Why)
			}
			_, err := v.Fence(testNow, 2)
			must(t, err)
			holds(t, d, seg1, frames)
			sound(t, d, seg1)
		}
	}
}

var errIO = errors.New("input/output error")

// An unreadable disk is an error of the disk, never a verdict about the file.
func TestReadErrorIsNoVerdict(t *testing.T) {
	d := newDisk(1)
	w := create(t, newTestPool(t, d, lifeGrown), testMeta(1))
	write(t, w, rand.New(rand.NewPCG(1, 1)), 30, 2, 40_000)
	total := d.Counts().Reads
	mustRecover(t, d, seg1)
	total = d.Counts().Reads - total
	if total < 5 {
		t.Fatalf("only %d reads", total)
	}
	for n := 1; n <= total; n++ {
		f := d.Fail(simdisk.Nth(n, errIO, simdisk.On(simdisk.Read)))
		if v, err := Recover(d, seg1); !errors.Is(err, errIO) || v != nil || f.ErrorCount() != 1 {
			t.Fatalf("read %d failed %d times: %v", n, f.ErrorCount(), err)
		}
		f.Stop()
	}
}

// Find and FindTime lead to a frame at or before what is looked for, and never
// more than an index entry's distance before it. (M01: a record without a time is
// no old one)
func TestFind(t *testing.T) {
	d := newDisk(1)
	w := create(t, newTestPool(t, d, lifeGrown), testMeta(1))
	rng := rand.New(rand.NewPCG(1, 9))
	if _, _, ok := w.Times(); ok {
		t.Error("no record, and a time")
	}
	g := &producerModel{id: 3}
	var list []sent
	for i := range 300 {
		f := g.frame(rng, 3, 1000)
		if i%10 == 0 { // a batch whose records have no time
			var b record.Builder
			b.Reset(make([]byte, 4096), 4)
			r := record.Record{Value: []byte("x"), Timestamp: int64(-i)}
			must(t, b.Add(&r, 0))
			var err error
			f, err = b.Finish(0)
			must(t, err)
		}
		pos := w.Position()
		b, heads := flush(w, pos, f)
		must(t, w.File().WriteAt(b, pos))
		w.Advance(pos, int64(len(b)), heads)
		list = append(list, sent{pos, f, heads[0]})
	}
	low, high, ok := w.Times()
	if !ok || low < testNow || high != testNow+g.time {
		t.Errorf("times %d to %d, %v", low, high, ok)
	}
	fenceNow(t, w)
	r, err := OpenReader(d, seg1)
	must(t, err)
	defer r.Close()
	if l, h, ok := r.Times(); !ok || l != low || h != high {
		t.Errorf("the reader says %d to %d", l, h)
	}
	for _, s := range list {
		for offset := s.head.Base; offset < s.head.Next(); offset++ {
			pos, ok := r.Find(offset)
			if !ok || pos > s.pos || s.pos-pos > indexEvery+2*block || w.Find(offset) != pos {
				t.Fatalf("offset %d is at %d, found %d", offset, s.pos, pos)
			}
		}
		if s.head.MaxTime <= 0 {
			continue
		}
		pos, ok := r.FindTime(s.head.MaxTime)
		if !ok || pos > s.pos || w.FindTime(s.head.MaxTime) != pos {
			t.Fatalf("time %d is at %d, found %d", s.head.MaxTime, s.pos, pos)
		}
		for _, o := range list {
			if o.head.MaxTime >= s.head.MaxTime {
				if o.pos < pos {
					t.Fatalf("time %d first comes at %d, found %d", s.head.MaxTime, o.pos, pos)
				}
				break
			}
		}
	}
	end := w.NextOffset()
	for _, offset := range []uint64{0, 999, end, end + 1} {
		if _, ok := r.Find(offset); ok {
			t.Errorf("offset %d is found", offset)
		}
	}
	if _, ok := r.FindTime(high + 1); ok {
		t.Error("a time behind all is found")
	}
}

// The index stays bounded however long the file is, and is as fine as promised.
func TestIndexIsBounded(t *testing.T) {
	var x index
	pos := int64(DataStart)
	for i := range uint64(200_000) {
		x.add(entry{i, pos, 0})
		pos += 4096 * int64(1+i%7)
	}
	if len(x.entries) > indexMax {
		t.Fatalf("%d entries", len(x.entries))
	}
	last := int64(DataStart)
	for _, e := range x.entries {
		if gap := e.pos - last; gap > max(indexEvery, pos/1024)+8*4096 {
			t.Fatalf("a gap of %d bytes in %d", gap, pos)
		}
		last = e.pos
	}
}

func TestProgressEndsVerify(t *testing.T) {
	d := newDisk(1)
	fenced(t, d, rand.New(rand.NewPCG(1, 1)), lifeGrown, 64<<10)
	var last, total int64
	_, err := Verify(d, seg1, func(done, of int64) error { last, total = done, of; return nil })
	if err != nil || last != total || total == 0 {
		t.Errorf("%d of %d: %v", last, total, err)
	}
	if _, err := Verify(d, seg1, func(int64, int64) error { return errIO }); !errors.Is(err, errIO) {
		t.Error(err)
	}
}

// The window never stays allocated in the disk's arena.
func TestArenaIsGivenBack(t *testing.T) {
	d := newDisk(1)
	fenced(t, d, rand.New(rand.NewPCG(1, 1)), lifeGrown, 64<<10)
	base := d.Arena().InUse()
	mustRecover(t, d, seg1)
	sound(t, d, seg1)
	r, err := OpenReader(d, seg1)
	must(t, err)
	r.Close()
	_, err = Classify(d, seg1)
	must(t, err)
	if n := d.Arena().InUse(); n != base {
		t.Errorf("%d bytes of the arena are still taken", n-base)
	}
	if d.Arena().Peak() < windowMax {
		t.Error("the arena was not used")
	}
}
