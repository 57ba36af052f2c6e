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
)

// fenceRetry is when a fence that was not answered is sent again.
const fenceRetry = time.Second

// roll fences a segment and records where it ends. Concurrent calls for one segment share
// one roll and its answer.
//
// open says that the range is being written to: then its next segment is registered
// together with the seal.
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

// awaitRoll returns when no roll of the segment is under way: while one is, the control
// plane may have the segment sealed and its successor registered before the frontend knows.
func (e *Engine) awaitRoll(id fence.SegmentID) {
	if r, busy := e.rolled.Load(id); busy {
		<-r.(*rolling).done
	}
}

// awaitRolls is awaitRoll for all segments of a range.
func (e *Engine) awaitRolls(id fence.RangeID) {
	e.rolled.Range(func(seg, r any) bool {
		if seg.(fence.SegmentID).Range == id {
			<-r.(*rolling).done
		}
		return true
	})
}

// rolling is a roll under way; err is set before done is closed.
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

// owe makes the roller responsible for a segment that could not be closed for lack of
// space: nobody else may come back to it.
func (e *Engine) owe(id fence.SegmentID, err error) {
	if !errors.Is(err, ErrOutOfSpace) {
		return
	}
	var list []cp.Segment
	_ = e.withTopic(id.Range.Topic, func(s *cp.State, _ *cp.Topic) { // if its topic is gone, nobody needs it closed
		if seg := s.Segment(id); seg != nil && seg.Phase == cp.Active {
			list = append(list, *seg)
		}
	})
	e.front.RequestRolls(list)
}

// owed wakes the roller, to look for rolls that are owed.
func (e *Engine) owed() {
	select {
	case e.rolls <- struct{}{}:
	default:
	}
}

// roller fences the segments whose rolls the frontend says are owed. It runs until Close.
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
