package cp

import (
	"bytes"
	"cmp"
	"fmt"
	"iter"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/zeebo/xxh3"
)

// Limits of what a vnode knows of users.
const (
	MaxUsers  = 1 << 16 // users
	MaxGrants = 1024    // grants of one user
	MaxTokens = 1024    // tokens of one user
	MaxHash   = 512     // bytes of the hash of a password
)

// User is somebody who may log in, with everything that is known of him. Records are
// never modified: a change replaces them.
type User struct {
	Name    string
	Hash    []byte // of the password, as its owner writes hashes; empty: no password is right
	Created int64
	Changed int64   // when the password was set last
	Grants  []Grant // ordered by [Grant.Compare], each once
	Tokens  []Token // ordered by identity
	Quota   Quota
}

// Kind is what a grant is about.
type Kind uint8

// The kinds.
const (
	OnTopic   Kind = 1
	OnGroup   Kind = 2
	OnCluster Kind = 3 // what belongs to no topic and no group
)

// Operation is what a grant allows.
type Operation uint8

// The operations. Not every kind has all of them, see [Grant.Valid].
const (
	Anything Operation = 1 // on the cluster it makes an administrator, who may do everything
	Create   Operation = 2
	Delete   Operation = 3
	Describe Operation = 4 // every other operation on a topic or group includes it
	Alter    Operation = 5 // a topic's ranges and policy; on the cluster: policies
	Produce  Operation = 6
	Consume  Operation = 7 // a topic's records; of a group: take part in it and commit its position
	Users    Operation = 8 // on the cluster: users, grants, tokens and quotas
)

var kindNames = map[Kind]string{OnTopic: "topic", OnGroup: "group", OnCluster: "cluster"}

var operationNames = map[Operation]string{
	Anything: "all", Create: "create", Delete: "delete", Describe: "describe", Alter: "alter",
	Produce: "produce", Consume: "consume", Users: "users",
}

// operationsOf lists what may be granted on each kind.
var operationsOf = map[Kind][]Operation{
	OnTopic:   {Anything, Create, Delete, Describe, Alter, Produce, Consume},
	OnGroup:   {Anything, Delete, Describe, Consume},
	OnCluster: {Anything, Describe, Alter, Users},
}

func (k Kind) String() string      { return nameOf(kindNames, k) }
func (o Operation) String() string { return nameOf(operationNames, o) }

// Operations lists what may be granted on a kind, nothing for one that there is not.
func (k Kind) Operations() []Operation { return slices.Clone(operationsOf[k]) }

func nameOf[N ~uint8](names map[N]string, n N) string {
	if s, ok := names[n]; ok {
		return s
	}
	return fmt.Sprint(uint8(n))
}

// KindOf is the kind of that name.
func KindOf(name string) (Kind, bool) { return named(kindNames, name) }

// OperationOf is the operation of that name.
func OperationOf(name string) (Operation, bool) { return named(operationNames, name) }

func named[N ~uint8](names map[N]string, name string) (N, bool) {
	for n, s := range names {
		if s == name {
			return n, true
		}
	}
	return 0, false
}

// Grant allows a user an operation on what a pattern names: a literal name, or, with a
// "*" at its end, all names that start with what is before it. On the cluster the
// pattern is "*". There are no denials: what nobody granted is not allowed.
type Grant struct {
	Kind    Kind
	Op      Operation
	Pattern string
}

// Administrator is the grant that allows everything.
var Administrator = Grant{OnCluster, Anything, "*"}

// Compare orders grants.
func (g Grant) Compare(o Grant) int {
	return cmp.Or(cmp.Compare(g.Kind, o.Kind), cmp.Compare(g.Op, o.Op), strings.Compare(g.Pattern, o.Pattern))
}

// Valid says whether there is such a grant: its operation belongs to its kind, and its
// pattern has 1 to 255 bytes of UTF-8 without control characters.
func (g Grant) Valid() bool {
	return slices.Contains(operationsOf[g.Kind], g.Op) && ValidName(g.Pattern) && (g.Kind != OnCluster || g.Pattern == "*")
}

func (g Grant) String() string {
	if g.Kind == OnCluster {
		return fmt.Sprintf("%s on the cluster", g.Op)
	}
	return fmt.Sprintf("%s on %s %q", g.Op, g.Kind, g.Pattern)
}

func (g Grant) covers(kind Kind, op Operation, name string) bool {
	if g.Kind != kind || g.Op != op && g.Op != Anything && (op != Describe || kind == OnCluster) {
		return false
	}
	prefix, open := strings.CutSuffix(g.Pattern, "*")
	return open && strings.HasPrefix(name, prefix) || g.Pattern == name
}

