package client

import (
	"context"
	"errors"

	"github.com/ringfence/ringfence/engine/api"
	"github.com/ringfence/ringfence/engine/wire"
)

// Cursor is the place behind the last record that was returned.
func (r *Consumer) Cursor() string {
	if p := r.page; p != nil && p.next > p.first {
		return p.cursorAt(r.topic)
	}
	return r.place
}

// Commit stores the place behind the last record that was returned as the group's.
// It never moves the group back.
func (r *Consumer) Commit(ctx context.Context) error { return r.commit(ctx, repeat, false) }

// Reset makes the consumer's place the group's, also where that moves it back.
func (r *Consumer) Reset(ctx context.Context) error { return r.commit(ctx, change, true) }

func (r *Consumer) commit(ctx context.Context, k kind, reset bool) error {
	if r.ended {
		return ErrClosed
	}
	if r.opts.Group == "" {
		return about(r.opts.Topic, errors.New("a consumer without a group has nothing to commit: set ConsumerOptions.Group"))
	}
	if r.share != nil && reset {
		return about(r.opts.Topic, errors.New("a member does not reset its group: do that with a consumer of the group while it has no members"))
	}
	if r.share != nil {
		return about(r.opts.Topic, r.commitShare(ctx))
	}
	_, err := r.c.askAs(ctx, k, wire.KeyCommit, &wire.Commit{
		Topic: r.opts.Topic, Group: r.opts.Group, Cursor: r.Cursor(), Reset: reset,
	})
	return about(r.opts.Topic, err)
}

// Lag is how many records are stored behind the consumer's place.
func (r *Consumer) Lag() (uint64, error) {
	reply, err := r.lag(wire.Lag{})
	if err != nil {
		return 0, err
	}
	return reply.Records, nil
}

// Ranges tells where the consumer is in each range that it has not finished, ranges
// before those that took over their keys.
func (r *Consumer) Ranges() ([]api.GroupRange, error) {
	return eachRange(func(from uint32) ([]*wire.GroupRange, bool, error) {
		reply, err := r.lag(wire.Lag{Ranges: true, From: from})
		if err != nil {
			return nil, false, err
		}
		return reply.Ranges, reply.More, nil
	})
}

func (r *Consumer) lag(ask wire.Lag) (*wire.LagReply, error) {
	if r.ended {
		return nil, ErrClosed
	}
	if r.idle() {
		return &wire.LagReply{}, nil
	}
	ctx, cancel := r.limit(context.Background())
	defer cancel()
	for n := 0; ; n++ {
		err := error(nil)
		if r.conn == nil {
			err = r.open(ctx)
		}
		if err == nil {
			var msg any
			ask.Consumer, ask.Cursor = r.handle, r.Cursor()
			msg, err = r.conn.call(ctx, wire.KeyLag, &ask, nil)
			if err == nil {
				return msg.(*wire.LagReply), nil
			}
			if react(err, look) == again {
				r.drop()
				err = r.c.pause(ctx, backoff(n, err), err)
			}
		}
		if err != nil {
			return nil, about(r.opts.Topic, err)
		}
	}
}
