package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ringfence/ringfence/engine/shm"
	"github.com/ringfence/ringfence/engine/wire"
)

// Server serves one engine on any number of listeners. Its methods may be called by any
// goroutine.
type Server struct {
	engine Engine
	opts   Options
	log    *slog.Logger

	groups *groups

	heap      budget // what requests take until they are answered, but for engine memory
	pages     budget // what pages take until they are sent
	receiving budget // engine memory that waits for frames on their way
	sharers   *sharers
	arrivals  arrivals

	closing atomic.Bool
	quit    chan struct{} // closed with it
	count   counters
	tell    struct{ refusal, copying, fault, cutOff, sharedCutOff seldom }
	storing atomic.Int64   // frames that were sent to the engine and not answered
	all     sync.WaitGroup // connections

	mu        sync.Mutex // guards the rest; innermost
	listeners map[net.Listener]struct{}
	conns     map[*conn]struct{}
	from      map[Origin]int
	lastID    uint64 // of a connection; never used again
}

// counters are what happened since the server was made.
type counters struct {
	accepted, refused, cutOff, throttled, received, sent atomic.Int64

	requests *named[wire.Key]
	failed   *named[wire.Code]

	sharesRefused atomic.Int64 // connections of users who may not share memory
}

// Stats says what a server does and did.
type Stats struct {
	Connections int   // now
	Accepted    int64 // connections since the start
	Refused     int64 // connections that were one too many
	CutOff      int64 // connections that ended for what the client did or left undone
	Requests    int64
	Failed      int64            // requests that were answered with an error, but for those of Throttled
	Throttled   int64            // requests to store a frame that were answered with "later", for a quota
	RequestsBy  map[string]int64 // what was asked, by the names of the protocol
	FailedBy    map[string]int64 // what was answered, likewise
	Received    int64            // bytes of requests
	Sent        int64            // bytes of answers and pages
	HeapBytes   int64            // taken by requests now, but for memory of the engine
	PageBytes   int64            // taken by pages now
	Groups      int              // with members, now
	Members     int              // of all of them
	Generations int64            // how often it changed who reads what
	HandOvers   int64            // ranges that went from one member to another
	Shared      SharedStats
}

// New returns a server of an engine, which must stay open until Shutdown has returned.
// The members of a group must all use one server of an engine: it knows of no others.
func New(e Engine, o Options) (*Server, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	s := &Server{
		engine: e, opts: o, log: o.Logger, groups: newGroups(e, &o),
		heap: budget{limit: o.TotalBytes}, pages: budget{limit: o.TotalBytes}, receiving: budget{limit: o.ReceiveBytes},
		quit: make(chan struct{}), listeners: map[net.Listener]struct{}{}, conns: map[*conn]struct{}{}, from: map[Origin]int{},
	}
	s.count.requests, s.count.failed = countNamed(wire.Keys()), countNamed(wire.Codes())
	s.sharers = newSharers(&s.opts.Sharing)
	return s, nil
}

// ErrShutdown is answered by Serve after Shutdown.
var ErrShutdown = errors.New("server: shut down")

// acceptPause is how long a listener rests after an error: what it lacks, descriptors
// most likely, comes back when connections end.
const acceptPause = 100 * time.Millisecond

// Serve accepts connections until Shutdown, and then answers nil, or until somebody
// closes l. It closes l.
func (s *Server) Serve(l net.Listener) error { return s.serve(l, s.admit) }

func (s *Server) serve(l net.Listener, admit func(net.Conn)) error {
	defer l.Close()
	s.mu.Lock()
	if s.closing.Load() {
		s.mu.Unlock()
		return ErrShutdown
	}
	s.listeners[l] = struct{}{}
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.listeners, l)
		s.mu.Unlock()
	}()
	for {
		nc, err := l.Accept()
		if err == nil {
			admit(nc)
			continue
		}
		if s.closing.Load() {
			return nil
		}
		if errors.Is(err, net.ErrClosed) {
			return fmt.Errorf("server: listener %s: %w", l.Addr(), err)
		}
		s.log.Warn("cannot accept connections; trying again", "listener", l.Addr().String(), "error", err)
		select {
		case <-time.After(acceptPause):
		case <-s.quit:
		}
	}
}

