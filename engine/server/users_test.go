package server

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ringfence/ringfence/cp"
	"github.com/ringfence/ringfence/engine/api"
	"github.com/ringfence/ringfence/engine/wire"
)

// fakeUsers notes what it is asked.
type fakeUsers struct {
	access sync.Mutex
	asked  []string
	known  []api.User
}

func (u *fakeUsers) ask(format string, a ...any) error {
	u.access.Lock()
	defer u.access.Unlock()
	u.asked = append(u.asked, fmt.Sprintf(format, a...))
	return nil
}

func (u *fakeUsers) PutUser(_ context.Context, name, password string, o api.UserOptions) error {
	if name == "old" {
		return api.ErrUserExists
	}
	return u.ask("put %s %s %v %v", name, password, o.Replace, o.Grants)
}
func (u *fakeUsers) DeleteUser(_ context.Context, name string) error {
	if name == "nobody" {
		return fmt.Errorf("user %q: %w", name, api.ErrNoSuchUser)
	}
	return u.ask("delete %s", name)
}
func (u *fakeUsers) Users(context.Context) ([]api.User, error) { return u.known, nil }
func (u *fakeUsers) Grant(_ context.Context, user string, g api.Grant) error {
	return u.ask("grant %s %v", user, g)
}
func (u *fakeUsers) Revoke(_ context.Context, user string, g api.Grant) error {
	if g.Pattern == "none" {
		return api.ErrNoSuchGrant
	}
	return u.ask("revoke %s %v", user, g)
}
func (u *fakeUsers) Grants(_ context.Context, user string) ([]api.Grant, error) {
	return []api.Grant{{Kind: cp.OnGroup, Op: cp.Consume, Pattern: user}}, nil
}
func (u *fakeUsers) CreateToken(_ context.Context, user string, o api.TokenOptions) (api.Token, string, error) {
	return api.Token{ID: "id", User: user, Name: o.Name, Expires: o.Expires}, "secret", nil
}
func (u *fakeUsers) DeleteToken(_ context.Context, id string) error {
	if id == "none" {
		return api.ErrNoSuchToken
	}
	return u.ask("delete token %s", id)
}
func (u *fakeUsers) Tokens(_ context.Context, user string) ([]api.Token, error) {
	return []api.Token{{ID: "id", User: user, Created: time.UnixMilli(5)}}, nil
}
func (u *fakeUsers) SetQuota(_ context.Context, user string, q api.Quota) error {
	return u.ask("quota %s %d %d", user, q.Records, q.Bytes)
}

