package frontend

import (
	"errors"
	"slices"

	"github.com/ringfence/ringfence/cp"
	"github.com/ringfence/ringfence/fence"
)

// CreateTopic makes a topic of 2^bits positions (1 to 32) with one range, and returns that
// range. The identity is 128 random bits that the caller drew; at is in ms since the epoch.
// No segment is opened: the first produce does that. Refusals: cp.ErrInvalidName,
// cp.ErrTopicExists, cp.ErrInvalidBits, cp.ErrInvalidTopicID, and whatever keeps the control
// plane from answering.
func (f *Frontend) CreateTopic(name string, bits uint8, id fence.TopicID, at int64) (fence.RangeID, error) {
	reply := f.run(name, cp.CreateTopic{Name: name, Bits: bits, ID: id, At: at}, nil)
	if reply.Err != nil {
		return fence.RangeID{}, topicErr(name, reply.Err)
	}
	return reply.Range, nil
}

// DeleteTopic removes a topic with its ranges, segments and group positions from the
// control plane; deleting the bytes is the caller's, afterwards. Refusals:
// cp.ErrNoSuchTopic, cp.ErrMigrating.
func (f *Frontend) DeleteTopic(name string) error {
	t, err := f.Topic(name)
	if err != nil {
		return err
	}
	if reply := f.run(name, cp.DeleteTopic{Name: name, ID: t.id}, nil); reply.Err != nil {
		return topicErr(name, reply.Err)
	}
	return nil
}

// SplitRange replaces a range by its two halves. It is a change of metadata alone: the
// caller has fenced the range's head and recorded the seal first, and the control plane
// refuses with cp.ErrActiveSegment otherwise. Other refusals: cp.ErrNoSuchRange,
// cp.ErrRangeSealed, cp.ErrCannotSplit.
func (f *Frontend) SplitRange(id fence.RangeID) (left, right fence.RangeID, err error) {
	reply := f.run(f.nameOf(id.Topic), cp.SplitRange{Range: id}, func(*cp.State, cp.Reply) { f.retired(id) })
	if reply.Err != nil {
		return left, right, rangeErr(id, reply.Err)
	}
	return reply.Range, reply.Range2, nil
}

// MergeRanges replaces two buddies by the range that covers both; the rules are those of
// [Frontend.SplitRange]. Other refusals: cp.ErrDifferentTopic, cp.ErrNotBuddies.
func (f *Frontend) MergeRanges(a, b fence.RangeID) (fence.RangeID, error) {
	reply := f.run(f.nameOf(a.Topic), cp.MergeRanges{A: a, B: b}, func(*cp.State, cp.Reply) {
		f.retired(a)
		f.retired(b)
	})
	if reply.Err != nil {
		if errors.Is(reply.Err, cp.ErrRangeSealed) && slices.Contains(f.ActiveRangeIDs(f.nameOf(a.Topic)), a) {
			a = b // it is the other one
		}
		return fence.RangeID{}, rangeErr(a, reply.Err)
	}
	return reply.Range, nil
}

// ActiveRangeIDs lists the ranges that tile the topic's keyspace now, by position; none for
// a topic that the view does not have.
func (f *Frontend) ActiveRangeIDs(topic string) []fence.RangeID {
	t := f.names.get(topic)
	if t == nil {
		return nil
	}
	t.shard.mu.Lock()
	defer t.shard.mu.Unlock()
	ids := make([]fence.RangeID, len(t.routes))
	for i, rt := range t.routes {
		ids[i] = rt.r.id
	}
	return ids
}

// BindTopicPolicy binds a topic to the name of a policy; "" detaches it. Whether the name is
// defined is the caller's to check. Refusals: cp.ErrNoSuchTopic, cp.ErrInvalidPolicy.
func (f *Frontend) BindTopicPolicy(topic, policy string) error {
	if reply := f.run(topic, cp.BindTopicPolicy{Topic: topic, Policy: policy}, nil); reply.Err != nil {
		return topicErr(topic, reply.Err)
	}
	return nil
}

