package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/ringfence/ringfence/cp"
	"github.com/ringfence/ringfence/engine/frontend"
	"github.com/ringfence/ringfence/engine/store"
	"github.com/ringfence/ringfence/fence"
	"github.com/ringfence/ringfence/segfile"
)

const (
	fenceRetry = time.Second // after which a fence that was not answered is sent again
	headTries  = 8           // how often nextHead follows heads that close under it
)

// nextHead returns the segment that takes a batch meant for the range, and the plan
// for it. old, the head that refused or failed, is fenced and sealed first.
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

// planHeld plans while nobody splits or merges the range. If somebody has, the plan
// names the range that took over; nothing is opened there, where nobody is held off.
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

// creator makes a segment's file: store.Create for one that is to be written to,
// store.CreateFromReserve for one that others wait for to be closed or deleted.
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

// lineage says where a range's knowledge of its producers lies: in its last
// segment, or else in what the ranges it came from knew.
type lineage struct {
	id         fence.RangeID
	start, end uint64
	segments   []stretch // of the range itself, in order
	from       []*lineage
	unasked    bool                   // its own segments are likely to tell: from was not looked for
	known      *segfile.ProducerTable // what came from there, once somebody asked; never changed
}

// stretch is a sealed segment and the offsets [start, end) it holds.
type stretch struct {
	id         fence.SegmentID
	start, end uint64
}

// lineageOf looks for the segments before id. Ranges that were split and merged
// again are reached on many ways: done holds those that were looked at. What was given
// up counts as expired. Where a range has segments the look ends: ranges have long histories,
// and what is before them is asked for only if all of them are damaged.
func (e *Engine) lineageOf(s *cp.State, r *cp.Range, id fence.SegmentID, done map[fence.RangeID]*lineage) *lineage {
	if l := done[r.ID]; l != nil {
		return l
	}
	l := &lineage{id: r.ID, start: r.Start, end: r.End}
	done[r.ID] = l
	for seg := range s.Segments(r.ID) {
		if seg.ID != id && seg.Phase == cp.Sealed && !e.isGivenUp(seg.ID) {
			l.segments = append(l.segments, stretch{seg.ID, seg.Start, seg.Start + seg.Length})
		}
	}
	if l.unasked = len(l.segments) > 0; !l.unasked {
		e.lookBehind(s, r, l, done)
	}
	return l
}

// lookBehind adds the lineages of a range's parents.
func (e *Engine) lookBehind(s *cp.State, r *cp.Range, l *lineage, done map[fence.RangeID]*lineage) {
	for _, parent := range r.From {
		if p := s.Range(parent); p != nil {
			l.from = append(l.from, e.lineageOf(s, p, fence.SegmentID{}, done))
		}
	}
}

// inherit is the table that a new segment of the range starts from.
func (e *Engine) inherit(l *lineage) (*segfile.ProducerTable, error) {
	return e.producersBehind(l, len(l.segments))
}

// producersBehind is what the range knew of its producers behind the first n of its
// segments. A segment that has lost it to damage still has its frames: with what was
// known before it, they tell.
func (e *Engine) producersBehind(l *lineage, n int) (*segfile.ProducerTable, error) {
	if n == 0 {
		return e.inheritParents(l)
	}
	last := l.segments[n-1]
	if err := e.whyLost(last.id); err != nil {
		return nil, fmt.Errorf("what its range knows of its producers is lost: %w", err)
	}
	seg, err := e.store.Segment(last.id)
	if err != nil {
		return nil, fmt.Errorf("the producers of the range are in a segment that is not there: %w", err)
	}
	table, err := seg.Producers()
	if !errors.Is(err, ErrDamaged) {
		return table, err
	}
	if n > 1 && l.segments[n-2].end != last.start || n == 1 && last.start != 0 {
		return nil, err // what came before has expired
	}
	before, berr := e.producersBehind(l, n-1)
	if berr == nil {
		before = before.Clone()
		berr = seg.Replay(before)
	}
	if berr != nil {
		return nil, errors.Join(err, berr)
	}
	e.log.Warn("what a segment knew of its producers was made again from its frames", "segment", last.id)
	return before, nil
}

// inheritParents is the table that a range starts from.
func (e *Engine) inheritParents(l *lineage) (*segfile.ProducerTable, error) {
	if l.known != nil {
		return l.known, nil
	}
	if l.unasked {
		err := e.withTopic(l.id.Topic, func(s *cp.State, _ *cp.Topic) {
			if r := s.Range(l.id); r != nil {
				e.lookBehind(s, r, l, map[fence.RangeID]*lineage{})
			}
		})
		if err != nil {
			return nil, err
		}
		l.unasked = false
	}
	table := segfile.NewProducerTable(l.start, l.end)
	for i, from := range l.from {
		t, err := e.inherit(from)
		switch {
		case err != nil:
			return nil, err
		case i == 0:
			table = t
		default:
			table = segfile.MergeTables(table, t)
		}
	}
	if start, end := table.Bounds(); start != l.start || end != l.end {
		table = table.Slice(l.start, l.end)
	}
	l.known = table
	return table, nil
}

