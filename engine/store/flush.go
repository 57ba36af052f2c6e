package store

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ringfence/ringfence/fence"
	"github.com/ringfence/ringfence/segfile/disk"
	"github.com/ringfence/ringfence/segfile/record"
)

const (
	// largeBytes is the size from which a frame goes to the device from where it lies.
	// Smaller ones that wait together are copied, side by side, into the memory of one flush.
	largeBytes = 32 << 10
	// gatherBytes is how much one flush gathers at most. A flush costs 10 to 25 microseconds
	// of a processor, and a device round trip, whatever its size.
	gatherBytes = 512 << 10
	// fewFlushes of a segment overlap whatever their size, and more only while all of them
	// together are at most smallBytes: a few large ones keep a device busy, and more would
	// only wait there.
	fewFlushes = 4
	smallBytes = 4 << 20
)

// flush is one durable write: one or more frames of one segment.
type flush struct {
	seg     *Segment
	op      disk.Op
	appends []*Append
	heads   []record.Head
	stage   []byte    // our own memory when small frames were packed
	pieces  [][]byte  // else the frames of heads, each padded to whole blocks
	end     fence.End // where the segment ends once this is durable
	frames  int64     // bytes of frames without padding
	given   int64     // bytes of frames as the appends gave them
	records uint64
	began   time.Time // when it was given to the disk; the submitter's, then under mu
	lent    *Append   // the only append, if its frame lies in memory of others (foreign.go)
	changed bool      // the frame of lent was changed while it was written
	kept    []byte    // a copy for readers of the tail; of a lent frame, as it was found unchanged
	mending *mending
	voided  int  // how many of heads turned void
	aside   bool // it is a checkpoint, or the pointer to one, and has no appends
	quiet   bool // an aside that only proves what there is (quiet.go)
	idle    bool // nothing to write, only duplicates; owned by the submitter
	settled bool // the outcome is known; guarded by the shard's mu
}

// mayStart says whether another flush of s should start now. If none is in flight, always.
// Another one overlaps those in flight only if enough is waiting to be worth a device round
// trip, and twice as much for each further one. So small appends gather, and large ones
// overlap. The shard's mu is held.
func (s *Segment) mayStart() bool {
	n, all := s.unsettled, s.flushes.len()
	if s.aside {
		all-- // nobody waits for it
	}
	switch {
	case s.queue.len() == 0 || s.failed != nil || s.spoilt || all >= s.store.opts.Flushes:
		return false
	case s.behindStranger(s.queue.peek()):
		return false
	case s.unconfirmed >= 2*smallBytes: // most of it is done, and waits for one flush that is not
		return false
	case n == 0:
		return true
	case n >= fewFlushes && s.unconfirmed+int64(len(s.queue.peek().Frame)) > smallBytes:
		return false
	}
	return s.queued >= s.store.opts.OverlapBytes<<min(n-1, fewFlushes)
}

// lender is the producer of the foreign frames in flight, if there are any. mu is held.
func (s *Segment) lender() (producer uint64, lent bool) {
	for _, f := range s.flushes.all() {
		if len(f.appends) > 0 && f.appends[0].Foreign {
			return f.appends[0].Head.Producer, true
		}
	}
	return 0, false
}

// behindStranger says whether foreign frames of another producer than a's are in flight; a
// must wait for them then. Their producer may change a frame while the device reads it and
// change it back before it is compared, so that it counts as stored although it is not. A
// start that finds such a frame cuts it off, together with everything that was written
// before it was durable: only records of that producer may be among that. mu is held.
func (s *Segment) behindStranger(a *Append) bool {
	producer, lent := s.lender()
	return lent && producer != a.head.Producer
}

