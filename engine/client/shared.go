package client

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/ringfence/ringfence/engine/shm"
	"github.com/ringfence/ringfence/engine/wire"
)

// shared is the memory that a connection has in common with the server: frames of
// producers go through it, and all else over the socket. The connection's mu guards what
// it does not say otherwise.
type shared struct {
	pool  *pool
	guest *shm.Guest

	waiting []*flight  // for a slot, or for room, in order
	table   []airborne // submissions that are not answered, by the rest of their ids
	free    []uint32   // places in it

	// Who listens for answers has the ear: hear, but where a caller sends one record after
	// another and waits for each he listens himself, and is not woken by another goroutine.
	// hear is aside then, and called by who submits and does not listen.
	ear   chan struct{} // holds one while nobody has it
	aside atomic.Bool   // set with mu, while nothing is submitted
	call  chan struct{}

	heard   [burst]shm.Completion // of who has the ear
	flights []*flight             // likewise
}

// burst is how many answers are taken at a time, where they are there.
const burst = 64

// airborne is a submission that is not answered.
type airborne struct {
	f      *flight
	copied []byte // memory that the frame was copied to, nil if it lay there
}

// sharedID is the bit of the ids of submissions; requests on the socket do not have it.
const sharedID = 1 << 31

// DialShm is Dial for a server on this host (serve --shm), at the path of its socket:
// batches are built in memory that is shared with it, and it takes them from there. How
// much of that there is Options.MemoryBytes says, and the server, which may give less.
// Consumers read closed segments from their files (files.go).
func DialShm(ctx context.Context, path string, o Options) (*Client, error) {
	if o.TLS != nil {
		return nil, errors.New("client: Options.TLS with shared memory: it is of this host alone")
	}
	c, err := newClient("unix:"+path, o)
	if err != nil {
		return nil, err
	}
	c.acks.way, c.main.way = sharing, filing
	first, err := c.connect(ctx, sharing)
	if err != nil {
		return nil, fmt.Errorf("sharing memory with the server at %s: %w", path, err)
	}
	c.opts.MemoryBytes = min(c.opts.MemoryBytes, int(first.shared.guest.Arena().Size()))
	main, err := c.connect(ctx, filing)
	if err != nil {
		first.discard(err)
		return nil, fmt.Errorf("connecting to %s: %w", path, err)
	}
	c.acking = true
	c.start(main)
	c.tasks.Go(func() { c.acks.keep(first) })
	return c, nil
}

// attach asks for shared memory, on a connection on which nothing else is under way yet.
func (c *Client) attach(nc *steady, in *bufio.Reader, to *conn) error {
	from, ok := nc.Conn.(*shm.Receiver)
	if !ok {
		return fmt.Errorf("client: shared memory over %T", nc.Conn)
	}
	msg, err := exchange(nc, in, 3, wire.KeyAttach, &wire.Attach{ArenaBytes: uint64(c.opts.MemoryBytes)})
	file := from.File()
	from.Over()
	if err != nil {
		if file != nil {
			file.Close()
		}
		return err
	}
	r := msg.(*wire.AttachReply)
	if file == nil && r.Layout == shm.Version {
		return fmt.Errorf("%w: no file of the memory came with the answer: this process may have no more files open; close some, or raise the limit (ulimit -n)", ErrUnavailable)
	}
	if r.Layout != shm.Version || r.ArenaBytes > shm.MaxArena || r.Slots > shm.MaxSlots {
		if file != nil {
			file.Close()
		}
		return fmt.Errorf("%w: it shares %d bytes and %d slots of layout %d, this client knows layout %d", ErrProtocol, r.ArenaBytes, r.Slots, r.Layout, shm.Version)
	}
	guest, err := shm.Attach(file, shm.Geometry{ArenaBytes: int(r.ArenaBytes), Slots: int(r.Slots)}, r.Incarnation)
	if errors.Is(err, shm.ErrPeer) {
		err = fmt.Errorf("%w: %w", ErrProtocol, err)
	}
	if err != nil {
		return err
	}
	s := newShared(guest, int(r.Slots))
	s.pool = c.mem.adopt(guest)
	to.shared = s
	return nil
}

func newShared(guest *shm.Guest, slots int) *shared {
	s := &shared{guest: guest, table: make([]airborne, slots), ear: make(chan struct{}, 1), call: make(chan struct{}, 1)}
	for i := range s.table {
		s.free = append(s.free, uint32(slots-1-i))
	}
	return s
}

// submit shows the server what waits, as far as there are slots and there is room. mu is
// held.
func (c *conn) submit() {
	s := c.shared
	for c.err == nil && len(s.waiting) > 0 && len(s.free) > 0 {
		f := s.waiting[0]
		frame, copied := c.mem.place(s.pool, f.raw)
		if frame == nil {
			return
		}
		copy(frame, f.header)
		at := s.free[len(s.free)-1]
		s.free = s.free[:len(s.free)-1]
		s.table[at] = airborne{f, copied}
		s.guest.Submit(sharedID|at, f.producer, frame) // there is a slot for each place of the table
		s.waiting[0] = nil
		s.waiting = s.waiting[1:]
	}
}

