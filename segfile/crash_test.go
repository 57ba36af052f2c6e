package segfile

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"

	"github.com/ringfence/ringfence/fence"
	"github.com/ringfence/ringfence/segfile/disk/simdisk"
	"github.com/ringfence/ringfence/segfile/record"
)

// Whatever a power cut keeps of flushes in flight, recovery gives back every
// acknowledged record and none that was not sent, changes nothing, and says the
// same when asked again; a fence of what it found, cut off at any moment, does not
// change that, whatever life its file had before. (A01, A04, A05, A09, C01, C09)
func TestCrashKeepsAcknowledged(t *testing.T) {
	states, resumed := map[string]int{}, 0
	for seed := range seeds(100) {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 0))
			d := newDisk(seed)
			l := life(rng.IntN(int(lives)))
			w := create(t, newTestPool(t, d, l), testMeta(1))
			dr := newDriver(t, rng, d, w)
			for range rng.IntN(30) {
				dr.step()
			}
			if rng.IntN(4) == 0 {
				dr.drain()
				if err := w.WriteProof(); err != nil {
					t.Fatal(err)
				}
			}
			after := d.Crash(rng)
			v := mustRecover(t, after, Name(testID(1)))
			if v.State != Clean && v.State != Torn {
				t.Fatalf("%s: %s: %s %v", l, v.State, v.Why, v.Faults)
			}
			if v.End.Offset < dr.acked {
				t.Fatalf("%s: recovered up to %d, acknowledged up to %d (%s: %s)", l, v.End.Offset, dr.acked, v.State, v.Why)
			}
			want := dr.prefix(v.End.Offset)
			if n := len(dr.sent); v.State == Torn && len(want) == n && v.Cut.Position%block == 0 && len(v.Holes) == 0 {
				t.Fatalf("torn, and everything is there")
			}
			states[fmt.Sprint(l, " ", v.State)]++
			if v.Start > DataStart {
				resumed++
				sameWithoutCheckpoint(t, after, v)
			}
			refence(t, rng, after, v, want)
		})
	}
	if resumed == 0 {
		t.Error("no recovery started from a checkpoint")
	}
	for l := range lives {
		for _, s := range []State{Clean, Torn} {
			if states[fmt.Sprint(l, " ", s)] == 0 {
				t.Errorf("no crash left a %s file %s: the test does not test it (%v)", l, s, states)
			}
		}
	}
}

// sameWithoutCheckpoint recovers a file from its first frame on, without what the
// pointer says, and wants what was found from the checkpoint.
func sameWithoutCheckpoint(t *testing.T, d *simdisk.Disk, v *Verdict) {
	t.Helper()
	f, err := d.Open(v.Name, false)
	must(t, err)
	defer f.Close()
	b, pos := make([]byte, block), int64(DataStart+block)
	old := make([]byte, block)
	_, err = f.ReadAt(old, pos)
	must(t, err)
	born := checkpoints{pointer: pos, told: proof{pos + block, v.hdr.Base}}
	must(t, born.put(b, &v.hdr))
	must(t, f.WriteAt(b, pos))
	all := mustRecover(t, d, v.Name)
	must(t, f.WriteAt(old, pos))
	if all.Start != DataStart || all.End != v.End || all.State != v.State || all.Cut != v.Cut || all.Durable > v.Durable {
		t.Fatalf("from the start: %+v\nfrom a checkpoint: %+v", all, v)
	}
	mine, theirs := v.tally.footer(v.hdr.Base, v.End.Position, v.Holes, v.Cut), all.tally.footer(v.hdr.Base, v.End.Position, all.Holes, all.Cut)
	a, _ := mine.encode(v.hdr.Salt)
	c, _ := theirs.encode(v.hdr.Salt)
	if !bytes.Equal(a, c) || v.tally.index.every != all.tally.index.every {
		t.Fatal("from a checkpoint, recovery counts something else than from the start")
	}
}

