package cp

import "github.com/ringfence/ringfence/fence"

// State of a topic, range or segment: it takes records or it is history.
type Phase uint8

const (
	Active Phase = iota
	Sealed
)

// NodeID names one member of a cluster. The first of a replica set is the primary.
type NodeID string

// Topic is a named log over a keyspace of 2^Bits positions.
type Topic struct {
	ID           fence.TopicID
	Name         string
	Bits         uint8 // 1 to 32
	Phase        Phase
	NextRangeSeq uint32
	Policy       string // name of its policy; "" is none
	Created      int64  // ms since the epoch
}

// Range is a contiguous slice [Start, End) of a topic's keyspace with its own
// offset space. Positions are those of record.Position: 32 bits whatever the
// topic's Bits, so Start and End are multiples of 2^(32-Bits) and End is up to 2^32.
type Range struct {
	ID         fence.RangeID
	Start, End uint64
	Phase      Phase
	// Direct parents: one after a split, two after a merge, none for the root. Those
	// before them are found with State.Ancestors.
	From []fence.RangeID
	// Children: two after a split, one after a merge, none while active.
	Children []fence.RangeID
	// Floors: a new segment must start exactly at NextOffset once a segment was
	// sealed, and its sequence may not be lower than NextSequence. They outlive
	// retention, so that ids and offsets are never used twice.
	NextOffset   uint64
	NextSequence uint32
}

// Segment is a window of one range's offsets, kept in one file per replica.
type Segment struct {
	ID       fence.SegmentID
	Replicas []NodeID
	Phase    Phase
	Start    uint64 // first offset
	Length   uint64 // records; valid once sealed
	Bytes    uint64 // byte size the fenced copy reported; valid once sealed
	SealedAt int64  // ms since the epoch; valid once sealed
	OpenedAt int64  // ms since the epoch, from the register command; 0 = unknown
	Salt     uint64 // seeds every checksum of its files
	Writer   uint64 // incarnation of the primary that may append to it
}

// Position is a group's or cursor's place in one range: for each source range
// (the range itself or an ancestor) that is not finished, the next offset.
type Position map[fence.RangeID]uint64
