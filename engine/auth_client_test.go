package engine

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"log/slog"
	"math/big"
	"net"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/ringfence/ringfence/cp"
	"github.com/ringfence/ringfence/engine/api"
	"github.com/ringfence/ringfence/engine/client"
	"github.com/ringfence/ringfence/engine/server"
	"github.com/ringfence/ringfence/engine/wire"
)

// guarded serves an engine to those who log in.
func guarded(t *testing.T, e *Engine, o AuthOptions, so server.Options) (addr string) {
	t.Helper()
	e.Authenticator(o).Guard(&so)
	addr, stop := serveWith(t, e, so)
	t.Cleanup(stop)
	return addr
}

func dialAs(t *testing.T, addr, user, password string, config *tls.Config) (*client.Client, error) {
	t.Helper()
	c, err := client.Dial(within(t), addr, client.Options{
		User: user, Password: password, TLS: config, Logger: slog.New(slog.DiscardHandler), RequestTimeout: patience,
	})
	if err == nil {
		t.Cleanup(func() { c.Close() })
	}
	return c, err
}

func TestLoginOverTheNetwork(t *testing.T) {
	ctx, e := within(t), open(t, t.TempDir(), Options{})
	addr := guarded(t, e, AuthOptions{Open: true}, server.Options{})
	early, err := dialAs(t, addr, "", "", nil)
	must(t, err)
	must(t, early.CreateTopic(ctx, "open", TopicOptions{}))
	must(t, e.PutUser(ctx, "admin", rightSecret, UserOptions{Grants: []Grant{cp.Administrator}}))
	is(t, early.CreateTopic(ctx, "closed", TopicOptions{}), client.ErrRefused, "there are users now")
	_, err = dialAs(t, addr, "", "", nil)
	is(t, err, client.ErrRefused, "it wants credentials")
	_, err = dialAs(t, addr, "admin", rightSecret+"x", nil)
	is(t, err, client.ErrRefused, "user or secret is wrong")
	_, err = dialAs(t, addr, "", "rft_wrong", nil)
	is(t, err, client.ErrRefused)
	c, err := dialAs(t, addr, "admin", rightSecret, nil)
	must(t, err)
	must(t, c.CreateTopic(ctx, "closed", TopicOptions{}))
	_, secret, err := e.CreateToken(ctx, "admin", TokenOptions{})
	must(t, err)
	c, err = dialAs(t, addr, "", secret, nil)
	must(t, err)
	must(t, c.DeleteTopic(ctx, "closed"))

	for range failuresMost {
		_, err = dialAs(t, addr, "other", "wrong", nil)
		is(t, err, client.ErrRefused)
	}
	_, err = dialAs(t, addr, "other", "wrong", nil)
	is(t, err, wire.CodeRateLimited, "locked out")
	var we *wire.Error
	if !errors.As(err, &we) || we.RetryAfter < lockFirst/2 {
		t.Errorf("locked out, to try again in %v", we.RetryAfter)
	}
}

// A permission that is taken back ends what an open connection does.
func TestRevokedOnALiveConnection(t *testing.T) {
	ctx, e := within(t), open(t, t.TempDir(), Options{})
	newTopic(t, e, "orders")
	write, read := Grant{Kind: cp.OnTopic, Op: cp.Produce, Pattern: "orders"}, Grant{Kind: cp.OnTopic, Op: cp.Consume, Pattern: "orders"}
	firstUser(t, e)
	must(t, e.PutUser(ctx, "alice", rightSecret, UserOptions{Grants: []Grant{write, read}}))
	c, err := dialAs(t, guarded(t, e, AuthOptions{}, server.Options{}), "alice", rightSecret, nil)
	must(t, err)
	is(t, c.CreateTopic(ctx, "mine", TopicOptions{}), client.ErrRefused, `"alice" may not create`, `grant of "create" on topic`)
	if list, err := c.Topics(ctx); err != nil || len(list) != 1 {
		t.Errorf("lists %v, %v", list, err)
	}
	p, err := c.NewProducer(ProducerOptions{Topic: "orders"})
	must(t, err)
	r, err := c.NewConsumer(ConsumerOptions{Topic: "orders", From: FromStart()})
	must(t, err)
	defer r.Close()
	_, err = p.Produce(ctx, Record{Value: []byte("1")})
	must(t, err)
	page, err := r.Poll(ctx, 10)
	if err != nil || len(page.Records) != 1 {
		t.Fatalf("read %+v, %v", page, err)
	}
	_, err = c.NewConsumer(ConsumerOptions{Topic: "orders", Group: "g"})
	is(t, err, client.ErrRefused, `group "g"`)

	must(t, e.Revoke(ctx, "alice", write))
	_, err = p.Produce(ctx, Record{Value: []byte("2")})
	is(t, err, client.ErrRefused, `may not produce`)
	must(t, e.Revoke(ctx, "alice", read))
	produce(t, newProducer(t, e, ProducerOptions{Topic: "orders"}), "k", "3") // which a fetch may be waiting for
	_, err = r.Poll(ctx, 10)
	is(t, err, client.ErrRefused, `may not consume`)
	want(t, e, "orders", "1", "3")
	_ = p.Close(ctx) // it was halted by the refusal
}

