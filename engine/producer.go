package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/ringfence/ringfence/cp"
	"github.com/ringfence/ringfence/engine/api"
	"github.com/ringfence/ringfence/engine/frontend"
	"github.com/ringfence/ringfence/engine/store"
	"github.com/ringfence/ringfence/fence"
	"github.com/ringfence/ringfence/segfile/record"
)

// producerDefaults fills in what the options leave open.
func producerDefaults(o ProducerOptions, arena int) (ProducerOptions, error) {
	o.BatchBytes = cmp.Or(o.BatchBytes, 256<<10)
	o.MaxInFlight = cmp.Or(o.MaxInFlight, 5)
	switch {
	case o.BatchBytes < minBatch || o.BatchBytes > MaxBatchBytes:
		return o, fmt.Errorf("engine: BatchBytes is %d, must be %d to %d", o.BatchBytes, minBatch, MaxBatchBytes)
	case o.BatchBytes > largestBatch(arena):
		return o, fmt.Errorf("engine: BatchBytes %d is more than a quarter of ArenaBytes %d: raise ArenaBytes", o.BatchBytes, arena)
	case o.Codec != record.None && o.Codec != record.S2 && o.Codec != record.Zstd:
		return o, fmt.Errorf("engine: Codec is %v, want None, S2 or Zstd", o.Codec)
	case o.MaxInFlight < 0 || o.Linger < 0:
		return o, errors.New("engine: MaxInFlight and Linger may not be negative")
	}
	return o, nil
}

const minBatch = 4 << 10

// largestBatch is the largest batch that an arena serves.
func largestBatch(arena int) int { return min(MaxBatchBytes, arena/4) }

// Producer sends records to one topic. It is safe for concurrent use; records with equal
// keys keep the order in which the calls of Produce, Append and [Batch.Send] took them.
// It holds one open batch per range in the engine's arena. Close it after use.
type Producer struct {
	e     *Engine
	opts  ProducerOptions
	topic *frontend.Topic
	name  string

	mu      sync.Mutex                   // guards all below and the lanes; never held across I/O, a command or a callback
	seq     uint64                       // sequence of the last record taken
	sent    [2 * sessionWindow]sentFrame // the last ones of Frame.Send, which fills it round and round
	sentAt  int
	version uint64     // of the routes
	lanes   []*lane    // tile the keyspace, by start
	pending [2]int     // records taken and not answered, by the age of their batches
	age     int        // of new batches: 0 or 1, turned over by Flush
	flushes bool       // somebody is in Flush
	moving  bool       // the ranges changed, and what the lanes hold is being routed anew
	changed *sync.Cond // signalled for moving, closed, flushes, pending and the lanes' queues
	spare   []*batch
	closed  bool  // no record is taken any more
	named   bool  // the caller chose the ID: a later run recognises by it what is stored
	halted  error // a record of a named producer failed, or it was stopped: nothing is sent any more
	tasks   sync.WaitGroup

	ctx    context.Context // ends when Close gives up what is not stored yet
	cancel context.CancelFunc
}

// ID is the number by which this producer's repeats are recognised: that of the options,
// or the one that was drawn.
func (p *Producer) ID() uint64 { return p.opts.ID }

// NewProducer returns a producer for a topic that exists. Errors: ErrNoSuchTopic,
// ErrInvalidTopicName, ErrClosed, or what is wrong with the options.
func (e *Engine) NewProducer(o ProducerOptions) (*Producer, error) {
	if err := e.begin(); err != nil {
		return nil, err
	}
	defer e.end()
	o, err := producerDefaults(o, e.opts.ArenaBytes)
	if err != nil {
		return nil, err
	}
	if err := api.CheckTopic(o.Topic); err != nil {
		return nil, err
	}
	named := o.ID != 0 && !o.NotIdempotent
	if o.ID == 0 {
		o.ID = e.dice()
	}
	t, err := e.topic(o.Topic)
	if err != nil {
		return nil, about(o.Topic, -1, err)
	}
	p := &Producer{e: e, opts: o, topic: t, name: o.Topic, named: named}
	p.changed = sync.NewCond(&p.mu)
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.route(); err != nil {
		return nil, about(o.Topic, -1, err)
	}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	e.enlist(p)
	e.written.Do(e.retainSoon)
	return p, nil
}

