package server

import (
	"context"
	"time"

	"github.com/ringfence/ringfence/cp"
	"github.com/ringfence/ringfence/engine/api"
	"github.com/ringfence/ringfence/engine/wire"
)

// administer does what a request about users asks.
func (c *conn) administer(ctx context.Context, key wire.Key, who Identity, m any) (wire.Message, error) {
	if m, ok := m.(*wire.ChangePassword); ok {
		return c.changePassword(ctx, who, m)
	}
	if key < wire.KeyPutUser || key > wire.KeySetQuota {
		return nil, refusal(wire.CodeUnsupported, "%s: this server does not do that", key)
	}
	if err := c.s.allow(who, OpUsers, ""); err != nil {
		return nil, err
	}
	e := c.s.engine
	switch m := m.(type) {
	case *wire.PutUser:
		o := api.UserOptions{Replace: m.Replace}
		for _, g := range m.Grants {
			o.Grants = append(o.Grants, grantOf(g))
		}
		return &wire.Done{}, e.PutUser(ctx, m.User, string(m.Password), o)
	case *wire.DeleteUser:
		return &wire.Done{}, e.DeleteUser(ctx, m.User)
	case *wire.ListUsers:
		list, err := e.Users(ctx)
		return users(list, m), err
	case *wire.UserGrant:
		if key == wire.KeyRevoke {
			return &wire.Done{}, e.Revoke(ctx, m.User, grantOf(m.Grant))
		}
		return &wire.Done{}, e.Grant(ctx, m.User, grantOf(m.Grant))
	case *wire.ListGrants:
		list, err := e.Grants(ctx, m.User)
		r := &wire.ListGrantsReply{}
		for _, g := range list {
			r.Grants = append(r.Grants, &wire.Grant{Kind: byte(g.Kind), Operation: byte(g.Op), Pattern: g.Pattern})
		}
		return r, err
	case *wire.CreateToken:
		t, secret, err := e.CreateToken(ctx, m.User, api.TokenOptions{Name: m.Name, Expires: timeOf(m.ExpiresMs)})
		return &wire.CreateTokenReply{Token: tokenOf(&t), Secret: secret}, err
	case *wire.DeleteToken:
		return &wire.Done{}, e.DeleteToken(ctx, m.Id)
	case *wire.ListTokens:
		list, err := e.Tokens(ctx, m.User)
		r := &wire.ListTokensReply{}
		for i := range list {
			r.Tokens = append(r.Tokens, tokenOf(&list[i]))
		}
		return r, err
	}
	q := m.(*wire.SetQuota)
	return &wire.Done{}, e.SetQuota(ctx, q.User, api.Quota{Records: q.Quota.Records, Bytes: q.Quota.Bytes})
}

// changePassword is of everybody, for himself.
func (c *conn) changePassword(ctx context.Context, who Identity, m *wire.ChangePassword) (wire.Message, error) {
	if c.s.opts.ChangePassword == nil || who.User == "" {
		return nil, refusal(wire.CodeUnsupported, "nobody has logged in on this connection whose password could be changed")
	}
	return &wire.Done{}, c.s.opts.ChangePassword(ctx, who, c.login("password", who.User, m.Old), m.New)
}

// users is a page of the list.
func users(list []api.User, m *wire.ListUsers) *wire.ListUsersReply {
	page, more := pageOf(list, m.After, m.Limit, func(u *api.User) string { return u.Name }, everything)
	r := &wire.ListUsersReply{More: more}
	for _, u := range page {
		r.Users = append(r.Users, &wire.UserInfo{
			User: u.Name, Password: u.Password, CreatedMs: millisOf(u.Created), ChangedMs: millisOf(u.Changed),
			Grants: uint32(u.Grants), Tokens: uint32(u.Tokens), Quota: &wire.Quota{Records: u.Quota.Records, Bytes: u.Quota.Bytes},
			WrongPasswords: uint32(u.WrongPasswords), LockedAt: uint32(u.LockedAt), LockedUntilMs: millisOf(u.LockedUntil), LockedFrom: u.LockedFrom,
		})
	}
	return r
}

// grantOf takes any numbers; the engine knows which there are.
func grantOf(g *wire.Grant) api.Grant {
	return api.Grant{Kind: cp.Kind(g.Kind), Op: cp.Operation(g.Operation), Pattern: g.Pattern}
}

func tokenOf(t *api.Token) *wire.TokenInfo {
	return &wire.TokenInfo{Id: t.ID, User: t.User, Name: t.Name, CreatedMs: millisOf(t.Created), ExpiresMs: millisOf(t.Expires)}
}

// timeOf is the other way round than millisOf.
func timeOf(ms int64) time.Time {
	if ms == 0 {
		return time.Time{}
	}
	return time.UnixMilli(ms)
}
