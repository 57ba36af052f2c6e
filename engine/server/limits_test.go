package server

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"math/big"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ringfence/ringfence/cp"
	"github.com/ringfence/ringfence/engine/api"
	"github.com/ringfence/ringfence/engine/wire"
	"github.com/ringfence/ringfence/segfile/record"
)

// letIn knows two users, and whoever is slow until his time is over.
func letIn(ctx context.Context, l Login) (Identity, error) {
	switch {
	case l.User == "slow":
		<-ctx.Done()
		return Identity{}, ctx.Err()
	case l.User == "locked":
		return Identity{}, &wire.Error{Code: wire.CodeRateLimited, Detail: "later", RetryAfter: time.Minute}
	case l.Mechanism == "password" && (l.User == "u" || l.User == "v") && string(l.Secret) == "right":
		return Identity{User: l.User}, nil
	}
	return Identity{}, errors.New("no such user, or another secret")
}

// Nothing is done for a client before hello and login.
func TestLogin(t *testing.T) {
	hello := func(magic uint32, from, to uint16) wire.Message {
		return &wire.Hello{Magic: magic, MinVersion: from, MaxVersion: to}
	}
	for name, tt := range map[string]struct {
		key  wire.Key
		m    wire.Message
		want wire.Code
	}{
		"another request first": {wire.KeyPing, &wire.Ping{}, wire.CodeMalformed},
		"login first":           {wire.KeyAuthenticate, &wire.Authenticate{}, wire.CodeMalformed},
		"another magic":         {wire.KeyHello, hello(5, 1, 1), wire.CodeMalformed},
		"newer versions":        {wire.KeyHello, hello(wire.Magic, 2, 9), wire.CodeUnsupportedVersion},
		"older versions":        {wire.KeyHello, hello(wire.Magic, 0, 0), wire.CodeUnsupportedVersion},
		"unknown key":           {99, &wire.Ping{}, wire.CodeUnknownKey},
	} {
		inBubble(t, Options{}, func(w *world) {
			c := w.dial()
			if a := c.do(tt.key, tt.m); a.code() != tt.want {
				t.Errorf("%s: %v", name, a.err)
			}
			c.closed(0)
		})
	}
	for name, tt := range map[string]struct {
		key  wire.Key
		m    wire.Message
		want wire.Code
	}{
		"a request":      {wire.KeyListTopics, &wire.ListTopics{}, wire.CodeNotAuthenticated},
		"a second hello": {wire.KeyHello, hello(wire.Magic, 1, 1), wire.CodeNotAuthenticated},
		"produce":        {wire.KeyProduce, &wire.Produce{Producer: 1}, wire.CodeNotAuthenticated},
		"wrong secret":   {wire.KeyAuthenticate, &wire.Authenticate{Mechanism: "password", User: "u", Secret: []byte("x")}, wire.CodeInvalidCredentials},
		"locked out":     {wire.KeyAuthenticate, &wire.Authenticate{User: "locked"}, wire.CodeRateLimited},
		"too slow":       {wire.KeyAuthenticate, &wire.Authenticate{User: "slow"}, wire.CodeInvalidCredentials},
	} {
		inBubble(t, Options{Authenticate: letIn}, func(w *world) {
			c := w.dial()
			if r := c.hello(); !r.Authenticate || !slices.Equal(r.Mechanisms, []string{"password", "token"}) {
				t.Errorf("hello: %+v", r)
			}
			if a := c.do(tt.key, tt.m); a.code() != tt.want {
				t.Errorf("%s: %v", name, a.err)
			}
			c.closed(0)
		})
	}
	inBubble(t, Options{Authenticate: letIn}, func(w *world) {
		c := w.dial()
		c.hello()
		as := func(user string) wire.Message {
			return &wire.Authenticate{Mechanism: "password", User: user, Secret: []byte("right")}
		}
		if r := want[*wire.AuthenticateReply](c, wire.KeyAuthenticate, as("u")); r.User != "u" {
			t.Errorf("logged in as %q", r.User)
		}
		time.Sleep(20 * time.Second) // the time to log in is over for others
		c.ping()
		want[*wire.AuthenticateReply](c, wire.KeyAuthenticate, as("u"))
		c.refused(wire.CodePermissionDenied, wire.KeyAuthenticate, as("v"))
		c.refused(wire.CodeInvalidCredentials, wire.KeyAuthenticate, as("w"))
		c.ping()
	})
}

