package client

import (
	"context"
	"math/bits"
	"sync"
)

// memory is what all batches of a client share: so many bytes and no more. Slabs come
// in sizes of a power of two and are kept for use again. While there is memory that is
// shared with the server, they are blocks of that (pool.go).
type memory struct {
	mu      sync.Mutex // innermost
	left    int        // bytes that may still be made
	free    [64][][]byte
	live    census
	shared  *pool         // nil while there is none
	pools   []*pool       // it, and those before that batches still lie in
	changed chan struct{} // closed when there may be room for somebody who waits
}

// census counts slabs that are in use, by size.
type census [64]int

func (c *census) count(slab []byte, by int) { c[bits.Len(uint(cap(slab)-1))] += by }

// largest is the size of the largest one, 0 if there is none.
func (c *census) largest() int {
	for class := len(c) - 1; class >= 0; class-- {
		if c[class] > 0 {
			return 1 << class
		}
	}
	return 0
}

func newMemory(size int) *memory { return &memory{left: size} }

// alloc returns a slab of n bytes, or of a greater capacity; nil if there is no room.
func (m *memory) alloc(n int) []byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.take(n)
}

// take is alloc. mu is held.
func (m *memory) take(n int) []byte {
	if m.shared != nil && n <= m.shared.most() {
		return m.shared.take(n)
	}
	class := bits.Len(uint(n - 1))
	if list := m.free[class]; len(list) > 0 {
		slab := list[len(list)-1]
		m.free[class] = list[:len(list)-1]
		m.live.count(slab, 1)
		return slab[:n]
	}
	size := 1 << class
	for c := len(m.free) - 1; m.left < size && c >= 0; c-- {
		m.left += len(m.free[c]) << c // of other sizes: the collector has them
		m.free[c] = nil
	}
	if m.left < size {
		return nil
	}
	m.left -= size
	slab := make([]byte, n, size)
	m.live.count(slab, 1)
	return slab
}

// await is alloc that waits until ctx ends, or quit is closed.
func (m *memory) await(ctx context.Context, quit <-chan struct{}, n int) ([]byte, error) {
	for {
		m.mu.Lock()
		slab := m.take(n)
		if slab == nil && m.changed == nil {
			m.changed = make(chan struct{})
		}
		changed := m.changed
		m.mu.Unlock()
		if slab != nil {
			return slab, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-quit:
			return nil, ErrClosed
		}
	}
}

// release gives a slab back.
func (m *memory) release(slab []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if p := m.poolOf(slab); p != nil {
		p.release(slab)
		m.retire(p)
	} else {
		class := bits.Len(uint(cap(slab) - 1))
		m.free[class] = append(m.free[class], slab)
		m.live.count(slab, -1)
	}
	if m.shared != nil {
		m.dropSpare(m.shared)
	}
	m.wake()
}

// wake has those look again who wait. mu is held.
func (m *memory) wake() {
	if m.changed != nil {
		close(m.changed)
		m.changed = nil
	}
}
