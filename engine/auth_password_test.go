package engine

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/ringfence/ringfence/engine/server"
	"github.com/ringfence/ringfence/engine/wire"
)

// A user who changes the password while somebody else gets the name does not set that
// one's.
func TestPasswordOfAnotherOfTheName(t *testing.T) {
	ctx, e := t.Context(), open(t, t.TempDir(), Options{})
	var meanwhile func()
	a := e.Authenticator(AuthOptions{wall: time.Now, instant: func() time.Duration {
		if f := meanwhile; f != nil {
			meanwhile = nil
			f()
		}
		return time.Hour
	}})
	firstUser(t, e)
	must(t, e.PutUser(ctx, "alice", rightSecret, UserOptions{}))
	l := server.Login{Mechanism: "password", User: "alice", Secret: []byte(rightSecret), Remote: &net.UnixAddr{Name: "@"}}
	who, err := a.authenticate(ctx, l)
	must(t, err)
	const next = "another one, long enough"
	must(t, a.changePassword(ctx, who, l, []byte(next)))
	l.Secret = []byte(next)
	meanwhile = func() {
		must(t, e.DeleteUser(context.WithoutCancel(ctx), "alice"))
		e.opts.now = func() time.Time { return time.Now().Add(time.Hour) }
		must(t, e.PutUser(ctx, "alice", next, UserOptions{}))
	}
	is(t, a.changePassword(ctx, who, l, []byte(rightSecret)), wire.CodeNotAuthenticated, "the user was deleted")
	_, err = a.authenticate(ctx, l)
	must(t, err)
}
