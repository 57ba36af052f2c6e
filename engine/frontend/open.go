package frontend

import (
	"errors"

	"github.com/ringfence/ringfence/cp"
	"github.com/ringfence/ringfence/fence"
)

// attempts bounds how often one call follows a control plane that moves on under it.
const attempts = 4

// registered makes sure that the control plane knows a head for the range, and
// returns it as the view has it afterwards. At is the time in milliseconds since
// the epoch that a segment opened here is recorded with.
//
// Callers that need the same range at the same time register once: the first asks
// the control plane, the others wait for its answer and share its error.
func (f *Frontend) registered(t *Topic, id fence.RangeID, at int64) (*cp.Segment, error) {
	if seg := f.viewHead(id); seg != nil && f.refused(seg.ID) {
		f.fetch(t.name) // its copy is fenced; the seal is probably recorded by now
	}
	if seg := f.viewHead(id); seg != nil {
		return seg, nil
	}
	t.shard.mu.Lock()
	r := t.shard.at(id)
	op := r.opening
	if op != nil {
		t.shard.mu.Unlock()
		<-op.done
		if op.err != nil {
			return nil, op.err
		}
		return f.headOr(id, nil)
	}
	op = &opening{done: make(chan struct{}), err: ErrStale}
	r.opening = op
	t.shard.mu.Unlock()
	defer func() {
		t.shard.mu.Lock()
		r.opening = nil
		t.shard.mu.Unlock()
		close(op.done)
	}()
	seg, err := f.register(t, r, at)
	op.err = err
	return seg, err
}

// refused says whether the copy of that segment has refused this frontend as fenced.
func (f *Frontend) refused(id fence.SegmentID) bool {
	s := f.shardOf(id.Range)
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.ranges[id.Range]
	return r != nil && r.refused == id
}

// register registers a segment of the range, or finds the one that others did.
func (f *Frontend) register(t *Topic, r *rng, at int64) (*cp.Segment, error) {
	var last error
	for range attempts {
		cmd, seg, err := f.nextSegment(t, r, at)
		if seg != nil || err != nil {
			return seg, err
		}
		reply := f.run(t.name, cmd, func(*cp.State, cp.Reply) {
			t.shard.mu.Lock()
			defer t.shard.mu.Unlock()
			if r.nextSeq <= cmd.ID.Seq { // not cached yet by somebody who fetched it
				r.opened = cmd.ID
			}
		})
		if reply.Err == nil {
			return f.headOr(cmd.ID.Range, &cp.Segment{
				ID: cmd.ID, Replicas: cmd.Replicas, Start: cmd.Start,
				OpenedAt: cmd.At, Salt: cmd.Salt, Writer: cmd.Writer,
			})
		}
		last = rangeErr(r.id, reply.Err)
		if !behind(reply.Err) || !f.fetch(t.name) {
			break
		}
	}
	// What is in the view now may carry the winner.
	if seg := f.viewHead(r.id); seg != nil {
		return seg, nil
	}
	return nil, last
}

// behind says whether a refusal to register shows that the view is old.
func behind(err error) bool {
	for _, target := range []error{
		cp.ErrSegmentExists, cp.ErrSegmentOverlap, cp.ErrActiveSegment, cp.ErrSequenceUsed,
		cp.ErrRangeSealed, cp.ErrNoSuchRange,
	} {
		if errors.Is(err, target) {
			return true
		}
	}
	return false
}

// nextSegment is the command that opens the range's next segment, or the head that
// the view has.
func (f *Frontend) nextSegment(t *Topic, r *rng, at int64) (cmd cp.RegisterSegment, head *cp.Segment, err error) {
	f.meta.RLock()
	defer f.meta.RUnlock()
	state := f.view.of(t.name)
	if state == nil {
		return cmd, nil, topicErr(t.name, cp.ErrNoSuchTopic)
	}
	rec := state.Range(r.id)
	if rec == nil {
		return cmd, nil, rangeErr(r.id, cp.ErrNoSuchRange)
	}
	if seg := usable(state.Head(r.id)); seg != nil {
		return cmd, seg, nil
	}
	if rec.Phase == cp.Sealed {
		return cmd, nil, rangeErr(r.id, cp.ErrRangeSealed)
	}
	t.shard.mu.Lock()
	id := fence.SegmentID{Range: r.id, Seq: max(r.nextSeq, rec.NextSequence)}
	t.shard.mu.Unlock()
	replicas, err := f.place(id, t.name)
	if err != nil {
		return cmd, nil, rangeErr(r.id, err)
	}
	// The floor is where the last sealed segment ended. A reservation counter may stand
	// above it, for batches that a fence refused, and must never become a start.
	return cp.RegisterSegment{
		ID: id, Replicas: replicas, Start: rec.NextOffset,
		Salt: f.opts.Bits(), Writer: f.opts.Writer, At: at,
	}, nil, nil
}

