package server

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"testing"
	"testing/synctest"

	"go.uber.org/goleak"

	"github.com/ringfence/ringfence/engine/wire"
)

// world is a server of a fake engine, with connections that are pipes: nothing is
// buffered between the two sides, and in a bubble every deadline passes at once.
type world struct {
	t      *testing.T
	engine *fakeEngine
	server *Server
	l      *pipeListener
	served chan error
}

// inBubble runs a test with fake time. A goroutine that is left over fails it.
func inBubble(t *testing.T, o Options, test func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, o)
		defer w.stop()
		test(w)
	})
}

// leakFree fails a test that leaves goroutines behind.
func leakFree(t *testing.T) {
	opt := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, opt) })
}

func newWorld(t *testing.T, o Options) *world {
	t.Helper()
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	w := &world{t: t, engine: newFakeEngine(), l: newPipeListener(), served: make(chan error, 1)}
	var err error
	if w.server, err = New(w.engine, o); err != nil {
		t.Fatal(err)
	}
	go func() { w.served <- w.server.Serve(w.l) }()
	return w
}

func (w *world) stop() {
	w.t.Helper()
	if err := w.server.Shutdown(context.Background()); err != nil {
		w.t.Errorf("shutdown: %v", err)
	}
	if err := <-w.served; err != nil {
		w.t.Errorf("serve: %v", err)
	}
	if n := w.engine.openHandles(); n != 0 {
		w.t.Errorf("%d producers and consumers are still open", n)
	}
	if s := w.server.Stats(); s.Connections != 0 || s.HeapBytes != 0 || s.PageBytes != 0 {
		w.t.Errorf("after all connections ended: %+v", s)
	}
	if n := w.server.receiving.left(); n != w.server.opts.ReceiveBytes {
		w.t.Errorf("%d bytes left to receive with, want %d", n, w.server.opts.ReceiveBytes)
	}
}

// client speaks to the server, a frame at a time.
type client struct {
	t    *testing.T
	nc   net.Conn
	enc  wire.Encoder
	last uint32
}

// answer is a frame from the server.
type answer struct {
	wire.Head
	msg any
	err *wire.Error // of a failed request; msg is nil then
	raw []byte
}

func (a answer) code() wire.Code {
	if a.err == nil {
		return 0
	}
	return a.err.Code
}

// dial opens a connection that has not said anything.
func (w *world) dial() *client {
	w.t.Helper()
	nc, err := w.l.dial()
	if err != nil {
		w.t.Fatal(err)
	}
	return &client{t: w.t, nc: nc}
}

// connect opens a connection and says hello.
func (w *world) connect() *client {
	w.t.Helper()
	c := w.dial()
	c.hello()
	return c
}

func (c *client) hello() *wire.HelloReply {
	c.t.Helper()
	return want[*wire.HelloReply](c, wire.KeyHello, &wire.Hello{Magic: wire.Magic, MinVersion: 1, MaxVersion: 1, Client: "test"})
}

// send sends a request and answers its id.
func (c *client) send(key wire.Key, m wire.Message, raw ...byte) uint32 {
	c.t.Helper()
	c.last++
	c.write(c.frame(key, c.last, m, raw...))
	return c.last
}

func (c *client) frame(key wire.Key, id uint32, m wire.Message, raw ...byte) []byte {
	return append(append([]byte(nil), c.enc.Frame(key, 0, id, m, len(raw))...), raw...)
}

func (c *client) write(b []byte) {
	c.t.Helper()
	if _, err := c.nc.Write(b); err != nil {
		c.t.Fatalf("write: %v", err)
	}
}

// read is the next frame from the server.
func (c *client) read() (answer, error) {
	var b [wire.HeadSize]byte
	if _, err := io.ReadFull(c.nc, b[:]); err != nil {
		return answer{}, err
	}
	h, err := wire.ParseHead(b[:], wire.MaxFrame)
	if err != nil {
		return answer{}, err
	}
	body := make([]byte, h.Length)
	if _, err := io.ReadFull(c.nc, body); err != nil {
		return answer{}, err
	}
	a := answer{Head: h, raw: body[h.Message:]}
	a.msg, err = wire.Reply(h.Key, h.Flags, body[:h.Message])
	if a.msg == nil {
		return a, err
	}
	if errors.As(err, &a.err) {
		a.msg = nil
	}
	return a, nil
}

