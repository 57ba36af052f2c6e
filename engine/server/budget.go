package server

import (
	"context"
	"sync"
)

// budget bounds bytes that many take and give back. Who waits for some is served in
// the order of coming.
type budget struct {
	limit int64

	mu      sync.Mutex // guards the rest; innermost, never held while waiting
	used    int64
	waiting []*claim
}

type claim struct {
	bytes   int64
	granted chan struct{}
}

// take waits for n bytes until ctx ends. Where nothing is taken, any n is granted.
func (b *budget) take(ctx context.Context, n int64) error {
	b.mu.Lock()
	if len(b.waiting) == 0 && b.fits(n) {
		b.used += n
		b.mu.Unlock()
		return nil
	}
	w := &claim{n, make(chan struct{})}
	b.waiting = append(b.waiting, w)
	b.mu.Unlock()
	select {
	case <-w.granted:
		return nil
	case <-ctx.Done():
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for i, other := range b.waiting {
		if other == w {
			b.waiting = append(b.waiting[:i], b.waiting[i+1:]...)
			b.grant() // those behind it may want less
			return ctx.Err()
		}
	}
	b.used -= n // it was granted in the same moment
	b.grant()
	return ctx.Err()
}

// try takes n bytes if they are there now.
func (b *budget) try(n int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.used+n > b.limit {
		return false
	}
	b.used += n
	return true
}

// give gives n bytes back; a negative n takes what is needed whether it is there or not.
func (b *budget) give(n int64) {
	if n == 0 {
		return
	}
	b.mu.Lock()
	b.used -= n
	b.grant()
	b.mu.Unlock()
}

// left is how much could be taken now.
func (b *budget) left() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return max(b.limit-b.used, 0)
}

// alone says whether n bytes are all that is taken.
func (b *budget) alone(n int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.used <= n
}

// grant serves those who wait, while there is something for the first. mu is held.
func (b *budget) grant() {
	for len(b.waiting) > 0 && b.fits(b.waiting[0].bytes) {
		w := b.waiting[0]
		b.waiting = b.waiting[1:]
		b.used += w.bytes
		close(w.granted)
	}
}

func (b *budget) fits(n int64) bool { return b.used <= 0 || b.used+n <= b.limit }
