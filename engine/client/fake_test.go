package client

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ringfence/ringfence/cp"
	"github.com/ringfence/ringfence/engine/api"
	"github.com/ringfence/ringfence/engine/wire"
	"github.com/ringfence/ringfence/fence"
	"github.com/ringfence/ringfence/segfile/record"
)

// fake is a server with one topic of one range in memory. It keeps to the protocol;
// what a test wants to go wrong it does in on.
type fake struct {
	t *testing.T

	// on is asked about every request first; true says that it dealt with it.
	on func(s *fakeConn, h wire.Head, msg, raw []byte) bool
	// hello changes the answer to Hello.
	hello func(*wire.HelloReply)

	mu      sync.Mutex
	conns   []*fakeConn
	log     [][]byte          // frames, stamped
	next    uint64            // offset
	last    map[uint64]uint64 // sequence, by producer
	grew    chan struct{}
	dials   int
	refuse  bool // no connection is taken
	opened  int  // producers
	stored  int  // frames
	repeats int  // frames that were there
	group   string
	wg      sync.WaitGroup
}

var fakeTopic = fence.TopicID{7, 7, 7}

func newFake(t *testing.T) *fake {
	f := &fake{t: t, last: map[uint64]uint64{}, grew: make(chan struct{})}
	t.Cleanup(func() {
		f.cut()
		f.wg.Wait()
	})
	return f
}

// dial is Options.dial.
func (f *fake) dial(context.Context) (net.Conn, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.dials++
	if f.refuse {
		return nil, errors.New("refused")
	}
	mine, theirs := net.Pipe()
	f.add(mine)
	return theirs, nil
}

// accept serves a connection that came from elsewhere.
func (f *fake) accept(nc net.Conn) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.add(nc)
}

func (f *fake) add(nc net.Conn) {
	s := &fakeConn{f: f, nc: nc, in: bufio.NewReader(nc), out: make(chan []byte, 1024), gone: make(chan struct{}), producers: map[uint32]uint64{}, consumers: map[uint32]uint64{}}
	f.conns = append(f.conns, s)
	f.wg.Go(s.serve)
	f.wg.Go(s.send)
}

// cut ends all connections.
func (f *fake) cut() {
	f.mu.Lock()
	conns := f.conns
	f.conns = nil
	f.mu.Unlock()
	for _, s := range conns {
		s.close()
	}
}

