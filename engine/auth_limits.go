package engine

import (
	"container/list"
	"fmt"
	"sync"
	"time"

	"github.com/ringfence/ringfence/cp"
	"github.com/ringfence/ringfence/engine/server"
	"github.com/ringfence/ringfence/engine/wire"
)

// Limits of logins. Instants are of a monotonic clock: setting the host's clock neither
// locks nor frees anybody.
const (
	attemptsMost  = 10               // of one address at once
	attemptsEvery = 6 * time.Second  // one more: 10 in a minute
	failuresMost  = 5                // of one user at one address, until he is locked out there
	lockFirst     = 5 * time.Minute  // for so long
	lockForget    = 24 * time.Hour   // failures are forgotten after so long without another
	remembered    = 1 << 14          // addresses, and users at addresses, that are kept in mind
	quotaWindow   = time.Second      // what a quota counts in
	quotaPause    = 5 * time.Second  // the longest wait that is asked for: the quota may be raised meanwhile
	quotaKept     = 10 * time.Minute // after a user's last frame, and the most that one batch may owe
)

// lockFactors grow with every failuresMost failures in a row.
var lockFactors = [...]time.Duration{1, 3, 9, 24, 72}

// recent keeps the values of the keys that were used last.
type recent[K comparable, V any] struct {
	order list.List // of *used, the last one first
	byKey map[K]*list.Element
}

type used[K comparable, V any] struct {
	key K
	val V
}

func newRecent[K comparable, V any]() recent[K, V] {
	return recent[K, V]{byKey: map[K]*list.Element{}}
}

// get is the value of a key, nil if there is none.
func (r *recent[K, V]) get(k K) *V {
	if e := r.byKey[k]; e != nil {
		return &e.Value.(*used[K, V]).val
	}
	return nil
}

// use is the value of a key, a new one if there is none; the one that was used least
// lately goes for it.
func (r *recent[K, V]) use(k K) (v *V, isNew bool) {
	if e := r.byKey[k]; e != nil {
		r.order.MoveToFront(e)
		return &e.Value.(*used[K, V]).val, false
	}
	if len(r.byKey) >= remembered {
		r.drop(r.order.Back())
	}
	u := &used[K, V]{key: k}
	r.byKey[k] = r.order.PushFront(u)
	return &u.val, true
}

func (r *recent[K, V]) drop(e *list.Element) {
	delete(r.byKey, e.Value.(*used[K, V]).key)
	r.order.Remove(e)
}

// attempts bounds the logins of each address: a bucket that fills with time. One that
// succeeds is given back, so that a host with many clients can connect them all.
type attempts struct {
	mu   sync.Mutex
	from recent[server.Origin, bucket]
}

type bucket struct {
	full time.Duration // the instant at which all attempts are there again
	told time.Duration // the refusals of this instant's emptiness were logged until then
}

func newAttempts() *attempts { return &attempts{from: newRecent[server.Origin, bucket]()} }

func (a *attempts) take(from server.Origin, now time.Duration) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	b, _ := a.from.use(from)
	full := max(b.full, now) + attemptsEvery
	if wait := full - now - attemptsMost*attemptsEvery; wait > 0 {
		return &wire.Error{Code: wire.CodeRateLimited, RetryAfter: wait, Detail: fmt.Sprintf("too many logins from %s: try again in %s", from, wait.Round(time.Second))}
	}
	b.full = full
	return nil
}

func (a *attempts) giveBack(from server.Origin) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if b := a.from.get(from); b != nil {
		b.full -= attemptsEvery
	}
}

// first says whether a refusal to an address is the first one in a while.
func (a *attempts) first(from server.Origin, now time.Duration) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	b, _ := a.from.use(from)
	if now < b.told {
		return false
	}
	b.told = now + attemptsMost*attemptsEvery
	return true
}

// lockouts keeps who guesses a user's password away from it, where he guesses. The user
// himself can come in from elsewhere. What failed before the user got another password
// is forgotten: changed says when he got the one that is good now, 0 for nobody.
type lockouts struct {
	mu    sync.Mutex
	wrong recent[lockKey, failures]
}