// usable is a head that has a replica to write to.
func usable(seg *cp.Segment) *cp.Segment {
	if seg == nil || seg.Phase != cp.Active || len(seg.Replicas) == 0 {
		return nil
	}
	return seg
}

// viewHead is the range's active segment in the view, nil if it has none.
func (f *Frontend) viewHead(id fence.RangeID) *cp.Segment {
	f.meta.RLock()
	defer f.meta.RUnlock()
	if state := f.view.ofID(id.Topic); state != nil {
		return usable(state.Head(id))
	}
	return nil
}

// headOr is the range's head in the view. A view that never heard of the segment
// registered a moment ago was behind before and takes it as it is; one that has it
// sealed says that the head has moved on.
func (f *Frontend) headOr(id fence.RangeID, mine *cp.Segment) (*cp.Segment, error) {
	f.meta.RLock()
	defer f.meta.RUnlock()
	state := f.view.ofID(id.Topic)
	if state == nil {
		return nil, rangeErr(id, cp.ErrNoSuchRange)
	}
	if seg := usable(state.Head(id)); seg != nil {
		return seg, nil
	}
	if mine != nil && state.Segment(mine.ID) == nil {
		return mine, nil
	}
	return nil, rangeErr(id, ErrStale)
}

// withHead runs use under the topic's lock with the range's head cached: the cached
// one as it is, else the view's, else seg, which was registered a moment ago. It is
// false, and use does not run, when there is none any more.
func (f *Frontend) withHead(t *Topic, id fence.RangeID, seg *cp.Segment, use func(*rng)) bool {
	f.meta.RLock()
	defer f.meta.RUnlock()
	t.shard.mu.Lock()
	defer t.shard.mu.Unlock()
	if !f.ensure(t, id, seg) {
		return false
	}
	use(t.shard.at(id))
	return true
}

// ensure caches a head for the range and says whether it has one. Both locks are
// held.
func (f *Frontend) ensure(t *Topic, id fence.RangeID, seg *cp.Segment) bool {
	r := t.shard.at(id)
	if r.open {
		return true
	}
	state := f.view.of(t.name)
	if state == nil {
		return false
	}
	if head := usable(state.Head(id)); head != nil {
		seg = head
	} else if seg == nil || state.Segment(seg.ID) != nil {
		return false
	}
	t.shard.cache(r, seg, f.segmentMax(state, t.name))
	return true
}

// segmentMax is the size after which the topic's heads are owed a roll: its policy's,
// else the frontend's. meta is held.
func (f *Frontend) segmentMax(state *cp.State, topic string) int64 {
	if p, ok := f.policyOf(state, topic); ok {
		switch p.SegmentMaxBytes.Setting {
		case cp.On:
			return p.SegmentMaxBytes.N
		case cp.Off:
			return 1<<63 - 1
		}
	}
	return f.opts.SegmentMaxBytes
}

// policyOf is the policy that a topic is bound to; false when it is bound to none or
// to a name that is not defined. meta is held.
func (f *Frontend) policyOf(state *cp.State, topic string) (cp.Policy, bool) {
	rec := state.Topic(topic)
	if rec == nil || rec.Policy == "" {
		return cp.Policy{}, false
	}
	return f.view.Policy(rec.Policy)
}

// spreadBy is the attribute that the topic's replicas spread over, "" for none: its
// policy's, also where that turns spreading off, else the frontend's. meta is held.
func (f *Frontend) spreadBy(topic string) string {
	if state := f.view.of(topic); state != nil {
		if p, ok := f.policyOf(state, topic); ok {
			switch p.SpreadBy.Setting {
			case cp.On:
				return p.SpreadBy.Attribute
			case cp.Off:
				return ""
			}
		}
	}
	return f.opts.SpreadBy
}
