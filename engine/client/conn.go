package client

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/ringfence/ringfence/engine/wire"
)

// conn is one connection, from its hello to its end. It answers every request it was
// given once.
type conn struct {
	nc        net.Conn // with deadlines; set once, like all down to dead
	in        *bufio.Reader
	log       string // the server's
	limit     uint32 // bytes of a frame behind its head
	slots     int    // requests that may wait for their answers
	heartbeat time.Duration
	wake      chan struct{} // tells the writer of something to do
	dead      chan struct{} // closed with err

	mu      sync.Mutex // innermost
	queue   []*request // to be written, in order
	pending map[uint32]*request
	lastID  uint32
	err     error // why it ended
}

// request is one question and who hears the answer.
type request struct {
	key      wire.Key
	msg      wire.Message
	producer uint32 // of Produce, in place of msg
	raw      []byte // record frame behind the message; the owner's again after wrote
	into     []byte // memory for the record frames of the answer, to be appended to
	pages    bool   // the answer may have record frames
	owner    owner
}

// owner hears what becomes of a request. Its methods are called once each, in any
// order, by goroutines of the connection: they block on nothing but short locks.
type owner interface {
	wrote(*request) // the request's memory is not read any more
	answered(*request, answer)
}

// answer is what came back: a message, or where a frame was stored, or why not.
type answer struct {
	msg    any
	placed wire.ProduceReply
	raw    []byte
	err    error // *wire.Error of the server, *lostError, or that the request cannot be sent
}

// post queues a request. It does not block; false says that the connection is dead
// and the request still the caller's.
func (c *conn) post(r *request) bool {
	c.mu.Lock()
	if c.err != nil {
		c.mu.Unlock()
		return false
	}
	c.queue = append(c.queue, r)
	c.mu.Unlock()
	c.poke()
	return true
}

func (c *conn) poke() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// withdraw takes a request back that was not written yet, or says that it was.
func (c *conn) withdraw(r *request) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, q := range c.queue {
		if q == r {
			c.queue = append(c.queue[:i], c.queue[i+1:]...)
			return true
		}
	}
	return false
}

// kill ends the connection; the first reason counts.
func (c *conn) kill(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		c.err = err
		close(c.dead)
		c.nc.Close()
	}
}

// run serves the connection until it ends, and returns why. gone hears that first;
// then everything that was asked and not answered is answered.
func (c *conn) run(gone func(error)) error {
	var both sync.WaitGroup
	both.Go(func() { c.kill(c.write()) })
	both.Go(func() { c.kill(c.read()) })
	both.Wait()
	c.mu.Lock() // nothing is added any more
	queue, pending, err := c.queue, c.pending, c.err
	c.queue, c.pending = nil, nil
	c.mu.Unlock()
	gone(err)
	for _, r := range pending {
		r.owner.answered(r, answer{err: &lostError{sent: true, cause: err}})
	}
	for _, r := range queue {
		r.owner.wrote(r)
		r.owner.answered(r, answer{err: &lostError{cause: err}})
	}
	return err
}

// next takes the first request that may be written, and gives it an id. Pings do not
// wait for a slot.
func (c *conn) next() (*request, uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.queue) == 0 || len(c.pending) >= c.slots && c.queue[0].key != wire.KeyPing {
		return nil, 0
	}
	r := c.queue[0]
	c.queue[0] = nil
	c.queue = c.queue[1:]
	for c.lastID++; c.lastID == 0 || c.pending[c.lastID] != nil; {
		c.lastID++
	}
	c.pending[c.lastID] = r
	return r, c.lastID
}

// write sends what is queued, many requests in one write where they are there, and a
// ping every heartbeat.
func (c *conn) write() error {
	out := bufio.NewWriterSize(c.nc, 64<<10)
	var enc wire.Encoder
	tick := time.NewTicker(c.heartbeat)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			c.ping()
		default:
		}
		r, id := c.next()
		if r == nil {
			if err := out.Flush(); err != nil {
				return err
			}
			select {
			case <-c.wake:
			case <-c.dead:
				return c.err
			case <-tick.C:
				c.ping()
			}
			continue
		}
		err := c.put(out, &enc, r, id)
		r.owner.wrote(r)
		if err != nil {
			return err
		}
	}
}

// put writes one request.
func (c *conn) put(out *bufio.Writer, enc *wire.Encoder, r *request, id uint32) error {
	var head []byte
	if r.key == wire.KeyProduce {
		head = enc.Produce(id, r.producer, len(r.raw))
	} else {
		head = enc.Frame(r.key, 0, id, r.msg, len(r.raw))
	}
	if head == nil || len(head)-wire.HeadSize+len(r.raw) > int(c.limit) {
		c.settle(id)
		r.owner.answered(r, answer{err: fmt.Errorf("%w: the server takes requests of %d bytes at most", ErrRecordTooLarge, c.limit)})
		return nil
	}
	if _, err := out.Write(head); err != nil {
		return err
	}
	_, err := out.Write(r.raw)
	return err
}

// ping asks for a sign of life, before everything else.
func (c *conn) ping() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.queue) > 0 && c.queue[0].key == wire.KeyPing {
		return
	}
	c.queue = append([]*request{{key: wire.KeyPing, msg: &wire.Ping{}, owner: nobody{}}}, c.queue...)
}

// nobody waits for an answer.
type nobody struct{}

func (nobody) wrote(*request)            {}
func (nobody) answered(*request, answer) {}

