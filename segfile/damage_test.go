package segfile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"testing"

	"github.com/ringfence/ringfence/fence"
	"github.com/ringfence/ringfence/segfile/disk"
	"github.com/ringfence/ringfence/segfile/record"
)

// A producer whose last acknowledged batch was damaged goes on behind it: it was
// told that the batch is safe and will not send it again.
func TestDamageKeepsProducersGoing(t *testing.T) {
	for _, at := range []int64{25, record.HeaderSize + 20} { // a bit of the header, or of the payload
		d := newDisk(1)
		w := create(t, newTestPool(t, d, lifeGrown), testMeta(1))
		g := &producerModel{id: 9}
		write(t, w, rand.New(rand.NewPCG(1, 1)), 3, 2, 300)
		pos := w.Position()
		put(t, w, g.frame(rand.New(rand.NewPCG(1, 2)), 4, 300))
		must(t, w.WriteProof())
		must(t, w.Close())
		flip(t, d, seg1, pos+at, 4)
		v := mustRecover(t, d, seg1)
		if at < record.HeaderSize && v.State != Damaged {
			t.Fatalf("%s: %s", v.State, v.Why)
		}
		if j, err := v.Table.Judge(batchOf(9, 4, 5, 6)); j != Fresh || err != nil {
			t.Errorf("byte %d: %v %v", at, j, err)
		}
		_, err := v.Fence(testNow, 1)
		must(t, err)
		rep, err := Verify(d, seg1, nil)
		if !errors.Is(err, ErrDamaged) || len(rep.Problems) != 1 || rep.Problems[0].Byte != pos {
			t.Errorf("byte %d: %v", at, rep.Problems)
		}
	}
}

// Where a start mark is damaged, the table of the segment before and the frames
// give what the file cannot.
func TestReplay(t *testing.T) {
	d := newDisk(1)
	table := NewProducerTable(0, 1<<32)
	table.Update(batchOf(77, 0, 1, 5))
	w, err := newTestPool(t, d, lifeGrown).Create(t.Context(), testMeta(1), table.Clone())
	must(t, err)
	write(t, w, rand.New(rand.NewPCG(1, 1)), 3, 2, 300)
	want, _ := w.Table().AppendBinary(nil)
	must(t, w.Close())
	flip(t, d, seg1, DataStart+300, 1)
	v := mustRecover(t, d, seg1)
	if v.Table != nil || v.State != Damaged {
		t.Fatalf("%s, table %v", v.State, v.Table)
	}
	_, err = v.Fence(testNow, 1)
	must(t, err)
	r, err := OpenReader(d, seg1)
	must(t, err)
	defer r.Close()
	if r.Table() != nil {
		t.Fatal("the footer has a table that nobody knows")
	}
	must(t, r.Replay(table))
	if have, _ := table.AppendBinary(nil); string(have) != string(want) {
		t.Error("the table did not come back")
	}
}

// A segment without a record is fenced where it began.
func TestEmptySegment(t *testing.T) {
	d := newDisk(1)
	w := create(t, newTestPool(t, d, lifeGrown), testMeta(1))
	l := fenceNow(t, w)
	must(t, Trim(d, seg1))
	if end, _ := l.End(); end.Offset != 1000 || end.Bytes != 0 {
		t.Errorf("%+v", end)
	}
	if rep := sound(t, d, seg1); rep.Marks != 2 || rep.Records != 0 {
		t.Errorf("%+v", rep)
	}
	holds(t, d, seg1, nil)
	r, err := OpenReader(d, seg1)
	must(t, err)
	defer r.Close()
	if _, ok := r.Find(1000); ok {
		t.Error("a record is found")
	}
	if _, ok := r.FindTime(0); ok {
		t.Error("a time is found")
	}
}

