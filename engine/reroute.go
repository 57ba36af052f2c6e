package engine

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/ringfence/ringfence/segfile/record"
)

// partAt is where a record went whose batch was taken apart.
type partAt struct {
	part *batch
	at   int
}

// reroute gives what retired lanes hold to the lanes that took over their keys. The
// records are built into new batches in the order of their sequences: to the range that
// two others were merged into, a sequence lower than one it has already seen looks like a
// repeat. Nobody adds records meanwhile (p.moving), so these stay in front. mu is held,
// and released while batches are built.
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

// failApart fails batches after rebuild failed: at once if no part of a batch was built,
// else together with its parts.
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

// takeAll empties a retired lane once nothing of it is in flight. The lanes that take over
// its keys start without a predecessor: each of their ranges knows the last sequence of
// its own slice of the keys, which may be lower than the last that landed here. mu is
// held, and released while it waits.
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

// loose is a record on its way from a batch that was taken apart to a new one.
type loose struct {
	rec   record.Record
	seq   uint64
	lane  *lane
	whole *batch
	at    int
}

// rebuild takes batches apart and builds their records into new ones. It fails only if a
// frame cannot be read, which takes a defect, or a lender that changed its memory. mu is
// not held; nobody else has the batches.
//
// Its memory must not come from the arena: several producers that rebuild at once, each
// holding old batches, would wait for each other. So it gives the memory of the old
// batches back, and the new ones lie on the heap until they leave. Even then the first
// batch may need memory that those behind it hold; it leaves in the lifeboat.
func (p *Producer) rebuild(held []*batch, lanes []*lane) ([]*batch, error) {
	var all []loose
	size := p.opts.BatchBytes
	for _, b := range held {
		list, err := p.takeApart(b, lanes)
		if err != nil {
			return nil, err
		}
		all = append(all, list...)
		size = max(size, cap(b.slab)) // so that every record fits where it goes
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

// takeApart lists a batch's records with the lanes they go to. They point into a copy of
// its frame on the heap; its own memory goes back.
func (p *Producer) takeApart(b *batch, lanes []*lane) ([]loose, error) {
	if b.frame == nil {
		// Without a predecessor: that would have to be read from its lane, to which others
		// may be putting back batches.
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

// concludePart hands a part's outcome to the batches whose records it carried. If one part
// of a batch fails, the batch fails.
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
