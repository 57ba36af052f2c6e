package segfile

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/ringfence/ringfence/fence"
	"github.com/ringfence/ringfence/segfile/record"
)

// Checkpoints bound what recovery reads of an open file. Two marks make one:
//
// The checkpoint itself lies among the flushes and holds what all frames before it
// add up to, as a footer would. Its payload:
//
//	off size field
//	  0    4 magic   "RFcp"
//	  8    8 lag     the furthest a frame's end was from its durable position
//	 16    8 longest frame
//	 24    8 every   how far apart index entries are
//	 32      footer  of a segment that would end where the checkpoint lies
//
// The pointer is the second frame of every file, alone in its block, and the only
// one that is written again: it says where the last checkpoint lies, and how far the
// file is known to be durable, so that what gets lost before that is not taken for the
// end, even if nothing is left behind it. Its payload:
//
//	off size field
//	  0    4 magic    "RFpt"
//	  8    8 position of the checkpoint, 0 for none
//	 16    8 proven   all before this position was durable, the checkpoint too
//	 24    8 offset   after the records before it
//	 32    8 step     the pointer moves on whenever so much more is durable
//
// It fits a sector, so a power cut leaves the old one or the new one, and both are
// true. It needs no sync while a segment is written to: where it was lost, recovery starts
// from the one before. When the segment falls quiet it is moved to the end, and synced.
// What is written behind a pointer that is on its way is not acknowledged before it, so
// nothing acknowledged lies further behind what the pointer proves than the step and
// what was in flight.
const (
	checkpointMagic = "RFcp"
	pointerMagic    = "RFpt"

	coLag      = 8
	coLongest  = 16
	coEvery    = 24
	coFooter   = 32
	poPosition = 8
	poProven   = 16
	poOffset   = 24
	poStep     = 32
	pointerLen = 40

	// A checkpoint that is larger than this, because there are many producers, is
	// written so many times less often.
	checkpointSize = 256 << 10
	// A read costs as much time as reading so many bytes more.
	readCost = 32 << 10
)

// checkpoints is what a Writer knows of its checkpoints.
type checkpoints struct {
	pointer int64 // position of the pointer's block
	every   int64 // cost at which the next one is due
	cost    int64 // of recovering what came behind the last checkpoint
	at      int64 // the last one that the pointer does not name yet; 0 for none
	end     proof // behind it
	named   int64 // the one that it names

	told proof // what the pointer says to be durable
	next proof // what it is to say next; position 0 for nothing

	lag, longest int64 // as in recovery
}

// proof says that all before a position is durable, and which offset comes after the
// records there.
type proof struct {
	position int64
	offset   uint64
}

// step is how much becomes durable before the pointer moves on.
func (c *checkpoints) step() int64 { return max(c.every/2, block) }

// pass notes that the writer came to p.
func (c *checkpoints) pass(p proof) {
	if c.next.position == 0 && p.position-c.told.position >= c.step() {
		c.next = p
	}
}

// note takes a flush of the frames of heads that was planned at pos.
func (c *checkpoints) note(pos, flushLen int64, heads []record.Head) {
	c.cost += readCost
	if len(heads) == 1 {
		c.cost += min(flushLen, windowGap)
	} else {
		c.cost += flushLen
	}
	for i := range heads {
		h := &heads[i]
		end := pos + int64(h.FrameLen)
		c.lag, c.longest = max(c.lag, end-h.Durable), max(c.longest, int64(h.FrameLen))
		pos += alignFrame(int64(h.FrameLen))
	}
}

// CheckpointDue says whether a checkpoint should be written now, behind all that is
// planned.
func (w *Writer) CheckpointDue() bool {
	c := &w.check
	return c.at == 0 && c.cost >= c.every && c.cost/c.every > int64(w.CheckpointSize()/checkpointSize)
}

// first is the position of the first flush.
func (c *checkpoints) first() int64 { return c.pointer + block }

