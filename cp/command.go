package cp

import "github.com/ringfence/ringfence/fence"

// Command is a change to a [State]. Each is a plain struct of this package,
// passed by value. Times are milliseconds since the epoch, from the proposer.
type Command interface {
	tag() byte
	put(*encoder)
	apply(*State) Reply
}

// CreateTopic makes a topic of 2^Bits positions and its root range.
// Refusals, in order: ErrInvalidName, ErrTopicExists, ErrInvalidBits,
// ErrInvalidTopicID.
type CreateTopic struct {
	Name string
	Bits uint8
	ID   fence.TopicID // 128 random bits
	At   int64
}

// SealTopic seals a topic and all its ranges; its segments stay as they are.
// Refusals: ErrNoSuchTopic, ErrMigrating.
type SealTopic struct {
	Name string
}

// DeleteTopic removes a topic with its ranges, segments and group positions. An
// ID that is not zero must be the topic's, so that a retry never deletes a
// successor of the same name. Refusals: ErrNoSuchTopic, ErrMigrating.
type DeleteTopic struct {
	Name string
	ID   fence.TopicID
}

// SplitRange seals a range and makes its two halves. Refusals, in order:
// ErrNoSuchRange, ErrMigrating, ErrRangeSealed, ErrActiveSegment,
// ErrCannotSplit, ErrLimit.
type SplitRange struct {
	Range fence.RangeID
}

// MergeRanges seals two buddies and makes the range that covers both. Refusals,
// in order: ErrNoSuchRange (A), ErrMigrating, ErrRangeSealed (A),
// ErrNoSuchRange and ErrRangeSealed (B), ErrActiveSegment (A, B),
// ErrDifferentTopic, ErrNotBuddies, ErrLimit.
type MergeRanges struct {
	A, B fence.RangeID
}

// RegisterSegment opens a range's write head. Refusals, in order:
// ErrNoSuchRange, ErrMigrating, ErrRangeSealed, ErrSegmentExists,
// ErrActiveSegment, ErrSegmentOverlap, ErrSequenceUsed, ErrInvalidSegment,
// ErrInvalidReplicas.
type RegisterSegment struct {
	ID       fence.SegmentID
	Replicas []NodeID // the first is the primary
	Start    uint64   // exactly the range's NextOffset
	Salt     uint64   // random; seeds every checksum of the segment's files
	Writer   uint64   // incarnation of the primary, the only one that may append
	At       int64
}

// SealSegment records where a fenced segment ends. The first length recorded
// stands for ever: the same length again is accepted and changes nothing,
// another is refused with [AlreadySealed]. Refusals, in order:
// ErrNoSuchSegment, ErrMigrating, AlreadySealed, ErrInvalidLength.
type SealSegment struct {
	ID     fence.SegmentID
	Length uint64 // records
	Bytes  uint64
	At     int64
}

// DeleteSegment forgets a sealed segment; its range's floors stay. Refusals, in
// order: ErrNoSuchSegment, ErrMigrating, ErrSegmentActive.
type DeleteSegment struct {
	ID fence.SegmentID
}

// SetSegmentReplicas replaces the replica set of a sealed segment. The replicas
// of an active one are never replaced or reordered. Refusals, in order:
// ErrNoSuchSegment, ErrMigrating, ErrSegmentActive, ErrInvalidReplicas.
type SetSegmentReplicas struct {
	ID       fence.SegmentID
	Replicas []NodeID
}

// CommitOffset records a group's positions in ranges of one topic, whole map by
// range. Unless Reset is set no source moves back, and one that the group has
// finished stays finished. A generation older than the group's is refused, a
// newer one becomes the group's. Refusals, in order: ErrNoSuchTopic,
// ErrMigrating, ErrInvalidGroup, ErrLimit, ErrStaleGeneration, then for each
// range in order ErrDifferentTopic, ErrNoSuchRange, ErrNotASource, ErrPastEnd.
type CommitOffset struct {
	Group      string
	Topic      string
	Generation uint64 // 0 for a group without members
	Positions  map[fence.RangeID]Position
	Reset      bool
}

