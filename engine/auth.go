package engine

import (
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/ringfence/ringfence/cp"
	"github.com/ringfence/ringfence/engine/server"
	"github.com/ringfence/ringfence/engine/wire"
)

// AuthOptions say how the clients of a server prove who they are.
type AuthOptions struct {
	// Open lets everybody in, to do everything, for as long as there is no user: for
	// addresses that only this host reaches. The first user ends it, also for connections
	// that are open.
	Open bool
	// Certificates takes the common name of a client certificate for the name of a user,
	// who logs in with mechanism "certificate". The server's TLS configuration says which
	// authorities are believed.
	Certificates bool
	// Log hears who logged in, who was refused what, and who changed what; nil means the
	// engine's logger. No secret ever gets there.
	Log *slog.Logger

	instant func() time.Duration // a monotonic clock; tests set it
	wall    func() time.Time     // likewise: by which tokens expire
}

// Authenticator holds the clients of a server against the users of its engine. All its
// methods are safe for concurrent use. What it remembers is bounded.
type Authenticator struct {
	e        *Engine
	opts     AuthOptions
	attempts *attempts
	locks    *lockouts
	spent    *spending
	said     *said
	stats    authCounters
}

// AuthStats counts logins since the authenticator was made, by what became of them.
type AuthStats struct {
	OK          int64
	Wrong       int64 // user or secret is wrong
	LockedOut   int64 // refused for wrong passwords before
	RateLimited int64 // refused because the address has tried too often
	Failed      int64 // could not be checked
	Lockouts    int64 // how often a user was locked out somewhere
}

type authCounters struct{ ok, wrong, lockedOut, rateLimited, failed, lockouts atomic.Int64 }

// Stats returns the counts.
func (a *Authenticator) Stats() AuthStats {
	c := &a.stats
	return AuthStats{c.ok.Load(), c.wrong.Load(), c.lockedOut.Load(), c.rateLimited.Load(), c.failed.Load(), c.lockouts.Load()}
}

// Authenticator makes one, for [Authenticator.Guard]. The engine knows of it from then on,
// for as long as a server or anybody else has it: by that it tells lockouts, and whether a
// user may have a certificate to log in with.
func (e *Engine) Authenticator(o AuthOptions) *Authenticator {
	if o.Log == nil {
		o.Log = e.log
	}
	if o.instant == nil {
		start := time.Now()
		o.instant = func() time.Duration { return time.Since(start) }
	}
	if o.wall == nil {
		o.wall = time.Now
	}
	a := &Authenticator{e: e, opts: o, attempts: newAttempts(), locks: newLockouts(), spent: newSpending(), said: newSaid()}
	e.access.guardedBy(a)
	return a
}

// Guard sets the hooks of a server's options: logins, permissions, quotas and the audit
// log are the authenticator's then.
func (a *Authenticator) Guard(o *server.Options) {
	o.Authenticate, o.Allow, o.Spend, o.Audit = a.authenticate, a.allow, a.spend, a.audit
	o.ChangePassword = a.changePassword
	o.Mechanisms = []string{"password", "token"}
	if a.opts.Certificates {
		o.Mechanisms = append(o.Mechanisms, "certificate")
	}
	if a.opts.Open {
		o.Anonymous = a.open
	}
}

// open says whether nobody has to log in now. What is not known is no permission.
func (a *Authenticator) open() bool {
	known, err := a.e.accessNow()
	return err == nil && a.opts.Open && known.Len() == 0
}

// proof is what a login is worth for as long as it holds: the account it was of, so that
// a user who is deleted and made again is another one, and the token, which may be
// deleted or expire.
type proof struct {
	created int64
	token   cp.TokenID
}

var errWrong = errors.New("user or secret is wrong")

