package client

import (
	"context"
	"fmt"
	"iter"
	"time"

	"github.com/ringfence/ringfence/cp"
	"github.com/ringfence/ringfence/engine/api"
	"github.com/ringfence/ringfence/engine/wire"
)

// askTopic asks about one topic.
func (c *Client) askTopic(ctx context.Context, topic string, key wire.Key, msg wire.Message) (any, error) {
	if err := api.CheckTopic(topic); err != nil {
		return nil, err
	}
	reply, err := c.ask(ctx, key, msg)
	return reply, about(topic, err)
}

// CreateTopic creates a topic with one range.
func (c *Client) CreateTopic(ctx context.Context, name string, o api.TopicOptions) error {
	if o.Policy != "" {
		if err := api.CheckPolicy(o.Policy); err != nil {
			return err
		}
	}
	_, err := c.askTopic(ctx, name, wire.KeyCreateTopic, &wire.CreateTopic{Topic: name, Bits: o.Bits, Policy: o.Policy})
	return err
}

// DeleteTopic removes a topic with all of its records.
func (c *Client) DeleteTopic(ctx context.Context, name string) error {
	_, err := c.askTopic(ctx, name, wire.KeyDeleteTopic, &wire.Topic{Topic: name})
	return err
}

// Topics lists all topics by name.
func (c *Client) Topics(ctx context.Context) ([]api.TopicInfo, error) {
	return api.Collect(c.AllTopics(ctx))
}

// AllTopics visits all topics by name, without holding all of them. It ends after an
// error.
func (c *Client) AllTopics(ctx context.Context) iter.Seq2[api.TopicInfo, error] {
	return listed("topic", func(t *api.TopicInfo) string { return t.Name }, func(after string) (list []api.TopicInfo, more bool, err error) {
		msg, err := c.ask(ctx, wire.KeyListTopics, &wire.ListTopics{After: after})
		if err != nil {
			return nil, false, err
		}
		reply := msg.(*wire.ListTopicsReply)
		for _, t := range reply.Topics {
			list = append(list, topicInfo(t))
		}
		return list, reply.More, nil
	})
}

func topicInfo(t *wire.TopicInfo) api.TopicInfo {
	return api.TopicInfo{
		Name: t.Name, ID: t.Id, Bits: t.Bits, Policy: t.Policy, PolicyMissing: t.PolicyMissing, Created: timeOf(t.CreatedMs),
		Ranges: int(t.Ranges), Segments: int(t.Segments), Records: t.Records, Bytes: t.Bytes,
		Damaged: int(t.Damaged), SetAside: int(t.SetAside),
	}
}

// timeOf is a time on the wire, where 0 is none.
func timeOf(ms int64) time.Time {
	if ms == 0 {
		return time.Time{}
	}
	return time.UnixMilli(ms)
}

// SplitRange splits an active range into two.
func (c *Client) SplitRange(ctx context.Context, topic string, seq uint32) (left, right uint32, err error) {
	msg, err := c.askTopic(ctx, topic, wire.KeySplitRange, &wire.SplitRange{Topic: topic, Range: seq})
	if err != nil {
		return 0, 0, err
	}
	reply := msg.(*wire.SplitRangeReply)
	return reply.Left, reply.Right, nil
}

// MergeRanges merges two active ranges that a split made.
func (c *Client) MergeRanges(ctx context.Context, topic string, a, b uint32) (uint32, error) {
	msg, err := c.askTopic(ctx, topic, wire.KeyMergeRanges, &wire.MergeRanges{Topic: topic, A: a, B: b})
	if err != nil {
		return 0, err
	}
	return msg.(*wire.MergeRangesReply).Range, nil
}

// Roll closes the segments that are being written, and says how many.
func (c *Client) Roll(ctx context.Context, topic string) (int, error) {
	msg, err := c.askTopic(ctx, topic, wire.KeyRollTopic, &wire.Topic{Topic: topic})
	if err != nil {
		return 0, err
	}
	return int(msg.(*wire.RollTopicReply).Segments), nil
}

// SetPolicy defines a policy, or replaces its definition.
func (c *Client) SetPolicy(ctx context.Context, name string, p api.Policy) error {
	if err := api.CheckPolicy(name); err != nil {
		return err
	}
	if p.SpreadBy != (cp.Spread{}) {
		return api.Of("policy", name, fmt.Errorf("%w: SpreadBy cannot be set over the network", cp.ErrInvalidPolicy))
	}
	_, err := c.ask(ctx, wire.KeySetPolicy, &wire.SetPolicy{Policy: &wire.Policy{
		Name: name, MaxAge: bound(p.MaxAge), MaxBytes: bound(p.MaxBytes),
		SegmentMaxAge: bound(p.SegmentMaxAge), SegmentMaxBytes: bound(p.SegmentMaxBytes),
	}})
	return ofPolicy(name, err)
}

func ofPolicy(name string, err error) error { return api.Of("policy", name, err) }

// bound is b as it is, whatever it says: the server knows what may be said.
func bound(b api.Bound) *wire.Bound { return &wire.Bound{Setting: byte(b.Setting), Limit: b.N} }

func boundOf(b *wire.Bound) api.Bound {
	switch cp.Setting(b.Setting) {
	case cp.Off:
		return api.Unlimited()
	case cp.On:
		return api.Limit(b.Limit)
	}
	return api.Bound{}
}

// DeletePolicy removes a definition. While topics are bound to it that is refused with an
// ErrPolicyInUse that names them; see [Client.ForgetPolicy].
func (c *Client) DeletePolicy(ctx context.Context, name string) error {
	if err := api.CheckPolicy(name); err != nil {
		return err
	}
	_, err := c.ask(ctx, wire.KeyDeletePolicy, &wire.DeletePolicy{Name: name})
	return ofPolicy(name, err)
}

// Policies lists the definitions by name.
func (c *Client) Policies(ctx context.Context) (map[string]api.Policy, error) {
	list := map[string]api.Policy{}
	names := listed("policy", func(name *string) string { return *name }, func(after string) (names []string, more bool, err error) {
		msg, err := c.ask(ctx, wire.KeyListPolicies, &wire.ListPolicies{After: after})
		if err != nil {
			return nil, false, err
		}
		reply := msg.(*wire.ListPoliciesReply)
		for _, p := range reply.Policies {
			names = append(names, p.Name)
			list[p.Name] = api.Policy{
				MaxAge: boundOf(p.MaxAge), MaxBytes: boundOf(p.MaxBytes),
				SegmentMaxAge: boundOf(p.SegmentMaxAge), SegmentMaxBytes: boundOf(p.SegmentMaxBytes),
			}
		}
		return names, reply.More, nil
	})
	if _, err := api.Collect(names); err != nil {
		return nil, err
	}
	return list, nil
}

// BindPolicy binds a topic to a policy by name; "" unbinds.
func (c *Client) BindPolicy(ctx context.Context, topic, policy string) error {
	if policy != "" {
		if err := api.CheckPolicy(policy); err != nil {
			return err
		}
	}
	_, err := c.askTopic(ctx, topic, wire.KeyBindPolicy, &wire.BindPolicy{Topic: topic, Policy: policy})
	return err
}
