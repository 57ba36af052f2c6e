package engine

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"time"

	"github.com/ringfence/ringfence/cp"
	"github.com/ringfence/ringfence/engine/store"
	"github.com/ringfence/ringfence/fence"
	"github.com/ringfence/ringfence/segfile"
)

// RetainReport says what one pass of retention did.
type RetainReport struct {
	Expired int    // segments removed
	Bytes   uint64 // of their frames
	Rolled  int    // segments closed because they were open for too long
	Failed  int    // removals and rolls that failed; the next pass tries again
	// Unresolved are the topics that are bound to a policy that is not defined: nothing of
	// them expires.
	Unresolved []string
	Took       time.Duration
}

// retainer applies retention and age rolls from time to time, and when it is told to.
func (e *Engine) retainer() {
	t := time.NewTicker(e.opts.RetainEvery)
	defer t.Stop()
	for {
		select {
		case <-e.quit:
			return
		case <-t.C:
		case <-e.retention:
		}
		r, err := e.retain()
		if err != nil && !e.isClosing() {
			e.log.Warn("retention pass failed", "err", err)
		} else if r.Expired+r.Failed+r.Rolled > 0 {
			e.log.Info("retention", "expired", r.Expired, "bytes", r.Bytes, "rolled", r.Rolled, "failed", r.Failed)
		}
	}
}

// retainSoon makes the retainer start a pass now. It does not wait; however often it is called
// while a pass runs, one more pass follows.
func (e *Engine) retainSoon() {
	if e.opts.retainLater {
		return
	}
	select {
	case e.retention <- struct{}{}:
	default:
	}
}

// Retain applies retention and age rolls now, and returns when that is done.
func (e *Engine) Retain(ctx context.Context) (RetainReport, error) {
	if err := e.enterToFence(ctx); err != nil {
		return RetainReport{}, err
	}
	defer e.end()
	return e.retain()
}

func (e *Engine) retain() (RetainReport, error) {
	began := time.Now()
	var report RetainReport
	policies := map[string]cp.Policy{}
	if err := e.host.ReadLocal(e.home(), func(s *cp.State) {
		for name, p := range s.Policies() {
			policies[name] = p
		}
	}); err != nil {
		return report, err // unknown is not empty: nothing expires
	}
	rules := cp.Retention{Defaults: e.opts.Retention, Lookup: func(name string) (cp.Policy, bool) {
		p, ok := policies[name]
		return p, ok
	}}
	now := e.millis()
	var expired, due []*cp.Segment
	for v := range e.vnodes() {
		if err := e.host.ReadLocal(v, func(s *cp.State) {
			expired = append(expired, cp.Expired(s, now, rules)...)
			due = append(due, cp.DueForRoll(s, now, rules)...)
			report.Unresolved = append(report.Unresolved, rules.Unresolved(s)...)
		}); err != nil {
			return report, err
		}
	}
	for _, seg := range due {
		if e.isClosing() {
			return report, ErrClosed
		}
		if _, err := e.rollRange(seg.ID.Range); err != nil {
			report.Failed++
			e.log.Warn("age roll failed, tried again later", "segment", seg.ID, "err", err)
			continue
		}
		report.Rolled++
	}
	for _, seg := range expired {
		if e.isClosing() {
			return report, ErrClosed
		}
		if err := e.expire(seg); err != nil {
			report.Failed++
			e.log.Warn("segment not removed, tried again later", "segment", seg.ID, "err", err)
			continue
		}
		report.Expired++
		report.Bytes += seg.Bytes
	}
	report.Took = time.Since(began)
	return report, nil
}

// expire removes a segment from the metadata, then from the disk. What the range knows of its
// producers is kept: before its last segment goes, the one after it gets a file, which takes
// that over.
//
// What a lost segment knew is lost with it; but then the records are not read any more whose
// repeats it would have recognised. Its file is set aside.
func (e *Engine) expire(seg *cp.Segment) error {
	e.awaitRoll(seg.ID)
	lost := e.whyLost(seg.ID) != nil
	if !lost {
		if err := e.handOn(seg); err != nil {
			return err
		}
	}
	err := e.front.DeleteSegment(seg.ID)
	if err != nil && !errors.Is(err, cp.ErrNoSuchSegment) {
		return err
	}
	if lost {
		return e.discardLost(seg.ID)
	}
	if err := e.store.Delete(seg.ID); !errors.Is(err, store.ErrNoSegment) {
		return err
	}
	return e.unlist(seg.ID) // or gone already
}

