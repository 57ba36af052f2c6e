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
		Name: t.Name, Id: t.ID, Bits: t.Bits, Policy: t.Policy, PolicyMissing: t.PolicyMissing, CreatedMs: millisOf(t.Created),
		Ranges: uint32(t.Ranges), Segments: uint32(t.Segments), Records: t.Records, Bytes: t.Bytes,
		Damaged: uint32(t.Damaged), SetAside: uint32(t.SetAside),
	}
}

func routeReply(r api.Routes) *wire.RouteReply {
	m := &wire.RouteReply{Topic: r.Topic}
	for _, to := range r.Ranges {
		m.Ranges = append(m.Ranges, to.Range)
		m.Last = append(m.Last, to.Last)
	}
	return m
}

func policyOf(p *wire.Policy) api.Policy {
	return api.Policy{
		MaxAge: boundOf(p.MaxAge), MaxBytes: boundOf(p.MaxBytes),
		SegmentMaxAge: boundOf(p.SegmentMaxAge), SegmentMaxBytes: boundOf(p.SegmentMaxBytes),
	}
}

// boundOf takes any number for the setting; the engine knows which there are.
func boundOf(b *wire.Bound) api.Bound { return api.Bound{Setting: cp.Setting(b.Setting), N: b.Limit} }

// policies is a page of the list.
func policies(list map[string]api.Policy, m *wire.ListPolicies) *wire.ListPoliciesReply {
	bound := func(b api.Bound) *wire.Bound { return &wire.Bound{Setting: byte(b.Setting), Limit: b.N} }
	names, more := pageOf(slices.Sorted(maps.Keys(list)), m.After, m.Limit, itself, everything)
	r := &wire.ListPoliciesReply{More: more}
	for _, name := range names {
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