// authenticate checks a client's login, in this order: whether user and address are
// locked out, whether the address has attempts left, whether the secret is right. The
// answer tells nothing of which users there are.
func (a *Authenticator) authenticate(ctx context.Context, l server.Login) (who server.Identity, err error) {
	from, now := l.From, a.opts.instant()
	key := lockKey{from: from, user: bounded(l.User)}
	changed := a.changed(l.User)
	if l.Mechanism == "password" {
		if err = a.locks.refusal(key, changed, now); err != nil {
			a.stats.lockedOut.Add(1)
		}
	}
	if err == nil {
		if err = a.attempts.take(from, now); err != nil {
			a.stats.rateLimited.Add(1)
		}
	}
	if err != nil { // it comes as fast as anybody likes: once is enough
		if e := (*wire.Error)(nil); errors.As(err, &e) && a.attempts.first(from, now) {
			a.shutOut(l, err)
		}
		return who, err
	}
	u, token, err := a.check(ctx, &l)
	switch {
	case err == nil:
		a.stats.ok.Add(1)
		a.attempts.giveBack(from)
		if l.Mechanism == "password" {
			a.locks.clear(key)
		}
		a.loggedIn(l, u.Name, nil)
		return server.Identity{User: u.Name, Proof: proof{u.Created, token}}, nil
	case !errors.Is(err, errWrong):
		a.stats.failed.Add(1)
	default:
		a.stats.wrong.Add(1)
		if l.Mechanism != "password" {
			break
		}
		if d := a.locks.failed(key, changed, a.opts.instant()); d > 0 {
			a.stats.lockouts.Add(1)
			err = fmt.Errorf("%w; locked out for %s", err, d)
		}
	}
	a.loggedIn(l, l.User, err)
	return who, err
}

// lockedOut adds to users who is locked out where, and how many wrong passwords there were.
func (a *Authenticator) lockedOut(users []User) {
	now := a.opts.instant()
	of := a.locks.byUser(now)
	for i := range users {
		u := &users[i]
		for _, f := range of[bounded(u.Name)] {
			if f.changed != u.Changed.UnixMilli() {
				continue // of the password before
			}
			u.WrongPasswords += f.n
			if f.until <= now {
				continue
			}
			u.LockedAt++
			if until := a.opts.wall().Add(f.until - now); until.After(u.LockedUntil) {
				u.LockedUntil, u.LockedFrom = until, f.from.String()
			}
		}
	}
}

// changed is when a user got his password, 0 for nobody.
func (a *Authenticator) changed(user string) int64 {
	known, err := a.e.accessNow()
	if err != nil {
		return 0 // check fails for it, too
	}
	if u := known.User(user); u != nil {
		return u.Changed
	}
	return 0
}

// changePassword takes the old password as a login is taken, so that guessing it costs the
// same. Hashing takes a while: whoever got the name meanwhile keeps the password.
func (a *Authenticator) changePassword(ctx context.Context, who server.Identity, l server.Login, password []byte) error {
	still := func() error {
		_, err := a.user(who)
		return err
	}
	if err := still(); err != nil {
		return err
	}
	if _, err := a.authenticate(ctx, l); errors.Is(err, errWrong) {
		return &wire.Error{Code: wire.CodeInvalidCredentials, Detail: "user or secret is wrong"}
	} else if err != nil {
		return err
	}
	if len(password) == 0 {
		return ofUser(who.User, fmt.Errorf("%w: it is empty", ErrInvalidPassword))
	}
	return a.e.putUser(ctx, who.User, string(password), UserOptions{Replace: true}, still)
}

