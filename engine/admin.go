package engine

import (
	"context"
	"errors"

	"github.com/ringfence/ringfence/cp"
	"github.com/ringfence/ringfence/engine/api"
	"github.com/ringfence/ringfence/engine/frontend"
	"github.com/ringfence/ringfence/engine/store"
	"github.com/ringfence/ringfence/fence"
)

const defaultBits = 8

// CreateTopic creates a topic with one range. It returns when that is durable. If the topic is
// created but cannot be bound to its policy, there is an error, and it exists without one.
// Errors: ErrTopicExists, ErrInvalidTopicName, ErrInvalidBits, ErrNoSuchPolicy, ErrLimit.
func (e *Engine) CreateTopic(ctx context.Context, name string, o TopicOptions) error {
	if err := api.CheckTopic(name); err != nil {
		return err
	}
	if err := e.enter(ctx); err != nil {
		return err
	}
	defer e.end()
	if o.Bits == 0 {
		o.Bits = defaultBits
	}
	if err := e.mayBind(ctx, name, o.Policy); err != nil {
		return err
	}
	var id fence.TopicID
	for i := range id {
		id[i] = byte(e.dice())
	}
	if _, err := e.front.CreateTopic(name, o.Bits, id, e.millis()); err != nil {
		return about(name, -1, err)
	}
	if t, err := e.front.Topic(name); err != nil || t.ID() != id {
		e.front.Follow(name) // it still had one that was deleted by a command whose answer never came
	}
	if o.Policy != "" {
		return e.BindPolicy(ctx, name, o.Policy)
	}
	return nil
}

// DeleteTopic removes a topic with all its records and its groups' positions. Its producers
// and consumers fail with ErrNoSuchTopic from then on.
func (e *Engine) DeleteTopic(ctx context.Context, name string) error {
	if err := api.CheckTopic(name); err != nil {
		return err
	}
	if err := e.enterToFence(ctx); err != nil {
		return err
	}
	defer e.end()
	t, err := e.topic(name)
	if err != nil {
		return about(name, -1, err)
	}
	segments, err := e.forget(t)
	if err != nil {
		return about(name, -1, err)
	}
	e.store.Watch(t.ID()).Notify() // whoever waits for records finds out
	defer e.store.Forget(t.ID())
	return about(name, -1, several(segments, func(seg *cp.Segment) error {
		return e.removeSegment(seg.ID)
	}))
}

// forget removes a topic from the metadata and returns the segments it had, whose files are
// nobody's then. Its ranges are held meanwhile, so that none gets another file.
func (e *Engine) forget(t *frontend.Topic) ([]*cp.Segment, error) {
	for {
		slice, version := t.Slices()
		ids := make([]fence.RangeID, len(slice))
		for i := range slice {
			ids[i] = slice[i].Range
		}
		release := e.hold(ids...)
		if t.Version() != version {
			release() // split or merged meanwhile
			continue
		}
		defer release()
		segments, err := e.segmentsOf(t.Name())
		if err == nil {
			err = e.front.DeleteTopic(t.Name())
		}
		if errors.Is(err, cp.ErrNoSuchTopic) {
			e.front.Follow(t.Name()) // it went before, by a command whose answer never came
		}
		if err == nil { // whoever waits for one of the locks finds the topic gone
			for _, id := range ids {
				e.held.Delete(id)
			}
			for _, seg := range segments {
				e.held.Delete(seg.ID.Range)
			}
		}
		return segments, err
	}
}

// removeSegment closes and deletes a copy that the metadata does not list any more. If there
// is no space to close it, it is deleted as it is, which makes some.
func (e *Engine) removeSegment(id fence.SegmentID) error {
	if e.whyLost(id) != nil {
		return e.discardLost(id)
	}
	seg, err := e.store.Segment(id)
	if err != nil {
		return e.unlist(id) // or never had a file
	}
	if _, err := seg.Fence(); err != nil && !errors.Is(err, ErrOutOfSpace) {
		return err
	}
	if err := e.store.Delete(id); !errors.Is(err, store.ErrNoSegment) {
		return err
	}
	return nil // retention was faster
}

