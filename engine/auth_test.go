package engine

import (
	"bytes"
	"context"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ringfence/ringfence/cp"
	"github.com/ringfence/ringfence/engine/server"
	"github.com/ringfence/ringfence/engine/wire"
)

// gate is an authenticator whose clocks a test moves.
type gate struct {
	*Authenticator
	t   *testing.T
	now atomic.Int64 // ns; servers look at it meanwhile
	day time.Time
	log syncBuffer
}

// syncBuffer is a log that many write.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

func newGate(t *testing.T, e *Engine, o AuthOptions) *gate {
	g := &gate{t: t, day: time.Now()}
	g.pass(time.Hour)
	o.Log = slog.New(slog.NewTextHandler(&g.log, nil))
	o.instant = func() time.Duration { return time.Duration(g.now.Load()) }
	o.wall = func() time.Time { return g.day }
	g.Authenticator = e.Authenticator(o)
	return g
}

// pass lets time pass.
func (g *gate) pass(d time.Duration) { g.now.Add(int64(d)) }

const rightSecret = "long enough for it"

// login tries to log in from an address and answers the code, 0 where it succeeded.
func (g *gate) login(from, mechanism, user, secret string) (server.Identity, wire.Code, time.Duration) {
	g.t.Helper()
	l := server.Login{Mechanism: mechanism, User: user, Secret: []byte(secret), Remote: &net.UnixAddr{Name: "@"}}
	if from != "" {
		l.Remote = net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(from), 1))
		l.From = server.OriginOf(l.Remote)
	}
	if mechanism == "certificate" && user != "" {
		l.Certificate, l.User = &x509.Certificate{Subject: pkix.Name{CommonName: user}}, ""
	}
	who, err := g.authenticate(g.t.Context(), l)
	var e *wire.Error
	switch {
	case err == nil:
		return who, 0, 0
	case errors.As(err, &e):
		return who, e.Code, e.RetryAfter
	case errors.Is(err, errWrong):
		return who, wire.CodeInvalidCredentials, 0
	}
	g.t.Fatalf("login of %q: %v", user, err)
	return who, 0, 0
}

func (g *gate) want(code wire.Code, from, mechanism, user, secret string) server.Identity {
	g.t.Helper()
	who, got, _ := g.login(from, mechanism, user, secret)
	if got != code {
		g.t.Errorf("%s login of %q from %q: %v, want %v", mechanism, user, from, got, code)
	}
	return who
}

// firstUser makes an administrator, without whom there are no other users.
func firstUser(t testing.TB, e *Engine) {
	t.Helper()
	must(t, e.changeAccess(t.Context(), cp.PutUser{Name: "first", Hash: []byte("of nothing"), Grants: []Grant{cp.Administrator}}))
}

func TestMechanisms(t *testing.T) {
	ctx, e := t.Context(), open(t, t.TempDir(), Options{})
	firstUser(t, e)
	must(t, e.PutUser(ctx, "alice", rightSecret, UserOptions{}))
	must(t, e.PutUser(ctx, "robot", "", UserOptions{}))
	tok, secret, err := e.CreateToken(ctx, "robot", TokenOptions{Expires: e.opts.now().Add(time.Hour)})
	must(t, err)
	g := newGate(t, e, AuthOptions{Certificates: true})
	g.day = e.opts.now()
	for n, tt := range []struct {
		mechanism, user, secret string
		want                    wire.Code
	}{
		{"password", "alice", rightSecret, 0},
		{"password", "alice", rightSecret + "x", wire.CodeInvalidCredentials},
		{"password", "robot", "", wire.CodeInvalidCredentials}, // it has none
		{"password", "nobody", rightSecret, wire.CodeInvalidCredentials},
		{"password", "", "", wire.CodeInvalidCredentials},
		{"token", "", secret, 0},
		{"token", "alice", secret, 0}, // whatever user is named
		{"token", "", secret[:len(secret)-4] + "AAAA", wire.CodeInvalidCredentials},
		{"token", "", "", wire.CodeInvalidCredentials},
		{"password", "robot", secret, wire.CodeInvalidCredentials},
		{"certificate", "robot", "", 0},
		{"certificate", "nobody", "", wire.CodeInvalidCredentials},
		{"certificate", "", "", wire.CodeInvalidCredentials}, // none was shown
		{"magic", "alice", rightSecret, wire.CodeInvalidCredentials},
	} {
		who := g.want(tt.want, fmt.Sprintf("10.0.0.%d", n), tt.mechanism, tt.user, tt.secret)
		if name := map[bool]string{true: "alice", false: "robot"}[tt.secret == rightSecret]; tt.want == 0 && who.User != name {
			t.Errorf("%+v is logged in as %q", tt, who.User)
		}
	}
	if plain := newGate(t, e, AuthOptions{}); plain.want(wire.CodeInvalidCredentials, "", "certificate", "robot", "").User != "" {
		t.Error("a certificate names a user where it may not")
	}
	g.day = g.day.Add(time.Hour)
	g.want(wire.CodeInvalidCredentials, "", "token", "", secret) // expired
	g.day = g.day.Add(-time.Hour)
	must(t, e.DeleteToken(ctx, tok.ID))
	g.want(wire.CodeInvalidCredentials, "", "token", "", secret)
	if log := g.log.String(); strings.Contains(log, secret) || strings.Contains(log, rightSecret) {
		t.Errorf("secrets are in the log:\n%s", log)
	}
}

