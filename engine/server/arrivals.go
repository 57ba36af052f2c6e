package server

import (
	"slices"
	"sync"
	"time"

	"github.com/ringfence/ringfence/engine/wire"
)

// arrivals are the connections with a request on its way that was not read whole. It
// keeps its memory for as long as its client takes, so whoever sends slowly could leave
// none to the others: where memory is short, those go that have been at it longest.
type arrivals struct {
	mu   sync.Mutex // innermost but for what stops a connection
	list []arrival  // by since
}

type arrival struct {
	c     *conn
	since time.Time
}

// slowArrival is for how long a request may be on its way however short memory is. Who
// sends 1 MiB in it has a line of 8 Mbit/s.
const slowArrival = time.Second

// begin notes that a connection waits for the rest of a request, until end is called.
func (a *arrivals) begin(c *conn) (end func()) {
	c.arriving.Store(0)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.list = append(a.list, arrival{c, time.Now()})
	return func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		if i := slices.IndexFunc(a.list, func(o arrival) bool { return o.c == c }); i >= 0 {
			a.list = slices.Delete(a.list, i, i+1)
		}
	}
}

// cutOff ends the connections that have been at a request longest, and too long, as many as
// have n bytes. It does not wait until these are given back: who needs them comes again.
func (a *arrivals) cutOff(n int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	late := time.Now().Add(-slowArrival)
	gone := 0
	for _, o := range a.list {
		if n <= 0 || o.since.After(late) {
			break
		}
		n -= o.c.arriving.Load()
		gone++
		o.c.stop(refusal(wire.CodeOverloaded, "a request that has been on its way for %s while those of all clients take more than %d bytes: send it faster",
			time.Since(o.since).Round(time.Millisecond), o.c.s.opts.TotalBytes))
	}
	a.list = slices.Delete(a.list, 0, gone)
}
