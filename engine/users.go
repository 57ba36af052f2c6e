package engine

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/ringfence/ringfence/cp"
	"github.com/ringfence/ringfence/engine/api"
)

// PutUser makes a user who may do nothing but what o.Grants allows, or with o.Replace
// gives one another password. Connections that are logged in stay. With password "" the
// user has none, and logs in with a token or a certificate. The first user has to be an
// administrator who can log in, and the last such one keeps what he logs in with: a
// password, a token that does not expire, or with an Authenticator that takes them a
// certificate. Errors: ErrInvalidUser, ErrInvalidPassword, ErrInvalidGrant,
// ErrUserExists, ErrNoSuchUser, ErrLastAdministrator.
func (e *Engine) PutUser(ctx context.Context, name, password string, o UserOptions) error {
	return e.putUser(ctx, name, password, o, nil)
}

// putUser is PutUser if check, unless that is nil, allows it: no user is deleted between the
// two.
func (e *Engine) putUser(ctx context.Context, name, password string, o UserOptions, check func() error) error {
	for _, err := range []error{api.CheckUser(name), api.CheckPassword(password), api.CheckGrants(o.Grants...)} {
		if err != nil {
			return ofUser(name, err)
		}
	}
	cmd := cp.PutUser{Name: name, Grants: o.Grants, Replace: o.Replace, At: e.millis()}
	if password != "" {
		hash, err := e.hasher.hash(ctx, []byte(password))
		if err != nil {
			return ofUser(name, err)
		}
		cmd.Hash = hash
	}
	return ofUser(name, e.changeAccessIf(ctx, cmd, check))
}

// DeleteUser forgets a user with grants, tokens and quota. What his connections ask for
// next is refused. Where nobody has to log in while there are no users, see
// [AuthOptions], that holds again after the last one. The last administrator stays while
// there are other users. Errors: ErrNoSuchUser, ErrLastAdministrator.
func (e *Engine) DeleteUser(ctx context.Context, name string) error {
	if _, err := e.user(ctx, name); err != nil {
		return err
	}
	return ofUser(name, e.changeAccess(ctx, cp.DeleteUser{Name: name}))
}

// Users lists the users by name.
func (e *Engine) Users(ctx context.Context) ([]User, error) {
	a, err := e.accessFor(ctx)
	if err != nil {
		return nil, err
	}
	list := make([]User, 0, a.Len())
	for u := range a.Users() {
		list = append(list, User{
			Name: u.Name, Password: len(u.Hash) > 0, Created: time.UnixMilli(u.Created), Changed: time.UnixMilli(u.Changed),
			Grants: len(u.Grants), Tokens: len(u.Tokens), Quota: u.Quota,
		})
	}
	for _, guard := range e.access.guardians() {
		guard.lockedOut(list)
	}
	return list, nil
}

// AllUsers visits the users by name. It ends after an error.
func (e *Engine) AllUsers(ctx context.Context) iter.Seq2[User, error] {
	return api.Listed(e.Users(ctx))
}

// Grant allows a user something more; what he has already stays. [cp.Administrator]
// allows everything. Whoever may change users can get there by himself. Errors:
// ErrInvalidGrant, ErrNoSuchUser.
func (e *Engine) Grant(ctx context.Context, user string, g Grant) error {
	if err := api.CheckGrants(g); err != nil {
		return ofUser(user, err)
	}
	if _, err := e.user(ctx, user); err != nil {
		return err
	}
	return ofUser(user, e.changeAccess(ctx, cp.SetGrant{User: user, Grant: g}))
}

// Revoke takes a grant back, for connections that are open as well. What other grants of
// the user cover he still may. Errors: ErrInvalidGrant, ErrNoSuchUser, ErrNoSuchGrant,
// ErrLastAdministrator.
func (e *Engine) Revoke(ctx context.Context, user string, g Grant) error {
	u, err := e.user(ctx, user)
	if err != nil {
		return err
	}
	if !slices.Contains(u.Grants, g) {
		if err := api.CheckGrants(g); err != nil { // one of an older rule is there, and goes
			return ofUser(user, err)
		}
		return ofUser(user, fmt.Errorf("%w: %v", ErrNoSuchGrant, g))
	}
	return ofUser(user, e.changeAccess(ctx, cp.SetGrant{User: user, Grant: g, Revoke: true}))
}

// Grants lists what a user was granted. Error: ErrNoSuchUser.
func (e *Engine) Grants(ctx context.Context, user string) ([]Grant, error) {
	u, err := e.user(ctx, user)
	if err != nil {
		return nil, err
	}
	return slices.Clone(u.Grants), nil
}

// tokenPrefix starts the secret of every token, so that one that leaked is recognised.
const tokenPrefix = "rft_"

const tokenSecretLen = 32

