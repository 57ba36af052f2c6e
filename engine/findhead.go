package engine

import (
	"context"
	"errors"
	"time"

	"github.com/ringfence/ringfence/cp"
	"github.com/ringfence/ringfence/engine/frontend"
	"github.com/ringfence/ringfence/engine/store"
)

const (
	// headPatience is how long a lane looks for a write head before what waits fails.
	headPatience = 10 * time.Second
	headPause    = 5 * time.Millisecond // between two attempts; doubles up to a second
)

// find starts a goroutine that finds the lane's write head, unless one is at it. mu is held.
func (l *lane) find() {
	if l.finding {
		return
	}
	if l.p.ctx.Err() != nil {
		l.failAll(ErrClosed) // given up; nobody waits for tasks any more
		return
	}
	l.finding = true
	l.p.tasks.Go(l.findHead)
}

// findMemory starts a goroutine that waits for the lifeboat, moves the lane's first batch
// into it and goes on sending. mu is held.
func (l *lane) findMemory() {
	p := l.p
	if p.ctx.Err() != nil {
		l.failAll(ErrClosed)
		return
	}
	l.finding = true
	p.tasks.Go(func() {
		var slab []byte
		select {
		case slab = <-p.e.lifeboat:
		case <-p.ctx.Done():
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		l.finding = false
		switch {
		case slab == nil:
			l.failAll(ErrClosed)
		case len(l.waiting) > 0 && l.waiting[0].onHeap && l.waiting[0].frame != nil:
			l.waiting[0].move(slab)
			l.waiting[0].aboard = true
		default:
			p.e.lifeboat <- slab // the ranges changed meanwhile: nobody needs it here
		}
		l.settle()
		l.send(nil)
		p.changed.Broadcast()
	})
}

// findHead fences the last head if it still has to be, opens or adopts the next one, and
// goes on sending. If the range was split or merged, the producer routes anew. It runs
// while l.finding is set, and clears it.
func (l *lane) findHead() {
	p := l.p
	ctx, cancel := context.WithTimeout(p.ctx, headPatience)
	defer cancel()
	pause := headPause
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		for l.flying > 0 {
			p.changed.Wait() // for the store to answer all batches in flight
		}
		l.putBack()
		if len(l.waiting) == 0 {
			l.closeOpen()
		}
		if len(l.waiting) == 0 {
			break
		}
		if l.retired {
			p.reroute()
			break
		}
		b := l.waiting[0]
		info, old := b.routing(), l.head
		if l.failed != nil {
			old = l.failed
		}
		p.mu.Unlock()
		head, plan, err := p.e.nextHead(ctx, p.topic, l.id, info, old)
		p.mu.Lock()
		if err == nil && plan.Range == l.id {
			l.head, l.failed = head, nil
			if len(l.waiting) > 0 && l.waiting[0] == b { // else the ranges changed meanwhile
				b.plan, b.isPlanned = plan, true
			}
			break
		}
		if err == nil || moved(err) {
			p.reroute()
			break
		}
		if p.ctx.Err() != nil {
			err = ErrClosed
		}
		if !frontend.Retryable(err) && !errors.Is(err, store.ErrOverloaded) || ctx.Err() != nil {
			l.failAll(err)
			break
		}
		p.mu.Unlock()
		time.Sleep(pause)
		pause = min(2*pause, time.Second)
		p.mu.Lock()
	}
	l.finding = false
	l.settle()
	l.send(nil)
	p.changed.Broadcast()
}

// moved says whether an error means that the range was split, merged or sealed.
func moved(err error) bool {
	return errors.Is(err, frontend.ErrStraddles) || errors.Is(err, cp.ErrRangeSealed) || errors.Is(err, cp.ErrNoSuchRange)
}

// failAll answers everything that waits on the lane, in order.
func (l *lane) failAll(err error) {
	for len(l.waiting) > 0 {
		l.p.conclude(l.pop(), Placement{}, err)
	}
}
