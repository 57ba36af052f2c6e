package engine

import (
	"context"
	"slices"
	"sync/atomic"

	"github.com/ringfence/ringfence/engine/frontend"
	"github.com/ringfence/ringfence/engine/store"
	"github.com/ringfence/ringfence/segfile/record"
)

// batch is one frame, first being filled and then on its way, with those who wait for it.
// The producer's mu guards it, except for req and frame while the store has them.
type batch struct {
	p         *Producer // set once
	lane      *lane
	slab      []byte // arena memory, unless onHeap
	onHeap    bool   // slab is Go memory: the batch moves to the arena before it leaves
	aboard    bool   // slab is the engine's lifeboat
	loan      *loan  // slab is somebody else's memory (lend.go)
	build     record.Builder
	frame     []byte      // set once finished; lies in slab
	info      record.Head // of frame
	calls     []call
	waiters   atomic.Int32  // goroutines in result and in conclude; the last one out recycles
	done      chan struct{} // closed with the outcome; made when a second caller joins, or the first asks
	over      bool          // the outcome is known: place and err
	place     Placement
	err       error
	head      *store.Segment // it was sent to
	plan      frontend.Dispatch
	isPlanned bool // plan is this batch's, made by findHead
	age       int  // the producer's, when its first record came

	// A batch that was taken apart, because the ranges changed, is answered by the parts
	// that carry its records now (reroute.go).
	wholes []*batch // of a part: whose records it carries
	parts  []*batch // of a whole: who carries its records
	where  []partAt // of a whole: where each record is
	left   int      // of a whole: parts not answered

	req store.Append
}

// call is one record's callback.
type call struct {
	at   int // place of the record in the batch
	done func(Placement, error)
}

// freshBatch returns an empty batch with memory for size bytes. mu is held, and released
// while it waits for the arena.
func (p *Producer) freshBatch(ctx context.Context, size int) (*batch, error) {
	slab, ok := p.e.arena.Alloc(size)
	if !ok {
		if err := p.e.notCalledBack(); err != nil {
			return nil, err
		}
		p.mu.Unlock()
		var err error
		slab, err = p.e.arena.AllocWait(ctx, size)
		p.mu.Lock()
		if err != nil {
			return nil, err
		}
	}
	b := p.spareBatch()
	b.fill(slab)
	return b, nil
}

// spareBatch returns a batch without memory. mu is held.
func (p *Producer) spareBatch() *batch {
	if n := len(p.spare); n > 0 {
		b := p.spare[n-1]
		p.spare = p.spare[:n-1]
		return b
	}
	b := &batch{p: p}
	b.req.Done = func(*store.Append) { p.landed(b) }
	return b
}

// fill makes b an empty batch in slab.
func (b *batch) fill(slab []byte) {
	b.slab = slab
	b.build.Reset(slab, b.p.opts.ID)
}

// board moves a batch from the heap to the arena, and says whether there was memory for
// it.
func (b *batch) board(l *lane) (bool, error) {
	if b.frame == nil {
		sent := l.sent
		err := b.finish(l)
		l.sent = sent // it is not on its way yet
		if err != nil || !b.onHeap {
			return true, err
		}
	}
	slab, ok := b.p.e.arena.Alloc(len(b.frame))
	if ok {
		b.move(slab)
	}
	return ok, nil
}

// move moves the frame to the arena.
func (b *batch) move(slab []byte) {
	b.frame = slab[:copy(slab, b.frame)]
	b.slab, b.onHeap = slab, false
}

// finish makes the frame that the lane sends next. A frame that a fence refused is done
// already, and only names another predecessor now.
func (b *batch) finish(l *lane) error {
	if b.frame == nil {
		first, _ := b.build.Sequences()
		if err := b.seal(before(first, l.sent)); err != nil {
			return err
		}
	} else {
		b.info.PrevSeq, b.info.Base, b.info.Durable = before(b.info.FirstSeq, l.sent), 0, 0
		if b.loan == nil { // else the store writes the header that it is given
			b.info.Put(b.frame, 0)
		}
	}
	l.sent = max(l.sent, b.info.LastSeq)
	return nil
}

// seal makes the frame of the records that were added, compressed if the producer
// compresses. prev is the sequence before them.
func (b *batch) seal(prev uint64) error {
	frame, err := b.build.Finish(prev)
	if err != nil {
		return err
	}
	if frame, err = b.compress(frame); err != nil {
		return err
	}
	if b.info, err = record.ParseHead(frame, 0); err != nil {
		return err
	}
	b.frame = b.slab[:len(frame)] // where it lies, with the slab's capacity
	return nil
}