// CreateToken makes a token of a user. Whoever has the secret, which nothing tells again,
// is that user until the token is deleted or expires. Errors: ErrNoSuchUser.
func (e *Engine) CreateToken(ctx context.Context, user string, o TokenOptions) (t Token, secret string, err error) {
	if _, err := e.user(ctx, user); err != nil {
		return t, "", err
	}
	if err := api.CheckTokenName(o.Name); err != nil {
		return t, "", ofUser(user, err)
	}
	b := make([]byte, len(cp.TokenID{})+tokenSecretLen)
	rand.Read(b) // never fails
	token := cp.Token{Sum: sha256.Sum256(b[len(cp.TokenID{}):]), Name: o.Name, Created: e.millis()}
	copy(token.ID[:], b)
	if !o.Expires.IsZero() {
		if token.Expires = o.Expires.UnixMilli(); token.Expires <= token.Created {
			return t, "", ofUser(user, fmt.Errorf("%w: it would expire at %v, which is over", cp.ErrInvalidToken, o.Expires))
		}
	}
	if err := e.changeAccess(ctx, cp.PutToken{User: user, Token: token}); err != nil {
		return t, "", ofUser(user, err)
	}
	return tokenOf(user, &token), tokenPrefix + base64.RawURLEncoding.EncodeToString(b), nil
}

// parseToken is the identity and the sum of a token's secret, false for what is none.
func parseToken(secret string) (id cp.TokenID, sum [32]byte, ok bool) {
	rest, ok := strings.CutPrefix(secret, tokenPrefix)
	if !ok || len(rest) != base64.RawURLEncoding.EncodedLen(len(id)+tokenSecretLen) {
		return id, sum, false
	}
	b, err := base64.RawURLEncoding.DecodeString(rest)
	if err != nil {
		return id, sum, false
	}
	copy(id[:], b)
	return id, sha256.Sum256(b[len(id):]), true
}

func tokenOf(user string, t *cp.Token) Token {
	out := Token{ID: hex.EncodeToString(t.ID[:]), User: user, Name: t.Name, Created: time.UnixMilli(t.Created)}
	if t.Expires != 0 {
		out.Expires = time.UnixMilli(t.Expires)
	}
	return out
}

// DeleteToken forgets a token; what was logged in with it may do nothing more. Errors:
// ErrNoSuchToken, ErrLastAdministrator.
func (e *Engine) DeleteToken(ctx context.Context, id string) error {
	var want cp.TokenID
	if n, err := hex.Decode(want[:], []byte(id[:min(len(id), 2*len(want))])); err != nil || n != len(want) || len(id) != 2*n {
		return api.Of("token", id, fmt.Errorf("%w: an identity has %d hex digits", ErrNoSuchToken, 2*len(want)))
	}
	a, err := e.accessFor(ctx)
	if err != nil {
		return err
	}
	if _, t := a.Token(want); t == nil {
		return api.Of("token", id, ErrNoSuchToken)
	}
	return e.changeAccess(ctx, cp.DeleteToken{ID: want})
}

// Tokens lists a user's tokens, also those that have expired. Error: ErrNoSuchUser.
func (e *Engine) Tokens(ctx context.Context, user string) ([]Token, error) {
	u, err := e.user(ctx, user)
	if err != nil {
		return nil, err
	}
	list := make([]Token, 0, len(u.Tokens))
	for i := range u.Tokens {
		list = append(list, tokenOf(user, &u.Tokens[i]))
	}
	return list, nil
}

// SetQuota bounds what a user may produce through a server of this engine. Error:
// ErrNoSuchUser.
func (e *Engine) SetQuota(ctx context.Context, user string, q Quota) error {
	if _, err := e.user(ctx, user); err != nil {
		return err
	}
	return ofUser(user, e.changeAccess(ctx, cp.SetQuota{User: user, Quota: q}))
}

// accessFor is accessNow for a call of a program.
func (e *Engine) accessFor(ctx context.Context) (*cp.Access, error) {
	if err := e.enter(ctx); err != nil {
		return nil, err
	}
	defer e.end()
	return e.accessNow()
}

func (e *Engine) user(ctx context.Context, name string) (*cp.User, error) {
	a, err := e.accessFor(ctx)
	if err != nil {
		return nil, err
	}
	if u := a.User(name); u != nil {
		return u, nil
	}
	if err := api.CheckUser(name); err != nil { // one of an older rule is found above
		return nil, ofUser(name, err)
	}
	return nil, ofUser(name, ErrNoSuchUser)
}

// changeAccess proposes a command about users, which the frontend knows nothing of.
func (e *Engine) changeAccess(ctx context.Context, cmd cp.Command) error {
	return e.changeAccessIf(ctx, cmd, nil)
}

// changeAccessIf is changeAccess if check, unless that is nil, allows it.
func (e *Engine) changeAccessIf(ctx context.Context, cmd cp.Command, check func() error) error {
	if err := e.enter(ctx); err != nil {
		return err
	}
	defer e.end()
	if alone(cmd) {
		e.access.change.Lock()
		defer e.access.change.Unlock()
	} else {
		e.access.change.RLock()
		defer e.access.change.RUnlock()
	}
	if check != nil {
		if err := check(); err != nil {
			return err
		}
	}
	known, err := e.accessNow()
	if err == nil {
		err = e.keepsAdministrator(known, cmd)
	}
	if err == nil {
		err = newName(known, cmd)
	}
	if err != nil {
		return err
	}
	return fromHost(e.command("", cmd).Err)
}