// settle takes the request of an id out of those that wait.
func (c *conn) settle(id uint32) *request {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.pending[id]
	delete(c.pending, id)
	if len(c.queue) > 0 && len(c.pending) == c.slots-1 {
		defer c.poke() // a slot is free again
	}
	return r
}

// read takes answers and hands them to their owners.
func (c *conn) read() error {
	var msg []byte
	for {
		h, err := readHead(c.in, c.limit)
		if err != nil {
			return err
		}
		if msg, err = readInto(c.in, msg[:0], int(h.Message)); err != nil {
			return err
		}
		if h.ID == 0 {
			return refusal(h, msg)
		}
		r := c.settle(h.ID)
		if r == nil || r.key != h.Key || h.Raw() != 0 && !r.pages {
			if r != nil { // it had an answer, and not the one that it is due
				r.owner.answered(r, answer{err: &lostError{sent: true, cause: ErrProtocol}})
			}
			return fmt.Errorf("%w: an answer to %s that was not asked for", ErrProtocol, h.Key)
		}
		a, err := unpack(h, msg)
		if err == nil {
			a.raw, err = readInto(c.in, r.into[:0], h.Raw())
		}
		if err != nil {
			a = answer{err: &lostError{sent: true, cause: err}}
		}
		r.owner.answered(r, a)
		if err != nil {
			return err
		}
	}
}

// unpack reads the message of an answer. An error says that the bytes are none.
func unpack(h wire.Head, msg []byte) (a answer, err error) {
	if h.Flags&wire.FlagReply == 0 || h.Flags&wire.FlagPush != 0 {
		return a, fmt.Errorf("%w: a %s frame that is no answer", ErrProtocol, h.Key)
	}
	if h.Key == wire.KeyProduce && h.Flags == wire.FlagReply {
		a.placed, err = wire.ParseProduceReply(msg)
	} else if a.msg, err = wire.Reply(h.Key, h.Flags, msg); a.msg != nil {
		a.err, err = err, nil
	}
	if err != nil {
		return a, fmt.Errorf("%w: %w", ErrProtocol, err)
	}
	return a, nil
}

// refusal is an error that belongs to no request: the connection ends with it.
func refusal(h wire.Head, msg []byte) error {
	if h.Flags == wire.FlagReply|wire.FlagFailed {
		if a, err := unpack(h, msg); err == nil {
			return a.err
		}
	}
	return fmt.Errorf("%w: a %s frame that belongs to no request", ErrProtocol, h.Key)
}

func readHead(in *bufio.Reader, limit uint32) (wire.Head, error) {
	b, err := in.Peek(wire.HeadSize)
	if err != nil {
		if errors.Is(err, io.EOF) && len(b) > 0 {
			err = io.ErrUnexpectedEOF
		}
		return wire.Head{}, err
	}
	h, err := wire.ParseHead(b, limit)
	if err != nil {
		return h, fmt.Errorf("%w: %w", ErrProtocol, err)
	}
	_, err = in.Discard(wire.HeadSize)
	return h, err
}

// readInto appends n bytes to b. Memory for them is taken as they come: a server that
// announces much and sends little costs little.
func readInto(in io.Reader, b []byte, n int) ([]byte, error) {
	const step = 64 << 10
	for n > 0 {
		free := cap(b) - len(b)
		if free == 0 {
			grown := make([]byte, len(b), len(b)+min(n, max(step, len(b))))
			b = grown[:copy(grown[:len(b)], b)]
			free = cap(b) - len(b)
		}
		part := b[len(b) : len(b)+min(n, free)]
		got, err := io.ReadFull(in, part)
		b = b[:len(b)+got]
		n -= got
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return b, err
		}
	}
	return b, nil
}

// call asks and waits for the answer. When ctx ends first the error says whether the
// request may have reached the server. undo, which may be nil, is what to ask then if
// it succeeds after all.
func (c *conn) call(ctx context.Context, key wire.Key, msg wire.Message, undo func(reply any) *request) (any, error) {
	w := make(waiter, 1)
	r := &request{key: key, msg: msg, owner: w}
	if !c.post(r) {
		return nil, &lostError{cause: c.err}
	}
	select {
	case a := <-w:
		return a.msg, a.err
	case <-ctx.Done():
	}
	late := &lateError{sent: !c.withdraw(r), cause: context.Cause(ctx)}
	if late.sent && undo != nil {
		go func() { // until the answer, or the connection's end
			if a := <-w; a.err == nil {
				c.post(undo(a.msg))
			}
		}()
	}
	return nil, late
}

// waiter is somebody who waits in call.
type waiter chan answer

func (w waiter) wrote(*request)                { /* there is no memory to give back */ }
func (w waiter) answered(_ *request, a answer) { w <- a }

// steady is a network connection that ends when nothing can be read for two
// heartbeats, or nothing written.
type steady struct {
	net.Conn
	patience time.Duration
}

func (s *steady) Read(b []byte) (int, error) {
	if err := s.SetReadDeadline(time.Now().Add(s.patience)); err != nil {
		return 0, err
	}
	return s.Conn.Read(b)
}

// Write writes in pieces, each with a deadline of its own: a slow connection is not a
// dead one.
func (s *steady) Write(b []byte) (n int, err error) {
	const piece = 256 << 10
	for len(b) > 0 {
		if err := s.SetWriteDeadline(time.Now().Add(s.patience)); err != nil {
			return n, err
		}
		m, err := s.Conn.Write(b[:min(len(b), piece)])
		if n += m; err != nil {
			return n, err
		}
		b = b[m:]
	}
	return n, nil
}