// refence fences what recovery found, with power cuts in between, until it holds.
func refence(t *testing.T, rng *rand.Rand, d *simdisk.Disk, v *Verdict, want []sent) *simdisk.Disk {
	t.Helper()
	end := v.End
	for try := 0; ; try++ {
		again := mustRecover(t, d, v.Name)
		if again.End != end || again.Latch != v.Latch && v.Latch.State() != fence.Open {
			t.Fatalf("recovered again: end %+v, was %+v; latch %v, was %v (%s)", again.End, end, again.Latch.State(), v.Latch.State(), again.Why)
		}
		if try == 0 && (again.State != v.State || again.Cut != v.Cut || !reflect.DeepEqual(again.Holes, v.Holes)) {
			t.Fatalf("recovered again: %v %+v, was %v %+v", again.State, again.Cut, v.State, v.Cut)
		}
		v = again
		if try < 3 {
			d.CutAfter(rng.IntN(3))
		}
		latch, err := v.Fence(testNow, uint64(try))
		d.CutAfter(-1)
		if err == nil {
			if have, ok := latch.End(); !ok && v.Latch.State() == fence.Open || ok && have != end {
				t.Fatalf("fenced at %+v, want %+v", have, end)
			}
			break
		}
		if !errors.Is(err, simdisk.ErrPowerCut) {
			t.Fatal(err)
		}
		d = d.Crash(rng)
	}
	d = d.Crash(rng)
	v = mustRecover(t, d, v.Name)
	if v.Latch.State() != fence.Fenced || v.End != end || len(v.Faults) > 0 && v.State != Damaged {
		t.Fatalf("after the fence: %v at %+v, want %+v, faults %v", v.Latch.State(), v.End, end, v.Faults)
	}
	if v.State == Damaged {
		return d
	}
	if err := Trim(d, v.Name); err != nil {
		t.Fatal(err)
	}
	rep := sound(t, d, v.Name)
	if n := len(want); n > 0 && rep.Records != end.Offset-want[0].head.Base || rep.Frames != uint64(len(want)) {
		t.Fatalf("%d frames and %d records verified, want %d frames to %d", rep.Frames, rep.Records, n, end.Offset)
	}
	holds(t, d, v.Name, want)
	last := map[uint64]uint64{}
	for _, s := range want {
		last[s.head.Producer] = s.head.LastSeq
	}
	for id, seq := range last {
		if have, _, ok := v.Table.Lookup(id, 5); !ok || have != seq {
			t.Fatalf("producer %d stands at %d, want %d", id, have, seq)
		}
	}
	if v.Table.Len() != len(last) {
		t.Fatalf("%d producers, want %d", v.Table.Len(), len(last))
	}
	return d
}

// A cut at any moment of a segment's whole life, from the pool's first directory
// to the trim, loses nothing that was acknowledged; a fence that was answered is
// never undone. (C04, A07, A10)
func TestCrashAnywhere(t *testing.T) {
	var cuts, fenced, born int
	for seed := range seeds(150) {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 1))
			d := newDisk(seed)
			l := life(rng.IntN(int(lives)))
			if l == lifeGrown || rng.IntN(2) == 0 {
				d.CutAfter(rng.IntN(60))
				l = lifeGrown
			}
			acked, end, frames := lifeOf(t, rng, d, l)
			if d.Cut() {
				cuts++
			}
			after := d.Crash(rng)
			if err := after.Check(); err != nil {
				t.Fatal(err)
			}
			// The next start: the pool first, then the segment.
			p, err := NewPool(after, PoolOptions{SegmentBytes: 1 << 20})
			if err != nil {
				t.Fatal(err)
			}
			v, err := Recover(after, Name(testID(1)))
			if err != nil {
				if acked != nil {
					t.Fatalf("acknowledged up to %d, and the file is not there: %v", *acked, err)
				}
				w := create(t, p, testMeta(1)) // never born: it can be born now
				put(t, w, (&producerModel{id: 3}).frame(rng, 3, 100))
				return
			}
			born++
			if v.State != Clean && v.State != Torn {
				t.Fatalf("%s: %s", v.State, v.Why)
			}
			if acked != nil && v.End.Offset < *acked {
				t.Fatalf("recovered up to %d, acknowledged up to %d", v.End.Offset, *acked)
			}
			if end != nil {
				fenced++
				if v.Latch.State() != fence.Fenced || v.End != *end {
					t.Fatalf("a fence at %+v was answered; now it is %v at %+v", *end, v.Latch.State(), v.End)
				}
			}
			n := 0
			for n < len(frames) && frames[n].head.Next() <= v.End.Offset {
				n++
			}
			refence(t, rng, after, v, frames[:n])
		})
	}
	if cuts == 0 || fenced == 0 || born == 0 {
		t.Errorf("%d cuts, %d answered fences and %d files: the test does not test them", cuts, fenced, born)
	}
}