// Who guesses is locked out, where he guesses, for longer and longer; who knows the
// password is not, elsewhere.
func TestLockout(t *testing.T) {
	ctx, e := t.Context(), open(t, t.TempDir(), Options{})
	firstUser(t, e)
	must(t, e.PutUser(ctx, "alice", rightSecret, UserOptions{}))
	g := newGate(t, e, AuthOptions{})
	fail := func(user string) {
		t.Helper()
		g.want(wire.CodeInvalidCredentials, "10.0.0.1", "password", user, "wrong")
		g.pass(attemptsEvery)
	}
	for n, user := range map[int]string{1: "alice", 2: "nobody"} { // the same, whether there is one or not
		for range failuresMost {
			fail(user)
		}
		if _, code, wait := g.login("10.0.0.1", "password", user, rightSecret); code != wire.CodeRateLimited || wait != lockFirst-attemptsEvery {
			t.Errorf("%d: locked out: %v, %v", n, code, wait)
		}
	}
	g.want(0, "10.0.0.2", "password", "alice", rightSecret)
	g.pass(lockFirst)
	g.want(0, "10.0.0.1", "password", "alice", rightSecret) // which is the end of it
	for range failuresMost - 1 {
		fail("alice")
	}
	g.want(0, "10.0.0.1", "password", "alice", rightSecret)

	// An administrator who gives the user a password lifts it, and only the user's.
	for range failuresMost {
		fail("alice")
	}
	fail("nobody") // once more is enough
	g.want(wire.CodeRateLimited, "10.0.0.1", "password", "alice", rightSecret)
	time.Sleep(2 * time.Millisecond) // passwords are told apart by when they were set
	must(t, e.PutUser(ctx, "alice", rightSecret, UserOptions{Replace: true}))
	g.want(0, "10.0.0.1", "password", "alice", rightSecret)
	g.want(wire.CodeRateLimited, "10.0.0.1", "password", "nobody", rightSecret)

	// The factors, on the table alone: argon2 need not run for that.
	l, k, now := newLockouts(), lockKey{user: "alice"}, time.Duration(0)
	for n := 1; n < 40; n++ {
		want := time.Duration(0)
		if n >= failuresMost {
			want = lockFirst * []time.Duration{0, 1, 3, 9, 24, 72, 72, 72}[n/failuresMost]
		}
		if got := l.failed(k, 0, now); got != want {
			t.Errorf("failure %d locks out for %v, want %v", n, got, want)
		}
		if l.refusal(k, 0, now+want) != nil || want > 0 && l.refusal(k, 0, now+want-1) == nil {
			t.Errorf("failure %d: locked out for another time", n)
		}
		now += want
	}
	if now += lockForget + 1; l.failed(k, 0, now) != 0 {
		t.Error("failures are never forgotten")
	}
}

// An address has ten attempts in a minute. Those that succeed do not count, those of its
// neighbours neither, unless they share its network.
func TestAttemptsOfAnAddress(t *testing.T) {
	ctx, e := t.Context(), open(t, t.TempDir(), Options{})
	firstUser(t, e)
	must(t, e.PutUser(ctx, "alice", rightSecret, UserOptions{}))
	_, secret, err := e.CreateToken(ctx, "alice", TokenOptions{})
	must(t, err)
	g := newGate(t, e, AuthOptions{})
	for range 3 * attemptsMost {
		g.want(0, "10.0.0.1", "token", "", secret)
	}
	for range attemptsMost {
		g.want(wire.CodeInvalidCredentials, "10.0.0.1", "token", "", "wrong")
	}
	before := strings.Count(g.log.String(), "\n")
	for range 5 {
		if _, code, wait := g.login("10.0.0.1", "token", "", secret); code != wire.CodeRateLimited || wait != attemptsEvery {
			t.Errorf("over the limit: %v, %v", code, wait)
		}
	}
	if n := strings.Count(g.log.String(), "\n") - before; n != 1 {
		t.Errorf("%d lines tell of one address that is over the limit", n)
	}
	g.want(0, "10.0.0.2", "token", "", secret)
	g.want(0, "", "token", "", secret)
	g.pass(attemptsEvery)
	g.want(wire.CodeInvalidCredentials, "10.0.0.1", "token", "", "wrong")
	g.want(wire.CodeRateLimited, "10.0.0.1", "token", "", secret)
	for n := range attemptsMost {
		g.want(wire.CodeInvalidCredentials, fmt.Sprintf("2001:db8::%d", n), "token", "", "wrong")
	}
	g.want(wire.CodeRateLimited, "2001:db8::ffff", "token", "", secret)
	g.want(0, "2001:db8:0:1::1", "token", "", secret)
	g.want(wire.CodeRateLimited, "::ffff:10.0.0.1", "token", "", secret) // the same address in other words
}

