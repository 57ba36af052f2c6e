package api

import (
	"context"
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

// User sums a user up.
type User struct {
	Name     string
	Password bool // there is one to log in with; otherwise it takes a token or a certificate
	Created  time.Time
	Changed  time.Time // when the password was set last
	Grants   int
	Tokens   int
	Quota    Quota
}

// Grant allows a user an operation on the topics or groups that a pattern names, or on
// what belongs to none. See [cp.Grant].
type Grant = cp.Grant

// Quota bounds what a user may produce, in records and bytes of batches per second; 0 is
// no bound. What was not used in a second is not kept for a later one.
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
