package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/ringfence/ringfence/segfile/record"
)

// Batch is memory of the engine that the caller fills with records and that goes to the
// device from where it lies. It is not safe for concurrent use. It can be sent once; a
// batch that is not sent must be discarded, or its memory is not given back.
type Batch struct {
	p        *Producer
	b        *batch
	count    uint64
	now      int64 // the time of records that name none
	finished bool  // the inner batch has its frame: Send was tried
}

// NewBatch returns an empty batch of at most size bytes, in memory and on disk: 4 KiB to
// [MaxBatchBytes], and at most a quarter of [Options].ArenaBytes. 0 means the producer's
// BatchBytes. It waits for memory until ctx ends. Records without a time get the time of
// this call.
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

// Len is the number of records added so far.
func (b *Batch) Len() int { return int(b.count) }

// Add copies a record into the batch; what r points to may be reused afterwards. An error
// leaves the batch as it was: ErrBatchFull if the record does not fit any more,
// ErrRecordTooLarge if it would not fit an empty batch either, ErrBatchSent after Send or
// Discard.
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

// Reserve makes room for a record and returns the memory of its key and value. Fill it,
// call Commit, and leave it alone from then on. A length of -1 is a null key or value.
// Without Commit the record is not part of the batch. Errors are those of Add.
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

// Commit adds the record that Reserve made room for. key is the memory of the key that
// Reserve returned, filled, or nil if the key is null.
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

// next numbers the next record, from 1 on: Send replaces these by the producer's
// sequences.
func (b *Batch) next() uint64 {
	if b.p.opts.NotIdempotent {
		return 0
	}
	return b.count + 1
}

// Discard gives back the memory of a batch that was not sent. After Send it does nothing.
func (b *Batch) Discard() {
	if b.b == nil {
		return
	}
	b.p.mu.Lock()
	b.p.recycle(b.b)
	b.p.mu.Unlock()
	b.b = nil
}

// Send hands the batch over and returns. It waits, until ctx ends, while MaxInFlight
// batches of the range are waiting already. The order of records is that of the calls of
// Send, Append and Produce.
//
// done, which may be nil, is called once, when all records of the batch are durable or,
// with an error, when it is known that not all of them are. The placement spans the first
// to the last record; if the records belong to more than one range, they are split and it
// is that of the first record alone. Like the callback of Append, done runs on an engine goroutine and must not block.
//
// After an error the batch was not sent, and can be sent again or discarded.
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
	head := inner.info
	for {
		if err := p.ready(ctx); err != nil {
			return err
		}
		if !p.opts.NotIdempotent {
			b.renumber(&head) // others may have taken sequences while it waited
		}
		if len(p.laneOf(head.MinPos).waiting) < p.opts.MaxInFlight {
			break
		}
		if err := p.wait(ctx); err != nil {
			return about(p.name, -1, err)
		}
	}
	head.Put(inner.frame, 0)
	p.seq = max(p.seq, head.LastSeq)
	inner.info, inner.age = head, p.age
	p.pending[p.age] += int(b.count)
	if done == nil {
		done = func(Placement, error) {}
	}
	inner.calls = append(inner.calls, call{at: wholeBatch, done: done})
	b.b = nil
	p.enqueue(inner, nil)
	return nil
}

// finish makes the frame. It takes no lock: this is most of the work of a batch.
func (b *Batch) finish() error {
	if b.finished {
		return nil
	}
	if err := b.b.seal(0); err != nil {
		return err
	}
	b.finished = true
	return nil
}

// renumber gives the batch's records the producer's next sequences, and its
// keyless ones the positions that come with them.
func (b *Batch) renumber(h *record.Head) {
	h.FirstSeq = b.p.seq + 1
	h.LastSeq = b.p.seq + b.count
	h.MinPos, h.MaxPos = b.b.build.PositionsFrom(h.FirstSeq)
}

// enqueue puts a finished batch on its lane, behind what the lane holds, or cuts it up
// over several lanes. mine and handed are those of lane.send. mu is held.
func (p *Producer) enqueue(b, mine *batch) (handed bool) {
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

// spread cuts a batch up over the lanes that its records belong to.
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
