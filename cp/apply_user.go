package cp

import (
	"slices"

	"github.com/zeebo/xxh3"
)

// PutUser makes a user, or with Replace gives one another password; his grants are
// added to those he has. Users with all that is theirs live on one vnode, [Ring.Home].
// Refusals, in order: ErrInvalidUser, ErrInvalidHash, ErrInvalidGrant, ErrUserExists,
// ErrNoSuchUser, ErrLimit.
type PutUser struct {
	Name    string
	Hash    []byte  // of the password; empty: no password is right
	Grants  []Grant // what comes with it, so that nobody is there without them
	Replace bool
	At      int64
}

// DeleteUser forgets a user with grants, tokens and quota; absent is fine.
type DeleteUser struct {
	Name string
}

// SetGrant gives a user a grant, or with Revoke takes it back; either may have been done
// before. Refusals, in order: ErrInvalidGrant, ErrNoSuchUser, ErrLimit.
type SetGrant struct {
	User   string
	Grant  Grant
	Revoke bool
}

// PutToken gives a user a token. The same again changes nothing. Refusals, in order:
// ErrInvalidToken, ErrNoSuchUser, ErrTokenExists, ErrLimit.
type PutToken struct {
	User  string
	Token Token
}

// DeleteToken forgets a token; absent is fine.
type DeleteToken struct {
	ID TokenID
}

// SetQuota replaces a user's quota. Refusal: ErrNoSuchUser.
type SetQuota struct {
	User  string
	Quota Quota
}

// ChangesAccess says whether a command can change what [State.Access] answers.
func ChangesAccess(cmd Command) bool {
	switch cmd.(type) {
	case PutUser, DeleteUser, SetGrant, PutToken, DeleteToken, SetQuota:
		return true
	}
	return false
}

func (c PutUser) apply(s *State) Reply {
	switch {
	case !ValidName(c.Name):
		return refuse(ErrInvalidUser)
	case len(c.Hash) > MaxHash:
		return refuse(ErrInvalidHash)
	case slices.ContainsFunc(c.Grants, func(g Grant) bool { return !g.Valid() }):
		return refuse(ErrInvalidGrant)
	}
	old := s.access.User(c.Name)
	switch {
	case old != nil && !c.Replace:
		return refuse(ErrUserExists)
	case old == nil && c.Replace:
		return refuse(ErrNoSuchUser)
	case old == nil && s.access.Len() >= MaxUsers:
		return refuse(ErrLimit)
	}
	u := User{Name: c.Name, Created: c.At}
	if old != nil {
		u = *old
	}
	u.Hash, u.Changed = slices.Clone(c.Hash), c.At
	u.Grants = slices.Concat(u.Grants, c.Grants)
	slices.SortFunc(u.Grants, Grant.Compare)
	if u.Grants = slices.Compact(u.Grants); len(u.Grants) > MaxGrants {
		return refuse(ErrLimit)
	}
	s.putUser(&u)
	return Reply{}
}

func (c DeleteUser) apply(s *State) Reply {
	u := s.access.User(c.Name)
	if u == nil {
		return Reply{}
	}
	own := s.own.Load()
	for i := range u.Tokens {
		id := u.Tokens[i].ID
		s.access.tokens.delete(own, xxh3.Hash(id[:]), id)
	}
	s.access.users.delete(own, xxh3.HashString(c.Name), c.Name)
	return Reply{}
}

func (c SetGrant) apply(s *State) Reply {
	if !c.Grant.Valid() {
		return refuse(ErrInvalidGrant)
	}
	old := s.access.User(c.User)
	if old == nil {
		return refuse(ErrNoSuchUser)
	}
	i, has := slices.BinarySearchFunc(old.Grants, c.Grant, Grant.Compare)
	u := *old
	switch {
	case has != c.Revoke: // it is as wanted
		return Reply{}
	case c.Revoke:
		u.Grants = slices.Delete(slices.Clone(old.Grants), i, i+1)
	case len(old.Grants) >= MaxGrants:
		return refuse(ErrLimit)
	default:
		u.Grants = slices.Insert(slices.Clone(old.Grants), i, c.Grant)
	}
	s.putUser(&u)
	return Reply{}
}

func (c PutToken) apply(s *State) Reply {
	if !c.Token.valid() {
		return refuse(ErrInvalidToken)
	}
	old := s.access.User(c.User)
	if old == nil {
		return refuse(ErrNoSuchUser)
	}
	if owner, t := s.access.Token(c.Token.ID); t != nil {
		if owner == old && *t == c.Token {
			return Reply{}
		}
		return refuse(ErrTokenExists)
	}
	if len(old.Tokens) >= MaxTokens {
		return refuse(ErrLimit)
	}
	u := *old
	i, _ := old.token(c.Token.ID)
	u.Tokens = slices.Insert(slices.Clone(old.Tokens), i, c.Token)
	s.putUser(&u)
	return Reply{}
}

func (c DeleteToken) apply(s *State) Reply {
	old, t := s.access.Token(c.ID)
	if t == nil {
		return Reply{}
	}
	u := *old
	i, _ := old.token(c.ID)
	u.Tokens = slices.Delete(slices.Clone(old.Tokens), i, i+1)
	s.access.tokens.delete(s.own.Load(), xxh3.Hash(c.ID[:]), c.ID)
	s.putUser(&u)
	return Reply{}
}

func (c SetQuota) apply(s *State) Reply {
	old := s.access.User(c.User)
	if old == nil {
		return refuse(ErrNoSuchUser)
	}
	u := *old
	u.Quota = c.Quota
	s.putUser(&u)
	return Reply{}
}

// putUser stores a user under his name and those of his tokens.
func (s *State) putUser(u *User) {
	own := s.own.Load()
	s.access.users.set(own, xxh3.HashString(u.Name), u.Name, u)
	for i := range u.Tokens {
		id := u.Tokens[i].ID
		s.access.tokens.set(own, xxh3.Hash(id[:]), id, u.Name)
	}
}
