package engine

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/ringfence/ringfence/cp"
	"github.com/ringfence/ringfence/engine/api"
	"github.com/ringfence/ringfence/engine/server"
	"github.com/ringfence/ringfence/fence"
)

// A member of a group reads some ranges of a topic and not those that take over their
// keys: others may have these, and they are to be read only when the group has committed
// the end of all that they come from. Which ranges are whose is not known here: the
// server's coordinator says so, and has one member's commits of a range end before it
// gives the range to another.

// share is what a consumer of some ranges knows beside its place. It keeps the ranges
// that it has finished in its place, at their ends, for the group to commit.
type share struct {
	ranges   []uint32
	cursor   string // where the member was in those that it had before
	finished map[fence.RangeID]bool
	news     []uint32 // of these, those that were not told of
}

// begin sets the position: of each range where the group is, or behind that where the
// member is.
func (m *share) begin(c *Consumer) error {
	var had cp.Position
	if m.cursor != "" {
		var err error
		if had, c.marks, err = api.DecodeCursor(c.topic, m.cursor); err != nil {
			return err
		}
	}
	return c.look(func(s *cp.State) error {
		c.pos = cp.Position{}
		unread := s.Unread(c.opts.Group, c.opts.Topic)
		for _, seq := range m.ranges {
			r := s.Range(fence.RangeID{Topic: c.topic, Seq: seq})
			if r == nil {
				return fmt.Errorf("range %d: %w", seq, cp.ErrNoSuchRange)
			}
			at, ok := unread[r.ID]
			switch {
			case ok:
				c.pos[r.ID] = max(at, had[r.ID])
			case comesFrom(s, r.ID, unread):
				return fmt.Errorf("range %d: %w", seq, errTooEarly)
			default:
				c.pos[r.ID] = r.NextOffset
				m.finish(r.ID)
			}
		}
		maps.DeleteFunc(c.marks, func(id fence.RangeID, _ uint32) bool { return c.pos[id] != had[id] })
		return c.check(s)
	})
}

// comesFrom says whether a range has an ancestor among the sources of p.
func comesFrom(s *cp.State, id fence.RangeID, p cp.Position) bool {
	for source := range p {
		if s.IsAncestor(source, id) {
			return true
		}
	}
	return false
}

var errTooEarly = errors.New("the group has not finished the ranges that it comes from")

func (m *share) finish(id fence.RangeID) {
	m.finished[id] = true
	m.news = append(m.news, id.Seq)
}

// OpenMember opens a consumer of some ranges. cursor is where the member was in those
// that it had before, or "".
func (b *backend) OpenMember(topic, group string, ranges []uint32, cursor string) (server.Consumer, error) {
	c, err := b.newConsumer(ConsumerOptions{Topic: topic, Group: group}, &share{ranges: ranges, cursor: cursor, finished: map[fence.RangeID]bool{}})
	if err != nil {
		return nil, err
	}
	return framer{c}, nil
}

// CommitRanges makes a cursor the group's place in the ranges that it names, and in no
// others.
func (b *backend) CommitRanges(ctx context.Context, topic, group, cursor string, generation uint64) error {
	c, err := b.NewConsumer(ConsumerOptions{Topic: topic, Group: group, From: FromCursor(cursor)})
	if err != nil {
		return err
	}
	return errors.Join(b.groupCommand(ctx, topic, cp.CommitRanges{Group: group, Topic: topic, Generation: generation, Sources: c.pos}), c.Close())
}

// FenceGroup makes a group if there is none, and has commits of lower generations refused
// from now on.
func (b *backend) FenceGroup(ctx context.Context, topic, group string, generation uint64) error {
	if err := api.CheckGroup(group); err != nil {
		return err
	}
	return b.groupCommand(ctx, topic, cp.FenceGroup{Group: group, Topic: topic, Generation: generation})
}

func (b *backend) groupCommand(ctx context.Context, topic string, cmd cp.Command) error {
	return b.aboutGroups(ctx, topic, func() error { return b.command(topic, cmd).Err })
}

// Unread tells which ranges a group may read now, and the topic's identity.
func (b *backend) Unread(topic, group string) (identity string, ranges []uint32, err error) {
	err = b.lookAt(topic, func(s *cp.State, t *cp.Topic) {
		identity = t.ID.String()
		for id := range s.Unread(group, topic) {
			ranges = append(ranges, id.Seq)
		}
	})
	slices.Sort(ranges)
	return identity, ranges, about(topic, -1, err)
}

// CursorRanges tells where a cursor is in each range that it has not finished.
func (b *backend) CursorRanges(topic, cursor string) ([]api.GroupRange, error) {
	c, err := b.NewConsumer(ConsumerOptions{Topic: topic, From: FromCursor(cursor)})
	if err != nil {
		return nil, err
	}
	list, err := c.Ranges()
	return list, errors.Join(err, c.Close())
}

// Incarnation counts the times that the directory was opened.
func (b *backend) Incarnation() uint64 { return b.host.Incarnation() }
