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

// RecordRoll is [Frontend.RecordFence] for a head that is written to: it proposes the
// seal and, right behind it, the registration of the successor, so that a writer
// waits for the control plane once. The control plane applies them in that order,
// and refuses the second where it refused the first. Where they cannot be proposed
// together (Options.Commands is nil, or the view does not know the segment as the
// range's head) it is RecordFence alone, and the next plan opens the successor.
func (f *Frontend) RecordRoll(roll Roll, end, bytes uint64, at int64) error {
	seal, next, ok := f.rollCommands(roll, end, bytes, at)
	if !ok {
		return f.RecordFence(roll, end, bytes, at)
	}
	replies := f.opts.Commands(f.nameOf(roll.Range().Topic), seal, next)
	if len(replies) != 2 || replies[0].Err != nil {
		return f.RecordFence(roll, end, bytes, at) // it knows what each refusal means
	}
	f.meta.Lock()
	defer f.meta.Unlock()
	f.mirror(seal)
	f.note(seal)
	f.settle(roll.Segment, end)
	if replies[1].Err != nil {
		return nil // sealed; the next plan follows whoever opened the successor
	}
	f.mirror(next)
	f.note(next)
	s := f.shardOf(next.ID.Range)
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.at(next.ID.Range); r.nextSeq <= next.ID.Seq {
		r.opened = next.ID
	}
	return nil
}

// rollCommands are the seal of the range's head at end and the registration of the
// segment behind it.
func (f *Frontend) rollCommands(roll Roll, end, bytes uint64, at int64) (seal cp.SealSegment, next cp.RegisterSegment, ok bool) {
	if f.opts.Commands == nil {
		return seal, next, false
	}
	f.meta.RLock()
	defer f.meta.RUnlock()
	id := roll.Range()
	state := f.view.ofID(id.Topic)
	if state == nil {
		return seal, next, false
	}
	rec, head, topic := state.Range(id), state.Head(id), state.TopicByID(id.Topic)
	if rec == nil || rec.Phase == cp.Sealed || head == nil || head.ID != roll.Segment || topic == nil {
		return seal, next, false
	}
	seal, err := cp.Sealing(head, end, bytes, at)
	if err != nil {
		return seal, next, false
	}
	s := f.shardOf(id)
	s.mu.Lock()
	seq := max(s.at(id).nextSeq, rec.NextSequence, head.ID.Seq+1)
	s.mu.Unlock()
	next = cp.RegisterSegment{
		ID: fence.SegmentID{Range: id, Seq: seq}, Start: end,
		Salt: f.opts.Bits(), Writer: f.opts.Writer, At: at,
	}
	next.Replicas, err = f.place(next.ID, topic.Name)
	return seal, next, err == nil
}
