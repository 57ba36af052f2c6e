package store

import (
	"errors"
	"fmt"

	"github.com/ringfence/ringfence/engine/api"
	"github.com/ringfence/ringfence/fence"
)

// Test with errors.Is.
var (
	ErrClosed          = errors.New("store: closed")
	ErrNoSegment       = errors.New("store: no such segment")                     // never stored here, or deleted
	ErrStorage         = api.ErrStorage                                           // this copy takes no more; roll to a new segment
	ErrOutOfSpace      = api.ErrOutOfSpace                                        // behind a roll if it is an ErrStorage too
	ErrOverloaded      = api.ErrOverloaded                                        // wait for acknowledgements, then retry
	ErrDamaged         = api.ErrDamaged                                           // see the message for file and byte
	ErrGap             = errors.New("store: a batch before this one is missing")  // resend from the producer's last acknowledged sequence
	ErrUnknownProducer = errors.New("store: producer is not known here any more") // its state was evicted: start a new producer id
	ErrChanged         = api.ErrChanged                                           // by whoever lent the memory: nothing of it is stored
	ErrLocked          = api.ErrLocked
)

// SealedError refuses an append on a fenced segment: continue at End in its
// successor. While Fencing, where that is is not known yet: Fence waits for it.
type SealedError struct {
	Segment fence.SegmentID
	End     uint64
	Fencing bool
}

func (e *SealedError) Error() string {
	if e.Fencing {
		return fmt.Sprintf("store: segment %s is being fenced", e.Segment)
	}
	return fmt.Sprintf("store: segment %s is fenced at offset %d", e.Segment, e.End)
}

// SegmentError adds the place to a refusal.
type SegmentError struct {
	Segment fence.SegmentID
	Topic   string
	File    string
	Err     error
}

func (e *SegmentError) Error() string {
	return fmt.Sprintf("topic %q, segment %s (%s): %v", e.Topic, e.Segment, e.File, e.Err)
}

func (e *SegmentError) Unwrap() error { return e.Err }