// CommitRanges records what one member of a group has read: for each source, the
// next offset. They are merged into the positions of all ranges without children,
// so that members who commit different sources keep each other's. No source moves
// back, and one that the group has finished stays finished. The generation counts
// as in [CommitOffset]. Refusals, in order: ErrNoSuchTopic, ErrMigrating,
// ErrInvalidGroup, ErrLimit, ErrStaleGeneration, then for each source in order
// ErrDifferentTopic, ErrNoSuchRange, ErrPastEnd.
type CommitRanges struct {
	Group      string
	Topic      string
	Generation uint64
	Sources    Position
}

// FenceGroup raises a group's generation, so that commits of an older one are
// refused from now on; the group exists afterwards. Refusals, in order:
// ErrNoSuchTopic, ErrMigrating, ErrInvalidGroup, ErrLimit, ErrStaleGeneration.
type FenceGroup struct {
	Group      string
	Topic      string
	Generation uint64
}

// DeleteGroup forgets a group of a topic. Refusals, in order: ErrNoSuchTopic,
// ErrMigrating, ErrNoSuchGroup.
type DeleteGroup struct {
	Group string
	Topic string
}

// DefinePolicy stores a policy under a name, replacing any other. Definitions
// live on one vnode, [Ring.Home]. Refusals: ErrInvalidPolicy, ErrLimit.
type DefinePolicy struct {
	Name   string
	Policy Policy
}

// DeletePolicy forgets a policy; absent is fine. Topics stay bound to the name.
type DeletePolicy struct {
	Name string
}

// BindTopicPolicy binds a topic to the name of a policy, which need not be
// defined here; "" unbinds. Refusals, in order: ErrNoSuchTopic, ErrMigrating,
// ErrInvalidPolicy.
type BindTopicPolicy struct {
	Topic  string
	Policy string
}

// BeginMigration makes every change of a topic but EndMigration, ExtractTopic
// and InsertTopic answer ErrMigrating. Refusal: ErrNoSuchTopic.
type BeginMigration struct {
	Topic string
}

// EndMigration lifts what BeginMigration set; absent is fine.
type EndMigration struct {
	Topic string
}

// ExtractTopic removes a topic with everything of it and answers its export,
// or none when it is absent.
type ExtractTopic struct {
	Topic string
}

// InsertTopic stores an exported topic. A copy that is here already and has
// seen as many changes stays, so a late repeat takes nothing back. Refusals, in
// order: ErrUnsupported, ErrInvalidExport, ErrTopicExists.
type InsertTopic struct {
	Export []byte // from [State.Export] or the reply to ExtractTopic
}

// Target is the topic a command is about: its name, or its identity where the
// command names a range or a segment. Both are empty for the commands about
// policies and users, which go to [Ring.Home].
func Target(cmd Command) (name string, id fence.TopicID) {
	switch c := cmd.(type) {
	case CreateTopic:
		return c.Name, c.ID
	case SealTopic:
		return c.Name, fence.TopicID{}
	case DeleteTopic:
		return c.Name, c.ID
	case SplitRange:
		return "", c.Range.Topic
	case boundedSplit:
		return "", c.Range.Topic
	case MergeRanges:
		return "", c.A.Topic
	case boundedMerge:
		return "", c.A.Topic
	case RegisterSegment:
		return "", c.ID.Range.Topic
	case SealSegment:
		return "", c.ID.Range.Topic
	case DeleteSegment:
		return "", c.ID.Range.Topic
	case SetSegmentReplicas:
		return "", c.ID.Range.Topic
	case CommitOffset:
		return c.Topic, fence.TopicID{}
	case CommitRanges:
		return c.Topic, fence.TopicID{}
	case FenceGroup:
		return c.Topic, fence.TopicID{}
	case DeleteGroup:
		return c.Topic, fence.TopicID{}
	case BindTopicPolicy:
		return c.Topic, fence.TopicID{}
	case BeginMigration:
		return c.Topic, fence.TopicID{}
	case EndMigration:
		return c.Topic, fence.TopicID{}
	case ExtractTopic:
		return c.Topic, fence.TopicID{}
	case InsertTopic:
		return exportedName(c.Export), fence.TopicID{}
	}
	return "", fence.TopicID{}
}

// Sealing is the one place where the end offset that a fence answered becomes
// the length that a seal records.
func Sealing(seg *Segment, end, bytes uint64, at int64) (SealSegment, error) {
	if end < seg.Start {
		return SealSegment{}, ErrInvalidLength
	}
	return SealSegment{ID: seg.ID, Length: end - seg.Start, Bytes: bytes, At: at}, nil
}
