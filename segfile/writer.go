package segfile

import (
	"fmt"
	"time"

	"github.com/ringfence/ringfence/fence"
	"github.com/ringfence/ringfence/segfile/disk"
	"github.com/ringfence/ringfence/segfile/record"
)

// Writer is the open file of a segment that takes appends. It does no I/O for them: the
// owner stamps frames with NextOffset and Salt, calls Advance for the flush that it planned,
// and writes the flush durably where Position was. [Pool.Create] makes a Writer; after a
// restart there is none for an old file, only [Recover].
type Writer struct {
	d    disk.Disk
	pool *Pool // is told of full segments; may be nil
	file disk.File
	hdr  header

	// The owner's.
	pos    int64
	tally  tally
	latch  fence.Latch
	footer int64 // where it ends, once fenced
	check  checkpoints
	doubt  doubt
}

// File is what flushes are written to.
func (w *Writer) File() disk.File { return w.file }

// Meta is what the file's header says.
func (w *Writer) Meta() Meta { return w.hdr.Meta }

// Blocks is how much of the file has its space on the disk already, in bytes from the start:
// writes below it need no more.
func (w *Writer) Blocks() int64 { return w.hdr.blocks }

// Position is where the next flush goes.
func (w *Writer) Position() int64 { return w.pos }

// NextOffset is the offset of the next record.
func (w *Writer) NextOffset() uint64 { return w.tally.next }

// End is where the segment ends when everything planned is durable.
func (w *Writer) End() fence.End {
	return fence.End{Offset: w.tally.next, Position: w.pos, Bytes: w.tally.bytes}
}

// Table is what the range knows of its producers, planned batches included. It
// belongs to the owner of the Writer.
func (w *Writer) Table() *ProducerTable { return w.tally.table }

// Latch is open until Fence.
func (w *Writer) Latch() fence.Latch { return w.latch }

// Times are the smallest and largest time of the records, in ms; false if none has one.
func (w *Writer) Times() (minTime, maxTime int64, ok bool) {
	return w.tally.minTime, w.tally.maxTime, w.tally.minTime != 0
}

// Advance notes a flush of flushLen bytes at pos that carries the frames of heads,
// the first at pos, the others behind it on boundaries of record.FrameAlign. It
// does not say that anything is durable. A flush that is not where the Writer
// stands, or a frame with another base offset, is a bug and panics.
func (w *Writer) Advance(pos, flushLen int64, heads []record.Head) {
	if pos != w.pos || flushLen <= 0 || flushLen%block != 0 || w.latch.State() != fence.Open {
		panic(fmt.Sprintf("segfile: %s: flush of %d bytes at %d, the writer stands at %d (%v)", w.file.Name(), flushLen, pos, w.pos, w.latch.State()))
	}
	at := pos
	for i := range heads {
		h := &heads[i]
		if h.Base != w.tally.next || h.Durable > pos {
			panic(fmt.Sprintf("segfile: %s: frame at %d has base %d and durable position %d, want %d and at most %d", w.file.Name(), at, h.Base, h.Durable, w.tally.next, pos))
		}
		if w.doubt.to != 0 && !h.Mark() {
			w.doubt.frames = append(w.doubt.frames, doubted{at, *h, w.tally.digest})
		}
		w.tally.add(at, h)
		at += alignFrame(int64(h.FrameLen))
	}
	if at > pos+flushLen {
		panic(fmt.Sprintf("segfile: %s: frames of a flush of %d bytes take %d", w.file.Name(), flushLen, at-pos))
	}
	if len(heads) > 0 && !heads[0].Mark() {
		w.check.note(pos, flushLen, heads)
	}
	w.pos += flushLen
	w.check.pass(proof{w.pos, w.tally.next})
}

// Find is the position of a frame at or before the one with offset, durable or not. It may
// run beside the owner.
func (w *Writer) Find(offset uint64) int64 {
	if e, ok := w.tally.index.find(offset); ok {
		return e.pos
	}
	return w.check.first()
}

