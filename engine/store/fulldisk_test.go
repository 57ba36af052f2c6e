package store

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/ringfence/ringfence/fence"
)

// D01, D05: on a full disk one copy fails, then everything is refused with one
// error; reads and deletes go on, deleting and the pool give space back, and appends
// are taken again without a restart.
func TestD01FullDisk(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 4))
	d := newDisk(1)
	o := testOptions()
	o.ReserveBytes = 1 << 20
	s, _ := openStore(t, d, o)
	p := &source{id: 7}
	seg := newSegment(t, s, segID(0, 0), 0, nil)
	var acked []*batch
	for seg.Position() < 1200<<10 {
		b := p.next(rng, 4, 8000)
		put(t, seg, b)
		acked = append(acked, b)
	}
	end, err := seg.Fence()
	must(t, err)

	next := successor(t, seg, end)
	// A retired file in the pool takes space that appends need more.
	gone := newSegment(t, s, segID(9, 0), 0, nil)
	for g := (&source{id: 99}); gone.Position() < 900<<10; {
		put(t, gone, g.next(rng, 1, 60_000))
	}
	if _, err := gone.Fence(); err != nil {
		t.Fatal(err)
	}
	must(t, s.Delete(gone.ID()))
	eventually(t, "the file is in the pool", func() bool { return s.pool.Stats().Files == 1 })

	// The open one grows into the end of the disk, faster than anybody looks.
	s.lookAtSpace()
	total, free, err := d.Space()
	must(t, err)
	used := int64(total - free)
	d.SetCapacity(used + 60<<10)
	var stored []*batch
	var refused error
	for range 100 {
		b := p.next(rng, 4, 8000)
		f, err := send(t, next, b)
		must(t, err)
		f.wait(t)
		if refused = f.Err; refused != nil {
			p.seq, p.prev = b.first-1, b.prev
			break
		}
		stored = append(stored, b)
	}
	if !errors.Is(refused, ErrOutOfSpace) || !errors.Is(refused, ErrStorage) || d.Counts().Errors == 0 {
		t.Fatalf("the write that found no space was answered %v (%d errors)", refused, d.Counts().Errors)
	}
	if !s.OutOfSpace() || !s.Stats().OutOfSpace {
		t.Fatal("the store does not say that there is no space")
	}
	for _, id := range []fence.SegmentID{segID(3, 0), segID(4, 0)} {
		if _, err := s.Create(t.Context(), metaOf(id, 0), nil); !errors.Is(err, ErrOutOfSpace) {
			t.Fatalf("create on a full disk: %v", err)
		}
	}
	holds(t, seg, acked...)
	holds(t, next, stored...)

	// The retired file goes by itself; then there is room for the fence.
	eventually(t, "the pool gave its space back", func() bool {
		_, free, err := d.Space()
		return err == nil && free > 500<<10
	})
	nextEnd, err := next.Fence()
	must(t, err)
	if nextEnd.Offset != end.Offset+uint64(4*len(stored)) {
		t.Fatalf("fenced at %d", nextEnd.Offset)
	}

	// Still below the reserve: refused without a write.
	total, free, err = d.Space()
	must(t, err)
	d.SetCapacity(int64(total-free) + 100<<10)
	s.lookAtSpace()
	if !s.OutOfSpace() {
		t.Fatal("below the reserve and not out of space")
	}
	if _, err := s.Create(t.Context(), metaOf(segID(5, 0), 0), nil); !errors.Is(err, ErrOutOfSpace) || errors.Is(err, ErrStorage) {
		t.Fatalf("create below the reserve: %v", err)
	}

	// Deleting frees, though the pool would have kept the file.
	must(t, s.Delete(seg.ID()))
	s.lookAtSpace()
	if n := s.pool.Stats().Files; n != 0 {
		t.Fatalf("the pool keeps %d files on a full disk", n)
	}
	if s.OutOfSpace() {
		_, free, _ := d.Space()
		t.Fatalf("still out of space with %d bytes free", free)
	}
	last := successor(t, next, nextEnd)
	for i := range 10 {
		put(t, last, p.next(rng, 4, 1000))
		if i == 5 {
			d.SetCapacity(1 << 40)
		}
	}
	holds(t, next, stored...)
}

// Below the reserve an open segment refuses, keeps its place and goes on later: no
// roll is needed.
func TestReserveOnlyPauses(t *testing.T) {
	rng := rand.New(rand.NewPCG(2, 4))
	d := newDisk(2)
	o := testOptions()
	o.ReserveBytes = 1 << 20
	s, _ := openStore(t, d, o)
	seg := newSegment(t, s, segID(0, 0), 0, nil)
	p := &source{id: 7}
	a := p.next(rng, 1, 100)
	put(t, seg, a)
	d.SetCapacity(1 << 20)
	s.lookAtSpace()
	b := p.next(rng, 1, 100)
	if _, err := send(t, seg, b); !errors.Is(err, ErrOutOfSpace) || errors.Is(err, ErrStorage) {
		t.Fatalf("below the reserve: %v", err)
	} else if text := err.Error(); !strings.Contains(text, fmt.Sprintf("has %d bytes free, and the reserve is 1048576", s.free.Load())) {
		t.Errorf("refused with: %s", text)
	}
	if !seg.Writable() {
		t.Fatal("the segment must be rolled")
	}
	d.SetCapacity(1 << 30)
	s.lookAtSpace()
	put(t, seg, b)
	holds(t, seg, a, b)
}
