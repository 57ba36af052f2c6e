package client

import (
	"context"
	"math/bits"
	"sync"
)

// memory is what all batches of a client share: so many bytes and no more. Slabs come
// in sizes of a power of two and are kept for use again.
type memory struct {
	mu      sync.Mutex // innermost
	left    int        // bytes that may still be made
	free    [64][][]byte
	changed chan struct{} // closed when a slab comes back while somebody waits
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
	class := bits.Len(uint(n - 1))
	if list := m.free[class]; len(list) > 0 {
		slab := list[len(list)-1]
		m.free[class] = list[:len(list)-1]
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
	return make([]byte, n, size)
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
	class := bits.Len(uint(cap(slab) - 1))
	m.mu.Lock()
	defer m.mu.Unlock()
	m.free[class] = append(m.free[class], slab)
	if m.changed != nil {
		close(m.changed)
		m.changed = nil
	}
}
