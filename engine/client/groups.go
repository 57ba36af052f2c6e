package client

import (
	"context"
	"fmt"
	"iter"
	"time"

	"github.com/ringfence/ringfence/engine/api"
	"github.com/ringfence/ringfence/engine/wire"
)

// Groups lists the groups of a topic by name.
func (c *Client) Groups(ctx context.Context, topic string) ([]string, error) {
	return api.Collect(c.AllGroups(ctx, topic))
}

// AllGroups visits the groups of a topic by name, without holding all of them. It ends
// after an error.
func (c *Client) AllGroups(ctx context.Context, topic string) iter.Seq2[string, error] {
	return listed("group", func(name *string) string { return *name }, func(after string) ([]string, bool, error) {
		msg, err := c.askTopic(ctx, topic, wire.KeyListGroups, &wire.ListGroups{Topic: topic, After: after})
		if err != nil {
			return nil, false, err
		}
		reply := msg.(*wire.ListGroupsReply)
		return reply.Groups, reply.More, nil
	})
}

// DescribeGroup tells where a group is, how far it is behind, and which member reads what.
// Ranges whose end is not known, because their open segment is damaged, are left out, with
// an ErrDamaged.
func (c *Client) DescribeGroup(ctx context.Context, topic, group string) (api.GroupInfo, error) {
	if err := api.CheckGroup(group); err != nil {
		return api.GroupInfo{}, err
	}
	g := api.GroupInfo{}
	var damage error
	ranges, err := eachRange(func(from uint32) ([]*wire.GroupRange, bool, error) {
		msg, err := c.askTopic(ctx, topic, wire.KeyDescribeGroup, &wire.DescribeGroup{Topic: topic, Group: group, From: from})
		if err != nil {
			return nil, false, err
		}
		r := msg.(*wire.DescribeGroupReply)
		if from == 0 {
			g = api.GroupInfo{Name: r.Group, Lag: r.Lag, Cursor: r.Cursor}
			if r.Damage != "" {
				damage = about(topic, fmt.Errorf("%w: %s", ErrDamaged, r.Damage))
			}
		}
		return r.Ranges, r.More, nil
	})
	if err != nil {
		return api.GroupInfo{}, err
	}
	g.Ranges = ranges
	g.Members, err = api.Collect(listed("member", func(name *string) string { return *name }, func(after string) ([]string, bool, error) {
		msg, err := c.askTopic(ctx, topic, wire.KeyListMembers, &wire.ListMembers{Topic: topic, Group: group, After: after})
		if err != nil {
			return nil, false, err
		}
		reply := msg.(*wire.ListMembersReply)
		g.Generation = reply.Generation
		return reply.Members, reply.More, nil
	}))
	if err != nil {
		return api.GroupInfo{}, err
	}
	return g, damage
}

func rangesAt(list []*wire.GroupRange) (out []api.GroupRange) {
	for _, r := range list {
		g := api.GroupRange{Range: r.Range, Offset: r.Offset, End: r.End, Lag: r.Lag, Behind: -1, Member: r.Member}
		if r.LagMs >= 0 {
			g.Behind = time.Duration(r.LagMs) * time.Millisecond
		}
		out = append(out, g)
	}
	return out
}

// DeleteGroup forgets a group's position; records are not touched. It is refused while the
// group has members.
func (c *Client) DeleteGroup(ctx context.Context, topic, group string) error {
	if err := api.CheckGroup(group); err != nil {
		return err
	}
	_, err := c.askTopic(ctx, topic, wire.KeyDeleteGroup, &wire.Group{Topic: topic, Group: group})
	return err
}

// ForgetPolicy is DeletePolicy also while topics are bound to the name: nothing of them
// expires until it is defined again.
func (c *Client) ForgetPolicy(ctx context.Context, name string) error {
	if err := api.CheckPolicy(name); err != nil {
		return err
	}
	_, err := c.ask(ctx, wire.KeyDeletePolicy, &wire.DeletePolicy{Name: name, Force: true})
	return ofPolicy(name, err)
}
