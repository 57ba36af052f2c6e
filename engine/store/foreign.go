package store

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/ringfence/ringfence/segfile/disk"
	"github.com/ringfence/ringfence/segfile/record"
)

// A foreign frame is written from memory that another process can change at any time: before
// the device reads it, while it does, and after. So the frame's header is stamped from what
// was verified and kept. When the write is done, the memory is compared with what was
// verified. A frame that differs is never shown to readers: a void frame durably takes its
// place, before anything from it on counts as durable or is answered.
//
// Frames that the same producer sent behind it turn void too, and are answered as missing a
// frame before them: if they were stored without it, it would look like a repeat when it is
// sent again. They are overwritten first, from the last to the changed one. So a power cut in
// between leaves the changed frame, at which recovery ends; or, if only the memory was
// changed and not what was written, an ordinary frame that was not acknowledged.
//
// The comparison cannot see memory that was changed and changed back while the device read
// it. So the header says that the frame was lent (record.FlagLent). If its payload does not
// verify later, that is damage to be reported, but only of this producer's records: readers
// go on behind it with a skip (Scanner). What its header says of its producer still holds,
// because the header was written from memory of our own. A start that finds such damage
// behind what was proved durable takes everything from there on for torn. So while a foreign
// frame is not durable, what others send does not start (behindStranger).
//
// A frame that is copied before it is written, because it is compressed or trimmed, is not
// lent any more; and a void frame never was.

// stampForeign makes a, whose offset is known now, the frame that f writes. Its header is
// written to the foreign memory, but kept in our own, and never read back.
func (f *flush) stampForeign(a *Append) {
	f.lent = a
	a.head.Flags = record.FlagLent
	f.seg.writer.Doubt(a.head.Next())
	a.head.Put(a.stamp[:], f.seg.meta.Salt)
	copy(a.Frame, a.stamp[:])
}

// private is a copy of a's frame that nobody can change, with the header that was verified.
// The rest of it has to be verified again.
func (a *Append) private() []byte {
	b := slices.Clone(a.Frame)
	a.head.Put(b, 0)
	return b
}

// examine compares, on the reaper, the memory of a lent frame with what was verified.
func (f *flush) examine() {
	if f.op.Err != nil || f.mending != nil {
		return
	}
	mem := f.op.Buf
	if f.seg.watch.tailing() {
		f.kept = slices.Clone(mem) // readers get the very bytes that are compared
		mem = f.kept
	}
	n := len(f.lent.Frame)
	f.changed = !record.Unchanged(f.lent.stamp[:], mem) || slices.ContainsFunc(mem[n:], func(b byte) bool { return b != 0 })
	if f.changed {
		f.kept = nil
	}
}

// mending overwrites what was changed, one write after another, from the last to the first.
// It belongs to the first changed flush of a segment, whose operation makes the writes, and
// to the submitter while they are prepared.
type mending struct {
	flushes []*flush // those with frames that turn void, in order; those before due are still to be written
	due     int
	left    int    // bytes of the current one's foreign memory that are not overwritten yet
	slab    []byte // zeros and the void header, to overwrite foreign memory with

	buf []byte // what the flush itself had written, and where
	off int64
}

// startMending begins to mend s, whose first flush was changed, as soon as nothing of s is in
// flight. mu is held.
func (sh *shard) startMending(s *Segment) {
	for _, f := range s.flushes.all() {
		if !f.settled {
			return // the last one to settle calls this again
		}
	}
	f := s.flushes.peek()
	f.settled, f.idle = false, false
	s.unsettled++
	f.mending = &mending{buf: f.op.Buf, off: f.op.Off}
	sh.mending = append(sh.mending, f)
}

// mend makes the next write. It runs on the submitter, without mu: as long as f is not
// settled, nobody else has the segment's flushes.
func (f *flush) mend() bool {
	m := f.mending
	if m.flushes == nil {
		f.condemn()
	}
	last := m.flushes[m.due-1]
	f.op.Durable, f.op.Buf, f.op.More, f.op.Off = true, last.op.Buf, last.op.More, last.op.Off
	if last == f {
		f.op.Buf, f.op.More, f.op.Off = m.buf, nil, m.off
	}
	if last.lent == nil {
		m.due--
		return true // turned void where it lies
	}
	if m.left == 0 {
		m.left = len(f.op.Buf)
	}
	if !m.room(f.seg.store.disk.Arena()) {
		f.op.Err, f.idle = errNoMemory, true
		return false
	}
	n := min(m.left, len(m.slab))
	m.left -= n
	f.op.Buf, f.op.Off = m.slab[:n], f.op.Off+int64(m.left)
	clear(f.op.Buf)
	if m.left == 0 { // so the header is the last of it
		last.heads[0].Put(f.op.Buf, f.seg.meta.Salt)
		m.due--
	}
	return true
}

