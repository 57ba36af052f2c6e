package server

import (
	"bufio"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/ringfence/ringfence/engine/shm"
	"github.com/ringfence/ringfence/engine/wire"
)

const (
	readBuffer   = 8 << 10 // bytes; what is longer is read past it
	metaTasks    = 4       // requests of one connection about topics and handles that run at a time
	lingerTime   = time.Second
	lingerBytes  = 1 << 20
	closeTimeout = 30 * time.Second // for the producers of a connection that is gone
)

// conn is one connection. It belongs to one client for its life and is never used
// again, so what comes late for it can reach nobody else.
type conn struct {
	s   *Server
	id  uint64
	raw net.Conn // the socket, whose end ends all
	nc  net.Conn // what is read and written: raw, or TLS over it. Set before the first frame

	from   Origin                 // set at the start
	peer   *shm.Peer              // who may share memory; nil: nobody. Likewise
	shared atomic.Pointer[shared] // set once, by the reader

	// ctx ends with the connection, calm when it is to end: what waits for records does
	// so until then.
	ctx    context.Context
	cut    context.CancelCauseFunc
	calm   context.Context
	settle context.CancelFunc

	who           atomic.Pointer[Identity] // nil until logged in
	out           *outbox
	socket        syscall.RawConn // for writing without waiting; nil where nc is not the socket
	written       chan struct{}   // closed when the writer has ended
	aloft         int             // descriptors of files that may be on their way; of who writes
	pages         budget          // what its pages take until they are sent
	work          sync.WaitGroup  // its goroutines besides reader and writer
	meta          tasks
	handles       handles
	subscriptions atomic.Int64 // that live
	refusals      atomic.Int64 // when a refusal was last told to Options.Audit, in nanoseconds
	arriving      atomic.Int64 // bytes of the server's heap that the request on its way has
	stopping      struct {
		sync.Mutex       // held while the deadline is set; innermost
		stopped    bool  // the reader gets no other deadline than the past
		why        error // what it then ends with
	}

	// Of the reader.
	shaking    *shaking // nil without TLS
	br         *bufio.Reader
	enterBy    time.Time // when it must be logged in
	greeted    bool
	lone       int             // requests in a row that came when no other was open
	frameBy    time.Time       // when the rest of the frame must be here; zero while none was waited for
	patient    context.Context // for memory of the engine, see patience
	unpatient  context.CancelFunc
	patientFor time.Time
}

func newConn(s *Server, nc net.Conn, id uint64) *conn {
	c := &conn{s: s, id: id, raw: nc, nc: nc, written: make(chan struct{}), pages: budget{limit: s.opts.ConnBytes}}
	c.ctx, c.cut = context.WithCancelCause(context.Background())
	c.calm, c.settle = context.WithCancel(c.ctx)
	c.out = newOutbox(s.opts.MaxRequests, s.opts.ConnBytes, &s.heap)
	c.meta = tasks{limit: metaTasks, all: &c.work}
	c.handles = handles{most: s.opts.MaxHandles, producers: map[uint32]*producer{}, consumers: map[uint32]*consumer{}}
	return c
}

// errStopped ends a reader that was told to stop.
var errStopped = errors.New("server: told to stop reading")

// serve runs the connection to its end.
func (c *conn) serve() {
	defer c.raw.Close()
	defer c.cut(nil)
	log := c.s.log.With("connection", c.id, "remote", c.nc.RemoteAddr().String())
	c.enterBy = time.Now().Add(c.s.opts.LoginTimeout)
	c.readUntil(c.enterBy)
	ctx, stop := context.WithDeadline(c.ctx, c.enterBy)
	nc, err := c.secured(ctx)
	stop()
	if c.shaking != nil {
		defer c.shaking.giveBack()
	}
	if err != nil {
		c.s.count.cutOff.Add(1)
		log.Debug("connection ended: TLS handshake failed", "error", err)
		return
	}
	c.nc, c.socket = nc, socketOf(nc)
	c.br = bufio.NewReaderSize(nc, readBuffer)
	go c.write()
	err = c.read()
	c.end(err)
	if why := context.Cause(c.ctx); !errors.Is(why, context.Canceled) {
		err = why // it was cut off
	}
	c.closeHandles(log)
	c.report(log, err)
}

