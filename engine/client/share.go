package client

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/ringfence/ringfence/engine/api"
	"github.com/ringfence/ringfence/engine/wire"
	"github.com/ringfence/ringfence/fence"
)

// share is what a consumer that is a member of a group reads, of the consumer's
// goroutine.
type share struct {
	m         *membership
	at        assignment // the one that it has adopted
	opening   bool       // its ranges have changed, and no consumer of them was opened
	clean     bool       // with it: nothing was handed out that is not committed
	committed string     // cursor of the last commit
	ending    []uint32   // ranges that are read to their ends, all of it handed out
}

// newMember makes a consumer a member of its group.
func (c *Client) newMember(ctx context.Context, o api.ConsumerOptions) (*Consumer, error) {
	if o.Group == "" || o.From != (api.From{}) {
		return nil, errors.New("a member has a group, and goes on where that is: set ConsumerOptions.Group, and leave From empty")
	}
	m, err := c.join(ctx, o.Topic, o.Group, o.Member)
	if err != nil {
		return nil, err
	}
	return &Consumer{c: c, opts: o, share: &share{m: m}}, nil
}

// settle brings what the consumer reads to what it was told. What it loses is committed
// first: the caller has come back, so what it got is processed.
func (r *Consumer) settle(ctx context.Context) error {
	s := r.share
	for {
		a, lapsed, err := s.m.take()
		switch {
		case err != nil:
			return err
		case lapsed:
			if err := s.m.await(ctx); err != nil {
				return err
			}
			continue
		case a.epoch == s.at.epoch && a.generation == s.at.generation:
			return nil
		}
		had := s.at.ranges
		if a.epoch != s.at.epoch {
			had = nil
		}
		lost := slices.ContainsFunc(had, func(seq uint32) bool { return !slices.Contains(a.ranges, seq) })
		if lost {
			if err := r.handOver(ctx, had); err != nil {
				return err
			}
		}
		if a.epoch != s.at.epoch || lost || !slices.Equal(had, a.ranges) {
			place := ""
			if had != nil {
				place = r.placeIn(a.ranges)
			}
			s.opening, s.clean = true, place == "" || s.committed == r.Cursor()
			r.drop()
			r.page, r.behind, r.place, s.committed = nil, place, place, ""
		}
		s.ending = slices.DeleteFunc(s.ending, func(seq uint32) bool { return !slices.Contains(a.ranges, seq) })
		s.at = a
		s.m.adopt(a)
	}
}

// placeIn is the consumer's cursor cut to some ranges, "" if it has none of them.
func (r *Consumer) placeIn(ranges []uint32) string {
	cursor := r.Cursor()
	if cursor == "" {
		return ""
	}
	pos, marks, err := api.DecodeCursor(r.topic, cursor)
	if err != nil {
		return "" // newPage and open have looked at it
	}
	for id := range pos {
		if !slices.Contains(ranges, id.Seq) {
			delete(pos, id)
			delete(marks, id)
		}
	}
	if len(pos) == 0 {
		return ""
	}
	return api.EncodeCursor(r.topic, pos, marks)
}

// handOver commits ranges, unless they are another's already.
func (r *Consumer) handOver(ctx context.Context, ranges []uint32) error {
	err := r.store(ctx, ranges)
	if moved(err) {
		return nil // it took too long: what was not committed comes again there
	}
	return err
}

// store commits the consumer's place in some of its ranges.
func (r *Consumer) store(ctx context.Context, ranges []uint32) error {
	s := r.share
	cursor := r.placeIn(ranges)
	if cursor == "" || cursor == s.committed {
		return nil
	}
	a, _ := s.m.look() // who is out is told by the server
	_, err := r.c.ask(ctx, wire.KeyCommit, &wire.Commit{
		Topic: r.opts.Topic, Group: r.opts.Group, Cursor: cursor, Member: r.opts.Member, Generation: a.generation,
	})
	if err == nil {
		s.committed = cursor
	}
	return err
}

// moved says whether a request failed because ranges are not the member's any more.
func moved(err error) bool {
	return errors.Is(err, wire.CodeStaleGeneration) || errors.Is(err, wire.CodeUnknownMember)
}

// commitShare stores the place in all ranges. Those that were taken away are told of, the
// others stored all the same.
func (r *Consumer) commitShare(ctx context.Context) error {
	s := r.share
	err := r.store(ctx, s.at.ranges)
	if !moved(err) {
		return err
	}
	limited, cancel := r.limit(ctx)
	defer cancel()
	for {
		a, over := s.m.look()
		if over != nil {
			return fmt.Errorf("%w: %w", ErrRangeMoved, over)
		}
		kept := slices.DeleteFunc(slices.Clone(s.at.ranges), func(seq uint32) bool {
			return a.epoch != s.at.epoch || !slices.Contains(a.ranges, seq)
		})
		if len(kept) < len(s.at.ranges) {
			return errors.Join(fmt.Errorf("%w: %w", ErrRangeMoved, err), r.handOver(ctx, kept))
		}
		if err := s.m.await(limited); err != nil {
			return err
		}
	}
}

// finish commits the ends of ranges, so that what took over their keys is shared out, and
// waits until the member has been told so.
func (r *Consumer) finish(ctx context.Context) error {
	s := r.share
	for len(s.ending) > 0 {
		if err := r.handOver(ctx, s.at.ranges); err != nil {
			return err
		}
		a, over := s.m.look()
		if over != nil {
			return over
		}
		if a.epoch == s.at.epoch && slices.ContainsFunc(s.ending, func(seq uint32) bool { return slices.Contains(a.ranges, seq) }) {
			if err := s.m.await(ctx); err != nil {
				return err
			}
		}
		if err := r.settle(ctx); err != nil {
			return err
		}
	}
	return nil
}

// settled is settle, after which no range is left that has come to its end.
func (r *Consumer) settled(ctx context.Context) error {
	if err := r.settle(ctx); err != nil {
		return err
	}
	return r.finish(ctx)
}

// openShare is the request that opens the server's consumer of the ranges.
func (r *Consumer) openShare() *wire.OpenConsumer {
	return &wire.OpenConsumer{
		Topic: r.opts.Topic, Group: r.opts.Group, Cursor: r.behind,
		Member: r.opts.Member, Generation: r.share.at.generation, Ranges: r.share.at.ranges,
	}
}

// openedShare takes the place of the server's consumer. It is the first to tell the topic.
func (r *Consumer) openedShare(cursor string) error {
	topic, err := api.TopicOfCursor(cursor)
	if err != nil {
		return fmt.Errorf("%w: the cursor of a new consumer: %w", ErrProtocol, err)
	}
	if r.topic != (fence.TopicID{}) && topic != r.topic {
		return fmt.Errorf("%w: it was deleted and made again", ErrForeignCursor)
	}
	r.topic = topic
	if s := r.share; s.opening {
		if s.opening = false; s.clean {
			s.committed = cursor
		}
		r.behind, r.place = cursor, cursor
	}
	return nil
}

// end notes what a page that was handed out says of ranges that have ended.
func (s *share) end(p *page) {
	if len(p.finished) > 0 {
		s.ending = append(s.ending, p.finished...)
		s.committed = "" // the server hears of it even if all was committed before
	}
}

// idle says whether no range is the member's.
func (r *Consumer) idle() bool { return r.share != nil && len(r.share.at.ranges) == 0 }