// Produce stores one record and returns when it is durable. What r points to is copied.
// If ctx ends first, Produce returns its error and the record may still be stored. A
// caller that is driving the disk at that moment, for others as well, returns only when
// the disk has answered.
func (p *Producer) Produce(ctx context.Context, r Record) (Placement, error) {
	if err := p.e.notCalledBack(); err != nil {
		return Placement{}, about(p.name, -1, err)
	}
	t, err := p.take(ctx, &r, nil)
	if err != nil {
		return Placement{}, err
	}
	if t.gather {
		t.lead = p.depart(t.b)
	}
	return p.result(ctx, t)
}

// taken is a record of a caller who waits for its outcome.
type taken struct {
	b      *batch
	at     int
	done   chan struct{}  // b's, if others wait as well
	gather bool           // the caller gives others the time to join, then sends b
	lead   *store.Segment // where the caller handed b over itself, and reaps for it
}

// Append takes one record and returns. It blocks, until ctx ends, only while the arena has
// no memory for another batch or MaxInFlight batches of the range are waiting already.
// Key, Value and Headers are copied before Append returns. After an error the record was
// not taken, and done is not called.
//
// done, which may be nil, is called once, when the record is durable or has failed. Within
// a range the calls come in the order of the records. done runs on an engine goroutine,
// which others wait for: it must not block. Calls that would have to wait for the disk there
// fail with ErrOverloaded instead: Append and [Batch.Send] if there is no room, and Produce,
// Flush and Close always.
func (p *Producer) Append(ctx context.Context, r Record, done func(Placement, error)) error {
	if done == nil {
		done = func(Placement, error) {}
	}
	_, err := p.take(ctx, &r, done)
	return err
}

// push sends what a lane holds as soon as it may leave. mu is held.
func (p *Producer) push(l *lane) {
	if p.opts.Linger > 0 {
		l.linger()
	} else {
		l.settle()
	}
	l.send(nil)
}

// take adds r to its lane's open batch. If there is a done, it also sends the batch as soon
// as it may leave; without one, the caller is counted among those who wait for the batch.
func (p *Producer) take(ctx context.Context, r *Record, done func(Placement, error)) (taken, error) {
	rec := record.Record{Key: r.Key, Value: r.Value, Headers: r.Headers, Timestamp: p.e.stamp(r)}
	keyed := record.Position(rec.Key)
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		if err := p.ready(ctx); err != nil {
			return taken{}, err
		}
		seq := p.seq + 1
		pos := keyed
		if rec.Key == nil {
			pos = record.KeylessPosition(p.opts.ID, seq)
		}
		l := p.laneOf(pos)
		b := l.open
		if b == nil {
			fresh, err := p.freshBatch(ctx, p.opts.BatchBytes)
			if err != nil {
				return taken{}, err
			}
			if l.open == nil && !l.retired && !p.moving {
				fresh.lane, l.open = l, fresh
			} else {
				p.recycle(fresh) // mu was released: look again
			}
			continue
		}
		switch err := b.build.AddAt(&rec, pos, p.sequence(seq)); {
		case err == nil:
			p.seq = seq
			if b.build.Len() == 1 {
				b.age = p.age
			}
			p.pending[b.age]++
			if done != nil {
				b.calls = append(b.calls, call{at: b.build.Len() - 1, done: done})
				// Nobody waits for b, so it may land and be reused as soon as it leaves.
				p.push(l)
				return taken{}, nil
			}
			return p.join(l, b), nil
		case errors.Is(err, record.ErrBatchFull):
			l.closeOpen()
			l.send(nil)
			for len(l.waiting) >= p.opts.MaxInFlight && !p.moving {
				if err := p.wait(ctx); err != nil {
					return taken{}, err
				}
			}
		default:
			l.dropEmpty()
			return taken{}, p.refused(err, p.opts.BatchBytes)
		}
	}
}

