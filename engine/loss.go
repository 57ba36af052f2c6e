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

// AcceptLoss gives up a sealed segment whose file is missing: reads, which failed before, skip
// all its records from now on and report that, and if the segment was the last of its range,
// the range can be written to again. AcceptLoss returns the skip that consumers will see. What
// the segment knew of its producers is lost with it: its records are stored again if their
// producer sends them again. If the file comes back, the next Open serves it again.
//
// A file that is there cannot be given up, and the error is ErrNotMissing. For its damaged
// stretches there is 'ringfence segment accept-loss'; a file that cannot be read at all has to
// be moved out of the directory first.
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

// ErrNotMissing refuses to give up a segment whose file is there.
var ErrNotMissing = errors.New("the segment's file is there")

// whyLost says why a segment cannot be served. It is nil for one that can be, and for one that
// was given up, which counts as expired except in what consumers are told.
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

// unlist forgets that a segment was given up, once the metadata does not list it any more. If
// a crash comes before that, a record of it stays on disk, which does no harm.
func (e *Engine) unlist(id fence.SegmentID) error {
	if !e.isGivenUp(id) {
		return nil
	}
	e.givenUp.Delete(id)
	return segfile.Unlist(e.store.Disk(), id)
}