// dropEmpty removes a closed segment without records when the process is about to end: a
// process that sends nothing but repeats would otherwise leave a file each time. But what the
// segment knows of its producers must be known without it, because when the others have
// expired it is all there is. If that is not certain, or there is no space to record the
// removal, the segment stays, which costs a file. A crash meanwhile leaves a file that the
// next start sets aside.
func (e *Engine) dropEmpty(seg *store.Segment) error {
	if seg.CommitMark() != seg.Base() {
		return nil
	}
	if _, err := seg.Found(); err != nil { // it may have had records
		return nil
	}
	have, err := seg.Producers()
	if err != nil {
		return nil
	}
	var heritage *lineage
	if err := e.withTopic(seg.ID().Range.Topic, func(s *cp.State, _ *cp.Topic) {
		if r := s.Range(seg.ID().Range); r != nil {
			heritage = e.lineageOf(s, r, seg.ID(), map[fence.RangeID]*lineage{})
		}
	}); err != nil || heritage == nil {
		return nil
	}
	without, err := e.inherit(heritage)
	if err != nil {
		return nil
	}
	x, err := have.AppendBinary(nil)
	y, yerr := without.AppendBinary(nil)
	if err != nil || yerr != nil || !bytes.Equal(x, y) {
		return nil
	}
	err = e.front.DeleteSegment(seg.ID())
	switch {
	case errors.Is(fromHost(err), ErrOutOfSpace):
		return nil
	case err != nil && !errors.Is(err, cp.ErrNoSuchSegment):
		return err
	}
	return e.store.Delete(seg.ID())
}

// discardLost sets aside what is left of a lost segment, once the metadata does not list it
// any more.
func (e *Engine) discardLost(id fence.SegmentID) error {
	if _, err := e.store.Segment(id); err == nil {
		_, err := e.store.SetAsideSegment(id)
		return err
	}
	if _, err := e.store.SetAside(segfile.Name(id)); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil // it was missing
}

// handOn opens a write head in every range that would take its producers from seg.
func (e *Engine) handOn(seg *cp.Segment) error {
	var heirs []fence.RangeID
	err := e.withTopic(seg.ID.Range.Topic, func(s *cp.State, t *cp.Topic) {
		heirs = e.heirs(s, seg.ID.Range, seg.ID, map[fence.RangeID]bool{})
	})
	if err != nil && !errors.Is(err, cp.ErrNoSuchTopic) {
		return err
	}
	for _, id := range heirs {
		if err := e.ensureHead(id); err != nil {
			return err
		}
	}
	return nil
}

// heirs are the active ranges among id and its descendants for which no segment after last
// carries on what is known of producers. Ranges that were split and merged again can be
// reached on many ways; done holds those that were looked at.
func (e *Engine) heirs(s *cp.State, id fence.RangeID, last fence.SegmentID, done map[fence.RangeID]bool) (list []fence.RangeID) {
	r := s.Range(id)
	if r == nil || done[id] {
		return nil
	}
	done[id] = true
	for seg := range s.Segments(id) {
		if seg.ID.Range == last.Range && seg.ID.Seq <= last.Seq {
			continue
		}
		if _, err := e.store.Segment(seg.ID); err == nil {
			return nil // a later one, which has its file, carries the producers on
		}
	}
	if r.Phase == cp.Active {
		return []fence.RangeID{id}
	}
	for _, child := range r.Children {
		list = append(list, e.heirs(s, child, last, done)...)
	}
	return list
}

// ensureHead opens a write head in a range that has none.
func (e *Engine) ensureHead(id fence.RangeID) error {
	unlock := e.hold(id)
	defer unlock()
	head, err := e.front.OpenHead(id, e.millis())
	if err != nil {
		if errors.Is(err, cp.ErrRangeSealed) || errors.Is(err, cp.ErrNoSuchRange) {
			return nil // split or deleted meanwhile: looked at again in the next pass
		}
		return err
	}
	_, err = e.openFile(head, e.store.CreateFromReserve)
	return err
}
