package server

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"slices"
	"time"

	"github.com/ringfence/ringfence/engine/wire"
)

// answered ends a connection whose client was told why in answer to its request.
type answered struct{ why error }

func (e answered) Error() string { return e.why.Error() }

// enter takes a frame of a client that is not logged in: Hello, then Authenticate where
// somebody has to. Anything else ends the connection.
func (c *conn) enter(h wire.Head) error {
	if h.ID == 0 {
		return refusal(wire.CodeMalformed, "%s request with id 0, which is no request's", h.Key)
	}
	msg, taken, err := c.gather(int(h.Message))
	defer func() { c.s.heap.give(taken) }()
	if err == nil {
		err = c.skip(h.Raw())
	}
	var m any
	if err == nil {
		m, err = wire.Request(h.Key, msg)
	}
	var r wire.Message
	if err == nil {
		r, err = c.admitted(h, m)
	}
	if err := c.refuse(h, err); err != nil {
		return err
	}
	if err != nil {
		return answered{err}
	}
	c.reply(h, r)
	return nil
}

func (c *conn) admitted(h wire.Head, m any) (wire.Message, error) {
	switch m := m.(type) {
	case *wire.Hello:
		if !c.greeted {
			return c.greet(m)
		}
	case *wire.Authenticate:
		if c.greeted {
			ctx, stop := context.WithDeadline(c.calm, c.enterBy)
			defer stop()
			return c.logIn(ctx, m)
		}
	}
	if !c.greeted {
		return nil, refusal(wire.CodeMalformed, "%s request before Hello, which comes first", h.Key)
	}
	return nil, refusal(wire.CodeNotAuthenticated, "%s request before Authenticate, which comes first here", h.Key)
}

// greet settles what both sides speak.
func (c *conn) greet(m *wire.Hello) (wire.Message, error) {
	if m.Magic != wire.Magic {
		return nil, refusal(wire.CodeMalformed, "Hello with magic %#x, want %#x: this is a Ringfence server", m.Magic, wire.Magic)
	}
	if m.MinVersion > wire.Version || m.MaxVersion < wire.Version {
		return nil, refusal(wire.CodeUnsupportedVersion, "the client speaks versions %d to %d of the protocol, the server version %d: upgrade the older one",
			m.MinVersion, m.MaxVersion, wire.Version)
	}
	c.greeted = true
	o := &c.s.opts
	r := &wire.HelloReply{
		Version: wire.Version, Server: o.Name, Log: c.s.engine.Log(),
		MaxFrame: wire.MaxFrame, MaxRequests: uint32(o.MaxRequests), IdleMs: uint32(o.IdleTimeout / time.Millisecond),
	}
	if o.Authenticate == nil || o.Anonymous != nil && o.Anonymous() {
		c.who.Store(&Identity{})
	} else {
		r.Authenticate, r.Mechanisms = true, c.mechanisms()
	}
	c.s.log.Debug("client connected", "connection", c.id, "client", m.Client)
	return r, nil
}

// logIn checks who the client is. One that is logged in may show again that it is the
// same, before its token expires, say.
func (c *conn) logIn(ctx context.Context, m *wire.Authenticate) (wire.Message, error) {
	if c.s.opts.Authenticate == nil {
		return nil, refusal(wire.CodeUnsupported, "nobody has to log in on this server")
	}
	who, err := c.s.opts.Authenticate(ctx, c.login(m.Mechanism, m.User, m.Secret))
	if err != nil {
		return nil, c.notLoggedIn(m.User, err)
	}
	if old := c.who.Load(); old != nil && old.User != who.User {
		return nil, refusal(wire.CodePermissionDenied, "the connection is %q's: open another one for %q", old.User, who.User)
	}
	c.who.Store(&who)
	return &wire.AuthenticateReply{User: who.User}, nil
}

func (c *conn) login(mechanism, user string, secret []byte) Login {
	return Login{Mechanism: mechanism, User: user, Secret: secret, Remote: c.nc.RemoteAddr(), From: c.from, Connection: c.id, Certificate: c.certificate()}
}

// notLoggedIn is what a client is told of a login that was refused.
func (c *conn) notLoggedIn(user string, err error) error {
	c.s.log.Debug("login refused", "connection", c.id, "remote", c.nc.RemoteAddr().String(), "user", user, "error", err)
	if e := (*wire.Error)(nil); errors.As(err, &e) {
		return e
	}
	return refusal(wire.CodeInvalidCredentials, "user or secret is wrong")
}

// certificate is what the client showed and the handshake verified, nil without.
func (c *conn) certificate() *x509.Certificate {
	t, ok := c.nc.(*tls.Conn)
	if !ok {
		return nil
	}
	chains := t.ConnectionState().VerifiedChains
	if len(chains) == 0 {
		return nil
	}
	return chains[0][0]
}

// mechanisms are the ways of this client to log in.
func (c *conn) mechanisms() []string {
	all := c.s.opts.Mechanisms
	if c.certificate() != nil {
		return all
	}
	return slices.DeleteFunc(slices.Clone(all), func(m string) bool { return m == "certificate" })
}
