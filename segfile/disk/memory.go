package disk

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/ringfence/ringfence/ring"
)

// Memories is the memory of others that queues of a disk may use besides its Arena: for
// implementations of Disk, and those who keep account of what they let use it.
type Memories struct {
	mu   sync.Mutex // guards list, and the fields of its members; innermost
	list []*Memory
}

// Memory is one of them.
type Memory struct {
	of    *Memories
	mem   []byte
	base  uintptr
	users int           // claims
	gone  bool          // takes no new ones
	idle  chan struct{} // closed when it is gone and has no users
}

// Add takes memory in. It must lie in whole blocks, and neither in the arena nor in
// what was added before.
func (m *Memories) Add(mem []byte, a *Arena) (*Memory, error) {
	base := address(mem)
	if len(mem) == 0 || len(mem)%Block != 0 || base%Block != 0 {
		return nil, fmt.Errorf("%w: memory of %d bytes at %#x is not in blocks of %d", ErrInvalid, len(mem), base, Block)
	}
	meets := func(other []byte) bool {
		at := address(other)
		return at < base+uintptr(len(mem)) && base < at+uintptr(len(other))
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if meets(a.Bytes()) || slices.ContainsFunc(m.list, func(o *Memory) bool { return meets(o.mem) }) {
		return nil, fmt.Errorf("%w: memory of %d bytes at %#x is registered already", ErrInvalid, len(mem), base)
	}
	added := &Memory{of: m, mem: mem, base: base, idle: make(chan struct{})}
	m.list = append(m.list, added)
	return added, nil
}

// All lists what there is.
func (m *Memories) All() []*Memory {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.list)
}

// Claim takes the memory that holds all of b, from a block's begin on, until Release; nil
// if there is none.
func (m *Memories) Claim(b []byte) *Memory {
	at := address(b)
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, o := range m.list {
		if at%Block == 0 && at >= o.base && at-o.base <= uintptr(len(o.mem)-len(b)) && len(b) <= len(o.mem) && !o.gone {
			o.users++
			return o
		}
	}
	return nil
}

// Bytes is all of it.
func (o *Memory) Bytes() []byte { return o.mem }

// Remove refuses new claims, waits for the end of those there are, and then takes the
// memory out. Whoever calls it again waits for the first.
func (o *Memory) Remove() {
	m := o.of
	m.mu.Lock()
	if !o.gone {
		o.gone = true
		if o.users == 0 {
			close(o.idle)
		}
	}
	m.mu.Unlock()
	<-o.idle
	m.mu.Lock()
	m.list = slices.DeleteFunc(m.list, func(x *Memory) bool { return x == o })
	m.mu.Unlock()
}

// Claims says whether op uses memory of others.
func (op *Op) Claims() bool { return op.Impl.memory != nil }

// Release ends the use of memory that Check has claimed. A queue calls it when the
// kernel has let go, and before Done.
func (op *Op) Release() {
	o := op.Impl.memory
	if o == nil {
		return
	}
	op.Impl.memory = nil
	o.Release()
}

// Release ends a claim.
func (o *Memory) Release() {
	o.of.mu.Lock()
	defer o.of.mu.Unlock()
	if o.users--; o.gone && o.users == 0 {
		close(o.idle)
	}
}

// spareBuffers is how many places a ring has for memory of others, of at most 1 GiB
// each. What finds none is written unregistered.
const spareBuffers = 64

// Register lets queue operations use memory that is not the arena's.
func (d *osDisk) Register(mem []byte) (func() error, error) {
	d.pinning.Lock()
	defer d.pinning.Unlock()
	m, err := d.memories.Add(mem, d.arena)
	if err != nil {
		return nil, err
	}
	if err := d.usable(mem); err != nil {
		m.Remove()
		return nil, err
	}
	for _, r := range d.openRings() {
		if err := pin(r, mem); err != nil {
			for _, r := range d.openRings() {
				_ = r.UnregisterBuffer(mem) // where it was registered
			}
			m.Remove()
			return nil, fmt.Errorf("disk: register memory of %d bytes: %w", len(mem), err)
		}
	}
	return func() error { return d.unregister(m) }, nil
}

// usable refuses memory that a write would meet as an error, or a read as a signal: a
// mapping that cannot be written, or one with a hole.
func (d *osDisk) usable(mem []byte) error {
	const populateWrite = 23 // MADV_POPULATE_WRITE, Linux 5.14
	err := unix.Madvise(mem, populateWrite)
	if err == nil || unix.Madvise(d.arena.Bytes()[:Block], populateWrite) != nil {
		return nil // or it is an older kernel, which cannot tell
	}
	return fmt.Errorf("%w: memory of %d bytes is not all there to be written: %w", ErrInvalid, len(mem), err)
}

func (d *osDisk) openRings() (rings []*ring.Ring) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for q := range d.queues {
		if u, ok := q.(*ringQueue); ok {
			rings = append(rings, u.r)
		}
	}
	return rings
}

// pin registers memory with a ring. Where there is no place, or the limit of locked
// memory is in the way, it is used unregistered.
func pin(r *ring.Ring, mem []byte) error {
	err := r.RegisterBuffer(mem)
	if errors.Is(err, ring.ErrMemlock) || errors.Is(err, ring.ErrNoSlot) || errors.Is(err, ring.ErrClosed) {
		return nil
	}
	return err
}

// unregister waits until no operation uses the memory, and has the kernel let go of it.
func (d *osDisk) unregister(m *Memory) error {
	m.Remove()
	d.pinning.Lock()
	defer d.pinning.Unlock()
	var errs []error
	for _, r := range d.openRings() {
		err := r.UnregisterBuffer(m.mem)
		if errors.Is(err, ring.ErrInvalid) || errors.Is(err, ring.ErrClosed) {
			continue // it was not registered there, or is not any more
		}
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("disk: unregister memory of %d bytes: %w", len(m.mem), err)
	}
	return nil
}
