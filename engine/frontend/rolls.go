package frontend

import (
	"errors"
	"slices"

	"github.com/ringfence/ringfence/cp"
	"github.com/ringfence/ringfence/fence"
)

// DueRolls lists the rolls this frontend owes, ordered by range.
func (f *Frontend) DueRolls() []Roll {
	return f.eachLedger(func(l *fence.Ledger) []Roll { return l.Due() })
}

// RequestRolls owes a roll for each segment given, as the control plane lists it, for
// one that is over age: whoever asks has usually never written to the range. Segments
// that are sealed or have no replica are skipped, and a roll that is owed already is
// not replaced.
func (f *Frontend) RequestRolls(segments []cp.Segment) {
	for i := range segments {
		seg := &segments[i]
		roll, ok := rollOf(seg)
		if !ok || seg.Phase != cp.Active {
			continue
		}
		s := f.shardOf(seg.ID.Range)
		s.mu.Lock()
		s.ledger.Owe(roll)
		s.at(seg.ID.Range).past(seg.ID)
		s.mu.Unlock()
	}
}

// FencesToSend lists the owed rolls whose fence must be sent now: never sent, or sent
// retryAfter nanoseconds ago or longer. They count as sent, so each goes out once in a
// window. The order is by range.
func (f *Frontend) FencesToSend(now Instant, retryAfter int64) []Roll {
	return f.eachLedger(func(l *fence.Ledger) []Roll { return l.FencesToSend(now, retryAfter) })
}

func (f *Frontend) eachLedger(list func(*fence.Ledger) []Roll) []Roll {
	var rolls []Roll
	for i := range f.shards {
		s := &f.shards[i]
		s.mu.Lock()
		rolls = append(rolls, list(&s.ledger)...)
		s.mu.Unlock()
	}
	slices.SortFunc(rolls, func(a, b Roll) int { return a.Segment.Compare(b.Segment) })
	return rolls
}

// RecordFence takes a fence's answer: the copy ends at offset end, with bytes bytes, and
// sealedAt is the time of the answer in ms since the epoch. If the segment is still
// active in the view the seal is recorded as by [Frontend.RecordSeal], also when the
// roll is no longer owed here: a refusal that overtook the answer has cleared it, and
// dropping the answer would leave a fenced copy under an active segment. For a sealed
// segment there is nothing left to do, nor for one that the control plane does not know:
// it was sealed and has expired, or its topic is gone.
func (f *Frontend) RecordFence(roll Roll, end, bytes uint64, sealedAt int64) error {
	seg := f.viewSegment(roll.Segment)
	if seg != nil && seg.Phase == cp.Sealed {
		f.clear(roll.Segment)
		return nil
	}
	err := f.RecordSeal(roll, end, bytes, sealedAt)
	if errors.Is(err, cp.ErrNoSuchSegment) {
		f.fetch(f.nameOf(roll.Range().Topic))
		f.gone(roll.Segment)
		return nil
	}
	return err
}

// RecordSeal records in the control plane that a fenced segment ends at offset end, and
// seats the range there: the next offset is set, also to a lower one, because what was
// reserved above the end was refused. If another length is recorded already, that one
// holds and the range is seated behind it. On any other error nothing changes and the
// roll stays owed. SealedAt is in ms since the epoch.
func (f *Frontend) RecordSeal(roll Roll, end, bytes uint64, sealedAt int64) error {
	id := roll.Segment
	known := cp.Segment{ID: id, Start: roll.Start}
	if seg := f.viewSegment(id); seg != nil {
		known = *seg
	}
	cmd, err := cp.Sealing(&known, end, bytes, sealedAt)
	if err != nil {
		return rangeErr(id.Range, err)
	}
	topic := f.nameOf(id.Range.Topic)
	reply := f.run(topic, cmd, func(*cp.State, cp.Reply) { f.settle(id, end) })
	var sealed cp.AlreadySealed
	switch {
	case errors.As(reply.Err, &sealed):
		f.fetch(topic)
		f.settle(id, known.Start+sealed.Length)
	case reply.Err != nil:
		return rangeErr(id.Range, reply.Err)
	}
	return nil
}

func (f *Frontend) settle(id fence.SegmentID, end uint64) {
	s := f.shardOf(id.Range)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settle(id, end)
}

// clear drops the roll and the fence in flight of a segment; nothing else moves.
func (f *Frontend) clear(id fence.SegmentID) {
	s := f.shardOf(id.Range)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ledger.Clear(id)
}

// gone is clear for a segment that there is no more. It is no head either; where it ended is the
// view's to say.
func (f *Frontend) gone(id fence.SegmentID) {
	s := f.shardOf(id.Range)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.evict(id)
	s.ledger.Clear(id)
}

// ForgetFence gives up a fence that failed, or whose seal could not be recorded. The
// roll stays owed; batches refused from now on fail at once instead of waiting.
func (f *Frontend) ForgetFence(roll Roll) {
	s := f.shardOf(roll.Range())
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ledger.Forget(roll.Segment)
}

