package client

import (
	"bufio"
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/ringfence/ringfence/engine/api"
	"github.com/ringfence/ringfence/engine/shm"
	"github.com/ringfence/ringfence/engine/wire"
)

// sharer is a producer on a connection that shares memory, and the server's side of that.
// The socket says nothing.
type sharer struct {
	*Producer
	cn   *conn
	host *shm.Host
	over chan struct{} // closed when the connection has ended
}

func newSharer(t *testing.T) *sharer {
	t.Helper()
	c, err := newClient("unix:nowhere", Options{})
	if err != nil {
		t.Fatal(err)
	}
	c.life, c.end = context.WithCancel(context.Background())
	c.quit = c.life.Done()
	c.unrouted.Store(true)
	host, guest := sharedPair(t, 1<<20)
	mine, theirs := net.Pipe()
	slots := 8
	cn := &conn{
		nc: &steady{Conn: mine, patience: time.Minute}, in: bufio.NewReader(mine), limit: wire.MaxFrame, slots: slots, heartbeat: time.Minute,
		wake: make(chan struct{}, 1), dead: make(chan struct{}), pending: map[uint32]*request{}, mem: c.mem, shared: newShared(guest, slots),
	}
	cn.shared.pool = c.mem.adopt(guest)
	o, err := producerDefaults(api.ProducerOptions{Topic: "t", ID: 7, BatchBytes: 8 << 10}, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	c.acks.set(nil, ErrRefused, true) // there is no other connection
	p := newProducer(c, c.acks, o)
	p.session = &session{conn: cn, handle: 1, limit: cn.largest()}
	s := &sharer{Producer: p, cn: cn, host: host, over: make(chan struct{})}
	go func() {
		defer close(s.over)
		_ = cn.run(func(error) {})
	}()
	t.Cleanup(func() {
		p.abort()
		cn.kill(ErrClosed)
		<-s.over
		theirs.Close()
		c.end()
	})
	return s
}

// send has a caller produce a record.
func (s *sharer) send(ctx context.Context) <-chan error {
	out := make(chan error, 1)
	go func() {
		_, err := s.Produce(ctx, api.Record{Value: []byte("x")})
		out <- err
	}()
	return out
}

func (s *sharer) next(t *testing.T) uint32 {
	t.Helper()
	sub, err := s.host.Next()
	if err != nil {
		t.Fatal(err)
	}
	return sub.ID
}

func (s *sharer) store(id uint32) { s.host.Complete(shm.Completion{ID: id}) }

// refuse is an answer on the socket.
func (s *sharer) refuse(id uint32, err error) {
	s.host.Answered()
	r := s.cn.settle(id)
	r.owner.answered(r, answer{err: err})
}

// alone sends records one by one until the caller listens for one himself, and answers
// that one's id and how it ends.
func (s *sharer) alone(t *testing.T, ctx context.Context) (uint32, <-chan error) {
	t.Helper()
	for range 1000 {
		done := s.send(ctx)
		id := s.next(t)
		for range 20 { // less than his patience
			if sh := s.cn.shared; sh.aside.Load() && len(sh.ear) == 0 && len(sh.call) == 0 {
				return id, done
			}
			time.Sleep(10 * time.Microsecond)
		}
		s.store(id)
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	t.Fatal("no caller listens")
	return 0, nil
}

// A caller who sends one record after another hears of each himself.
func TestCallerListens(t *testing.T) {
	s := newSharer(t)
	for range 20 {
		id, done := s.alone(t, context.Background())
		s.store(id)
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
}

// What others send while a caller listens, or after he did, is heard of as well: their
// callbacks run.
func TestOthersAreHeard(t *testing.T) {
	s := newSharer(t)
	for range 20 {
		id, done := s.alone(t, context.Background())
		b, err := s.NewBatch(context.Background(), 0)
		if err == nil {
			err = b.Add(api.Record{Value: []byte("y")})
		}
		other := make(chan error, 1)
		if err == nil {
			err = b.Send(context.Background(), func(_ api.Placement, err error) { other <- err })
		}
		if err != nil {
			t.Fatal(err)
		}
		s.store(s.next(t)) // before the caller's own
		if err := <-other; err != nil {
			t.Fatal(err)
		}
		s.store(id)
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if err := s.Append(context.Background(), api.Record{Value: []byte("z")}, func(_ api.Placement, err error) { other <- err }); err != nil {
			t.Fatal(err)
		}
		s.store(s.next(t))
		if err := <-other; err != nil {
			t.Fatal(err)
		}
	}
}

// A caller who listens hears of a refusal, which comes another way, and of the end of his
// context; and the answers behind that come to hear.
func TestCallerListensInVain(t *testing.T) {
	s := newSharer(t)
	refused := &wire.Error{Code: wire.CodeRecordTooLarge, Detail: "of the test"}
	id, done := s.alone(t, context.Background())
	s.refuse(id, refused)
	if err := <-done; !errors.Is(err, wire.CodeRecordTooLarge) {
		t.Fatalf("refused: %v", err)
	}

	s = newSharer(t)
	ctx, cancel := context.WithCancel(context.Background())
	id, done = s.alone(t, ctx)
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Fatalf("after the end of its context: %v", err)
	}
	s.store(id)
	if err := s.Flush(context.Background()); err != nil {
		t.Fatal(err)
	}
}

// A connection that ends while a caller listens waits for him with its memory, and what he
// sent is unknown.
func TestConnectionEndsUnderListener(t *testing.T) {
	for range 20 {
		s := newSharer(t)
		_, done := s.alone(t, context.Background())
		s.cn.kill(errors.New("of the test"))
		<-s.over
		if err := <-done; err == nil || !Unknown(err) {
			t.Fatalf("a record whose connection ended: %v", err)
		}
	}
}

// A server that answers what nobody asked is left, also where a caller finds out.
func TestListenerMeetsForeignAnswer(t *testing.T) {
	s := newSharer(t)
	_, done := s.alone(t, context.Background())
	s.store(sharedID | 5)
	<-s.over
	if err := <-done; err == nil {
		t.Fatal("a record was stored that was not answered")
	}
	if !errors.Is(s.cn.err, ErrProtocol) {
		t.Errorf("the connection ended with %v", s.cn.err)
	}
}
