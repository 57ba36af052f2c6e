package client

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"

	"github.com/ringfence/ringfence/engine/api"
	"github.com/ringfence/ringfence/engine/frontend"
)

// Client is a way to one server. Any number of goroutines may share it.
type Client struct {
	addr string
	opts Options
	mem  *memory
	held held
	main *link // for all but producers
	acks *link // for producers

	routes   *frontend.Frontend // which ranges topics have, as the server told last
	unrouted atomic.Bool        // it does not tell

	life    context.Context // ends with Close
	end     context.CancelFunc
	quit    <-chan struct{} // life's
	tasks   sync.WaitGroup  // the links' goroutines and the producers'
	tooLate error

	mu        sync.Mutex // guards all below; innermost
	log       string     // the server's
	acking    bool       // acks is kept
	closed    bool
	producers map[*Producer]struct{}
}

var (
	_ api.Admin  = (*Client)(nil)
	_ api.Access = (*Client)(nil)
	_ api.Lists  = (*Client)(nil)
)

// Dial connects to a server at "host:port", "tls://host:port" or "unix:/path". ctx and
// Options.DialTimeout bound the first attempt, whose failure Dial answers; connections
// that are lost later are made again.
func Dial(ctx context.Context, addr string, o Options) (*Client, error) {
	c, err := newClient(addr, o)
	if err != nil {
		return nil, err
	}
	first, err := c.connect(ctx, plain)
	if err != nil {
		return nil, fmt.Errorf("connecting to %s: %w", addr, err)
	}
	c.start(first)
	return c, nil
}

// newClient returns a client that has not connected yet.
func newClient(addr string, o Options) (*Client, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	at, err := parseAddress(addr, o.TLS)
	if err != nil {
		return nil, err
	}
	if o.dial == nil {
		o.dial = at.dial
	}
	c := &Client{addr: addr, opts: o, mem: newMemory(o.MemoryBytes), producers: map[*Producer]struct{}{}}
	c.tooLate = fmt.Errorf("%w: no answer within %v (Options.RequestTimeout)", ErrUnavailable, o.RequestTimeout)
	c.main, c.acks = newLink(c, "requests"), newLink(c, "producers")
	if c.routes, err = frontend.New(frontend.Options{Self: "client", Bits: rand.Uint64}); err != nil {
		return nil, err
	}
	return c, nil
}

// start keeps the connection of requests from now on.
func (c *Client) start(first *conn) {
	c.life, c.end = context.WithCancel(context.Background())
	c.quit = c.life.Done()
	c.tasks.Go(func() { c.main.keep(first) })
}

// sameLog refuses a server that has another log than the one before: cursors and what
// is known of producers are worth nothing there.
func (c *Client) sameLog(cn *conn) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.log == "" {
		c.log = cn.log // the first connection
	}
	if cn.log != c.log {
		return fmt.Errorf("%w: the server at %s has log %q, it had %q before: dial again to use it", ErrMismatch, c.addr, cn.log, c.log)
	}
	return nil
}

// forProducers returns the link of producers, which connects when the first one comes.
func (c *Client) forProducers() (*link, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, ErrClosed
	}
	if !c.acking {
		c.acking = true
		c.tasks.Go(func() { c.acks.keep(nil) })
	}
	return c.acks, nil
}

// Close ends the client with its producers and consumers. What is on its way fails
// with ErrClosed: close producers first.
func (c *Client) Close() error {
	c.mu.Lock()
	first := !c.closed
	c.closed = true
	producers := c.producers
	c.producers = nil
	c.mu.Unlock()
	if first {
		c.end()
		for p := range producers {
			p.abort()
		}
	}
	c.tasks.Wait()
	c.held.close()
	return nil
}
