package engine

import (
	"context"
	"fmt"

	"github.com/ringfence/ringfence/cp"
	"github.com/ringfence/ringfence/engine/frontend"
	"github.com/ringfence/ringfence/engine/store"
	"github.com/ringfence/ringfence/fence"
	"github.com/ringfence/ringfence/segfile"
)

// headTries is how often nextHead follows heads that close under it.
const headTries = 8

// nextHead returns the segment that takes a batch meant for the range, and the batch's
// plan. old may be nil; otherwise it is the head before, which refused or failed, and is
// fenced and sealed first.
func (e *Engine) nextHead(ctx context.Context, t *frontend.Topic, id fence.RangeID, b frontend.BatchInfo, old *store.Segment) (*store.Segment, frontend.Dispatch, error) {
	b.Now = e.millis()
	for range headTries {
		if old != nil && !old.Writable() {
			if err := e.roll(old, true); err != nil {
				return nil, frontend.Dispatch{}, err
			}
		}
		if err := ctx.Err(); err != nil {
			return nil, frontend.Dispatch{}, err
		}
		seg, plan, err := e.planHeld(t, id, b)
		if err != nil || plan.Range != id || seg.Writable() {
			return seg, plan, err
		}
		old = seg // closed meanwhile
	}
	return nil, frontend.Dispatch{}, frontend.ErrStale
}

// planHeld plans a batch while nobody can split or merge the range. If somebody just has,
// the plan names the range that took over, but no segment is opened there: that range is
// not held.
func (e *Engine) planHeld(t *frontend.Topic, id fence.RangeID, b frontend.BatchInfo) (*store.Segment, frontend.Dispatch, error) {
	release := e.hold(id)
	defer release()
	if now, _, err := e.front.Route(t.Name(), b.MinPos); err != nil || now != id {
		return nil, frontend.Dispatch{Range: now}, err
	}
	plan, err := e.front.PlanBatchIn(t, b)
	if err != nil || plan.Range != id {
		return nil, plan, err
	}
	seg, err := e.openFile(plan.Segment, e.store.Create)
	return seg, plan, err
}

// creator makes a segment's file: store.Create for a segment that is to be written to,
// store.CreateFromReserve for one that has to exist so that others can be closed or deleted.
type creator func(context.Context, segfile.Meta, *segfile.ProducerTable) (*store.Segment, error)

// openFile returns a registered segment's copy, and makes it if it has none yet.
// The caller holds the range.
func (e *Engine) openFile(id fence.SegmentID, create creator) (*store.Segment, error) {
	if seg, err := e.store.Segment(id); err == nil {
		return seg, nil
	}
	if err := e.whyLost(id); err != nil {
		return nil, err
	}
	return e.create(id, create)
}

// create makes the file of a registered segment.
func (e *Engine) create(id fence.SegmentID, create creator) (*store.Segment, error) {
	var meta segfile.Meta
	var heritage *lineage
	err := e.withTopic(id.Range.Topic, func(s *cp.State, t *cp.Topic) {
		seg, rng := s.Segment(id), s.Range(id.Range)
		if seg == nil || rng == nil {
			return
		}
		meta = segfile.Meta{
			ID: id, Topic: t.Name, Start: rng.Start, End: rng.End,
			Base: seg.Start, Salt: seg.Salt, Writer: seg.Writer, Created: e.millis(),
		}
		heritage = e.lineageOf(s, rng, id, map[fence.RangeID]*lineage{})
	})
	if err != nil {
		return nil, fmt.Errorf("segment %s: %w", id, err)
	}
	if heritage == nil {
		return nil, fmt.Errorf("segment %s: %w", id, cp.ErrNoSuchSegment)
	}
	table, err := e.inherit(heritage)
	if err != nil {
		return nil, err
	}
	seg, err := create(context.Background(), meta, table)
	if err == nil {
		e.makeRoom(seg)
	}
	return seg, err
}
