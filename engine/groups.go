package engine

import (
	"context"
	"iter"
	"math"
	"slices"
	"time"

	"github.com/ringfence/ringfence/cp"
	"github.com/ringfence/ringfence/engine/api"
	"github.com/ringfence/ringfence/fence"
)

// Groups lists the groups of a topic by name: those that have committed something or had
// members.
func (e *Engine) Groups(ctx context.Context, topic string) (names []string, err error) {
	err = e.aboutGroups(ctx, topic, func() error {
		return e.lookAt(topic, func(s *cp.State, _ *cp.Topic) { names = slices.Collect(s.Groups(topic)) })
	})
	return names, err
}

// AllGroups visits the same names. It ends after an error.
func (e *Engine) AllGroups(ctx context.Context, topic string) iter.Seq2[string, error] {
	return api.Listed(e.Groups(ctx, topic))
}

// DescribeGroup says where a group is and how far it is behind; ErrNoSuchGroup if it has
// neither committed anything nor had members. If the end of some ranges is not known, because
// their open segment is damaged, they are left out and the error is ErrDamaged.
func (e *Engine) DescribeGroup(ctx context.Context, topic, group string) (g GroupInfo, err error) {
	if err := api.CheckGroup(group); err != nil {
		return g, err
	}
	g.Name = group
	err = e.aboutGroups(ctx, topic, func() error {
		if err := e.groupExists(topic, group); err != nil {
			return err
		}
		c, err := e.NewConsumer(ConsumerOptions{Topic: topic, Group: group})
		if err != nil {
			return err
		}
		defer c.Close()
		g.Cursor = c.Cursor()
		g.Ranges, err = c.Ranges()
		for _, r := range g.Ranges {
			g.Lag += min(r.Lag, math.MaxUint64-g.Lag)
		}
		return err
	})
	return g, err
}

// GroupLag says how many records a group is behind.
type GroupLag struct {
	Topic, Group string
	Records      uint64
}

// GroupLags says how far groups are behind, by topic and name: of at most most groups, and
// whether there are more. Groups whose lag is not known, because their topic is damaged, are
// left out.
func (e *Engine) GroupLags(ctx context.Context, most int) (list []GroupLag, more bool, err error) {
	if err := e.enter(ctx); err != nil {
		return nil, false, err
	}
	defer e.end()
	topics, err := e.topics()
	if err != nil {
		return nil, false, err
	}
	for _, t := range topics {
		var names []string
		err := e.lookAt(t.Name, func(s *cp.State, _ *cp.Topic) { names = slices.Collect(s.Groups(t.Name)) })
		if err != nil {
			continue // deleted meanwhile
		}
		for _, group := range names {
			if len(list) == most {
				return list, true, nil
			}
			if err := ctx.Err(); err != nil {
				return nil, false, err
			}
			c, err := e.NewConsumer(ConsumerOptions{Topic: t.Name, Group: group})
			if err != nil {
				continue
			}
			n, err := c.Lag()
			if c.Close() == nil && err == nil {
				list = append(list, GroupLag{t.Name, group, n})
			}
		}
	}
	return list, false, nil
}

// DeleteGroup forgets a group's position; records are not touched. A consumer of the group
// that commits afterwards creates it again. To move a group, use [Consumer.Reset]. Errors:
// ErrNoSuchTopic, ErrNoSuchGroup.
func (e *Engine) DeleteGroup(ctx context.Context, topic, group string) error {
	if err := api.CheckGroup(group); err != nil {
		return err
	}
	return e.aboutGroups(ctx, topic, func() error {
		if err := e.groupExists(topic, group); err != nil {
			return err
		}
		return e.command(topic, cp.DeleteGroup{Group: group, Topic: topic}).Err
	})
}