func (f *fake) client(t *testing.T, o Options) *Client {
	t.Helper()
	o.dial, o.Logger = f.dial, cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	o.RequestTimeout = cmp.Or(o.RequestTimeout, time.Hour) // of a bubble
	c, err := Dial(t.Context(), "fake:1", o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// fakeConn is one connection to a fake.
type fakeConn struct {
	f    *fake
	nc   net.Conn
	in   *bufio.Reader
	out  chan []byte
	gone chan struct{}
	once sync.Once

	mortal atomic.Bool // a test lets this one fall silent

	handles   uint32            // of the goroutine in serve
	producers map[uint32]uint64 // ids; likewise
	consumers map[uint32]uint64 // offsets; the fake's mu guards them
}

func (s *fakeConn) close() {
	s.once.Do(func() {
		close(s.gone)
		s.nc.Close()
	})
}

func (s *fakeConn) send() {
	for {
		select {
		case b := <-s.out:
			if _, err := s.nc.Write(b); err != nil {
				s.close()
				return
			}
		case <-s.gone:
			return
		}
	}
}

func (s *fakeConn) put(b []byte) {
	select {
	case s.out <- b:
	case <-s.gone:
	}
}

func (s *fakeConn) answer(h wire.Head, m wire.Message, raw []byte) {
	var enc wire.Encoder
	s.put(append(slices.Clone(enc.Frame(h.Key, wire.FlagReply, h.ID, m, len(raw))), raw...))
}

func (s *fakeConn) fail(h wire.Head, c wire.Code, detail string) {
	var enc wire.Encoder
	s.put(slices.Clone(enc.Fail(h.Key, h.ID, &wire.Error{Code: c, Detail: detail})))
}

func (s *fakeConn) serve() {
	defer s.close()
	for {
		var b [wire.HeadSize]byte
		if _, err := io.ReadFull(s.in, b[:]); err != nil {
			return
		}
		h, err := wire.ParseHead(b[:], wire.MaxFrame)
		if err != nil {
			s.f.t.Errorf("the client sent a bad head: %v", err)
			return
		}
		msg, raw := make([]byte, h.Message), make([]byte, h.Raw())
		if _, err := io.ReadFull(s.in, msg); err != nil {
			return
		}
		if _, err := io.ReadFull(s.in, raw); err != nil {
			return
		}
		if s.f.on == nil || !s.f.on(s, h, msg, raw) {
			s.handle(h, msg, raw)
		}
		select {
		case <-s.gone: // what was read ahead is lost
			return
		default:
		}
	}
}

// handle does what a good server does.
func (s *fakeConn) handle(h wire.Head, msg, raw []byte) {
	req, err := wire.Request(h.Key, msg)
	if err != nil {
		s.f.t.Errorf("the client sent a bad %s: %v", h.Key, err)
		s.close()
		return
	}
	switch m := req.(type) {
	case *wire.Hello:
		reply := &wire.HelloReply{Version: 1, Server: "fake", Log: "log", MaxFrame: wire.MaxFrame, MaxRequests: 64, IdleMs: 60000}
		if s.f.hello != nil {
			s.f.hello(reply)
		}
		s.answer(h, reply, nil)
	case *wire.Authenticate:
		if string(m.Secret) != "secret" {
			s.fail(h, wire.CodeInvalidCredentials, "wrong password")
			return
		}
		s.answer(h, &wire.AuthenticateReply{User: m.User}, nil)
	case *wire.OpenProducer:
		s.handles++
		s.producers[s.handles] = m.Id
		s.f.mu.Lock()
		s.f.opened++
		s.f.mu.Unlock()
		s.answer(h, &wire.OpenProducerReply{Producer: s.handles, Id: m.Id, MaxFrame: 8 << 20}, nil)
	case *wire.Produce:
		if _, ok := s.producers[m.Producer]; !ok {
			s.fail(h, wire.CodeNoSuchHandle, "no such producer")
			return
		}
		r := s.f.store(raw)
		s.answer(h, &r, nil)
	case *wire.OpenConsumer:
		s.handles++
		at := uint64(0)
		if api.FromKind(m.From) == api.AtCursor {
			pos, _, err := api.DecodeCursor(fakeTopic, m.Cursor)
			if err != nil {
				s.fail(h, wire.CodeInvalidCursor, err.Error())
				return
			}
			at = pos[fence.RangeID{Topic: fakeTopic}]
		}
		s.f.mu.Lock()
		s.consumers[s.handles] = at
		s.f.mu.Unlock()
		s.answer(h, &wire.OpenConsumerReply{Consumer: s.handles, Cursor: fakeCursor(at)}, nil)
	case *wire.Fetch:
		s.fetch(h, m)
	case *wire.Lag:
		pos, _, _ := api.DecodeCursor(fakeTopic, m.Cursor)
		s.f.mu.Lock()
		n := s.f.next - pos[fence.RangeID{Topic: fakeTopic}]
		s.f.mu.Unlock()
		s.answer(h, &wire.LagReply{Records: n}, nil)
	case *wire.Commit:
		s.f.mu.Lock()
		s.f.group = m.Cursor
		s.f.mu.Unlock()
		s.answer(h, &wire.Done{}, nil)
	case *wire.Topic:
		if h.Key == wire.KeyRoute {
			s.answer(h, &wire.RouteReply{Topic: fakeTopic.String(), Ranges: []uint32{0}, Last: []uint32{^uint32(0)}}, nil)
			return
		}
		s.answer(h, &wire.Done{}, nil)
	case *wire.ListTopics:
		s.answer(h, &wire.ListTopicsReply{}, nil)
	default:
		s.answer(h, &wire.Done{}, nil)
	}
}

func fakeCursor(at uint64) string {
	id := fence.RangeID{Topic: fakeTopic}
	return api.EncodeCursor(fakeTopic, cp.Position{id: at}, api.Marks{id: 9})
}

// store takes a frame, unless its sequences are there.
func (f *fake) store(raw []byte) wire.ProduceReply {
	b, err := record.Verify(raw, 0, nil)
	if err != nil {
		f.t.Errorf("the client sent a bad record frame: %v", err)
		return wire.ProduceReply{}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if b.Head.FirstSeq != 0 && b.Head.LastSeq <= f.last[b.Head.Producer] {
		f.repeats++
		return wire.ProduceReply{Repeats: uint32(b.Len())}
	}
	if b.Head.FirstSeq != 0 && b.Head.FirstSeq != f.last[b.Head.Producer]+1 {
		f.t.Errorf("sequence %d follows %d", b.Head.FirstSeq, f.last[b.Head.Producer])
	}
	f.last[b.Head.Producer] = b.Head.LastSeq
	record.Stamp(raw, f.next, 0, 0)
	r := wire.ProduceReply{First: f.next, Last: f.next + uint64(b.Len()) - 1}
	f.next += uint64(b.Len())
	f.stored++
	f.log = append(f.log, raw)
	close(f.grew)
	f.grew = make(chan struct{})
	return r
}

// values are those of all records, in order.
func (f *fake) values() (list []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, raw := range f.log {
		b, err := record.Verify(raw, 0, nil)
		if err != nil {
			f.t.Fatal(err)
		}
		for i := range b.Len() {
			list = append(list, string(b.Value(i)))
		}
	}
	return list
}

// fetch answers with what there is, at most some frames; where the request waits, when
// there is something.
func (s *fakeConn) fetch(h wire.Head, m *wire.Fetch) {
	p, raw, grew := s.page(m.Consumer)
	if len(raw) > 0 || m.WaitMs == 0 {
		s.answer(h, p, raw)
		return
	}
	s.f.wg.Go(func() {
		select {
		case <-grew:
			p, raw, _ := s.page(m.Consumer)
			s.answer(h, p, raw)
		case <-s.gone:
		}
	})
}

// page is a consumer's next one, and what is closed when there is more.
func (s *fakeConn) page(consumer uint32) (*wire.Page, []byte, chan struct{}) {
	f := s.f
	f.mu.Lock()
	defer f.mu.Unlock()
	at := s.consumers[consumer]
	p, raw := &wire.Page{Consumer: consumer, First: at, Next: at, Mark: 9}, []byte(nil)
	for _, frame := range f.log {
		head, _ := record.ParseHead(frame, 0)
		if head.Next() > at && len(raw) < 1024 {
			raw = append(raw, frame...)
			p.Next = head.Next()
		}
	}
	s.consumers[consumer] = p.Next
	p.CaughtUp = len(raw) == 0
	p.Cursor = fakeCursor(p.Next)
	return p, raw, f.grew
}
