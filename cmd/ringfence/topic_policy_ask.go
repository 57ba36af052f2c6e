package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ringfence/ringfence/engine"
	"github.com/ringfence/ringfence/engine/api"
)

// condemned is what a policy would remove of topics, if it was applied now.
type condemned struct {
	topics   []string
	segments int
	records  uint64
	bytes    uint64
}

// add adds what the limits of a policy remove of a topic. What inherits is not looked at: the
// defaults hold whatever is set here.
func (c *condemned) add(d engine.TopicDetail, p engine.Policy, now time.Time) {
	maxAge, byAge := p.MaxAge.Get()
	maxBytes, bySize := p.MaxBytes.Get()
	before := c.segments
	for _, r := range d.AllRanges {
		var kept uint64
		for _, s := range slices.Backward(r.Segments) {
			if s.Active {
				continue
			}
			kept = min(kept+min(s.Bytes, 1<<62), 1<<62) // above every limit
			large := bySize && kept > uint64(max(maxBytes, 0))
			old := byAge && now.Sub(s.SealedAt).Milliseconds() > maxAge
			if large || old {
				c.segments++
				c.records += s.Records - min(s.Lost, s.Records)
				c.bytes += s.Bytes
			}
		}
	}
	if c.segments > before {
		c.topics = append(c.topics, d.Name)
	}
}

// confirmBinding asks before a topic is bound to a policy that removes something of it.
func (a *app) confirmBinding(ctx context.Context, l api.Log, yes bool, topic, policy string) error {
	if yes || policy == "" {
		return nil
	}
	list, err := l.Policies(ctx)
	if err != nil {
		return err
	}
	p, defined := list[policy]
	if !defined {
		return nil // which binding says
	}
	return a.confirmPolicy(ctx, l, yes, p, topic, policy)
}

// confirmPolicy asks before a policy is applied that removes something of a topic or, if
// that is "", of those that are bound to it.
func (a *app) confirmPolicy(ctx context.Context, l api.Log, yes bool, p engine.Policy, topic, policy string) error {
	_, byAge := p.MaxAge.Get()
	_, bySize := p.MaxBytes.Get()
	if yes || !byAge && !bySize {
		return nil
	}
	var c condemned
	look := func(name string) error {
		d, err := l.Describe(ctx, name)
		if errors.Is(err, engine.ErrNoSuchTopic) {
			return nil // which binding says, or deleted meanwhile
		}
		if err == nil {
			c.add(d, p, time.Now())
		}
		return err
	}
	if topic != "" {
		if err := look(topic); err != nil {
			return err
		}
	} else {
		var bound []string
		for t, err := range l.AllTopics(ctx) {
			if err != nil {
				return err
			}
			if t.Policy == policy {
				bound = append(bound, t.Name)
			}
		}
		for _, name := range bound {
			if err := look(name); err != nil {
				return err
			}
		}
	}
	if c.segments == 0 {
		return nil
	}
	of := "topic " + c.topics[0]
	if n := len(c.topics); n > 1 {
		of += " and " + plural(n-1, "other topic")
	}
	return a.ask(ctx, sure(fmt.Sprintf("Policy %s, applied now, removes %s with %s (%s) of %s, for good: retention takes closed segments whole, also the last one.",
		policy, plural(c.segments, "closed segment"), plural(c.records, "record"), bytesText(c.bytes), of)))
}
