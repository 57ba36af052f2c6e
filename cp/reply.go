package cp

import "github.com/ringfence/ringfence/fence"

// Reply is the answer to a command. Fields that a command does not speak of are
// zero. A reply with an error may still carry what the caller needs to go on.
type Reply struct {
	Err error // nil, one of this package's sentinels, or [AlreadySealed]

	// Range is the root range of CreateTopic (also of the topic that is in the
	// way, with ErrTopicExists), the left child of SplitRange, or the child of
	// MergeRanges. Range2 is the right child of SplitRange.
	Range, Range2 fence.RangeID

	// Length is what SealSegment recorded, or found recorded.
	Length uint64

	// NextOffset and NextSequence are the floors of the range that RegisterSegment
	// named, before it; with the refusals that concern them, what to use instead.
	NextOffset   uint64
	NextSequence uint32

	// Generation is the group's after CommitOffset and FenceGroup, also when they
	// refuse a stale one.
	Generation uint64

	// Export is the topic that ExtractTopic removed, nil when it was absent.
	Export []byte
}
