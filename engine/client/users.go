package client

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"time"

	"github.com/ringfence/ringfence/cp"
	"github.com/ringfence/ringfence/engine/api"
	"github.com/ringfence/ringfence/engine/wire"
)

// askUser asks about one user. checks are what is wrong with the question already.
func (c *Client) askUser(ctx context.Context, k kind, user string, key wire.Key, msg wire.Message, checks ...error) (any, error) {
	for _, err := range append(checks, api.CheckUser(user)) {
		if err != nil {
			return nil, ofUser(user, err)
		}
	}
	reply, err := c.askAs(ctx, k, key, msg)
	return reply, ofUser(user, err)
}

func ofUser(name string, err error) error { return api.Of("user", name, err) }

// PutUser makes a user, or with o.Replace gives one another password; see
// engine.Engine.PutUser. The password goes to the server as it is: use TLS.
func (c *Client) PutUser(ctx context.Context, name, password string, o api.UserOptions) error {
	m := &wire.PutUser{User: name, Password: []byte(password), Replace: o.Replace}
	for _, g := range o.Grants {
		m.Grants = append(m.Grants, grant(g))
	}
	k := change
	if o.Replace {
		k = repeat
	}
	_, err := c.askUser(ctx, k, name, wire.KeyPutUser, m, api.CheckPassword(password), api.CheckGrants(o.Grants...))
	return err
}

// ChangePassword gives whoever is logged in another password. It takes no grant, but the
// old password.
func (c *Client) ChangePassword(ctx context.Context, old, password string) error {
	if err := api.CheckPassword(password); err != nil || password == "" {
		return ofUser(c.opts.User, cmp.Or(err, fmt.Errorf("%w: it is empty", ErrInvalidPassword)))
	}
	_, err := c.askUser(ctx, change, c.opts.User, wire.KeyChangePassword, &wire.ChangePassword{Old: []byte(old), New: []byte(password)})
	return err
}

// DeleteUser forgets a user with grants, tokens and quota.
func (c *Client) DeleteUser(ctx context.Context, name string) error {
	_, err := c.askUser(ctx, change, name, wire.KeyDeleteUser, &wire.DeleteUser{User: name})
	return err
}

// Users lists the users by name.
func (c *Client) Users(ctx context.Context) ([]api.User, error) {
	return api.Collect(c.AllUsers(ctx))
}

// AllUsers visits the users by name, without holding all of them. It ends after an error.
func (c *Client) AllUsers(ctx context.Context) iter.Seq2[api.User, error] {
	return listed("user", func(u *api.User) string { return u.Name }, func(after string) (list []api.User, more bool, err error) {
		msg, err := c.ask(ctx, wire.KeyListUsers, &wire.ListUsers{After: after})
		if err != nil {
			return nil, false, err
		}
		reply := msg.(*wire.ListUsersReply)
		for _, u := range reply.Users {
			list = append(list, api.User{
				Name: u.User, Password: u.Password, Created: timeOf(u.CreatedMs), Changed: timeOf(u.ChangedMs),
				Grants: int(u.Grants), Tokens: int(u.Tokens), Quota: api.Quota{Records: u.Quota.Records, Bytes: u.Quota.Bytes},
				WrongPasswords: int(u.WrongPasswords), LockedAt: int(u.LockedAt), LockedUntil: timeOf(u.LockedUntilMs), LockedFrom: u.LockedFrom,
			})
		}
		return list, reply.More, nil
	})
}

func grant(g api.Grant) *wire.Grant {
	return &wire.Grant{Kind: byte(g.Kind), Operation: byte(g.Op), Pattern: g.Pattern}
}

// Grant allows a user something more.
func (c *Client) Grant(ctx context.Context, user string, g api.Grant) error {
	_, err := c.askUser(ctx, repeat, user, wire.KeyGrant, &wire.UserGrant{User: user, Grant: grant(g)}, api.CheckGrants(g))
	return err
}

// Revoke takes a grant back.
func (c *Client) Revoke(ctx context.Context, user string, g api.Grant) error {
	_, err := c.askUser(ctx, change, user, wire.KeyRevoke, &wire.UserGrant{User: user, Grant: grant(g)})
	return err
}

// Grants lists what a user was granted.
func (c *Client) Grants(ctx context.Context, user string) ([]api.Grant, error) {
	msg, err := c.askUser(ctx, look, user, wire.KeyListGrants, &wire.ListGrants{User: user})
	if err != nil {
		return nil, err
	}
	var list []api.Grant
	for _, g := range msg.(*wire.ListGrantsReply).Grants {
		list = append(list, api.Grant{Kind: cp.Kind(g.Kind), Op: cp.Operation(g.Operation), Pattern: g.Pattern})
	}
	return list, nil
}

// CreateToken makes a token of a user; nothing tells its secret again.
func (c *Client) CreateToken(ctx context.Context, user string, o api.TokenOptions) (t api.Token, secret string, err error) {
	m := &wire.CreateToken{User: user, Name: o.Name, ExpiresMs: millisOf(o.Expires)}
	msg, err := c.askUser(ctx, change, user, wire.KeyCreateToken, m)
	if err != nil {
		return t, "", err
	}
	reply := msg.(*wire.CreateTokenReply)
	return token(reply.Token), reply.Secret, nil
}

func token(t *wire.TokenInfo) api.Token {
	return api.Token{ID: t.Id, User: t.User, Name: t.Name, Created: timeOf(t.CreatedMs), Expires: timeOf(t.ExpiresMs)}
}

func millisOf(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}

// DeleteToken forgets a token.
func (c *Client) DeleteToken(ctx context.Context, id string) error {
	_, err := c.ask(ctx, wire.KeyDeleteToken, &wire.DeleteToken{Id: id})
	if err != nil {
		return api.Of("token", id, err)
	}
	return nil
}

// Tokens lists a user's tokens, also those that have expired.
func (c *Client) Tokens(ctx context.Context, user string) ([]api.Token, error) {
	msg, err := c.askUser(ctx, look, user, wire.KeyListTokens, &wire.ListTokens{User: user})
	if err != nil {
		return nil, err
	}
	var list []api.Token
	for _, t := range msg.(*wire.ListTokensReply).Tokens {
		list = append(list, token(t))
	}
	return list, nil
}

// SetQuota bounds what a user may produce.
func (c *Client) SetQuota(ctx context.Context, user string, q api.Quota) error {
	m := &wire.SetQuota{User: user, Quota: &wire.Quota{Records: q.Records, Bytes: q.Bytes}}
	_, err := c.askUser(ctx, repeat, user, wire.KeySetQuota, m)
	return err
}
