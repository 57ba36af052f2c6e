package client

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ringfence/ringfence/engine/api"
	"github.com/ringfence/ringfence/segfile/record"
)

// Batch is memory of the client that the caller fills with records and that goes to the
// server from where it lies. It is not safe for concurrent use. It can be sent once; a batch
// that is not sent must be discarded, or its memory is not given back.
type Batch struct {
	p        *Producer
	b        *batch
	count    uint64
	now      int64 // the time of records that name none
	head     record.Head
	finished bool // the inner batch has its frame: Send was tried
}

// NewBatch returns an empty batch of at most size bytes, as a frame and in memory: 4 KiB to
// [api.MaxBatchBytes], and at most a quarter of [Options].MemoryBytes. 0 means the
// producer's BatchBytes. It waits for memory until ctx ends. Records without a time get the
// time of this call.
func (p *Producer) NewBatch(ctx context.Context, size int) (*Batch, error) {
	if size == 0 {
		size = p.opts.BatchBytes
	}
	if size < minBatch || size > api.MaxBatchBytes {
		return nil, fmt.Errorf("client: a batch of %d bytes, want %d to %d", size, minBatch, api.MaxBatchBytes)
	}
	if most := largestBatch(p.c.opts.MemoryBytes); size > most {
		return nil, fmt.Errorf("client: a batch of %d bytes is more than a quarter of MemoryBytes, %d: raise MemoryBytes", size, most)
	}
	if p.closed.Load() {
		return nil, ErrClosed
	}
	slab := p.c.mem.alloc(size)
	if slab == nil {
		var err error
		p.mu.Lock()
		slab, err = p.awaitSlab(ctx, size)
		p.mu.Unlock()
		if err != nil {
			return nil, about(p.name, err)
		}
	}
	return &Batch{p: p, b: p.batchIn(slab), now: time.Now().UnixMilli()}, nil
}

// Len is the number of records added so far.
func (b *Batch) Len() int { return int(b.count) }

// Add copies a record into the batch; what r points to may be reused afterwards. An error
// leaves the batch as it was: ErrBatchFull if the record does not fit any more,
// ErrRecordTooLarge if it would not fit an empty batch either, ErrBatchSent after Send or
// Discard.
func (b *Batch) Add(r api.Record) error {
	if err := b.fillable(); err != nil {
		return err
	}
	rec := record.Record{Key: r.Key, Value: r.Value, Headers: r.Headers, Timestamp: b.now}
	if !r.Time.IsZero() {
		rec.Timestamp = r.Time.UnixMilli()
	}
	if err := b.b.build.Add(&rec, b.b.next()); err != nil {
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
	if err := b.b.build.Commit(b.b.next()); err != nil {
		return about(b.p.name, err)
	}
	b.count++
	return nil
}

// Discard gives back the memory of a batch that was not sent. After Send it does nothing.
func (b *Batch) Discard() {
	if b.b != nil {
		b.b.letGo()
		b.b = nil
	}
}

// Send hands the batch over and returns. It waits, until ctx ends, while twice MaxInFlight
// batches for each range of the topic are under way already. The order of records is that
// of the calls of Send, Append and Produce.
//
// done, which may be nil, is called once, when all records of the batch are durable or,
// with an error, when it is known that not all of them are, or that this cannot be known.
// The placement spans the first to the last record; if the records belong to more than one
// range, it is that of the first record alone. done runs on a goroutine of the producer;
// while it blocks, no other callback runs.
//
// After an error the batch was not sent, and can be sent again or discarded.
func (b *Batch) Send(ctx context.Context, done func(api.Placement, error)) error {
	if b.b == nil {
		return ErrBatchSent
	}
	p, inner := b.p, b.b
	if err := b.finish(); err != nil {
		return about(p.name, err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.ready(ctx); err != nil {
		return err
	}
	if err := p.room(ctx); err != nil {
		return err
	}
	p.closeAll()
	if !p.opts.NotIdempotent {
		inner.first = p.seq + 1
		inner.renumber(&b.head)
		p.seq = b.head.LastSeq
	}
	b.head.Put(inner.frame, 0)
	inner.lane, inner.count = p.laneFor(&b.head), int(b.count)
	if done != nil {
		inner.calls = append(inner.calls, call{wholeBatch, done})
	}
	b.b = nil
	p.enqueue(inner)
	p.pump()
	return nil
}

// finish makes the frame, compressed if the producer compresses. It takes no lock:
// this is most of the work of a batch.
func (b *Batch) finish() error {
	if b.finished {
		return nil
	}
	if err := b.b.finish(); err != nil {
		return err
	}
	head, err := record.ParseHead(b.b.frame, 0)
	b.head, b.finished = head, err == nil
	return err
}
