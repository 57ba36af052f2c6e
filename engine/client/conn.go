package client

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/ringfence/ringfence/engine/shm"
	"github.com/ringfence/ringfence/engine/wire"
)

// conn is one connection, from its hello to its end. It answers every request it was
// given once.
type conn struct {
	nc        *steady // set once, like all down to dead
	in        *bufio.Reader
	log       string // the server's
	limit     uint32 // bytes of a frame behind its head
	slots     int    // requests that may wait for their answers
	heartbeat time.Duration
	socket    syscall.RawConn // for writing without waiting; nil where nc does more than that
	wake      chan struct{}   // tells the writer of something to do
	dead      chan struct{}   // closed with err
	out       outflow         // of who writes
	mem       *memory         // the client's
	shared    *shared         // nil: all goes over the socket
	files     *shm.Receiver   // nil: no descriptors come

	mu      sync.Mutex // innermost
	queue   []*request // to be written, in order
	writing bool       // somebody writes
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
	header   []byte // of raw, as it is sent: in shared memory another one may stand there by now
	into     []byte // memory for the record frames of the answer, to be appended to
	pages    bool   // the answer may have record frames
	files    bool   // or be about those of a file
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
	file   *os.File // of a page in a file; nil: its descriptor did not come through
	err    error    // *wire.Error of the server, *lostError, or that the request cannot be sent
}

// post queues a request and has it written. It does not block; false says that the
// connection is dead and the request still the caller's.
func (c *conn) post(r *request) bool {
	ok := c.enqueue(r)
	if ok {
		c.poke()
	}
	return ok
}

// enqueue is post for those who call drive or poke afterwards.
func (c *conn) enqueue(r *request) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return false
	}
	if f, ok := r.owner.(*flight); ok && c.shared != nil {
		c.shared.waiting = append(c.shared.waiting, f)
		c.submit()
		return true
	}
	c.queue = append(c.queue, r)
	return true
}

// nudge is drive for those who must not take the time.
func (c *conn) nudge() {
	if c.rang() {
		c.poke()
	}
}

// rang wakes the server for what was submitted, and says whether there may be something
// for the socket.
func (c *conn) rang() bool {
	if c.shared == nil {
		return true
	}
	c.shared.guest.Ring()
	if c.shared.aside.Load() {
		c.shared.calls()
	}
	return false // all else is posted
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
	var all sync.WaitGroup
	all.Go(func() { c.kill(c.write()) })
	all.Go(func() { c.kill(c.read()) })
	if c.shared != nil {
		all.Go(func() { c.kill(c.hear()) })
		all.Go(func() {
			<-c.dead
			c.shared.guest.Stop()
		})
	}
	all.Wait()
	c.mu.Lock() // nothing is added any more
	queue, pending, err := c.queue, c.pending, c.err
	c.queue, c.pending = nil, nil
	c.mu.Unlock()
	gone(err)
	if c.shared != nil {
		c.mem.abandon(c.shared.pool)
		c.leave(err)
	}
	for _, r := range pending {
		r.owner.answered(r, answer{err: &lostError{sent: true, cause: err}})
	}
	for _, r := range queue {
		r.owner.wrote(r)
		r.owner.answered(r, answer{err: &lostError{cause: err}})
	}
	return err
}

// discard ends a connection that was never run.
func (c *conn) discard(why error) {
	c.kill(why)
	if c.shared != nil {
		c.mem.abandon(c.shared.pool)
	}
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
	if c.shared != nil && id&sharedID != 0 {
		c.shared.guest.Answered()
		if f, ok := c.landed([]shm.Completion{{ID: id}}, nil); ok {
			return &f[0].request
		}
		return nil
	}
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
		if p, ok := a.msg.(*wire.Page); ok && err == nil && p.FileBytes > 0 {
			if !r.files || h.Raw() != 0 {
				err = fmt.Errorf("%w: a page in a file that was not asked for", ErrProtocol)
			} else {
				a.file = c.files.File()
			}
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