// compress moves the frame to memory that fits its compressed form, if the producer
// compresses and that makes it smaller.
func (b *batch) compress(frame []byte) ([]byte, error) {
	p := b.p
	if p.opts.Codec == record.None {
		return frame, nil
	}
	dst, ok := p.e.arena.Alloc(len(frame))
	if !ok {
		return frame, nil // plain is always right
	}
	out, err := record.Compress(dst, frame, p.opts.Codec)
	if err != nil || &out[0] == &frame[0] {
		p.e.arena.Free(dst)
		return frame, err
	}
	p.free(b)
	b.slab, b.onHeap = dst, false
	return out, nil
}

// before is the predecessor that a batch names: the last sequence that was sent, but
// always one below the batch's own. Two ranges that were merged may differ in how far they
// had come; then what was sent last can be beyond the batch's first.
func before(first, sent uint64) uint64 {
	if first == 0 {
		return 0
	}
	return min(sent, first-1)
}

// records is how many records b holds.
func (b *batch) records() int {
	if b.frame != nil {
		return int(b.info.Count)
	}
	return b.build.Len()
}

// routing is what the frontend needs to know of b.
func (b *batch) routing() frontend.BatchInfo {
	if b.frame != nil {
		return frontend.BatchInfo{MinPos: b.info.MinPos, MaxPos: b.info.MaxPos, Count: b.info.Count, Bytes: len(b.frame)}
	}
	lo, hi := b.build.Positions()
	return frontend.BatchInfo{MinPos: lo, MaxPos: hi, Count: uint32(b.build.Len()), Bytes: b.build.Bytes()}
}

// placeOf is the placement of one record, by its place in the batch, or of wholeBatch.
func (b *batch) placeOf(at int) Placement {
	pl := b.place
	if at == wholeBatch {
		if b.where != nil && b.where[0].part != nil {
			pl = b.where[0].part.placeOf(b.where[0].at)
		}
		pl.Repeats = b.repeats()
		pl.Duplicate = pl.Repeats > 0 && int(pl.Repeats) == b.records()
		return pl
	}
	if b.where != nil && b.where[at].part != nil {
		return b.where[at].part.placeOf(b.where[at].at)
	}
	if b.req.New != nil {
		place, ok := slices.BinarySearch(b.req.New, uint32(at))
		if !ok {
			return Placement{Range: pl.Range, Duplicate: true, Repeats: 1} // this one was stored before, others were not
		}
		at = place
	}
	switch {
	case pl.Duplicate:
		pl.Repeats = 1
	case b.err == nil:
		pl.First += uint64(at)
		pl.Last = pl.First
	}
	return pl
}

// repeats is how many records of a stored batch had been stored before.
func (b *batch) repeats() (n uint32) {
	switch {
	case b.where != nil:
		for _, to := range b.where {
			if to.part != nil && to.part.placeOf(to.at).Duplicate {
				n++
			}
		}
	case b.place.Duplicate:
		n = uint32(b.records())
	case b.req.New != nil:
		n = uint32(b.records() - len(b.req.New))
	}
	return n
}

// leave is called by each waiter once it has seen the outcome or given up, and by
// conclude; the last one recycles the batch. mu is held.
func (b *batch) leave(p *Producer) {
	if b.waiters.Add(-1) == 0 && b.over {
		p.recycle(b)
	}
}

// leaveOver is leave for a waiter that has seen done closed and does not hold mu.
func (b *batch) leaveOver(p *Producer) {
	if b.waiters.Add(-1) == 0 {
		p.mu.Lock()
		p.recycle(b)
		p.mu.Unlock()
	}
}

// maxSpare bounds the batches kept for reuse; their slabs are not kept.
const maxSpare = 64

// free gives a batch's slab back to where it came from.
func (p *Producer) free(b *batch) {
	switch {
	case b.slab == nil || b.onHeap:
	case b.loan != nil:
		b.loan.end()
	case b.aboard:
		p.e.lifeboat <- b.slab
	default:
		p.e.arena.Free(b.slab)
	}
	b.slab, b.aboard, b.loan = nil, false, nil
}

// recycle gives the batch's memory back and keeps the batch for reuse. mu is held.
func (p *Producer) recycle(b *batch) {
	p.free(b)
	clear(b.calls)
	b.calls = b.calls[:0]
	b.lane, b.head, b.slab, b.frame, b.done, b.err, b.req.New = nil, nil, nil, nil, nil, nil, nil
	b.info, b.plan = record.Head{}, frontend.Dispatch{}
	b.waiters.Store(0)
	b.over, b.isPlanned, b.onHeap = false, false, false
	for _, part := range b.parts {
		part.leave(p)
	}
	b.wholes, b.parts, b.where, b.left = nil, nil, nil, 0
	b.place = Placement{}
	if len(p.spare) < maxSpare {
		p.spare = append(p.spare, b)
	}
}
