package store

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"syscall"
	"testing"

	"github.com/ringfence/ringfence/segfile/disk/simdisk"
)

// C03: the storage is gone for a while: every call fails. Nothing is acknowledged and
// nothing read is taken for the end or for damage. When it is back, what was stored
// can be read, copies that failed take nothing more before they were read again from
// the disk and fenced, and all goes on in their successors.
func TestC03StorageGoesAway(t *testing.T) {
	for _, errno := range []syscall.Errno{syscall.ESTALE, syscall.EIO, syscall.EROFS} {
		for seed := range seeds(4) {
			t.Run(fmt.Sprint(errno, "/seed=", seed), func(t *testing.T) { goAway(t, errno, seed) })
		}
	}
}

func goAway(t *testing.T, errno syscall.Errno, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 42))
	d := newDisk(seed)
	s, _ := openStore(t, d, testOptions())
	old, busy, quiet := newSegment(t, s, segID(0, 0), 0, nil), newSegment(t, s, segID(1, 0), 0, nil), newSegment(t, s, segID(2, 0), 0, nil)
	p, q, r := &source{id: 7}, &source{id: 8}, &source{id: 9}
	a, b, c := p.next(rng, 3, 3000), q.next(rng, 2, 100), r.next(rng, 2, rng.IntN(9000))
	put(t, old, a)
	put(t, busy, b)
	put(t, quiet, c)
	if _, err := old.Fence(); err != nil {
		t.Fatal(err)
	}

	fault := d.Fail(func(simdisk.Event) error { return errno })
	again := q.next(rng, 2, rng.IntN(9000))
	for range 3 { // tried again and again: the first failure holds
		f, err := send(t, busy, again)
		if err == nil {
			f.wait(t)
			err = f.Err
		}
		if !errors.Is(err, ErrStorage) || errors.Is(err, ErrOutOfSpace) {
			t.Fatalf("append: %v", err)
		}
	}
	if end, err := quiet.Fence(); !errors.Is(err, ErrStorage) {
		t.Fatalf("fence: %+v, %v", end, err)
	}
	if _, err := s.Create(t.Context(), metaOf(segID(3, 0), 0), nil); !errors.Is(err, ErrStorage) {
		t.Fatalf("create: %v", err)
	}
	for _, seg := range []*Segment{old, busy, quiet} {
		items, err := readSegment(seg, 0)
		if err == nil && uint64(len(items)) == seg.CommitMark() {
			continue // from memory
		}
		if err == nil || errors.Is(err, io.EOF) || errors.Is(err, ErrDamaged) || !errors.Is(err, ErrStorage) {
			t.Fatalf("%v: %d records, then %v", seg.ID(), len(items), err)
		}
	}
	if fault.ErrorCount() < 5 {
		t.Fatalf("%d calls failed", fault.ErrorCount())
	}
	fault.Stop()

	d.Note("back")
	for _, seg := range []*Segment{busy, quiet} {
		if _, err := send(t, seg, again); !errors.Is(err, ErrStorage) {
			t.Fatalf("%v takes more: %v", seg.ID(), err)
		}
	}
	holds(t, old, a)
	holds(t, busy, b)
	holds(t, quiet, c)
	back := false
	for _, e := range d.Trace() {
		back = back || e.Action == simdisk.Note && e.Name == "back"
		if back && e.Action == simdisk.Write && (e.Name == busy.File() || e.Name == quiet.File()) {
			t.Fatalf("nobody asked for %v", e)
		}
	}
	for _, seg := range []*Segment{busy, quiet} {
		end, err := seg.Fence()
		must(t, err)
		if end.Offset != 2 {
			t.Fatalf("%v is fenced at %d", seg.ID(), end.Offset)
		}
		sound(t, d, seg.File())
		next := successor(t, seg, end)
		if seg == busy {
			if f := put(t, next, again); f.Duplicate || f.First != 2 {
				t.Fatalf("%+v", f)
			}
		}
	}
	newSegment(t, s, segID(3, 0), 0, nil)
	after := d.Crash(rng)
	s2, rec := openStore(t, after, testOptions())
	if len(rec.Damaged)+len(rec.Faulty)+len(rec.Unknown) > 0 {
		t.Fatalf("%+v", rec)
	}
	holds(t, mustSegment(t, s2, segID(0, 0)), a)
	holds(t, mustSegment(t, s2, segID(1, 0)), b)
	holds(t, mustSegment(t, s2, segID(1, 1)), again)
	holds(t, mustSegment(t, s2, segID(2, 0)), c)
}