// aboutGroups does something about a topic's groups.
func (e *Engine) aboutGroups(ctx context.Context, topic string, do func() error) error {
	if err := api.CheckTopic(topic); err != nil {
		return err
	}
	if err := e.enter(ctx); err != nil {
		return err
	}
	defer e.end()
	return about(topic, -1, do())
}

func (e *Engine) groupExists(topic, group string) error {
	found := false
	err := e.lookAt(topic, func(s *cp.State, _ *cp.Topic) { _, found = s.Generation(group, topic) })
	if err == nil && !found {
		err = api.Of("group", group, ErrNoSuchGroup)
	}
	return err
}

// Lag is how many stored records the consumer has not returned yet. If the end of a range is
// not known, because its open segment is damaged, the error is ErrDamaged.
func (c *Consumer) Lag() (n uint64, err error) {
	list, err := c.unread()
	for _, u := range list {
		n += min(u.Lag, math.MaxUint64-n)
	}
	return n, err
}

// Ranges says where the consumer is in each range that it has not finished; ranges come before
// those that took over their keys.
func (c *Consumer) Ranges() ([]GroupRange, error) {
	if err := c.e.begin(); err != nil {
		return nil, err
	}
	defer c.e.end()
	list, err := c.unread()
	var ranges []GroupRange
	for _, u := range list {
		if u.Lag > 0 {
			u.Behind = -1
			if at, ok := c.e.timeAt(u.segment, u.first); ok {
				u.Behind = max(c.e.opts.now().Sub(at), 0)
			}
		}
		ranges = append(ranges, u.GroupRange)
	}
	return ranges, err
}

// unread is a range that is not finished, and the first record of it that is stored
// and was not read, if there is one.
type unread struct {
	GroupRange
	segment fence.SegmentID
	first   uint64
}

// unread lists the ranges that are not finished, except those whose end is not known: the
// error is about one of these.
func (c *Consumer) unread() (list []unread, err error) {
	if err := c.e.begin(); err != nil {
		return nil, err
	}
	defer c.e.end()
	var unknown error
	err = c.look(func(s *cp.State) error {
		ahead := map[fence.RangeID]bool{}
		for r := range s.Ranges(c.opts.Topic) {
			offset, ok := c.pos[r.ID]
			if !ok && !slices.ContainsFunc(r.From, func(p fence.RangeID) bool { return ahead[p] }) {
				continue // finished, or another reader's
			}
			ahead[r.ID] = true
			if head := s.Head(r.ID); head != nil && c.e.lost[head.ID] != nil {
				unknown = about(c.opts.Topic, int64(r.ID.Seq), c.e.lost[head.ID])
				continue
			}
			u := unread{GroupRange: GroupRange{Range: r.ID.Seq, Offset: offset, End: c.e.endOf(s, r)}}
			for seg := range s.Segments(r.ID) {
				end := seg.Start + seg.Length
				if seg.Phase == cp.Active {
					end = u.End
				}
				from := max(offset, seg.Start)
				if from >= end || c.e.isGivenUp(seg.ID) {
					continue
				}
				if u.Lag == 0 {
					u.segment, u.first = seg.ID, from
				}
				u.Lag += min(end-from, math.MaxUint64-u.Lag)
			}
			list = append(list, u)
		}
		return nil
	})
	if err == nil {
		err = unknown
	}
	return list, about(c.opts.Topic, -1, err)
}

// timeAt is the time of a record; false if it cannot be read.
func (e *Engine) timeAt(id fence.SegmentID, offset uint64) (time.Time, bool) {
	seg, err := e.store.Segment(id)
	if err != nil || e.whyLost(id) != nil {
		return time.Time{}, false
	}
	scan, err := seg.Scan(offset)
	if err != nil {
		return time.Time{}, false
	}
	defer scan.Close()
	b, err := scan.Next()
	if err != nil {
		return time.Time{}, false
	}
	i := int(max(offset, b.Head.Base) - b.Head.Base) // or the first behind a loss
	return time.UnixMilli(b.Timestamp(i)), true
}