// CheckpointSize is how much memory Checkpoint needs, in whole blocks.
func (w *Writer) CheckpointSize() int {
	n := record.HeaderSize + coFooter + footerFixed + len(w.tally.index.entries)*entrySize + w.tally.table.size() + 4
	return int(alignBlock(int64(n)))
}

// Checkpoint makes in buf, of CheckpointSize bytes, a flush of its own without
// records, to be written at Position durably and told to Advance. What lies before
// durable is so.
func (w *Writer) Checkpoint(buf []byte, durable int64) ([]byte, record.Head, error) {
	c := &w.check
	p := buf[record.HeaderSize : record.HeaderSize+coFooter : len(buf)]
	clear(p)
	copy(p, checkpointMagic)
	le := binary.LittleEndian
	le.PutUint64(p[coLag:], uint64(c.lag))
	le.PutUint64(p[coLongest:], uint64(c.longest))
	le.PutUint64(p[coEvery:], uint64(w.tally.index.every))
	f := w.tally.footer(w.hdr.Base, w.pos, nil, Cut{})
	p = f.appendTo(p, w.hdr.Salt)
	h, err := stampMark(buf, p, w.tally.next, durable, w.hdr.Salt)
	if err != nil {
		return nil, h, fmt.Errorf("segfile: checkpoint: %w", err)
	}
	n := alignBlock(int64(h.FrameLen))
	clear(buf[h.FrameLen:n])
	c.at, c.end, c.cost = w.pos, proof{w.pos + n, w.tally.next}, 0
	return buf[:n], h, nil
}

// stampMark builds a mark around payload, which may lie in buf behind the header.
func stampMark(buf, payload []byte, base uint64, durable int64, salt uint64) (record.Head, error) {
	f, err := record.BuildMark(buf, payload)
	if err != nil {
		return record.Head{}, err
	}
	record.Stamp(f, base, durable, salt)
	return record.ParseHead(f, salt)
}

// PointerDue says whether the pointer can be moved: to the last checkpoint, or on by a
// step, because what it is to say is durable.
func (w *Writer) PointerDue(durable int64) bool {
	c := &w.check
	return c.at != 0 && c.end.position <= durable || c.next.position != 0 && c.next.position <= durable
}

// Quiet has the pointer say that all there is was durable, if it is and was not told yet:
// for a segment that falls idle, before a step is full.
func (w *Writer) Quiet(durable int64) {
	if p := (proof{w.pos, w.tally.next}); p.position <= durable && p.position > w.check.told.position {
		w.check.next = p
	}
}

// Pointer makes in buf, of a block, the pointer that is due, to be written at pos. It
// needs not be durable, but nothing else may be writing it, and what is written behind
// it is not acknowledged before it.
func (w *Writer) Pointer(buf []byte, durable int64) (pos int64, err error) {
	c := w.check
	if c.next.position != 0 && c.next.position <= durable {
		c.told = c.next
	}
	if c.at != 0 && c.end.position <= durable {
		c.named, c.at = c.at, 0
		if c.end.position > c.told.position {
			c.told = c.end
		}
	}
	if c.next.position <= c.told.position {
		c.next = proof{}
	}
	if err := c.put(buf, &w.hdr); err != nil {
		return 0, err
	}
	w.check = c
	return c.pointer, nil
}

// put makes the pointer's block.
func (c *checkpoints) put(b []byte, h *header) error {
	b = b[:block:block]
	clear(b)
	p := b[record.HeaderSize : record.HeaderSize+pointerLen]
	copy(p, pointerMagic)
	le := binary.LittleEndian
	le.PutUint64(p[poPosition:], uint64(c.named))
	le.PutUint64(p[poProven:], uint64(c.told.position))
	le.PutUint64(p[poOffset:], c.told.offset)
	le.PutUint64(p[poStep:], uint64(c.step()))
	if _, err := stampMark(b, p, h.Base, DataStart, h.Salt); err != nil {
		return fmt.Errorf("segfile: pointer to a checkpoint: %w", err)
	}
	return nil
}