// The hook is asked about every operation, before the engine is.
func TestAllow(t *testing.T) {
	var mu sync.Mutex
	var asked []string
	allow := func(who Identity, op Op, topic string) error {
		mu.Lock()
		defer mu.Unlock()
		asked = append(asked, who.User+" "+string(op)+" "+topic)
		if strings.HasPrefix(topic, "mine") {
			return nil
		}
		return errors.New("it is not yours")
	}
	inBubble(t, Options{Authenticate: letIn, Allow: allow}, func(w *world) {
		for _, name := range []string{"mine", "other"} {
			if err := w.engine.CreateTopic(context.Background(), name, api.TopicOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		c := w.dial()
		c.hello()
		want[*wire.AuthenticateReply](c, wire.KeyAuthenticate, &wire.Authenticate{Mechanism: "password", User: "u", Secret: []byte("right")})
		for _, tt := range []struct {
			key wire.Key
			m   wire.Message
			as  string
		}{
			{wire.KeyCreateTopic, &wire.CreateTopic{Topic: "x"}, "create x"},
			{wire.KeyDeleteTopic, &wire.Topic{Topic: "x"}, "delete x"},
			{wire.KeyDescribeTopic, &wire.DescribeTopic{Topic: "x"}, "describe x"},
			{wire.KeyRollTopic, &wire.Topic{Topic: "x"}, "alter x"},
			{wire.KeyRoute, &wire.Topic{Topic: "x"}, "produce x"},
			{wire.KeySplitRange, &wire.SplitRange{Topic: "x"}, "alter x"},
			{wire.KeyMergeRanges, &wire.MergeRanges{Topic: "x"}, "alter x"},
			{wire.KeyBindPolicy, &wire.BindPolicy{Topic: "x"}, "alter x"},
			{wire.KeySetPolicy, &wire.SetPolicy{Policy: &wire.Policy{}}, "define policies "},
			{wire.KeyDeletePolicy, &wire.DeletePolicy{}, "define policies "},
			{wire.KeyListPolicies, &wire.ListPolicies{}, "list policies "},
			{wire.KeyOpenProducer, &wire.OpenProducer{Topic: "x"}, "produce x"},
			{wire.KeyOpenConsumer, &wire.OpenConsumer{Topic: "x"}, "consume x"},
			{wire.KeyCommit, &wire.Commit{Topic: "x"}, "consume x"},
		} {
			asked = nil
			c.refused(wire.CodePermissionDenied, tt.key, tt.m)
			if !slices.Equal(asked, []string{"u " + tt.as}) {
				t.Errorf("%s: asked %q, want %q", tt.key, asked, tt.as)
			}
		}
		if m := want[*wire.ListTopicsReply](c, wire.KeyListTopics, &wire.ListTopics{}); len(m.Topics) != 1 || m.Topics[0].Name != "mine" {
			t.Errorf("listed %+v", m)
		}
		c.producer("mine")
		asked = nil
		c.refused(wire.CodePermissionDenied, wire.KeyCommit, &wire.Commit{Topic: "mine", Group: "g"})
		c.refused(wire.CodePermissionDenied, wire.KeyOpenConsumer, &wire.OpenConsumer{Topic: "mine", Group: "g"})
		if w := []string{"u consume mine", "u use group g", "u consume mine", "u use group g"}; !slices.Equal(asked, w) {
			t.Errorf("asked %q, want %q", asked, w)
		}
	})
}

func TestListTopics(t *testing.T) {
	inBubble(t, Options{}, func(w *world) {
		c := w.connect()
		for _, name := range []string{"a1", "a2", "a3", "b"} {
			want[*wire.Done](c, wire.KeyCreateTopic, &wire.CreateTopic{Topic: name})
		}
		for _, tt := range []struct {
			m    wire.ListTopics
			want string
			more bool
		}{
			{wire.ListTopics{}, "a1 a2 a3 b", false},
			{wire.ListTopics{Limit: 2}, "a1 a2", true},
			{wire.ListTopics{Limit: 2, After: "a2"}, "a3 b", false},
			{wire.ListTopics{Limit: 2, Prefix: "a", After: "a1"}, "a2 a3", false},
			{wire.ListTopics{Prefix: "c"}, "", false},
		} {
			m := want[*wire.ListTopicsReply](c, wire.KeyListTopics, &tt.m)
			var names []string
			for _, topic := range m.Topics {
				names = append(names, topic.Name)
			}
			if got := strings.Join(names, " "); got != tt.want || m.More != tt.more {
				t.Errorf("%+v: %q, %t", tt.m, got, m.More)
			}
		}
	})
}

// Connections, requests, bytes and handles beyond the limits are refused or wait.
func TestLimits(t *testing.T) {
	inBubble(t, Options{MaxConns: 2}, func(w *world) {
		one := w.connect()
		w.connect()
		over := w.dial()
		over.closed(wire.CodeTooManyConnections)
		one.nc.Close()
		synctest.Wait()
		w.connect()
		if got := w.server.Stats(); got.Refused != 1 || got.Accepted != 3 || got.Connections != 2 {
			t.Errorf("%+v", got)
		}
	})
	inBubble(t, Options{MaxHandles: 2}, func(w *world) {
		c := w.connect()
		p := c.producer("a")
		c.consumer("a")
		c.refused(wire.CodeOverloaded, wire.KeyOpenProducer, &wire.OpenProducer{Topic: "a"})
		c.refused(wire.CodeOverloaded, wire.KeyOpenConsumer, &wire.OpenConsumer{Topic: "a"})
		want[*wire.Done](c, wire.KeyCloseProducer, &wire.CloseProducer{Producer: p})
		c.refused(wire.CodeNoSuchTopic, wire.KeyOpenProducer, &wire.OpenProducer{Topic: "none"})
		c.consumer("a")
	})
	for name, o := range map[string]Options{"requests": {MaxRequests: 3}, "bytes": {ConnBytes: 1024}} {
		inBubble(t, o, func(w *world) {
			c := w.connect()
			p := c.producer("a")
			disk := make(chan struct{})
			w.engine.set(func() { w.engine.disk = disk })
			for i := range 3 {
				c.send(wire.KeyProduce, &wire.Produce{Producer: p}, frameOf(uint64(i), 304)...)
			}
			waits := c.frame(wire.KeyProduce, 99, &wire.Produce{Producer: p}, frameOf(3, 10<<10)...)
			sent := make(chan struct{})
			go func() {
				c.nc.Write(waits[:5]) // a part of the head, so that the frame has a deadline
				time.Sleep(time.Second)
				c.nc.Write(waits[5:])
				close(sent)
			}()
			time.Sleep(time.Minute) // what the server itself waits is no fault of the client
			select {
			case <-sent:
				t.Errorf("%s: more was read than is let in", name)
			default:
			}
			close(disk)
			w.engine.set(func() { w.engine.disk = nil })
			for range 4 {
				if a := c.next(); a.err != nil {
					t.Errorf("%s: %v", name, a.err)
				}
			}
			<-sent
		})
	}
}

func TestOptions(t *testing.T) {
	for _, o := range []Options{{MaxConns: -1}, {IdleTimeout: -1}, {ConnBytes: -1}, {TotalBytes: wire.MaxFrame}} {
		if _, err := New(newFakeEngine(), o); err == nil || !strings.HasPrefix(err.Error(), "server: ") {
			t.Errorf("%+v: %v", o, err)
		}
	}
}

// Connections over TCP are counted by address, and speak TLS where that is wanted.
func TestTCP(t *testing.T) {
	leakFree(t)
	cert, pool := selfSigned(t)
	w := newWorld(t, Options{MaxConnsPerIP: 2, TLS: &tls.Config{Certificates: []tls.Certificate{cert}}})
	defer w.stop()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- w.server.Serve(l) }()
	dial := func() (*client, error) {
		nc, err := tls.Dial("tcp", l.Addr().String(), &tls.Config{RootCAs: pool, ServerName: "ringfence.test"})
		return &client{t: t, nc: nc}, err
	}
	one, err := dial()
	if err != nil {
		t.Fatal(err)
	}
	one.hello()
	p := one.producer("a")
	want[*wire.ProduceReply](one, wire.KeyProduce, &wire.Produce{Producer: p}, frameOf(1, 300<<10)...)
	if a := one.do(wire.KeyFetch, &wire.Fetch{Consumer: one.consumer("a")}); len(a.raw) != 300<<10 {
		t.Errorf("got %d bytes of frames: %v", len(a.raw), a.err)
	}
	two, err := dial()
	if err != nil {
		t.Fatal(err)
	}
	two.hello()
	if _, err := dial(); err == nil {
		t.Error("a third connection of one address was let in")
	}
	two.nc.Close()
	one.nc.Close()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-served; !errors.Is(err, net.ErrClosed) {
		t.Errorf("a listener that somebody else closed: %v", err)
	}
}

func selfSigned(t *testing.T) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), DNSNames: []string{"ringfence.test"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(parsed)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pool
}