// SplitRange closes a range and opens two in its place, each with half of its keys, and
// returns their numbers. Producers and consumers follow by themselves. Errors:
// ErrNoSuchTopic, ErrNoSuchRange, ErrRangeSealed, ErrCannotSplit, ErrLimit.
func (e *Engine) SplitRange(ctx context.Context, topic string, seq uint32) (left, right uint32, err error) {
	if err := e.enterToFence(ctx); err != nil {
		return 0, 0, err
	}
	defer e.end()
	id, err := e.rangeOf(topic, seq)
	if err != nil {
		return 0, 0, err
	}
	unlock := e.hold(id)
	defer unlock()
	var l, r fence.RangeID
	err = e.retire(func() (err error) { l, r, err = e.front.SplitRange(id); return err }, id)
	if err != nil {
		return 0, 0, aboutRange(topic, seq, err)
	}
	e.store.Watch(id.Topic).Notify()
	return l.Seq, r.Seq, nil
}

// MergeRanges closes two ranges that are the halves of one block of keys and opens one in
// their place, whose number it returns. Errors: ErrNoSuchTopic, ErrNoSuchRange,
// ErrRangeSealed, ErrNotBuddies, ErrLimit.
func (e *Engine) MergeRanges(ctx context.Context, topic string, a, b uint32) (uint32, error) {
	if err := e.enterToFence(ctx); err != nil {
		return 0, err
	}
	defer e.end()
	idA, err := e.rangeOf(topic, a)
	if err != nil {
		return 0, err
	}
	idB, err := e.rangeOf(topic, b)
	if err != nil {
		return 0, err
	}
	if a == b {
		return 0, about(topic, int64(a), cp.ErrNotBuddies)
	}
	unlock := e.hold(idA, idB)
	defer unlock()
	var child fence.RangeID
	err = e.retire(func() (err error) { child, err = e.front.MergeRanges(idA, idB); return err }, idA, idB)
	if err != nil {
		return 0, aboutRange(topic, a, err)
	}
	e.store.Watch(idA.Topic).Notify()
	return child.Seq, nil
}

// aboutRange is about of a change to ranges: the frontend names the one that is to blame, by
// the topic's identity.
func aboutRange(topic string, seq uint32, err error) error {
	if of := (*frontend.RangeError)(nil); errors.As(err, &of) {
		return about(topic, int64(of.Range.Seq), of.Err)
	}
	return about(topic, int64(seq), err)
}

// rollRange closes a range's write head, if it has one.
func (e *Engine) rollRange(id fence.RangeID) (closed bool, err error) {
	if _, ok := e.front.ActiveRoll(id); !ok {
		return false, nil
	}
	unlock := e.hold(id)
	defer unlock()
	if _, ok := e.front.ActiveRoll(id); !ok {
		return false, nil // somebody else did
	}
	return true, e.closeHead(id)
}

// retire changes held ranges once they have no write heads. A roll that was under way
// when they were taken registers a successor of the head that it closes; the control
// plane may have it, and refuse the change, before the frontend does.
func (e *Engine) retire(change func() error, ids ...fence.RangeID) (err error) {
	for range headTries {
		for _, id := range ids {
			if err := e.closeHead(id); err != nil {
				return err
			}
		}
		if err = change(); !errors.Is(err, cp.ErrActiveSegment) {
			return err
		}
		for _, id := range ids {
			e.awaitRolls(id)
		}
	}
	return err
}

// closeHead fences and seals a range's write head, if it has one. The caller holds
// the range: the head may have no file yet.
func (e *Engine) closeHead(id fence.RangeID) error {
	for {
		roll, ok := e.front.ActiveRoll(id)
		if !ok {
			return nil
		}
		seg, err := e.openFile(roll.Segment, e.store.CreateFromReserve)
		if err != nil {
			return err
		}
		// A roll that was under way registers a successor with the seal: that one is
		// next. No other comes, as the range is held and the head's roll is done.
		if err := e.roll(seg, false); err != nil {
			return err
		}
	}
}

// Roll closes every open segment of a topic and returns how many there were. The next records
// open new ones.
func (e *Engine) Roll(ctx context.Context, topic string) (int, error) {
	if err := api.CheckTopic(topic); err != nil {
		return 0, err
	}
	if err := e.enterToFence(ctx); err != nil {
		return 0, err
	}
	defer e.end()
	t, err := e.topic(topic)
	if err != nil {
		return 0, about(topic, -1, err)
	}
	n := 0
	ranges, _ := t.Slices()
	for _, r := range ranges {
		if err := ctx.Err(); err != nil {
			return n, err
		}
		closed, err := e.rollRange(r.Range)
		if err != nil {
			return n, about(topic, int64(r.Range.Seq), err)
		}
		if closed {
			n++
		}
	}
	return n, nil
}