// roll fences a segment and records where it ends. Those who come to it at the same
// time share one roll and its answer.
//
// open says that the range is being written to: then its next segment is registered
// with the seal.
func (e *Engine) roll(seg *store.Segment, open bool) error {
	mine := &rolling{done: make(chan struct{})}
	if other, busy := e.rolled.LoadOrStore(seg.ID(), mine); busy {
		r := other.(*rolling)
		<-r.done
		return r.err
	}
	mine.err = e.rollOnce(seg, open)
	e.rolled.Delete(seg.ID())
	close(mine.done)
	return mine.err
}

// awaitRoll returns when no roll of the segment is under way: the control plane may
// have it sealed, and its successor registered, before the frontend knows.
func (e *Engine) awaitRoll(id fence.SegmentID) {
	if r, busy := e.rolled.Load(id); busy {
		<-r.(*rolling).done
	}
}

// awaitRolls is awaitRoll for whatever segment of a range.
func (e *Engine) awaitRolls(id fence.RangeID) {
	e.rolled.Range(func(seg, r any) bool {
		if seg.(fence.SegmentID).Range == id {
			<-r.(*rolling).done
		}
		return true
	})
}

// rolling is a roll on its way; err is set before done is closed.
type rolling struct {
	done chan struct{}
	err  error
}

func (e *Engine) rollOnce(seg *store.Segment, open bool) error {
	id := seg.ID()
	began := time.Now()
	_, before := seg.Fenced()
	roll := frontend.Roll{Segment: id, Primary: string(nodeID), Start: seg.Base()}
	end, err := seg.Fence()
	if err != nil {
		e.front.ForgetFence(roll)
		e.owe(id, err)
		return err
	}
	if !before {
		e.fences.note(time.Since(began))
	}
	record := e.front.RecordFence
	if open {
		record = e.front.RecordRoll
	}
	if err := record(roll, end.Offset, end.Bytes, e.millis()); err != nil && !errors.Is(err, cp.ErrNoSuchSegment) {
		e.front.ForgetFence(roll)
		e.owe(id, err)
		return fmt.Errorf("segment %s is fenced, but its end was not recorded: %w", id, err)
	}
	return nil
}

// owe has the roller close a segment that could not be closed for lack of space:
// nobody else may come to it again.
func (e *Engine) owe(id fence.SegmentID, err error) {
	if !errors.Is(err, ErrOutOfSpace) {
		return
	}
	var list []cp.Segment
	_ = e.withTopic(id.Range.Topic, func(s *cp.State, _ *cp.Topic) { // without its topic it is nobody's
		if seg := s.Segment(id); seg != nil && seg.Phase == cp.Active {
			list = append(list, *seg)
		}
	})
	e.front.RequestRolls(list)
}

// owed makes the roller look for owed rolls.
func (e *Engine) owed() {
	select {
	case e.rolls <- struct{}{}:
	default:
	}
}

// roller fences what the frontend owes.
func (e *Engine) roller() {
	retry := time.NewTicker(fenceRetry)
	defer retry.Stop()
	for {
		select {
		case <-e.quit:
			return
		case <-e.rolls:
		case <-retry.C:
		}
		for _, r := range e.front.FencesToSend(e.instant(), int64(fenceRetry)) {
			seg, err := e.store.Segment(r.Segment)
			if err == nil {
				err = e.roll(seg, !seg.LeftOpen())
			}
			if err == nil {
				continue
			}
			e.front.ForgetFence(r)
			level := slog.LevelWarn
			if errors.Is(err, ErrOutOfSpace) {
				level = slog.LevelDebug // the store says so once
			}
			e.log.Log(context.Background(), level, "roll failed, it stays owed", "segment", r.Segment, "err", err)
		}
	}
}

// fenceStats measures fences, from the last append taken to the latch.
type fenceStats struct {
	n, nanos, worst atomic.Int64
	by              store.DurationCounter
}

func (f *fenceStats) note(d time.Duration) {
	f.n.Add(1)
	f.nanos.Add(int64(d))
	f.by.Note(d)
	for {
		w := f.worst.Load()
		if int64(d) <= w || f.worst.CompareAndSwap(w, int64(d)) {
			return
		}
	}
}
