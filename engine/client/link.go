package client

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

// link keeps one connection to the server: it makes it again whenever it ends, until
// the client is closed.
type link struct {
	c    *Client
	name string // for the log
	way  way    // of its connections

	mu      sync.Mutex
	cur     *conn         // nil while there is none
	err     error         // why the last attempt failed, or the last connection ended
	lasting bool          // err is of an attempt, and another one will meet it too
	changed chan struct{} // closed at the next change of these
}

// way is what a connection can do besides what all can.
type way uint8

const (
	plain   way = iota
	sharing     // it shares memory with the server
	filing      // pages come as descriptors of files
)

func newLink(c *Client, name string) *link {
	return &link{c: c, name: name, changed: make(chan struct{})}
}

// get returns the connection, and waits for it while there is none. It gives up
// when ctx ends, and at once where connecting fails for good.
func (l *link) get(ctx context.Context) (*conn, error) {
	for {
		l.mu.Lock()
		cur, err, lasting, changed := l.cur, l.err, l.lasting, l.changed
		l.mu.Unlock()
		switch {
		case cur != nil:
			return cur, nil
		case lasting:
			return nil, err
		}
		select {
		case <-changed:
		case <-l.c.quit:
			return nil, ErrClosed
		case <-ctx.Done():
			if err == nil {
				err = ErrUnavailable
			}
			return nil, fmt.Errorf("%w: %w", context.Cause(ctx), err)
		}
	}
}

func (l *link) set(cur *conn, err error, lasting bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cur, l.err, l.lasting = cur, err, lasting
	close(l.changed)
	l.changed = make(chan struct{})
}

// keep serves connections, cur first if there is one, until the client is closed.
func (l *link) keep(cur *conn) {
	// A connection that ends sooner than the pause before it took counts like one that
	// was not made.
	var pause time.Duration
	log := l.c.opts.Logger.With("server", l.c.addr, "for", l.name)
	failed := 0
	for ctx := l.c.life; ctx.Err() == nil; failed++ {
		var err error
		if cur == nil {
			cur, err = l.c.connect(ctx, l.way)
		}
		if err != nil {
			l.set(nil, err, lasting(err))
		} else {
			if failed > 0 {
				log.Info("ringfence: connected again")
			}
			began := time.Now()
			err = l.serve(ctx, cur)
			if time.Since(began) > pause {
				failed = 0
			}
		}
		cur = nil
		if ctx.Err() == nil {
			level := slog.LevelWarn
			if failed&(failed+1) != 0 { // the 1st, 2nd, 4th, 8th and so on are told
				level = slog.LevelDebug
			}
			log.Log(ctx, level, "ringfence: no connection", "attempt", failed+1, "err", err)
			pause = backoff(failed, err)
			_ = l.c.pause(ctx, pause, nil) // the loop looks at ctx
		}
	}
	l.set(nil, ErrClosed, true)
}

// serve runs one connection and returns why it ended.
func (l *link) serve(ctx context.Context, cur *conn) error {
	stop := context.AfterFunc(ctx, func() { cur.kill(ErrClosed) })
	defer stop()
	l.set(cur, nil, false)
	return cur.run(func(err error) { l.set(nil, err, false) })
}
