package client

import (
	"bytes"
	"context"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/ringfence/ringfence/engine/api"
)

// full is a connection that does not take every second request at once.
type full struct {
	*net.UnixConn
	asked, refused *atomic.Int64
}

func (c full) SyscallConn() (syscall.RawConn, error) {
	raw, err := c.UnixConn.SyscallConn()
	return fullRaw{raw, c}, err
}

type fullRaw struct {
	syscall.RawConn
	full
}

func (r fullRaw) Control(f func(uintptr)) error {
	if r.asked.Add(1)%2 == 0 {
		r.refused.Add(1)
		return nil
	}
	return r.RawConn.Control(f)
}

// Requests that the socket does not take at once are written by the writer, whole and in
// order, beside those of others.
func TestRequestsIntoAFullSocket(t *testing.T) {
	f := newFake(t)
	l, err := net.Listen("unix", t.TempDir()+"/s")
	if err != nil {
		t.Fatal(err)
	}
	f.listen(t, l)
	var asked, refused atomic.Int64
	c, err := Dial(t.Context(), "fake:1", Options{dial: func(ctx context.Context) (net.Conn, error) {
		nc, err := new(net.Dialer).DialContext(ctx, "unix", l.Addr().String())
		if err != nil {
			return nil, err
		}
		return full{nc.(*net.UnixConn), &asked, &refused}, nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	large := make([]byte, 100<<10) // is none of those that are written at once
	var all sync.WaitGroup
	for range 4 {
		p, err := c.NewProducer(api.ProducerOptions{Topic: "t"})
		if err != nil {
			t.Fatal(err)
		}
		all.Go(func() {
			for i := range 100 {
				value := large[:10]
				if i%10 == 0 {
					value = large
				}
				if _, err := p.Produce(t.Context(), api.Record{Value: value}); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	if got := len(f.values()); got != 400 {
		t.Errorf("%d records, want 400", got)
	}
	if refused.Load() < 10 {
		t.Errorf("%d of %d requests found the socket full", refused.Load(), asked.Load())
	}
}

// Of what a socket takes in part, the rest is kept.
func TestRestOfARequest(t *testing.T) {
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_NONBLOCK|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(fds[0])
	defer syscall.Close(fds[1])
	sent := make([]byte, 8<<20)
	for i := range sent {
		sent[i] = byte(i % 251)
	}
	o := outflow{buf: slices.Clone(sent)}
	o.write(uintptr(fds[0]))
	if n := len(o.buf); n == 0 || n == len(sent) {
		t.Fatalf("%d of %d bytes are left: the socket did not take a part", n, len(sent))
	}
	var got []byte
	for b := make([]byte, 1<<20); len(got) < len(sent); {
		n, err := syscall.Read(fds[1], b)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, b[:n]...)
		o.write(uintptr(fds[0]))
	}
	if !bytes.Equal(got, sent) {
		t.Error("something else came than was sent")
	}
}