// admit starts a connection, or turns it away where there are too many.
func (s *Server) admit(nc net.Conn) { s.admitAs(nc, nil) }

// admitAs is admit of somebody who may share memory, unless peer is nil.
func (s *Server) admitAs(nc net.Conn, peer *shm.Peer) {
	from := originOf(nc, peer)
	s.mu.Lock()
	reason := ""
	switch {
	case s.closing.Load():
		reason = "the server is shutting down"
	case len(s.conns) >= s.opts.MaxConns:
		reason = fmt.Sprintf("there are %d connections, which is the most: close some, or raise MaxConns, and the files that the process may have open (ulimit -n) to four times that", len(s.conns))
	case from.known() && s.from[from] >= s.opts.MaxConnsPerIP:
		reason = fmt.Sprintf("there are %d connections from %s, which is the most: raise MaxConnsPerIP or close some", s.from[from], from)
	}
	if reason != "" {
		s.mu.Unlock()
		code := wire.CodeTooManyConnections
		if s.closing.Load() {
			code = wire.CodeShuttingDown
		}
		s.turnAway(nc, refusal(code, "%s", reason), s.plain(nc))
		return
	}
	s.lastID++
	c := newConn(s, nc, s.lastID)
	c.peer, c.from = peer, from
	s.conns[c] = struct{}{}
	if from.known() {
		s.from[from]++
	}
	s.all.Go(func() {
		defer s.forget(c, from)
		c.serve()
	})
	s.mu.Unlock()
	s.count.accepted.Add(1)
}

func (s *Server) forget(c *conn, from Origin) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
	if !from.known() {
		return
	}
	if s.from[from]--; s.from[from] == 0 {
		delete(s.from, from)
	}
}

// turnAway closes a connection, and says why where that needs no handshake. The buffer
// of a new socket has room for it: this does not wait.
func (s *Server) turnAway(nc net.Conn, why *wire.Error, plain bool) {
	defer nc.Close()
	s.count.refused.Add(1)
	s.log.Debug("connection refused", "remote", nc.RemoteAddr().String(), "reason", why.Detail)
	if !plain || nc.SetWriteDeadline(time.Now().Add(acceptPause)) != nil {
		return
	}
	var enc wire.Encoder
	_, _ = nc.Write(enc.Fail(0, 0, why)) // whoever is gone needs no reason
}

// Shutdown ends the server in good order. It takes no new connections, answers new
// requests with wire.CodeShuttingDown, ends what waits for records, and closes each
// connection when all its other requests are answered. When ctx ends first, the rest is
// cut off: their clients do not know what became of their requests.
func (s *Server) Shutdown(ctx context.Context) error {
	s.mu.Lock()
	if !s.closing.Swap(true) {
		close(s.quit)
	}
	for l := range s.listeners {
		l.Close()
	}
	for c := range s.conns {
		s.all.Go(c.drain)
	}
	s.mu.Unlock()
	ended := make(chan struct{})
	go func() {
		s.all.Wait()
		close(ended)
	}()
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
	}
	s.mu.Lock()
	n := len(s.conns)
	for c := range s.conns {
		c.abort(ErrShutdown)
	}
	s.mu.Unlock()
	return fmt.Errorf("server: cut off %d connections with requests that were not answered in time: %w", n, ctx.Err())
}

// Stats are what the server does and did.
func (s *Server) Stats() Stats {
	s.mu.Lock()
	n := len(s.conns)
	s.mu.Unlock()
	st := Stats{
		Connections: n, Accepted: s.count.accepted.Load(), Refused: s.count.refused.Load(), CutOff: s.count.cutOff.Load(), Throttled: s.count.throttled.Load(),
		Received: s.count.received.Load(), Sent: s.count.sent.Load(),
		HeapBytes: s.opts.TotalBytes - s.heap.left(), PageBytes: s.opts.TotalBytes - s.pages.left(),
		Shared: s.sharedStats(),
	}
	st.Requests, st.RequestsBy = s.count.requests.read()
	st.Failed, st.FailedBy = s.count.failed.read()
	s.groups.stats(&st)
	return st
}

// plain says whether a connection speaks without TLS: what goes over a Unix socket does not
// leave the host.
func (s *Server) plain(nc net.Conn) bool {
	_, local := nc.(*net.UnixConn)
	return local || s.opts.TLS == nil
}
