package frontend

import (
	"io"
	"maps"

	"github.com/ringfence/ringfence/cp"
	"github.com/ringfence/ringfence/fence"
)

// Offsets is where a consumer stands in a topic: its position in each range it consumes. A
// range without an entry goes on where the ranges it came from stand, or at the start of
// everything if none of them has an entry either.
//
// A position maps the sources of a range (the range and its ancestors) that are not finished to
// their next offsets. So a split child starts from its parent's map and a merge child from the
// union of both.
type Offsets map[fence.RangeID]cp.Position

// Source is one range that a consumer can read now.
type Source struct {
	Cursor fence.RangeID // the entry of Offsets that advances
	Range  fence.RangeID // the range to read: Cursor or an ancestor
	From   uint64        // next offset
	// Start and End bound the key positions [Start, End) that the cursor is about. Other records
	// of the range are somebody else's, unless Whole says that there are none.
	Start, End uint64
	Whole      bool
	// Final says that the range takes no more, and Limit, which is valid then, where it ends: a
	// reader that gets there is finished with it.
	Final  bool
	Limit  uint64
	Origin Origin
}

// Wants says whether a record at that key position is the cursor's.
func (s *Source) Wants(position uint32) bool {
	return s.Whole || s.Start <= uint64(position) && uint64(position) < s.End
}

// Advance moves the cursor of a source that was read up to next. It is true when that finished
// the source: plan again, for what may be read after it.
func (o Offsets) Advance(s Source, next uint64) (finished bool) {
	pos := o[s.Cursor]
	if pos == nil {
		pos = cp.Position{}
		o[s.Cursor] = pos
	}
	if s.Final && next >= s.Limit {
		if s.Range == s.Cursor {
			pos[s.Range] = s.Limit
		} else {
			delete(pos, s.Range)
		}
		return true
	}
	pos[s.Range] = max(pos[s.Range], next)
	return false
}

// Clone is a copy that shares nothing.
func (o Offsets) Clone() Offsets {
	c := make(Offsets, len(o))
	for id, p := range o {
		c[id] = maps.Clone(p)
	}
	return c
}

// Plan says what a consumer that stands at those offsets can read now, and returns its offsets
// with an entry for every range it stands in: commit those, advanced by [Offsets.Advance].
// Only limits it to some of the topic's current ranges, the members' share of a group; nil means
// all of them. The arguments are not kept nor changed.
//
// A range is readable once everything before it is finished: its parents' records up to their
// sealed ends, for a merge those of both. So the records of one key come in the order they were
// produced. Records of one key never come from two sources of the same plan.
//
// Ranges that have retired are read on under their own entry as long as the consumer has all that
// came of them, so that history is read once and not once for each child; where it has only some,
// each of those children gets its own entry, cut to its slice. A merge whose two sides stand at
// different offsets of an ancestor they share is not started before both sides are finished:
// nothing is read twice and nothing is left out.
//
// A plan holds until the topic's version changes or one of its sources is finished; there is no need
// for one with every poll.
//
// Errors: cp.ErrNoSuchTopic, cp.ErrNoSuchRange (the view is behind the offsets; refresh),
// [ErrInvalidPosition], [ErrMetadataUnavailable] where the end of a range to read is not known.
func (f *Frontend) Plan(topic string, at Offsets, only []fence.RangeID) (Offsets, []Source, error) {
	f.meta.RLock()
	defer f.meta.RUnlock()
	p, err := f.planner(topic, at, only)
	if err != nil {
		return nil, nil, err
	}
	p.settle()
	return p.result()
}

// StartPosition is where a consumer that stands at those offsets begins to read one range: its own
// entry, else its parent's map for a split child, else the union of both for a merge child. An
// ancestor that both parents have an entry of, at different offsets, is taken at the lower one:
// nothing is lost, some of it may come again. [Frontend.Plan] avoids that. Errors: cp.ErrNoSuchRange,
// [ErrInvalidPosition].
func (f *Frontend) StartPosition(id fence.RangeID, at Offsets) (cp.Position, error) {
	f.meta.RLock()
	defer f.meta.RUnlock()
	t := f.view.TopicByID(id.Topic)
	if t == nil || f.view.Range(id) == nil {
		return nil, rangeErr(id, cp.ErrNoSuchRange)
	}
	p, err := f.planner(t.Name, at, nil)
	if err != nil {
		return nil, err
	}
	r := p.state.Range(id)
	pos := cp.Position{}
	p.covering(r, func(c *cursor, _ piece) {
		for source, offset := range p.derive(r, c) {
			if have, ok := pos[source]; !ok || offset < have {
				pos[source] = offset
			}
		}
	})
	return pos, nil
}

// Seek says where a source goes on: the extent to read next, and what the way there leaves out
// because it is no longer stored (Offsets 0 if nothing). On [io.EOF] there is nothing to read: a
// final source is finished, any other is caught up. In that case too the cursor moves past what was
// left out: advance it to s.From + skip.Offsets, and report the skip once that is done. Errors:
// cp.ErrNoSuchRange.
func (f *Frontend) Seek(s Source) (e Extent, skip Skip, err error) {
	p, err := f.look(s.Range, s.From)
	if err != nil {
		return e, skip, err
	}
	to := p.From
	switch {
	case p.found:
	case p.final:
		to, err = p.floor, io.EOF
	default:
		to, err = p.earliest, io.EOF
	}
	skip = Skip{Range: s.Cursor, Source: s.Range, From: s.From, Exact: s.Whole, Origin: s.Origin}
	if to > s.From {
		skip.Offsets = to - s.From
	}
	return p.Extent, skip, err
}
