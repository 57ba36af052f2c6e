package api

import (
	"time"

	"github.com/ringfence/ringfence/cp"
)

// TopicOptions are fixed when a topic is created, but for its policy.
type TopicOptions struct {
	// Bits gives the topic 2^Bits key positions, so at most that many ranges; 0 means
	// 8, and 32 is the most.
	Bits uint8
	// Policy binds the topic to a policy by name; "" to none.
	Policy string
}

// TopicInfo sums a topic up.
type TopicInfo struct {
	Name   string
	ID     string
	Bits   uint8
	Policy string
	// PolicyMissing: the policy is not defined, and nothing of the topic expires until it is
	// or the topic is bound elsewhere.
	PolicyMissing bool
	Created       time.Time
	Ranges        int // active ones
	Segments      int
	Records       uint64 // stored and readable now
	Bytes         uint64 // of frames
	Damaged       int    // segments that cannot be read, or not all of them, and were not given up
	SetAside      int    // files of it in the quarantine directory: the metadata does not know them
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
	Ranges []Route // by position: each begins behind the one before, the first at 0
}

// Route is an active range and the last key position that belongs to it.
type Route struct{ Range, Last uint32 }

// RangeInfo is one range; history once it is not Active.
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

	// Damage says what was found wrong with it when it was opened, closed or read, "" for
	// nothing; what nobody has read since is not known. Lost
	// are the records that cannot be read for it, as far as that is on record, GivenUp
	// those of them whose loss was accepted: reads skip these and fail at the others.
	Damage        string
	Lost, GivenUp uint64
}

// GroupInfo is a group of a topic's consumers.
type GroupInfo struct {
	Name   string
	Ranges []GroupRange // that it has not finished, parents first
	Lag    uint64       // of all of them
	Cursor string       // where it is, for a consumer that is to start there

	// Of a group with members, told by a server alone.
	Members    []string // by name
	Generation uint64   // counts what changed about who reads what
}

// GroupRange is where a consumer or a group is in one range.
type GroupRange struct {
	Range  uint32
	Offset uint64 // the next one it reads
	End    uint64 // behind the last record
	Lag    uint64 // records that are stored from Offset on
	// Behind is the age of the oldest of those: how long it has waited to be read. 0
	// when there is none, and -1 when it cannot be read.
	Behind time.Duration
	Member string // who reads it, "" where that is not known
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
// No limit is negative, an age at most 36,500 days and a size at most 1 EiB.
//
// What is left out inherits the engine's default. Only sealed segments expire, whole,
// the oldest of a range first. Validate says what is wrong with a policy.
type Policy = cp.Policy

// Bound is one limit of a [Policy]: [Limit], [Unlimited], or the zero value, which
// inherits. Get answers the limit, and false where there is none.
type Bound = cp.Bound

// Limit is a [Bound] of n milliseconds or bytes. 0 is a budget of nothing: what is
// sealed goes at once. What is to have no limit is [Unlimited].
func Limit(n int64) Bound { return cp.Limit(n) }

// Unlimited is a [Bound] that turns the rule off, whatever the default.
func Unlimited() Bound { return cp.Unlimited() }