// What is remembered of addresses and users is bounded, and what was used last stays.
func TestMemoryOfLoginsIsBounded(t *testing.T) {
	l := newLockouts()
	first := lockKey{user: "first"}
	for n := range 3 * remembered {
		l.failed(lockKey{user: fmt.Sprint(n)}, 0, 0)
		l.failed(first, 0, 0)
	}
	if n := len(l.wrong.byKey); n != remembered || l.wrong.order.Len() != n {
		t.Errorf("%d and %d are remembered", n, l.wrong.order.Len())
	}
	if f := l.wrong.get(first); f == nil || f.n != 3*remembered {
		t.Errorf("the one that fails all the time is %+v", f)
	}
	l.clear(first)
	if l.wrong.get(first) != nil {
		t.Error("cleared and still there")
	}
}

func TestPermissions(t *testing.T) {
	ctx, e := t.Context(), open(t, t.TempDir(), Options{})
	g := newGate(t, e, AuthOptions{Open: true})
	nobody := server.Identity{}
	denied := func(code wire.Code, who server.Identity, op server.Op, name string) {
		t.Helper()
		err := g.allow(who, op, name)
		var e *wire.Error
		switch errors.As(err, &e); {
		case code == 0 && err != nil, code != 0 && err == nil, code != wire.CodePermissionDenied && err != nil && (e == nil || e.Code != code):
			t.Errorf("%q %s %q: %v, want %v", who.User, op, name, err, code)
		}
	}
	if !g.open() {
		t.Error("without users it is not open")
	}
	denied(0, nobody, server.OpUsers, "")
	must(t, g.spend(nobody, 1<<30, 1<<30))
	firstUser(t, e)
	must(t, e.PutUser(ctx, "alice", rightSecret, UserOptions{}))
	if g.open() {
		t.Error("with a user it is open")
	}
	denied(wire.CodeNotAuthenticated, nobody, server.OpDescribe, "t")
	if shut := newGate(t, e, AuthOptions{}); shut.open() {
		t.Error("it is open although it should not be")
	}
	alice := g.want(0, "", "password", "alice", rightSecret)
	orders := Grant{Kind: cp.OnTopic, Op: cp.Consume, Pattern: "orders*"}
	denied(wire.CodePermissionDenied, alice, server.OpConsume, "orders-eu")
	must(t, e.Grant(ctx, "alice", orders))
	denied(0, alice, server.OpConsume, "orders-eu")
	denied(0, alice, server.OpDescribe, "orders-eu")
	denied(wire.CodePermissionDenied, alice, server.OpProduce, "orders-eu")
	denied(wire.CodePermissionDenied, alice, server.OpUseGroup, "orders-eu")
	denied(wire.CodePermissionDenied, alice, server.OpUsers, "")
	denied(wire.CodePermissionDenied, alice, "an operation of tomorrow", "orders-eu")
	must(t, e.Revoke(ctx, "alice", orders))
	denied(wire.CodePermissionDenied, alice, server.OpConsume, "orders-eu")
	must(t, e.Grant(ctx, "alice", cp.Administrator))
	for op := range permissions {
		denied(0, alice, op, "x")
	}
	denied(0, alice, "an operation of tomorrow", "x")

	tok, secret, err := e.CreateToken(ctx, "alice", TokenOptions{Expires: g.day.Add(24 * 365 * 100 * time.Hour)})
	must(t, err)
	byToken := g.want(0, "", "token", "", secret)
	denied(0, byToken, server.OpConsume, "x")
	must(t, e.DeleteToken(ctx, tok.ID))
	denied(wire.CodeNotAuthenticated, byToken, server.OpConsume, "x")
	denied(0, alice, server.OpConsume, "x")
	must(t, e.DeleteUser(ctx, "alice"))
	denied(wire.CodeNotAuthenticated, alice, server.OpConsume, "x")
	e.opts.now = func() time.Time { return time.Now().Add(time.Hour) }
	must(t, e.PutUser(ctx, "alice", rightSecret, UserOptions{Grants: []Grant{cp.Administrator}}))
	denied(wire.CodeNotAuthenticated, alice, server.OpConsume, "x") // another one of this name
}

