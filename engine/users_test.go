package engine

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ringfence/ringfence/cp"
)

// A hash is read back as what it is of, whatever parameters it was made with, and
// nothing else is.
func TestPasswordHash(t *testing.T) {
	ctx, h := t.Context(), newHasher()
	stored, err := h.hash(ctx, []byte("correct horse"))
	if err != nil || len(stored) > cp.MaxHash || !strings.HasPrefix(string(stored), "$argon2id$v=19$m=19456,t=2,p=1$") {
		t.Fatalf("%s, %v", stored, err)
	}
	again, _ := h.hash(ctx, []byte("correct horse"))
	if string(again) == string(stored) {
		t.Error("two hashes of one password are the same: there is no salt")
	}
	// Of the reference implementation's test vectors, from a password "password" and a
	// salt "somesalt".
	other := "$argon2id$v=19$m=256,t=2,p=1$c29tZXNhbHQ$nf65EOgLrQMR/uIPnA4rEsF5h7TKyQwu9U1bMCHGi/4"
	for _, tt := range []struct {
		stored, password string
		want             bool
	}{
		{string(stored), "correct horse", true}, {string(stored), "correct horsf", false}, {string(stored), "", false},
		{other, "password", true}, {other, "passwore", false}, {"", "", false}, {"", "x", false},
	} {
		if ok, err := h.matches(ctx, []byte(tt.stored), []byte(tt.password)); ok != tt.want || err != nil {
			t.Errorf("%q as %q: %v, %v", tt.password, tt.stored, ok, err)
		}
	}
	for _, bad := range []string{
		"x", "$argon2i$v=19$m=256,t=2,p=1$c29tZXNhbHQ$nf65EOgLrQMR/uIPnA4rEsF5h7TKyQwu9U1bMCHGi/4",
		strings.Replace(other, "m=256", "m=4194304", 1), strings.Replace(other, "t=2", "t=0", 1), strings.Replace(other, "p=1", "p=0", 1),
		strings.Replace(other, "t=2", "t=1000", 1), strings.Replace(other, "m=256", "m=+256", 1), strings.Replace(other, "v=19", "v=16", 1),
		strings.Replace(other, "c29tZXNhbHQ", "c29t", 1), strings.Replace(other, "c29tZXNhbHQ", "c29tZXNhbHQ=", 1), other[:60], other + "$x",
	} {
		if ok, err := h.matches(ctx, []byte(bad), []byte("password")); ok || err == nil {
			t.Errorf("%q: %v, %v", bad, ok, err)
		}
	}
}