// landed takes submissions out of those that wait for their answers, and sends others in
// their place. False says that there is none of an id; those before it were taken out.
func (c *conn) landed(done []shm.Completion, to []*flight) ([]*flight, bool) {
	s := c.shared
	c.mu.Lock()
	known := true
	for i := 0; i < len(done) && known; i++ {
		d, at := &done[i], done[i].ID&^sharedID
		if known = int(at) < len(s.table) && s.table[at].f != nil; !known {
			break
		}
		a := s.table[at]
		s.table[at] = airborne{}
		s.free = append(s.free, at)
		if a.copied != nil {
			c.mem.displace(s.pool, a.copied)
		}
		a.f.placed = wire.ProduceReply{Range: d.Range, First: d.First, Last: d.Last, Repeats: d.Repeats}
		to = append(to, a.f)
	}
	more := len(s.waiting) > 0
	if more {
		c.submit()
	}
	c.mu.Unlock()
	if more {
		c.rang()
	}
	for _, f := range to {
		f.wrote(nil)
	}
	return to, known
}

// hear takes answers from the memory and hands them to their owners, until the connection
// ends and there are no more. It begins with the ear, and ends with it.
func (c *conn) hear() error {
	s := c.shared
	for {
		alone, err := c.answers(0)
		if errors.Is(err, shm.ErrStopped) {
			return c.err
		}
		if err != nil {
			return err
		}
		if alone && c.stepAside() {
			s.ear <- struct{}{}
			select {
			case <-s.call:
			case <-c.dead:
			}
			<-s.ear // of a caller, who soon has what he waits for, or enough of it
			s.aside.Store(false)
		}
	}
}

// stepAside leaves the next answers to whoever submits, if none is to come.
func (c *conn) stepAside() bool {
	s := c.shared
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(s.free) == len(s.table) {
		s.aside.Store(true)
	}
	return s.aside.Load()
}

// answers waits for answers, for so long only if most is not 0, and hands those that are
// there to their owners. alone says that the last one was for a caller who may listen.
func (c *conn) answers(most time.Duration) (alone bool, err error) {
	s := c.shared
	first, ok, err := s.guest.Soon(most)
	if err != nil && !errors.Is(err, shm.ErrStopped) {
		err = fmt.Errorf("%w: %w", ErrProtocol, err)
	}
	if !ok {
		return false, err
	}
	s.heard[0] = first
	all, known := c.landed(s.heard[:1+s.guest.More(s.heard[1:])], s.flights[:0])
	for rest := all; len(rest) > 0; {
		p := rest[0].p
		n := 1
		for n < len(rest) && rest[n].p == p {
			n++
		}
		alone = p.stored(rest[:n])
		rest = rest[n:]
	}
	clear(all)
	s.flights = all
	if !known {
		return false, fmt.Errorf("%w: an answer in shared memory that was not asked for", ErrProtocol)
	}
	return alone, nil
}

// patience is how long a caller listens for himself in vain: he hears of nothing else
// meanwhile, as of a refusal, which comes over the socket, or the end of his context.
const patience = 5 * time.Millisecond

// listen wakes the server for what a caller submitted. If nobody else listens he does,
// until done.
func (c *conn) listen(ctx context.Context, done <-chan struct{}) {
	s := c.shared
	s.guest.Ring()
	if !s.aside.Load() {
		return
	}
	select {
	case <-s.ear:
	default:
		s.calls()
		return
	}
	for ctx.Err() == nil {
		before := time.Now()
		_, err := c.answers(patience)
		select {
		case <-done:
			s.ear <- struct{}{}
			return
		default:
		}
		if err != nil && !errors.Is(err, shm.ErrStopped) {
			c.kill(err)
		}
		if err != nil || time.Since(before) >= patience {
			break
		}
	}
	s.ear <- struct{}{}
	s.calls()
}

// calls has hear listen again.
func (s *shared) calls() {
	select {
	case s.call <- struct{}{}:
	default:
	}
}

// leave ends what the connection shares: those that were submitted may have reached the
// server, those that wait did not. Nobody submits any more.
func (c *conn) leave(err error) {
	s := c.shared
	for _, a := range s.table {
		if a.f != nil {
			if a.copied != nil {
				c.mem.displace(s.pool, a.copied)
			}
			a.f.wrote(nil)
			a.f.answered(nil, answer{err: &lostError{sent: true, cause: err}})
		}
	}
	for _, f := range s.waiting {
		f.wrote(nil)
		f.answered(nil, answer{err: &lostError{cause: err}})
	}
}