// A shutdown answers what was read, refuses what comes then, and closes.
func TestShutdown(t *testing.T) {
	inBubble(t, Options{}, func(w *world) {
		c, idle, sub, half := w.connect(), w.connect(), w.connect(), w.connect()
		p, r := c.producer("a"), c.consumer("a")
		disk := make(chan struct{})
		w.engine.set(func() { w.engine.disk = disk })
		frame := c.send(wire.KeyProduce, &wire.Produce{Producer: p}, frameOf(1, 200)...)
		synctest.Wait() // it is there, and uses up the window of who subscribes
		push := sub.send(wire.KeySubscribe, &wire.Subscribe{Consumer: sub.consumer("a"), Window: 1})
		if a := sub.next(); a.ID != push {
			t.Fatalf("%+v", a.Head)
		}
		hp := half.producer("a") // half of a frame is no request yet
		half.write(half.frame(wire.KeyProduce, 9, &wire.Produce{Producer: hp}, frameOf(2, 20<<10)...)[:9<<10])
		synctest.Wait()
		down := make(chan error)
		go func() { down <- w.server.Shutdown(context.Background()) }()
		idle.closed(wire.CodeShuttingDown)
		half.closed(wire.CodeShuttingDown)
		if a := sub.next(); a.ID != push || a.code() != wire.CodeShuttingDown {
			t.Errorf("the subscription: %+v, %v", a.Head, a.err)
		}
		sub.closed(wire.CodeShuttingDown)
		if _, err := w.l.dial(); err == nil {
			t.Error("a new connection was let in")
		}
		c.refused(wire.CodeShuttingDown, wire.KeyCreateTopic, &wire.CreateTopic{Topic: "b"})
		c.refused(wire.CodeShuttingDown, wire.KeyFetch, &wire.Fetch{Consumer: r})
		c.refused(wire.CodeShuttingDown, wire.KeyProduce, &wire.Produce{Producer: p}, frameOf(2, 30<<10)...)
		close(disk)
		if a := c.next(); a.ID != frame || a.err != nil {
			t.Errorf("what was in flight: %+v, %v", a.Head, a.err)
		}
		c.closed(wire.CodeShuttingDown)
		if err := <-down; err != nil {
			t.Error(err)
		}
		if err := w.server.Serve(newPipeListener()); !errors.Is(err, ErrShutdown) {
			t.Errorf("serve after shutdown: %v", err)
		}
	})
	inBubble(t, Options{Authenticate: letIn}, func(w *world) { // nobody waits for one who is logging in
		c := w.dial()
		c.hello()
		id := c.send(wire.KeyAuthenticate, &wire.Authenticate{User: "slow"})
		synctest.Wait()
		start := time.Now()
		down := make(chan error)
		go func() { down <- w.server.Shutdown(context.Background()) }()
		if a := c.next(); a.ID != id || a.code() != wire.CodeInvalidCredentials {
			t.Errorf("%+v, %v", a.Head, a.err)
		}
		c.closed(0)
		if err := <-down; err != nil || time.Since(start) != 0 {
			t.Errorf("shut down after %s: %v", time.Since(start), err)
		}
	})
	inBubble(t, Options{}, func(w *world) { // the time for it is over
		c := w.connect()
		p := c.producer("a")
		disk := make(chan struct{})
		w.engine.set(func() { w.engine.disk = disk })
		c.send(wire.KeyProduce, &wire.Produce{Producer: p}, frameOf(1, 200)...)
		synctest.Wait()
		ctx, stop := context.WithTimeout(context.Background(), time.Minute)
		defer stop()
		if err := w.server.Shutdown(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("shutdown with a frame that never lands: %v", err)
		}
		c.closed(0)
		synctest.Wait()                            // the connection has tried to
		w.engine.set(func() { w.engine.open = 0 }) // the producer could not be closed
		close(disk)
	})
}

