package cp_test

import (
	"bytes"
	"fmt"
	"reflect"
	"slices"

	"github.com/ringfence/ringfence/cp"
)

func (m *model) user(name string) *cp.User {
	return find(m.users, func(u *cp.User) bool { return u.Name == name })
}

func (m *model) token(id cp.TokenID) (*cp.User, *cp.Token) {
	for _, u := range m.users {
		if t := find(pointers(u.Tokens), func(t *cp.Token) bool { return t.ID == id }); t != nil {
			return u, t
		}
	}
	return nil, nil
}

func pointers[T any](list []T) (all []*T) {
	for i := range list {
		all = append(all, &list[i])
	}
	return all
}

func (m *model) applyUser(cmd cp.Command) error {
	switch c := cmd.(type) {
	case cp.PutUser:
		u := m.user(c.Name)
		bad := slices.ContainsFunc(c.Grants, func(g cp.Grant) bool { return !g.Valid() })
		if err := first(rule{c.Name == "", cp.ErrInvalidUser}, rule{len(c.Hash) > 512, cp.ErrInvalidHash}, rule{bad, cp.ErrInvalidGrant},
			rule{u != nil && !c.Replace, cp.ErrUserExists}, rule{u == nil && c.Replace, cp.ErrNoSuchUser}); err != nil {
			return err
		}
		if u == nil {
			u = &cp.User{Name: c.Name, Created: c.At}
			m.users = append(m.users, u)
		}
		u.Hash, u.Changed = c.Hash, c.At
		for _, g := range c.Grants {
			if !slices.Contains(u.Grants, g) {
				u.Grants = append(u.Grants, g)
			}
		}
	case cp.DeleteUser:
		m.users = slices.DeleteFunc(m.users, func(u *cp.User) bool { return u.Name == c.Name })
	case cp.SetGrant:
		u := m.user(c.User)
		if err := first(rule{!c.Grant.Valid(), cp.ErrInvalidGrant}, rule{u == nil, cp.ErrNoSuchUser}); err != nil {
			return err
		}
		u.Grants = slices.DeleteFunc(u.Grants, func(g cp.Grant) bool { return g == c.Grant })
		if !c.Revoke {
			u.Grants = append(u.Grants, c.Grant)
		}
	case cp.PutToken:
		u, t := m.token(c.Token.ID)
		if err := first(rule{c.Token.ID == cp.TokenID{} || c.Token.Expires < 0, cp.ErrInvalidToken}, rule{m.user(c.User) == nil, cp.ErrNoSuchUser},
			rule{t != nil && (u.Name != c.User || *t != c.Token), cp.ErrTokenExists}); err != nil || t != nil {
			return err
		}
		u = m.user(c.User)
		u.Tokens = append(u.Tokens, c.Token)
	case cp.DeleteToken:
		if u, t := m.token(c.ID); t != nil {
			u.Tokens = slices.DeleteFunc(u.Tokens, func(t cp.Token) bool { return t.ID == c.ID })
		}
	case cp.SetQuota:
		u := m.user(c.User)
		if u == nil {
			return cp.ErrNoSuchUser
		}
		u.Quota = c.Quota
	}
	return nil
}

// userCommand draws a command about users.
func (g commands) userCommand() cp.Command {
	name := pick(g.dice, "alice", "alice", "bob", "carol", "")
	grant := pick(g.dice, cp.Administrator, cp.Grant{Kind: cp.OnTopic, Op: cp.Consume, Pattern: "logs"}, cp.Grant{Kind: cp.OnGroup, Op: cp.Anything, Pattern: "g*"},
		cp.Grant{Kind: cp.OnTopic, Op: cp.Users, Pattern: "logs"}, cp.Grant{Kind: cp.OnCluster, Op: cp.Alter, Pattern: "p"})
	switch g.dice(7) {
	case 0, 1:
		c := cp.PutUser{Name: name, Hash: make([]byte, 1+g.dice(300)), Replace: g.chance(3), At: int64(g.dice(1000))}
		for range g.dice(3) {
			c.Grants = append(c.Grants, grant)
		}
		if g.chance(10) {
			c.Hash = make([]byte, cp.MaxHash+1)
		}
		return c
	case 2:
		if g.chance(3) {
			return cp.DeleteUser{Name: name}
		}
		return cp.SetQuota{User: name, Quota: cp.Quota{Records: uint64(g.dice(100))}}
	case 3, 4:
		return cp.SetGrant{User: name, Grant: grant, Revoke: g.chance(3)}
	case 5:
		return cp.PutToken{User: name, Token: cp.Token{ID: cp.TokenID{byte(g.dice(5))}, Created: int64(g.dice(2)), Expires: int64(g.dice(20)) - 1}}
	}
	return cp.DeleteToken{ID: cp.TokenID{byte(g.dice(5))}}
}

func compareUsers(s *cp.State, m *model) error {
	a := s.Access()
	if a.Len() != len(m.users) {
		return fmt.Errorf("%d users, want %d", a.Len(), len(m.users))
	}
	for _, want := range m.users {
		slices.SortFunc(want.Grants, cp.Grant.Compare)
		slices.SortFunc(want.Tokens, func(a, b cp.Token) int { return bytes.Compare(a.ID[:], b.ID[:]) })
		u := a.User(want.Name)
		if u == nil {
			return fmt.Errorf("there is no user %q", want.Name)
		}
		got := *u
		if !bytes.Equal(got.Hash, want.Hash) || !slices.Equal(got.Grants, want.Grants) || !slices.Equal(got.Tokens, want.Tokens) {
			return fmt.Errorf("user is %+v, want %+v", got, *want)
		}
		got.Hash, got.Grants, got.Tokens = want.Hash, want.Grants, want.Tokens
		if !reflect.DeepEqual(&got, want) {
			return fmt.Errorf("user is %+v, want %+v", got, *want)
		}
		for _, t := range want.Tokens {
			if owner, found := a.Token(t.ID); owner != u || *found != t {
				return fmt.Errorf("token %x leads to %v", t.ID, found)
			}
		}
	}
	return nil
}
