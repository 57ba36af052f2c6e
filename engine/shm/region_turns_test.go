package shm

import (
	"errors"
	"math"
	"testing"
)

// Counters that were put forward, back, or far away are no counters.
func TestI05Turns(t *testing.T) {
	for _, start := range []uint64{0, 1000, math.MaxUint64 - 3} {
		for _, off := range []uint64{1, 2, 7, 8, 9, 1 << 31, 1 << 32, 1 << 63, ^uint64(0), ^uint64(7), ^uint64(8), ^uint64(15)} {
			h, g := pair(t, Options{Geometry: small, start: start})
			turn := start + 1 + off
			g.scribble(small.submissions()+int(start%8)*slotSize, turn)
			if turn == start+1-8 {
				if s, _ := h.in.look(); s != empty {
					t.Errorf("start %d: turn %d of the lap before is not empty", start, turn)
				}
				continue
			}
			if _, err := h.Next(); !errors.Is(err, ErrPeer) {
				t.Errorf("start %d: turn %d gave %v", start, turn, err)
			}
		}
	}
}

// Positions wrap at 2^64 and nobody notices.
func TestI05Wrap(t *testing.T) {
	h, g := pair(t, Options{Geometry: small, start: math.MaxUint64 - 11})
	b := block(t, g, 10)
	for i := range uint32(100) {
		if !g.send(i, 0, b) {
			t.Fatal("no slot")
		}
		s, err := h.Next()
		if err != nil || s.ID != i {
			t.Fatal(s, err)
		}
		h.Complete(Completion{ID: i})
		if c, err := g.Next(); err != nil || c.ID != i {
			t.Fatal(c, err)
		}
	}
	if h.in.pos > 1000 || g.back.pos != h.in.pos {
		t.Errorf("it did not wrap: %d, %d", h.in.pos, g.back.pos)
	}
}

// A client that submits without taking part in the counting is cut off before the engine
// owes it more answers than there are slots.
func TestI05MoreThanSlots(t *testing.T) {
	h, g := pair(t, Options{Geometry: small})
	for i := range small.Slots + 1 {
		g.out.put(uint64(i), 0, 1)
		_, err := h.Next()
		if wrong := i == small.Slots; wrong != errors.Is(err, ErrPeer) || !wrong && err != nil {
			t.Fatalf("submission %d: %v", i, err)
		}
	}
}

// What the control page says after the start moves nothing.
func TestI05GeometryIsPrivate(t *testing.T) {
	h, g := pair(t, Options{Geometry: small})
	b := block(t, g, 10)
	for at := 0; at < 128; at += 8 {
		g.scribble(small.ArenaBytes+at, math.MaxUint64)
	}
	for i := range uint32(100) {
		if !g.send(i, 0, b) {
			t.Fatal("no slot")
		}
		if s, err := h.Next(); err != nil || s.ID != i {
			t.Fatal(s, err)
		}
		h.Complete(Completion{ID: i})
		if c, err := g.Next(); err != nil || c.ID != i {
			t.Fatal(c, err)
		}
	}
}
