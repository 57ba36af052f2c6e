package engine

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/ringfence/ringfence/cp"
	"github.com/ringfence/ringfence/fence"
	"github.com/ringfence/ringfence/segfile"
)

// AcceptLoss gives a sealed segment up whose file is missing: from now on reads skip
// all its records and say so, where they failed before, and the range can be written to
// again if it was the last. What it knew of its producers is lost with it: a producer
// that sends its records again stores those anew that were in it. The answer is the skip
// that consumers see. A file that comes back is served again by the next Open.
//
// A file that is there is never given up whole: for its damaged stretches there is
// 'ringfence segment accept-loss', and one that cannot be read at all is first to be
// moved out of the directory.
func (e *Engine) AcceptLoss(ctx context.Context, topic string, rng, segment uint32) (Skip, error) {
	if err := e.enter(ctx); err != nil {
		return Skip{}, err
	}
	defer e.end()
	id, err := e.rangeOf(topic, rng)
	if err != nil {
		return Skip{}, err
	}
	var seg *cp.Segment
	if err := e.lookAt(topic, func(s *cp.State, _ *cp.Topic) { seg = s.Segment(fence.SegmentID{Range: id, Seq: segment}) }); err != nil {
		return Skip{}, about(topic, int64(rng), err)
	}
	refuse := func(err error) (Skip, error) {
		return Skip{}, about(topic, int64(rng), fmt.Errorf("segment %d: %w", segment, err))
	}
	switch {
	case seg == nil:
		return refuse(cp.ErrNoSuchSegment)
	case seg.Phase == cp.Active:
		return refuse(fmt.Errorf("%w: how much of it is lost is not known", cp.ErrSegmentActive))
	}
	present := fmt.Errorf("%w: %s", ErrNotMissing, segfile.Name(seg.ID))
	if why := e.whyLost(seg.ID); why != nil {
		present = fmt.Errorf("%w: move it out of the directory first: %w", present, why)
	}
	if _, err := e.store.Segment(seg.ID); err == nil {
		return refuse(present)
	}
	skip := Skip{Range: rng, From: seg.Start, Offsets: seg.Length, Damaged: true}
	if e.isGivenUp(seg.ID) {
		return skip, nil
	}
	err = segfile.GiveUp(e.store.Disk(), seg.ID, seg.Salt, seg.Start, seg.Length)
	if errors.Is(err, fs.ErrExist) {
		err = present
	}
	if err != nil {
		return refuse(err)
	}
	e.log.Warn("segment given up", "segment", seg.ID, "offset", seg.Start, "records", seg.Length)
	e.givenUp.Store(seg.ID, true)
	e.store.Watch(seg.ID.Range.Topic).Notify()
	return skip, nil
}

// ErrNotMissing: the file of a segment that was to be given up is there.
var ErrNotMissing = errors.New("the segment's file is there")

// whyLost is why a segment cannot be served; nil for one that can, and for one that
// was given up, which counts as expired but for what consumers are told.
func (e *Engine) whyLost(id fence.SegmentID) error {
	if e.isGivenUp(id) {
		return nil
	}
	return e.lost[id]
}

func (e *Engine) isGivenUp(id fence.SegmentID) bool {
	_, ok := e.givenUp.Load(id)
	return ok
}

// unlist forgets that a segment was given up which the metadata does not list any
// more. The record of it that a crash before this leaves behind tells nobody anything.
func (e *Engine) unlist(id fence.SegmentID) error {
	if !e.isGivenUp(id) {
		return nil
	}
	e.givenUp.Delete(id)
	return segfile.Unlist(e.store.Disk(), id)
}
