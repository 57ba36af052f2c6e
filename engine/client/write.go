package client

import (
	"fmt"
	"math"
	"net"
	"syscall"
	"time"

	"github.com/ringfence/ringfence/engine/wire"
)

const (
	outBytes   = 64 << 10 // of requests that are gathered in one write
	smallFrame = 8 << 10  // bytes of record frames that those who send them write themselves
)

// outflow is what a connection is about to write. It belongs to the one who writes: the
// connection's writer, or somebody in drive.
type outflow struct {
	enc wire.Encoder
	buf []byte
	try func(fd uintptr) // writes now, as much of buf as the socket takes
}

// begin says whether the caller writes from now on, which it ends with done.
func (c *conn) begin() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.writing {
		return false
	}
	c.writing = true
	return true
}

// done ends what begin began, and has the writer see to what came meanwhile or is left.
func (c *conn) done() {
	c.mu.Lock()
	c.writing = false
	more := len(c.out.buf) > 0 || c.ready()
	c.mu.Unlock()
	if more {
		c.poke()
	}
}

// ready says whether there is a request that may be written. Pings do not wait for a
// slot. mu is held.
func (c *conn) ready() bool {
	return len(c.queue) > 0 && (len(c.pending) < c.slots || c.queue[0].key == wire.KeyPing)
}

// drive writes what is queued on the caller's goroutine, unless it is much or somebody
// writes already: that is sooner, and costs less, than to wake the writer. It does not
// wait: what the socket does not take is the writer's.
func (c *conn) drive() {
	if !c.rang() {
		return
	}
	if c.socket == nil {
		c.poke()
		return
	}
	if !c.begin() {
		return
	}
	for len(c.out.buf) < smallFrame {
		r, id := c.next(smallFrame)
		if r == nil {
			break
		}
		c.add(r, id)
		r.owner.wrote(r)
	}
	if len(c.out.buf) > 0 {
		if c.out.try == nil {
			c.out.try = c.out.write
		}
		_ = c.socket.Control(c.out.try)
	}
	c.done()
}

// write is what drive does to the socket. An error is met again by the writer, which
// gets what is left.
func (o *outflow) write(fd uintptr) {
	if n, err := syscall.Write(int(fd), o.buf); err == nil {
		o.buf = o.buf[:copy(o.buf, o.buf[n:])]
	}
}

// next takes the first request that may be written, and gives it an id; none whose
// record frame is longer than most.
func (c *conn) next(most int) (*request, uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.ready() || len(c.queue[0].raw) > most {
		return nil, 0
	}
	r := c.queue[0]
	c.queue[0] = nil
	c.queue = c.queue[1:]
	for c.lastID++; c.lastID == 0 || c.lastID&sharedID != 0 || c.pending[c.lastID] != nil; {
		c.lastID++
	}
	c.pending[c.lastID] = r
	return r, c.lastID
}

// add gathers a request, but for a record frame that is not small, which it returns.
func (c *conn) add(r *request, id uint32) (large []byte) {
	var head []byte
	if r.key == wire.KeyProduce {
		head = c.out.enc.Produce(id, r.producer, len(r.raw))
	} else {
		head = c.out.enc.Frame(r.key, 0, id, r.msg, len(r.raw))
	}
	if head == nil || len(head)-wire.HeadSize+len(r.raw) > int(c.limit) {
		if c.settle(id) != nil { // or the connection's end has answered it
			r.owner.answered(r, answer{err: fmt.Errorf("%w: the server takes requests of %d bytes at most", ErrRecordTooLarge, c.limit)})
		}
		return nil
	}
	c.out.buf = append(c.out.buf, head...)
	if len(r.raw) > smallFrame {
		return r.raw
	}
	c.out.buf = append(c.out.buf, r.raw...)
	return nil
}

// write sends what is queued, many requests in one write where they are there, and a
// ping every heartbeat.
func (c *conn) write() error {
	tick := time.NewTicker(c.heartbeat)
	defer tick.Stop()
	for {
		if c.begin() {
			err := c.writeQueued(tick.C)
			c.done()
			if err != nil {
				return err
			}
		}
		select {
		case <-c.wake:
		case <-c.dead:
			return c.err
		case <-tick.C:
			c.ping()
		}
	}
}

func (c *conn) writeQueued(tick <-chan time.Time) error {
	for {
		select {
		case <-tick:
			c.ping()
		default:
		}
		r, id := c.next(math.MaxInt)
		if r == nil {
			return c.flush(nil)
		}
		large := c.add(r, id)
		var err error
		if len(large) > 0 || len(c.out.buf) >= outBytes {
			err = c.flush(large)
		}
		r.owner.wrote(r)
		if err != nil {
			return err
		}
	}
}

// flush writes what is gathered, and a record frame behind it.
func (c *conn) flush(large []byte) error {
	if len(c.out.buf) == 0 {
		return nil
	}
	n := min(len(large), piece)
	err := c.nc.writeBoth(c.out.buf, large[:n])
	c.out.buf = c.out.buf[:0]
	if err == nil && n < len(large) {
		_, err = c.nc.Write(large[n:])
	}
	return err
}

// steady is a network connection that ends when nothing can be read for two
// heartbeats, or nothing written.
type steady struct {
	net.Conn
	patience        time.Duration
	readBy, writeBy time.Time // the deadlines that are set, of who reads and who writes
}

// later moves a deadline to when patience ends. One that was set a short while before stays:
// to move it costs as much as a small read.
func (s *steady) later(set *time.Time, move func(time.Time) error) error {
	by := time.Now().Add(s.patience)
	if late := by.Sub(*set); late >= 0 && late < s.patience/16 {
		return nil
	}
	*set = by
	return move(by)
}

func (s *steady) Read(b []byte) (int, error) {
	if err := s.later(&s.readBy, s.SetReadDeadline); err != nil {
		return 0, err
	}
	return s.Conn.Read(b)
}

// piece is how much is written under one deadline, in bytes: a slow connection is not a
// dead one.
const piece = 1 << 20

func (s *steady) Write(b []byte) (n int, err error) {
	for len(b) > 0 {
		if err := s.later(&s.writeBy, s.SetWriteDeadline); err != nil {
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

// writeBoth writes two pieces, in one write where that can be.
func (s *steady) writeBoth(a, b []byte) error {
	if len(b) == 0 {
		_, err := s.Write(a)
		return err
	}
	if err := s.later(&s.writeBy, s.SetWriteDeadline); err != nil {
		return err
	}
	both := net.Buffers{a, b}
	_, err := both.WriteTo(s.Conn)
	return err
}