// check finds the user that a login is of. errWrong is all that a client is told.
func (a *Authenticator) check(ctx context.Context, l *server.Login) (*cp.User, cp.TokenID, error) {
	var none cp.TokenID
	known, err := a.e.accessNow()
	if err != nil {
		return nil, none, &wire.Error{Code: wire.CodeUnavailable, Detail: "the users cannot be read now"}
	}
	switch l.Mechanism {
	case "password":
		u, hash := known.User(l.User), []byte(nil)
		if u != nil {
			hash = u.Hash
		}
		ok, err := a.e.hasher.matches(ctx, hash, l.Secret)
		if err == nil && !ok {
			err = errWrong
		}
		return u, none, err
	case "token":
		id, sum, _ := parseToken(string(l.Secret))
		u, t := known.Token(id)
		if t == nil || subtle.ConstantTimeCompare(sum[:], t.Sum[:]) != 1 || !t.Live(a.opts.wall().UnixMilli()) {
			return nil, none, errWrong
		}
		return u, id, nil
	case "certificate":
		if !a.opts.Certificates || l.Certificate == nil {
			return nil, none, fmt.Errorf("%w: no certificate", errWrong)
		}
		l.User = l.Certificate.Subject.CommonName // for the log
		if u := known.User(l.User); u != nil {
			return u, none, nil
		}
		return nil, none, fmt.Errorf("%w: no user is called like the certificate", errWrong)
	}
	return nil, none, fmt.Errorf("%w: no such mechanism", errWrong)
}

// user is who an identity still is.
func (a *Authenticator) user(who server.Identity) (*cp.User, error) {
	known, err := a.e.accessNow()
	if err != nil {
		return nil, &wire.Error{Code: wire.CodeUnavailable, Detail: "the users cannot be read now"}
	}
	if who.User == "" && known.Len() == 0 && a.opts.Open {
		return nil, nil
	}
	p, _ := who.Proof.(proof)
	u := known.User(who.User)
	switch {
	case who.User == "":
		return nil, gone("there are users now")
	case u == nil || u.Created != p.created:
		return nil, gone("the user was deleted")
	case p.token != cp.TokenID{}:
		if of, t := known.Token(p.token); of != u || !t.Live(a.opts.wall().UnixMilli()) {
			return nil, gone("the token was deleted or has expired")
		}
	}
	return u, nil
}

func gone(why string) error {
	return &wire.Error{Code: wire.CodeNotAuthenticated, Detail: why + ": connect again and log in"}
}

// permissions are what has to be granted for what a server is asked to do.
var permissions = map[server.Op]struct {
	kind cp.Kind
	op   cp.Operation
}{
	server.OpCreate:        {cp.OnTopic, cp.Create},
	server.OpDelete:        {cp.OnTopic, cp.Delete},
	server.OpDescribe:      {cp.OnTopic, cp.Describe},
	server.OpAlter:         {cp.OnTopic, cp.Alter},
	server.OpProduce:       {cp.OnTopic, cp.Produce},
	server.OpConsume:       {cp.OnTopic, cp.Consume},
	server.OpUseGroup:      {cp.OnGroup, cp.Consume},
	server.OpDescribeGroup: {cp.OnGroup, cp.Describe},
	server.OpDeleteGroup:   {cp.OnGroup, cp.Delete},
	server.OpPolicy:        {cp.OnCluster, cp.Alter},
	server.OpPolicies:      {cp.OnCluster, cp.Describe},
	server.OpUsers:         {cp.OnCluster, cp.Users},
}

// allow holds a request against what is granted now. An operation that nobody knows is
// an administrator's.
func (a *Authenticator) allow(who server.Identity, op server.Op, name string) error {
	u, err := a.user(who)
	if u == nil {
		return err // nil where there are no users
	}
	if p := permissions[op]; !u.Allows(p.kind, p.op, name) {
		return fmt.Errorf("it takes a grant of %q on %s", p.op, p.kind)
	}
	return nil
}

// spend charges a frame to the quota of its user.
func (a *Authenticator) spend(who server.Identity, records, bytes int) error {
	u, err := a.user(who)
	if u == nil || u.Quota == (Quota{}) {
		return err
	}
	return a.spent.charge(u, records, bytes, a.opts.instant())
}

// bounded is what a client calls itself, cut to what a user can be called.
func bounded(s string) string { return s[:min(len(s), cp.MaxName)] }
