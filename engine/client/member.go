package client

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/ringfence/ringfence/engine/wire"
)

// membership is a consumer's place in a group. Its goroutine tells the server that the
// member is there and hears which ranges are its own; the consumer's goroutine, when it
// is called, lets go of what it lost and takes what is new.
type membership struct {
	c                  *Client
	topic, group, name string
	instance           uint64

	stop context.CancelFunc
	done chan struct{} // closed when the goroutine has ended
	kick chan struct{} // tells it to speak now; holds one
	news chan struct{} // tells the consumer to look again; holds one

	mu      sync.Mutex // guards the rest; innermost
	told    assignment
	adopted uint64 // the generation that the server is told the consumer has adopted
	reading []uint32
	session time.Duration
	alive   time.Time // when that was sent which the server last answered
	err     error     // the membership is over
}

// assignment is what the server told. What was a member's in another epoch, before it
// joined again, is not its own any more, even if it has the range now.
type assignment struct {
	epoch      int
	generation uint64
	ranges     []uint32
}

// join makes a consumer a member of its group.
func (c *Client) join(ctx context.Context, topic, group, name string) (*membership, error) {
	m := &membership{
		c: c, topic: topic, group: group, name: name, instance: rand.Uint64(),
		done: make(chan struct{}), kick: make(chan struct{}, 1), news: make(chan struct{}, 1),
	}
	if err := m.enter(ctx); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, ErrClosed
	}
	ctx, m.stop = context.WithCancel(c.life)
	c.tasks.Go(func() {
		defer close(m.done)
		m.keep(ctx)
	})
	return m, nil
}

// enter joins, for the first time or again.
func (m *membership) enter(ctx context.Context) error {
	sent := time.Now()
	msg, err := m.c.ask(ctx, wire.KeyJoinGroup, &wire.JoinGroup{Topic: m.topic, Group: m.group, Member: m.name, Instance: m.instance})
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.told.epoch++
	m.reading = nil
	m.hear(msg.(*wire.Assignment), sent)
	return nil
}

// hear takes what the server told. mu is held.
func (m *membership) hear(a *wire.Assignment, sent time.Time) {
	m.session, m.alive = time.Duration(a.SessionMs)*time.Millisecond, sent
	m.told.generation, m.told.ranges = a.Generation, a.Ranges
	m.level()
	signal(m.news)
}

// level adopts a generation in which nothing is lost that the consumer reads. mu is held.
func (m *membership) level() {
	if !slices.ContainsFunc(m.reading, func(seq uint32) bool { return !slices.Contains(m.told.ranges, seq) }) {
		m.adopted = m.told.generation
	}
}

// keep tells the server that the member is there until ctx ends, or the membership does.
func (m *membership) keep(ctx context.Context) {
	for failures := 0; ctx.Err() == nil; {
		err := m.beat(ctx)
		if errors.Is(err, wire.CodeUnknownMember) {
			err = m.enter(ctx)
		}
		switch {
		case err == nil:
			failures = 0
		case ctx.Err() != nil:
		case errors.Is(err, wire.CodeStaleGeneration):
			m.end(fmt.Errorf("%w %q: %w", ErrMemberReplaced, m.name, meant(err)))
			return
		case react(err, look) == again || errors.Is(err, ErrUnavailable) || errors.Is(err, ErrTimeout):
			_ = m.c.pause(ctx, backoff(failures, err), err) // the loop looks at ctx
			failures++
		default:
			m.end(meant(err))
			return
		}
	}
}

// beat is one heartbeat. While the consumer has adopted what it was told, the server
// answers when there is something else; otherwise there is a pause until it has.
func (m *membership) beat(ctx context.Context) error {
	m.mu.Lock()
	ask := &wire.Heartbeat{Topic: m.topic, Group: m.group, Member: m.name, Generation: m.adopted}
	behind, pause := m.adopted != m.told.generation, m.session/6
	m.mu.Unlock()
	if !behind {
		ask.WaitMs = uint32((m.session / 3).Milliseconds())
	}
	limited, cancel := context.WithTimeoutCause(ctx, m.session/3+m.c.opts.RequestTimeout, m.c.tooLate)
	defer cancel()
	sent := time.Now()
	cn, err := m.c.main.get(limited)
	if err != nil {
		return err
	}
	msg, err := cn.call(limited, wire.KeyHeartbeat, ask, nil)
	if err != nil {
		return err
	}
	m.mu.Lock()
	m.hear(msg.(*wire.Assignment), sent)
	behind = m.adopted != m.told.generation
	m.mu.Unlock()
	if behind {
		t := time.NewTimer(pause)
		defer t.Stop()
		select {
		case <-m.kick:
		case <-t.C:
		case <-ctx.Done():
		}
	}
	return nil
}

func (m *membership) end(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.err = err
	signal(m.news)
}

// take is what the member was told last. The consumer reads the ranges from now on, in
// addition to those that it has not let go. lapsed says that a session has passed since
// the server has been heard of: the ranges may be others' by now.
func (m *membership) take() (a assignment, lapsed bool, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.err != nil {
		return m.told, false, m.err
	}
	if time.Since(m.alive) >= m.session {
		return m.told, true, nil
	}
	for _, seq := range m.told.ranges {
		if !slices.Contains(m.reading, seq) {
			m.reading = append(m.reading, seq)
		}
	}
	return m.told, false, nil
}

// adopt says that the consumer reads the ranges of an assignment and no others.
func (m *membership) adopt(a assignment) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if a.epoch != m.told.epoch {
		return
	}
	m.reading = slices.Clone(a.ranges)
	m.adopted = a.generation
	m.level()
	signal(m.kick)
}

// look is what the member was told last, with why that is over, if it is.
func (m *membership) look() (assignment, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.told, m.err
}

// await waits for news.
func (m *membership) await(ctx context.Context) error {
	select {
	case <-m.news:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-m.c.quit:
		return ErrClosed
	}
}

// leave gives up everything at once.
func (m *membership) leave(ctx context.Context) error {
	m.stop()
	<-m.done
	m.mu.Lock()
	ask := &wire.LeaveGroup{Topic: m.topic, Group: m.group, Member: m.name, Generation: m.told.generation}
	over := m.err != nil
	m.mu.Unlock()
	if over {
		return nil // it is another's place
	}
	_, err := m.c.ask(ctx, wire.KeyLeaveGroup, ask)
	if err != nil {
		err = fmt.Errorf("leaving group %q: %w; its other members go on when the session is over", m.group, err)
	}
	return err
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