// A client that is gone before its requests are answered still makes those happen that
// were read.
func TestClientCloses(t *testing.T) {
	inBubble(t, Options{}, func(w *world) {
		c := w.connect()
		p := c.producer("a")
		disk := make(chan struct{})
		w.engine.set(func() { w.engine.disk = disk })
		for i := range 10 {
			c.send(wire.KeyProduce, &wire.Produce{Producer: p}, frameOf(uint64(i), 200)...)
		}
		synctest.Wait() // all are on their way to the device
		c.nc.Close()
		synctest.Wait()
		close(disk)
		synctest.Wait()
		if got, err := w.engine.numbers("a"); err != nil || len(got) != 10 {
			t.Errorf("stored %v, %v", got, err)
		}
		if n := w.server.Stats().Connections; n != 0 {
			t.Errorf("%d connections", n)
		}
	})
}

// Whoever asks is told the code that says what to do, and the engine's words.
func TestCodes(t *testing.T) {
	for err, want := range map[error]wire.Code{
		&api.TopicError{Topic: "a", Range: -1, Err: api.ErrNoSuchTopic}: wire.CodeNoSuchTopic,
		api.ErrTopicExists:      wire.CodeTopicExists,
		api.ErrInvalidTopicName: wire.CodeInvalidName,
		api.ErrRecordTooLarge:   wire.CodeRecordTooLarge,
		api.ErrOutOfSpace:       wire.CodeOutOfSpace,
		api.ErrStorage:          wire.CodeStorageFailed,
		errors.Join(api.ErrOutOfSpace, api.ErrStorage): wire.CodeStorageFailed,
		errors.Join(api.ErrHalted, api.ErrStorage):     wire.CodeStorageFailed,
		api.ErrDamaged:                          wire.CodeDamaged,
		api.ErrMismatch:                         wire.CodeMismatch,
		api.ErrClosed:                           wire.CodeShuttingDown,
		api.ErrOverloaded:                       wire.CodeOverloaded,
		api.ErrHalted:                           wire.CodeProducerHalted,
		api.ErrTimeout:                          wire.CodeOutcomeUnknown,
		context.DeadlineExceeded:                wire.CodeOutcomeUnknown,
		api.ErrInvalidCursor:                    wire.CodeInvalidCursor,
		api.ErrForeignCursor:                    wire.CodeForeignCursor,
		api.ErrCursorPastEnd:                    wire.CodeCursorPastEnd,
		api.ErrCursorOfOther:                    wire.CodeCursorOfOther,
		cp.ErrNoSuchRange:                       wire.CodeNoSuchRange,
		cp.ErrInvalidBits:                       wire.CodeInvalidBits,
		api.ErrNoSuchPolicy:                     wire.CodeNoSuchPolicy,
		record.ErrCorrupt:                       wire.CodeCorruptFrame,
		&wire.Error{Code: wire.CodeRateLimited}: wire.CodeRateLimited,
		errors.New("something that nobody thought about"): wire.CodeInternal,
	} {
		if got := told(err); got.Code != want || got.Detail != err.Error() && got != err {
			t.Errorf("%v: told %v, want %s", err, got, want)
		}
	}
}

