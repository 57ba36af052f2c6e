package segfile

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/ringfence/ringfence/fence"
	"github.com/ringfence/ringfence/segfile/disk/simdisk"
)

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
