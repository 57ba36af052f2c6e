package fence

import (
	"maps"
	"slices"
)

// Instant is a point on a monotonic clock, in nanoseconds. Only differences
// between two instants of the same process mean anything.
type Instant int64

// Roll is what closing a write head needs to know about it.
type Roll struct {
	Segment SegmentID
	Primary string // the node that is asked to fence it
	Start   uint64 // first offset of the segment
}

// Range is the range whose head the roll closes.
func (r Roll) Range() RangeID { return r.Segment.Range }

// Ledger is what one frontend owes and what it is waiting for: at most one owed
// roll per range, and at most one fence in flight per range.
//
// The two are apart on purpose. A refused append settles what is owed, yet the
// fence that refused it is still unanswered, and only that lets a frontend see
// that its own fence overtook its own batch.
//
// The zero value is an empty ledger. Its methods allocate only when something
// is owed; they are not safe for concurrent use.
type Ledger struct {
	owed     map[RangeID]owed
	inFlight map[RangeID]flight
}

type owed struct {
	roll Roll
	sent bool
	at   Instant // when its fence was last sent; valid if sent
}

type flight struct {
	segment SegmentID
	at      Instant
}

// Owe notes that the head of a range must roll, and says whether that is news.
// A roll that is owed already is never replaced by another one of its range.
func (l *Ledger) Owe(r Roll) bool {
	if _, ok := l.owed[r.Range()]; ok {
		return false
	}
	if l.owed == nil {
		l.owed = map[RangeID]owed{}
	}
	l.owed[r.Range()] = owed{roll: r}
	return true
}

// Owed is the roll a range owes.
func (l *Ledger) Owed(r RangeID) (Roll, bool) {
	o, ok := l.owed[r]
	return o.roll, ok
}

// Owes says whether this very segment's roll is owed.
func (l *Ledger) Owes(s SegmentID) bool {
	o, ok := l.owed[s.Range]
	return ok && o.roll.Segment == s
}

// Len is the number of rolls owed.
func (l *Ledger) Len() int { return len(l.owed) }

// Due lists the rolls owed, ordered by range.
func (l *Ledger) Due() []Roll {
	if len(l.owed) == 0 {
		return nil
	}
	rolls := make([]Roll, 0, len(l.owed))
	for o := range maps.Values(l.owed) {
		rolls = append(rolls, o.roll)
	}
	sortRolls(rolls)
	return rolls
}

// FencesToSend lists the owed rolls whose fence must be sent now: those never
// sent, and those sent retryAfter nanoseconds ago or longer. It marks them as
// sent and in flight, so that the caller sends each once per window. The order
// is by range.
func (l *Ledger) FencesToSend(now Instant, retryAfter int64) []Roll {
	var rolls []Roll
	for r, o := range l.owed {
		if o.sent && int64(now-o.at) < retryAfter {
			continue
		}
		o.sent, o.at = true, now
		l.owed[r] = o
		if l.inFlight == nil {
			l.inFlight = map[RangeID]flight{}
		}
		l.inFlight[r] = flight{segment: o.roll.Segment, at: now}
		rolls = append(rolls, o.roll)
	}
	sortRolls(rolls)
	return rolls
}

// Refused forgets that the segment's roll is owed, because a refusal said that
// the copy is closed already. A fence in flight stays: its answer is still due.
func (l *Ledger) Refused(s SegmentID) {
	if l.owed[s.Range].roll.Segment == s {
		delete(l.owed, s.Range)
	}
}

// Forget forgets a fence in flight that failed, or whose seal could not be
// recorded. The roll stays owed and is sent again after its window.
func (l *Ledger) Forget(s SegmentID) {
	if l.inFlight[s.Range].segment == s {
		delete(l.inFlight, s.Range)
	}
}

// Clear forgets both: the segment is sealed or gone. What the range owes or
// awaits for any other segment stays.
func (l *Ledger) Clear(s SegmentID) {
	l.Refused(s)
	l.Forget(s)
}

// Awaiting says whether a fence of this segment was sent less than window
// nanoseconds ago and has not been answered.
func (l *Ledger) Awaiting(s SegmentID, now Instant, window int64) bool {
	f, ok := l.inFlight[s.Range]
	return ok && f.segment == s && int64(now-f.at) < window
}

// AwaitingRange is the lowest range of a topic with an unanswered fence younger
// than window nanoseconds.
func (l *Ledger) AwaitingRange(t TopicID, now Instant, window int64) (RangeID, bool) {
	var lowest RangeID
	found := false
	for r, f := range l.inFlight {
		if r.Topic == t && int64(now-f.at) < window && (!found || r.Seq < lowest.Seq) {
			lowest, found = r, true
		}
	}
	return lowest, found
}

// DropTopic forgets everything of a topic that no longer exists.
func (l *Ledger) DropTopic(t TopicID) {
	maps.DeleteFunc(l.owed, func(r RangeID, _ owed) bool { return r.Topic == t })
	maps.DeleteFunc(l.inFlight, func(r RangeID, _ flight) bool { return r.Topic == t })
}

func sortRolls(rolls []Roll) {
	slices.SortFunc(rolls, func(a, b Roll) int { return a.Segment.Compare(b.Segment) })
}
