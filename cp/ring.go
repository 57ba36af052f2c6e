package cp

import (
	"fmt"
	"slices"

	"github.com/zeebo/xxh3"
)

// VnodeID names a vnode, one Raft group. It is never 0.
type VnodeID uint64

// Vnode is a vnode's place on the ring: it owns the hashes behind its
// predecessor's token up to its own.
type Vnode struct {
	ID    VnodeID
	Token uint32
}

// Ring says which vnode a topic lives on. The zero value is an empty ring. A
// Ring is immutable: changes answer another one.
type Ring struct {
	vnodes []Vnode // by token
}

// NewRing returns a ring of n vnodes, 1 to n, at evenly spaced tokens: every
// node that starts with the same n has the same ring. It panics if n is not 1
// to 65536.
func NewRing(n int) Ring {
	if n < 1 || n > 1<<16 {
		panic(fmt.Sprintf("cp: a ring of %d vnodes", n))
	}
	var r Ring
	for i := range uint64(n) {
		r.vnodes = append(r.vnodes, Vnode{ID: VnodeID(i + 1), Token: uint32(i << 32 / uint64(n))})
	}
	return r
}

// Vnodes lists the vnodes by token. The slice is the caller's.
func (r Ring) Vnodes() []Vnode { return slices.Clone(r.vnodes) }

// Len is the number of vnodes.
func (r Ring) Len() int { return len(r.vnodes) }

// Route is the vnode a topic of that name lives on, with its ranges, segments
// and groups; false on an empty ring.
func (r Ring) Route(topic string) (VnodeID, bool) {
	if len(r.vnodes) == 0 {
		return 0, false
	}
	i, _ := r.find(hashName(topic))
	return r.vnodes[i%len(r.vnodes)].ID, true // behind the last token begins the first arc
}

// Home is the vnode that keeps the policies: the one with the smallest token,
// which no vnode that joins later can take from it once token 0 is there. False
// on an empty ring.
func (r Ring) Home() (VnodeID, bool) {
	if len(r.vnodes) == 0 {
		return 0, false
	}
	return r.vnodes[0].ID, true
}

// Add returns the ring with one more vnode, which takes over a part of its
// successor's arc and of no other. Refusals, in order: ErrVnodeToken,
// ErrVnodeExists, ErrTokenTaken.
func (r Ring) Add(id VnodeID, token uint64) (Ring, error) {
	if token >= keyspace {
		return r, ErrVnodeToken
	}
	if id == 0 || slices.ContainsFunc(r.vnodes, func(v Vnode) bool { return v.ID == id }) {
		return r, ErrVnodeExists
	}
	i, taken := r.find(uint32(token))
	if taken {
		return r, ErrTokenTaken
	}
	return Ring{vnodes: slices.Insert(r.Vnodes(), i, Vnode{ID: id, Token: uint32(token)})}, nil
}

// Remove returns the ring without a vnode, whose arc goes to its successor.
// Refusal: ErrNoSuchVnode.
func (r Ring) Remove(id VnodeID) (Ring, error) {
	i := slices.IndexFunc(r.vnodes, func(v Vnode) bool { return v.ID == id })
	if i < 0 {
		return r, ErrNoSuchVnode
	}
	return Ring{vnodes: slices.Delete(r.Vnodes(), i, i+1)}, nil
}

// find is the place of the first vnode with this token or a larger one.
func (r Ring) find(hash uint32) (int, bool) {
	return slices.BinarySearchFunc(r.vnodes, hash, func(v Vnode, hash uint32) int {
		switch {
		case v.Token < hash:
			return -1
		case v.Token > hash:
			return 1
		}
		return 0
	})
}

// hashName places a topic on the ring. It decides where metadata lies, so it
// never changes.
func hashName(topic string) uint32 { return uint32(xxh3.HashString(topic) >> 32) }
