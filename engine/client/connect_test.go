package client

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ringfence/ringfence/engine/api"
	"github.com/ringfence/ringfence/engine/wire"
)

// listen has a fake serve a listener until the test ends.
func (f *fake) listen(t *testing.T, l net.Listener) {
	f.wg.Go(func() {
		for {
			nc, err := l.Accept()
			if err != nil {
				return
			}
			f.accept(nc)
		}
	})
	t.Cleanup(func() { l.Close() })
}

func TestAddresses(t *testing.T) {
	for _, bad := range []string{"", "host", "host:", "unix:", "tls://host", "http://host:1"} {
		if _, err := Dial(t.Context(), bad, Options{}); err == nil {
			t.Errorf("address %q was taken", bad)
		}
	}
	for _, bad := range []Options{{RequestTimeout: -1}, {DialTimeout: -1}, {Heartbeat: -1}, {MemoryBytes: 1}} {
		if _, err := Dial(t.Context(), "host:1", bad); err == nil {
			t.Errorf("options %+v were taken", bad)
		}
	}
}

// A server is reached over TCP, a Unix socket and TLS.
func TestNetworks(t *testing.T) {
	f := newFake(t)
	try := func(name, addr string, o Options) {
		t.Helper()
		o.Logger = slog.New(slog.DiscardHandler)
		c, err := Dial(t.Context(), addr, o)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			return
		}
		p := producer(t, c, api.ProducerOptions{})
		if _, err := p.Produce(t.Context(), rec(0)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if err := errors.Join(p.Close(t.Context()), c.Close()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f.listen(t, tcp)
	try("tcp", tcp.Addr().String(), Options{})
	path := filepath.Join(t.TempDir(), "s")
	unix, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	f.listen(t, unix)
	try("unix", "unix:"+path, Options{})
	cert, pool := certificate(t)
	secure, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{cert}})
	if err != nil {
		t.Fatal(err)
	}
	f.listen(t, secure)
	try("tls by address", "tls://"+secure.Addr().String(), Options{TLS: &tls.Config{RootCAs: pool}})
	try("tls by options", secure.Addr().String(), Options{TLS: &tls.Config{RootCAs: pool}})
	if _, err := Dial(t.Context(), "tls://"+secure.Addr().String(), Options{}); !errors.Is(err, ErrUnavailable) {
		t.Errorf("a certificate that nobody vouches for: %v", err)
	}
}

func certificate(t *testing.T) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(cert)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pool
}

func TestLogin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.hello = func(h *wire.HelloReply) { h.Authenticate, h.Mechanisms = true, []string{"password", "token"} }
		for _, o := range []Options{{User: "u", Password: "secret"}, {Password: "secret"}} {
			o.dial = f.dial
			c, err := Dial(t.Context(), "fake:1", o)
			if err != nil {
				t.Fatal(err)
			}
			c.Close()
		}
		for _, o := range []Options{{}, {User: "u", Password: "wrong"}, {User: "u"}} {
			o.dial = f.dial
			if _, err := Dial(t.Context(), "fake:1", o); !errors.Is(err, ErrRefused) {
				t.Errorf("logged in as %q with %q: %v", o.User, o.Password, err)
			}
		}
		f.hello = func(h *wire.HelloReply) { h.Authenticate, h.Mechanisms = true, []string{"token"} }
		if _, err := Dial(t.Context(), "fake:1", Options{User: "u", Password: "secret", dial: f.dial}); !errors.Is(err, ErrRefused) {
			t.Errorf("a server that takes no passwords: %v", err)
		}
	})
}

// What is wrong with a server's hello is an error of Dial.
func TestHello(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, tt := range []struct {
			name  string
			hello func(*wire.HelloReply)
			on    func(s *fakeConn, h wire.Head, _, _ []byte) bool
			want  error
		}{
			{"version", func(h *wire.HelloReply) { h.Version = 2 }, nil, ErrProtocol},
			{"frames", func(h *wire.HelloReply) { h.MaxFrame = 100 }, nil, ErrProtocol},
			{"requests", func(h *wire.HelloReply) { h.MaxRequests = 0 }, nil, ErrProtocol},
			{"turned away", nil, func(s *fakeConn, _ wire.Head, _, _ []byte) bool {
				s.fail(wire.Head{}, wire.CodeTooManyConnections, "too many")
				return true
			}, ErrOverloaded},
			{"old", nil, func(s *fakeConn, h wire.Head, _, _ []byte) bool {
				s.fail(h, wire.CodeUnsupportedVersion, "upgrade")
				return true
			}, ErrUnsupported},
			{"other key", nil, func(s *fakeConn, h wire.Head, _, _ []byte) bool {
				h.Key = wire.KeyPing
				s.answer(h, &wire.Done{}, nil)
				return true
			}, ErrProtocol},
			{"hangs up", nil, func(s *fakeConn, h wire.Head, _, _ []byte) bool {
				s.close()
				return true
			}, ErrUnavailable},
			{"silent", nil, func(s *fakeConn, h wire.Head, _, _ []byte) bool { return true }, ErrUnavailable},
		} {
			f := newFake(t)
			f.hello, f.on = tt.hello, tt.on
			if _, err := Dial(t.Context(), "fake:1", Options{dial: f.dial}); !errors.Is(err, tt.want) {
				t.Errorf("%s: %v, want %v", tt.name, err, tt.want)
			}
			f.cut()
		}
		f := newFake(t)
		f.refuse = true
		if _, err := Dial(t.Context(), "fake:1", Options{dial: f.dial}); !errors.Is(err, ErrUnavailable) {
			t.Errorf("nobody there: %v", err)
		}
	})
}

