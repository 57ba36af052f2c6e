package server

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ringfence/ringfence/engine/wire"
)

// One user of the host has no more connections over Unix sockets than one address has over
// TCP, and no number of addresses of one IPv6 network helps.
func TestConnectionsAreCountedByOrigin(t *testing.T) {
	leakFree(t)
	w := newWorld(t, Options{MaxConnsPerIP: 2})
	defer w.stop()
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- w.server.Serve(l) }()
	dial := func() *client {
		nc, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { nc.Close() })
		return &client{t: t, nc: nc}
	}
	first := dial()
	first.hello()
	dial().hello()
	third := dial()
	a, err := third.read()
	if err != nil || a.code() != wire.CodeTooManyConnections || !strings.Contains(a.err.Detail, "of this host") {
		t.Errorf("a third connection of one user: %v, %v", a.err, err)
	}
	other := w.connect()
	other.ping()
	other.nc.Close()
	first.nc.Close()
	for end := time.Now().Add(10 * time.Second); w.server.Stats().Connections > 1 && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	dial().hello()
	l.Close()
	<-served

	at := func(ip string) net.Addr { return &net.TCPAddr{IP: net.ParseIP(ip), Port: 1} }
	for _, tt := range []struct {
		a, b string
		same bool
	}{
		{"10.0.0.1", "10.0.0.1", true}, {"10.0.0.1", "10.0.0.2", false}, {"::ffff:10.0.0.1", "10.0.0.1", true},
		{"2001:db8::1", "2001:db8::ffff:1", true}, {"2001:db8::1", "2001:db8:0:1::1", false},
	} {
		if same := OriginOf(at(tt.a)) == OriginOf(at(tt.b)); same != tt.same {
			t.Errorf("%s and %s are counted together: %t", tt.a, tt.b, same)
		}
	}
}

// Users of the host log in over Unix sockets each for himself: who guesses passwords there
// uses up his own attempts and locks himself out.
func TestLoginSaysWhichUserOfTheHost(t *testing.T) {
	leakFree(t)
	var from atomic.Value
	w := newWorld(t, Options{Authenticate: func(ctx context.Context, l Login) (Identity, error) {
		from.Store(l.From)
		return letIn(ctx, l)
	}})
	defer w.stop()
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- w.server.Serve(l) }()
	nc, err := net.Dial("unix", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	c := &client{t: t, nc: nc}
	c.hello()
	want[*wire.AuthenticateReply](c, wire.KeyAuthenticate, &wire.Authenticate{Mechanism: "password", User: "u", Secret: []byte("right")})
	if got, want := fmt.Sprint(from.Load()), fmt.Sprintf("user %d of this host", os.Getuid()); got != want {
		t.Errorf("it came from %s, want %s", got, want)
	}
	nc.Close()
	l.Close()
	<-served
}

// Connections leave the engine the files that it needs.
func TestConnectionsLeaveFiles(t *testing.T) {
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	few := was
	few.Cur = 200
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &few); err != nil {
		t.Skip(err)
	}
	defer func() {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
			t.Error(err)
		}
	}()
	inBubble(t, Options{}, func(w *world) {
		for range 50 {
			w.connect()
		}
		w.dial().closed(wire.CodeTooManyConnections)
	})
}

// One place does not get all connections that there may be, unless it is told to.
func TestConnectionsOfOnePlace(t *testing.T) {
	for _, tt := range []struct{ o, want Options }{
		{Options{MaxConns: 1}, Options{MaxConns: 1, MaxConnsPerIP: 1}},
		{Options{MaxConns: 5}, Options{MaxConns: 5, MaxConnsPerIP: 4}},
		{Options{MaxConns: 20, MaxConnsPerIP: 20}, Options{MaxConns: 20, MaxConnsPerIP: 20}},
		{Options{MaxConns: 20, MaxConnsPerIP: 30}, Options{MaxConns: 20, MaxConnsPerIP: 20}},
	} {
		o, err := tt.o.withDefaults()
		if err != nil || o.MaxConns != tt.want.MaxConns || o.MaxConnsPerIP != tt.want.MaxConnsPerIP {
			t.Errorf("%d and %d come to %d and %d, %v", tt.o.MaxConns, tt.o.MaxConnsPerIP, o.MaxConns, o.MaxConnsPerIP, err)
		}
	}
}