// A connection whose user is gone does not go on after it was told so: if there is one
// again, or the client has what it takes to log in, it comes back by itself.
func TestUserWhoIsGoneIsCutOff(t *testing.T) {
	ctx, e := within(t), open(t, t.TempDir(), Options{})
	addr := guarded(t, e, AuthOptions{Open: true}, server.Options{})
	early, err := dialAs(t, addr, "alice", rightSecret, nil) // nobody has to log in yet
	must(t, err)
	must(t, early.CreateTopic(ctx, "t", TopicOptions{}))
	firstUser(t, e)
	add := func() {
		must(t, e.PutUser(ctx, "alice", rightSecret, UserOptions{Grants: []Grant{{Kind: cp.OnTopic, Op: cp.Describe, Pattern: "*"}}}))
	}
	back := func(c *client.Client) {
		eventually(t, "the client is back", func() bool {
			list, err := c.Topics(ctx)
			if err != nil {
				is(t, err, client.ErrRefused)
			}
			return len(list) == 1
		})
	}
	add()
	_, err = early.Topics(ctx)
	is(t, err, client.ErrRefused, "there are users now")
	back(early)
	must(t, e.DeleteUser(ctx, "alice"))
	_, err = early.Topics(ctx)
	is(t, err, client.ErrRefused, "the user was deleted")
	add()
	back(early)
}

// Producers over their quota are held up, not refused, with batches of any size and under
// any name; so is one that repeats what is stored.
func TestQuotaOverTheNetwork(t *testing.T) {
	for _, over := range []string{"tcp", "shared"} {
		t.Run(over, func(t *testing.T) { quotaOver(t, over) })
	}
}

func quotaOver(t *testing.T, over string) {
	ctx, e := within(t), open(t, t.TempDir(), Options{})
	newTopic(t, e, "orders")
	must(t, e.PutUser(ctx, "alice", rightSecret, UserOptions{Grants: []Grant{cp.Administrator}}))
	must(t, e.SetQuota(ctx, "alice", Quota{Records: 100, Bytes: 10_000}))
	so := server.Options{}
	e.Authenticator(AuthOptions{}).Guard(&so)
	limited := make(chan struct{}, 10_000)
	spend := so.Spend
	so.Spend = func(who server.Identity, records, bytes int) error {
		err := spend(who, records, bytes)
		if errors.Is(err, wire.CodeRateLimited) {
			limited <- struct{}{}
		}
		return err
	}
	var c *client.Client
	var err error
	if over == "tcp" {
		addr, stop := serveWith(t, e, so)
		t.Cleanup(stop)
		c, err = dialAs(t, addr, "alice", rightSecret, nil)
	} else {
		c, err = client.DialShm(ctx, shareMemory(t, e, so).path, client.Options{
			User: "alice", Password: rightSecret, Logger: slog.New(slog.DiscardHandler), RequestTimeout: patience,
		})
		t.Cleanup(func() { _ = c.Close() })
	}
	must(t, err)
	p, err := c.NewProducer(ProducerOptions{Topic: "orders"})
	must(t, err)
	var list []string
	for n := range 3 {
		b, err := p.NewBatch(ctx, 8<<10)
		must(t, err)
		for i := range 70 {
			list = append(list, string(text("%d", 70*n+i)))
			must(t, b.Add(Record{Key: []byte("k"), Value: []byte(list[len(list)-1])}))
		}
		must(t, b.Send(ctx, func(_ Placement, err error) {
			if err != nil {
				t.Error(err)
			}
		}))
	}
	must(t, p.Flush(ctx))
	want(t, e, "orders", list...)
	if len(limited) == 0 {
		t.Error("210 records at 100 a second, and nobody was held up")
	}
	must(t, p.Close(ctx))

	// Records that the program put into no batch, far more than a second's, and that are
	// sent again from the start by another run.
	must(t, e.SetQuota(ctx, "alice", Quota{Records: 3000}))
	must(t, e.CreateTopic(ctx, "lines", TopicOptions{}))
	for range 2 {
		list = list[:0]
		p, err = c.NewProducer(ProducerOptions{Topic: "lines", ID: 7, BatchBytes: 64 << 10})
		must(t, err)
		for n := range 5000 {
			list = append(list, strconv.Itoa(n))
			must(t, p.Append(ctx, Record{Value: []byte(list[n])}, func(_ Placement, err error) {
				if err != nil {
					t.Error(err)
				}
			}))
		}
		must(t, p.Close(ctx))
	}
	want(t, e, "lines", list...)
}

