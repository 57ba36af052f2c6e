package server

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/ringfence/ringfence/engine/wire"
)

// randomFile is a file of n bytes.
func randomFile(t *testing.T, n int) (path string, content []byte) {
	t.Helper()
	content = make([]byte, n)
	rng := rand.New(rand.NewPCG(1, uint64(n)))
	for i := range content {
		content[i] = byte(rng.Uint32())
	}
	path = filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	return path, content
}

// A page that lies in a file is sent over every kind of connection, between other
// answers, and its file is closed.
func TestPagesOfFiles(t *testing.T) {
	const length = 5<<20 + 77
	path, content := randomFile(t, length)
	cert, pool := selfSigned(t)
	for _, network := range []string{"tcp", "unix", "tls"} {
		t.Run(network, func(t *testing.T) {
			leakFree(t)
			o := Options{}
			addr, listen := "127.0.0.1:0", "tcp"
			if network == "tls" {
				o.TLS = &tls.Config{Certificates: []tls.Certificate{cert}}
			} else if listen = network; network == "unix" {
				addr = filepath.Join(t.TempDir(), "s")
			}
			w := newWorld(t, o)
			defer w.stop()
			w.engine.file, w.engine.length = path, length
			l, err := net.Listen(listen, addr)
			if err != nil {
				t.Fatal(err)
			}
			served := make(chan error, 1)
			go func() { served <- w.server.Serve(l) }()
			defer func() { l.Close(); <-served }()
			nc, err := net.Dial(listen, l.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			if network == "tls" {
				nc = tls.Client(nc, &tls.Config{RootCAs: pool, ServerName: "ringfence.test"})
			}
			defer nc.Close()
			c := &client{t: t, nc: nc}
			c.hello()
			c.producer("a")
			r := c.consumer("a")
			for i := range 3 {
				a := c.do(wire.KeyFetch, &wire.Fetch{Consumer: r, Stored: true, InFile: i > 0}) // nobody shares memory here
				if p, ok := a.msg.(*wire.Page); !ok || p.Salt != 5 || p.Next != 1 || !bytes.Equal(a.raw, content) {
					t.Fatalf("%+v %v with %d bytes", a.msg, a.err, len(a.raw))
				}
				c.ping()
			}
			if a := c.do(wire.KeyFetch, &wire.Fetch{Consumer: r}); len(a.raw) != 0 || a.err != nil {
				t.Errorf("who asks for verified frames gets %d bytes, %v", len(a.raw), a.err)
			}
			if n := w.server.Stats().PageBytes; n != 0 {
				t.Errorf("a page of a file that was sent holds %d bytes of memory", n)
			}
			for _, f := range w.engine.pages {
				if _, err := f.Stat(); !errors.Is(err, os.ErrClosed) {
					t.Errorf("the file of a page that was sent: %v", err)
				}
			}
			sub := c.send(wire.KeySubscribe, &wire.Subscribe{Consumer: r, Window: 1 << 10, Stored: true})
			if a := c.next(); a.ID != sub || !bytes.Equal(a.raw, content) {
				t.Errorf("pushed %d bytes, %v", len(a.raw), a.err)
			}
			c.ping() // the credit is used up
		})
	}
}

// sendTo has a part of a file written to a connection, by a writer of its own and, if it
// is a plain socket, by sendfile.
func sendTo(t *testing.T, nc net.Conn, p filePart, timeout time.Duration) error {
	t.Helper()
	s, err := New(newFakeEngine(), Options{WriteTimeout: timeout})
	if err != nil {
		t.Fatal(err)
	}
	c := newConn(s, nc, 1)
	defer c.cut(nil)
	w := &writer{c: c}
	w.sendBy(socketOf(nc), p)
	if n := c.s.count.sent.Load(); w.err == nil && n != p.length {
		t.Errorf("%d bytes counted of %d", n, p.length)
	}
	return w.err
}

// sockets are the two ends of a TCP connection.
func sockets(t *testing.T) (ours, theirs net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if theirs, err = net.Dial("tcp", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if ours, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ours.Close(); theirs.Close() })
	return ours, theirs
}