// Who sends much and does not log in has memory of the server's heap, or is cut off where
// that is gone; a usual handshake needs none of it.
func TestHandshakeHasNoMemoryOfItsOwn(t *testing.T) {
	leakFree(t)
	cert, pool := selfSigned(t)
	w := newWorld(t, Options{TLS: &tls.Config{Certificates: []tls.Certificate{cert}}})
	defer w.stop()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- w.server.Serve(l) }()
	begin := func() net.Conn { // a hello of 60,000 bytes, in records of 10,000, without its end
		nc, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { nc.Close() })
		record := append([]byte{22, 3, 1, 10000 >> 8, 10000 & 0xff}, make([]byte, 10000)...)
		first := bytes.Clone(record)
		copy(first[5:], []byte{1, 0, 60000 >> 8, 60000 & 0xff})
		if _, err := nc.Write(append(first, bytes.Repeat(record, 5)...)); err != nil && !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, syscall.EPIPE) {
			t.Fatal(err)
		}
		return nc
	}
	heap := func(ok func(int64) bool) {
		t.Helper()
		for end := time.Now().Add(10 * time.Second); !ok(w.server.Stats().HeapBytes); time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%d bytes are taken", w.server.Stats().HeapBytes)
			}
		}
	}
	one := begin()
	heap(func(n int64) bool { return n > 100000 })
	one.Close()
	heap(func(n int64) bool { return n == 0 })

	all := w.server.opts.TotalBytes
	w.server.heap.give(-all)
	if _, err := begin().Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("it goes on without memory: %v", err)
	}
	nc, err := tls.Dial("tcp", l.Addr().String(), &tls.Config{RootCAs: pool, ServerName: "ringfence.test"})
	if err != nil {
		t.Fatal(err)
	}
	c := &client{t: t, nc: nc}
	c.hello()
	nc.Close()
	w.server.heap.give(all)
	heap(func(n int64) bool { return n == 0 })
	l.Close()
	<-served
}
