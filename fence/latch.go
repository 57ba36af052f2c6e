package fence

import (
	"errors"
	"fmt"
)

// The ways a latch refuses to move. A refusal leaves the latch as it was.
var (
	ErrFenced    = errors.New("fence: the copy is fenced")                            // open or adopt the successor; see [Sealed]
	ErrNotFenced = errors.New("fence: the copy is still open")                        // fence it before settling it
	ErrBelowBase = errors.New("fence: the end lies below the copy's base offset")     // the caller has the wrong segment or end
	ErrExtend    = errors.New("fence: a fenced copy is never extended")               // fetch a complete copy instead
	ErrSettled   = errors.New("fence: the copy is already settled at another end")    // a settlement happens once
	ErrEnd       = errors.New("fence: the end is not one that this copy can have")    // negative position, or a sum that does not fit the offset
	ErrOtherEnd  = errors.New("fence: the copy is already fenced at a different end") // the latch in the file is right
)

// Sealed is the refusal a fenced copy gives to a writer: it says where the copy
// ends, so that the writer can sit at that offset. It is an [ErrFenced].
type Sealed struct {
	End End
}

func (e Sealed) Error() string {
	return fmt.Sprintf("fence: the copy is fenced: it ends at offset %d", e.End.Offset)
}

// Is makes errors.Is(err, ErrFenced) hold.
func (e Sealed) Is(target error) bool { return target == ErrFenced }

// Move is one of the three places a latch can stand.
type Move uint8

const (
	Open    Move = iota // takes appends from its one writer
	Fenced              // closed at Latched, for ever
	Settled             // fenced, then cut once to Cut, which is lower
)

func (m Move) String() string {
	switch m {
	case Open:
		return "open"
	case Fenced:
		return "fenced"
	case Settled:
		return "settled"
	}
	return fmt.Sprintf("Move(%d)", uint8(m))
}

// Latch is the one-way closing of one copy of a segment. The zero value is an
// open latch of a copy that starts at offset 0; [NewLatch] sets the base.
//
// A Latch is a value: every move returns the latch after it. Whoever owns the
// copy makes the move durable before it answers anybody, and after a restart
// builds the latch again from what the file says ([Restore]).
type Latch struct {
	move    Move
	base    uint64 // first offset of the copy
	latched End    // where the fence closed it; set once fenced
	cut     End    // where the settlement cut it; set once settled
	fenceID uint64 // names the fence that closed it
	at      int64  // ms since the epoch, from that fence
	cutAt   int64  // ms since the epoch, from the settlement
}

// NewLatch returns the open latch of a copy whose first offset is base.
func NewLatch(base uint64) Latch { return Latch{base: base} }

// Restore rebuilds a latch from the slots of a file: fenced at latched by
// fenceID, and settled at *cut unless cut is nil. It refuses slots that no
// sequence of moves could have written.
func Restore(base uint64, latched End, fenceID uint64, at int64, cut *End, cutAt int64) (Latch, error) {
	l, err := NewLatch(base).Fence(latched, fenceID, at)
	if err != nil || cut == nil {
		return l, err
	}
	if *cut == latched {
		return Latch{}, fmt.Errorf("%w: settled at the end it was fenced at", ErrEnd)
	}
	return l.Settle(*cut, cutAt)
}

// State says where the latch stands.
func (l Latch) State() Move { return l.move }

// Base is the first offset of the copy.
func (l Latch) Base() uint64 { return l.base }

// End is where the copy ends now; false while it is open and nobody has decided.
func (l Latch) End() (End, bool) {
	switch l.move {
	case Fenced:
		return l.latched, true
	case Settled:
		return l.cut, true
	}
	return End{}, false
}

// Latched is the end the fence recorded, also after a settlement cut the copy
// lower; false while the latch is open.
func (l Latch) Latched() (End, bool) { return l.latched, l.move != Open }

// FenceID names the fence that closed the copy, and At its time in milliseconds
// since the epoch; both are 0 while the latch is open.
func (l Latch) FenceID() (id uint64, at int64) { return l.fenceID, l.at }

// SettledAt is the time of the settlement in milliseconds since the epoch, 0
// before one.
func (l Latch) SettledAt() int64 { return l.cutAt }

// Admit says whether the copy takes an append: nil while it is open, else a
// [Sealed] that names the end.
func (l Latch) Admit() error {
	if end, closed := l.End(); closed {
		return Sealed{End: end}
	}
	return nil
}

// Fence closes the copy at end. The caller has stopped taking appends, and
// every flush before end is durable.
//
// It is idempotent: fencing a closed latch at the end it has answers the same
// latch, whatever id and time come with it. At any other end the answer is the
// latch as it is and an [ErrOtherEnd]: the file is right and the caller is not.
func (l Latch) Fence(end End, id uint64, at int64) (Latch, error) {
	if have, closed := l.End(); closed {
		if end != have {
			return l, fmt.Errorf("%w: %+v, not %+v", ErrOtherEnd, have, end)
		}
		return l, nil
	}
	if err := l.valid(end); err != nil {
		return l, err
	}
	l.move, l.latched, l.fenceID, l.at = Fenced, end, id, at
	return l, nil
}

// Settle cuts a fenced copy to end, which the control plane recorded as the end
// of the segment. It happens once: afterwards only the same end is answered.
// An end equal to the fence's is no cut and leaves the latch fenced; a higher
// one is refused, because a short copy is replaced and never extended.
func (l Latch) Settle(end End, at int64) (Latch, error) {
	switch l.move {
	case Open:
		return l, ErrNotFenced
	case Settled:
		if end != l.cut {
			return l, fmt.Errorf("%w: %+v, not %+v", ErrSettled, l.cut, end)
		}
		return l, nil
	}
	if err := l.valid(end); err != nil {
		return l, err
	}
	if end == l.latched {
		return l, nil
	}
	if end.Offset > l.latched.Offset || end.Position > l.latched.Position || end.Bytes > l.latched.Bytes {
		return l, fmt.Errorf("%w: from %+v to %+v", ErrExtend, l.latched, end)
	}
	l.move, l.cut, l.cutAt = Settled, end, at
	return l, nil
}

// valid says whether a copy with l's base can end at end: not below its base,
// at no negative byte, and with bytes when it has records.
func (l Latch) valid(end End) error {
	switch {
	case end.Offset < l.base:
		return fmt.Errorf("%w: %d is below %d", ErrBelowBase, end.Offset, l.base)
	case end.Position < 0:
		return fmt.Errorf("%w: position %d", ErrEnd, end.Position)
	case end.Offset > l.base && end.Bytes == 0:
		return fmt.Errorf("%w: %d records in no bytes", ErrEnd, end.Offset-l.base)
	}
	return nil
}
