package client

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/ringfence/ringfence/engine/api"
	"github.com/ringfence/ringfence/engine/wire"
	"github.com/ringfence/ringfence/segfile/record"
)

// session is a producer on one connection, under a handle of the server's. It ends with
// the connection, or when the server refuses a frame: the server then takes none of
// those behind it, so that none overtakes it. The next session has the same ID and
// starts with what was not answered, in order; what the server has of it already it
// recognises by the sequences.
type session struct {
	conn   *conn
	handle uint32
	limit  int
	stale  bool // nothing more is sent in it. The producer's mu guards this
	halted bool // by the refusal of a frame that goes again, with those behind it; likewise
}

// openSession opens the producer on the server.
func (p *Producer) openSession(ctx context.Context) (*session, error) {
	for n := 0; ; n++ {
		cn, err := p.link.get(ctx)
		if err != nil {
			return nil, err
		}
		msg, err := cn.call(ctx, wire.KeyOpenProducer, &wire.OpenProducer{
			Topic: p.name, Id: p.opts.ID, Unnumbered: p.opts.NotIdempotent,
		}, func(reply any) *request { return closeProducer(reply.(*wire.OpenProducerReply).Producer) })
		if err == nil {
			reply := msg.(*wire.OpenProducerReply)
			if reply.Id != p.opts.ID {
				return nil, fmt.Errorf("%w: it opened producer %d instead of %d", ErrProtocol, reply.Id, p.opts.ID)
			}
			return &session{conn: cn, handle: reply.Producer, limit: min(int(reply.MaxFrame), cn.largest())}, nil
		}
		if react(err, look) == again {
			err = p.c.pause(ctx, backoff(n, err), err)
		}
		if err != nil {
			return nil, meant(err)
		}
	}
}

// beside is more than what a frame of the protocol has beside a record frame.
const beside = 1 << 10

// largest is the size of the largest record frame that the connection carries.
func (c *conn) largest() int {
	if c.shared != nil {
		return c.shared.pool.most()
	}
	return int(c.limit - beside)
}

// close gives the producer up on the server.
func (s *session) close(ctx context.Context) error {
	_, err := s.conn.call(ctx, wire.KeyCloseProducer, s.farewell().msg, nil)
	if lost(err) || unsent(err) || code(wire.CodeNoSuchHandle)(err) || code(wire.CodeShuttingDown)(err) {
		return nil // it is gone, or goes with its connection
	}
	return meant(err)
}

func (s *session) farewell() *request { return closeProducer(s.handle) }

func closeProducer(handle uint32) *request {
	return &request{key: wire.KeyCloseProducer, msg: &wire.CloseProducer{Producer: handle}, owner: nobody{}}
}

// pump sends what may be sent. mu is held.
func (p *Producer) pump() {
	if cn := p.hand(); cn != nil {
		cn.nudge()
	}
}

// hand hands what may be sent to a connection, and answers that if there was something:
// the caller has it written, by drive once mu is released, or by poke. mu is held.
func (p *Producer) hand() (to *conn) {
	if p.life.Err() != nil {
		p.failAll(ErrClosed)
		return nil
	}
	if p.queue.n == 0 && p.opts.Linger == 0 {
		p.closeAll()
	}
	for b := p.queue.unsent; b != nil; b = p.queue.unsent {
		if b.over || b.flies != nil {
			p.queue.unsent = b.behind
			continue
		}
		if p.halted != nil {
			p.failWaiting(p.halted)
			return to
		}
		if b.lane.flying >= p.opts.MaxInFlight {
			return to // and nothing overtakes it
		}
		s := p.session
		if s == nil || s.stale {
			p.reopen()
			return to
		}
		err := b.finish()
		if err == nil && len(b.frame) > s.limit {
			err = fmt.Errorf("%w: a batch of %d bytes, the server takes %d: lower BatchBytes", ErrRecordTooLarge, len(b.frame), s.limit)
		}
		if err != nil {
			p.conclude(b, api.Placement{}, err) // b may be another one's now
			continue
		}
		if len(b.header) == 0 {
			b.header = append(b.header, b.frame[:record.HeaderSize]...)
		}
		f := p.flight()
		f.b, f.frame = b, b
		f.producer, f.raw, f.header = s.handle, b.frame, b.header
		b.flies, b.refusal = f, nil
		b.readers.Add(1)
		p.flying++
		b.lane.flying++
		if !s.conn.enqueue(&f.request) {
			b.flies = nil
			f.ends.Store(1)
			p.over(f)
			b.readers.Add(-1)
			p.flying--
			b.lane.flying--
			s.stale = true
			continue // again, in another session
		}
		to = s.conn
	}
	return to
}

// flight is one attempt to send a batch.
type flight struct {
	request
	p     *Producer
	b     *batch // the producer's mu guards this: nil when nobody waits for the answer
	frame *batch // whose memory the connection reads, until wrote

	ends   atomic.Int32      // wrote and answered are to come
	placed wire.ProduceReply // the answer, of a submission (shared.go)
}

// flight returns one for use. mu is held.
func (p *Producer) flight() *flight {
	var f *flight
	if n := len(p.spare); n > 0 {
		f = p.spare[n-1]
		p.spare = p.spare[:n-1]
	} else {
		f = &flight{p: p}
		f.key, f.owner = wire.KeyProduce, f
	}
	f.ends.Store(2)
	return f
}

// over is called once a flight was answered: it is used again, if the connection has called
// wrote before. mu is held.
func (p *Producer) over(f *flight) {
	if f.ends.Add(-1) == 0 {
		f.b, f.frame, f.raw, f.header = nil, nil, nil, nil
		p.spare = append(p.spare, f) // as many as ever flew at once
	}
}

