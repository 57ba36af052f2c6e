package client

import (
	"bufio"
	"context"
	"errors"
	"fmt"

	"github.com/ringfence/ringfence/engine/shm"
	"github.com/ringfence/ringfence/engine/wire"
)

// shared is the memory that a connection has in common with the server: frames of
// producers go through it, and all else over the socket. The connection's mu guards what
// it does not say otherwise.
type shared struct {
	pool  *pool
	guest *shm.Guest

	waiting []*request // for a slot, or for room, in order
	table   []airborne // submissions that are not answered, by the rest of their ids
	free    []uint32   // places in it
}

// airborne is a submission that is not answered.
type airborne struct {
	r      *request
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
	if file == nil || r.Layout != shm.Version || r.ArenaBytes > shm.MaxArena || r.Slots > shm.MaxSlots {
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
	s := &shared{guest: guest, table: make([]airborne, r.Slots)}
	for i := range s.table {
		s.free = append(s.free, uint32(len(s.table)-1-i))
	}
	s.pool = c.mem.adopt(guest)
	to.shared = s
	return nil
}

// submit shows the server what waits, as far as there are slots and there is room. mu is
// held.
func (c *conn) submit() {
	s := c.shared
	for c.err == nil && len(s.waiting) > 0 && len(s.free) > 0 {
		r := s.waiting[0]
		frame, copied := c.mem.place(s.pool, r.raw)
		if frame == nil {
			return
		}
		copy(frame, r.header)
		at := s.free[len(s.free)-1]
		s.free = s.free[:len(s.free)-1]
		s.table[at] = airborne{r, copied}
		s.guest.Submit(sharedID|at, r.producer, frame) // there is a slot for each place of the table
		s.waiting[0] = nil
		s.waiting = s.waiting[1:]
	}
}

// landed takes a submission out of those that wait for their answers, and sends another
// in its place. nil: there is none of that id.
func (c *conn) landed(id uint32) *request {
	s := c.shared
	c.mu.Lock()
	at := id &^ sharedID
	if int(at) >= len(s.table) || s.table[at].r == nil {
		c.mu.Unlock()
		return nil
	}
	a := s.table[at]
	s.table[at] = airborne{}
	s.free = append(s.free, at)
	if a.copied != nil {
		c.mem.displace(s.pool, a.copied)
	}
	more := len(s.waiting) > 0
	if more {
		c.submit()
	}
	c.mu.Unlock()
	if more {
		s.guest.Ring()
	}
	a.r.owner.wrote(a.r)
	return a.r
}

// hear takes answers from the memory and hands them to their owners, until the connection
// ends and there are no more.
func (c *conn) hear() error {
	for {
		done, err := c.shared.guest.Next()
		if errors.Is(err, shm.ErrStopped) {
			return c.err
		}
		if err != nil {
			return fmt.Errorf("%w: %w", ErrProtocol, err)
		}
		r := c.landed(done.ID)
		if r == nil {
			return fmt.Errorf("%w: an answer in shared memory that was not asked for", ErrProtocol)
		}
		r.owner.answered(r, answer{placed: wire.ProduceReply{
			Range: done.Range, First: done.First, Last: done.Last, Repeats: done.Repeats,
		}})
	}
}

// leave ends what the connection shares: those that were submitted may have reached the
// server, those that wait did not. Nobody submits any more.
func (c *conn) leave(err error) {
	s := c.shared
	for _, a := range s.table {
		if a.r != nil {
			if a.copied != nil {
				c.mem.displace(s.pool, a.copied)
			}
			a.r.owner.wrote(a.r)
			a.r.owner.answered(a.r, answer{err: &lostError{sent: true, cause: err}})
		}
	}
	for _, r := range s.waiting {
		r.owner.wrote(r)
		r.owner.answered(r, answer{err: &lostError{cause: err}})
	}
}
