package cp_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/ringfence/ringfence/cp"
	"pgregory.net/rapid"
)

func TestRing(t *testing.T) {
	var empty cp.Ring
	if _, ok := empty.Route("logs"); ok || empty.Len() != 0 {
		t.Fatal("an empty ring has a vnode")
	}
	if _, ok := empty.Home(); ok {
		t.Fatal("an empty ring has a home")
	}
	r := cp.NewRing(4)
	for i, v := range r.Vnodes() {
		if v != (cp.Vnode{ID: cp.VnodeID(i + 1), Token: uint32(i) << 30}) {
			t.Fatalf("vnode %d is %+v", i, v)
		}
	}
	if id, ok := r.Home(); !ok || id != 1 {
		t.Fatalf("home is %d, %v", id, ok)
	}
	one := cp.NewRing(1)
	if id, ok := one.Route("anything"); !ok || id != 1 {
		t.Fatalf("one vnode owns everything, not %d", id)
	}
	for _, c := range []struct {
		id    cp.VnodeID
		token uint64
		err   error
	}{
		{1, 1 << 32, cp.ErrVnodeToken}, {1, 1 << 30, cp.ErrVnodeExists}, {0, 5, cp.ErrVnodeExists}, {9, 1 << 30, cp.ErrTokenTaken}, {9, 5, nil},
	} {
		next, err := r.Add(c.id, c.token)
		if !errors.Is(err, c.err) || r.Len() != 4 || (err == nil) != (next.Len() == 5) {
			t.Fatalf("adding %d at %d: %v", c.id, c.token, err)
		}
	}
	if _, err := r.Remove(9); !errors.Is(err, cp.ErrNoSuchVnode) {
		t.Fatalf("removing an absent vnode: %v", err)
	}
	for _, n := range []int{0, -1, 1<<16 + 1} {
		if !panics(func() { cp.NewRing(n) }) {
			t.Errorf("a ring of %d vnodes", n)
		}
	}
}

func panics(f func()) (did bool) {
	defer func() { did = recover() != nil }()
	f()
	return false
}

// Where a topic lives is part of what is stored: these never change.
func TestRingVectors(t *testing.T) {
	r := cp.NewRing(4)
	for name, want := range map[string]cp.VnodeID{"logs": 3, "events": 3, "a": 1, "": 2} {
		if got, _ := r.Route(name); got != want {
			t.Errorf("%q lives on %d, want %d", name, got, want)
		}
	}
}

// H11: a vnode that joins takes topics from one other vnode and moves no other;
// taking it away again gives them back.
func TestH11_RingGrows(t *testing.T) {
	moved := 0
	checkUntil(t, "a topic that moves", &moved, func(t *rapid.T) {
		before := cp.NewRing(rapid.IntRange(1, 8).Draw(t, "vnodes"))
		after, err := before.Add(99, uint64(rapid.Uint32().Draw(t, "token")))
		if errors.Is(err, cp.ErrTokenTaken) {
			return
		}
		from := cp.VnodeID(0)
		for i := range 500 {
			name := fmt.Sprintf("topic-%d", i)
			old, _ := before.Route(name)
			now, _ := after.Route(name)
			if old == now {
				continue
			}
			if moved++; now != 99 || from != 0 && old != from {
				t.Fatalf("%s moved from %d to %d, others from %d", name, old, now, from)
			}
			from = old
		}
		back, err := after.Remove(99)
		if err != nil || fmt.Sprint(back) != fmt.Sprint(before) {
			t.Fatalf("ring is %v, want %v (%v)", back, before, err)
		}
		if home, _ := after.Home(); home != 1 {
			t.Fatalf("the policies moved to vnode %d", home)
		}
	})
}

// Topics spread over the vnodes about evenly.
func TestRingBalance(t *testing.T) {
	r := cp.NewRing(4)
	count := map[cp.VnodeID]int{}
	for i := range 100_000 {
		id, _ := r.Route(fmt.Sprintf("topic-%d", i))
		count[id]++
	}
	for id, n := range count {
		if n < 22_000 || n > 28_000 {
			t.Errorf("vnode %d has %d of 100000 topics", id, n)
		}
	}
}