// lifeOf runs a segment from creation to trim until the power is cut. acked is
// what was acknowledged, nil if the segment was never created, end what a fence
// answered.
func lifeOf(t *testing.T, rng *rand.Rand, d *simdisk.Disk, l life) (acked *uint64, end *fence.End, frames []sent) {
	var p *Pool
	if l == lifeGrown {
		var err error
		if p, err = NewPool(d, PoolOptions{SegmentBytes: 1 << 20}); err != nil {
			return nil, nil, nil
		}
	} else {
		p = newTestPool(t, d, l)
		d.CutAfter(rng.IntN(30))
	}
	w, err := p.Create(t.Context(), testMeta(1), nil)
	if err != nil {
		return nil, nil, nil
	}
	at := w.NextOffset()
	g := &producerModel{id: 3}
	for range rng.IntN(20) {
		f := g.frame(rng, 1+rng.IntN(3), rng.IntN(5000))
		pos := w.Position()
		b, heads := flush(w, pos, f)
		frames = append(frames, sent{pos, f, heads[0]})
		if err := w.File().WriteAt(b, pos); err != nil {
			return &at, nil, frames
		}
		w.Advance(pos, int64(len(b)), heads)
		at = w.NextOffset()
	}
	if rng.IntN(2) == 0 {
		if err := w.WriteProof(); err != nil {
			return &at, nil, frames
		}
	}
	latch, err := w.Fence(w.End(), testNow, 5)
	if err != nil {
		return &at, nil, frames
	}
	e, _ := latch.End()
	w.Trim()
	return &at, &e, frames
}

// Recovery reads about as much of a long open file as of a short one: its last
// checkpoint and what came behind. (B16)
func TestCheckpointsBoundRecovery(t *testing.T) {
	d := simdisk.New(simdisk.Options{Seed: 1, ArenaBytes: 4 << 20})
	p, err := NewPool(d, PoolOptions{CheckpointBytes: 1 << 20})
	must(t, err)
	w := create(t, p, testMeta(1))
	rng := rand.New(rand.NewPCG(1, 8))
	g := &producerModel{id: 3}
	buf := make([]byte, 1<<20)
	made := 0
	for w.Position() < 8<<20 {
		put(t, w, g.frame(rng, 2, 1000))
		if w.PointerDue(w.Position()) {
			pos, err := w.Pointer(buf, w.Position())
			must(t, err)
			must(t, w.File().WriteAt(buf[:block], pos))
		}
		if w.CheckpointDue() {
			pos := w.Position()
			b, h, err := w.Checkpoint(buf[:w.CheckpointSize()], pos)
			must(t, err)
			must(t, w.File().WriteAt(b, pos))
			w.Advance(pos, int64(len(b)), []record.Head{h})
			made++
		}
	}
	if made < 8 || made > 100 {
		t.Errorf("%d checkpoints in %d bytes", made, w.Position())
	}
	v := mustRecover(t, d, seg1)
	if v.End != w.End() || v.State != Clean || v.ReadBytes > 3<<20 {
		t.Errorf("%s at %+v, want %+v; %d bytes read from byte %d on", v.State, v.End, w.End(), v.ReadBytes, v.Start)
	}
	sameWithoutCheckpoint(t, d, v)
	// One that rotted is done without, and found by those who look at every byte.
	flip(t, d, seg1, v.Start+record.HeaderSize+coFooter+foDigest, 1)
	if v := mustRecover(t, d, seg1); v.End != w.End() || v.Start != DataStart {
		t.Errorf("%s at %+v from byte %d on", v.State, v.End, v.Start)
	}
	if _, err := Verify(d, seg1, nil); !errors.Is(err, ErrDamaged) {
		t.Errorf("a damaged checkpoint: %v", err)
	}
}
