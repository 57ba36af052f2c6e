package client

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ringfence/ringfence/engine/api"
	"github.com/ringfence/ringfence/segfile/record"
)

// Producer sends records to one topic. It is safe for concurrent use; records with equal keys
// keep the order in which the calls of Produce, Append and [Batch.Send] took them. Close it
// after use.
//
// Records gather in one open batch for each range of the topic (lane.go). Closed batches
// wait in one queue, are sent, and are answered (session.go).
type Producer struct {
	c     *Client
	name  string
	opts  api.ProducerOptions
	link  *link
	named bool            // the ID was given: a later run tells by it what is stored
	life  context.Context // ends when what is not stored is given up
	end   context.CancelFunc

	mu       sync.Mutex  // guards all below; never held across I/O or a callback
	changed  *sync.Cond  // the queue got shorter, or something ended
	seq      uint64      // sequence of the last record of the last batch that was closed
	lanes    []*lane     // tile the keyspace, by position
	keyless  lane        // of records without a key, while there are several lanes
	mixed    lane        // of batches that callers filled
	version  uint64      // of the routes that the lanes are for; 0: none
	learning bool        // a goroutine asks for others
	queue    line        // batches that are closed and not yet told of
	closing  uint64      // how many batches were closed: the last one's number
	lingerOn bool        // a timer will close the open batch
	closed   atomic.Bool // no record is taken any more. Set with mu, read without it, too
	halted   error       // of a named one: a record failed, and nothing goes out any more
	tell     []*batch    // over, with callbacks to run
	told     []*batch    // memory for the next tell
	telling  bool        // a goroutine runs them
	spare    []*flight   // for use again

	session  *session      // nil: none
	flying   int           // batches handed to the session's connection and not answered
	opening  bool          // a goroutine opens a session
	refusals int           // sessions in a row that ended with nothing stored
	why      error         // what the last one ended with
	known    uint64        // number of the last batch that the server has confirmed, whatever is open before it
	slowed   time.Duration // waited because a quota was used up
	held     time.Time     // until when it waits for that
	alarm    *time.Timer   // runs expire
	armed    bool          // it will
}

// Slowed is how long the producer has been held up so far because its user was over a quota.
func (p *Producer) Slowed() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.slowed
}

// ID is the number by which this producer's repeats are recognised: that of the options, or
// the one that was drawn.
func (p *Producer) ID() uint64 { return p.opts.ID }

// NewProducer returns a producer for one topic.
func (c *Client) NewProducer(o api.ProducerOptions) (*Producer, error) {
	o, err := producerDefaults(o, c.opts.MemoryBytes)
	if err != nil {
		return nil, err
	}
	if err := api.CheckTopic(o.Topic); err != nil {
		return nil, err
	}
	l, err := c.forProducers()
	if err != nil {
		return nil, err
	}
	p := newProducer(c, l, o)
	ctx, cancel := context.WithTimeoutCause(p.life, c.opts.RequestTimeout, c.tooLate)
	defer cancel()
	s, err := p.openSession(ctx)
	if err == nil {
		p.session = s
		err = c.enlist(p)
	}
	if err == nil && !p.named && !c.unrouted.Load() {
		_ = p.learn(ctx) // the server takes apart what does not go by its ranges
	}
	if err != nil {
		p.end()
		return nil, about(o.Topic, err)
	}
	return p, nil
}

func newProducer(c *Client, l *link, o api.ProducerOptions) *Producer {
	p := &Producer{c: c, name: o.Topic, opts: o, link: l, named: o.ID != 0 && !o.NotIdempotent}
	for p.opts.ID == 0 {
		// Drawn here and not by the server, so that a request to open that was lost can
		// be repeated.
		p.opts.ID = rand.Uint64()
	}
	p.lanes = everywhere()
	p.changed = sync.NewCond(&p.mu)
	p.life, p.end = context.WithCancel(c.life)
	p.alarm = time.AfterFunc(time.Hour, p.expire)
	p.alarm.Stop()
	return p
}

func (c *Client) enlist(p *Producer) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return ErrClosed
	}
	c.producers[p] = struct{}{}
	return nil
}

func (c *Client) delist(p *Producer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.producers, p)
}

// Produce stores one record and returns when it is durable. What r points to is copied. If
// ctx ends first, the record may still be stored; [Unknown] says of an error whether it may.
func (p *Producer) Produce(ctx context.Context, r api.Record) (api.Placement, error) {
	t, err := p.take(ctx, &r, nil)
	if err != nil {
		return api.Placement{}, err
	}
	switch {
	case t.drive == nil:
	case t.drive.shared != nil:
		t.drive.listen(ctx, t.out.done)
	default:
		t.drive.drive()
	}
	select {
	case <-t.out.done:
		return t.out.placeOf(t.at), t.out.err
	case <-ctx.Done():
		return api.Placement{}, fmt.Errorf("topic %q: %w", p.name, unknown(ctx.Err()))
	}
}

// Append takes one record and returns. It blocks, until ctx ends, while there is no memory
// for another batch or enough batches are waiting. Key, Value and Headers are copied before
// Append returns. After an error the record was not taken, and done is not called.
//
// done, which may be nil, is called once, when the record is durable or has failed. Within a
// range the calls come in the order of the records. done runs on a goroutine of the producer;
// while it blocks, no other callback runs.
func (p *Producer) Append(ctx context.Context, r api.Record, done func(api.Placement, error)) error {
	if done == nil {
		done = func(api.Placement, error) {}
	}
	_, err := p.take(ctx, &r, done)
	return err
}

