package client

import (
	"slices"

	"github.com/ringfence/ringfence/engine/shm"
)

// pool is the memory of one connection to the server, for batches to be built in. The
// memory's mu guards it. When the connection ends, batches go on to lie in it: it is given
// back after the last of them, and nobody builds new ones there.
type pool struct {
	guest *shm.Guest
	live  census
	dead  bool

	// Batches that lie elsewhere, because they were built while there was no connection
	// or on another one, are copied here to be sent. If there is no room for one there is
	// this, one at a time, so that those that wait behind it never keep it from going.
	spare []byte
	used  bool
}

// most is the size of the largest batch.
func (p *pool) most() int { return p.guest.Arena().Largest() }

func (p *pool) take(n int) []byte {
	b, ok := p.guest.Arena().Alloc(n)
	if !ok {
		return nil
	}
	p.live.count(b, 1)
	return b
}

func (p *pool) release(b []byte) {
	p.live.count(b, -1)
	p.guest.Arena().Free(b)
}

// adopt has batches built in the memory of a connection from now on.
func (m *memory) adopt(g *shm.Guest) *pool {
	m.mu.Lock()
	defer m.mu.Unlock()
	p := &pool{guest: g}
	if n := m.elsewhere(p); n > 0 {
		p.spare = p.take(min(n, p.most()))
	}
	m.shared = p
	m.pools = append(m.pools, p)
	m.wake()
	return p
}

// abandon is for a pool whose connection has ended: the server does not read it any more
// for anybody who would hear of it.
func (m *memory) abandon(p *pool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	p.dead = true
	m.dropSpare(p)
	if m.shared == p {
		m.shared = nil
	}
	m.retire(p)
	m.wake()
}

// elsewhere is the size of the largest slab that is in use and not in p. mu is held.
func (m *memory) elsewhere(p *pool) int {
	n := m.live.largest()
	for _, o := range m.pools {
		if o != p {
			n = max(n, o.live.largest())
		}
	}
	return n
}

// retire gives a pool back that nobody needs any more. mu is held.
func (m *memory) retire(p *pool) {
	if !p.dead || p.live.largest() > 0 {
		return
	}
	m.pools = slices.DeleteFunc(m.pools, func(o *pool) bool { return o == p })
	_ = p.guest.Close() // it only unmaps
}

// poolOf is where a slab lies, nil if it is shared with nobody. mu is held.
func (m *memory) poolOf(slab []byte) *pool {
	for _, p := range m.pools {
		if _, ok := p.guest.Offset(slab); ok {
			return p
		}
	}
	return nil
}

// place answers where a frame lies in p, copied there if it was not. Without room it
// answers nil, and there will be some when something that lies there is answered.
func (m *memory) place(p *pool, frame []byte) (at, copied []byte) {
	if _, ok := p.guest.Offset(frame); ok {
		return frame, nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case p.dead:
		return nil, nil
	case p.spare != nil && !p.used && len(frame) <= cap(p.spare):
		at, p.used = p.spare[:len(frame)], true
	default:
		if at = p.take(len(frame)); at == nil {
			return nil, nil
		}
	}
	copy(at, frame)
	return at, at
}

// displace gives the memory of a copy back.
func (m *memory) displace(p *pool, copied []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(p.spare) > 0 && &copied[0] == &p.spare[0] {
		p.used = false
	} else {
		p.release(copied)
	}
	m.dropSpare(p)
	m.wake()
}

// dropSpare gives the spare memory back once no batch needs it any more. mu is held.
func (m *memory) dropSpare(p *pool) {
	if p.spare != nil && !p.used && (p.dead || m.elsewhere(p) == 0) {
		p.release(p.spare)
		p.spare = nil
	}
}
