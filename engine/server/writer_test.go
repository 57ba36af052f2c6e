package server

import (
	"errors"
	"net"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/ringfence/ringfence/engine/wire"
)

// full is a listener whose connections do not take every second answer at once.
type full struct {
	net.Listener
	asked, refused *atomic.Int64
}

func (l full) Accept() (net.Conn, error) {
	nc, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return fullConn{nc.(*net.TCPConn), l}, nil
}

type fullConn struct {
	*net.TCPConn
	l full
}

func (c fullConn) SyscallConn() (syscall.RawConn, error) {
	raw, err := c.TCPConn.SyscallConn()
	return fullRaw{raw, c.l}, err
}

type fullRaw struct {
	syscall.RawConn
	l full
}

func (r fullRaw) Control(f func(uintptr)) error {
	if r.l.asked.Add(1)%2 == 0 {
		r.l.refused.Add(1)
		return nil
	}
	return r.RawConn.Control(f)
}

// Answers that the socket does not take at once are written by the writer, whole and in
// order, as are those that find others under way.
func TestAnswersOfAFullSocket(t *testing.T) {
	leakFree(t)
	w := newWorld(t, Options{})
	defer w.stop()
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := full{inner, new(atomic.Int64), new(atomic.Int64)}
	served := make(chan error, 1)
	go func() { served <- w.server.Serve(l) }()
	nc, err := net.Dial("tcp", inner.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	c := &client{t: t, nc: nc}
	c.hello()
	p := c.producer("a")
	for range 100 {
		want[*wire.ProduceReply](c, wire.KeyProduce, &wire.Produce{Producer: p}, frameOf(1, 300)...)
		want[*wire.Done](c, wire.KeyPing, &wire.Ping{})
	}
	if l.refused.Load() < 50 {
		t.Errorf("%d of %d answers found the socket full", l.refused.Load(), l.asked.Load())
	}
	// Many at a time: each is answered once.
	open := map[uint32]bool{}
	for range 200 {
		open[c.send(wire.KeyPing, &wire.Ping{})] = true
	}
	for range 200 {
		a := c.next()
		if !open[a.ID] {
			t.Fatalf("an answer to %d, which waits for none", a.ID)
		}
		delete(open, a.ID)
	}
	nc.Close()
	inner.Close()
	if err := <-served; !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
}

// What is left of an answer goes first, and the writer waits until somebody else has
// written.
func TestRestOfAnAnswer(t *testing.T) {
	b := newOutbox(10, 1<<20, &budget{limit: 1 << 20})
	one := outgoing{key: wire.KeyPing, flags: wire.FlagReply, id: 1}
	for id := uint32(1); id <= 2; id++ {
		if alone, err := b.admit(t.Context(), wire.Head{Key: wire.KeyPing, ID: id}, false); err != nil || alone != (id == 1) {
			t.Fatal(alone, err)
		}
	}
	if b.lone(&one, 1) {
		t.Fatal("the answer to one of two requests does not go alone")
	}
	b.put(one)
	if list, _ := b.take(nil); len(list) != 1 {
		t.Fatalf("%d frames for the writer", len(list))
	}
	two := outgoing{key: wire.KeyPing, flags: wire.FlagReply, id: 2}
	if b.lone(&two, 1) {
		t.Fatal("the writer writes")
	}
	if list, _ := b.take(nil); len(list) != 0 {
		t.Fatal("an answer came twice")
	}
	if !b.lone(&two, 1) {
		t.Fatal("the last answer does not go alone")
	}
	b.put(outgoing{key: wire.KeyPing, flags: wire.FlagReply | wire.FlagPush, id: 3})
	b.finish(nil)
	if list, ended := b.take(nil); len(list) != 0 || ended {
		t.Fatalf("the writer got %d frames while another one writes, ended %v", len(list), ended)
	}
	b.wrote([]byte("rest"))
	list, ended := b.take(nil)
	if len(list) != 2 || string(list[0].rest) != "rest" || list[1].id != 3 || ended {
		t.Fatalf("the writer got %+v, ended %v", list, ended)
	}
	if _, ended := b.take(nil); !ended {
		t.Error("the writer does not end")
	}
}
