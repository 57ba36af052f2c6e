package server

import (
	"context"
	"errors"
	"io"
	"os"
	"time"

	"github.com/ringfence/ringfence/engine/wire"
)

// read takes frames until the connection is to end, and says why: an *wire.Error that
// the client is told, io.EOF where it closed its side between two frames, errStopped, or
// what failed.
func (c *conn) read() error {
	for {
		if err := c.next(); err != nil {
			return c.explained(err)
		}
	}
}

// explained gives an error of the socket its meaning.
func (c *conn) explained(err error) error {
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		return err
	}
	c.stopping.Lock()
	defer c.stopping.Unlock()
	o := &c.s.opts
	switch {
	case c.stopping.stopped:
		return c.stopping.why
	case c.who.Load() == nil:
		return refusal(wire.CodeNotAuthenticated, "not logged in within %s", o.LoginTimeout)
	case errors.Is(err, errIdle):
		return refusal(wire.CodeUnavailable, "nothing was sent for %s: send a Ping in half of that time", o.IdleTimeout)
	}
	return refusal(wire.CodeUnavailable, "a frame did not arrive within %s", o.FrameTimeout)
}

// errIdle is a deadline that passed between two frames.
var errIdle = errors.Join(errors.New("server: idle"), os.ErrDeadlineExceeded)

// next takes one frame and starts what it asks for.
func (c *conn) next() error {
	h, err := c.head()
	if err != nil {
		return err
	}
	c.s.count.requests.add(h.Key)
	c.s.count.received.Add(wire.HeadSize + int64(h.Length))
	if c.who.Load() == nil {
		return c.enter(h)
	}
	if h.Key == wire.KeyCredit {
		return c.credit(h)
	}
	closing := c.s.closing.Load()
	start := time.Now()
	alone, err := c.out.admit(c.ctx, h, closing)
	if err != nil {
		return err
	}
	if c.lone++; !alone {
		c.lone = 0
	}
	c.waited(start)
	if closing {
		c.fail(h, refusal(wire.CodeShuttingDown, "the server is shutting down"))
		return c.skip(int(h.Length))
	}
	if h.Key == wire.KeyProduce {
		err = c.produce(h)
	} else {
		err = c.ask(h)
	}
	if err == nil {
		c.out.arrived()
	}
	return err
}

// ask reads a request that is none to store, and starts it.
func (c *conn) ask(h wire.Head) error {
	msg, err := c.message(h)
	if err != nil {
		return c.refuse(h, err)
	}
	m, err := wire.Request(h.Key, msg)
	if err != nil {
		return c.refuse(h, err)
	}
	c.out.arrived()
	return c.refuse(h, c.start(h, m))
}

// refuse answers a request with err if that is a refusal, and otherwise passes the error
// on, which ends the connection.
func (c *conn) refuse(h wire.Head, err error) error {
	if e := (*wire.Error)(nil); errors.As(err, &e) {
		c.fail(h, e)
		return nil
	}
	return err
}

// head reads the next frame's head. Whatever is wrong with that ends the connection:
// where the frame after it begins is not known.
func (c *conn) head() (wire.Head, error) {
	limit := uint32(wire.MaxFrame)
	in := c.who.Load() != nil
	if !in {
		limit = wire.MaxFirst
	}
	if c.br.Buffered() == 0 {
		if in {
			c.readUntil(time.Now().Add(c.s.opts.IdleTimeout))
		}
		if _, err := c.br.Peek(1); err != nil {
			if errors.Is(err, os.ErrDeadlineExceeded) {
				err = errIdle
			}
			return wire.Head{}, err
		}
	}
	c.frameBy = time.Time{}
	c.await(wire.HeadSize)
	b, err := c.br.Peek(wire.HeadSize)
	if err != nil {
		return wire.Head{}, torn(err)
	}
	h, err := wire.ParseHead(b, limit)
	if err == nil && h.Flags != 0 {
		err = refusal(wire.CodeMalformed, "%s frame with flags %#x, which are a server's", h.Key, h.Flags)
	}
	_, _ = c.br.Discard(wire.HeadSize) // they are there
	return h, err
}

