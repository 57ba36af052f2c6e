package segfile

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/ringfence/ringfence/fence"
	"github.com/ringfence/ringfence/segfile/disk"
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
		copied := seed%2 == 0
		if !copied {
			forgetCopies(t, d, seg1)
		}
		whole := contents(t, d, seg1)
		slack := sound(t, d, seg1).Slack // behind the footer, which nobody reads
		for _, damage := range []func(b []byte) []byte{
			func(b []byte) []byte { b[end.Position+rng.Int64N(int64(len(b))-slack-end.Position)] ^= 1; return b },
			func(b []byte) []byte { clear(b[end.Position:]); return b },
			func(b []byte) []byte { return b[:end.Position] },
		} {
			change(t, d, seg1, damage)
			readsRight(t, d, frames)
			r, err := OpenReader(d, seg1)
			must(t, err)
			o, err := r.File()
			must(t, err)
			if size, _ := o.Size(); (len(r.Faults()) == 0) != (copied && size >= int64(len(whole))-slack) || r.Table() == nil {
				t.Errorf("faults %v, table %v, copied: %v", r.Faults(), r.Table(), copied)
			}
			r.Close()
			if _, err := Verify(d, seg1, nil); !errors.Is(err, ErrDamaged) {
				t.Errorf("Verify: %v", err)
			}
			must(t, RepairFooter(d, seg1))
			must(t, RepairFooter(d, seg1)) // B11: nothing happens twice
			used := int64(len(whole)) - slack
			if have := contents(t, d, seg1); int64(len(have)) < used || !bytes.Equal(have[:used], whole[:used]) {
				t.Fatalf("seed %d: the footer is not what it was: differs at %d", seed, firstDifference(have, whole))
			}
		}
		sound(t, d, seg1)
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
	if n := d.Arena().InUse(); n != base {
		t.Errorf("%d bytes of the arena are still taken", n-base)
	}
	if d.Arena().Peak() < windowMax {
		t.Error("the arena was not used")
	}
}

// forgetCopies leaves a fenced file's latch without copies of the footer, as where that
// is too long for one.
func forgetCopies(t *testing.T, d disk.Disk, name string) {
	t.Helper()
	patch(t, d, name, 0, DataStart, func(b []byte) {
		h, state, why := readHeader(b)
		if state != headerValid {
			t.Fatal(why)
		}
		s := readSlots(b, h.Salt)
		if s.sa != slotValid || s.a.copied == "" || s.b != s.a {
			t.Fatal("there is no copy to forget")
		}
		s.a.copied = ""
		s.a.put(b[slotA:], 'A', h.Salt)
		s.a.put(b[slotB:], 'B', h.Salt)
	})
}

// A closed file whose footer is short is opened with one read, and one whose footer is
// longer than a latch slot has room for with two; both know the same.
func TestOpenReadsOnce(t *testing.T) {
	for _, producers := range []int{1, 200} {
		d := newDisk(1)
		w := create(t, newTestPool(t, d, lifeGrown), testMeta(1))
		rng := rand.New(rand.NewPCG(1, 1))
		for id := range producers {
			put(t, w, (&producerModel{id: uint64(id + 1)}).frame(rng, 1, 100))
		}
		want := w.End()
		fenceNow(t, w)
		must(t, w.Close())
		before := len(d.Trace())
		r, err := OpenReader(d, seg1)
		must(t, err)
		reads := 0
		for _, e := range d.Trace()[before:] {
			if e.Action == simdisk.Read {
				reads++
			}
		}
		if end, _ := r.End(); end != want || r.Table().Len() != producers || (reads == 1) != (producers == 1) || reads > 2 {
			t.Errorf("%d producers: %d reads, ends at %+v, want %+v, %d producers known", producers, reads, end, want, r.Table().Len())
		}
		must(t, r.Close())
	}
}
