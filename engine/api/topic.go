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
	Name     string
	ID       string
	Bits     uint8
	Policy   string
	Created  time.Time
	Ranges   int // active ones
	Segments int
	Records  uint64 // stored and readable now
	Bytes    uint64 // of frames
}

// TopicDetail is a topic with its ranges.
type TopicDetail struct {
	TopicInfo
	AllRanges []RangeInfo
	Groups    []string
}

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
	File     string // in the log directory
	Missing  bool   // the metadata knows it and the disk does not
}

// Policy is a named set of retention and roll rules; see cp.Policy. Limit, Unlimited
// and the zero Bound (inherit) make its fields.
type Policy = cp.Policy

// Bound is one limit of a Policy: of bytes or milliseconds, none, or inherited.
type Bound = cp.Bound

// Limit is a bound of n milliseconds or bytes; 0 is a budget of nothing.
func Limit(n int64) Bound { return cp.Limit(n) }

// Unlimited turns a bound off, whatever the default.
func Unlimited() Bound { return cp.Unlimited() }