// room gets memory to overwrite with: as much as is needed, or as much as there is.
func (m *mending) room(arena *disk.Arena) bool {
	for n := m.left; m.slab == nil && n >= disk.Block; n = roundUp(n/2, disk.Block) {
		m.slab, _ = arena.Alloc(n)
		if n == disk.Block {
			break
		}
	}
	return m.slab != nil
}

var errNoMemory = errors.New("no memory to overwrite a frame that was changed")

// condemn finds the frames that turn void, tells the Writer, and turns those void that
// lie in memory of our own. All that is in flight behind f is of f's producer
// (behindStranger), or has no producer.
func (f *flush) condemn() {
	s := f.seg
	lost := false // a frame with sequences was changed: all behind it that have some turn void, too
	var heads []record.Head
	var at []*record.Head // where each of heads is from
	for _, g := range s.flushes.all() {
		if g.changed {
			s.store.count.changed.Add(1)
			h := &g.heads[0]
			lost = lost || h.FirstSeq != 0
			s.store.log.Log(context.Background(), s.store.tellChanged(), "a frame was changed by its producer while it was written: a void frame takes its place",
				"file", s.name, "offset", h.Base, "records", h.Count, "producer", h.Producer)
		}
		for i := range g.heads {
			if h := &g.heads[i]; g.changed || lost && h.FirstSeq != 0 {
				heads, at = append(heads, *h), append(at, h)
				g.voided++
				g.records -= uint64(h.Count)
			}
		}
		for _, a := range g.appends {
			switch {
			case a.Err != nil:
			case g.changed:
				a.Err = s.wrap(ErrChanged)
			case lost && a.head.FirstSeq != 0:
				a.Err = s.wrap(fmt.Errorf("%w: it was changed while it was written", ErrGap))
			}
		}
		if g.voided > 0 {
			f.mending.flushes = append(f.mending.flushes, g)
		}
	}
	f.mending.due = len(f.mending.flushes)
	s.store.count.voided.Add(uint64(len(heads)))
	for i, h := range s.writer.Void(heads) {
		*at[i] = h
	}
	for _, g := range f.mending.flushes {
		if g.lent == nil {
			g.void(s.meta.Salt)
		}
	}
}

// tellChanged is the level at which a changed frame is logged: one warning per second at most,
// because a process can change its frames as often as it likes. All are counted.
func (s *Store) tellChanged() slog.Level {
	now, last := s.opts.Now().UnixNano(), s.toldChanged.Load()
	if now-last >= int64(time.Second) && s.toldChanged.CompareAndSwap(last, now) {
		return slog.LevelWarn
	}
	return slog.LevelDebug
}

// void puts the frames of f that turned void into its memory.
func (f *flush) void(salt uint64) {
	rest := f.op.Buf
	for i := range f.heads {
		h := &f.heads[i]
		if f.stage == nil {
			rest = f.pieces[i]
		}
		if h.Void() {
			clear(rest[:h.FrameLen])
			h.Put(rest, salt)
		}
		rest = rest[roundUp(int(h.FrameLen), record.FrameAlign):]
	}
}

// mended says whether everything is overwritten, or a write has failed, which ends the copy.
// Otherwise the next write is due. mu is held.
func (f *flush) mended() bool {
	m, s := f.mending, f.seg
	if f.op.Err == nil && m.due > 0 {
		s.shard.mending = append(s.shard.mending, f)
		return false
	}
	if m.slab != nil {
		s.store.disk.Arena().Free(m.slab)
	}
	f.mending, f.op.Buf, f.op.More, f.op.Off = nil, m.buf, nil, m.off
	if f.op.Err == nil {
		s.spoilt = false
		for _, g := range m.flushes {
			g.changed, g.kept = false, nil
		}
	}
	return true
}
