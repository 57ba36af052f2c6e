package engine

import (
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/ringfence/ringfence/cp"
	"github.com/ringfence/ringfence/engine/api"
	"github.com/ringfence/ringfence/fence"
)

// Cursor is the consumer's place, behind the last record that was returned, as text to be
// kept anywhere and given to [FromCursor]. It stays valid across splits, merges, retention
// and restarts.
func (c *Consumer) Cursor() string { return api.EncodeCursor(c.topic, c.pos, c.marks) }

// Commit stores the consumer's place, behind the last record that was returned, as that of
// its group. It never moves the group back, and it returns when the place is durable. If a
// crash interrupts it, some ranges may have moved and others not.
func (c *Consumer) Commit(ctx context.Context) error { return c.commit(ctx, false) }

// Reset is Commit that also moves the group back.
func (c *Consumer) Reset(ctx context.Context) error { return c.commit(ctx, true) }

func (c *Consumer) commit(ctx context.Context, reset bool) error {
	if c.ended {
		return ErrClosed
	}
	if c.opts.Group == "" {
		return about(c.opts.Topic, -1, errors.New("a consumer without a group has nothing to commit: set ConsumerOptions.Group"))
	}
	if err := c.e.enter(ctx); err != nil {
		return err
	}
	defer c.e.end()
	part := func() cp.CommitOffset {
		return cp.CommitOffset{Group: c.opts.Group, Topic: c.opts.Topic, Generation: c.generation, Positions: map[fence.RangeID]cp.Position{}, Reset: reset}
	}
	cmds, named := []cp.CommitOffset{part()}, 0
	err := c.look(func(s *cp.State) error {
		for _, r := range s.ActiveRanges(c.opts.Topic) {
			p := c.positionIn(s, r)
			if named > 0 && named+len(p) > commitSources {
				cmds, named = append(cmds, part()), 0
			}
			named += len(p)
			cmds[len(cmds)-1].Positions[r.ID] = p
		}
		return nil
	})
	if err != nil {
		return about(c.opts.Topic, -1, err)
	}
	for _, cmd := range cmds { // a crash in between leaves some ranges where they were
		if reply := c.e.command(c.opts.Topic, cmd); reply.Err != nil {
			return about(c.opts.Topic, -1, reply.Err)
		}
	}
	return nil
}

// commitSources is how many source ranges one command of a commit names, unless a single
// range has more. It keeps the commands of a consumer that is far behind, in a topic of
// many ranges, below host.MaxCommand.
const commitSources = 1 << 17

// positionIn is the consumer's place as seen from one active range: the unfinished ones
// among that range and those of its ancestors that can have its keys. Together, the active
// ranges name everything that is not finished.
func (c *Consumer) positionIn(s *cp.State, r *cp.Range) cp.Position {
	unfinished := cp.Position{}
	look := func(a *cp.Range) {
		offset, ok := c.pos[a.ID]
		if ok || slices.ContainsFunc(a.From, func(p fence.RangeID) bool { _, ok := unfinished[p]; return ok }) {
			unfinished[a.ID] = offset // the start, of one that comes after what is not finished
		}
	}
	first := r.ID.Seq // what is before it is finished
	for id := range c.pos {
		first = min(first, id.Seq)
	}
	for a := range s.Ancestors(r.ID, first) {
		look(a)
	}
	look(r)
	maps.DeleteFunc(unfinished, func(id fence.RangeID, _ uint64) bool {
		a := s.Range(id)
		return a.End <= r.Start || r.End <= a.Start || a.Phase == cp.Sealed && a.NextOffset == 0 && s.Head(id) == nil
	})
	return unfinished
}
