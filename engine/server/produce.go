package server

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/ringfence/ringfence/engine/api"
	"github.com/ringfence/ringfence/engine/wire"
	"github.com/ringfence/ringfence/segfile/record"
)

// producer is one producer of a connection. Its frames come from the reader, or through
// shared memory.
type producer struct {
	topic   string
	to      Producer
	numbers bool           // its records have sequences
	closing bool           // guarded by the handles' lock
	pending sync.WaitGroup // frames whose answers are not queued

	halted error // of who takes the frames: one was refused, so that none behind it may be stored
}

// maxProduce is the longest message of a Produce that is looked at, in bytes. It holds a
// number; the rest is for what later versions may add.
const maxProduce = 1 << 10

// sending is a frame that is on its way to the device.
type sending struct {
	c  *conn
	p  *producer
	id uint32

	shared *shared                    // where the frame came from; nil: the socket
	done   func(api.Placement, error) // complete, bound once
}

var sendings sync.Pool // of *sending

func (c *conn) newSending(p *producer, id uint32) *sending {
	s, ok := sendings.Get().(*sending)
	if !ok {
		s = &sending{}
		s.done = s.complete
	}
	s.c, s.p, s.id = c, p, id
	return s
}

// complete answers the request. The engine calls it, from where it must not wait.
func (s *sending) complete(at api.Placement, err error) {
	c, p, id, shared := s.c, s.p, s.id, s.shared
	s.c, s.p, s.shared = nil, nil, nil
	sendings.Put(s)
	c.s.storing.Add(-1)
	if shared != nil {
		shared.complete(id, at, p.lost(err))
	} else if err != nil {
		c.fail(wire.Head{Key: wire.KeyProduce, ID: id}, p.lost(err))
	} else {
		c.send(outgoing{key: wire.KeyProduce, flags: wire.FlagReply, id: id, place: at})
	}
	p.pending.Done()
}

// produce reads a record frame into memory of the engine and sends it to the device.
func (c *conn) produce(h wire.Head) error {
	p, err := c.producerOf(h)
	if p == nil || err != nil {
		return err
	}
	frame, err := c.receive(p, h.Raw())
	if err == nil {
		c.out.arrived()
		if err = c.spend(frame); err != nil {
			frame.Discard()
		}
	}
	if err == nil {
		s := c.newSending(p, h.ID)
		p.pending.Add(1)
		others := c.s.storing.Add(1) > 1
		if err = frame.Send(c.patience(), !others && c.leads(), s.done); err == nil {
			return nil
		}
		c.s.storing.Add(-1)
		p.pending.Done()
		frame.Discard()
		err = c.behind(p, h.Raw(), err)
	}
	if e := (*wire.Error)(nil); errors.As(err, &e) && p.numbers && p.halted == nil {
		p.halted = e
	}
	return c.refuse(h, err)
}

// leads says whether the reader may wait for the disk, where nothing else is on its way
// there: the client sends one request at a time and waits for the answer, and nothing else
// of it is here. Of many clients the engine's own goroutine gathers more.
func (c *conn) leads() bool { return c.lone >= loneRequests && c.br.Buffered() == 0 }

// loneRequests is how many requests in a row are to come each after the answer to the
// one before, so that the next one is expected to.
const loneRequests = 8

// producerOf reads the message of a Produce and finds the producer that takes its frame.
// A nil one means that the request was refused and its frame skipped.
func (c *conn) producerOf(h wire.Head) (*producer, error) {
	if h.Message > maxProduce {
		c.fail(h, refusal(wire.CodeMalformed, "Produce with a message of %d bytes, at most %d", h.Message, maxProduce))
		return nil, c.skip(int(h.Length))
	}
	c.await(int(h.Length))
	msg, err := c.br.Peek(int(h.Message))
	if err != nil {
		return nil, torn(err)
	}
	handle, err := wire.ParseProduce(msg)
	_, _ = c.br.Discard(len(msg)) // they are there
	var p *producer
	if err == nil && c.shared.Load() != nil {
		err = refusal(wire.CodeUnsupported, "the connection shares memory: frames go through that")
	}
	if err == nil {
		p, err = c.handles.producer(handle, false)
	}
	if err == nil {
		err = c.mayProduce(p)
	}
	if err == nil {
		err = p.takes(h.Raw())
	}
	if err != nil {
		c.fail(h, err)
		return nil, c.skip(h.Raw())
	}
	return p, nil
}

// mayProduce asks whether the connection may write to the topic, now: that can end at
// any time.
func (c *conn) mayProduce(p *producer) error {
	if c.s.opts.Allow == nil {
		return nil
	}
	who := *c.who.Load()
	err := c.s.allow(who, OpProduce, p.topic)
	if e := (*wire.Error)(nil); errors.As(err, &e) {
		c.refused(wire.KeyProduce, who, p.topic, e)
		if p.numbers && p.halted == nil {
			p.halted = e
		}
	}
	return err
}

