package store

import (
	"fmt"

	"github.com/ringfence/ringfence/segfile/disk"
)

// ahead is a scanner's read-ahead: cells of a megabyte lie side by side in memory
// and hold consecutive parts of the file, so a frame is one piece of memory even
// across cells. Where the file wraps from the last cell to the first, the start of
// the frame is copied to the lead in front of the first cell: once in seven
// megabytes.
type ahead struct {
	slab  []byte // lead, then cells
	cells [cellCount]cell
	first int64 // file position of what lies, or will lie, in the first cell in this lap
	limit int64 // the file ends here
	next  int64 // file position of the next read to start
	turn  int   // the cell it goes to
}

type cell struct {
	op   disk.Op
	gate gate
	pos  int64 // what it holds, or is being filled with
	size int64 // 0: nothing that is still needed
	busy bool  // a read is in flight
}

// runAhead returns n bytes from the scanner's position on. ok is false when
// reading ahead is not possible now: no memory, or a frame larger than a lead.
func (sc *Scanner) runAhead(n int, end int64) (b []byte, ok bool, err error) {
	if n > leadBytes {
		return nil, false, nil
	}
	if sc.ahead == nil {
		if !sc.startAhead(end) {
			return nil, false, nil
		}
	}
	if lap := sc.ahead.first + cellCount*cellBytes; sc.pos > lap {
		// Over a hole, to where nothing is being read yet.
		sc.stopAhead()
		if !sc.startAhead(end) {
			return nil, false, nil
		}
	} else if sc.pos == lap || sc.pos+int64(n) > lap && lap < sc.ahead.limit {
		err = sc.lap(lap)
	}
	if err == nil {
		sc.refill()
		err = sc.ready(sc.pos + int64(n))
	}
	if err != nil {
		sc.stopAhead() // the next call reads again
		return nil, false, err
	}
	a := sc.ahead
	in := leadBytes + sc.pos - a.first
	return a.slab[in : in+int64(n)], true, nil
}

// startAhead takes memory and starts the first lap of reads.
func (sc *Scanner) startAhead(end int64) bool {
	if _, err := sc.open(); err != nil {
		return false
	}
	slab, ok := sc.seg.store.disk.Arena().Alloc(leadBytes + cellCount*cellBytes)
	if !ok {
		return false
	}
	start := sc.pos / disk.Block * disk.Block
	a := &ahead{slab: slab, first: start, limit: roundUp64(end, disk.Block), next: start}
	for i := range a.cells {
		c := &a.cells[i]
		c.op.Done = func(*disk.Op) { c.gate.release() }
	}
	sc.ahead = a
	sc.refill()
	return true
}

// refill starts a read into every cell whose bytes are all behind the scanner.
func (sc *Scanner) refill() {
	a := sc.ahead
	started := false
	for a.next < a.limit {
		c := &a.cells[a.turn]
		if c.busy || c.size > 0 && c.pos+c.size > sc.pos {
			break
		}
		c.pos, c.size = a.next, min(cellBytes, a.limit-a.next)
		c.gate.reset()
		at := leadBytes + a.turn*cellBytes
		c.op.Kind, c.op.File, c.op.Off = disk.Read, sc.file, c.pos
		c.op.Buf = a.slab[at : at+int(c.size)]
		c.busy, started = true, true
		a.next += c.size
		a.turn = (a.turn + 1) % cellCount
		sc.seg.store.reads.push(&c.op)
	}
	if started {
		sc.seg.store.reads.submit()
	}
}

// ready waits for the cells that hold the file up to end.
func (sc *Scanner) ready(end int64) error {
	a := sc.ahead
	for i := range a.cells {
		c := &a.cells[i]
		if c.size == 0 || c.pos >= end {
			continue
		}
		if c.busy {
			sc.seg.store.reads.await(&c.gate)
			c.busy = false
		}
		if c.op.Err != nil {
			return sc.seg.wrap(fmt.Errorf("%w: %w", ErrStorage, c.op.Err))
		}
		if got := c.pos + int64(c.op.N); got < min(end, c.pos+c.size) {
			return sc.damaged(got, errShortFile)
		}
	}
	return nil
}

// lap goes on from the last cell to the first: what is left in the last becomes
// the lead.
func (sc *Scanner) lap(lap int64) error {
	a := sc.ahead
	if err := sc.ready(lap); err != nil {
		return err
	}
	if left := lap - sc.pos; left > 0 {
		end := leadBytes + cellCount*cellBytes
		copy(a.slab[leadBytes-left:leadBytes], a.slab[end-int(left):end])
		a.cells[cellCount-1].size = 0 // copied, so free
	}
	a.first = lap
	return nil
}

// stopAhead waits for the reads in flight and gives their memory back.
func (sc *Scanner) stopAhead() {
	a := sc.ahead
	if a == nil {
		return
	}
	for i := range a.cells {
		if c := &a.cells[i]; c.busy {
			sc.seg.store.reads.await(&c.gate)
		}
	}
	sc.seg.store.disk.Arena().Free(a.slab)
	sc.ahead = nil
}
