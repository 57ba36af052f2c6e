package server

import (
	"context"
	"errors"
	"slices"

	"github.com/ringfence/ringfence/engine/api"
	"github.com/ringfence/ringfence/engine/wire"
)

// answerGroup does what a request about a group asks.
func (c *conn) answerGroup(ctx context.Context, key wire.Key, who Identity, m any) (wire.Message, error) {
	switch m := m.(type) {
	case *wire.JoinGroup:
		if err := c.mayConsume(who, m.Topic, m.Group); err != nil {
			return nil, err
		}
		a, err := c.s.groups.join(ctx, m)
		return c.s.assigned(a), err
	case *wire.LeaveGroup:
		if err := c.mayConsume(who, m.Topic, m.Group); err != nil {
			return nil, err
		}
		return &wire.Done{}, c.s.groups.leave(m)
	case *wire.ListGroups:
		return c.listGroups(ctx, who, m)
	case *wire.ListMembers:
		return c.listMembers(ctx, who, m)
	case *wire.DescribeGroup:
		return c.describeGroup(ctx, who, m)
	case *wire.Group:
		return c.deleteGroup(ctx, who, m)
	}
	return c.administer(ctx, key, who, m)
}

// heartbeat may wait for long.
func (c *conn) heartbeat(h wire.Head, m *wire.Heartbeat) {
	a, err := c.s.groups.heartbeat(c.calm, m)
	if err != nil {
		c.fail(h, err)
		return
	}
	c.reply(h, c.s.assigned(a))
}

// listGroups answers a page of the groups that somebody may know of.
func (c *conn) listGroups(ctx context.Context, who Identity, m *wire.ListGroups) (wire.Message, error) {
	if err := c.s.allow(who, OpDescribe, m.Topic); err != nil {
		return nil, err
	}
	names, err := c.s.engine.Groups(ctx, m.Topic)
	if err != nil {
		return nil, err
	}
	known := c.knownTo(who, OpDescribeGroup)
	page, more := pageOf(names, m.After, m.Limit, itself, known.is)
	return &wire.ListGroupsReply{Groups: page, More: more}, known.err
}

// checkNames refuses what no topic and no group can be called, before it is asked who is
// in it: nobody is, which is no answer to a name that was misspelt.
func checkNames(topic, group string) error {
	if err := api.CheckTopic(topic); err != nil {
		return err
	}
	return api.CheckGroup(group)
}

// mayTouch asks whether somebody may do something to a group of a topic that he may know.
func (c *conn) mayTouch(who Identity, op Op, topic, group string) error {
	err := checkNames(topic, group)
	if err == nil {
		err = c.s.allow(who, OpDescribe, topic)
	}
	if err == nil {
		err = c.s.allow(who, op, group)
	}
	return err
}

// listMembers answers a page of a group's members.
func (c *conn) listMembers(ctx context.Context, who Identity, m *wire.ListMembers) (wire.Message, error) {
	if err := c.mayTouch(who, OpDescribeGroup, m.Topic, m.Group); err != nil {
		return nil, err
	}
	generation, names := c.s.groups.members(m.Topic, m.Group)
	if generation == 0 { // no member is no answer about a group that there is not
		if err := c.groupExists(ctx, m.Topic, m.Group); err != nil {
			return nil, err
		}
	}
	page, more := pageOf(names, m.After, m.Limit, itself, everything)
	return &wire.ListMembersReply{Generation: generation, Members: page, More: more}, ctx.Err()
}

func (c *conn) groupExists(ctx context.Context, topic, group string) error {
	names, err := c.s.engine.Groups(ctx, topic)
	if err != nil {
		return err
	}
	if _, found := slices.BinarySearch(names, group); !found {
		return &api.TopicError{Topic: topic, Range: -1, Err: api.Of("group", group, api.ErrNoSuchGroup)}
	}
	return nil
}

// describeGroup answers a page of what there is to tell, also where some of it is damaged.
func (c *conn) describeGroup(ctx context.Context, who Identity, m *wire.DescribeGroup) (wire.Message, error) {
	if err := c.mayTouch(who, OpDescribeGroup, m.Topic, m.Group); err != nil {
		return nil, err
	}
	info, err := c.s.engine.DescribeGroup(ctx, m.Topic, m.Group)
	damage := ""
	if errors.Is(err, api.ErrDamaged) {
		damage, err = wire.Clip(err.Error()), nil
	}
	if err != nil {
		return nil, err
	}
	c.s.groups.name(m.Topic, &info)
	page, more := rangesFrom(info.Ranges, m.From)
	r := &wire.DescribeGroupReply{Group: info.Name, Ranges: rangesAt(page), More: more, Lag: info.Lag, Damage: damage}
	if m.From == 0 {
		r.Cursor = info.Cursor
	}
	return r, nil
}

func (c *conn) deleteGroup(ctx context.Context, who Identity, m *wire.Group) (wire.Message, error) {
	if err := c.mayTouch(who, OpDeleteGroup, m.Topic, m.Group); err != nil {
		return nil, err
	}
	if err := c.s.groups.idle(m.Topic, m.Group); err != nil {
		return nil, err
	}
	return &wire.Done{}, c.s.engine.DeleteGroup(ctx, m.Topic, m.Group)
}