// TopicPolicyName is the name of the policy that a topic is bound to, "" if none.
func (f *Frontend) TopicPolicyName(topic string) (string, error) {
	f.meta.RLock()
	defer f.meta.RUnlock()
	t := f.view.Topic(topic)
	if t == nil {
		return "", topicErr(topic, cp.ErrNoSuchTopic)
	}
	return t.Policy, nil
}

// TopicsBoundTo lists the topics bound to a policy, by name, over all vnodes.
func (f *Frontend) TopicsBoundTo(policy string) []string {
	f.meta.RLock()
	defer f.meta.RUnlock()
	var names []string
	for _, s := range f.view.Vnodes {
		for t := range s.Topics() {
			if t.Policy == policy {
				names = append(names, t.Name)
			}
		}
	}
	slices.Sort(names)
	return names
}

// DeleteSegment removes a sealed segment from the control plane, for retention. Its bytes are
// the caller's to delete, and only after success or cp.ErrNoSuchSegment. Other refusals:
// cp.ErrSegmentActive, cp.ErrMigrating.
func (f *Frontend) DeleteSegment(id fence.SegmentID) error {
	if reply := f.run(f.nameOf(id.Range.Topic), cp.DeleteSegment{ID: id}, nil); reply.Err != nil {
		return rangeErr(id.Range, reply.Err)
	}
	return nil
}

// ApplyHeal carries out what a healing pass decided, in order: failover seals and new replica
// sets. After a seal the range is seated at the length that the metadata ended with, whatever
// the command asked for.
func (f *Frontend) ApplyHeal(commands []cp.Command) { _ = f.ApplyHealReply(commands) }

// ApplyHealReply is [Frontend.ApplyHeal] and answers the first refusal; the commands after it
// are carried out all the same.
func (f *Frontend) ApplyHealReply(commands []cp.Command) error {
	var first error
	for _, cmd := range commands {
		name, id := cp.Target(cmd)
		if name == "" {
			name = f.nameOf(id)
		}
		reply := f.run(name, cmd, func(state *cp.State, _ cp.Reply) { f.follow(state, cmd) })
		if reply.Err == nil {
			continue
		}
		if first == nil {
			first = topicErr(name, reply.Err)
		}
		if c, ok := cmd.(cp.SealSegment); ok {
			f.sealRefused(name, c.ID, reply)
		}
	}
	return first
}

// sealRefused drops the head that a failover wanted sealed: whatever kept the seal from being
// recorded, writing to the segment is over. It is seated where the view, or the refusal, says that
// it ended.
func (f *Frontend) sealRefused(topic string, id fence.SegmentID, reply cp.Reply) {
	f.fetch(topic)
	f.meta.RLock()
	defer f.meta.RUnlock()
	state := f.view.ofID(id.Range.Topic)
	if state == nil {
		return
	}
	var sealed cp.AlreadySealed
	if seg := state.Segment(id); seg != nil && seg.Phase == cp.Active && errors.As(reply.Err, &sealed) {
		s := f.shardOf(id.Range)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.forget(id, seg.Start+sealed.Length)
		return
	}
	f.sealedElsewhere(state, id)
}

// place chooses the replicas of a new segment. Meta is held.
func (f *Frontend) place(id fence.SegmentID, topic string) ([]cp.NodeID, error) {
	return cp.Place(id, f.brokers, f.opts.ReplicationFactor, cp.Placement{
		SpreadBy:   f.spreadBy(topic),
		Attributes: f.labels,
		MinDomains: f.opts.MinDomains,
		Hard:       f.opts.Hard,
	})
}

// DomainViolations counts, by topic, the segments whose replicas span fewer than
// Options.MinDomains values of Options.SpreadBy. It is empty unless both are set.
func (f *Frontend) DomainViolations() map[string]int {
	return f.DomainViolationsIn(f.Metadata())
}

// DomainViolationsIn is [Frontend.DomainViolations] over a view that the caller has already.
func (f *Frontend) DomainViolationsIn(v View) map[string]int {
	f.meta.RLock()
	p := cp.Placement{SpreadBy: f.opts.SpreadBy, Attributes: f.labels, MinDomains: f.opts.MinDomains}
	f.meta.RUnlock()
	count := map[string]int{}
	for _, s := range v.Vnodes {
		for topic, n := range cp.DomainViolations(s, p) {
			count[topic] += n
		}
	}
	return count
}