type lockKey struct {
	from server.Origin
	user string
}

type failures struct {
	n       int
	last    time.Duration
	until   time.Duration
	changed int64 // the password that was guessed at
}

func newLockouts() *lockouts { return &lockouts{wrong: newRecent[lockKey, failures]()} }

// refusal is not nil while a user is locked out.
func (l *lockouts) refusal(k lockKey, changed int64, now time.Duration) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	f := l.wrong.get(k)
	if f == nil || now >= f.until || f.changed != changed {
		return nil
	}
	return &wire.Error{Code: wire.CodeRateLimited, RetryAfter: f.until - now, Detail: fmt.Sprintf(
		"too many wrong passwords for %q from %s: locked out for %s", k.user, k.from, (f.until - now).Round(time.Second))}
}

// failed counts a failure and answers for how long that locks out.
func (l *lockouts) failed(k lockKey, changed int64, now time.Duration) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	f, isNew := l.wrong.use(k)
	if isNew || f.changed != changed || now-max(f.last, f.until) > lockForget {
		*f = failures{changed: changed}
	}
	f.n++
	f.last = now
	if f.n < failuresMost {
		return 0
	}
	d := lockFirst * lockFactors[min(f.n/failuresMost, len(lockFactors))-1]
	f.until = now + d
	return d
}

// failedAt is what failed at an address.
type failedAt struct {
	failures
	from server.Origin
}

// byUser is what failed and is not forgotten.
func (l *lockouts) byUser(now time.Duration) map[string][]failedAt {
	l.mu.Lock()
	defer l.mu.Unlock()
	of := map[string][]failedAt{}
	for k, e := range l.wrong.byKey {
		if f := e.Value.(*used[lockKey, failures]).val; now-max(f.last, f.until) <= lockForget {
			of[k.user] = append(of[k.user], failedAt{f, k.from})
		}
	}
	return of
}

// clear forgets a user's failures at an address.
func (l *lockouts) clear(k lockKey) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e := l.wrong.byKey[k]; e != nil {
		l.wrong.drop(e)
	}
}

// spending is what users have left of their quotas: buckets of a second that fill with
// time. A batch is taken whole while there is anything left, so that no batch is too large
// for a quota, and what it takes beyond that is owed: nothing more is taken until then.
type spending struct {
	mu    sync.Mutex
	users map[string]*spender
	swept time.Duration
}

type spender struct {
	quota Quota
	free  [2]time.Duration // when what was spent of records and of bytes is there again
	last  time.Duration
}

func newSpending() *spending { return &spending{users: map[string]*spender{}} }

// charge spends both records and bytes, or neither. Whoever is refused is to come back
// when the bucket is half full: sooner there would be room for one frame, and the others
// that come with it would be sent for nothing.
func (s *spending) charge(u *cp.User, records, bytes int, now time.Duration) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sweep(now)
	of := s.users[u.Name]
	if of == nil || of.quota != u.Quota {
		of = &spender{quota: u.Quota}
		s.users[u.Name] = of
	}
	of.last = now
	next := of.free
	late := false
	wait := time.Duration(0)
	for i, p := range []struct {
		cost int
		rate uint64
	}{{records, u.Quota.Records}, {bytes, u.Quota.Bytes}} {
		if p.rate == 0 {
			continue
		}
		late = late || of.free[i] >= now+quotaWindow
		wait = max(wait, of.free[i]-now-quotaWindow/2)
		next[i] = max(of.free[i], now) + time.Duration(min(float64(p.cost)/float64(p.rate)*float64(quotaWindow), float64(quotaKept)))
	}
	if late {
		return &wire.Error{Code: wire.CodeRateLimited, RetryAfter: min(wait, quotaPause), Detail: fmt.Sprintf("user %q has used up the quota of this second", u.Name)}
	}
	of.free = next
	return nil
}

// sweep forgets users who have not sent for a while. The map has no more than there are
// users who did.
func (s *spending) sweep(now time.Duration) {
	if now-s.swept < quotaKept {
		return
	}
	s.swept = now
	for name, of := range s.users {
		if now-of.last >= quotaKept {
			delete(s.users, name)
		}
	}
}
