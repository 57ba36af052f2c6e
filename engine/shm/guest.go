package shm

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"time"
	"unsafe"

	"github.com/ringfence/ringfence/segfile/buddy"
)

// Guest is the client's side of a region. One goroutine at a time calls Next, Soon and
// More; the others may be called by any, until Close.
type Guest struct {
	g     Geometry
	mem   *memory
	arena *buddy.Arena
	wait  waiter

	back lane // of the goroutine that calls Next, Soon and More

	mu     sync.Mutex // guards the rest; innermost
	out    lane
	host   bell
	open   int // submissions that are not answered
	closed bool
}

// Attach maps a region that an engine made, and closes the file. g and engine, its
// incarnation, are what it said over the socket.
func Attach(f *os.File, g Geometry, engine uint64) (*Guest, error) {
	defer f.Close()
	if err := g.Check(); err != nil {
		return nil, err
	}
	st, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("shm: look at the memory that the engine sent: %w", err)
	}
	if st.Size() != int64(g.Size()) {
		return nil, breach("it sent memory of %d bytes, where %d slots and an arena of %d are %d", st.Size(), g.Slots, g.ArenaBytes, g.Size())
	}
	m, err := mapMemory(f, g.Size(), false)
	if err != nil {
		return nil, err
	}
	c := g.ArenaBytes
	switch {
	case *m.word8(c + offMagic) != magic:
		err = breach("there is no control page in the memory that it sent")
	case *m.word4(c + offVersion) != Version:
		err = breach("its memory has layout %d, this client knows %d", *m.word4(c + offVersion), Version)
	case *m.word4(c + offSlots) != uint32(g.Slots) || *m.word8(c + offArena) != uint64(g.ArenaBytes):
		err = breach("its memory says %d slots and an arena of %d bytes, it said %d and %d", *m.word4(c + offSlots), *m.word8(c + offArena), g.Slots, g.ArenaBytes)
	case *m.word8(c + offEngine) != engine:
		err = breach("its memory is of incarnation %d of an engine, it said %d", *m.word8(c + offEngine), engine)
	}
	if err != nil {
		return nil, errors.Join(err, m.unmap())
	}
	start := *m.word8(c + offStart)
	return &Guest{
		g: g, mem: m, arena: buddy.New(m.bytes[:g.ArenaBytes:g.ArenaBytes]),
		wait: newWaiter(bell{m.word4(c + offGuest)}),
		host: bell{m.word4(c + offHost)},
		out:  lane{slots: m.slots(g.submissions(), g.Slots), pos: start},
		back: lane{slots: m.slots(g.completions(), g.Slots), pos: start},
	}, nil
}

// Arena is the memory for frames, in blocks. What is submitted stays as it is until it is
// answered.
func (g *Guest) Arena() *buddy.Arena { return g.arena }

// Offset is where in the arena b begins, and whether it lies there at all.
func (g *Guest) Offset(b []byte) (uint64, bool) {
	if len(b) == 0 {
		return 0, false
	}
	off := uintptr(unsafe.Pointer(unsafe.SliceData(b))) - uintptr(unsafe.Pointer(unsafe.SliceData(g.mem.bytes)))
	return uint64(off), off < uintptr(g.g.ArenaBytes) && uintptr(len(b)) <= uintptr(g.g.ArenaBytes)-off
}

// Submit shows the engine a frame, and says whether there was a slot for it: an engine that
// sleeps sees it after Ring. A frame that is not in the arena, or does not begin at a
// multiple of Block, is a bug and panics.
func (g *Guest) Submit(id, producer uint32, frame []byte) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed || g.open == g.g.Slots {
		return false
	}
	off, ok := g.Offset(frame)
	if !ok || off%Block != 0 {
		panic("shm: a frame that does not lie where submissions may")
	}
	g.open++
	g.out.put(uint64(id)|uint64(producer)<<32, off, uint64(len(frame)))
	return true
}

// Ring wakes the engine, if it sleeps, for what was submitted.
func (g *Guest) Ring() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.closed {
		g.host.ring()
	}
}

// Next waits for the next completion. After Stop those that are there are still answered,
// and then ErrStopped.
func (g *Guest) Next() (Completion, error) {
	c, _, err := g.Soon(0)
	return c, err
}

// Soon is Next that waits for so long only; then there is none. 0 means for ever.
func (g *Guest) Soon(most time.Duration) (c Completion, ok bool, err error) {
	if err := g.wait.await(&g.back, most); err != nil {
		if errors.Is(err, errLate) {
			err = nil
		}
		return c, false, err
	}
	c = g.take()
	g.answered(1)
	return c, true, nil
}

// More takes further completions, as many as are there and all has room for. It does not
// wait.
func (g *Guest) More(all []Completion) (n int) {
	for n < len(all) {
		if s, _ := g.back.look(); s != filled {
			break // a foul one is met by Next
		}
		all[n] = g.take()
		n++
	}
	g.answered(n)
	return n
}

func (g *Guest) take() Completion {
	var w [4]uint64
	g.back.take(w[:])
	return Completion{
		ID: uint32(w[0]), Range: uint32(w[0] >> 32), First: w[1], Last: w[2], Repeats: uint32(w[3]),
	}
}

// Answered says that a submission was answered over the socket.
func (g *Guest) Answered() { g.answered(1) }

func (g *Guest) answered(n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.open -= n
}

// Stop has Next return.
func (g *Guest) Stop() { g.wait.stop() }

// Close gives the memory back. Next must have returned for good, and nobody may use blocks
// of the arena any more.
func (g *Guest) Close() error {
	g.Stop()
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
	return g.mem.unmap()
}
