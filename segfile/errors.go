package segfile

import (
	"errors"
	"fmt"

	"github.com/ringfence/ringfence/segfile/record"
)

// Test with errors.Is; errors of the disk and of package fence pass through.
var (
	ErrDamaged         = errors.New("segfile: damaged")                                                   // heal from a replica, or accept the loss
	ErrForeign         = errors.New("segfile: not a segment file of this name")                           // set it aside and look who put it there
	ErrNewer           = errors.New("segfile: written by a newer version; upgrade to read it")            // intact, but not for this build
	ErrNeverUsed       = errors.New("segfile: nothing was ever stored in this file")                      // it may be removed
	ErrOpen            = errors.New("segfile: the segment is not fenced")                                 // fence it first
	ErrEnd             = errors.New("segfile: the end is not where the writer stands")                    // a bug of the caller
	ErrBoundary        = errors.New("segfile: no frame ends at that offset")                              // a segment is cut between frames
	ErrPastEnd         = errors.New("segfile: past the end of the segment")                               // go on in its successor
	ErrSequenceGap     = errors.New("segfile: records of this producer are missing before this batch")    // send the missing ones first
	ErrUnknownProducer = errors.New("segfile: producer unknown or forgotten, and this is no first batch") // start again under a new id
)

// CorruptError is an [ErrDamaged] that says where.
type CorruptError struct {
	File   string
	Byte   int64
	Reason string

	// Accepted: somebody who may decide it accepted the loss. [Verify] says so, and
	// [Verdict.Losses].
	Accepted bool
}

func (e *CorruptError) Error() string {
	return fmt.Sprintf("segfile: %s: damaged at byte %d: %s", e.File, e.Byte, e.Reason)
}

// Is makes errors.Is hold for ErrDamaged and for record.ErrCorrupt.
func (e *CorruptError) Is(target error) bool {
	return target == ErrDamaged || target == record.ErrCorrupt
}

// Hole is a stretch of a file that cannot be read, between frames that can.
type Hole struct {
	Position, Length int64
	Offset           uint64 // of the first record in it
	Records          uint64 // how many offsets it covers; 0 when only padding or marks are gone
	Accepted         bool   // somebody who may decide it accepted the loss
	Lent             bool   // the payload of a lent frame, which readers skip and say so; of [Verify] alone
}

// HoleError is what reading at a hole answers: an [ErrDamaged]. A reader that may
// skip goes on at Position+Length.
type HoleError struct {
	File string
	Hole Hole
}

func (e *HoleError) Error() string {
	return fmt.Sprintf("segfile: %s: %d records from offset %d are damaged (%d bytes from byte %d)",
		e.File, e.Hole.Records, e.Hole.Offset, e.Hole.Length, e.Hole.Position)
}

// Is makes errors.Is(err, ErrDamaged) hold.
func (e *HoleError) Is(target error) bool { return target == ErrDamaged }

// BufferError says that a frame needs a larger buffer.
type BufferError struct {
	Need int
}

func (e *BufferError) Error() string {
	return fmt.Sprintf("segfile: the frame needs a buffer of %d bytes", e.Need)
}