// Allows says whether one of the user's grants covers an operation on something of that
// name, which does not matter on the cluster.
func (u *User) Allows(kind Kind, op Operation, name string) bool {
	for i := range u.Grants {
		if g := &u.Grants[i]; *g == Administrator || g.covers(kind, op, name) {
			return true
		}
	}
	return false
}

// TokenID names a token; 128 random bits.
type TokenID [16]byte

// Token lets whoever has its secret log in as its user.
type Token struct {
	ID      TokenID
	Sum     [32]byte // SHA-256 of the secret, which is nowhere
	Name    string   // what its owner calls it; may be empty
	Created int64
	Expires int64 // the first moment it is not good any more; 0: never comes
}

// Live says whether a token is good at a time, in milliseconds since the epoch.
func (t *Token) Live(at int64) bool { return t.Expires == 0 || at < t.Expires }

// Quota bounds what a user may produce on each node, per second; 0 is no bound.
type Quota struct {
	Records uint64
	Bytes   uint64
}

func printable(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool { return r < 0x20 || r == 0x7f })
}

// User is the user of that name, nil if there is none.
func (a *Access) User(name string) *User {
	u, _ := a.users.get(xxh3.HashString(name), name)
	return u
}

// Token finds a token with its user, nil if there is none.
func (a *Access) Token(id TokenID) (*User, *Token) {
	name, ok := a.tokens.get(xxh3.Hash(id[:]), id)
	if !ok {
		return nil, nil
	}
	u := a.User(name)
	i, _ := u.token(id)
	return u, &u.Tokens[i]
}

// Users visits the users ordered by name.
func (a *Access) Users() iter.Seq[*User] {
	return func(yield func(*User) bool) {
		list := make([]*User, 0, a.users.len)
		for _, u := range a.users.all {
			list = append(list, u)
		}
		slices.SortFunc(list, func(x, y *User) int { return strings.Compare(x.Name, y.Name) })
		for _, u := range list {
			if !yield(u) {
				return
			}
		}
	}
}

// Len is the number of users.
func (a *Access) Len() int { return a.users.len }

// Access is what a vnode knows of users. The zero value has none.
type Access struct {
	users  table[string, *User]
	tokens table[TokenID, string] // the user of each
}

// Access is what the state knows of users now; it never changes and costs a few
// kilobytes whatever there is. For locking it counts as a query of s.
func (s *State) Access() *Access {
	s.own.Store(new(owner))
	return s.access.clone()
}

func (a *Access) clone() *Access {
	return &Access{users: a.users.clone(), tokens: a.tokens.clone()}
}

// token is the place of a token.
func (u *User) token(id TokenID) (int, bool) {
	return slices.BinarySearchFunc(u.Tokens, id, func(t Token, id TokenID) int { return bytes.Compare(t.ID[:], id[:]) })
}

// check verifies what must hold of a user wherever he comes from.
func (u *User) check() error {
	broken := func(format string, a ...any) error {
		return fmt.Errorf("cp: user %q %s", u.Name, fmt.Sprintf(format, a...))
	}
	switch {
	case !ValidName(u.Name):
		return broken("cannot be called that")
	case len(u.Hash) > MaxHash:
		return broken("has a hash of %d bytes", len(u.Hash))
	case len(u.Grants) > MaxGrants || len(u.Tokens) > MaxTokens:
		return broken("has %d grants and %d tokens", len(u.Grants), len(u.Tokens))
	}
	for i, g := range u.Grants {
		if !g.Valid() || i > 0 && g.Compare(u.Grants[i-1]) <= 0 {
			return broken("has grant %v as its %d.", g, i)
		}
	}
	for i := range u.Tokens {
		t := &u.Tokens[i]
		if !t.valid() || i > 0 && bytes.Compare(t.ID[:], u.Tokens[i-1].ID[:]) <= 0 {
			return broken("has token %x as its %d.", t.ID, i)
		}
	}
	return nil
}

func (t *Token) valid() bool {
	return t.ID != TokenID{} && len(t.Name) <= MaxName && printable(t.Name) && t.Expires >= 0
}

// check verifies the users and that each token leads to its own.
func (a *Access) check() error {
	users, tokens := 0, 0
	for name, u := range a.users.all {
		users++
		tokens += len(u.Tokens)
		if name != u.Name || a.User(name) != u {
			return fmt.Errorf("cp: user %q is stored under %q", u.Name, name)
		}
		if err := u.check(); err != nil {
			return err
		}
		for i := range u.Tokens {
			if owner, t := a.Token(u.Tokens[i].ID); owner != u || t != &u.Tokens[i] {
				return fmt.Errorf("cp: user %q has a token that does not lead to him", name)
			}
		}
	}
	if users != a.users.len || users > MaxUsers || tokens != a.tokens.len {
		return fmt.Errorf("cp: %d users with %d tokens, counted as %d with %d", users, tokens, a.users.len, a.tokens.len)
	}
	return nil
}
