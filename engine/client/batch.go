package client

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ringfence/ringfence/engine/api"
	"github.com/ringfence/ringfence/engine/wire"
	"github.com/ringfence/ringfence/segfile/record"
)

// batch is one frame on its way, with those who wait for it. The producer's mu guards
// it, but for the frame's bytes while a connection has them.
type batch struct {
	p      *Producer
	slab   []byte // the client's memory
	build  record.Builder
	frame  []byte // set once finished; lies in slab
	header []byte // of the frame, as it is sent: a server that shares the memory may write its own there
	lane   *lane  // set once closed
	first  uint64 // sequence of the first record, likewise; 0: they have none
	count  int    // records
	calls  []call
	out    *outcome // for those who wait; nil if there are none
	number uint64   // of the batches that were closed
	before *batch   // in the producer's queue
	behind *batch   // likewise
	due    time.Time

	flies   *flight // on its way; nil: waits, or over
	over    bool
	sent    bool  // an attempt may have reached the server, and nothing says that it failed
	refusal error // of the last attempt: the server did not take it
	err     error // set when it is over
	place   api.Placement

	// Who may read the frame: the producer until everybody was told how it ended, and
	// each connection that was handed it until it wrote it, or ended. The last one out
	// gives the memory back.
	readers atomic.Int32
}

// batches are used again for the memory of their builders.
var batches = sync.Pool{New: func() any { return new(batch) }}

// call is one record's callback.
type call struct {
	at   int // place of the record in the batch
	done func(api.Placement, error)
}

// wholeBatch is the place of a call that is about all records of its batch.
const wholeBatch = -1

// outcome is what those hear who wait for a batch. It outlives the batch, whose memory
// goes on to another one.
type outcome struct {
	done  chan struct{} // closed when the rest is set
	place api.Placement
	count int
	err   error
}

func (o *outcome) placeOf(at int) api.Placement { return placeIn(o.place, o.count, at) }

// placeIn is the placement of the record at a place of a batch. Where the records
// do not lie in one piece the server tells the first one's, which says nothing of
// another.
func placeIn(whole api.Placement, count, at int) api.Placement {
	switch {
	case at == wholeBatch || count == 1:
		return whole
	case whole.Duplicate:
		whole.Repeats = 1
		return whole
	case whole.Repeats > 0 || whole.Last-whole.First != uint64(count-1):
		if at != 0 {
			whole.Repeats = 0
		}
		return api.Placement{Repeats: whole.Repeats, Unplaced: true}
	}
	whole.First += uint64(at)
	whole.Last = whole.First
	return whole
}

// freshBatch returns an empty batch of size bytes. mu is held, and released while
// memory is waited for.
func (p *Producer) freshBatch(ctx context.Context, size int) (*batch, error) {
	slab := p.c.mem.alloc(size)
	if slab == nil {
		var err error
		if slab, err = p.awaitSlab(ctx, size); err != nil {
			return nil, err
		}
	}
	return p.batchIn(slab), nil
}

// awaitSlab waits for memory. mu is held, and released meanwhile.
func (p *Producer) awaitSlab(ctx context.Context, size int) ([]byte, error) {
	p.closeAll() // what is open holds some
	p.pump()
	p.mu.Unlock()
	defer p.mu.Lock()
	return p.c.mem.await(ctx, p.life.Done(), size)
}

// batchIn is an empty batch in slab.
func (p *Producer) batchIn(slab []byte) *batch {
	b := batches.Get().(*batch)
	b.p, b.slab = p, slab
	b.build.Reset(slab, p.opts.ID)
	b.readers.Store(1)
	return b
}

// enqueue puts a batch behind the others. mu is held.
func (p *Producer) enqueue(b *batch) {
	p.closing++
	from := time.Now()
	if p.held.After(from) { // its time begins when the quota lets it go
		from = p.held
	}
	b.number, b.due = p.closing, from.Add(p.c.opts.RequestTimeout)
	if !p.armed {
		p.armed = true
		p.alarm.Reset(p.c.opts.RequestTimeout)
	}
	p.queue.add(b)
}

