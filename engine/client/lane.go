package client

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/ringfence/ringfence/engine/frontend"
	"github.com/ringfence/ringfence/engine/wire"
	"github.com/ringfence/ringfence/fence"
	"github.com/ringfence/ringfence/segfile/record"
)

// A lane is a producer's way into one range: records gather in its open batch, which the
// server then stores as it is. The producer's mu guards it.
//
// Lanes are a guess. Ranges are split and merged while batches are on their way, and the
// server takes apart what belongs to several. What makes that safe is that a batch gets
// its sequences when it is closed, so that they ascend from batch to batch over all
// lanes: wherever two batches meet, the one that was sent first has the lower ones. A
// producer with a name cannot do that: a later run must give each record the same
// sequence again, whatever the ranges are then. All its records go one way. To gather by
// range they would have to be numbered as they are taken, and a frame to carry a number for
// each record.
type lane struct {
	seq     uint32 // the range's
	last    uint32 // key position
	open    *batch // being filled; nil: none
	flying  int    // batches that are sent and not answered
	retired bool   // the topic has other ranges now
}

// laneOf is the way of a record, and its key's position. Keyless records have a way of
// their own: where they belong follows from sequences that they do not have yet. mu is
// held.
func (p *Producer) laneOf(key []byte) (*lane, uint32) {
	pos := record.Position(key)
	switch {
	case len(p.lanes) == 1:
		return p.lanes[0], pos
	case key == nil && !p.opts.NotIdempotent:
		return &p.keyless, pos
	case key == nil:
		pos = record.KeylessPosition(p.opts.ID, 0)
	}
	return p.laneAt(pos), pos
}

// laneFor is the lane of a finished batch, whose window it shares. mu is held.
func (p *Producer) laneFor(h *record.Head) *lane {
	if l := p.laneAt(h.MinPos); h.MaxPos <= l.last {
		return l
	}
	return &p.mixed
}

func (p *Producer) laneAt(pos uint32) *lane {
	i, _ := slices.BinarySearchFunc(p.lanes, pos, func(l *lane, pos uint32) int { return cmp.Compare(l.last, pos) })
	return p.lanes[i]
}

// full says whether an open batch takes no more records, however short: keyless ones of
// two runs belong to two ranges.
func (p *Producer) full(l *lane) bool {
	return l == &p.keyless && l.open.build.Len() == record.KeylessRun
}

// closeOpen queues a lane's open batch. mu is held.
func (p *Producer) closeOpen(l *lane) {
	b := l.open
	if b == nil || b.build.Len() == 0 {
		return
	}
	l.open = nil
	b.lane, b.count = l, b.build.Len()
	if !p.opts.NotIdempotent {
		b.first = p.seq + 1
		if l == &p.keyless && b.first/record.KeylessRun != (p.seq+uint64(b.count))/record.KeylessRun {
			b.first = (b.first/record.KeylessRun + 1) * record.KeylessRun // those between are nobody's
		}
		p.seq = b.first + uint64(b.count) - 1
	}
	p.enqueue(b)
}

// closeAll queues what is open. mu is held.
func (p *Producer) closeAll() {
	for _, l := range p.lanes {
		p.closeOpen(l)
	}
	p.closeOpen(&p.keyless)
}

// dropEmpty gives open batches back that no record came to. mu is held.
func (p *Producer) dropEmpty() {
	for _, l := range append(slices.Clip(p.lanes), &p.keyless) {
		if b := l.open; b != nil && b.build.Len() == 0 {
			l.open = nil
			b.letGo()
		}
	}
}

// renumber gives a frame's records their sequences, and its keyless ones the positions
// that come with them.
func (b *batch) renumber(h *record.Head) {
	h.FirstSeq, h.LastSeq = b.first, b.first+uint64(h.Count)-1
	h.MinPos, h.MaxPos = b.build.PositionsFrom(h.FirstSeq)
}

// landed looks at where a batch was stored: in a range that is none of those known, if
// they have changed. mu is held.
func (p *Producer) landed(seq uint32) {
	if p.named || p.learning || p.c.unrouted.Load() || slices.ContainsFunc(p.lanes, func(l *lane) bool { return l.seq == seq }) {
		return
	}
	p.learning = true
	go func() {
		ctx, cancel := context.WithTimeoutCause(p.life, p.c.opts.RequestTimeout, p.c.tooLate)
		defer cancel()
		_ = p.learn(ctx) // the next answer tells again
		p.mu.Lock()
		defer p.mu.Unlock()
		p.learning = false
		p.pump()
	}()
}

// learn has the producer go by the ranges that the topic has now.
func (p *Producer) learn(ctx context.Context) error {
	p.mu.Lock()
	version := p.version
	p.mu.Unlock()
	t, err := p.c.routes.Topic(p.name)
	if err != nil || t.Version() == version { // another producer may have asked already
		if t, err = p.c.route(ctx, p.name); err != nil {
			return err
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.route(t)
	return nil
}

// route makes the lanes those of the topic's ranges. What is open in those of ranges that
// are gone goes first. mu is held.
func (p *Producer) route(t *frontend.Topic) {
	ranges, version := t.Slices()
	if len(ranges) == 0 || version == p.version {
		return
	}
	old := p.lanes
	lanes := make([]*lane, len(ranges))
	for i, r := range ranges {
		lanes[i] = &lane{seq: r.Range.Seq, last: r.Last}
		if j := slices.IndexFunc(old, func(l *lane) bool { return l.seq == r.Range.Seq && l.last == r.Last && p.version != 0 }); j >= 0 {
			lanes[i] = old[j]
		}
	}
	for _, l := range old {
		if !slices.Contains(lanes, l) {
			p.closeOpen(l)
			l.retired = true
		}
	}
	p.lanes, p.version = lanes, version
	p.changed.Broadcast() // there may be room for more batches
}

// route asks the server for a topic's ranges.
func (c *Client) route(ctx context.Context, topic string) (*frontend.Topic, error) {
	msg, err := c.ask(ctx, wire.KeyRoute, &wire.Topic{Topic: topic})
	if errors.Is(err, wire.CodeUnknownKey) || errors.Is(err, wire.CodeUnsupported) {
		c.unrouted.Store(true) // an older one, which takes all apart
	}
	if err != nil {
		return nil, err
	}
	m := msg.(*wire.RouteReply)
	id, err := fence.ParseTopicID(m.Topic)
	if err == nil && len(m.Ranges) != len(m.Last) {
		err = errors.New("as many ranges as ends are due")
	}
	if err != nil {
		return nil, about(topic, errors.Join(ErrProtocol, err))
	}
	ranges := make([]frontend.Slice, len(m.Ranges))
	first := uint32(0)
	for i, last := range m.Last {
		ranges[i] = frontend.Slice{Range: fence.RangeID{Topic: id, Seq: m.Ranges[i]}, First: first, Last: last}
		first = last + 1
	}
	t, err := c.routes.Learn(topic, id, ranges)
	if err != nil {
		return nil, about(topic, errors.Join(ErrProtocol, err))
	}
	return t, nil
}

// everywhere is the lane of a producer that does not know, or does not care, which ranges
// there are.
func everywhere() []*lane { return []*lane{{last: ^uint32(0)}} }
