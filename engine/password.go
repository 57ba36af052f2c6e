package engine

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/base64"
	"fmt"
	"runtime"
	"strings"

	"golang.org/x/crypto/argon2"
)

// A password is kept as the PHC string of its Argon2id hash:
//
//	$argon2id$v=19$m=19456,t=2,p=1$SALT$HASH
//
// with salt and hash in unpadded base64. The parameters are OWASP's, and stand in each
// string, so that others can be chosen later; what is read is bounded.
type argon struct {
	memory uint32 // KiB
	passes uint32
	lanes  uint8
}

var argonNow = argon{19 << 10, 2, 1}

// The most of each that a stored string may ask for.
const (
	maxArgonMemory = 64 << 10
	maxArgonPasses = 16
	maxArgonLanes  = 16
	saltLen        = 16
	hashLen        = 32
)

// hasher computes hashes, a few at a time: each takes argonNow.memory.
type hasher struct {
	slots chan struct{}
}

func newHasher() *hasher {
	return &hasher{make(chan struct{}, min(runtime.GOMAXPROCS(0), 4))}
}

func (h *hasher) key(ctx context.Context, p argon, password, salt []byte, n int) ([]byte, error) {
	select {
	case h.slots <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() { <-h.slots }()
	return argon2.IDKey(password, salt, p.passes, p.memory, p.lanes, uint32(n)), nil
}

var phc = base64.RawStdEncoding.Strict()

// hash makes the string to keep.
func (h *hasher) hash(ctx context.Context, password []byte) ([]byte, error) {
	salt := make([]byte, saltLen)
	rand.Read(salt) // never fails
	p := argonNow
	key, err := h.key(ctx, p, password, salt, hashLen)
	if err != nil {
		return nil, err
	}
	return fmt.Appendf(nil, "$argon2id$v=%d$m=%d,t=%d,p=%d$%s$%s", argon2.Version, p.memory, p.passes, p.lanes,
		phc.EncodeToString(salt), phc.EncodeToString(key)), nil
}

// nobody is compared with where there is no user or no password: it takes the same time
// and no password is right.
var nobody = make([]byte, saltLen)

// matches compares a password with a stored string, in a time that tells nothing of
// either. An empty string stands for nobody's.
func (h *hasher) matches(ctx context.Context, stored, password []byte) (bool, error) {
	if len(stored) == 0 {
		_, err := h.key(ctx, argonNow, password, nobody, hashLen)
		return false, err
	}
	p, salt, want, err := parsePHC(string(stored))
	if err != nil {
		return false, err
	}
	key, err := h.key(ctx, p, password, salt, len(want))
	return err == nil && subtle.ConstantTimeCompare(key, want) == 1, err
}

func parsePHC(s string) (p argon, salt, hash []byte, err error) {
	bad := func(what string) (argon, []byte, []byte, error) {
		return argon{}, nil, nil, fmt.Errorf("engine: the stored hash of a password has %s: set the password anew", what)
	}
	f := strings.Split(s, "$")
	if len(f) != 6 || f[0] != "" || f[1] != "argon2id" || f[2] != fmt.Sprintf("v=%d", argon2.Version) {
		return bad("another form than this version knows")
	}
	if n, err := fmt.Sscanf(f[3], "m=%d,t=%d,p=%d", &p.memory, &p.passes, &p.lanes); n != 3 || err != nil ||
		f[3] != fmt.Sprintf("m=%d,t=%d,p=%d", p.memory, p.passes, p.lanes) {
		return bad("unreadable parameters")
	}
	if p.lanes == 0 || p.lanes > maxArgonLanes || p.passes == 0 || p.passes > maxArgonPasses ||
		p.memory < 8*uint32(p.lanes) || p.memory > maxArgonMemory {
		return bad("parameters out of bounds")
	}
	salt, err = phc.DecodeString(f[4])
	if err != nil || len(salt) < 8 || len(salt) > 64 {
		return bad("no usable salt")
	}
	hash, err = phc.DecodeString(f[5])
	if err != nil || len(hash) < 16 || len(hash) > 64 {
		return bad("no usable hash")
	}
	return p, salt, hash, nil
}
