package server

import (
	"net"
	"path/filepath"
	"strings"
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
	for end := time.Now().Add(10 * time.Second); w.server.Stats().Connections > 2 && time.Now().Before(end); {
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
		if same := NetworkOf(at(tt.a)) == NetworkOf(at(tt.b)); same != tt.same {
			t.Errorf("%s and %s are counted together: %t", tt.a, tt.b, same)
		}
	}
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
