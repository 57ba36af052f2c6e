package host

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/lni/dragonboat/v4"
	"github.com/ringfence/ringfence/cp"
)

const (
	// MaxCommand is the largest encoded command that is accepted.
	MaxCommand = 8 << 20
	// maxInflight is how many bytes of commands may wait on a vnode; one command is
	// always let in. The number of commands is bounded by dragonboat, at 2,048.
	maxInflight = 8 << 20
	// window is how many of a vnode's commands ProposeAll keeps in flight.
	window = 1024
)

// Propose changes the vnode of a topic by a command and returns its reply; a
// refusal by the state is Reply.Err, not the error. With topic "" the command goes
// where commands about no topic go, [cp.Ring.Home].
//
// An error that is not ErrUnknownOutcome or ErrFailed means that nothing happened
// and nothing will. The context's deadline bounds the call, or else Options.Timeout.
func (h *Host) Propose(ctx context.Context, topic string, cmd cp.Command) (cp.Reply, error) {
	ctx, cancel := h.bound(ctx)
	defer cancel()
	v := h.vnodeOf(topic)
	p, err := h.begin(ctx, v, cmd)
	if err != nil {
		return cp.Reply{}, fmt.Errorf("vnode %d: %w", v.id, err)
	}
	r, err := h.await(ctx, p)
	if err != nil {
		return cp.Reply{}, fmt.Errorf("vnode %d: %w", v.id, err)
	}
	return r, nil
}

// Proposal is one of many commands.
type Proposal struct {
	Topic   string
	Command cp.Command
}

// Outcome is what became of one.
type Outcome struct {
	Reply cp.Reply
	Err   error
}

// ProposeAll proposes commands as fast as the vnodes take them and returns their
// outcomes in the same order. Commands of one vnode are applied in the order given,
// those of different vnodes in any. After an error on one vnode the rest of its
// commands are not proposed and carry the same error. Without a deadline the call
// takes as long as it needs, while each command's answer comes within
// Options.Timeout.
func (h *Host) ProposeAll(ctx context.Context, ps []Proposal) []Outcome {
	out := make([]Outcome, len(ps))
	byVnode := make([][]int, len(h.vnodes))
	for i := range ps {
		v := h.vnodeOf(ps[i].Topic)
		byVnode[v.id-1] = append(byVnode[v.id-1], i)
	}
	var wg sync.WaitGroup
	for n, todo := range byVnode {
		if len(todo) > 0 {
			wg.Go(func() { h.proposeRun(ctx, h.vnodes[n], ps, todo, out) })
		}
	}
	wg.Wait()
	return out
}