// issue makes a certificate, signed by another one or by itself.
func issue(t *testing.T, name string, by *tls.Certificate) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	c := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: by == nil, BasicConstraintsValid: true,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	parent, signer := c, key
	if by != nil {
		parent, signer = by.Leaf, by.PrivateKey.(*ecdsa.PrivateKey)
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, signer)
	must(t, err)
	leaf, err := x509.ParseCertificate(der)
	must(t, err)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}
}

// A certificate says who its client is, and one of somebody else's authority says nothing.
func TestCertificatesNameUsers(t *testing.T) {
	ctx, e := within(t), open(t, t.TempDir(), Options{})
	ours, theirs := issue(t, "ours", nil), issue(t, "theirs", nil)
	pool := x509.NewCertPool()
	pool.AddCert(ours.Leaf)
	addr := guarded(t, e, AuthOptions{Certificates: true}, server.Options{TLS: &tls.Config{
		Certificates: []tls.Certificate{issue(t, "server", &ours)}, ClientCAs: pool, ClientAuth: tls.VerifyClientCertIfGiven,
	}})
	must(t, e.PutUser(ctx, "robot", "", UserOptions{Grants: []Grant{cp.Administrator}}))
	must(t, e.PutUser(ctx, "alice", rightSecret, UserOptions{Grants: []Grant{cp.Administrator}}))
	as := func(name string, by *tls.Certificate) *tls.Config {
		c := &tls.Config{RootCAs: pool}
		if name != "" {
			c.Certificates = []tls.Certificate{issue(t, name, by)}
		}
		return c
	}
	c, err := dialAs(t, addr, "", "", as("robot", &ours))
	must(t, err)
	must(t, c.CreateTopic(ctx, "t", TopicOptions{}))
	_, err = dialAs(t, addr, "", "", as("nobody", &ours))
	is(t, err, client.ErrRefused)
	_, err = dialAs(t, addr, "", "", as("robot", &theirs))
	if err == nil {
		t.Error("a certificate of another authority was taken")
	}
	_, err = dialAs(t, addr, "", "", as("", nil))
	is(t, err, client.ErrRefused, "it wants credentials")
	c, err = dialAs(t, addr, "alice", rightSecret, as("robot", &ours)) // who has a password may be somebody else
	must(t, err)
	must(t, c.DeleteTopic(ctx, "t"))
	must(t, e.DeleteUser(context.Background(), "robot"))
	_, err = dialAs(t, addr, "", "", as("robot", &ours))
	is(t, err, client.ErrRefused)
}

// A client administers users as a linked program does, with the same errors; only who may.
func TestAdministrationOverTheNetwork(t *testing.T) {
	ctx, e := within(t), open(t, t.TempDir(), Options{})
	must(t, e.PutUser(ctx, "admin", rightSecret, UserOptions{Grants: []Grant{cp.Administrator}}))
	must(t, e.PutUser(ctx, "alice", rightSecret, UserOptions{}))
	addr := guarded(t, e, AuthOptions{}, server.Options{})
	other, err := dialAs(t, addr, "alice", rightSecret, nil)
	must(t, err)
	is(t, other.Grant(ctx, "alice", cp.Administrator), client.ErrRefused, "manage users")
	is(t, other.PutUser(ctx, "bob", rightSecret, UserOptions{}), client.ErrRefused)
	admin, err := dialAs(t, addr, "admin", rightSecret, nil)
	must(t, err)
	for name, a := range map[string]api.Access{"linked": e, "client": admin} {
		t.Run(name, func(t *testing.T) {
			g := Grant{Kind: cp.OnTopic, Op: cp.Produce, Pattern: "orders*"}
			must(t, a.PutUser(ctx, name, rightSecret, UserOptions{Grants: []Grant{g}}))
			is(t, a.PutUser(ctx, name, rightSecret, UserOptions{}), ErrUserExists)
			is(t, a.PutUser(ctx, name+"2", rightSecret, UserOptions{Replace: true}), ErrNoSuchUser)
			is(t, a.PutUser(ctx, name, "short", UserOptions{Replace: true}), ErrInvalidPassword)
			is(t, a.PutUser(ctx, "", rightSecret, UserOptions{}), ErrInvalidUser)
			must(t, a.PutUser(ctx, name, "", UserOptions{Replace: true}))
			must(t, a.SetQuota(ctx, name, Quota{Records: 7}))
			users, err := a.Users(ctx)
			must(t, err)
			i := slices.IndexFunc(users, func(u User) bool { return u.Name == name })
			if i < 0 || users[i].Password || users[i].Grants != 1 || users[i].Quota != (Quota{Records: 7}) || users[i].Created.IsZero() {
				t.Errorf("users %+v", users)
			}
			must(t, a.Grant(ctx, name, cp.Administrator))
			is(t, a.Grant(ctx, name, Grant{}), ErrInvalidGrant)
			is(t, a.Grant(ctx, "nobody", g), ErrNoSuchUser)
			must(t, a.Revoke(ctx, name, g))
			is(t, a.Revoke(ctx, name, g), ErrNoSuchGrant)
			if list, err := a.Grants(ctx, name); err != nil || !slices.Equal(list, []Grant{cp.Administrator}) {
				t.Errorf("grants %v, %v", list, err)
			}
			_, err = a.Grants(ctx, "nobody")
			is(t, err, ErrNoSuchUser)
			expires := time.UnixMilli(time.Now().Add(time.Hour).UnixMilli())
			tok, secret, err := a.CreateToken(ctx, name, TokenOptions{Name: "ci", Expires: expires})
			must(t, err)
			if _, err := dialAs(t, addr, "", secret, nil); err != nil || tok.User != name || !tok.Expires.Equal(expires) {
				t.Errorf("token %+v: %v", tok, err)
			}
			if list, err := a.Tokens(ctx, name); err != nil || !slices.Equal(list, []Token{tok}) {
				t.Errorf("tokens %+v, %v", list, err)
			}
			must(t, a.DeleteToken(ctx, tok.ID))
			is(t, a.DeleteToken(ctx, tok.ID), ErrNoSuchToken)
			must(t, a.DeleteUser(ctx, name))
			is(t, a.DeleteUser(ctx, name), ErrNoSuchUser)
		})
	}
}

