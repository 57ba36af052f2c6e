package server

import (
	"context"
	"errors"
	"math"
	"strings"
	"time"

	"github.com/ringfence/ringfence/engine/api"
	"github.com/ringfence/ringfence/engine/wire"
)

// start begins what a request asks for; the reader goes on meanwhile. A *wire.Error
// refuses it.
func (c *conn) start(h wire.Head, m any) error {
	switch m := m.(type) {
	case *wire.Ping:
		c.reply(h, &wire.Done{})
		return nil
	case *wire.Attach:
		return c.attach(h, m)
	case *wire.CloseProducer:
		p, err := c.handles.producer(m.Producer, true)
		if err == nil {
			c.meta.add(func() { c.closeProducer(h, m.Producer, p) })
		}
		return err
	case *wire.Fetch:
		r, err := c.handles.consumer(m.Consumer, false)
		if err == nil {
			err = r.idle()
		}
		if err == nil {
			r.work.add(func() { r.fetch(h, m) })
		}
		return err
	case *wire.Subscribe:
		r, err := c.handles.consumer(m.Consumer, false)
		if err == nil {
			err = r.begin(m)
		}
		if err == nil {
			r.work.add(func() { r.subscribe(h, m) })
		}
		return err
	case *wire.Heartbeat:
		if err := c.mayConsume(*c.who.Load(), m.Topic, m.Group); err != nil {
			return told(err)
		}
		c.work.Go(func() { c.heartbeat(h, m) })
		return nil
	case *wire.CloseConsumer:
		r, err := c.handles.consumer(m.Consumer, true)
		if err == nil {
			r.stop()
			r.work.add(func() { r.close(h) })
		}
		return err
	}
	who := *c.who.Load()
	c.meta.add(func() {
		r, err := c.answer(h.Key, who, m)
		c.audit(h.Key, who, m, err)
		if err != nil {
			c.fail(h, err)
			return
		}
		// Such an answer may be long. It is written before the next one is made.
		c.page(outgoing{key: h.Key, flags: wire.FlagReply, id: h.ID, msg: r})
	})
	return nil
}

// answer does what a request about topics asks, or opens a handle.
func (c *conn) answer(key wire.Key, who Identity, m any) (wire.Message, error) {
	e, ctx := c.s.engine, c.ctx
	switch m := m.(type) {
	case *wire.Hello:
		return nil, refusal(wire.CodeMalformed, "Hello comes once")
	case *wire.Authenticate:
		return c.logIn(ctx, m)
	case *wire.CreateTopic:
		if err := c.s.allow(who, OpCreate, m.Topic); err != nil {
			return nil, err
		}
		return &wire.Done{}, e.CreateTopic(ctx, m.Topic, api.TopicOptions{Bits: m.Bits, Policy: m.Policy})
	case *wire.ListTopics:
		return c.listTopics(ctx, who, m)
	case *wire.DescribeTopic:
		if err := c.s.allow(who, OpDescribe, m.Topic); err != nil {
			return nil, err
		}
		at := TopicPlace{m.Range, m.Segment}
		d, next, err := e.DescribeFrom(ctx, m.Topic, at, pageBytes/itemBytes)
		return detailFrom(&d, at, next), err
	case *wire.Topic:
		return c.topic(ctx, key, who, m.Topic)
	case *wire.SplitRange:
		if err := c.s.allow(who, OpAlter, m.Topic); err != nil {
			return nil, err
		}
		left, right, err := e.SplitRange(ctx, m.Topic, m.Range)
		c.s.groups.topicChanged(m.Topic)
		return &wire.SplitRangeReply{Left: left, Right: right}, err
	case *wire.MergeRanges:
		if err := c.s.allow(who, OpAlter, m.Topic); err != nil {
			return nil, err
		}
		merged, err := e.MergeRanges(ctx, m.Topic, m.A, m.B)
		c.s.groups.topicChanged(m.Topic)
		return &wire.MergeRangesReply{Range: merged}, err
	case *wire.SetPolicy:
		if err := c.s.allow(who, OpPolicy, ""); err != nil {
			return nil, err
		}
		return &wire.Done{}, e.SetPolicy(ctx, m.Policy.Name, policyOf(m.Policy))
	case *wire.DeletePolicy:
		if err := c.s.allow(who, OpPolicy, ""); err != nil {
			return nil, err
		}
		if m.Force {
			return &wire.Done{}, e.ForgetPolicy(ctx, m.Name)
		}
		return &wire.Done{}, e.DeletePolicy(ctx, m.Name)
	case *wire.ListPolicies:
		if err := c.s.allow(who, OpPolicies, ""); err != nil {
			return nil, err
		}
		list, err := e.Policies(ctx)
		return policies(list, m), err
	case *wire.BindPolicy:
		if err := c.s.allow(who, OpAlter, m.Topic); err != nil {
			return nil, err
		}
		return &wire.Done{}, e.BindPolicy(ctx, m.Topic, m.Policy)
	case *wire.OpenProducer:
		return c.openProducer(who, m)
	case *wire.OpenConsumer:
		return c.openConsumer(who, m)
	case *wire.Lag:
		return c.lag(m)
	case *wire.Commit:
		return c.commit(ctx, who, m)
	}
	return c.answerGroup(ctx, key, who, m)
}