// hidden is a connection of which nobody can see that it is a socket.
type hidden struct{ net.Conn }

// What is sent goes on at the right byte however little the socket takes, from any
// position, and what the file does not have any more comes as zeros.
func TestSendParts(t *testing.T) {
	path, content := randomFile(t, 3<<20+5)
	rng := rand.New(rand.NewPCG(3, 4))
	for _, plain := range []bool{true, false} {
		for _, p := range []filePart{
			{from: 0, length: int64(len(content))}, {from: 64, length: 1}, {from: 4096 + 64, length: 2<<20 + 1},
			{from: 2 << 20, length: 2 << 20}, {from: 4 << 20, length: 300 << 10},
		} {
			ours, theirs := sockets(t)
			if plain {
				if err := ours.(*net.TCPConn).SetWriteBuffer(64 << 10); err != nil {
					t.Fatal(err)
				}
			} else {
				ours = hidden{ours}
			}
			var err error
			if p.file, err = os.Open(path); err != nil {
				t.Fatal(err)
			}
			sent := make(chan error)
			go func() {
				err := sendTo(t, ours, p, time.Minute)
				ours.Close()
				sent <- err
			}()
			var got []byte
			for b := make([]byte, 100<<10); err == nil; {
				var n int
				n, err = theirs.Read(b[:1+rng.IntN(len(b))])
				got = append(got, b[:n]...)
			}
			if werr := <-sent; werr != nil || !errors.Is(err, io.EOF) {
				t.Fatal(werr, err)
			}
			expect := make([]byte, p.length)
			copy(expect, content[min(p.from, int64(len(content))):])
			if !bytes.Equal(got, expect) {
				t.Errorf("plain %v: %d bytes from %d on came otherwise", plain, p.length, p.from)
			}
			p.file.Close()
		}
	}
}

// A peer that does not read is given up after the time for a chunk, and one that is gone
// at once.
func TestSendToNobody(t *testing.T) {
	path, content := randomFile(t, 32<<20)
	for _, plain := range []bool{true, false} {
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		ours, theirs := sockets(t)
		to := ours
		if !plain {
			to = hidden{ours}
		}
		p := filePart{f, 0, int64(len(content))}
		if err := sendTo(t, to, p, 50*time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("plain %v: a peer that does not read: %v", plain, err)
		}
		theirs.Close()
		if err := sendTo(t, to, p, time.Minute); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("plain %v: a peer that is gone: %v", plain, err)
		}
		ours.Close()
		if err := sendTo(t, to, p, time.Minute); !errors.Is(err, net.ErrClosed) {
			t.Errorf("plain %v: a closed connection: %v", plain, err)
		}
		f.Close()
	}
}

type between struct {
	net.Conn
	local, remote net.Addr
}

func (b between) LocalAddr() net.Addr  { return b.local }
func (b between) RemoteAddr() net.Addr { return b.remote }

// Sendfile is for clients on other machines.
func TestElsewhere(t *testing.T) {
	at := func(ip string) net.Addr { return &net.TCPAddr{IP: net.ParseIP(ip), Port: 4040} }
	for _, c := range []struct {
		local, remote net.Addr
		want          bool
	}{
		{at("10.0.0.1"), at("10.0.0.2"), true},
		{at("fd00::1"), at("fd00::2"), true},
		{at("10.0.0.1"), at("10.0.0.1"), false},
		{at("127.0.0.1"), at("127.0.0.2"), false},
		{at("::1"), at("::1"), false},
		{&net.UnixAddr{Name: "s"}, &net.UnixAddr{}, false},
	} {
		if got := elsewhere(between{nil, c.local, c.remote}); got != c.want {
			t.Errorf("from %v to %v: %t", c.local, c.remote, got)
		}
	}
}