// Users never lock themselves out: the first one is an administrator, and the last
// administrator stays, for a linked program and for a client.
func TestLastAdministrator(t *testing.T) {
	ctx, e := within(t), open(t, t.TempDir(), Options{})
	anyone, err := dialAs(t, guarded(t, e, AuthOptions{Open: true}, server.Options{}), "", "", nil)
	must(t, err)
	orders, users := Grant{Kind: cp.OnTopic, Op: cp.Produce, Pattern: "orders"}, Grant{Kind: cp.OnCluster, Op: cp.Users, Pattern: "*"}
	for name, a := range map[string]api.Access{"linked": e, "client": anyone} {
		is(t, a.PutUser(ctx, name, rightSecret, UserOptions{Grants: []Grant{orders}}), ErrLastAdministrator, "user add NAME --admin")
		is(t, a.PutUser(ctx, name, rightSecret, UserOptions{Replace: true}), ErrNoSuchUser)
	}
	if list, err := anyone.Users(ctx); err != nil || len(list) != 0 {
		t.Fatalf("users %v, %v", list, err)
	}
	must(t, anyone.PutUser(ctx, "root", rightSecret, UserOptions{Grants: []Grant{cp.Administrator}}))
	admin, err := dialAs(t, guarded(t, e, AuthOptions{}, server.Options{}), "root", rightSecret, nil)
	must(t, err)
	for name, a := range map[string]api.Access{"linked": e, "client": admin} {
		t.Run(name, func(t *testing.T) {
			is(t, a.Revoke(ctx, "root", cp.Administrator), ErrLastAdministrator, "acl grant")
			must(t, a.PutUser(ctx, name, rightSecret, UserOptions{Grants: []Grant{orders}}))
			is(t, a.DeleteUser(ctx, "root"), ErrLastAdministrator)
			must(t, a.Revoke(ctx, name, orders))
			must(t, a.Grant(ctx, "root", users)) // who may change users gets there again
			must(t, a.Revoke(ctx, "root", cp.Administrator))
			is(t, a.Revoke(ctx, "root", users), ErrLastAdministrator)
			must(t, a.Grant(ctx, "root", cp.Administrator))
			must(t, a.Revoke(ctx, "root", users))
			must(t, a.Grant(ctx, name, cp.Administrator)) // there is another one now
			must(t, a.Revoke(ctx, name, cp.Administrator))
			must(t, a.DeleteUser(ctx, name))
		})
	}
	must(t, e.DeleteUser(ctx, "root")) // the last user: nobody is locked out
	must(t, e.PutUser(ctx, "a", rightSecret, UserOptions{Grants: []Grant{cp.Administrator}}))
	must(t, e.PutUser(ctx, "b", rightSecret, UserOptions{Grants: []Grant{cp.Administrator}}))
	var both [2]error
	var deleting sync.WaitGroup
	must(t, e.PutUser(ctx, "c", "", UserOptions{}))
	for i, name := range []string{"a", "b"} {
		deleting.Go(func() { both[i] = e.DeleteUser(ctx, name) })
	}
	deleting.Wait()
	if (both[0] == nil) == (both[1] == nil) {
		t.Errorf("two administrators deleted at once: %v", both)
	}
}
