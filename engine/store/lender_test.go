package store

import (
	"math/rand/v2"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ringfence/ringfence/segfile/disk"
	"github.com/ringfence/ringfence/segfile/record"
)

// lender is memory that is mapped twice: the store writes from one mapping, and who
// lends it scribbles through the other, as another process would.
type lender struct {
	mem, other []byte

	mu    sync.Mutex
	rng   *rand.Rand
	free  []int
	sizes map[int]int // of frames that are on their way, by slot
	spoil int         // how many were scribbled over
}

const slotBytes = 1 << 20

func newLender(t testing.TB, seed uint64, slots int) *lender {
	t.Helper()
	fd, err := unix.MemfdCreate("lender", unix.MFD_CLOEXEC)
	must(t, err)
	defer unix.Close(fd)
	must(t, unix.Ftruncate(fd, int64(slots)*slotBytes))
	l := &lender{rng: rand.New(rand.NewPCG(seed, 73)), sizes: map[int]int{}}
	for _, m := range []*[]byte{&l.mem, &l.other} {
		*m, err = unix.Mmap(fd, 0, slots*slotBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		must(t, err)
		t.Cleanup(func() { _ = unix.Munmap(*m) })
	}
	for i := range slots {
		l.free = append(l.free, i)
	}
	return l
}

// lend hands b to seg in memory of the lender.
func (l *lender) lend(t testing.TB, seg *Segment, b *batch) (*flying, error) {
	t.Helper()
	arena := seg.store.Disk().Arena()
	frame := b.frame(t, arena)
	l.mu.Lock()
	slot := l.free[len(l.free)-1]
	l.free = l.free[:len(l.free)-1]
	l.mu.Unlock()
	f := &flying{b: b, seg: seg, done: make(chan struct{})}
	f.Foreign, f.Frame = true, l.mem[slot*slotBytes:][:copy(l.mem[slot*slotBytes:], frame):slotBytes]
	arena.Free(frame)
	v, err := record.Verify(f.Frame, 0, nil)
	must(t, err)
	f.Head = v.Head
	f.Done = func(*Append) {
		l.back(slot)
		close(f.done)
	}
	l.mu.Lock()
	l.sizes[slot] = len(f.Frame)
	l.mu.Unlock()
	if err := seg.Append(&f.Append); err != nil {
		l.back(slot)
		return nil, err
	}
	return f, nil
}

func (l *lender) back(slot int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.sizes, slot)
	l.free = append(l.free, slot)
}

// scribble changes a byte of some frame that is on its way: of its header, its records
// or what lies behind it in its last block. Each frame is changed once at most, or it
// might be changed back.
func (l *lender) scribble() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for slot, size := range l.sizes {
		at := l.rng.IntN(roundUp(size, disk.Block))
		switch l.rng.IntN(4) {
		case 0:
			at = l.rng.IntN(record.HeaderSize)
		case 1:
			at = roundUp(size, disk.Block) - 1
		}
		l.other[slot*slotBytes+at] ^= 1 << l.rng.IntN(8)
		delete(l.sizes, slot)
		l.spoil++
		return
	}
}
