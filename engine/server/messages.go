package server

import (
	"maps"
	"slices"
	"time"

	"github.com/ringfence/ringfence/cp"
	"github.com/ringfence/ringfence/engine/api"
	"github.com/ringfence/ringfence/engine/wire"
)

// What the engine tells, as messages, and the other way round.

func infoOf(t *api.TopicInfo) *wire.TopicInfo {
	return &wire.TopicInfo{
		Name: t.Name, Id: t.ID, Bits: t.Bits, Policy: t.Policy, CreatedMs: millisOf(t.Created),
		Ranges: uint32(t.Ranges), Segments: uint32(t.Segments), Records: t.Records, Bytes: t.Bytes,
	}
}

func detailOf(d api.TopicDetail) *wire.DescribeTopicReply {
	r := &wire.DescribeTopicReply{Topic: infoOf(&d.TopicInfo), Groups: d.Groups}
	for _, a := range d.AllRanges {
		info := &wire.RangeInfo{Seq: a.Seq, Start: a.Start, End: a.End, Active: a.Active, Parents: a.Parents, NextOffset: a.NextOffset}
		for _, s := range a.Segments {
			info.Segments = append(info.Segments, &wire.SegmentInfo{
				Seq: s.Seq, Active: s.Active, Start: s.Start, Records: s.Records, Bytes: s.Bytes,
				OpenedMs: millisOf(s.OpenedAt), SealedMs: millisOf(s.SealedAt), File: s.File, Missing: s.Missing,
			})
		}
		r.Ranges = append(r.Ranges, info)
	}
	return r
}

func policyOf(p *wire.Policy) api.Policy {
	return api.Policy{
		MaxAge: boundOf(p.MaxAge), MaxBytes: boundOf(p.MaxBytes),
		SegmentMaxAge: boundOf(p.SegmentMaxAge), SegmentMaxBytes: boundOf(p.SegmentMaxBytes),
	}
}

// boundOf takes any number for the setting; the engine knows which there are.
func boundOf(b *wire.Bound) api.Bound { return api.Bound{Setting: cp.Setting(b.Setting), N: b.Limit} }

func policies(list map[string]api.Policy) *wire.ListPoliciesReply {
	bound := func(b api.Bound) *wire.Bound { return &wire.Bound{Setting: byte(b.Setting), Limit: b.N} }
	r := &wire.ListPoliciesReply{}
	for _, name := range slices.Sorted(maps.Keys(list)) {
		p := list[name]
		r.Policies = append(r.Policies, &wire.Policy{
			Name: name, MaxAge: bound(p.MaxAge), MaxBytes: bound(p.MaxBytes),
			SegmentMaxAge: bound(p.SegmentMaxAge), SegmentMaxBytes: bound(p.SegmentMaxBytes),
		})
	}
	return r
}

// millisOf is a time as messages have it: 0 where there is none.
func millisOf(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}

// assigned is what a member is told.
func (s *Server) assigned(a assignment) *wire.Assignment {
	return &wire.Assignment{Generation: a.generation, SessionMs: uint32(s.opts.Session.Milliseconds()), Ranges: a.ranges}
}

func rangesAt(list []api.GroupRange) (out []*wire.GroupRange) {
	for _, r := range list {
		ms := int64(-1)
		if r.Behind >= 0 {
			ms = r.Behind.Milliseconds()
		}
		out = append(out, &wire.GroupRange{Range: r.Range, Offset: r.Offset, End: r.End, Lag: r.Lag, LagMs: ms, Member: r.Member})
	}
	return out
}
