package segfile

import (
	"encoding/binary"
	"fmt"

	"github.com/ringfence/ringfence/fence"
)

// A latch slot that is not all zero:
//
//	 off size field
//	   0    8 magic    "RFlatch", then the slot's letter
//	   8    1 version  1
//	  16    8 offset   where the segment ends: offset after the last record
//	  24    8 position byte behind the last flush
//	  32    8 bytes    frames without padding
//	  40    8 fence    names the fence
//	  48    8 time     milliseconds since 1970
//	  56    8 footer   its position
//	  64    8 length   of the footer, without padding
//	  72    8 copied   the same length, if a copy of the footer follows; 0 = it is too long
//	  80    n copy
//	4092    4 crc      CRC-32C of the 4,092 bytes before it, begun with the salt
//
// The letter finds a slot that was written to another one's place. With the copy, who
// opens the file knows from its first blocks what is in it; most footers are short.
const (
	slotMagic   = "RFlatch"
	slotVersion = 1

	soVersion  = 8
	soOffset   = 16
	soPosition = 24
	soBytes    = 32
	soFence    = 40
	soTime     = 48
	soFooter   = 56
	soLength   = 64
	soCopied   = 72
	soCopy     = 80
	maxCopy    = blockCRC - soCopy
)

// slot is one latch slot, read.
type slot struct {
	end     fence.End
	fenceID uint64
	at      int64
	footer  int64 // position
	length  int64 // of the footer
	copied  string
}

// lead makes the slot lead to a footer, given without padding.
func (s *slot) lead(footer []byte) {
	if s.length = int64(len(footer)); len(footer) <= maxCopy {
		s.copied = string(footer)
	}
}

// slotState is what a slot turned out to be. A crash while it is written leaves
// any of them.
type slotState uint8

const (
	slotZero slotState = iota
	slotValid
	slotBad
)

func (s *slot) put(b []byte, letter byte, salt uint64) {
	b = b[:block:block]
	clear(b)
	le := binary.LittleEndian
	copy(b, slotMagic)
	b[len(slotMagic)] = letter
	b[soVersion] = slotVersion
	le.PutUint64(b[soOffset:], s.end.Offset)
	le.PutUint64(b[soPosition:], uint64(s.end.Position))
	le.PutUint64(b[soBytes:], s.end.Bytes)
	le.PutUint64(b[soFence:], s.fenceID)
	le.PutUint64(b[soTime:], uint64(s.at))
	le.PutUint64(b[soFooter:], uint64(s.footer))
	le.PutUint64(b[soLength:], uint64(s.length))
	le.PutUint64(b[soCopied:], uint64(len(s.copied)))
	copy(b[soCopy:blockCRC], s.copied)
	le.PutUint32(b[blockCRC:], saltedCRC(b[:blockCRC], salt))
}

func readSlot(b []byte, letter byte, salt uint64) (s slot, st slotState) {
	b = b[:block:block]
	if isZero(b) {
		return s, slotZero
	}
	le := binary.LittleEndian
	switch {
	case string(b[:len(slotMagic)]) != slotMagic, b[len(slotMagic)] != letter, b[soVersion] != slotVersion,
		le.Uint32(b[blockCRC:]) != saltedCRC(b[:blockCRC], salt),
		!isZero(b[soVersion+1 : soOffset]):
		return s, slotBad
	}
	copied := le.Uint64(b[soCopied:])
	if copied > maxCopy || copied != 0 && copied != le.Uint64(b[soLength:]) || !isZero(b[soCopy+copied:blockCRC]) {
		return s, slotBad
	}
	s = slot{
		end:     fence.End{Offset: le.Uint64(b[soOffset:]), Position: int64(le.Uint64(b[soPosition:])), Bytes: le.Uint64(b[soBytes:])},
		fenceID: le.Uint64(b[soFence:]),
		at:      int64(le.Uint64(b[soTime:])),
		footer:  int64(le.Uint64(b[soFooter:])),
		length:  int64(le.Uint64(b[soLength:])),
		copied:  string(b[soCopy : soCopy+copied]),
	}
	if s.end.Position < DataStart || s.end.Position%block != 0 || s.footer < s.end.Position || s.footer%block != 0 ||
		s.length < footerFixed+4 || s.length > maxFooter || s.footer+s.length < 0 {
		return slot{}, slotBad
	}
	return s, slotValid
}