// report logs why a connection ended, and counts it if that was for what its client did or
// left undone. To leave with requests open, as a consumer does that waits for records, is
// neither: the answers are then what cannot be written.
func (c *conn) report(log *slog.Logger, err error) {
	if who := c.who.Load(); who != nil {
		log = log.With("user", who.User)
	}
	if err == nil || errors.Is(err, io.EOF) || errors.Is(err, errStopped) || errors.Is(err, ErrShutdown) {
		log.Debug("connection ended")
		return
	}
	if errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET) {
		log.Debug("connection ended: its client was gone", "error", err)
		return
	}
	c.s.count.cutOff.Add(1)
	often := &c.s.tell.cutOff
	if c.peer != nil {
		often = &c.s.tell.sharedCutOff // neither kind hides the other
	}
	log.Log(context.Background(), often.level(slog.LevelInfo), "connection cut off", "reason", err)
}

// abort ends the connection at once: nothing more is read or written.
func (c *conn) abort(why error) {
	c.cut(why)
	c.raw.Close()
}

// drain has the connection end when what it was asked for is answered.
func (c *conn) drain() {
	c.settle()
	c.answered()
	c.stop(errStopped)
}

// answered returns when everything that the client asked for is answered, or the
// connection is over.
func (c *conn) answered() {
	if s := c.shared.Load(); s != nil {
		select {
		case <-s.settled():
		case <-c.ctx.Done():
		}
	}
	select {
	case <-c.out.settled():
	case <-c.ctx.Done():
	}
}

// stop has the reader end, for the first reason that it is given.
func (c *conn) stop(why error) {
	c.stopping.Lock()
	defer c.stopping.Unlock()
	if !c.stopping.stopped {
		c.stopping.stopped, c.stopping.why = true, why
	}
	_ = c.raw.SetReadDeadline(time.Unix(1, 0)) // a reader that is past it needs no waking
}

// readUntil gives what is read next a deadline.
func (c *conn) readUntil(t time.Time) {
	c.stopping.Lock()
	defer c.stopping.Unlock()
	if !c.stopping.stopped {
		_ = c.raw.SetReadDeadline(t) // an error is met again by the read
	}
}

// end answers what was read and then closes the connection, telling the client why if
// that is an error it can be told. A client that is gone has no long claim on the
// answers.
func (c *conn) end(why error) {
	c.settle()
	if !c.s.closing.Load() {
		defer time.AfterFunc(c.s.opts.WriteTimeout, func() { c.abort(os.ErrDeadlineExceeded) }).Stop()
	}
	c.answered()
	var last *wire.Error
	if errors.Is(why, errStopped) {
		last = refusal(wire.CodeShuttingDown, "the server is shutting down")
	} else {
		errors.As(why, &last)
	}
	c.out.finish(last)
	<-c.written
	if last != nil && c.ctx.Err() == nil {
		c.linger()
	}
	c.nc.Close()
	c.cut(nil)
	c.work.Wait()
	if s := c.shared.Load(); s != nil {
		s.close()
	}
	c.out.settleDebts()
	if c.unpatient != nil {
		c.unpatient()
	}
}

// linger lets the client read the last error: closing a socket with unread bytes makes
// some systems throw away what was sent.
func (c *conn) linger() {
	half, ok := c.nc.(interface{ CloseWrite() error })
	if !ok || half.CloseWrite() != nil || c.nc.SetReadDeadline(time.Now().Add(lingerTime)) != nil {
		return
	}
	_, _ = io.CopyN(io.Discard, c.nc, lingerBytes) // whatever ends it
}