// allow asks the hook.
func (s *Server) allow(who Identity, op Op, name string) error {
	if s.opts.Allow == nil {
		return nil
	}
	err := s.opts.Allow(who, op, name)
	if e := (*wire.Error)(nil); err == nil || errors.As(err, &e) {
		return err
	}
	return refusal(wire.CodePermissionDenied, "%s: %q may not %s: %s", op.about(name), who.User, op, err)
}

// knower says what somebody may know of.
type knower struct {
	c   *conn
	who Identity
	op  Op
	err error // there is no saying, as of somebody who is nobody any more: not that it is nothing
}

func (c *conn) knownTo(who Identity, op Op) *knower { return &knower{c: c, who: who, op: op} }

func (k *knower) is(name string) bool {
	if k.err != nil {
		return false
	}
	err := k.c.s.allow(k.who, k.op, name)
	if err != nil && !errors.Is(err, wire.CodePermissionDenied) {
		k.err = err
	}
	return err == nil
}

// topic does what asks for nothing but a topic.
func (c *conn) topic(ctx context.Context, key wire.Key, who Identity, name string) (wire.Message, error) {
	e := c.s.engine
	op, ok := map[wire.Key]Op{wire.KeyDeleteTopic: OpDelete, wire.KeyRollTopic: OpAlter, wire.KeyRoute: OpProduce}[key]
	if !ok {
		return nil, refusal(wire.CodeUnsupported, "%s: this server does not do that", key)
	}
	if err := c.s.allow(who, op, name); err != nil {
		return nil, err
	}
	switch key {
	case wire.KeyDeleteTopic:
		return &wire.Done{}, e.DeleteTopic(ctx, name)
	case wire.KeyRoute:
		routes, err := e.Routes(name)
		return routeReply(routes), err
	default:
		n, err := e.Roll(ctx, name)
		return &wire.RollTopicReply{Segments: uint32(n)}, err
	}
}

// listTopics answers a page of the topics that somebody may know of.
func (c *conn) listTopics(ctx context.Context, who Identity, m *wire.ListTopics) (wire.Message, error) {
	known := c.knownTo(who, OpDescribe)
	list, more, err := c.s.engine.TopicPage(ctx, m.After, limitOf(m.Limit), func(name string) bool {
		return strings.HasPrefix(name, m.Prefix) && known.is(name)
	})
	if known.err != nil {
		return nil, known.err
	}
	r := &wire.ListTopicsReply{More: more}
	for i := range list {
		r.Topics = append(r.Topics, infoOf(&list[i]))
	}
	return r, err
}

// openTimeout is how long a producer that is opened waits for the one before it: clients
// ask again, and a disk that does nothing for so long may do nothing for long.
const openTimeout = 5 * time.Second

