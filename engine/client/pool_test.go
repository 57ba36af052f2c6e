package client

import (
	"bytes"
	"os"
	"syscall"
	"testing"

	"github.com/ringfence/ringfence/engine/shm"
)

// sharedWith is memory that a server made, as the client has it.
func sharedWith(t *testing.T, bytes int) *shm.Guest {
	t.Helper()
	_, guest := sharedPair(t, bytes)
	return guest
}

func sharedPair(t *testing.T, bytes int) (*shm.Host, *shm.Guest) {
	t.Helper()
	g := shm.Geometry{ArenaBytes: bytes, Slots: 8}
	h, err := shm.Create(shm.Options{Geometry: g})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.Close() })
	fd, err := syscall.Dup(int(h.File().Fd()))
	if err != nil {
		t.Fatal(err)
	}
	guest, err := shm.Attach(os.NewFile(uintptr(fd), "shared"), g, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { guest.Close() })
	return h, guest
}

// Batches are built where the connection reads them. Those of a connection before, and of
// the time between, are copied to be sent; and the largest of them finds room although
// others have taken all there is.
func TestBatchesMoveToTheNextMemory(t *testing.T) {
	m := newMemory(1 << 20)
	first := m.adopt(sharedWith(t, 1<<20))
	if first.spare != nil {
		t.Error("the first memory keeps room for batches of others")
	}
	old := m.alloc(100_000)
	copy(old, "built in the first")
	if m.poolOf(old) != first {
		t.Fatal("a batch does not lie in the memory of the connection")
	}
	if at, copied := m.place(first, old); &at[0] != &old[0] || copied != nil {
		t.Error("a batch that lies there was copied")
	}
	m.abandon(first)
	between := m.alloc(200_000)
	copy(between, "built in between")
	if m.poolOf(between) != nil {
		t.Fatal("a batch is built in memory of a connection that is gone")
	}

	second := m.adopt(sharedWith(t, 1<<20))
	var all [][]byte
	for b := m.alloc(60_000); b != nil; b = m.alloc(60_000) {
		all = append(all, b)
	}
	for _, frame := range [][]byte{old, between} {
		at, copied := m.place(second, frame)
		if at == nil || !bytes.Equal(at, frame) || m.poolOf(at) != second {
			t.Fatalf("there is no room for %.20q", frame)
		}
		if again, _ := m.place(second, frame); again != nil {
			t.Error("there is room for two")
		}
		m.displace(second, copied)
		m.release(frame)
	}
	if second.spare != nil {
		t.Error("room is kept although all batches lie there")
	}
	if len(m.pools) != 1 {
		t.Errorf("%d memories are kept", len(m.pools))
	}
	if b := m.alloc(60_000); b == nil {
		t.Error("the room that was kept is not used")
	} else {
		m.release(b)
	}
	for _, b := range all {
		m.release(b)
	}
	m.abandon(second)
	if len(m.pools) != 0 || m.live.largest() != 0 {
		t.Errorf("%d memories are kept, %d bytes", len(m.pools), m.live.largest())
	}
}

// A batch that is larger than any of the memory's blocks is built elsewhere, and has no
// room there.
func TestBatchLargerThanTheMemory(t *testing.T) {
	m := newMemory(1 << 20)
	p := m.adopt(sharedWith(t, 64<<10))
	b := m.alloc(100_000)
	if b == nil || m.poolOf(b) != nil {
		t.Fatal("it was built there")
	}
	if at, _ := m.place(p, b); at != nil {
		t.Error("it has room there")
	}
	m.release(b)
	m.abandon(p)
}
