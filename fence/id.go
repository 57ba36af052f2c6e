package fence

import (
	"bytes"
	"cmp"
	"encoding/hex"
	"fmt"
)

// TopicID is a topic's identity: 128 random bits given at creation. A name that
// is deleted and created again is a new topic with a new identity.
type TopicID [16]byte

// RangeID names a range: a topic's identity and the range's number in it.
type RangeID struct {
	Topic TopicID
	Seq   uint32
}

// SegmentID names a segment: its range and its number in that range. It is
// never used twice.
type SegmentID struct {
	Range RangeID
	Seq   uint32
}

func (t TopicID) String() string { return hex.EncodeToString(t[:]) }

// IsZero says whether t is no identity at all.
func (t TopicID) IsZero() bool { return t == TopicID{} }

// ParseTopicID reads what [TopicID.String] writes.
func ParseTopicID(s string) (t TopicID, err error) {
	if len(s) != 2*len(t) {
		return t, fmt.Errorf("fence: topic identity %q: want %d hexadecimal digits", s, 2*len(t))
	}
	if _, err := hex.Decode(t[:], []byte(s)); err != nil {
		return t, fmt.Errorf("fence: topic identity %q: %w", s, err)
	}
	return t, nil
}

// Compare orders ranges by topic, then number.
func (r RangeID) Compare(o RangeID) int {
	return cmp.Or(bytes.Compare(r.Topic[:], o.Topic[:]), cmp.Compare(r.Seq, o.Seq))
}

func (r RangeID) String() string { return fmt.Sprintf("%s/r%d", r.Topic, r.Seq) }

// Compare orders segments by range, then number.
func (s SegmentID) Compare(o SegmentID) int {
	return cmp.Or(s.Range.Compare(o.Range), cmp.Compare(s.Seq, o.Seq))
}

func (s SegmentID) String() string { return fmt.Sprintf("%s/s%d", s.Range, s.Seq) }

// End says where a segment copy ends.
type End struct {
	Offset   uint64 // offset of the record after the last one
	Position int64  // byte in the file behind the last flush, a multiple of 4,096
	Bytes    uint64 // sum of the frames' header and payload lengths, without padding: equal on every replica
}