// No more hashes are computed at a time than there is memory for, and who waits gives up
// in time.
func TestHashingIsBounded(t *testing.T) {
	h := newHasher()
	for range cap(h.slots) {
		h.slots <- struct{}{}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := h.hash(ctx, []byte("x")); !errors.Is(err, context.Canceled) {
		t.Errorf("hash: %v", err)
	}
	if ok, err := h.matches(ctx, nil, []byte("x")); ok || !errors.Is(err, context.Canceled) {
		t.Errorf("matches: %v, %v", ok, err)
	}
}

func TestUserAdministration(t *testing.T) {
	ctx := t.Context()
	e := open(t, t.TempDir(), Options{})
	is := func(what string, err, want error) {
		t.Helper()
		if !errors.Is(err, want) || (err == nil) != (want == nil) {
			t.Errorf("%s: %v, want %v", what, err, want)
		}
	}
	user := func(name string) *cp.User {
		u, err := e.user(ctx, name)
		must(t, err)
		return u
	}
	orders := Grant{Kind: cp.OnTopic, Op: cp.Produce, Pattern: "orders*"}
	is("name", e.PutUser(ctx, "a\n", "long enough for it", UserOptions{}), ErrInvalidUser)
	is("name", e.PutUser(ctx, "\u009b2J", "long enough for it", UserOptions{}), ErrInvalidUser)
	is("short", e.PutUser(ctx, "alice", "short", UserOptions{}), ErrInvalidPassword)
	is("grant", e.PutUser(ctx, "alice", "", UserOptions{Grants: []Grant{{}}}), ErrInvalidGrant)
	is("absent", e.PutUser(ctx, "alice", "", UserOptions{Replace: true}), ErrNoSuchUser)
	firstUser(t, e)
	is("put", e.PutUser(ctx, "alice", "long enough for it", UserOptions{Grants: []Grant{orders}}), nil)
	_, _, err := e.CreateToken(ctx, "alice", TokenOptions{Name: "\u009b2J"})
	is("token", err, ErrInvalidToken)
	is("twice", e.PutUser(ctx, "alice", "", UserOptions{}), ErrUserExists)
	is("put", e.PutUser(ctx, "bob", "", UserOptions{}), nil)
	is("quota", e.SetQuota(ctx, "alice", Quota{Records: 5}), nil)
	is("quota", e.SetQuota(ctx, "carol", Quota{}), ErrNoSuchUser)
	users, err := e.Users(ctx)
	if err != nil || len(users) != 3 || users[0].Name != "alice" || !users[0].Password || users[0].Grants != 1 || users[0].Quota.Records != 5 ||
		users[1].Name != "bob" || users[1].Password || time.Since(users[1].Created) > time.Hour {
		t.Errorf("users: %+v, %v", users, err)
	}
	if hash := string(user("alice").Hash); strings.Contains(hash, "long") {
		t.Errorf("the password is kept: %s", hash)
	}

	is("grant", e.Grant(ctx, "carol", orders), ErrNoSuchUser)
	is("grant", e.Grant(ctx, "bob", Grant{Kind: cp.OnTopic, Op: cp.Users, Pattern: "x"}), ErrInvalidGrant)
	is("grant", e.Grant(ctx, "bob", orders), nil)
	is("revoke", e.Revoke(ctx, "bob", cp.Administrator), ErrNoSuchGrant)
	is("revoke", e.Revoke(ctx, "carol", orders), ErrNoSuchUser)
	if g, err := e.Grants(ctx, "bob"); err != nil || !slices.Equal(g, []Grant{orders}) {
		t.Errorf("grants: %v, %v", g, err)
	}
	is("revoke", e.Revoke(ctx, "bob", orders), nil)
	if g, err := e.Grants(ctx, "bob"); err != nil || len(g) != 0 {
		t.Errorf("grants: %v, %v", g, err)
	}

	_, _, err = e.CreateToken(ctx, "carol", TokenOptions{})
	is("token", err, ErrNoSuchUser)
	_, _, err = e.CreateToken(ctx, "bob", TokenOptions{Expires: time.Unix(1, 0)})
	is("token", err, cp.ErrInvalidToken)
	tok, secret, err := e.CreateToken(ctx, "bob", TokenOptions{Name: "ci", Expires: time.Now().Add(time.Hour)})
	is("token", err, nil)
	id, sum, ok := parseToken(secret)
	a, err := e.accessNow()
	must(t, err)
	if u, kept := a.Token(id); !ok || u.Name != "bob" || kept.Sum != sum || tok.User != "bob" {
		t.Errorf("token %+v of %+v: %v", kept, u, ok)
	}
	for _, bad := range []string{"", "x", secret[1:], secret[:len(secret)-1], secret + "A", strings.Replace(secret, "_", "-", 1), secret[:len(secret)-1] + "*"} {
		if _, _, ok := parseToken(bad); ok {
			t.Errorf("%q is taken for a token", bad)
		}
	}
	if list, err := e.Tokens(ctx, "bob"); err != nil || len(list) != 1 || list[0] != tok || list[0].Name != "ci" {
		t.Errorf("tokens: %+v, %v", list, err)
	}
	is("token", e.DeleteToken(ctx, "xyz"), ErrNoSuchToken)
	is("token", e.DeleteToken(ctx, strings.Repeat("0", 32)), ErrNoSuchToken)
	is("token", e.DeleteToken(ctx, tok.ID+"00"), ErrNoSuchToken)
	is("token", e.DeleteToken(ctx, tok.ID), nil)
	is("delete", e.DeleteUser(ctx, "carol"), ErrNoSuchUser)
	is("delete", e.DeleteUser(ctx, "bob"), nil)
	if users, err := e.Users(ctx); err != nil || len(users) != 2 {
		t.Errorf("users: %+v, %v", users, err)
	}
}

// Users are there after a restart, with all that is theirs.
func TestUsersStay(t *testing.T) {
	ctx, dir := t.Context(), t.TempDir()
	e := open(t, dir, Options{})
	if err := e.PutUser(ctx, "admin", "long enough for it", UserOptions{Grants: []Grant{cp.Administrator}}); err != nil {
		t.Fatal(err)
	}
	before, err := e.user(ctx, "admin")
	must(t, err)
	must(t, e.Close())
	e = open(t, dir, Options{})
	after, err := e.user(ctx, "admin")
	must(t, err)
	if string(after.Hash) != string(before.Hash) || !slices.Equal(after.Grants, before.Grants) || after.Created != before.Created {
		t.Errorf("%+v, was %+v", after, before)
	}
}

// Of two tokens that are to get one name at the same time one gets it.
func TestTokensOfOneName(t *testing.T) {
	ctx, e := within(t), open(t, t.TempDir(), Options{})
	firstUser(t, e)
	for round := range rounds(5) {
		const at = 8
		errs := make(chan error, at)
		for range at {
			go func() {
				_, _, err := e.CreateToken(ctx, "first", TokenOptions{Name: fmt.Sprint("ci", round)})
				errs <- err
			}()
		}
		made := 0
		for range at {
			if err := <-errs; err == nil {
				made++
			} else {
				is(t, err, cp.ErrInvalidToken, "there is one named")
			}
		}
		list, err := e.Tokens(ctx, "first")
		must(t, err)
		if made != 1 || len(list) != round+1 {
			t.Fatalf("round %d: %d were made, there are %d", round, made, len(list))
		}
	}
}

// The engine knows the authenticators that somebody has, and keeps none of the others.
func TestAuthenticatorsAreForgotten(t *testing.T) {
	e := open(t, t.TempDir(), Options{})
	kept := e.Authenticator(AuthOptions{})
	for range 100 {
		e.Authenticator(AuthOptions{})
	}
	runtime.GC()
	if all := e.access.guardians(); len(all) != 1 || all[0] != kept {
		t.Errorf("%d authenticators are known", len(all))
	}
	last := e.Authenticator(AuthOptions{})
	if n := len(e.access.guards); n != 2 {
		t.Errorf("%d are noted, of two that there are", n)
	}
	runtime.KeepAlive(kept)
	runtime.KeepAlive(last)
}