// take moves the next flush's appends from the queue. The shard's mu is held.
func (s *Segment) take(sh *shard) *flush {
	f := sh.spareFlush()
	f.seg = s
	// Half of what there is: while the device has one half, the other one is answered, and
	// what comes next is made ready.
	most := min(gatherBytes, max(int(s.store.opts.OverlapBytes), int(s.queued+s.unconfirmed)/2+disk.Block))
	first := s.dequeue()
	f.appends = append(f.appends, first)
	total := packed(first)
	lender, lent := s.lender()
	for s.queue.len() > 0 && s.queue.peek().joins(first) {
		if lent && s.queue.peek().head.Producer != lender {
			break
		}
		if total += packed(s.queue.peek()); total > most {
			break
		}
		f.appends = append(f.appends, s.dequeue())
	}
	if len(f.appends) > 1 && !first.large() {
		// If there is no memory to copy them into, each frame is a flush of its own.
		stage, ok := sh.store.disk.Arena().Alloc(roundUp(min(total, most), disk.Block))
		if ok {
			f.stage = stage
		} else {
			s.requeue(f)
		}
	}
	for _, a := range f.appends {
		f.given += int64(len(a.Frame))
	}
	s.unconfirmed += f.given
	s.flushes.push(f)
	s.unsettled++
	return f
}

func (s *Segment) dequeue() *Append {
	a := s.queue.pop()
	s.queued -= int64(len(a.Frame))
	return a
}

// requeue puts all but f's first append back.
func (s *Segment) requeue(f *flush) {
	rest := f.appends[1:]
	s.queue.unpop(rest)
	for _, a := range rest {
		s.queued += int64(len(a.Frame))
	}
	clear(rest)
	f.appends = f.appends[:1]
}

// prepare assigns offsets and makes the bytes to write. It runs on the submitter, without
// mu, in the order of the segment's flushes. It reports whether there is anything to write:
// a flush that has only duplicates is settled at once, and answered when everything before
// it is durable.
func (f *flush) prepare() bool {
	switch {
	case f.mending != nil:
		return f.mend()
	case f.aside:
		return f.prepareAside()
	}
	s := f.seg
	w := s.writer
	if w.Doubting() {
		w.Sure(s.commit.Load())
	}
	at := 0 // in stage
	next, durable := w.NextOffset(), s.durable.Load()
	for _, a := range f.appends {
		frame := s.judge(a)
		if frame == nil {
			continue
		}
		n := len(frame)
		if f.stage != nil && !f.room(at+roundUp(n, record.FrameAlign)) {
			a.Err = s.wrap(fmt.Errorf("%w: no memory to gather it with others", ErrOverloaded))
			continue
		}
		a.First, a.Last = next, next+uint64(a.head.Count)-1
		next += uint64(a.head.Count)
		a.head.Base, a.head.Durable = a.First, durable
		if a.Foreign && a.trimmed == nil {
			f.stampForeign(a)
		} else {
			record.Stamp(frame, a.First, durable, s.meta.Salt)
		}
		w.Table().Update(&a.head) // the next append in this flush is judged by it
		if f.stage != nil {
			copy(f.stage[at:], frame)
			clear(f.stage[at+n : at+roundUp(n, record.FrameAlign)])
			at += roundUp(n, record.FrameAlign)
		} else {
			piece := frame[:roundUp(n, disk.Block)]
			clear(piece[n:])
			f.pieces = append(f.pieces, piece)
		}
		f.heads = append(f.heads, a.head)
		f.frames += int64(n)
		f.records += uint64(a.head.Count)
	}
	if f.idle = f.records == 0; f.idle {
		f.end = w.End()
		return false
	}
	f.op.Kind, f.op.Durable, f.op.File, f.op.Off = disk.Write, true, w.File(), w.Position()
	if f.stage != nil {
		size := roundUp(at, disk.Block)
		clear(f.stage[at:size])
		f.op.Buf = f.stage[:size]
		w.Advance(f.op.Off, int64(size), f.heads)
	} else {
		// On disk each frame is as a flush of its own would have left it.
		f.op.Buf, f.op.More = f.pieces[0], f.pieces[1:]
		for i, p := range f.pieces {
			w.Advance(w.Position(), int64(len(p)), f.heads[i:i+1])
		}
	}
	f.end = w.End()
	return true
}

