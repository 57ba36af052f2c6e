package engine

import (
	"context"
	"errors"
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
	l.finding = true
	l.p.tasks.Go(l.findHead)
}

// findHead fences what is left of the last head, opens or adopts the next one and
// sends on. If the range is no longer there, the producer routes anew. It owns
// l.finding.
func (l *lane) findHead() {
	p := l.p
	ctx, cancel := context.WithTimeout(context.Background(), headPatience)
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
			b.plan, b.isPlanned = plan, true
			break
		}
		if err == nil || moved(err) {
			p.reroute()
			break
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
	l.send(false)
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

// partAt is where a record of a split batch went.
type partAt struct{ part, at int }

// reroute gives what retired lanes hold to the lanes that took over their keys.
// Nobody adds records meanwhile, so the old ones stay in front. mu is held, and
// released while frames are rebuilt.
func (p *Producer) reroute() {
	for p.moving {
		p.changed.Wait()
	}
	p.moving = true
	defer func() {
		p.moving = false
		p.changed.Broadcast()
	}()
	before := append([]*lane(nil), p.lanes...)
	if err := p.route(); err != nil {
		for _, l := range before {
			l.failAll(err)
		}
		return
	}
	for _, l := range before {
		if !l.retired {
			continue
		}
		for l.flying > 0 {
			p.changed.Wait()
		}
		l.putBack()
		l.closeOpen()
		for _, to := range p.lanes {
			if to.first <= l.last && l.first <= to.last {
				to.landed = max(to.landed, l.landed)
				to.sent = max(to.sent, l.landed)
			}
		}
		for len(l.waiting) > 0 {
			p.split(l.pop())
		}
	}
	for _, to := range p.lanes {
		if len(to.waiting) > 0 && to.head == nil {
			to.find()
		}
	}
}

// split moves b to the lane of its keys, or cuts it up over several.
func (p *Producer) split(b *batch) {
	info := b.routing()
	if to := p.laneOf(info.MinPos); to == p.laneOf(info.MaxPos) {
		b.lane = to
		to.waiting = append(to.waiting, b)
		return
	}
	if b.frame == nil {
		if err := b.finish(b.lane); err != nil {
			p.conclude(b, Placement{}, err)
			return
		}
	}
	b.info.Base, b.info.Durable = 0, 0
	b.info.Put(b.frame, 0)
	var scratch record.Scratch
	view, err := record.Verify(b.frame, 0, &scratch)
	if err != nil {
		p.conclude(b, Placement{}, err)
		return
	}
	b.where = make([]partAt, view.Len())
	var parts []*batch
	for _, to := range p.lanes {
		part, err := p.cut(b, &view, to, len(parts))
		if errors.Is(err, record.ErrEmpty) {
			continue
		}
		if err != nil {
			p.conclude(b, Placement{}, err)
			return
		}
		parts = append(parts, part)
	}
	b.left, b.parts = len(parts), make([]Placement, len(parts))
	for _, part := range parts {
		part.lane.waiting = append(part.lane.waiting, part)
	}
}

// cut makes the part of b that belongs to a lane.
func (p *Producer) cut(b *batch, view *record.Batch, to *lane, n int) (*batch, error) {
	i, kept := -1, 0
	frame, err := record.Trim(nil, *view, 0, func(int) bool {
		i++
		if pos := view.Position(i); pos < to.first || pos > to.last {
			return false
		}
		b.where[i] = partAt{n, kept}
		kept++
		return true
	})
	if err != nil {
		return nil, err
	}
	part, err := p.freshBatch(context.Background(), len(frame))
	if err != nil {
		return nil, err
	}
	copy(part.slab, frame)
	part.frame, part.lane = part.slab[:len(frame)], to
	part.whole, part.part = b, n
	part.info, err = record.ParseHead(part.frame, 0)
	return part, err
}

// concludePart hands a part's outcome to the batch it was cut from. An error of
// one part is the error of all.
func (p *Producer) concludePart(part *batch) {
	b := part.whole
	b.parts[part.part] = part.place
	err := part.err
	if b.err == nil {
		b.err = err
	}
	if b.left--; b.left == 0 {
		p.conclude(b, b.place, b.err)
	}
}
