package engine

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ringfence/ringfence/engine/server"
	"github.com/ringfence/ringfence/segfile/record"
)

// sharedMemory is memory that is mapped twice: for the engine, and for the client who
// lends frames from it.
type sharedMemory struct {
	mem, client []byte
	slot        int // bytes of each

	mu   sync.Mutex
	free []int
	rng  *rand.Rand
	prey map[int]int // size of the frame, by slot that is lent and about to be scribbled over
}

func newSharedMemory(t testing.TB, slots, size int) *sharedMemory {
	t.Helper()
	fd, err := unix.MemfdCreate("lent", unix.MFD_CLOEXEC)
	must(t, err)
	defer unix.Close(fd)
	must(t, unix.Ftruncate(fd, int64(slots*size)))
	m := &sharedMemory{slot: size, rng: rand.New(rand.NewPCG(1, 10)), prey: map[int]int{}}
	for _, b := range []*[]byte{&m.mem, &m.client} {
		*b, err = unix.Mmap(fd, 0, slots*size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		must(t, err)
		t.Cleanup(func() { _ = unix.Munmap(*b) })
	}
	for i := range slots {
		m.free = append(m.free, i)
	}
	return m
}

// put copies a frame into a slot; back gives the slot back. One in so many is to be
// scribbled over, 0 for none.
func (m *sharedMemory) put(frame []byte, oneIn int) (lent []byte, slot int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	slot = m.free[len(m.free)-1]
	m.free = m.free[:len(m.free)-1]
	copy(m.client[slot*m.slot:], frame)
	if oneIn > 0 && m.rng.IntN(oneIn) == 0 {
		m.prey[slot] = len(frame)
	}
	at := slot * m.slot
	return m.mem[at : at+len(frame) : at+m.slot], slot
}

func (m *sharedMemory) back(slot int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.prey, slot)
	m.free = append(m.free, slot)
}

// scribble changes a byte of a frame that is lent, once: twice might change it back.
func (m *sharedMemory) scribble() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for slot, size := range m.prey {
		at := m.rng.IntN(size)
		if m.rng.IntN(4) == 0 {
			at = m.rng.IntN(record.HeaderSize)
		}
		m.client[slot*m.slot+at] ^= 1 << m.rng.IntN(8)
		delete(m.prey, slot)
		return
	}
}

// lender lends frames of one producer and counts what is released.
type lender struct {
	testing.TB
	m *sharedMemory
	p server.Producer

	oneIn int // is scribbled over; 0 for none

	released atomic.Int64
	lent     int64
}

// lend lends a frame; done hears the outcome, after the memory is released.
func (l *lender) lend(frame []byte, done func(Placement, error)) error {
	l.Helper()
	b, slot := l.m.put(frame, l.oneIn)
	freed := make(chan struct{})
	f, err := l.p.Lend(b, func() {
		l.released.Add(1)
		l.m.back(slot)
		close(freed) // panics if it is called twice
	})
	if err != nil {
		l.m.back(slot)
		return err
	}
	l.lent++
	err = f.Send(within(l), false, func(pl Placement, err error) {
		select {
		case <-freed:
		default:
			l.Error("told of the outcome before the memory is released")
		}
		done(pl, err)
	})
	if err != nil {
		f.Discard()
	}
	return err
}

// wait lends a frame and waits for the outcome.
func (l *lender) wait(frame []byte) (pl Placement, err error) {
	l.Helper()
	over := make(chan struct{})
	if serr := l.lend(frame, func(got Placement, gerr error) { pl, err = got, gerr; close(over) }); serr != nil {
		return pl, serr
	}
	soon(l, "a lent frame's outcome", func() { <-over })
	return pl, err
}
