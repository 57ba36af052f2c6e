package engine

import (
	"runtime"
	"testing"
	"time"

	"github.com/ringfence/ringfence/cp"
	"github.com/ringfence/ringfence/engine/api"
	"github.com/ringfence/ringfence/engine/server"
	"github.com/ringfence/ringfence/engine/wire"
)

// There is always an administrator who can log in, be it for a linked program or for a
// client: the first one has a password, and the last one keeps what he logs in with.
func TestAdministratorWhoCannotLogIn(t *testing.T) {
	ctx := within(t)
	all := UserOptions{Grants: []Grant{cp.Administrator}}
	replace := UserOptions{Replace: true}
	for _, over := range []string{"linked", "client"} {
		t.Run(over, func(t *testing.T) {
			e := open(t, t.TempDir(), Options{})
			addr := guarded(t, e, AuthOptions{Open: true}, server.Options{})
			as := func(user, secret string) api.Access {
				if over == "linked" {
					return e
				}
				c, err := dialAs(t, addr, user, secret, nil)
				must(t, err)
				return c
			}
			is(t, as("", "").PutUser(ctx, "root", "", all), ErrLastAdministrator, `user "root"`, "the first user has to have a password", "--tls-client-ca")
			must(t, as("", "").PutUser(ctx, "root", rightSecret, all))
			a := as("root", rightSecret)
			is(t, a.PutUser(ctx, "root", "", replace), ErrLastAdministrator, "who can log in", "user passwd")

			must(t, a.PutUser(ctx, "other", "", all)) // an administrator, who cannot log in
			for what, err := range map[string]error{
				"password": a.PutUser(ctx, "root", "", replace), "user": a.DeleteUser(ctx, "root"), "grant": a.Revoke(ctx, "root", cp.Administrator),
			} {
				t.Log(what)
				is(t, err, ErrLastAdministrator, "who can log in")
			}
			_, _, err := a.CreateToken(ctx, "other", TokenOptions{Expires: time.Now().Add(time.Hour)}) // and then nobody can
			must(t, err)
			is(t, a.PutUser(ctx, "root", "", replace), ErrLastAdministrator)
			token, secret, err := a.CreateToken(ctx, "other", TokenOptions{})
			must(t, err)
			must(t, a.PutUser(ctx, "root", "", replace))
			a = as("", secret)
			is(t, a.DeleteToken(ctx, token.ID), ErrLastAdministrator)
			is(t, a.DeleteUser(ctx, "other"), ErrLastAdministrator)
			must(t, a.PutUser(ctx, "root", rightSecret, replace))
			must(t, a.DeleteToken(ctx, token.ID))
		})
	}
}

// Where client certificates are taken, an administrator may have nothing else.
func TestAdministratorWithACertificate(t *testing.T) {
	ctx, e := within(t), open(t, t.TempDir(), Options{})
	newGate(t, e, AuthOptions{})
	is(t, e.PutUser(ctx, "root", "", UserOptions{Grants: []Grant{cp.Administrator}}), ErrLastAdministrator)
	taking := newGate(t, e, AuthOptions{Certificates: true})
	defer runtime.KeepAlive(taking) // as a server has it
	must(t, e.PutUser(ctx, "root", "", UserOptions{Grants: []Grant{cp.Administrator}}))
	must(t, e.PutUser(ctx, "root", rightSecret, UserOptions{Replace: true}))
	must(t, e.PutUser(ctx, "root", "", UserOptions{Replace: true}))
	must(t, e.PutUser(ctx, "alice", rightSecret, UserOptions{}))
	is(t, e.DeleteUser(ctx, "root"), ErrLastAdministrator) // as ever
}

// What locked out already, as an earlier version let it, is no reason to refuse what
// changes nothing about that, nor what mends it.
func TestAdministratorsWhoAreLockedOutAlready(t *testing.T) {
	ctx, e := within(t), open(t, t.TempDir(), Options{})
	for _, name := range []string{"root", "other"} {
		must(t, fromHost(e.command("", cp.PutUser{Name: name, Grants: []Grant{cp.Administrator}, At: 1}).Err))
	}
	must(t, e.DeleteUser(ctx, "other"))
	must(t, e.PutUser(ctx, "root", "", UserOptions{Replace: true}))
	must(t, e.PutUser(ctx, "root", rightSecret, UserOptions{Replace: true}))
	is(t, e.PutUser(ctx, "root", "", UserOptions{Replace: true}), ErrLastAdministrator)
}

// Who may see users sees which are locked out where and until when, and what did that.
func TestLockoutsAreTold(t *testing.T) {
	ctx, e := within(t), open(t, t.TempDir(), Options{})
	must(t, e.PutUser(ctx, "root", rightSecret, UserOptions{Grants: []Grant{cp.Administrator}}))
	must(t, e.PutUser(ctx, "alice", rightSecret, UserOptions{}))
	remote, err := dialAs(t, guarded(t, e, AuthOptions{}, server.Options{}), "root", rightSecret, nil)
	must(t, err)
	g := newGate(t, e, AuthOptions{})
	g.day = time.UnixMilli(g.day.UnixMilli())
	wrong := func(from string, times int) {
		for range times {
			g.want(wire.CodeInvalidCredentials, from, "password", "alice", "wrong")
			g.pass(attemptsEvery)
		}
	}
	told := func(wrong, at int, until time.Time, from string) {
		t.Helper()
		for name, a := range map[string]api.Access{"linked": e, "client": remote} {
			users, err := a.Users(ctx)
			must(t, err)
			u := users[0]
			if u.Name != "alice" || u.WrongPasswords != wrong || u.LockedAt != at || !u.LockedUntil.Equal(until) || u.LockedFrom != from {
				t.Errorf("%s: %+v, want %d wrong, %d times until %v at %s", name, u, wrong, at, until, from)
			}
			if root := users[1]; root.WrongPasswords != 0 || root.LockedAt != 0 || !root.LockedUntil.IsZero() {
				t.Errorf("%s: %+v", name, root)
			}
		}
	}
	told(0, 0, time.Time{}, "")
	wrong("10.0.0.1", 2)
	told(2, 0, time.Time{}, "")
	wrong("10.0.0.1", failuresMost-2)
	wrong("10.0.0.2", failuresMost)
	until := g.day.Add(lockFirst - attemptsEvery)
	told(2*failuresMost, 2, until, "10.0.0.2")
	g.want(0, "10.0.0.3", "password", "alice", rightSecret) // elsewhere, which changes nothing here
	told(2*failuresMost, 2, until, "10.0.0.2")
	g.pass(lockFirst)
	told(2*failuresMost, 0, time.Time{}, "") // it is over, and the next one locks out for longer
	g.want(0, "10.0.0.1", "password", "alice", rightSecret)
	told(failuresMost, 0, time.Time{}, "")
	time.Sleep(2 * time.Millisecond) // passwords are told apart by when they were set
	must(t, e.PutUser(ctx, "alice", rightSecret, UserOptions{Replace: true}))
	told(0, 0, time.Time{}, "")
	wrong("10.0.0.2", 1)
	told(1, 0, time.Time{}, "")
	g.pass(lockForget + attemptsEvery)
	told(0, 0, time.Time{}, "")
}
