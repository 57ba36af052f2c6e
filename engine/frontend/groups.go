package frontend

import (
	"fmt"
	"maps"

	"github.com/ringfence/ringfence/cp"
	"github.com/ringfence/ringfence/fence"
)

// Commit is a group's offsets on their way into the control plane.
type Commit struct {
	Group, Topic string
	Generation   uint64 // of the group, 0 for one without members
	Offsets      Offsets
	Reset        bool // a deliberate seek: positions may move back
}

// CommitOffset records a group's offsets durably; ranges that are not named keep theirs. No source
// moves back and what is finished stays finished; see [Frontend.Commit] for the rest.
func (f *Frontend) CommitOffset(group, topic string, at Offsets) error {
	return f.Commit(Commit{Group: group, Topic: topic, Offsets: at})
}

// Commit records a group's offsets durably. An offset past a range's commit mark is refused with
// [ErrInvalidPosition]: nobody can have read so far. Where the end of a range is not known here it
// cannot be judged, and the answer is [ErrMetadataUnavailable]. Refusals of the control plane:
// cp.ErrNoSuchTopic, cp.ErrNoSuchRange, cp.ErrStaleGeneration, cp.ErrInvalidGroup, cp.ErrNotASource,
// cp.ErrPastEnd, cp.ErrDifferentTopic, cp.ErrMigrating.
func (f *Frontend) Commit(c Commit) error {
	positions, err := f.explicit(c.Topic, c.Offsets)
	if err != nil {
		return err
	}
	cmd := cp.CommitOffset{
		Group: c.Group, Topic: c.Topic, Generation: c.Generation, Reset: c.Reset, Positions: positions,
	}
	if reply := f.run(c.Topic, cmd, nil); reply.Err != nil {
		return topicErr(c.Topic, reply.Err)
	}
	return nil
}

// CheckOffsets says whether offsets, say from a cursor that was away for months, can belong to a
// reader of the topic: every range and source is of it and related, and no offset lies past the
// commit mark. Errors: cp.ErrNoSuchTopic, cp.ErrNoSuchRange (the view may be behind),
// [ErrInvalidPosition], [ErrMetadataUnavailable].
func (f *Frontend) CheckOffsets(topic string, at Offsets) error {
	_, err := f.explicit(topic, at)
	return err
}

// explicit checks offsets and spells them out: to the control plane a source that is not named is
// one that is finished, also in the position of a reader at the start.
func (f *Frontend) explicit(topic string, at Offsets) (map[fence.RangeID]cp.Position, error) {
	f.meta.RLock()
	defer f.meta.RUnlock()
	p, err := f.planner(topic, at, nil)
	if err != nil {
		return nil, err
	}
	positions := map[fence.RangeID]cp.Position{}
	for id, position := range at {
		for source, offset := range position {
			end := f.horizon(p.state, source)
			switch {
			case offset <= end:
			case f.Unrecovered(source):
				return nil, rangeErr(source, ErrMetadataUnavailable)
			default:
				return nil, rangeErr(id, fmt.Errorf("%w: offset %d of %s is past its end %d", ErrInvalidPosition, offset, source, end))
			}
		}
		positions[id] = p.cursors[id].pos
	}
	return positions, nil
}

// CommittedOffsets are a group's offsets, empty if it never committed. The map is the caller's.
func (f *Frontend) CommittedOffsets(group, topic string) Offsets {
	f.meta.RLock()
	defer f.meta.RUnlock()
	at := Offsets{}
	if state := f.view.of(topic); state != nil {
		for id, p := range state.Positions(group, topic) {
			if p == nil {
				p = cp.Position{}
			}
			at[id] = maps.Clone(p)
		}
	}
	return at
}

// EndOffsets are the offsets of a consumer that wants only what is committed from now on.
func (f *Frontend) EndOffsets(topic string) (Offsets, error) {
	f.meta.RLock()
	defer f.meta.RUnlock()
	state := f.view.of(topic)
	if state == nil || state.Topic(topic) == nil {
		return nil, topicErr(topic, cp.ErrNoSuchTopic)
	}
	at := Offsets{}
	for _, r := range leavesOf(state, topic) {
		if f.Unrecovered(r.ID) {
			return nil, rangeErr(r.ID, ErrMetadataUnavailable)
		}
		at[r.ID] = cp.Position{r.ID: f.horizon(state, r.ID)}
	}
	return at, nil
}