// FindTime is Find for the first record whose time is ms or later.
func (w *Writer) FindTime(ms int64) int64 {
	if e, ok := w.tally.index.findTime(ms); ok {
		return e.pos
	}
	return w.check.first()
}

// Fence closes the segment at end for good, in two durable writes: the footer, then the
// latch. The owner must have stopped taking appends, and everything it planned must be
// durable; so end must be [Writer.End], or the error is [ErrEnd]. Fencing again returns the
// same latch. After an error the file may or may not be fenced; only [Recover] can tell.
func (w *Writer) Fence(end fence.End, now int64, fenceID uint64) (fence.Latch, error) {
	if w.latch.State() == fence.Open && end != w.End() {
		return w.latch, fmt.Errorf("%w: %s: fence at %+v, planned up to %+v", ErrEnd, w.file.Name(), end, w.End())
	}
	latch, err := w.latch.Fence(end, fenceID, now)
	if err != nil || w.latch.State() != fence.Open {
		return w.latch, err
	}
	f := w.tally.footer(w.hdr.Base, w.pos, nil, Cut{})
	at, err := writeFence(w.file, &f, slot{end: end, fenceID: fenceID, at: now, footer: w.pos}, w.hdr.Salt)
	if err != nil {
		return w.latch, err
	}
	w.latch, w.footer = latch, at
	if w.pool != nil {
		w.pool.noteFull(at, time.UnixMilli(now))
	}
	return latch, nil
}

// Reader returns a reader of the fenced segment, without reading back what the Writer knows.
// It has a file of its own, which it opens when it is needed.
func (w *Writer) Reader() (*Reader, error) {
	end, fenced := w.latch.End()
	if !fenced {
		return nil, fmt.Errorf("%w: %s", ErrOpen, w.file.Name())
	}
	r := &Reader{d: w.d, name: w.file.Name(), hdr: w.hdr, latch: w.latch, end: end}
	ft := w.tally.footer(w.hdr.Base, end.Position, nil, Cut{})
	r.take(&ft)
	return r, nil
}

// writeFence makes a footer durable at s.footer, then both latch slots, and returns where the
// footer ends. A crash before the second write leaves an open file with a footer that
// nothing points to.
func writeFence(f disk.File, ft *footer, s slot, salt uint64) (end int64, err error) {
	b, n := ft.encode(salt)
	if err := f.WriteAt(b, s.footer); err != nil {
		return 0, fmt.Errorf("segfile: footer: %w", err)
	}
	s.lead(b[:n])
	latch := make([]byte, 2*block)
	s.put(latch, 'A', salt)
	s.put(latch[block:], 'B', salt)
	if err := f.WriteAt(latch, slotA); err != nil {
		return 0, fmt.Errorf("segfile: latch: %w", err)
	}
	return s.footer + int64(len(b)), nil
}

// Trim gives back the blocks behind the footer, if they are more than an eighth of a segment:
// a file that is reused is best as large as a full segment, because new blocks are slow to
// write. It may take long: call it where nobody waits. A crash at any time leaves at worst
// some blocks that are not given back.
func (w *Writer) Trim() error {
	if w.latch.State() == fence.Open {
		return fmt.Errorf("%w: %s", ErrOpen, w.file.Name())
	}
	size, err := w.file.Size()
	if err == nil && size-w.footer <= w.pool.o.SegmentBytes/8 {
		return nil
	}
	return trim(w.file, w.footer)
}

func trim(f disk.File, end int64) error {
	size, err := f.Size()
	if err == nil && size > end+headStart { // less is not worth it
		err = f.Truncate(end)
	}
	if err != nil {
		return fmt.Errorf("segfile: trim: %w", err)
	}
	return nil
}

// Close closes the file, fenced or not. Operations in flight finish first.
func (w *Writer) Close() error { return w.file.Close() }

func alignFrame(n int64) int64 { return (n + record.FrameAlign - 1) &^ (record.FrameAlign - 1) }