// wrote: the connection does not need the frame any more.
func (f *flight) wrote(*request) {
	b := f.frame
	f.ends.Add(-1)
	b.letGo()
}

// answered is the server's answer to a batch, or the connection's end.
func (f *flight) answered(_ *request, a answer) {
	p := f.p
	p.mu.Lock()
	p.settle(f, a)
	cn := p.hand()
	p.mu.Unlock()
	if cn != nil {
		cn.drive()
	}
}

// stored is answered for flights of a producer that were all stored, and that the
// connection does not need any more: what placed says of each. alone says that the last one
// was one record, whose caller waits and may send the next.
func (p *Producer) stored(all []*flight) (alone bool) {
	p.mu.Lock()
	for _, f := range all {
		alone = f.b != nil && f.b.out != nil && f.b.count == 1 && p.opts.Linger == 0
		p.settle(f, answer{placed: f.placed})
	}
	cn := p.hand()
	p.mu.Unlock()
	if cn != nil {
		cn.drive()
	}
	return alone
}

// settle tells the batch of a flight its outcome. mu is held.
func (p *Producer) settle(f *flight, a answer) {
	defer p.over(f)
	b := f.b
	if b == nil {
		return
	}
	b.flies = nil
	p.flying--
	b.lane.flying--
	if a.err == nil {
		p.refusals, p.why = 0, nil
		p.known = max(p.known, b.number)
		p.landed(a.placed.Range)
		p.conclude(b, b.placed(a.placed), nil)
	} else {
		p.failed(b, a.err)
	}
}

// failed deals with a batch whose sending failed. mu is held.
func (p *Producer) failed(b *batch, err error) {
	k := numbered
	if p.opts.NotIdempotent {
		k = loose
	}
	b.sent = b.sent || maybe(err)
	does := react(err, k)
	if p.named && errors.Is(err, wire.CodeProducerHalted) && (p.session == nil || !p.session.halted) {
		does = tell // another run has the ID
	}
	gone := lost(err) || unsent(err) // the connection, which is made again with pauses of its own
	if does == again && !gone && !errors.Is(err, wire.CodeProducerHalted) {
		b.refusal = err
	}
	if s := p.session; s != nil && (k == numbered || does == again) {
		if !s.stale && !gone {
			p.refusals++
			p.why = err
			s.halted = does == again
		}
		s.stale = true
	}
	if does == again {
		p.queue.again(b)
	} else {
		p.conclude(b, api.Placement{}, b.verdict(err))
	}
}

// verdict is the error of a batch, which says whether it may be stored all the same.
func (b *batch) verdict(err error) error {
	if err = meant(err); b.sent {
		return unknown(err)
	}
	return err
}

// reopen has a goroutine open the next session once everything of the last one is
// answered. mu is held.
func (p *Producer) reopen() {
	if p.opening || p.flying > 0 {
		return
	}
	p.opening = true
	go p.nextSession()
}

func (p *Producer) nextSession() {
	p.mu.Lock()
	old, n, why := p.session, p.refusals, p.why
	p.session = nil
	p.dropOvertaken()
	pause := backoff(max(n, 1)-1, why)
	if n > 0 && errors.Is(why, wire.CodeRateLimited) {
		p.slowed += pause
		p.held = time.Now().Add(pause)
		for b := range p.queue.all {
			b.due = b.due.Add(pause) // a quota holds up, and fails nothing
		}
	}
	p.mu.Unlock()
	var err error
	if n > 0 {
		err = p.c.pause(p.life, pause, why)
	}
	// No longer than the batches have that wait for it.
	ctx, cancel := context.WithTimeoutCause(p.life, p.c.opts.RequestTimeout, p.c.tooLate)
	defer cancel()
	var s *session
	if err == nil && old != nil {
		_ = old.close(ctx) // where it fails the next one ends it
	}
	if err == nil {
		s, err = p.openSession(ctx)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.opening = false
	if err == nil {
		p.session = s
	} else if ctx.Err() == nil || p.life.Err() != nil {
		p.failWaiting(err)
	}
	p.pump()
}

// dropOvertaken fails what the server did not take while it took something behind it:
// sent again it would look like a repeat, and be lost. A server that keeps to its
// promise refuses what is behind as well. mu is held.
func (p *Producer) dropOvertaken() {
	for b := range p.queue.all {
		if !b.over && b.refusal != nil && b.number < p.known {
			p.conclude(b, api.Placement{}, b.verdict(b.refusal))
		}
	}
}

// failAll fails what is not over. mu is held.
func (p *Producer) failAll(err error) {
	for b := range p.queue.all {
		b.forget()
	}
	p.failWaiting(err)
}

// failWaiting fails what is neither over nor on its way. mu is held.
func (p *Producer) failWaiting(err error) {
	for b := range p.queue.all {
		if !b.over && b.flies == nil {
			p.conclude(b, api.Placement{}, b.verdict(err))
		}
	}
}

// expire fails the batches whose time is over.
func (p *Producer) expire() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.armed = false
	now := time.Now()
	for b := range p.queue.all {
		if b.over {
			continue
		}
		if b.due.After(now) {
			p.armed = true
			p.alarm.Reset(b.due.Sub(now))
			break
		}
		err := p.c.tooLate
		b.forget()
		if b.refusal != nil {
			err = fmt.Errorf("%w: %w", err, meant(b.refusal))
		} else if p.why != nil {
			err = fmt.Errorf("%w: %w", err, meant(p.why))
		}
		p.conclude(b, api.Placement{}, b.verdict(err))
	}
	p.pump()
}
