package api

import (
	"time"

	"github.com/ringfence/ringfence/cp"
)

// TopicOptions are those of a new topic. Only the policy can be changed later.
type TopicOptions struct {
	// Bits gives the topic 2^Bits key positions, and so at most that many ranges at a
	// time: 1 to 32; 0 means 8.
	Bits uint8
	// Policy binds the topic to a policy by name; "" to none.
	Policy string
}

// TopicInfo sums up a topic.
type TopicInfo struct {
	Name   string
	ID     string
	Bits   uint8
	Policy string
	// PolicyMissing: the policy is not defined. Nothing of the topic expires until it is, or
	// until the topic is bound to another one.
	PolicyMissing bool
	Created       time.Time
	Ranges        int // active ones
	Segments      int
	Records       uint64 // stored and readable now
	Bytes         uint64 // of frames
	Damaged       int    // segments that cannot be read, or not as a whole, and were not given up
	SetAside      int    // its files in the quarantine directory, which the metadata does not know
}

// TopicDetail is a topic with its ranges.
type TopicDetail struct {
	TopicInfo
	AllRanges []RangeInfo
	Groups    []string
}

// Routes say which range of a topic each key position belongs to.
type Routes struct {
	Topic  string  // its identity
	Ranges []Route // by position: the first begins at 0, each other one after the Last before it
}

// Route is an active range and the last key position that belongs to it.
type Route struct{ Range, Last uint32 }

// RangeInfo is one range. One that is not Active was split or merged; it is only read.
type RangeInfo struct {
	Seq        uint32
	Start, End uint64 // key positions [Start, End) of 2^32
	Active     bool
	Parents    []uint32 // the ranges it came from
	NextOffset uint64
	Segments   []SegmentInfo
}

// SegmentInfo is one segment.
type SegmentInfo struct {
	Seq      uint32
	Active   bool
	Start    uint64 // first offset
	Records  uint64
	Bytes    uint64
	SealedAt time.Time
	OpenedAt time.Time
	File     string // its absolute path on the host of the data directory
	Missing  bool   // the disk has no file that could be it: it was removed, or is damaged

	// Damage says what was found wrong with the segment when it was opened, closed or read;
	// "" means nothing, but parts that nobody has read may still be damaged. Lost is how
	// many records cannot be read for it, as far as that is known. GivenUp is how many of
	// them were accepted as lost: reads skip these, and fail at the others.
	Damage        string
	Lost, GivenUp uint64
}

// GroupInfo is a group of a topic's consumers.
type GroupInfo struct {
	Name   string
	Ranges []GroupRange // those it has not finished, parents first
	Lag    uint64       // records behind, in all of them
	Cursor string       // where the group is, for FromCursor

	// From a server, of a group with members.
	Members    []string // by name
	Generation uint64   // goes up whenever ranges change hands
}

// GroupRange is where a consumer or a group is in one range.
type GroupRange struct {
	Range  uint32
	Offset uint64 // the next one to be read
	End    uint64 // the offset after the last record
	Lag    uint64 // records that are stored from Offset on
	// Behind is how long the oldest of those records has waited to be read: its age. 0
	// means that there is none, -1 that it cannot be read.
	Behind time.Duration
	Member string // who reads the range, "" if that is not known
}

// Policy is a set of retention and roll rules, kept under a name that topics are
// bound to. Its fields:
//
//	MaxAge          Bound   how long a sealed segment is kept after its seal, in ms
//	MaxBytes        Bound   how much of each range is kept in sealed segments, in bytes
//	SegmentMaxAge   Bound   how long a segment stays open, in ms; at least 60,000
//	SegmentMaxBytes Bound   the size at which an open segment rolls, in bytes; at least 1 MiB
//	SpreadBy        Spread  where replicas go; no meaning on a single node
//
// No limit is negative, an age is at most 36,500 days and a size at most 1 EiB. Limits that
// are not set are the engine's defaults.
//
// Only sealed segments expire: whole, and the oldest of a range first. Validate says what is
// wrong with a policy.
type Policy = cp.Policy

// Bound is one limit of a [Policy]: [Limit], [Unlimited], or the zero value, which
// inherits. Get returns the limit, and false if there is none.
type Bound = cp.Bound

// Limit is a [Bound] of n milliseconds or bytes. 0 keeps nothing: what is sealed is removed
// at once. For no limit use [Unlimited].
func Limit(n int64) Bound { return cp.Limit(n) }

// Unlimited is a [Bound] that turns the rule off, whatever the default.
func Unlimited() Bound { return cp.Unlimited() }
