package server

import (
	"sync/atomic"

	"github.com/ringfence/ringfence/engine/wire"
)

type protocolName interface {
	wire.Key | wire.Code
	String() string
}

// named counts by the names of the protocol, which are few: a client cannot add any.
type named[K protocolName] struct {
	by    map[K]*atomic.Int64 // filled once
	other atomic.Int64        // what has no name
}

func countNamed[K protocolName](all []K) *named[K] {
	n := &named[K]{by: make(map[K]*atomic.Int64, len(all))}
	for _, k := range all {
		n.by[k] = new(atomic.Int64)
	}
	return n
}

func (n *named[K]) add(k K) {
	if c := n.by[k]; c != nil {
		c.Add(1)
	} else {
		n.other.Add(1)
	}
}

// read is the sum of all, and what each came to.
func (n *named[K]) read() (sum int64, by map[string]int64) {
	by = map[string]int64{"other": n.other.Load()}
	sum = by["other"]
	for k, c := range n.by {
		by[k.String()] = c.Load()
		sum += by[k.String()]
	}
	return sum, by
}