// torn is the end of the stream inside of a frame.
func torn(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// await gives the rest of a frame its deadline if n bytes of it are not here yet. It is
// the same until the frame's end. Logging in has one deadline for all.
func (c *conn) await(n int) {
	if c.br.Buffered() >= n || c.who.Load() == nil {
		return
	}
	if c.frameBy.IsZero() {
		c.frameBy = time.Now().Add(c.s.opts.FrameTimeout)
	}
	c.readUntil(c.frameBy)
}

// waited leaves what the server itself waited since start out of the frame's deadline.
func (c *conn) waited(start time.Time) {
	if !c.frameBy.IsZero() {
		c.frameBy = c.frameBy.Add(time.Since(start))
	}
}

// message reads the message of an admitted request, which has a part of the server's
// heap until it is answered. A *wire.Error leaves the connection at the next frame.
func (c *conn) message(h wire.Head) ([]byte, error) {
	c.await(int(h.Length))
	msg, taken, err := c.gather(int(h.Message))
	if err != nil {
		c.s.heap.give(taken)
		return nil, err
	}
	c.out.hold(h.ID, taken)
	return msg, c.skip(h.Raw())
}

// gather reads n bytes into memory that grows as they come, and says how much of the
// server's heap that took, which is the caller's to give back. A *wire.Error says that
// there was not enough; then the bytes are skipped.
func (c *conn) gather(n int) (b []byte, taken int64, err error) {
	if c.br.Buffered() < n {
		defer c.s.arrivals.begin(c)()
	}
	size := 0
	for len(b) < n {
		grown := min(n, max(2*size, readBuffer))
		if !c.heapFor(int64(grown)) {
			c.s.arrivals.cutOff(int64(grown))
			if err := c.skip(n - len(b)); err != nil {
				return nil, taken, err
			}
			return nil, taken, refusal(wire.CodeOverloaded, "requests of all clients take more than %d bytes: try again", c.s.opts.TotalBytes)
		}
		next := make([]byte, grown)
		copy(next, b)
		c.s.heap.give(taken)
		b, size, taken = next[:len(b)], grown, int64(grown)
		c.arriving.Store(taken)
		got, err := io.ReadFull(c.br, next[len(b):])
		if err != nil {
			return nil, taken, torn(err)
		}
		b = next[:len(b)+got]
	}
	return b, taken, nil
}

// heapFor takes n bytes of the server's heap, if they are there. A little each connection
// has, whatever the others leave.
func (c *conn) heapFor(n int64) bool {
	if c.s.heap.try(n) {
		return true
	}
	if c.out.holds()+n > readBuffer {
		return false
	}
	c.s.heap.give(-n)
	return true
}

// skip reads n bytes that nobody wants.
func (c *conn) skip(n int) error {
	if n == 0 {
		return nil
	}
	c.await(n)
	_, err := c.br.Discard(n)
	return torn(err)
}

// patience is how long the reader waits for memory of the engine: while it does it hears
// no Ping. The context is used again for as long as it is good for one more wait.
func (c *conn) patience() context.Context {
	const wait = 10 * time.Second
	if now := time.Now(); now.After(c.patientFor) {
		if c.unpatient != nil {
			c.unpatient()
		}
		c.patient, c.unpatient = context.WithTimeout(c.ctx, 2*wait)
		c.patientFor = now.Add(wait)
	}
	return c.patient
}

// fail answers a request with an error.
func (c *conn) fail(h wire.Head, err error) {
	e := told(err)
	if later := (throttled{}); h.Key == wire.KeyProduce && (e.Code == wire.CodeRateLimited || errors.As(err, &later)) {
		c.s.count.throttled.Add(1)
	} else {
		c.s.count.failed.add(e.Code)
	}
	if e.Code == wire.CodeInternal {
		c.s.log.Warn("request failed for a reason that has no code of its own", "connection", c.id, "request", h.Key.String(), "error", err)
	}
	c.send(outgoing{key: h.Key, flags: wire.FlagReply | wire.FlagFailed, id: h.ID, msg: e})
	if e.Code == wire.CodeNotAuthenticated && c.who.Load() != nil {
		c.stop(e) // nobody is logged in here any more, and cannot be: who comes again can
	}
}

// reply answers a request.
func (c *conn) reply(h wire.Head, m wire.Message) {
	c.send(outgoing{key: h.Key, flags: wire.FlagReply, id: h.ID, msg: m})
}