// A frame of a later version is not damage: nothing is decided about the file.
func TestNewerFrame(t *testing.T) {
	d := newDisk(1)
	w := create(t, newTestPool(t, d, lifeGrown), testMeta(1))
	frames := write(t, w, rand.New(rand.NewPCG(1, 1)), 10, 1, 1000)
	patch(t, d, seg1, frames[5].pos, frames[5].pos+record.HeaderSize, func(b []byte) {
		b[4] = 3
		putCRC(b[record.HeaderSize-4:], b[:record.HeaderSize-4], w.Meta().Salt)
	})
	if _, err := Recover(d, seg1); !errors.Is(err, ErrNewer) {
		t.Errorf("Recover: %v", err)
	}
	fenceNow(t, w)
	r, err := OpenReader(d, seg1)
	must(t, err)
	defer r.Close()
	if err := Scan(r, func(int64, record.Head, []byte) error { return nil }); !errors.Is(err, ErrNewer) {
		t.Errorf("Scan: %v", err)
	}
	if _, err := Verify(d, seg1, nil); !errors.Is(err, ErrNewer) {
		t.Errorf("Verify: %v", err)
	}
}

// A01: the last record of a file that was prepared torn at every boundary of 512
// bytes and of 4,096: open succeeds, the torn one is dropped, all before it is
// there, the next append in a successor gets its offset.
func TestA01TornAtEveryBoundary(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	d := newDisk(1)
	w := create(t, newTestPool(t, d, lifePrepared), testMeta(1))
	frames := write(t, w, rng, 40, 5, 300)
	last := write(t, w, rng, 1, 1, 20_000)[0]
	w.Close()
	whole := contents(t, d, seg1)
	for at := last.pos; at < last.pos+int64(last.head.FrameLen); at += 512 {
		patch(t, d, seg1, last.pos, last.pos+alignBlock(int64(last.head.FrameLen)), func(b []byte) {
			copy(b, whole[last.pos:])
			clear(b[at-last.pos:])
		})
		v := mustRecover(t, d, seg1)
		if v.End.Offset != last.head.Base || v.State == Damaged {
			t.Fatalf("torn at %d: %s at %d, want %d", at-last.pos, v.State, v.End.Offset, last.head.Base)
		}
		if (v.State == Torn) != (at > last.pos) {
			t.Fatalf("torn at %d: %s", at-last.pos, v.State)
		}
		again := mustRecover(t, d, seg1)
		if again.End != v.End || again.Cut != v.Cut {
			t.Fatal("the second recovery says something else")
		}
	}
	v := mustRecover(t, d, seg1)
	_, err := v.Fence(testNow, 1)
	must(t, err)
	holds(t, d, seg1, frames)
}

// A05: a record that cannot be read is never below the end that recovery reports,
// wherever the file was cut.
func TestA05CutAtEveryByte(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	d := newDisk(1)
	w := create(t, newTestPool(t, d, lifeGrown), testMeta(1))
	frames := write(t, w, rng, 3, 2, 100)
	w.Close()
	whole := contents(t, d, seg1)
	last := frames[2]
	for cut := int64(0); cut <= int64(last.head.FrameLen); cut++ {
		change(t, d, seg1, func([]byte) []byte { return append([]byte(nil), whole[:last.pos+cut]...) })
		v := mustRecover(t, d, seg1)
		want := frames[1].head.Next()
		if cut == int64(last.head.FrameLen) {
			want = last.head.Next()
		}
		if v.End.Offset != want {
			t.Fatalf("cut %d bytes into the last frame: ends at %d, want %d", cut, v.End.Offset, want)
		}
		if v.State == Clean != (cut == 0 || cut == int64(last.head.FrameLen)) {
			t.Fatalf("cut %d bytes into the last frame: %s", cut, v.State)
		}
	}
}

// A10: a file in which no record is left still says where numbering goes on.
func TestA10NoRecordLeft(t *testing.T) {
	for _, size := range []int64{block, DataStart, DataStart + 100, DataStart + block} {
		d := newDisk(1)
		w := create(t, newTestPool(t, d, lifeGrown), testMeta(1))
		write(t, w, rand.New(rand.NewPCG(1, 1)), 5, 2, 100)
		w.Close()
		cutTo(t, d, seg1, size)
		v := mustRecover(t, d, seg1)
		if v.End.Offset != 1000 {
			t.Fatalf("cut to %d: ends at %d (%s)", size, v.End.Offset, v.Why)
		}
		if whole := size == DataStart+block; v.State != Damaged || (v.Table == nil) == whole {
			t.Errorf("cut to %d: %s (%s), table %v", size, v.State, v.Why, v.Table)
		}
		if rep, err := Verify(d, seg1, nil); !errors.Is(err, ErrDamaged) || len(rep.Problems) == 0 {
			t.Errorf("cut to %d: verified: %v", size, err)
		}
		latch, err := v.Fence(testNow, 1)
		must(t, err)
		if end, _ := latch.End(); end.Offset != 1000 {
			t.Errorf("fenced at %+v", end)
		}
		if v = mustRecover(t, d, seg1); v.Latch.State() != fence.Fenced || v.End.Offset != 1000 {
			t.Errorf("cut to %d: after the fence %v at %+v", size, v.Latch.State(), v.End)
		}
		if rep, err := Verify(d, seg1, nil); !errors.Is(err, ErrDamaged) || rep.State != Damaged {
			t.Errorf("cut to %d: verified after the fence: %s, %v", size, rep.State, err)
		}
	}
}

