package api

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ringfence/ringfence/cp"
)

// Access is who may do what: users with their passwords, grants, tokens and quotas. The
// methods are described at engine.Engine.
type Access interface {
	PutUser(ctx context.Context, name, password string, o UserOptions) error
	DeleteUser(ctx context.Context, name string) error
	Users(ctx context.Context) ([]User, error)
	Grant(ctx context.Context, user string, g Grant) error
	Revoke(ctx context.Context, user string, g Grant) error
	Grants(ctx context.Context, user string) ([]Grant, error)
	CreateToken(ctx context.Context, user string, o TokenOptions) (t Token, secret string, err error)
	DeleteToken(ctx context.Context, id string) error
	Tokens(ctx context.Context, user string) ([]Token, error)
	SetQuota(ctx context.Context, user string, q Quota) error
}

// UserOptions say what PutUser does.
type UserOptions struct {
	Replace bool    // give a user that exists another password; otherwise make a new one
	Grants  []Grant // added in the same step
}

// Limits of a password, in bytes.
const (
	MinPassword = 12
	MaxPassword = 1024
)

// CheckUser refuses what cannot be a user's name.
func CheckUser(name string) error {
	if validName(name) && strings.TrimSpace(name) == name {
		return nil
	}
	return fmt.Errorf("%w: %s, and no space at its ends", ErrInvalidUser, whatNamesHave)
}

// CheckTokenName refuses what cannot be the name of a token; "" is none.
func CheckTokenName(name string) error {
	if name == "" || validName(name) {
		return nil
	}
	return fmt.Errorf("%w: %s", ErrInvalidToken, whatNamesHave)
}

// CheckPassword refuses what cannot be a user's password; "" is none.
func CheckPassword(password string) error {
	if n := len(password); n != 0 && (n < MinPassword || n > MaxPassword) {
		return fmt.Errorf("%w: it has %d bytes, want %d to %d", ErrInvalidPassword, n, MinPassword, MaxPassword)
	}
	return nil
}

// CheckGrants refuses what cannot be granted.
func CheckGrants(grants ...Grant) error {
	for _, g := range grants {
		if err := checkGrant(g); err != nil {
			return err
		}
	}
	return nil
}

func checkGrant(g Grant) error {
	if g.Valid() && printable(g.Pattern) {
		name := g.Pattern
		if prefix, open := strings.CutSuffix(name, "*"); open {
			name = prefix + "a" // one of those that it names
		}
		if g.Kind == cp.OnTopic && !cp.ValidTopicName(name) {
			return fmt.Errorf("%w: no topic can have a name like %q: %s", ErrInvalidGrant, Abridged(g.Pattern),
				"it has letters, digits, '.', '_' and '-', and a pattern may have a '*' at its end")
		}
		return nil
	}
	ops := g.Kind.Operations()
	switch {
	case ops == nil:
		return fmt.Errorf("%w: of kind %v: want topic, group or cluster", ErrInvalidGrant, g.Kind)
	case !slices.Contains(ops, g.Op):
		return fmt.Errorf("%w: %v on a %v: want one of %v", ErrInvalidGrant, g.Op, g.Kind, ops)
	case g.Kind == cp.OnCluster:
		return fmt.Errorf("%w: a pattern of %d bytes on the cluster: want *", ErrInvalidGrant, len(g.Pattern))
	}
	return fmt.Errorf("%w: a pattern of %d bytes: want 1 to %d of UTF-8 without control characters", ErrInvalidGrant, len(g.Pattern), cp.MaxName)
}

// User sums a user up.
type User struct {
	Name     string
	Password bool // there is one to log in with; otherwise it takes a token or a certificate
	Created  time.Time
	Changed  time.Time // when the password was set last
	Grants   int
	Tokens   int
	Quota    Quota

	// Of logins, told by a server, and by an engine that has one: what it remembers since
	// it started.
	WrongPasswords int       // given for this user since the last that was right, at any address
	LockedAt       int       // addresses at which the user is locked out now for those
	LockedUntil    time.Time // where that lasts longest; zero where there is none
	LockedFrom     string    // which address that is
}

// Grant allows a user an operation on the topics or groups that a pattern names, or on
// what belongs to none. See [cp.Grant].
type Grant = cp.Grant

// Quota bounds what a user may produce, in records and bytes of batches per second; 0 is
// no bound. What was not used in a second is not kept for a later one. Producers over it
// are held up, and their records stored later; a batch may be larger than a second's.
type Quota = cp.Quota

// TokenOptions are of a new token.
type TokenOptions struct {
	Name    string    // for its owner to know it by; at most 255 bytes
	Expires time.Time // the zero time: never
}

// Token is what is told of a token; its secret is told once, when it is made.
type Token struct {
	ID      string // 32 hex digits
	User    string
	Name    string
	Created time.Time
	Expires time.Time // zero: never
}