// markAt reads the frame at pos, when it is a whole mark of that salt; p is nil when
// it is not.
func (o *opened) markAt(pos int64, salt uint64) (h record.Head, p []byte, err error) {
	head := make([]byte, 2*block)
	n, err := o.f.ReadAt(head, pos)
	if err != nil && !errors.Is(err, io.EOF) {
		return h, nil, &readError{err}
	}
	h, err = record.ParseHead(head[:n], salt)
	if err != nil || !h.Mark() || int64(h.FrameLen) > o.size-pos || h.PayloadLen > coFooter+maxFooter {
		return h, nil, nil
	}
	frame := head[:n]
	if int(h.FrameLen) > n {
		frame = make([]byte, h.FrameLen)
		if _, err := o.f.ReadAt(frame, pos); err != nil && !errors.Is(err, io.EOF) {
			return h, nil, &readError{err}
		}
	}
	if _, err := record.Check(frame, salt); err != nil {
		return h, nil, nil
	}
	return h, frame[record.HeaderSize:h.FrameLen], nil
}

// resume reads the pointer at pos and lets recovery start from the checkpoint that it
// names. Without one that is whole it starts from the start mark, which takes longer
// and comes to the same. A pointer that cannot be read proves nothing, and that
// something was lost: then the file is searched to its end.
func (r *recovery) resume(pos int64) error {
	checkpoint, ok, err := r.pointed(pos)
	if r.blind = !ok; err != nil || !ok {
		return err
	}
	return r.fromCheckpoint(checkpoint)
}

// pointed takes what the pointer at pos proves, and says where the checkpoint lies that it
// names; false if it cannot be read.
func (r *recovery) pointed(pos int64) (checkpoint int64, ok bool, err error) {
	_, p, err := r.o.markAt(pos, r.salt)
	if err != nil || len(p) != pointerLen || string(p[:4]) != pointerMagic {
		return 0, false, err
	}
	le := binary.LittleEndian
	r.proof = proof{int64(le.Uint64(p[poProven:])), le.Uint64(p[poOffset:])}
	r.step = int64(le.Uint64(p[poStep:]))
	r.prove(r.proof.position)
	return int64(le.Uint64(p[poPosition:])), true, nil
}

// fromCheckpoint starts recovery from the checkpoint at a position, if it is whole.
func (r *recovery) fromCheckpoint(at int64) error {
	if at <= DataStart || at%block != 0 || at >= r.o.size {
		return nil
	}
	h, p, err := r.o.markAt(at, r.salt)
	if err != nil || len(p) < coFooter+footerFixed || string(p[:4]) != checkpointMagic {
		return err
	}
	le := binary.LittleEndian
	end := fence.End{Offset: h.Base, Position: at, Bytes: le.Uint64(p[coFooter+foBytes:])}
	f, err := readFooter(p[coFooter:], int64(len(p)-coFooter), r.salt, r.o.hdr.Base, end)
	if err != nil || f.table == nil || len(f.holes) > 0 {
		return nil
	}
	if start, end := f.table.Bounds(); start != r.o.hdr.Start || end != r.o.hdr.Meta.End {
		return nil
	}
	r.v.tally = tally{next: end.Offset, bytes: end.Bytes, frames: f.frames, digest: f.digest, table: f.table, minTime: f.minTime, maxTime: f.maxTime}
	r.v.tally.index.set(f.index)
	r.v.tally.index.every = int64(le.Uint64(p[coEvery:]))
	r.restart(at, end.Offset)
	r.lag, r.longest = int64(le.Uint64(p[coLag:])), int64(le.Uint64(p[coLongest:]))
	r.prove(at + alignBlock(int64(h.FrameLen)))
	return nil
}