func (c *client) next() answer {
	c.t.Helper()
	a, err := c.read()
	if err != nil {
		c.t.Fatalf("read: %v", err)
	}
	return a
}

// do sends a request and reads its answer, which must be the next frame.
func (c *client) do(key wire.Key, m wire.Message, raw ...byte) answer {
	c.t.Helper()
	id := c.send(key, m, raw...)
	a := c.next()
	if a.ID != id || a.Key != key {
		c.t.Fatalf("answer to %s %d, want %s %d", a.Key, a.ID, key, id)
	}
	return a
}

// want is do for a request that succeeds.
func want[M any](c *client, key wire.Key, m wire.Message, raw ...byte) M {
	c.t.Helper()
	a := c.do(key, m, raw...)
	r, ok := a.msg.(M)
	if !ok {
		c.t.Fatalf("%s: %v, %T", key, a.err, a.msg)
	}
	return r
}

// refused is do for a request that fails with a code.
func (c *client) refused(code wire.Code, key wire.Key, m wire.Message, raw ...byte) {
	c.t.Helper()
	if a := c.do(key, m, raw...); a.code() != code {
		c.t.Errorf("%s: %v, want %s", key, a.err, code)
	}
}

// closed reads an error of no request, if code is not 0, and then the end.
func (c *client) closed(code wire.Code) {
	c.t.Helper()
	if code != 0 {
		a, err := c.read()
		if err != nil || a.ID != 0 || a.code() != code {
			c.t.Errorf("got %v, %v of id %d, want %s", err, a.err, a.ID, code)
			return
		}
	}
	if a, err := c.read(); err == nil {
		c.t.Errorf("got an answer to %s %d (%v), want the end", a.Key, a.ID, a.err)
	}
}

func (c *client) ping() {
	c.t.Helper()
	want[*wire.Done](c, wire.KeyPing, &wire.Ping{})
}

// topicWith creates a topic and opens a producer of it.
func (c *client) producer(topic string) uint32 {
	c.t.Helper()
	if a := c.do(wire.KeyCreateTopic, &wire.CreateTopic{Topic: topic}); a.err != nil && a.code() != wire.CodeTopicExists {
		c.t.Fatal(a.err)
	}
	return want[*wire.OpenProducerReply](c, wire.KeyOpenProducer, &wire.OpenProducer{Topic: topic}).Producer
}

func (c *client) consumer(topic string) uint32 {
	c.t.Helper()
	return want[*wire.OpenConsumerReply](c, wire.KeyOpenConsumer, &wire.OpenConsumer{Topic: topic, From: 1}).Consumer
}

// frameOf is what the fake engine takes for a record frame: n bytes that all tell it.
func frameOf(number uint64, n int) []byte {
	b := make([]byte, n)
	for i := 0; i+8 <= n; i += 8 {
		binary.LittleEndian.PutUint64(b[i:], number)
	}
	return b
}

func numberOf(b []byte) (uint64, error) {
	n := binary.LittleEndian.Uint64(b)
	for i := 0; i+8 <= len(b); i += 8 {
		if got := binary.LittleEndian.Uint64(b[i:]); got != n {
			return 0, fmt.Errorf("frame %d has %d at byte %d", n, got, i)
		}
	}
	return n, nil
}

// pipeListener makes connections out of pipes.
type pipeListener struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func newPipeListener() *pipeListener {
	return &pipeListener{conns: make(chan net.Conn), done: make(chan struct{})}
}

func (l *pipeListener) dial() (net.Conn, error) {
	near, far := net.Pipe()
	select {
	case l.conns <- far:
		return near, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case nc := <-l.conns:
		return nc, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error {
	l.once.Do(func() { close(l.done) })
	return nil
}

func (l *pipeListener) Addr() net.Addr { return &net.UnixAddr{Name: "pipe", Net: "unix"} }