// alone says whether a command is checked against what no other may change meanwhile: two
// administrators who delete each other would both be allowed to, and two tokens get one name.
func alone(cmd cp.Command) bool {
	switch cmd := cmd.(type) {
	case cp.DeleteUser, cp.DeleteToken:
		return true
	case cp.PutToken:
		return cmd.Token.Name != ""
	case cp.SetGrant:
		return cmd.Revoke
	case cp.PutUser:
		return cmd.Replace && len(cmd.Hash) == 0
	}
	return false
}

// newName refuses a token whose name another one of its user has.
func newName(known *cp.Access, cmd cp.Command) error {
	c, ok := cmd.(cp.PutToken)
	if !ok || c.Token.Name == "" {
		return nil
	}
	u := known.User(c.User)
	if u == nil || !slices.ContainsFunc(u.Tokens, func(t cp.Token) bool { return t.Name == c.Token.Name }) {
		return nil
	}
	return fmt.Errorf("%w: there is one named %q: give this one another name, or delete that one first", cp.ErrInvalidToken, c.Token.Name)
}

// keepsAdministrator refuses what would leave users and none who can change them, or none
// of those who can log in: they would have locked themselves out.
func (e *Engine) keepsAdministrator(known *cp.Access, cmd cp.Command) error {
	if cmd, ok := cmd.(cp.PutUser); ok && known.Len() == 0 && !cmd.Replace {
		switch first := (&cp.User{Grants: cmd.Grants, Hash: cmd.Hash}); {
		case !administers(first.Grants):
			return fmt.Errorf("%w: the first user has to be one, who can make the others: 'ringfence user add NAME --admin', "+
				"in a program cp.Administrator among the Grants", ErrLastAdministrator)
		case !e.mayLogIn(first):
			return fmt.Errorf("%w who can log in: the first user has to have a password, unless a server that takes client certificates "+
				"(serve --tls-client-ca) is asked to make it", ErrLastAdministrator)
		}
		return nil
	}
	u := without(known, cmd)
	if u == nil {
		return nil
	}
	was, is := known.User(u.Name), u
	for _, rule := range []struct {
		holds func(*cp.User) bool
		why   string
	}{
		{func(u *cp.User) bool { return administers(u.Grants) }, ": it is the last one; make another one first: 'ringfence acl grant NAME all cluster'"},
		{func(u *cp.User) bool { return administers(u.Grants) && e.mayLogIn(u) }, " who can log in: it is the last one with a password, or with a token " +
			"that does not expire, and no server of this directory takes client certificates now; give another one a password first: 'ringfence user passwd NAME'"},
	} {
		if !rule.holds(was) || rule.holds(is) {
			continue
		}
		kept := false
		for other := range known.Users() {
			kept = kept || other != was && rule.holds(other)
		}
		if !kept {
			return fmt.Errorf("%w%s", ErrLastAdministrator, rule.why)
		}
	}
	return nil
}

// without is what a command that takes something away leaves of the user whose it is; nil
// where it takes nothing from anybody, or all from the last user: nobody has to log in
// after that, or a start makes an administrator.
func without(known *cp.Access, cmd cp.Command) *cp.User {
	var u *cp.User
	var left cp.User
	switch cmd := cmd.(type) {
	case cp.DeleteUser:
		if u = known.User(cmd.Name); u == nil || known.Len() == 1 {
			return nil
		}
		return &cp.User{Name: u.Name}
	case cp.SetGrant:
		if u = known.User(cmd.User); u == nil || !cmd.Revoke {
			return nil
		}
		left = *u
		left.Grants = slices.DeleteFunc(slices.Clone(u.Grants), func(g Grant) bool { return g == cmd.Grant })
	case cp.PutUser:
		if u = known.User(cmd.Name); u == nil || !cmd.Replace || len(cmd.Hash) > 0 {
			return nil
		}
		left = *u
		left.Hash = nil
	case cp.DeleteToken:
		if u, _ = known.Token(cmd.ID); u == nil {
			return nil
		}
		left = *u
		left.Tokens = slices.DeleteFunc(slices.Clone(u.Tokens), func(t cp.Token) bool { return t.ID == cmd.ID })
	default:
		return nil
	}
	return &left
}

// mayLogIn says whether a user has something to log in with for good, or may have: of
// certificates a server knows only which authorities it believes.
func (e *Engine) mayLogIn(u *cp.User) bool {
	if len(u.Hash) > 0 || slices.ContainsFunc(u.Tokens, func(t cp.Token) bool { return t.Expires == 0 }) {
		return true
	}
	return slices.ContainsFunc(e.access.guardians(), func(a *Authenticator) bool { return a.opts.Certificates })
}

// administers: whoever may change users can become an administrator by himself.
func administers(grants []Grant) bool {
	return (&cp.User{Grants: grants}).Allows(cp.OnCluster, cp.Users, "")
}

// ofUser adds the user to an error.
func ofUser(name string, err error) error { return api.Of("user", name, err) }