// latchState is what the three slots say together.
type latchState uint8

const (
	latchOpen    latchState = iota
	latchFenced             // A, B or both
	latchSettled            // and C
	latchBad                // something is there, and no fence can be read from it
)

// slots is the latch of a file as it lies there.
type slots struct {
	a, b, c    slot
	sa, sb, sc slotState
}

func readSlots(blocks []byte, salt uint64) (s slots) {
	s.a, s.sa = readSlot(blocks[slotA:], 'A', salt)
	s.b, s.sb = readSlot(blocks[slotB:], 'B', salt)
	s.c, s.sc = readSlot(blocks[slotC:], 'C', salt)
	return s
}

// decide is the table of what slots mean. A settlement is written over a fence
// that can be read, so it alone still says where the file ends.
func (s *slots) decide() latchState {
	a, b, c := s.sa, s.sb, s.sc
	switch {
	case c == slotValid:
		return latchSettled
	case a == slotValid && b == slotValid && s.a != s.b:
		return latchBad
	case a == slotValid || b == slotValid:
		return latchFenced
	case a == slotZero && b == slotZero && c == slotZero:
		return latchOpen
	}
	return latchBad
}

// fenced is the slot of the fence, settled or not; false when neither A nor B can
// be read.
func (s *slots) fenced() (slot, bool) {
	switch {
	case s.sa == slotValid:
		return s.a, true
	case s.sb == slotValid:
		return s.b, true
	}
	return slot{}, false
}

// current is the slot that says where the file ends; false while it is open or bad.
func (s *slots) current() (slot, bool) {
	if s.sc == slotValid {
		return s.c, true
	}
	if s.decide() == latchFenced {
		return s.fenced()
	}
	return slot{}, false
}

// latch turns the slots into the value of package fence.
func (s *slots) latch(base uint64) (fence.Latch, error) {
	switch s.decide() {
	case latchOpen:
		return fence.NewLatch(base), nil
	case latchBad:
		return fence.NewLatch(base), fmt.Errorf("latch slots A (%v), B (%v), C (%v) are neither empty nor valid", s.sa, s.sb, s.sc)
	}
	if s.sc != slotValid {
		f, _ := s.fenced()
		return fence.Restore(base, f.end, f.fenceID, f.at, nil, 0)
	}
	f, ok := s.fenced()
	if !ok { // A and B are gone; the settlement names the same fence and the end that counts
		return fence.Restore(base, s.c.end, s.c.fenceID, s.c.at, nil, 0)
	}
	return fence.Restore(base, f.end, f.fenceID, f.at, &s.c.end, s.c.at)
}

// faults lists the slots that are neither empty nor as they should be.
func (s *slots) faults(file string) (list []*CorruptError) {
	add := func(at int64, why string) { list = append(list, &CorruptError{File: file, Byte: at, Reason: why}) }
	for _, x := range []struct {
		at    int64
		state slotState
		name  string
	}{{slotA, s.sa, "A"}, {slotB, s.sb, "B"}, {slotC, s.sc, "C"}} {
		if x.state == slotBad {
			add(x.at, "latch slot "+x.name+" is neither empty nor valid")
		}
	}
	one := s.sa == slotValid || s.sb == slotValid
	switch {
	case s.sa == slotValid && s.sb == slotValid && s.a != s.b:
		add(slotA, "latch slots A and B are both valid and differ")
	case s.sa == slotZero && (one || s.sc == slotValid):
		add(slotA, "latch slot A is empty in a fenced file")
	case s.sb == slotZero && (one || s.sc == slotValid):
		add(slotB, "latch slot B is empty in a fenced file")
	}
	return list
}

func (s slotState) String() string {
	return [...]string{slotZero: "empty", slotValid: "valid", slotBad: "damaged"}[s]
}

func (s latchState) String() string {
	return [...]string{latchOpen: "open", latchFenced: "fenced", latchSettled: "settled", latchBad: "damaged"}[s]
}
