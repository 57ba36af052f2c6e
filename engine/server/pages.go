package server

import (
	"slices"

	"github.com/ringfence/ringfence/engine/api"
	"github.com/ringfence/ringfence/engine/wire"
)

// Lists come in pages, or their messages would be longer than messages may be. Nothing
// is kept of a list between two pages: each is cut out of what holds when it is asked for.

const (
	pageItems = 1000      // of names, with what little belongs to each
	pageBytes = 256 << 10 // of ranges and segments, which may have long texts with them; far less than wire.MaxMessage
	itemBytes = 160       // more than a range or a segment takes in a message, but for its texts
)

// limitOf is how many items a page may have.
func limitOf(asked uint32) int {
	if asked == 0 || asked > pageItems {
		return pageItems
	}
	return int(asked)
}

// pageOf is the page behind a name of a list in the order of its names, without the items
// that wanted refuses.
func pageOf[T any](list []T, after string, asked uint32, name func(*T) string, wanted func(string) bool) (page []T, more bool) {
	limit := limitOf(asked)
	start, _ := slices.BinarySearchFunc(list, after, func(item T, after string) int {
		if name(&item) <= after {
			return -1
		}
		return 1
	})
	for i := range list[start:] {
		item := &list[start+i]
		if !wanted(name(item)) {
			continue
		}
		if len(page) == limit {
			return page, true
		}
		page = append(page, *item)
	}
	return page, false
}

func itself(name *string) string { return *name }

func everything(string) bool { return true }

// rangesFrom is the page of a list of ranges that begins with one.
func rangesFrom(list []api.GroupRange, from uint32) (page []api.GroupRange, more bool) {
	size := 0
	for _, r := range list {
		if r.Range < from {
			continue
		}
		if size += itemBytes + len(r.Member); size > pageBytes && len(page) > 0 {
			return page, true
		}
		page = append(page, r)
	}
	return page, false
}

// detailFrom is the page of a topic that begins at a place; behind what there is of the topic
// comes what begins at next, if there is a next.
func detailFrom(d *api.TopicDetail, at TopicPlace, next *TopicPlace) *wire.DescribeTopicReply {
	r := &wire.DescribeTopicReply{Topic: infoOf(&d.TopicInfo)}
	size := 0
	until := func(p TopicPlace) *wire.DescribeTopicReply {
		r.More, r.NextRange, r.NextSegment = true, p.Range, p.Segment
		return r
	}
	for i := range d.AllRanges {
		a := &d.AllRanges[i]
		if a.Seq < at.Range {
			continue
		}
		if size += itemBytes; size > pageBytes && len(r.Ranges) > 0 {
			return until(TopicPlace{a.Seq, 0})
		}
		info := &wire.RangeInfo{Seq: a.Seq, Start: a.Start, End: a.End, Active: a.Active, Parents: a.Parents, NextOffset: a.NextOffset}
		r.Ranges = append(r.Ranges, info)
		for j := range a.Segments {
			s := &a.Segments[j]
			if a.Seq == at.Range && s.Seq < at.Segment {
				continue
			}
			if size += itemBytes + len(s.File) + min(len(s.Damage), wire.MaxText); size > pageBytes && len(info.Segments) > 0 {
				return until(TopicPlace{a.Seq, s.Seq})
			}
			info.Segments = append(info.Segments, segmentOf(s))
		}
	}
	if next != nil {
		return until(*next)
	}
	return r
}

func segmentOf(s *api.SegmentInfo) *wire.SegmentInfo {
	return &wire.SegmentInfo{
		Seq: s.Seq, Active: s.Active, Start: s.Start, Records: s.Records, Bytes: s.Bytes,
		OpenedMs: millisOf(s.OpenedAt), SealedMs: millisOf(s.SealedAt), File: s.File, Missing: s.Missing,
		Damage: wire.Clip(s.Damage), Lost: s.Lost, GivenUp: s.GivenUp,
	}
}