func (p *Producer) sequence(seq uint64) uint64 {
	if p.opts.NotIdempotent {
		return 0
	}
	return seq
}

// ready waits until records can be taken. mu is held, and released while waiting.
func (p *Producer) ready(ctx context.Context) error {
	for p.moving && !p.closed {
		if err := p.wait(ctx); err != nil {
			return err
		}
	}
	if p.closed {
		return ErrClosed
	}
	if p.halted != nil {
		return p.halted
	}
	return ctx.Err()
}

// halt stops a named producer because a record failed. mu is held.
func (p *Producer) halt(err error) {
	if p.named && p.halted == nil {
		p.halted = fmt.Errorf("%w: a record before was not stored; send all from the start with a new producer of the ID %d: %w", ErrHalted, p.opts.ID, err)
	}
}

// stop makes the producer take and send nothing any more: what is not handed to the disk
// yet fails.
func (p *Producer) stop(why error) {
	p.mu.Lock()
	p.closed = true
	if p.halted == nil {
		p.halted = fmt.Errorf("%w: %w", ErrClosed, why)
	}
	p.changed.Broadcast()
	p.mu.Unlock()
	p.giveUp()
}

// giveUp ends what looks for write heads and memory. None begins after it: those who would
// begin one look at ctx under mu.
func (p *Producer) giveUp() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cancel()
}

// refused explains why a batch of size bytes did not take a record.
func (p *Producer) refused(err error, size int) error {
	if errors.Is(err, record.ErrRecordTooLarge) {
		err = fmt.Errorf("%w: it does not fit a batch of %d bytes (ProducerOptions.BatchBytes): %w", ErrRecordTooLarge, size, err)
	}
	return about(p.name, -1, err)
}

// join counts the caller, whose record is the last of the lane's open batch, among those
// who wait for it. A caller who finds the lane free sends the batch: at once, or, if
// several callers shared the batch before, after the others had the chance to join. mu is
// held, and released while a batch is handed over.
func (p *Producer) join(l *lane, b *batch) taken {
	t := taken{b: b, at: b.build.Len() - 1}
	if b.waiters.Add(1) > 1 && b.done == nil {
		b.done = make(chan struct{})
	}
	t.done = b.done
	switch {
	case l.gathering || !l.free():
	case p.opts.Linger > 0:
		l.linger()
	case l.crowd > 1:
		l.gathering, t.gather = true, true
	default:
		l.closeOpen()
		if l.send(b) {
			t.lead = b.head
		}
	}
	return t
}

// depart sends b once those who are about to join it have done so.
func (p *Producer) depart(b *batch) (lead *store.Segment) {
	p.mu.Lock()
	defer p.mu.Unlock()
	l := b.lane
	l.gather(l.crowd)
	l.settle()
	if l.send(b) {
		lead = b.head
	}
	return lead
}

// result waits for the outcome of a record's batch. The caller that handed the batch over
// waits in the store, where it may do the reaping itself; the others wait for done.
func (p *Producer) result(ctx context.Context, t taken) (Placement, error) {
	b := t.b
	if t.done == nil {
		if t.lead != nil {
			t.lead.Wait(&b.req)
		}
		p.mu.Lock()
		if b.over {
			defer p.mu.Unlock()
			defer b.leave(p)
			return b.placeOf(t.at), b.err
		}
		if b.done == nil {
			b.done = make(chan struct{})
		}
		t.done = b.done
		p.mu.Unlock()
	} else if t.lead != nil {
		t.lead.Wait(&b.req)
	}
	if ctx.Done() == nil {
		<-t.done
	} else {
		select {
		case <-t.done:
		case <-ctx.Done():
			p.mu.Lock()
			b.leave(p)
			p.mu.Unlock()
			return Placement{}, fmt.Errorf("topic %q: the record may still be stored: %w", p.name, ctx.Err())
		}
	}
	place, err := b.placeOf(t.at), b.err
	b.leaveOver(p)
	return place, err
}