// proposeRun proposes one vnode's part of ps, keeping a window in flight.
func (h *Host) proposeRun(ctx context.Context, v *vnode, ps []Proposal, todo []int, out []Outcome) {
	type waiting struct {
		i int
		p pending
	}
	var queue []waiting
	var failed error
	settle := func() { // the oldest
		w := queue[0]
		queue = queue[1:]
		one, cancel := h.bound(ctx)
		defer cancel()
		out[w.i].Reply, out[w.i].Err = h.await(one, w.p)
		if out[w.i].Err != nil && failed == nil {
			failed = fmt.Errorf("vnode %d: %w", v.id, out[w.i].Err)
		}
	}
	for _, i := range todo {
		for len(queue) >= window {
			settle()
		}
		p, err := pending{}, failed
		for busy := time.Duration(0); failed == nil; busy = tick {
			if p, err = h.begin(ctx, v, ps[i].Command); !errors.Is(err, ErrBusy) {
				break
			}
			if len(queue) > 0 {
				settle()
			} else if err = sleep(ctx, busy+time.Millisecond); err != nil { // others fill the queue
				break
			}
		}
		if failed == nil && err != nil {
			failed = fmt.Errorf("vnode %d: %w", v.id, err)
		}
		if failed != nil {
			out[i].Err = failed
			continue
		}
		queue = append(queue, waiting{i, p})
	}
	for len(queue) > 0 {
		settle()
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// pending is a command that was proposed.
type pending struct {
	v    *vnode
	rs   *dragonboat.RequestState
	size int64
}

// begin proposes a command without waiting.
func (h *Host) begin(ctx context.Context, v *vnode, cmd cp.Command) (pending, error) {
	if err := h.Err(); err != nil {
		return pending{}, err
	}
	if err := ctx.Err(); err != nil {
		return pending{}, err
	}
	data := cp.Encode(cmd)
	if len(data) > MaxCommand {
		return pending{}, fmt.Errorf("%w: %d bytes, the most is %d", ErrTooLarge, len(data), MaxCommand)
	}
	if err := h.journal.room(len(data), frees(cmd)); err != nil {
		return pending{}, err
	}
	size := int64(len(data))
	if n := v.inflight.Add(size); n > maxInflight && n > size {
		v.inflight.Add(-size)
		return pending{}, fmt.Errorf("%w: %d bytes wait", ErrBusy, n-size)
	}
	p := pending{v: v, size: size}
	err := h.guard(func() (err error) {
		p.rs, err = h.nh.Propose(v.session, data, remaining(ctx))
		return err
	})
	if err != nil {
		v.inflight.Add(-size)
		return pending{}, notProposed(err)
	}
	return p, nil
}

// frees says whether a command gives space back, now or by what it allows.
func frees(cmd cp.Command) bool {
	switch c := cmd.(type) {
	case cp.SetGrant:
		return c.Revoke // who must not do something any more is not to wait for space
	case cp.DeleteUser, cp.DeleteToken,
		cp.DeleteTopic, cp.DeleteSegment, cp.SealSegment, cp.SealTopic, cp.DeletePolicy, cp.DeleteGroup, cp.ExtractTopic:
		return true
	}
	return false
}

// await waits for a command's reply.
func (h *Host) await(ctx context.Context, p pending) (cp.Reply, error) {
	defer p.v.inflight.Add(-p.size)
	select {
	case res := <-p.rs.AppliedC():
		defer p.rs.Release()
		switch {
		case res.Completed():
			r, err := cp.DecodeReply(res.GetResult().Data)
			if err != nil {
				return cp.Reply{}, h.fail(fmt.Errorf("unreadable reply: %w", err))
			}
			return r, nil
		case res.Dropped():
			return cp.Reply{}, ErrNotReady
		case res.Terminated():
			return cp.Reply{}, fmt.Errorf("%w: %w", ErrUnknownOutcome, ErrClosed)
		}
		return cp.Reply{}, ErrUnknownOutcome // timed out in the log
	case <-ctx.Done():
		return cp.Reply{}, fmt.Errorf("%w: %w", ErrUnknownOutcome, context.Cause(ctx))
	case <-h.failed:
		return cp.Reply{}, fmt.Errorf("%w: %w", ErrUnknownOutcome, h.cause)
	}
}

// notProposed translates dragonboat's refusal to take a request.
func notProposed(err error) error {
	switch {
	case errors.Is(err, dragonboat.ErrSystemBusy):
		return ErrBusy
	case errors.Is(err, dragonboat.ErrShardNotReady), errors.Is(err, dragonboat.ErrShardNotInitialized):
		return ErrNotReady
	case errors.Is(err, dragonboat.ErrClosed), errors.Is(err, dragonboat.ErrShardClosed), errors.Is(err, dragonboat.ErrShardNotFound):
		return ErrClosed
	case errors.Is(err, dragonboat.ErrPayloadTooBig):
		return ErrTooLarge
	}
	return err
}

// bound gives a context a deadline if it has none.
func (h *Host) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, h.opts.Timeout)
}

// remaining is how long dragonboat must remember a request: longer than anybody
// waits for it, in its coarse ticks.
func remaining(ctx context.Context) time.Duration {
	d, ok := ctx.Deadline()
	if !ok {
		return time.Hour
	}
	return max(time.Until(d), 0) + 4*tick
}

func (h *Host) vnodeOf(topic string) *vnode {
	id, ok := h.ring.Route(topic)
	if topic == "" {
		id, ok = h.ring.Home()
	}
	if !ok {
		panic("cp/host: empty ring") // Open made it with a vnode at least
	}
	return h.vnodes[id-1]
}