// keep makes the copy for readers of the tail, if there are any. Of a lent frame there is a
// copy already, made when it was checked: its memory may have changed since.
func (f *flush) keep() {
	if f.lent != nil || f.op.Err != nil || len(f.heads) == 0 || !f.seg.watch.tailing() {
		return
	}
	f.kept = slices.Concat(append([][]byte{f.op.Buf}, f.op.More...)...)
}

// wantsAside says whether a checkpoint, or the pointer to one, should be written now. It
// runs on the submitter.
func (s *Segment) wantsAside() bool {
	return !s.aside && (s.writer.PointerDue(s.durable.Load()) || s.writer.CheckpointDue())
}

// takeAside makes the flush for a checkpoint or a pointer. The shard's mu is held.
func (s *Segment) takeAside(sh *shard) *flush {
	f := sh.spareFlush()
	f.seg, f.aside, s.aside = s, true, true
	s.flushes.push(f)
	return f
}

// prepareAside is prepare for a checkpoint, or the pointer to one. If there is no memory for
// it, the next flush tries again.
func (f *flush) prepareAside() bool {
	w, durable := f.seg.writer, f.seg.durable.Load()
	size := w.CheckpointSize()
	if f.quiet {
		size = disk.Block
		w.Quiet(durable)
	}
	var ok bool
	f.stage, ok = f.seg.store.disk.Arena().Alloc(size)
	f.op.Kind, f.op.File = disk.Write, w.File()
	var err error
	switch {
	case !ok:
		f.stage = nil
	case w.PointerDue(durable):
		f.op.Buf = f.stage[:disk.Block]
		f.op.Off, err = w.Pointer(f.op.Buf, durable)
		f.op.Durable = f.quiet // no flush follows that would make it so
	case f.quiet: // it was told meanwhile
	default:
		var head record.Head
		f.op.Durable, f.op.Off = true, w.Position()
		if f.op.Buf, head, err = w.Checkpoint(f.stage, durable); err == nil {
			f.heads = append(f.heads, head)
			w.Advance(f.op.Off, int64(len(f.op.Buf)), f.heads)
		}
	}
	if err != nil {
		f.seg.store.log.Warn("no checkpoint", "file", f.seg.name, "err", err)
	}
	f.end = w.End()
	f.idle = !ok || err != nil || f.op.Buf == nil
	return !f.idle
}

// room makes the stage at least n bytes long. It already is, unless a frame became longer
// when it was trimmed.
func (f *flush) room(n int) bool {
	if n <= len(f.stage) {
		return true
	}
	arena := f.seg.store.disk.Arena()
	stage, ok := arena.Alloc(roundUp(n, disk.Block))
	if !ok {
		return false
	}
	copy(stage, f.stage)
	arena.Free(f.stage)
	f.stage = stage
	return true
}

// joins says whether a's frame may be in one flush with that of first. A foreign frame is a
// flush of its own.
func (a *Append) joins(first *Append) bool {
	return a.large() == first.large() && !a.Foreign && !first.Foreign
}

// large says whether a's frame is written from where it lies, not copied.
func (a *Append) large() bool { return len(a.Frame) >= largeBytes }

// packed is the room a's frame takes in a flush.
func packed(a *Append) int { return roundUp(len(a.Frame), record.FrameAlign) }

func roundUp(n, to int) int { return (n + to - 1) / to * to }

// storageError is what a failed write means for callers: the copy takes no more. If there
// was no space, that is part of the error.
func storageError(err error) error {
	if errors.Is(err, disk.ErrNoSpace) {
		return fmt.Errorf("%w: %w: %w", ErrStorage, ErrOutOfSpace, err)
	}
	return fmt.Errorf("%w: %w", ErrStorage, err)
}