// Flush sends what is gathered and returns when every record taken before the call is
// answered, stored or not. Records taken meanwhile do not hold it up. An error is that of
// ctx; how each record fared is told to its own caller.
func (p *Producer) Flush(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.flushes {
		if err := p.wait(ctx); err != nil {
			return p.unanswered(err)
		}
	}
	p.flushes = true
	defer func() {
		p.flushes = false
		p.changed.Broadcast()
	}()
	// Records of two ages may be on their way. First wait for those of the other age,
	// which then becomes the age of what comes from now on; then for the rest.
	for range p.pending {
		for _, l := range slices.Clone(p.lanes) {
			l.closeOpen()
			l.send(nil)
		}
		for p.pending[p.age^1] > 0 {
			if err := p.wait(ctx); err != nil {
				return p.unanswered(err)
			}
		}
		p.age ^= 1
	}
	return nil
}

func (p *Producer) unanswered(err error) error {
	return fmt.Errorf("topic %q: %d records are still on their way: %w", p.name, p.pending[0]+p.pending[1], err)
}

// wait returns when something changed or ctx ended. mu is held, and released
// while waiting.
func (p *Producer) wait(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() {
		p.mu.Lock()
		p.changed.Broadcast()
		p.mu.Unlock()
	})
	defer stop()
	if err := cmp.Or(ctx.Err(), p.e.notCalledBack()); err != nil {
		return err
	}
	p.changed.Wait()
	return ctx.Err()
}

// Close takes no more records, flushes and ends the producer. If ctx ends first, what is
// not handed to the disk yet fails with ErrClosed, and Close returns ctx's error. A callback
// cannot close a producer.
func (p *Producer) Close(ctx context.Context) error {
	if err := p.e.notCalledBack(); err != nil {
		return about(p.name, -1, err)
	}
	p.mu.Lock()
	p.closed = true
	p.changed.Broadcast()
	p.mu.Unlock()
	err := p.Flush(ctx)
	p.giveUp()
	p.tasks.Wait()
	p.mu.Lock()
	for _, l := range p.lanes {
		l.dropEmpty()
	}
	p.mu.Unlock()
	p.e.delist(p)
	return err
}

// laneOf finds the lane of a key position. mu is held.
func (p *Producer) laneOf(pos uint32) *lane { return laneAt(p.lanes, pos) }

// laneAt finds the lane of a key position among lanes that tile the keyspace.
func laneAt(lanes []*lane, pos uint32) *lane {
	if len(lanes) == 1 {
		return lanes[0]
	}
	i, _ := slices.BinarySearchFunc(lanes, pos, func(l *lane, pos uint32) int {
		return cmp.Compare(l.last, pos)
	})
	return lanes[min(i, len(lanes)-1)]
}

// route makes the lanes tile the topic's active ranges; those of ranges that are
// still active stay. mu is held.
func (p *Producer) route() error {
	ranges, version := p.topic.Slices()
	if len(ranges) == 0 {
		return cp.ErrNoSuchTopic
	}
	old := map[fence.RangeID]*lane{}
	for _, l := range p.lanes {
		old[l.id] = l
	}
	p.lanes = nil
	for _, r := range ranges {
		l := old[r.Range]
		if l == nil {
			l = &lane{p: p, id: r.Range, first: r.First, last: r.Last}
		}
		delete(old, r.Range)
		p.lanes = append(p.lanes, l)
	}
	for _, l := range old {
		l.retired = true
	}
	p.version = version
	return nil
}
