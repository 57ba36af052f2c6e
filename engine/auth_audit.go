package engine

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/ringfence/ringfence/engine/server"
	"github.com/ringfence/ringfence/engine/wire"
)

// Limits of the audit log: clients log in, and have themselves refused, as often as they
// like. Of one user and kind so many are told at once, and another one in each while after
// that; the rest are counted. What was changed is told each time.
const (
	auditMost  = 10
	auditEvery = time.Second
)

// said bounds what is told: a bucket for each user and kind, which fills with time.
type said struct {
	mu sync.Mutex
	of recent[auditKey, *saying]
}

// auditKey is what is told together: logins by the place that they come from as well, for
// whoever fails to log in calls himself as he likes.
type auditKey struct {
	what, user, outcome string
	from                server.Origin
}

type saying struct {
	full time.Duration // the instant at which as many as can be are told at once again
	left int           // out, and not told yet
}

func newSaid() *said { return &said{of: newRecent[auditKey, *saying]()} }

// may says whether another one is told. If not it is counted, and tellLeft called after a
// while with how many those were until then.
func (s *said) may(k auditKey, now time.Duration, tellLeft func(n int)) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	v, isNew := s.of.use(k)
	if isNew {
		*v = &saying{}
	}
	b := *v
	if full := max(b.full, now) + auditEvery; full-now <= auditMost*auditEvery {
		b.full = full
		return true
	}
	if b.left++; b.left == 1 {
		time.AfterFunc(auditEvery, func() {
			s.mu.Lock()
			n := b.left
			b.left = 0
			s.mu.Unlock()
			tellLeft(n)
		})
	}
	return false
}

// loggedIn writes a login, or the refusal of one, to the audit log.
func (a *Authenticator) loggedIn(l server.Login, user string, err error) {
	if k := loginKey(l, user, err); a.tells(k, err) {
		a.logLogin(k, l, err)
	}
}

// shutOut writes that a place gets no further for a while, which its caller tells once.
func (a *Authenticator) shutOut(l server.Login, err error) {
	a.logLogin(loginKey(l, l.User, err), l, err)
}

func loginKey(l server.Login, user string, err error) auditKey {
	_, outcome := outcomeOf(err)
	return auditKey{"login", bounded(user), outcome, l.From}
}

func (a *Authenticator) logLogin(k auditKey, l server.Login, err error) {
	a.log(k, l.Remote, l.Connection, err, "mechanism", bounded(l.Mechanism))
}

// audit writes what a server tells of a request.
func (a *Authenticator) audit(e server.Event) {
	_, outcome := outcomeOf(e.Err)
	k := auditKey{what: e.Request.String(), user: bounded(e.User), outcome: outcome}
	if e.Err == nil || a.tells(k, e.Err) {
		a.log(k, e.Remote, e.Connection, e.Err, "about", e.About)
	}
}

// tells says whether something is told now. If not it is told later with others like it.
func (a *Authenticator) tells(k auditKey, err error) bool {
	level, _ := outcomeOf(err)
	return a.said.may(k, a.opts.instant(), func(n int) {
		args := []any{"what", k.what, "user", k.user, "outcome", k.outcome, "left_out", n}
		if k.from != (server.Origin{}) {
			args = append(args, "from", k.from.String())
		}
		a.opts.Log.Log(context.Background(), level, "audit", args...)
	})
}

func (a *Authenticator) log(k auditKey, remote net.Addr, connection uint64, err error, more ...any) {
	level, _ := outcomeOf(err)
	if err != nil {
		more = append(more, "error", err)
	}
	args := append([]any{"what", k.what, "user", k.user, "remote", remote.String(), "connection", connection, "outcome", k.outcome}, more...)
	a.opts.Log.Log(context.Background(), level, "audit", args...)
}

func outcomeOf(err error) (level slog.Level, outcome string) {
	if err == nil {
		return slog.LevelInfo, "done"
	}
	for _, is := range []error{errWrong, wire.CodePermissionDenied, wire.CodeNotAuthenticated, wire.CodeRateLimited} {
		if errors.Is(err, is) {
			return slog.LevelWarn, "refused"
		}
	}
	return slog.LevelWarn, "failed"
}
