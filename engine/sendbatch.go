package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/ringfence/ringfence/segfile/record"
)

// Batch is memory of the engine that the caller fills with records, and that goes
// to the device from where it lies. One goroutine fills it; it is sent once. A
// batch that is not sent must be discarded.
type Batch struct {
	p        *Producer
	b        *batch
	count    uint64
	now      int64 // the time of records that name none
	finished bool  // the inner batch has its frame: Send was tried
}

// NewBatch returns an empty batch of at most size bytes, on disk and in memory; 0
// means the producer's BatchBytes. It waits for memory until ctx ends. Records that
// name no time get that of this call.
func (p *Producer) NewBatch(ctx context.Context, size int) (*Batch, error) {
	if size == 0 {
		size = p.opts.BatchBytes
	}
	if size < minBatch || size > MaxBatchBytes {
		return nil, fmt.Errorf("engine: a batch of %d bytes, want %d to %d", size, minBatch, MaxBatchBytes)
	}
	if most := largestBatch(p.e.opts.ArenaBytes); size > most {
		return nil, fmt.Errorf("engine: a batch of %d bytes is more than a quarter of ArenaBytes, %d: raise ArenaBytes", size, most)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, ErrClosed
	}
	b, err := p.freshBatch(ctx, size)
	if err != nil {
		return nil, about(p.name, -1, err)
	}
	return &Batch{p: p, b: b, now: p.e.millis()}, nil
}

// Len is the number of records so far.
func (b *Batch) Len() int { return int(b.count) }

// Add copies a record into the batch. ErrBatchFull leaves it as it was.
func (b *Batch) Add(r Record) error {
	if err := b.fillable(); err != nil {
		return err
	}
	rec := record.Record{Key: r.Key, Value: r.Value, Headers: r.Headers, Timestamp: b.now}
	if !r.Time.IsZero() {
		rec.Timestamp = r.Time.UnixMilli()
	}
	if err := b.b.build.Add(&rec, b.next()); err != nil {
		return b.refused(err)
	}
	b.count++
	return nil
}

// fillable says why a batch takes no more records.
func (b *Batch) fillable() error {
	if b.b == nil || b.finished {
		return ErrBatchSent
	}
	return nil
}

func (b *Batch) refused(err error) error {
	if errors.Is(err, record.ErrBatchFull) {
		return err
	}
	return b.p.refused(err, len(b.b.slab))
}

// Reserve makes room for a record and returns the memory of its key and value, to
// be filled before Commit and left alone afterwards. A length of -1 is a null key
// or value.
func (b *Batch) Reserve(keyLen, valueLen int) (key, value []byte, err error) {
	if err := b.fillable(); err != nil {
		return nil, nil, err
	}
	key, value, err = b.b.build.Reserve(keyLen, valueLen, nil, b.now)
	if err != nil {
		return nil, nil, b.refused(err)
	}
	return key, value, nil
}

// Commit adds the record that Reserve made room for. key is the memory of its key,
// filled, or nil where that is null.
func (b *Batch) Commit(key []byte) error {
	if err := b.fillable(); err != nil {
		return err
	}
	if err := b.b.build.Commit(b.next()); err != nil {
		return about(b.p.name, -1, err)
	}
	b.count++
	return nil
}

// next is the place of the next record, from 1 on: the sequences of the batch
// until it is sent.
func (b *Batch) next() uint64 {
	if b.p.opts.NotIdempotent {
		return 0
	}
	return b.count + 1
}

// Discard gives the memory of a batch back that was not sent.
func (b *Batch) Discard() {
	if b.b == nil {
		return
	}
	b.p.mu.Lock()
	b.p.recycle(b.b)
	b.p.mu.Unlock()
	b.b = nil
}

// Send hands the batch over. done, which may be nil, hears when all of its records
// are durable, with the placement of the first and last; when they belong to more
// than one range, they are split and the placement is that of the first record.
// Batches and records take their order from Send, Append and Produce. It waits
// while MaxInFlight batches of the range are waiting already.
//
// After an error the batch was not sent: it can be sent again, or discarded.
func (b *Batch) Send(ctx context.Context, done func(Placement, error)) error {
	if b.b == nil {
		return ErrBatchSent
	}
	p, inner := b.p, b.b
	if err := b.finish(); err != nil {
		return about(p.name, -1, err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.ready(ctx); err != nil {
		return err
	}
	head := inner.info
	if !p.opts.NotIdempotent {
		b.renumber(&head)
	}
	for {
		l := p.laneOf(head.MinPos)
		if len(l.waiting) < p.opts.MaxInFlight {
			break
		}
		if err := p.wait(ctx); err != nil {
			return about(p.name, -1, err)
		}
		if err := p.ready(ctx); err != nil {
			return err
		}
		if !p.opts.NotIdempotent {
			b.renumber(&head)
		}
	}
	head.Put(inner.frame, 0)
	p.seq = max(p.seq, head.LastSeq)
	inner.info, inner.age = head, p.age
	p.pending[p.age] += int(b.count)
	if done != nil {
		inner.calls = append(inner.calls, call{at: wholeBatch, done: done})
	} else {
		inner.calls = append(inner.calls, call{at: wholeBatch, done: func(Placement, error) {}})
	}
	b.b = nil
	p.dispatch(inner, nil)
	return nil
}

// finish makes the frame, compressed if the producer compresses. It takes no lock:
// this is most of the work of a batch.
func (b *Batch) finish() error {
	if b.finished {
		return nil
	}
	inner := b.b
	frame, err := inner.build.Finish(0)
	if err != nil {
		return err
	}
	if frame, err = b.p.compress(inner, frame); err != nil {
		return err
	}
	if inner.info, err = record.ParseHead(frame, 0); err != nil {
		return err
	}
	inner.frame, b.finished = inner.slab[:len(frame)], true
	return nil
}

// renumber gives the batch's records the producer's next sequences, and its
// keyless ones the positions that come with them.
func (b *Batch) renumber(h *record.Head) {
	h.FirstSeq = b.p.seq + 1
	h.LastSeq = b.p.seq + b.count
	h.MinPos, h.MaxPos = b.b.build.PositionsFrom(h.FirstSeq)
}

// dispatch puts a finished batch on its lane, behind what the lane holds, or cuts
// it up over several. mine and handed are those of lane.send. mu is held.
func (p *Producer) dispatch(b, mine *batch) (handed bool) {
	first, last := p.laneOf(b.info.MinPos), p.laneOf(b.info.MaxPos)
	if first != last {
		b.lane = first
		p.spread(b)
		return false
	}
	first.closeOpen()
	b.lane = first
	first.waiting = append(first.waiting, b)
	return first.send(mine)
}

// spread cuts a batch up over the lanes its records belong to.
func (p *Producer) spread(b *batch) {
	p.moving = true // nobody adds records behind it before it is in place
	for _, l := range p.lanes {
		l.closeOpen()
	}
	lanes := slices.Clone(p.lanes)
	p.mu.Unlock()
	built, err := p.rebuild([]*batch{b}, lanes)
	p.mu.Lock()
	for _, part := range built {
		part.lane.waiting = append(part.lane.waiting, part)
	}
	p.failApart([]*batch{b}, err)
	p.moving = false
	p.changed.Broadcast()
	for _, l := range lanes {
		l.send(nil)
	}
}

// wholeBatch is the place of a call that is about all records of its batch.
const wholeBatch = -1