// Garbage from the pointer on is no torn tail alone, before the fence and after it.
func TestGarbageFromThePointerOn(t *testing.T) {
	d := newDisk(1)
	w := create(t, newTestPool(t, d, lifeGrown), testMeta(1))
	rng := rand.New(rand.NewPCG(1, 1))
	write(t, w, rng, 5, 2, 100)
	w.Close()
	patch(t, d, seg1, DataStart+block, DataStart+6*block, func(b []byte) {
		for i := range b {
			b[i] = byte(rng.Uint32())
		}
	})
	for _, fenced := range []bool{false, true} {
		if rep, err := Verify(d, seg1, nil); !errors.Is(err, ErrDamaged) || rep.State != Damaged {
			t.Errorf("fenced %v: %s, %v", fenced, rep.State, err)
		}
		if !fenced {
			_, err := mustRecover(t, d, seg1).Fence(testNow, 1)
			must(t, err)
		}
	}
}

// What the pointer proves is missed although the start mark before it went with the records
// behind it.
func TestPointerBehindADamagedStartMark(t *testing.T) {
	d := newDisk(1)
	w := create(t, newTestPool(t, d, lifePrepared), testMeta(1))
	frames := write(t, w, rand.New(rand.NewPCG(1, 1)), 5, 2, 100)
	movePointer(t, w, w.End())
	w.Close()
	end := frames[4].pos + alignBlock(int64(frames[4].head.FrameLen))
	patch(t, d, seg1, DataStart, DataStart+block, func(b []byte) { clear(b) })
	patch(t, d, seg1, DataStart+2*block, end, func(b []byte) { clear(b) })
	v := mustRecover(t, d, seg1)
	last := v.Holes[len(v.Holes)-1]
	if v.State != Damaged || v.End.Offset != 1010 || last.Records != 10 || last.Position != DataStart+2*block {
		t.Fatalf("%s (%s): ends at %+v, holes %+v", v.State, v.Why, v.End, v.Holes)
	}
}

// A11: one byte of record 500 of 1,000 is wrong, in an open segment with valid
// records behind it and in a fenced one: damage, with its place; nothing behind it
// reads as if it followed.
func TestA11DamageInTheMiddle(t *testing.T) {
	for _, fenced := range []bool{false, true} {
		t.Run(fmt.Sprint("fenced=", fenced), func(t *testing.T) {
			d := newDisk(1)
			w := create(t, newTestPool(t, d, lifeGrown), testMeta(1))
			frames := write(t, w, rand.New(rand.NewPCG(1, 1)), 1000, 1, 100)
			if fenced {
				fenceNow(t, w)
			}
			w.Close()
			bad := frames[500]
			flip(t, d, seg1, bad.pos+200, 8)
			v := mustRecover(t, d, seg1)
			if v.End.Offset != 2000 {
				t.Fatalf("recovered up to %d", v.End.Offset)
			}
			rep, err := Verify(d, seg1, nil)
			var c *CorruptError
			if !errors.As(err, &c) || c.Byte != bad.pos || !errors.Is(err, ErrDamaged) || len(rep.Problems) != 1 {
				t.Fatalf("Verify: %v %v", err, rep.Problems)
			}
			if len(rep.Holes) != 1 || rep.Holes[0].Offset != 1500 || rep.Holes[0].Records != 1 {
				t.Fatalf("holes %+v", rep.Holes)
			}
			if !fenced {
				_, err = v.Fence(testNow, 1)
				must(t, err)
			}
			r, err := OpenReader(d, seg1)
			must(t, err)
			defer r.Close()
			n := 0
			err = Scan(r, func(_ int64, h record.Head, _ []byte) error { n += int(h.Count); return nil })
			if !errors.As(err, &c) || c.Byte != bad.pos || n != 500 {
				t.Fatalf("%d records, then %v", n, err)
			}
			acceptLoss(t, d, frames, 500)
		})
	}
}

