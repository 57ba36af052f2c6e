package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ringfence/ringfence/cp"
	"github.com/ringfence/ringfence/engine/frontend"
	"github.com/ringfence/ringfence/engine/store"
	"github.com/ringfence/ringfence/segfile/record"
)

const (
	// headPatience is how long a lane looks for a write head before what waits fails.
	headPatience = 10 * time.Second
	headPause    = 5 * time.Millisecond // between two looks; doubles up to a second
)

// find makes a goroutine find the lane's write head. mu is held.
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

// findMemory makes a goroutine wait for the lifeboat, for the lane's first batch to
// leave in, and send on. mu is held.
func (l *lane) findMemory() {
	l.finding = true
	p := l.p
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
			p.e.lifeboat <- slab // the ranges changed meanwhile
		}
		l.settle()
		l.send(nil)
		p.changed.Broadcast()
	})
}

// findHead fences what is left of the last head, opens or adopts the next one and
// sends on. If the range is no longer there, the producer routes anew. It owns
// l.finding.
func (l *lane) findHead() {
	p := l.p
	ctx, cancel := context.WithTimeout(p.ctx, headPatience)
	defer cancel()
	pause := headPause
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		for l.flying > 0 {
			p.changed.Wait() // every batch that flies is answered
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
			if len(l.waiting) > 0 && l.waiting[0] == b { // or the ranges changed
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

// moved says that the range was split, merged or sealed.
func moved(err error) bool {
	return errors.Is(err, frontend.ErrStraddles) || errors.Is(err, cp.ErrRangeSealed) || errors.Is(err, cp.ErrNoSuchRange)
}

// failAll answers everything that waits on the lane, in order.
func (l *lane) failAll(err error) {
	for len(l.waiting) > 0 {
		l.p.conclude(l.pop(), Placement{}, err)
	}
}

// partAt is where a record of a batch went that was taken apart.
type partAt struct {
	part *batch
	at   int
}

// reroute gives what retired lanes hold to the lanes that took over their keys.
// The records are built into new batches in the order of their sequences: a range
// that two others were merged into has seen neither of theirs, and would take a
// lower sequence for one that it has. Nobody adds records meanwhile, so these stay
// in front. mu is held, and released while batches are built.
func (p *Producer) reroute() {
	for p.moving {
		p.changed.Wait()
	}
	p.moving = true
	defer func() {
		p.moving = false
		p.changed.Broadcast()
	}()
	before := slices.Clone(p.lanes)
	if err := p.route(); err != nil {
		for _, l := range before {
			l.closeOpen()
			l.failAll(err)
		}
		return
	}
	var held []*batch
	for _, l := range before {
		if l.retired {
			held = append(held, l.takeAll()...)
		}
	}
	if len(held) == 0 {
		return
	}
	targets := slices.Clone(p.lanes)
	p.mu.Unlock()
	built, err := p.rebuild(held, targets)
	p.mu.Lock()
	for _, b := range built {
		b.lane.waiting = append(b.lane.waiting, b)
	}
	p.failApart(held, err)
	for _, to := range targets {
		if len(to.waiting) > 0 {
			to.find()
		}
	}
}

// failApart fails batches that could not be taken apart whole: at once, or with
// the parts that were built.
func (p *Producer) failApart(held []*batch, err error) {
	if err == nil {
		return
	}
	for _, b := range held {
		if b.left == 0 {
			p.conclude(b, Placement{}, err)
		} else {
			b.err = err
		}
	}
}

// takeAll empties a retired lane once nothing of it flies. The lanes that took over
// its keys start without a predecessor: the range of each knows the last sequence of
// its own slice of the keys, which may be less than the last that landed here. mu is
// held.
func (l *lane) takeAll() []*batch {
	for l.flying > 0 {
		l.p.changed.Wait()
	}
	l.putBack()
	l.closeOpen()
	held := l.waiting
	l.waiting = nil
	return held
}

// loose is a record on its way from a batch taken apart to a new one.
type loose struct {
	rec   record.Record
	seq   uint64
	lane  *lane
	whole *batch
	at    int
}

// rebuild takes batches apart and builds their records into new ones. A batch whose
// frame cannot be read is left out, which only a defect could cause, and fails. mu
// is not held; nobody else has the batches.
//
// It waits for no memory of the arena and gives that of the old batches back:
// several producers that do so at once would otherwise wait for each other. The new
// batches lie on the heap until they leave. What is left then is that a batch needs
// memory to leave which those behind it hold: it leaves in the lifeboat.
func (p *Producer) rebuild(held []*batch, lanes []*lane) ([]*batch, error) {
	var all []loose
	size := p.opts.BatchBytes
	for _, b := range held {
		list, err := p.takeApart(b, lanes)
		if err != nil {
			return nil, err
		}
		all = append(all, list...)
		size = max(size, cap(b.slab)) // a record fits where it was before
	}
	slices.SortStableFunc(all, func(a, b loose) int { return cmp.Compare(a.seq, b.seq) })
	var built []*batch
	for _, l := range lanes {
		open := (*batch)(nil)
		for i := range all {
			r := &all[i]
			if r.lane != l {
				continue
			}
			for {
				if open == nil {
					open = p.partFor(l, size)
					built = append(built, open)
				}
				err := open.build.Add(&r.rec, r.seq)
				if err == nil {
					break
				}
				if !errors.Is(err, record.ErrBatchFull) {
					return built, err
				}
				open = nil
			}
			r.whole.where[r.at] = partAt{open, open.build.Len() - 1}
			if n := len(open.wholes); n == 0 || open.wholes[n-1] != r.whole {
				if !slices.Contains(open.wholes, r.whole) {
					open.wholes = append(open.wholes, r.whole)
					open.waiters.Add(1) // until the whole is done with it
					r.whole.parts = append(r.whole.parts, open)
					r.whole.left++
				}
			}
		}
	}
	return built, nil
}

func (p *Producer) partFor(l *lane, size int) *batch {
	p.mu.Lock()
	b := p.spareBatch()
	p.mu.Unlock()
	b.lane, b.onHeap = l, true
	b.fill(make([]byte, size))
	return b
}

// takeApart lists a batch's records with the lanes they go to, in a copy of its
// frame: its own memory goes back.
func (p *Producer) takeApart(b *batch, lanes []*lane) ([]loose, error) {
	if b.frame == nil {
		// It names no predecessor, and so asks nothing of its lane, which others may
		// be putting back batches on.
		frame, err := b.build.Finish(0)
		if err != nil {
			return nil, err
		}
		if b.info, err = record.ParseHead(frame, 0); err != nil {
			return nil, err
		}
		b.frame = b.slab[:len(frame)]
	}
	b.info.Base, b.info.Durable = 0, 0
	lent := b.loan != nil
	if !b.onHeap {
		frame := slices.Clone(b.frame)
		p.free(b)
		b.slab, b.frame, b.onHeap = frame, frame, true
	}
	b.info.Put(b.frame, 0)
	view, err := record.Verify(b.frame, 0, nil)
	if err != nil && lent {
		err = fmt.Errorf("%w: %w", ErrChanged, err)
	}
	if err != nil {
		return nil, err
	}
	list := make([]loose, view.Len())
	b.where = make([]partAt, view.Len())
	for i := range list {
		to := laneAt(lanes, view.Position(i))
		list[i] = loose{rec: view.Record(i), seq: view.Seq(i), lane: to, whole: b, at: i}
	}
	return list, nil
}

// concludePart hands a part's outcome to the batches whose records it carried. An
// error of one part is the error of all.
func (p *Producer) concludePart(part *batch) {
	for _, b := range part.wholes {
		if b.err == nil {
			b.err = part.err
		}
		if b.left--; b.left == 0 {
			p.conclude(b, Placement{Range: part.lane.id.Seq}, b.err)
		}
	}
}
