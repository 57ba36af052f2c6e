package frontend

import (
	"github.com/ringfence/ringfence/cp"
	"github.com/ringfence/ringfence/fence"
)

// TryPlanIn is [Frontend.PlanBatchIn] for callers that may not wait: it is false,
// and nothing is reserved, when the range has no cached head or the batch does not
// lie in one range. It takes one short lock and allocates nothing.
func (f *Frontend) TryPlanIn(t *Topic, b BatchInfo) (d Dispatch, ok bool) {
	t.shard.mu.Lock()
	defer t.shard.mu.Unlock()
	i := t.find(b.MinPos)
	if i < 0 || b.MaxPos > t.routes[i].last || !t.routes[i].r.open {
		return d, false
	}
	return t.shard.reserve(t.routes[i].r, b.Count, int64(b.Bytes)), true
}

// OpenHead makes sure that a range has a registered write head, without reserving
// anything in it: before its last sealed segment goes, somebody must carry on what
// the range knows of its producers. At is the time in ms since the epoch of a
// segment opened here. Refusals: those of PlanBatchIn.
func (f *Frontend) OpenHead(id fence.RangeID, at int64) (fence.SegmentID, error) {
	t, err := f.Topic(f.nameOf(id.Topic))
	if err != nil {
		return fence.SegmentID{}, rangeErr(id, cp.ErrNoSuchRange)
	}
	seg, err := f.registered(t, id, at)
	if err != nil {
		return fence.SegmentID{}, err
	}
	return seg.ID, nil
}