func (c *conn) openProducer(who Identity, m *wire.OpenProducer) (wire.Message, error) {
	if err := c.s.allow(who, OpProduce, m.Topic); err != nil {
		return nil, err
	}
	if err := c.handles.reserve(); err != nil {
		return nil, err
	}
	ctx, stop := context.WithTimeout(c.ctx, openTimeout)
	defer stop()
	to, err := c.s.engine.OpenProducer(ctx, m.Topic, m.Id, m.Unnumbered)
	if err != nil {
		c.handles.release()
		return nil, err
	}
	handle := c.handles.addProducer(&producer{topic: m.Topic, to: to, numbers: !m.Unnumbered})
	return &wire.OpenProducerReply{Producer: handle, Id: to.ID(), MaxFrame: uint32(to.MaxFrame())}, nil
}

func (c *conn) openConsumer(who Identity, m *wire.OpenConsumer) (wire.Message, error) {
	if err := c.mayConsume(who, m.Topic, m.Group); err != nil {
		return nil, err
	}
	from := api.From{Kind: api.FromKind(m.From), Cursor: m.Cursor, Time: time.UnixMilli(m.TimeMs)}
	if from.Kind > api.AtTime {
		return nil, refusal(wire.CodeInvalidArgument, "topic %q: a consumer cannot start at a place of kind %d", m.Topic, m.From)
	}
	if err := c.handles.reserve(); err != nil {
		return nil, err
	}
	in, err := c.s.consumerOf(m, from)
	if err != nil {
		c.handles.release()
		return nil, err
	}
	r := c.newConsumer(m.Topic, in)
	cursor := r.cursor
	return &wire.OpenConsumerReply{Consumer: c.handles.addConsumer(r), Cursor: cursor}, nil
}

// mayConsume asks whether somebody may read a topic, as a group if one is named.
func (c *conn) mayConsume(who Identity, topic, group string) error {
	err := checkNames(topic, group)
	if err == nil {
		err = c.s.allow(who, OpConsume, topic)
	}
	if err == nil && group != "" {
		err = c.s.allow(who, OpUseGroup, group)
	}
	return err
}

func (c *conn) lag(m *wire.Lag) (wire.Message, error) {
	r, err := c.handles.consumer(m.Consumer, false)
	if err != nil {
		return nil, err
	}
	if err := r.allowed(); err != nil {
		return nil, err
	}
	cursor := m.Cursor
	if cursor == "" {
		cursor = r.place()
	}
	if m.Ranges {
		list, err := c.s.engine.CursorRanges(r.topic, cursor)
		page, more := rangesFrom(list, m.From)
		reply := &wire.LagReply{Ranges: rangesAt(page), More: more}
		for _, a := range list {
			reply.Records += min(a.Lag, math.MaxUint64-reply.Records)
		}
		return reply, err
	}
	n, err := c.s.engine.CursorLag(r.topic, cursor)
	return &wire.LagReply{Records: n}, err
}

func (c *conn) commit(ctx context.Context, who Identity, m *wire.Commit) (wire.Message, error) {
	if err := c.mayConsume(who, m.Topic, m.Group); err != nil {
		return nil, err
	}
	if m.Member != "" {
		return &wire.Done{}, c.s.groups.commit(ctx, m)
	}
	if err := c.s.groups.idle(m.Topic, m.Group); err != nil {
		return nil, err
	}
	return &wire.Done{}, c.s.engine.CommitCursor(ctx, m.Topic, m.Group, m.Cursor, m.Reset)
}

// consumerOf opens a consumer, or one of a member's ranges.
func (s *Server) consumerOf(m *wire.OpenConsumer, from api.From) (Consumer, error) {
	if m.Member == "" {
		return s.engine.OpenConsumer(m.Topic, m.Group, from)
	}
	if from.Kind != api.AtGroup || len(m.Ranges) == 0 {
		return nil, refusal(wire.CodeInvalidArgument, "topic %q, group %q: a member reads ranges that it names from where the group is", m.Topic, m.Group)
	}
	if err := s.groups.holds(m); err != nil {
		return nil, err
	}
	return s.engine.OpenMember(m.Topic, m.Group, m.Ranges, m.Cursor)
}