// taken is a record of a caller who waits for its outcome.
type taken struct {
	out   *outcome
	at    int   // its place in the batch
	drive *conn // has something to write, which the caller does; nil: nothing
}

// take adds r to the open batch, with done or for somebody who waits for the outcome
// that it answers.
func (p *Producer) take(ctx context.Context, r *api.Record, done func(api.Placement, error)) (t taken, err error) {
	rec := record.Record{Key: r.Key, Value: r.Value, Headers: r.Headers, Timestamp: r.Time.UnixMilli()}
	if r.Time.IsZero() {
		rec.Timestamp = time.Now().UnixMilli()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		if err := p.ready(ctx); err != nil {
			return t, err
		}
		l, pos := p.laneOf(r.Key)
		b := l.open
		if b == nil {
			fresh, err := p.freshBatch(ctx, p.opts.BatchBytes)
			if err != nil {
				return t, about(p.name, err)
			}
			if l.open == nil && !l.retired && !p.closed.Load() {
				l.open = fresh
			} else {
				fresh.letGo() // mu was released: look again
			}
			continue
		}
		err := record.ErrBatchFull
		if !p.full(l) {
			err = b.add(&rec, pos)
		}
		switch {
		case err == nil:
			t.at = b.build.Len() - 1
			if done != nil {
				b.calls = append(b.calls, call{t.at, done})
				p.push()
				return t, nil
			}
			if b.out == nil {
				b.out = &outcome{done: make(chan struct{})}
			}
			t.out = b.out
			if p.opts.Linger == 0 {
				t.drive = p.hand() // and so sends it, if nothing else is on its way
			} else {
				p.push()
			}
			return t, nil
		case errors.Is(err, record.ErrBatchFull):
			p.closeOpen(l)
			p.pump()
			if err := p.room(ctx); err != nil {
				return t, err
			}
		default:
			p.dropEmpty()
			return t, p.refused(err, p.opts.BatchBytes)
		}
	}
}

// ready says whether records are taken. mu is held.
func (p *Producer) ready(ctx context.Context) error {
	if p.closed.Load() {
		return ErrClosed
	}
	if p.halted != nil {
		return p.halted
	}
	return ctx.Err()
}

// room waits until another batch may be closed: as many may wait as may be in flight. mu is
// held, and released while waiting.
func (p *Producer) room(ctx context.Context) error {
	for p.queue.n >= 2*p.opts.MaxInFlight*len(p.lanes) {
		if err := p.wait(ctx); err != nil {
			return about(p.name, err)
		}
		if err := p.ready(ctx); err != nil {
			return err
		}
	}
	return nil
}

// push sends the open batch as soon as it may leave: at once if nothing else is under way,
// which is all there is to gathering, or after Linger. mu is held.
func (p *Producer) push() {
	switch {
	case p.opts.Linger == 0:
		p.pump()
	case !p.lingerOn:
		p.lingerOn = true
		time.AfterFunc(p.opts.Linger, func() {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.lingerOn = false
			p.closeAll()
			p.pump()
		})
	}
}

// refused explains why a batch of size bytes did not take a record.
func (p *Producer) refused(err error, size int) error {
	if errors.Is(err, record.ErrRecordTooLarge) {
		err = fmt.Errorf("%w: it does not fit a batch of %d bytes (ProducerOptions.BatchBytes): %w", ErrRecordTooLarge, size, err)
	}
	return about(p.name, err)
}

// halt stops a named producer because a record failed. mu is held.
func (p *Producer) halt(err error) {
	if p.named && p.halted == nil {
		p.halted = fmt.Errorf("%w: a record before was not stored; send all from the start with a new producer of the ID %d: %w", ErrHalted, p.opts.ID, err)
	}
}

// Flush sends what is gathered and returns when every record taken before the call is
// answered, stored or not. Records taken meanwhile do not hold it up. An error is that of
// ctx; how each record fared is told to its own caller.
func (p *Producer) Flush(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closeAll()
	p.pump()
	for last := p.closing; p.queue.n > 0 && p.queue.first.number <= last; {
		if err := p.wait(ctx); err != nil {
			return fmt.Errorf("topic %q: %d batches are still on their way: %w", p.name, p.queue.n, err)
		}
	}
	return nil
}

// wait returns when something changed or ctx ended. mu is held, and released
// while waiting.
func (p *Producer) wait(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.changed.Broadcast()
	})
	defer stop()
	if err := ctx.Err(); err != nil {
		return err
	}
	p.changed.Wait()
	return ctx.Err()
}

// Close takes no more records, flushes and ends the producer. If ctx ends first, what is not
// answered yet fails with ErrClosed, and Close returns ctx's error.
func (p *Producer) Close(ctx context.Context) error {
	p.mu.Lock()
	p.closed.Store(true)
	p.changed.Broadcast()
	p.mu.Unlock()
	err := p.Flush(ctx)
	p.mu.Lock()
	p.dropEmpty()
	s := p.session
	p.mu.Unlock()
	p.abort()
	p.c.delist(p)
	if s == nil {
		return err
	}
	if err != nil {
		s.conn.post(s.farewell()) // and does not wait
		return err
	}
	return about(p.name, s.close(ctx))
}

// abort fails what is not answered and ends the producer.
func (p *Producer) abort() {
	p.end()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed.Store(true)
	p.closeAll()
	p.failAll(ErrClosed)
	p.alarm.Stop()
	p.changed.Broadcast()
}
