package client

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/ringfence/ringfence/engine/wire"
)

// reaction is what the client does by itself about a request that failed.
type reaction uint8

const (
	tell  reaction = iota // it was not done: the caller hears why
	doubt                 // it may have been done: the caller hears that, see [Unknown]
	again                 // it is asked again, after a pause, while the caller's time lasts
)

// kind says what asking a second time would do.
type kind uint8

const (
	change   kind = iota // something else than asking once
	repeat               // the same as asking once
	look                 // nothing: these only read
	numbered             // nothing: a producer's frame, whose repeat the server recognises
	loose                // store it twice: a frame without sequences
)

// kinds of the requests; what is not here is a change.
var kinds = map[wire.Key]kind{
	wire.KeyListTopics:    look,
	wire.KeyDescribeTopic: look,
	wire.KeyListPolicies:  look,
	wire.KeyLag:           look,
	wire.KeyListUsers:     look,
	wire.KeyListGrants:    look,
	wire.KeyListTokens:    look,
	wire.KeyGrant:         repeat, // to revoke is not: what is gone already is an error
	wire.KeySetQuota:      repeat,
	wire.KeyListGroups:    look,
	wire.KeyDescribeGroup: look,
	wire.KeyListMembers:   look,
	wire.KeyHeartbeat:     look,
	wire.KeyJoinGroup:     repeat, // of the same instance
	wire.KeyLeaveGroup:    repeat, // who has left may leave
	wire.KeyOpenProducer:  look,   // under the same id
	wire.KeyOpenConsumer:  look,
	wire.KeyRoute:         look,
	wire.KeyFetch:         look, // from the same cursor
	wire.KeySetPolicy:     repeat,
	wire.KeyBindPolicy:    repeat,
	wire.KeyCommit:        repeat, // never moves a group back, but for a reset, which is a change
}

// reactions is the whole of what is tried again. A caller's call asks again until
// its context ends, at most for Options.RequestTimeout; a producer sends a frame again
// for as long; a consumer asks again until RequestTimeout has passed without an answer.
// The pause before each time is that of backoff, or what the server asks for.
var reactions = []struct {
	is   func(error) bool
	does [5]reaction // by kind: change, repeat, look, numbered, loose
}{
	// Nothing of it reached the server, or the server says that it did nothing.
	{unsent, [5]reaction{again, again, again, again, again}},
	{code(wire.CodeOverloaded), [5]reaction{again, again, again, again, again}},
	{code(wire.CodeUnavailable), [5]reaction{again, again, again, again, again}},
	{code(wire.CodeShuttingDown), [5]reaction{again, again, again, again, again}},
	{code(wire.CodeRateLimited), [5]reaction{again, again, again, again, again}},
	{code(wire.CodeTooManyConnections), [5]reaction{again, again, again, again, again}},
	// It may have been done: the connection ended, or the server does not know.
	{lost, [5]reaction{doubt, again, again, again, doubt}},
	{code(wire.CodeOutcomeUnknown), [5]reaction{doubt, again, again, again, doubt}},
	// The file that was written failed; opened again, the producer goes on in another.
	{code(wire.CodeWriteFailed), [5]reaction{doubt, again, again, again, doubt}},
	// What the request was for is gone, with a connection or after a failure before it:
	// that is opened again, and the request made there.
	{code(wire.CodeNoSuchHandle), [5]reaction{tell, tell, again, again, again}},
	{code(wire.CodeProducerHalted), [5]reaction{tell, tell, tell, again, tell}},
	// The caller frees space, as with the linked engine.
	{code(wire.CodeOutOfSpace), [5]reaction{tell, tell, tell, tell, tell}},
	// Codes of a later version that go away by themselves.
	{retryable, [5]reaction{doubt, again, again, again, doubt}},
}

// react looks a failure up; what no row has is told.
func react(err error, k kind) reaction {
	for i := range reactions {
		if reactions[i].is(err) {
			return reactions[i].does[k]
		}
	}
	return tell
}

func code(c wire.Code) func(error) bool {
	return func(err error) bool { return errors.Is(err, c) }
}

func unsent(err error) bool {
	var l *lostError
	return errors.As(err, &l) && !l.sent
}

func lost(err error) bool {
	var l *lostError
	return errors.As(err, &l) && l.sent
}

func retryable(err error) bool {
	var we *wire.Error
	return errors.As(err, &we) && we.Code.Retryable()
}

// lasting says of a failure to connect that another attempt meets it as well: callers
// hear of it at once, while the link goes on trying.
func lasting(err error) bool {
	return errors.Is(err, ErrRefused) || errors.Is(err, ErrProtocol) || errors.Is(err, ErrUnsupported) || errors.Is(err, ErrMismatch)
}

// backoff is the pause before attempt n, from 0 on: growing, bounded, and random, so
// that clients do not come back together. A server may ask for more, up to longest.
func backoff(n int, err error) time.Duration {
	const first, most, longest = 50 * time.Millisecond, 5 * time.Second, 30 * time.Second
	pause := min(first<<min(n, 10), most)
	pause = pause/2 + rand.N(pause/2)
	var we *wire.Error
	if errors.As(err, &we) {
		pause = max(pause, min(we.RetryAfter, longest))
	}
	return pause
}

// lateError is a caller's time that was over before the answer came.
type lateError struct {
	sent  bool // the request was, or some of it
	cause error
}

func (e *lateError) Error() string { return e.cause.Error() }
func (e *lateError) Unwrap() error { return e.cause }

// ask asks on the connection that is not the producers', again where the table says
// so, until ctx ends or RequestTimeout is over.
func (c *Client) ask(ctx context.Context, key wire.Key, msg wire.Message) (any, error) {
	return c.askAs(ctx, kinds[key], key, msg)
}

func (c *Client) askAs(ctx context.Context, k kind, key wire.Key, msg wire.Message) (any, error) {
	limited, cancel := context.WithTimeoutCause(ctx, c.opts.RequestTimeout, c.tooLate)
	defer cancel()
	open := false // whether an attempt may have been carried out
	for n := 0; ; n++ {
		cn, err := c.main.get(limited)
		if err == nil {
			var answer any
			if answer, err = cn.call(limited, key, msg, nil); err == nil {
				return answer, nil
			}
			open = open || k != look && maybe(err)
			if react(err, k) == again {
				err = c.pause(limited, backoff(n, err), err)
			}
		}
		if err != nil && open {
			return nil, unknown(meant(err))
		}
		if err != nil {
			return nil, meant(err)
		}
	}
}

// maybe says whether a request that failed may have been carried out.
func maybe(err error) bool {
	var l *lateError
	return errors.As(err, &l) && l.sent || react(err, change) == doubt
}

// pause waits; if ctx ends first it answers that, with what the pause was for.
func (c *Client) pause(ctx context.Context, d time.Duration, why error) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-c.quit:
		return ErrClosed
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", context.Cause(ctx), meant(why))
	}
}
