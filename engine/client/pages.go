package client

import (
	"context"
	"fmt"
	"iter"
	"math"

	"github.com/ringfence/ringfence/engine/api"
	"github.com/ringfence/ringfence/engine/wire"
)

// listed visits a list of the server's, a page at a time. A server that does not get on
// with it is one that does not keep to the protocol: nobody asks it for ever.
func listed[T any](what string, name func(*T) string, next func(after string) ([]T, bool, error)) iter.Seq2[T, error] {
	return api.Pages(name, func(after string) ([]T, bool, error) {
		page, more, err := next(after)
		last := after
		for i := range page {
			n := name(&page[i])
			if n <= last {
				return nil, false, fmt.Errorf("%w: it lists %s %q behind %q", ErrProtocol, what, api.Abridged(n), api.Abridged(last))
			}
			last = n
		}
		if err == nil && more && len(page) == 0 {
			err = fmt.Errorf("%w: a page without a %s, and more behind it", ErrProtocol, what)
		}
		return page, more, err
	})
}

// errStuck is of a page of ranges that does not get on.
func errStuck(what string) error {
	return fmt.Errorf("%w: the pages about %s do not get on", ErrProtocol, what)
}

// Describe tells everything of a topic. What changes while it is told may be told in
// part.
func (c *Client) Describe(ctx context.Context, name string) (d api.TopicDetail, err error) {
	ask := &wire.DescribeTopic{Topic: name}
	for {
		msg, err := c.askTopic(ctx, name, wire.KeyDescribeTopic, ask)
		if err != nil {
			return api.TopicDetail{}, err
		}
		reply := msg.(*wire.DescribeTopicReply)
		if d.ID != "" && reply.Topic.Id != d.ID { // it was made anew meanwhile
			d, ask = api.TopicDetail{}, &wire.DescribeTopic{Topic: name}
			continue
		}
		d.TopicInfo = topicInfo(reply.Topic)
		for _, r := range reply.Ranges {
			d.AllRanges = addRange(d.AllRanges, r)
		}
		if !reply.More {
			break
		}
		if reply.NextRange < ask.Range || reply.NextRange == ask.Range && reply.NextSegment <= ask.Segment {
			return api.TopicDetail{}, about(name, errStuck("a topic"))
		}
		ask = &wire.DescribeTopic{Topic: name, Range: reply.NextRange, Segment: reply.NextSegment}
	}
	d.Groups, err = c.Groups(ctx, name)
	if err != nil {
		return api.TopicDetail{}, err
	}
	return d, nil
}

// addRange adds what a page tells of a range, which may be the rest of the last one.
func addRange(list []api.RangeInfo, r *wire.RangeInfo) []api.RangeInfo {
	if n := len(list); n == 0 || list[n-1].Seq != r.Seq {
		list = append(list, api.RangeInfo{Seq: r.Seq, Start: r.Start, End: r.End, Active: r.Active, Parents: r.Parents, NextOffset: r.NextOffset})
	}
	to := &list[len(list)-1]
	for _, s := range r.Segments {
		to.Segments = append(to.Segments, api.SegmentInfo{
			Seq: s.Seq, Active: s.Active, Start: s.Start, Records: s.Records, Bytes: s.Bytes,
			OpenedAt: timeOf(s.OpenedMs), SealedAt: timeOf(s.SealedMs), File: s.File, Missing: s.Missing,
			Damage: s.Damage, Lost: s.Lost, GivenUp: s.GivenUp,
		})
	}
	return list
}

// eachRange asks for page after page of ranges. ask answers the page that begins with a
// range.
func eachRange(ask func(from uint32) (page []*wire.GroupRange, more bool, err error)) (list []api.GroupRange, err error) {
	for from := uint32(0); ; {
		page, more, err := ask(from)
		if err != nil {
			return nil, err
		}
		last := int64(from) - 1
		for _, r := range page {
			if int64(r.Range) <= last {
				return nil, errStuck("ranges")
			}
			last = int64(r.Range)
		}
		list = append(list, rangesAt(page)...)
		switch {
		case !more:
			return list, nil
		case len(page) == 0 || last == math.MaxUint32:
			return nil, errStuck("ranges")
		}
		from = uint32(last) + 1
	}
}