func TestUserRequests(t *testing.T) {
	inBubble(t, Options{}, func(w *world) {
		c := w.connect()
		g := &wire.Grant{Kind: 1, Operation: 6, Pattern: "a*"}
		want[*wire.Done](c, wire.KeyPutUser, &wire.PutUser{User: "u", Password: []byte("p"), Replace: true, Grants: []*wire.Grant{g}})
		want[*wire.Done](c, wire.KeyDeleteUser, &wire.DeleteUser{User: "u"})
		want[*wire.Done](c, wire.KeyGrant, &wire.UserGrant{User: "u", Grant: g})
		want[*wire.Done](c, wire.KeyRevoke, &wire.UserGrant{User: "u", Grant: g})
		want[*wire.Done](c, wire.KeyDeleteToken, &wire.DeleteToken{Id: "t"})
		want[*wire.Done](c, wire.KeySetQuota, &wire.SetQuota{User: "u", Quota: &wire.Quota{Records: 1, Bytes: 2}})
		if want := []string{
			`put u p true [produce on topic "a*"]`, "delete u", `grant u produce on topic "a*"`, `revoke u produce on topic "a*"`, "delete token t", "quota u 1 2",
		}; !slices.Equal(w.engine.asked, want) {
			t.Errorf("asked %q", w.engine.asked)
		}
		if r := want[*wire.ListGrantsReply](c, wire.KeyListGrants, &wire.ListGrants{User: "u"}); len(r.Grants) != 1 || *r.Grants[0] != (wire.Grant{Kind: 2, Operation: 7, Pattern: "u"}) {
			t.Errorf("grants: %+v", r)
		}
		if r := want[*wire.CreateTokenReply](c, wire.KeyCreateToken, &wire.CreateToken{User: "u", Name: "n", ExpiresMs: 9}); r.Secret != "secret" || *r.Token != (wire.TokenInfo{Id: "id", User: "u", Name: "n", ExpiresMs: 9}) {
			t.Errorf("token: %+v", r)
		}
		if r := want[*wire.ListTokensReply](c, wire.KeyListTokens, &wire.ListTokens{User: "u"}); len(r.Tokens) != 1 || *r.Tokens[0] != (wire.TokenInfo{Id: "id", User: "u", CreatedMs: 5}) {
			t.Errorf("tokens: %+v", r)
		}
		c.refused(wire.CodeUnsupported, wire.KeyChangePassword, &wire.ChangePassword{Old: []byte("a"), New: []byte("b")}) // nobody logged in
		c.refused(wire.CodeUserExists, wire.KeyPutUser, &wire.PutUser{User: "old"})
		c.refused(wire.CodeNoSuchUser, wire.KeyDeleteUser, &wire.DeleteUser{User: "nobody"})
		c.refused(wire.CodeNoSuchGrant, wire.KeyRevoke, &wire.UserGrant{Grant: &wire.Grant{Pattern: "none"}})
		c.refused(wire.CodeNoSuchToken, wire.KeyDeleteToken, &wire.DeleteToken{Id: "none"})
		for _, name := range []string{"a", "b", "c"} {
			w.engine.known = append(w.engine.known, api.User{Name: name, Password: true, Grants: 3, Quota: api.Quota{Bytes: 7}})
		}
		for _, tt := range []struct {
			m    wire.ListUsers
			want string
			more bool
		}{{wire.ListUsers{}, "abc", false}, {wire.ListUsers{Limit: 2}, "ab", true}, {wire.ListUsers{After: "a", Limit: 2}, "bc", false}} {
			r := want[*wire.ListUsersReply](c, wire.KeyListUsers, &tt.m)
			var names strings.Builder
			for _, u := range r.Users {
				names.WriteString(u.User)
				if !u.Password || u.Grants != 3 || u.Quota.Bytes != 7 || u.CreatedMs != 0 {
					t.Errorf("user %+v", u)
				}
			}
			if names.String() != tt.want || r.More != tt.more {
				t.Errorf("%+v: %s, %v", tt.m, names.String(), r.More)
			}
		}
	})
}

// Everything about users takes one permission, whoever it is about.
func TestUserRequestsAreOperators(t *testing.T) {
	var asked []Op
	allow := func(_ Identity, op Op, name string) error {
		if asked = append(asked, op); name != "" {
			t.Errorf("asked about %q", name)
		}
		return context.Canceled
	}
	inBubble(t, Options{Allow: allow}, func(w *world) {
		c := w.connect()
		for key, m := range map[wire.Key]wire.Message{
			wire.KeyPutUser: &wire.PutUser{}, wire.KeyDeleteUser: &wire.DeleteUser{}, wire.KeyListUsers: &wire.ListUsers{},
			wire.KeyGrant: &wire.UserGrant{}, wire.KeyRevoke: &wire.UserGrant{}, wire.KeyListGrants: &wire.ListGrants{},
			wire.KeyCreateToken: &wire.CreateToken{}, wire.KeyDeleteToken: &wire.DeleteToken{}, wire.KeyListTokens: &wire.ListTokens{}, wire.KeySetQuota: &wire.SetQuota{},
		} {
			asked = nil
			c.refused(wire.CodePermissionDenied, key, m)
			if !slices.Equal(asked, []Op{OpUsers}) {
				t.Errorf("%s asks for %q", key, asked)
			}
		}
	})
}