// AwaitingFence says whether this frontend sent a fence of that segment less than window
// nanoseconds ago and has no answer: a batch refused now was overtaken by its own
// frontend's fence, and is worth holding.
func (f *Frontend) AwaitingFence(id fence.RangeID, segment fence.SegmentID, now Instant, window int64) bool {
	if segment.Range != id {
		return false
	}
	s := f.shardOf(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ledger.Awaiting(segment, now, window)
}

// RangeAwaitingFence is the lowest range of the topic with such a fence.
func (f *Frontend) RangeAwaitingFence(topic string, now Instant, window int64) (fence.RangeID, bool) {
	t := f.names.get(topic)
	if t == nil {
		return fence.RangeID{}, false
	}
	t.shard.mu.Lock()
	defer t.shard.mu.Unlock()
	return t.shard.ledger.AwaitingRange(t.id, now, window)
}

// ActiveRoll is the roll that would close the range's head: the one that the view has,
// else the cached one; false when there is no head. The view comes first because another
// frontend may have opened it.
func (f *Frontend) ActiveRoll(id fence.RangeID) (Roll, bool) {
	if seg := f.viewHead(id); seg != nil {
		return rollOf(seg)
	}
	s := f.shardOf(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.ranges[id]; r != nil && r.open {
		return r.head.roll(), true
	}
	return Roll{}, false
}

// ForgetSealed takes a refusal: the copy of that segment is fenced at offset end. If the
// segment is the cached head or the roll that is owed, both are dropped and the next
// offset is set to end. A fence in flight stays, which is how a batch overtaken by its
// own frontend's fence is recognised.
func (f *Frontend) ForgetSealed(id fence.RangeID, segment fence.SegmentID, end uint64) {
	if segment.Range != id {
		return
	}
	s := f.shardOf(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forget(segment, end)
}

// DropStaleActiveSegments makes the hot state follow the view after a refresh: heads that
// were sealed elsewhere are dropped and their ranges seated at the recorded end, heads of
// retired ranges are dropped, and so are rolls that the control plane has moved past.
func (f *Frontend) DropStaleActiveSegments() {
	f.meta.RLock()
	defer f.meta.RUnlock()
	f.dropStale()
}

// dropStale is DropStaleActiveSegments with meta held.
func (f *Frontend) dropStale() {
	for i := range f.shards {
		s := &f.shards[i]
		s.mu.Lock()
		for r := range s.heads {
			f.dropStaleHead(s, r)
		}
		for _, roll := range s.ledger.Due() {
			if f.superseded(roll.Segment) {
				s.ledger.Clear(roll.Segment)
			}
		}
		s.mu.Unlock()
	}
}

// dropStaleHead decides on one cached head. Both locks are held.
//
//	segment in the view   range in the view                 cached head
//	sealed                any                               dropped, range seated at its end
//	absent                has moved past its sequence       dropped, range seated at the floor: sealed, then expired
//	active or absent      sealed                            dropped; nobody here knows where it ends
//	active or absent      active or absent                  kept
func (f *Frontend) dropStaleHead(s *shard, r *rng) {
	state := f.view.ofID(r.id.Topic)
	if state == nil {
		return
	}
	id := r.head.segment
	seg, rec := state.Segment(id), state.Range(r.id)
	switch {
	case seg != nil && seg.Phase == cp.Sealed:
		s.forget(id, seg.Start+seg.Length)
	case seg == nil && rec != nil && rec.NextSequence > id.Seq:
		s.forget(id, rec.NextOffset)
	case rec != nil && rec.Phase == cp.Sealed:
		s.evict(id)
	}
}

// superseded says whether the roll of a segment is nobody's business any more: the
// segment is sealed, or it is gone while the range went on behind it. A segment that is
// merely unknown is kept: the view may be behind. Meta is held.
func (f *Frontend) superseded(id fence.SegmentID) bool {
	state := f.view.ofID(id.Range.Topic)
	if state == nil {
		return false
	}
	if seg := state.Segment(id); seg != nil {
		return seg.Phase == cp.Sealed
	}
	rec := state.Range(id.Range)
	return rec != nil && rec.NextSequence > id.Seq
}

// SeedRangeState takes what was learned about a range after a restart: its committed end
// and the lowest sequence its next segment may have. Both only raise, so a late answer
// does no harm.
func (f *Frontend) SeedRangeState(id fence.RangeID, next uint64, minSeq uint32) {
	s := f.shardOf(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.at(id)
	r.raise(next)
	r.durable = max(r.durable, next)
	r.nextSeq = max(r.nextSeq, minSeq)
	r.unrecovered = false
}

// SeedUnrecoveredRange notes that the end of a range could not be learned. Until it is,
// consuming the range is refused with [ErrMetadataUnavailable]; producing is not. A range
// whose end was known once keeps serving.
func (f *Frontend) SeedUnrecoveredRange(id fence.RangeID, minSeq uint32) {
	s := f.shardOf(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.at(id)
	if !r.known {
		r.unrecovered = true
	}
	r.raise(0)
	r.nextSeq = max(r.nextSeq, minSeq)
}

// Unrecovered says whether the end of a range is not known.
func (f *Frontend) Unrecovered(id fence.RangeID) bool {
	s := f.shardOf(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.ranges[id]
	return r != nil && r.unrecovered
}