// spend charges the quota of whoever sends a frame. How many records are in it the frame
// says itself: if that is not true, it is not stored.
func (c *conn) spend(frame Frame) error {
	if c.s.opts.Spend == nil {
		return nil
	}
	head, err := record.ParseHead(frame.Header(), 0)
	if err != nil {
		return nil // the engine refuses it, and says why
	}
	return c.s.opts.Spend(*c.who.Load(), int(head.Count), len(frame.Bytes()))
}

// throttled is a refusal of what was on its way behind a frame that a quota put off.
type throttled struct{ error }

func (t throttled) Unwrap() error { return t.error }

// takes says why a frame of n bytes is refused without a look at it.
func (p *producer) takes(n int) error {
	var err *wire.Error
	switch {
	case p.halted != nil:
		err = refusal(wire.CodeProducerHalted, "topic %q: a frame before this one was refused (%s): open the producer again and send all from that one on", p.topic, p.halted)
		if errors.Is(p.halted, wire.CodeRateLimited) {
			return throttled{err}
		}
		return err
	case n <= record.HeaderSize:
		err = refusal(wire.CodeCorruptFrame, "topic %q: Produce with %d bytes of a record frame", p.topic, n)
	case n > p.to.MaxFrame():
		err = refusal(wire.CodeRecordTooLarge, "topic %q: a frame of %d bytes, at most %d", p.topic, n, p.to.MaxFrame())
	default:
		return nil
	}
	if p.numbers {
		p.halted = err
	}
	return err
}

// receive reads n bytes of a record frame from the socket straight into memory of the
// engine. Where too much of that waits for bytes on their way, it is taken only once the
// frame is here. A *wire.Error says that the frame was skipped.
func (c *conn) receive(p *producer, n int) (Frame, error) {
	here := c.br.Buffered() >= n
	if !here && !c.s.receiving.try(int64(n)) {
		b, taken, err := c.gather(n)
		defer func() { c.s.heap.give(taken) }()
		if err != nil {
			return nil, err
		}
		f, err := c.newFrame(p, n)
		if err == nil {
			copy(f.Bytes(), b)
		}
		return f, err
	}
	if !here {
		defer c.s.receiving.give(int64(n))
	}
	f, err := c.newFrame(p, n)
	if err != nil {
		if err := c.skip(n); err != nil {
			return nil, err
		}
		return nil, err
	}
	c.await(n)
	if _, err := io.ReadFull(c.br, f.Bytes()); err != nil {
		f.Discard()
		return nil, torn(err)
	}
	return f, nil
}

// newFrame takes memory of the engine. The error is a *wire.Error.
func (c *conn) newFrame(p *producer, n int) (Frame, error) {
	start := time.Now()
	f, err := p.to.NewFrame(c.patience(), n)
	c.waited(start)
	if err != nil {
		return nil, c.behind(p, n, err)
	}
	return f, nil
}

// behind is the refusal of a frame that the engine did not take.
func (c *conn) behind(p *producer, n int, err error) *wire.Error {
	if errors.Is(err, context.DeadlineExceeded) && c.patient.Err() != nil {
		return refusal(wire.CodeOverloaded, "topic %q: there was no room for a frame of %d bytes: the disk is behind; try again", p.topic, n)
	}
	return told(p.lost(err))
}

// lost gives a frame that met a closed producer its meaning: the connection has not
// closed it, so the engine did, because another one opened the same producer. Coming
// back would only take it from that one again.
//
// After a write that failed a producer that numbers its records may come back, too: they
// go to another file, and those that are stored are recognised.
func (p *producer) lost(err error) error {
	switch {
	case errors.Is(err, api.ErrClosed):
		return refusal(wire.CodeProducerHalted, "topic %q: another run has opened a producer of the same ID, and goes on in place of this one", p.topic)
	case p.numbers && errors.Is(err, api.ErrStorage):
		return refusal(wire.CodeWriteFailed, "%s", err)
	}
	return err
}

// closeProducer answers when everything that was sent before is answered.
func (c *conn) closeProducer(h wire.Head, handle uint32, p *producer) {
	if s := c.shared.Load(); s != nil {
		s.between()
	}
	err := p.to.Close(c.ctx)
	if err != nil && c.ctx.Err() != nil {
		return // it is closed with the connection, which is gone
	}
	p.pending.Wait()
	c.handles.closed(handle)
	if err != nil {
		c.fail(h, err)
		return
	}
	c.reply(h, &wire.Done{})
}
