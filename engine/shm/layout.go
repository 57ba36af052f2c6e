package shm

import (
	"errors"
	"fmt"
	"math/bits"

	"github.com/ringfence/ringfence/segfile/buddy"
)

// Block is what offsets in the arena are multiples of.
const Block = buddy.Block

// Version of the layout.
const Version = 1

const (
	magic       = 0x4445524148534652 // "RFSHARED"
	controlSize = 4096
	slotSize    = 64

	offMagic   = 0
	offVersion = 8
	offSlots   = 12
	offArena   = 16
	offStart   = 24
	offEngine  = 32
	offHost    = 128
	offGuest   = 256
)

// Limits of a geometry.
const (
	MinArena = 64 << 10
	MaxArena = 1 << 30 // the most that is registered with a ring as one buffer
	MinSlots = 2
	MaxSlots = 1 << 14
)

// Geometry is all that the places in a region follow from.
type Geometry struct {
	ArenaBytes int // a multiple of Block
	Slots      int // a power of two
}

// Check says what is wrong with a geometry.
func (g Geometry) Check() error {
	switch {
	case g.ArenaBytes < MinArena || g.ArenaBytes > MaxArena || g.ArenaBytes%Block != 0:
		return fmt.Errorf("shm: an arena of %d bytes: want %d to %d, in blocks of %d", g.ArenaBytes, MinArena, MaxArena, Block)
	case g.Slots < MinSlots || g.Slots > MaxSlots || bits.OnesCount(uint(g.Slots)) != 1:
		return fmt.Errorf("shm: %d slots: want a power of two from %d to %d", g.Slots, MinSlots, MaxSlots)
	}
	return nil
}

// Size is how many bytes a region takes.
func (g Geometry) Size() int {
	return g.ArenaBytes + controlSize + (2*g.Slots*slotSize+Block-1)/Block*Block
}

func (g Geometry) submissions() int { return g.ArenaBytes + controlSize }
func (g Geometry) completions() int { return g.submissions() + g.Slots*slotSize }

// holds says whether a frame may lie at an offset.
func (g Geometry) holds(offset, length uint64) bool {
	return offset%Block == 0 && length > 0 && offset < uint64(g.ArenaBytes) && length <= uint64(g.ArenaBytes)-offset
}

// Errors, to be tested for with errors.Is.
var (
	ErrPeer    = errors.New("shm: the other side breaks the rules") // be done with it
	ErrStopped = errors.New("shm: stopped")                         // by Stop
	ErrNoRoom  = errors.New("shm: not enough memory")               // ask for less, or give the process more
)

// PeerError is an ErrPeer that says how.
type PeerError struct{ Reason string }

func (e *PeerError) Error() string        { return "shm: the other side breaks the rules: " + e.Reason }
func (e *PeerError) Is(target error) bool { return target == ErrPeer }

func breach(format string, a ...any) error { return &PeerError{fmt.Sprintf(format, a...)} }

// Submission is a record frame for the engine.
type Submission struct {
	ID       uint32
	Producer uint32
	Offset   uint64
	Length   uint32
}

// Completion is the answer to a submission whose records are stored.
type Completion struct {
	ID          uint32
	Range       uint32
	First, Last uint64
	Repeats     uint32 // how many of the records were stored before
}