// finish makes the frame, compressed if the producer compresses. It names no
// predecessor: the server knows what came before it in each range.
func (b *batch) finish() error {
	if b.frame != nil {
		return nil
	}
	frame, err := b.build.Finish(0)
	if err != nil {
		return err
	}
	if b.first != 0 {
		h, err := record.ParseHead(frame, 0)
		if err != nil {
			return err
		}
		b.renumber(&h)
		h.Put(frame, 0)
	}
	b.frame, err = b.compress(frame)
	return err
}

// add adds a record whose key has that position. Until the batch is closed its sequences
// count from 1 on.
func (b *batch) add(r *record.Record, pos uint32) error {
	seq := b.next()
	if r.Key == nil {
		return b.build.Add(r, seq)
	}
	return b.build.AddAt(r, pos, seq)
}

// next is the sequence of the next record, until the batch is closed.
func (b *batch) next() uint64 {
	if b.p.opts.NotIdempotent {
		return 0
	}
	return uint64(b.build.Len()) + 1
}

// compress answers the frame compressed, in memory that takes the place of its own, or
// as it is where there is no memory or nothing to gain.
func (b *batch) compress(frame []byte) ([]byte, error) {
	if b.p.opts.Codec == record.None {
		return frame, nil
	}
	dst := b.p.c.mem.alloc(len(frame))
	if dst == nil {
		return frame, nil
	}
	out, err := record.Compress(dst, frame, b.p.opts.Codec)
	if err != nil || &out[0] == &frame[0] {
		b.p.c.mem.release(dst)
		return frame, err
	}
	b.p.c.mem.release(b.slab)
	b.slab = dst
	return out, nil
}

// conclude ends a batch and lets everybody know who waits for it: at once those in
// Produce, by a goroutine the callbacks, in the order of this. mu is held.
func (p *Producer) conclude(b *batch, place api.Placement, err error) {
	b.over = true
	b.forget()
	b.place, b.err = place, about(p.name, err)
	if err != nil {
		p.halt(err)
	}
	if b.out != nil {
		b.out.place, b.out.count, b.out.err = place, b.count, b.err
		close(b.out.done)
	}
	if len(b.calls) == 0 {
		p.leave(b)
		return
	}
	p.tell = append(p.tell, b)
	if !p.telling {
		p.telling = true
		go p.runCalls()
	}
}

// runCalls runs callbacks until there are none. Nobody waits for it: a callback may
// itself close the producer or the client.
func (p *Producer) runCalls() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.tell) > 0 {
		all := p.tell
		p.tell = p.told[:0]
		for i, b := range all {
			p.mu.Unlock()
			for _, c := range b.calls {
				c.done(placeIn(b.place, b.count, c.at), b.err)
			}
			all[i] = nil
			p.mu.Lock()
			p.leave(b)
			if p.queue.n == 0 {
				p.pump() // what is open goes now
			}
		}
		p.told = all
	}
	p.telling = false
}

// placed is a server's answer as callers have it.
func (b *batch) placed(r wire.ProduceReply) api.Placement {
	return api.Placement{Range: r.Range, First: r.First, Last: r.Last, Repeats: r.Repeats, Duplicate: r.Repeats > 0 && int(r.Repeats) >= b.count}
}

// forget gives up what is on its way; who has it finds that nobody waits. mu is held.
func (b *batch) forget() {
	if b.flies != nil {
		b.flies.b, b.flies, b.sent = nil, nil, true
		b.p.flying--
		b.lane.flying--
	}
}

// leave takes a batch that everybody was told of out of the queue. mu is held.
func (p *Producer) leave(b *batch) {
	p.queue.remove(b)
	b.letGo()
	p.changed.Broadcast()
}

// letGo is called by each that may read the frame when it does not any more.
func (b *batch) letGo() {
	if b.readers.Add(-1) > 0 {
		return
	}
	b.p.c.mem.release(b.slab)
	clear(b.calls)
	b.calls = b.calls[:0]
	b.p, b.slab, b.frame, b.lane, b.first, b.count, b.out, b.number, b.due = nil, nil, nil, nil, 0, 0, nil, 0, time.Time{}
	b.header = b.header[:0]
	b.flies, b.over, b.sent, b.refusal, b.err, b.place = nil, false, false, nil, nil, api.Placement{}
	b.build.Reset(nil, 0)
	batches.Put(b)
}
