package cp

import "maps"

// A State and its clones share whatever none of them has changed since. Every
// shared thing carries the owner that may change it in place; anybody else
// copies it first. Cloning gives both sides a new owner, so everything made
// before is nobody's and is never written again.
type owner struct{ _ byte } // a size, so that each has an address of its own

const shardBits = 9

// table is a map in 2^shardBits parts, so that a clone copies an array of
// pointers and the first change after it copies one part.
type table[K comparable, V any] struct {
	parts []*part[K, V]
	len   int
}

type part[K comparable, V any] struct {
	own *owner
	m   map[K]V
}

func (t *table[K, V]) clone() table[K, V] {
	return table[K, V]{parts: append([]*part[K, V](nil), t.parts...), len: t.len}
}

func (t *table[K, V]) get(hash uint64, k K) (v V, ok bool) {
	if t.parts == nil {
		return v, false
	}
	p := t.parts[hash>>(64-shardBits)]
	if p == nil {
		return v, false
	}
	v, ok = p.m[k]
	return v, ok
}

func (t *table[K, V]) set(own *owner, hash uint64, k K, v V) {
	m := t.writable(own, hash)
	n := len(m)
	m[k] = v
	t.len += len(m) - n
}

func (t *table[K, V]) delete(own *owner, hash uint64, k K) {
	m := t.writable(own, hash)
	n := len(m)
	delete(m, k)
	t.len += len(m) - n
}

func (t *table[K, V]) writable(own *owner, hash uint64) map[K]V {
	if t.parts == nil {
		t.parts = make([]*part[K, V], 1<<shardBits)
	}
	i := hash >> (64 - shardBits)
	switch p := t.parts[i]; {
	case p == nil:
		t.parts[i] = &part[K, V]{own: own, m: map[K]V{}}
	case p.own != own:
		t.parts[i] = &part[K, V]{own: own, m: maps.Clone(p.m)}
	}
	return t.parts[i].m
}

// all visits every entry, in no order.
func (t *table[K, V]) all(yield func(K, V) bool) {
	for _, p := range t.parts {
		if p == nil {
			continue
		}
		for k, v := range p.m {
			if !yield(k, v) {
				return
			}
		}
	}
}
