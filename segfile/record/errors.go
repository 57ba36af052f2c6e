package record

import (
	"errors"
	"fmt"
)

// Test with errors.Is.
var (
	ErrCorrupt        = errors.New("record: corrupt frame")                                          // never stored, heal from a replica
	ErrVersion        = errors.New("record: frame of a newer format; upgrade to read it")            // intact, but not for this build
	ErrBatchFull      = errors.New("record: batch is full")                                          // finish it and add to the next one
	ErrRecordTooLarge = errors.New("record: record too large for a batch")                           // it fits no batch of this size
	ErrEmpty          = errors.New("record: batch without records")                                  // there is nothing to send
	ErrSequence       = errors.New("record: sequences must increase and either all or none be zero") // a bug of the caller
	ErrUsage          = errors.New("record: not a frame that this can be done to")                   // likewise
)

// FrameError is an ErrCorrupt that says where.
type FrameError struct {
	Reason string
	Byte   int // from the start of the frame; behind the header of a compressed frame, as if it were not compressed
}

func (e *FrameError) Error() string {
	return fmt.Sprintf("record: corrupt frame: %s at byte %d", e.Reason, e.Byte)
}

// Is makes errors.Is(err, ErrCorrupt) hold.
func (e *FrameError) Is(target error) bool { return target == ErrCorrupt }

func corrupt(at int, reason string) error { return &FrameError{Reason: reason, Byte: at} }
