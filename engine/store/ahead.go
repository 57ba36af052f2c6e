package store

import (
	"fmt"
	"sync/atomic"

	"github.com/ringfence/ringfence/segfile/disk"
)

const (
	// aheadBytes is what a scanner that reads ahead takes of the arena. Twice as much was a
	// tenth slower: the bytes leave the processor's cache before they are verified.
	aheadBytes = 8 << 20
	cellBytes  = 1 << 20 // one of its reads
	leadMax    = aheadBytes / 2
)

// ahead is a scanner's read-ahead. Its slab is a lead followed by cells, side by side, which
// hold consecutive parts of the file; so a frame is one piece of memory even across cells.
// Where the file wraps from the last cell to the first, once in a lap, the start of the
// frame is copied to the lead in front of the first cell. The lead is as long as the longest
// frame so far, and at least one cell.
type ahead struct {
	slab  []byte
	lead  int
	cells []cell
	first int64 // file position of what lies, or will lie, in the first cell during this lap
	limit int64 // the file ends here
	next  int64 // file position of the next read to start
	turn  int   // the cell it goes to
}

type cell struct {
	op   disk.Op
	done atomic.Bool // set by whoever reaps
	pos  int64       // what it holds, or is being filled with
	size int64       // 0: nothing that is still needed
	busy bool        // a read is in flight
}

// lap is the file position at which the first cell comes again.
func (a *ahead) lap() int64 { return a.first + int64(len(a.cells)*cellBytes) }

// cell is the memory of a cell.
func (a *ahead) cell(i int) []byte {
	at := a.lead + i*cellBytes
	return a.slab[at : at+cellBytes : at+cellBytes]
}

// runAhead returns n bytes from the scanner's position on, or more, and makes them
// the window. ok is false when reading ahead is not possible: no memory now, or there
// are frames too long for it.
func (sc *Scanner) runAhead(n int, end int64) (b []byte, ok bool, err error) {
	if sc.longest = max(sc.longest, n); sc.longest > leadMax {
		return nil, false, nil // else each such frame would throw away what was read ahead
	}
	// Begin again behind a hole that ends where nothing is being read yet, and for a frame
	// that is longer than any before.
	if a := sc.ahead; a != nil && (sc.pos > a.lap() || n > a.lead) {
		sc.stopAhead()
	}
	if sc.ahead == nil && !sc.startAhead(end) {
		return nil, false, nil
	}
	a := sc.ahead
	if lap := a.lap(); sc.pos == lap || sc.pos+int64(n) > lap && lap < a.limit {
		err = sc.wrapAround(lap)
	}
	to := sc.pos + int64(n)
	if err == nil {
		sc.refill()
		to, err = sc.ready(to)
	}
	if err != nil {
		sc.stopAhead() // the next call reads again
		return nil, false, err
	}
	// The window ends with the last cell that n reaches into. So every cell that the scanner
	// is done with is being refilled before the scanner waits for another one.
	at := int64(a.lead) - a.first
	sc.win, sc.winPos = a.slab[at+sc.pos:at+to], sc.pos
	return sc.win, true, nil
}

// startAhead takes memory and starts the first lap of reads.
func (sc *Scanner) startAhead(end int64) bool {
	if _, err := sc.open(); err != nil {
		return false
	}
	slab, ok := sc.seg.store.lend(aheadBytes)
	if !ok {
		return false
	}
	lead := roundUp(max(sc.longest, 1), cellBytes)
	start := sc.pos / disk.Block * disk.Block
	a := &ahead{slab: slab, lead: lead, first: start, limit: roundUp64(end, disk.Block), next: start}
	a.cells = make([]cell, (len(slab)-lead)/cellBytes)
	for i := range a.cells {
		c := &a.cells[i]
		c.op.Done = func(*disk.Op) { c.done.Store(true) }
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
		c.done.Store(false)
		c.op.Kind, c.op.File, c.op.Off = disk.Read, sc.file, c.pos
		c.op.Buf = a.cell(a.turn)[:c.size]
		c.busy, started = true, true
		a.next += c.size
		a.turn = (a.turn + 1) % len(a.cells)
		sc.seg.store.reads.push(&c.op)
	}
	if started {
		sc.seg.store.reads.submit()
	}
}

// ready waits for the cells that hold the file up to end, and says how far the file can be
// read in them, which is end at least.
func (sc *Scanner) ready(end int64) (to int64, err error) {
	a := sc.ahead
	to = end
	for i := range a.cells {
		c := &a.cells[i]
		if c.size == 0 || c.pos >= end {
			continue
		}
		if c.busy {
			sc.seg.store.reads.until(c.done.Load)
			c.busy = false
		}
		if c.op.Err != nil {
			return 0, sc.seg.wrap(fmt.Errorf("%w: %w", ErrStorage, c.op.Err))
		}
		got := c.pos + int64(c.op.N)
		if got < min(end, c.pos+c.size) {
			return 0, sc.damaged(got, errShortFile)
		}
		to = max(to, got)
	}
	return to, nil
}

// wrapAround goes on from the last cell to the first: what is left in the last ones is copied
// to the lead.
func (sc *Scanner) wrapAround(lap int64) error {
	a := sc.ahead
	if _, err := sc.ready(lap); err != nil {
		return err
	}
	left := int(lap - sc.pos)
	copy(a.slab[a.lead-left:a.lead], a.slab[len(a.slab)-left:])
	for i := range a.cells {
		if c := &a.cells[i]; c.size > 0 && c.pos < lap {
			c.size = 0 // copied, so free
		}
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
			sc.seg.store.reads.until(c.done.Load)
		}
	}
	sc.seg.store.unlend(a.slab)
	sc.ahead, sc.win = nil, nil
}