// acceptLoss puts the loss on record and reads around it.
func acceptLoss(t *testing.T, d disk.Disk, frames []sent, bad int) {
	t.Helper()
	holes, err := AcceptLoss(d, seg1)
	if err != nil || len(holes) != 1 {
		t.Fatal(holes, err)
	}
	r, err := OpenReader(d, seg1)
	must(t, err)
	defer r.Close()
	buf := make([]byte, 64<<10)
	pos, skipped, got := int64(DataStart), uint64(0), uint64(0)
	for {
		b, next, err := r.ReadFrames(buf, pos)
		var h *HoleError
		switch {
		case errors.Is(err, io.EOF):
			if skipped != 1 || got+skipped != uint64(len(frames)) {
				t.Fatalf("%d records read, %d skipped of %d", got, skipped, len(frames))
			}
			return
		case errors.As(err, &h):
			if !h.Hole.Accepted {
				t.Fatalf("not accepted: %v", err)
			}
			skipped += h.Hole.Records
			pos = h.Hole.Position + h.Hole.Length
			continue
		case err != nil:
			t.Fatal(err)
		}
		err = Walk(b, pos, r.Meta().Salt, func(at int64, h record.Head, frame []byte) error {
			if _, err := record.Check(frame, r.Meta().Salt); err != nil {
				next = at // as a reader does that verifies what it reads
				return io.EOF
			}
			got += uint64(h.Count)
			return nil
		})
		if err != nil {
			hs, err := r.Holes()
			if err != nil || len(hs) != 1 || hs[0].Position != next || !hs[0].Accepted {
				t.Fatalf("holes %+v %v, damage at %d", hs, err, next)
			}
			skipped += hs[0].Records
			next = hs[0].Position + hs[0].Length
		}
		pos = next
	}
}

// B16, A12: recovering a fenced file reads its head and its footer, damaged or not
// in between; a footer that is damaged costs the frame heads of that file alone.
func TestB16RecoveryReadsLittle(t *testing.T) {
	d := newDisk(1)
	w := create(t, newTestPool(t, d, lifeGrown), testMeta(1))
	write(t, w, rand.New(rand.NewPCG(1, 1)), 40, 1, 300_000)
	end := w.End()
	fenceNow(t, w)
	w.Close()
	v := mustRecover(t, d, seg1)
	if v.ReadBytes > 64<<10 {
		t.Errorf("%d bytes read for a fenced file", v.ReadBytes)
	}
	flip(t, d, seg1, end.Position+40, 1)
	v = mustRecover(t, d, seg1)
	if v.ReadBytes > 64<<10+40*2*block || len(v.Faults) != 1 || v.State != Clean || v.End != end {
		t.Errorf("%d bytes read, %s at %+v, faults %v", v.ReadBytes, v.State, v.End, v.Faults)
	}
	if v.Table == nil || v.Table.Len() != 1 {
		t.Error("the producer table did not come back")
	}
}

// C04: what a segment's first acknowledged record needs on disk is durable before
// Create returns: the file, its name, the topic directory and topics itself.
func TestC04NamesAreDurable(t *testing.T) {
	for seed := range uint64(100) {
		d := newDisk(seed)
		p := newTestPool(t, d, life(seed%uint64(lives)))
		w := create(t, p, testMeta(1))
		put(t, w, (&producerModel{id: 3}).frame(rand.New(rand.NewPCG(seed, 1)), 3, 100))
		after := d.Crash(rand.New(rand.NewPCG(seed, 2)))
		if v, err := Recover(after, seg1); err != nil || v.End.Offset != 1003 {
			t.Fatalf("seed %d: %v %+v", seed, err, v)
		}
		if f, err := after.Open(poolDir+"/"+"0000000000000000.new", true); !errors.Is(err, fs.ErrNotExist) {
			f.Close()
			t.Fatalf("seed %d: the pool's name came back", seed)
		}
	}
}
