package store

import (
	"sync"
	"sync/atomic"

	"github.com/ringfence/ringfence/segfile/disk"
)

// A driver is one disk.Queue with its two roles. The submitter calls Push and
// Submit, the reaper calls Wait; each role is held by one goroutine at a time and
// passed on under a lock. The resident goroutine reaps whenever something is in
// flight and nobody who waits for it does.
type driver struct {
	q disk.Queue

	mu      sync.Mutex // guards reaping and, in a shard, its segments' queues; never held across I/O
	reaping bool
	closed  bool
	idle    *sync.Cond // once closed: a role was given back

	// settle runs on the reaper after each Wait, without mu, with what Done left
	// behind. Set once.
	settle func()

	kick chan struct{} // wakes the resident; holds one
	quit chan struct{} // closed to end the resident
	gone chan struct{} // closed when the resident has returned
}

func (d *driver) start(q disk.Queue, settle func()) {
	d.q, d.settle, d.idle = q, settle, sync.NewCond(&d.mu)
	d.kick, d.quit, d.gone = make(chan struct{}, 1), make(chan struct{}), make(chan struct{})
	go d.resident()
}

// wakeResident makes the resident look for work. Never blocks.
func (d *driver) wakeResident() {
	select {
	case d.kick <- struct{}{}:
	default:
	}
}

func (d *driver) resident() {
	defer close(d.gone)
	for {
		select {
		case <-d.kick:
			d.reapWhile(func() bool { return d.q.InFlight() > 0 })
		case <-d.quit:
			return
		}
	}
}

// reapWhile takes the reaper role, if it is free, and reaps as long as more says
// so. Reports whether it had the role.
func (d *driver) reapWhile(more func() bool) bool {
	d.mu.Lock()
	if d.reaping {
		d.mu.Unlock()
		return false
	}
	d.reaping = true
	for more() {
		d.mu.Unlock()
		_, _ = d.q.Wait(1) // an error of the queue itself reaches each operation's Done
		d.settle()
		d.mu.Lock()
	}
	d.reaping = false
	d.idle.Broadcast()
	left := d.q.InFlight() > 0
	d.mu.Unlock()
	if left {
		d.wakeResident()
	}
	return true
}

// A gate is what one goroutine waits on. It is used again after reset. Only done
// tells that it was released; what is in open is a hint to look again, and may be
// left from an earlier use.
type gate struct {
	done atomic.Bool
	open chan struct{} // holds one
}

func (g *gate) reset() {
	g.done.Store(false)
	if g.open == nil {
		g.open = make(chan struct{}, 1)
	}
}

func (g *gate) release() {
	g.done.Store(true)
	select {
	case g.open <- struct{}{}:
	default:
	}
}

// await returns when g is released, reaping meanwhile if nobody else does.
func (d *driver) await(g *gate) {
	if g.done.Load() && d.q.InFlight() > 0 {
		d.wakeResident() // what the caller started for others; it will not reap now
	}
	for !g.done.Load() {
		// Where there is nothing to reap, it was not submitted yet, or is about to be
		// released.
		if !d.reapWhile(func() bool { return !g.done.Load() && d.q.InFlight() > 0 }) || !g.done.Load() {
			<-g.open
		}
	}
}

// drive reaps until g is released, if nobody else does.
func (d *driver) drive(g *gate) {
	if g.done.Load() && d.q.InFlight() > 0 {
		d.wakeResident() // what the caller started for others; it will not reap now
	}
	// Who reaps now looks again before it stops.
	d.reapWhile(func() bool { return !g.done.Load() && d.q.InFlight() > 0 })
}

// halt lets what is on its way end, as busy tells under mu, and keeps the reaper
// role: nobody waits for the queue any more, which the caller then closes. Reports
// whether it was the first to do so.
func (d *driver) halt(busy func() bool) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return false
	}
	d.closed = true
	for d.reaping || busy() {
		if d.reaping || d.q.InFlight() == 0 {
			d.idle.Wait()
			continue
		}
		d.mu.Unlock()
		d.reapWhile(func() bool { return d.q.InFlight() > 0 })
		d.mu.Lock()
	}
	d.reaping = true
	close(d.quit)
	return true
}
