package shm

import (
	"sync/atomic"
	"unsafe"
)

// A slot is one cache line. All but turn is the writer's until turn is stored, and the
// reader's until the writer has come round, which the protocol lets happen only after the
// reader has taken it. A reader still reads whole words, each once: a writer that keeps to
// no rule tears no word, and what was copied is then checked.
type slot struct {
	turn  uint64
	words [7]uint64
}

const _, _ = uint(slotSize - unsafe.Sizeof(slot{})), uint(unsafe.Sizeof(slot{}) - slotSize)

// lane is one direction: slots that one side writes in order and the other takes in
// order, each by a position of its own.
type lane struct {
	slots []slot
	pos   uint64 // this side's next
}

// at is the slot of the next position.
func (l *lane) at() *slot { return &l.slots[l.pos&uint64(len(l.slots)-1)] }

// put fills the next slot and shows it to the reader.
func (l *lane) put(words ...uint64) {
	s := l.at()
	for i, w := range words {
		atomic.StoreUint64(&s.words[i], w)
	}
	l.pos++
	atomic.StoreUint64(&s.turn, l.pos)
}

// state of the next slot, for the reader.
type state uint8

const (
	empty  state = iota
	filled       // it may be taken
	foul         // no writer that keeps to the rules leaves it so
)

func (l *lane) look() (state, uint64) {
	turn := atomic.LoadUint64(&l.at().turn)
	switch turn {
	case l.pos + 1:
		return filled, turn
	case l.pos + 1 - uint64(len(l.slots)):
		return empty, turn
	}
	return foul, turn
}

// take copies the next slot.
func (l *lane) take(words []uint64) {
	s := l.at()
	for i := range words {
		words[i] = atomic.LoadUint64(&s.words[i])
	}
	l.pos++
}

// clear makes every slot one of the lap before the first, with positions from start on.
func (l *lane) clear(start uint64) {
	for i := range uint64(len(l.slots)) {
		l.pos = start + i
		*l.at() = slot{turn: l.pos + 1 - uint64(len(l.slots))}
	}
	l.pos = start
}