// Every operation of a server has a permission, or only administrators could do it.
func TestEveryOperationHasAPermission(t *testing.T) {
	for _, op := range []server.Op{
		server.OpCreate, server.OpDelete, server.OpDescribe, server.OpAlter, server.OpProduce, server.OpConsume,
		server.OpUseGroup, server.OpDescribeGroup, server.OpDeleteGroup, server.OpPolicy, server.OpPolicies, server.OpUsers,
	} {
		p, ok := permissions[op]
		if g := (Grant{Kind: p.kind, Op: p.op, Pattern: "*"}); !ok || !g.Valid() {
			t.Errorf("%s takes %v", op, g)
		}
	}
}

func TestQuota(t *testing.T) {
	s := newSpending()
	u := &cp.User{Name: "alice", Quota: Quota{Records: 10, Bytes: 1000}}
	now := time.Hour
	charge := func(records, bytes int, code wire.Code, retry time.Duration) {
		t.Helper()
		err := s.charge(u, records, bytes, now)
		var e *wire.Error
		if errors.As(err, &e); code == 0 && err != nil || code != 0 && (e == nil || e.Code != code || e.RetryAfter != retry) {
			t.Errorf("%d records, %d bytes: %v, want %v in %v", records, bytes, err, code, retry)
		}
	}
	charge(9, 100, 0, 0)
	charge(3, 100, 0, 0) // there is something left, and the rest is owed
	charge(1, 0, wire.CodeRateLimited, 700*time.Millisecond)
	now += 199 * time.Millisecond
	charge(1, 700, wire.CodeRateLimited, 501*time.Millisecond)
	now += 2 * time.Millisecond
	charge(1, 700, 0, 0) // what was refused took nothing
	now += time.Hour     // nothing is saved up
	charge(10, 1000, 0, 0)
	charge(0, 1, wire.CodeRateLimited, 500*time.Millisecond)
	now += time.Hour
	charge(31, 4001, 0, 0) // more than a second's
	charge(1, 1, wire.CodeRateLimited, 3501*time.Millisecond)
	now += 3 * time.Second
	charge(1, 1, wire.CodeRateLimited, 501*time.Millisecond)
	now += 2 * time.Millisecond
	charge(1, 1, 0, 0)
	now += time.Hour
	charge(1<<31, 1, 0, 0) // says the frame, which is not verified: it owes no years
	charge(1, 1, wire.CodeRateLimited, quotaPause)
	now += quotaKept - quotaWindow + 1
	charge(1, 1, 0, 0)
	u = &cp.User{Name: "alice", Quota: Quota{Bytes: 10}}
	charge(1<<30, 10, 0, 0) // another quota, without a bound on records
	charge(1, 10, wire.CodeRateLimited, 500*time.Millisecond)
	if len(s.users) != 1 {
		t.Errorf("%d users", len(s.users))
	}
	now += quotaKept
	u = &cp.User{Name: "bob", Quota: Quota{Bytes: 10}}
	charge(1, 1, 0, 0)
	if len(s.users) != 1 || s.users["bob"] == nil {
		t.Errorf("who has not sent for long is remembered: %v", s.users)
	}
	at := now
	for range 100 { // in the long run it is the rate, whatever the steps
		now += 10 * time.Millisecond
		for s.charge(u, 1, 1, now) == nil {
			at += 100 * time.Millisecond
		}
	}
	if rate := at - now; rate > time.Second+100*time.Millisecond {
		t.Errorf("ahead by %v", rate)
	}
}

// A change is seen by whoever asks after it was answered, also while others ask.
func TestAccessIsNeverOld(t *testing.T) {
	ctx, e := t.Context(), open(t, t.TempDir(), Options{})
	firstUser(t, e)
	must(t, e.PutUser(ctx, "alice", "", UserOptions{}))
	asking, stop := context.WithCancel(ctx)
	var others sync.WaitGroup
	for range 4 {
		others.Go(func() {
			for asking.Err() == nil {
				if _, err := e.accessNow(); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for n := range uint64(rounds(50)) {
		must(t, e.SetQuota(ctx, "alice", Quota{Records: n + 1}))
		a, err := e.accessNow()
		must(t, err)
		if got := a.User("alice").Quota.Records; got != n+1 {
			t.Errorf("round %d: %d", n, got)
		}
	}
	stop()
	others.Wait()
}