// A server that stays away is told of again and again, but ever more seldom.
func TestAbsentServerIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		var told bytes.Buffer
		f.client(t, Options{Logger: slog.New(slog.NewTextHandler(&told, nil))})
		f.mu.Lock()
		f.refuse = true
		f.mu.Unlock()
		f.cut()
		time.Sleep(time.Hour)
		synctest.Wait()
		const attempts = 700 // at least: a pause is 5 s at most
		for n := 1; n < attempts; n *= 2 {
			if line := fmt.Sprintf("attempt=%d ", n); strings.Count(told.String(), line) == 0 {
				t.Errorf("nothing of %s", line)
			}
		}
		if lines, links := strings.Count(told.String(), "no connection"), strings.Count(told.String(), "attempt=1 "); lines > 12*links {
			t.Errorf("%d lines of %d links in an hour", lines, links)
		}
	})
}

// Another log behind the address is another place: nothing is sent there.
func TestOtherLogBehindTheAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		var other atomic.Bool
		f.hello = func(h *wire.HelloReply) {
			if other.Load() {
				h.Log = "other"
			}
		}
		c := f.client(t, Options{})
		p := producer(t, c, api.ProducerOptions{})
		if _, err := p.Produce(t.Context(), rec(0)); err != nil {
			t.Fatal(err)
		}
		other.Store(true)
		f.cut()
		if _, err := p.Produce(t.Context(), rec(1)); !errors.Is(err, ErrMismatch) {
			t.Errorf("produced: %v", err)
		}
		if _, err := c.Topics(t.Context()); !errors.Is(err, ErrMismatch) {
			t.Errorf("listed: %v", err)
		}
		other.Store(false)
		time.Sleep(time.Minute)
		if _, err := producer(t, c, api.ProducerOptions{}).Produce(t.Context(), rec(1)); err != nil {
			t.Errorf("with the log back: %v", err)
		}
	})
}

// Whoever gives up while a connection for shared memory is made gives all of it up. (It
// takes the race detector to see how the two meet.)
func TestGivenUpWhileItConnects(t *testing.T) {
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, w := range []way{plain, sharing, filing} {
		for range 20 {
			ctx, cancel := context.WithCancel(t.Context())
			c, err := newClient("fake:1", Options{dial: func(context.Context) (net.Conn, error) {
				defer cancel()
				return net.Dial("unix", l.Addr().String())
			}})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := c.connect(ctx, w); !errors.Is(err, ErrUnavailable) {
				t.Errorf("way %d: %v", w, err)
			}
			there, err := l.Accept()
			if err != nil {
				t.Fatal(err)
			}
			_ = there.SetReadDeadline(time.Now().Add(10 * time.Second))
			if _, err := io.Copy(io.Discard, there); errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("way %d: the connection stays", w)
			}
			there.Close()
		}
	}
}

// Close ends whatever is under way, and everybody hears of it.
func TestCloseEndsEverything(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.on = func(_ *fakeConn, h wire.Head, _, _ []byte) bool {
			return h.Key == wire.KeyProduce || h.Key == wire.KeyListTopics
		}
		c := f.client(t, Options{})
		p := producer(t, c, api.ProducerOptions{})
		r, err := c.NewConsumer(api.ConsumerOptions{Topic: "t"})
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 4)
		go func() { _, err := p.Produce(context.Background(), rec(0)); ended <- err }()
		if err := p.Append(t.Context(), rec(1), func(_ api.Placement, err error) { ended <- err }); err != nil {
			t.Fatal(err)
		}
		go func() { _, err := r.Poll(context.Background(), 1); ended <- err }()
		go func() { _, err := c.Topics(context.Background()); ended <- err }()
		synctest.Wait()
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		for range 4 {
			if err := <-ended; !errors.Is(err, ErrClosed) {
				t.Errorf("ended with %v", err)
			}
		}
		if _, err := c.NewProducer(api.ProducerOptions{Topic: "t"}); !errors.Is(err, ErrClosed) {
			t.Errorf("a producer of a closed client: %v", err)
		}
		if _, err := c.NewConsumer(api.ConsumerOptions{Topic: "t"}); !errors.Is(err, ErrClosed) {
			t.Errorf("a consumer of a closed client: %v", err)
		}
		if _, err := c.Topics(t.Context()); !errors.Is(err, ErrClosed) {
			t.Errorf("a closed client: %v", err)
		}
		if err := errors.Join(c.Close(), r.Close(), p.Close(t.Context())); err != nil {
			t.Errorf("closed again: %v", err)
		}
	})
}
