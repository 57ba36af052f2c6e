package store

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/ringfence/ringfence/fence"
	"github.com/ringfence/ringfence/segfile"
)

// phase is where a segment copy is in its life.
type phase uint8

const (
	open    phase = iota // takes appends
	fencing              // takes no more; what was taken is on its way
	fenced               // latched; read through reader
	gone                 // deleted before it was fenced
)

// Segment is one copy of one segment. Its methods are safe for concurrent use.
type Segment struct {
	store *Store
	shard *shard // nil once recovered from disk
	meta  segfile.Meta
	name  string // of its file

	// guarded by the shard's mu
	phase       phase
	ready       bool  // on the shard's ready list
	failed      error // a write failed: nothing more is written
	broken      bool  // and all before it is answered: nothing more becomes durable
	queue       fifo[*Append]
	queued      int64 // bytes in queue
	claimed     int64 // where the file ends, at most, with all that was accepted
	blocks      int64 // where it ended when it was created; set once
	flushes     fifo[*flush]
	unconfirmed int64     // bytes of frames in flushes
	unsettled   int       // how many of flushes have appends and are not settled
	aside       bool      // one of flushes is an aside: a checkpoint or a pointer
	spoilt      bool      // one of flushes was changed while it was written: none starts until that is mended
	end         fence.End // what is durable without a gap
	drained     gate      // released when a fencing segment has nothing in flight
	latched     chan struct{}

	// guarded by the shard's mu: what stalls found last
	waited   bool  // a write was in flight
	waitedAt int64 // and so much was durable
	late     bool  // the write has been in flight for too long

	// guarded by the shard's mu
	listed   bool  // among the shard's written
	lookedAt int64 // how far the file was durable when proveQuiet looked last
	proved   int64 // how far it was when proveQuiet moved the pointer there

	// owned by the submitter; by the fencer once drained
	writer   *segfile.Writer // nil once recovered from disk
	written  sync.Once       // closes its file
	hardened bool            // what was recovered is durable, or was written by this process

	// stored under mu, read by anyone
	commit  atomic.Uint64                  // the commit mark
	durable atomic.Int64                   // the position behind it
	reader  atomic.Pointer[segfile.Reader] // nil while writer's
	giving  sync.Once                      // sets given
	given   bool                           // others may have its file open
	left    *segfile.Reader                // of a file that an earlier process left open; set once
	uses    uses
	tail    tail
	found   findings
	watch   *Watch // the topic's
}

// ID names the segment.
func (s *Segment) ID() fence.SegmentID { return s.meta.ID }

// Meta is what the segment's header says.
func (s *Segment) Meta() segfile.Meta { return s.meta }

// File is the name of the segment's file in the store's directory.
func (s *Segment) File() string { return s.name }

// Base is the segment's first offset.
func (s *Segment) Base() uint64 { return s.meta.Base }

// CommitMark is the first offset that is not durable yet: readers stop there.
func (s *Segment) CommitMark() uint64 { return s.commit.Load() }

// Position is how far the durable part of the file reaches, in bytes.
func (s *Segment) Position() int64 { return s.durable.Load() }

// Fenced says whether the segment is closed for good, and where it ends.
func (s *Segment) Fenced() (fence.End, bool) {
	if r := s.reader.Load(); r != nil {
		return r.End()
	}
	return fence.End{}, false
}

// Writable says whether the segment takes appends: it is neither fenced, nor
// being fenced, nor failed.
func (s *Segment) Writable() bool {
	if s.shard == nil {
		return false
	}
	s.shard.mu.Lock()
	defer s.shard.mu.Unlock()
	return s.phase == open && s.failed == nil
}

// LeftOpen says whether an earlier process left the segment open and it could not be
// fenced yet, for lack of space. It is read as it is, and takes no appends; Fence
// closes it once there is space.
func (s *Segment) LeftOpen() bool {
	_, done := s.Fenced()
	return s.left != nil && !done
}

// letGo says whether the segment takes no more for good, so that it may be deleted;
// if that is not because of a fence, there will be none any more.
func (s *Segment) letGo() bool {
	if s.shard == nil {
		return true
	}
	s.shard.mu.Lock()
	defer s.shard.mu.Unlock()
	if s.phase == open && s.failed != nil && s.queue.len() == 0 && s.flushes.len() == 0 {
		s.phase = gone
	}
	return s.phase == fenced || s.phase == gone
}

// Bytes is the sum of the durable frames' lengths.
func (s *Segment) Bytes() uint64 {
	if s.shard == nil {
		return s.end.Bytes
	}
	s.shard.mu.Lock()
	defer s.shard.mu.Unlock()
	return s.end.Bytes
}

// commitTo moves the commit mark to f's end. The shard's mu is held.
func (s *Segment) commitTo(f *flush) {
	s.end = f.end
	if f.kept != nil {
		s.tail.add(f.op.Off, f.kept)
	}
	s.durable.Store(f.end.Position)
	s.commit.Store(f.end.Offset)
	if c := &s.store.count; f.records > 0 {
		c.appends.Add(uint64(len(f.heads) - f.voided))
		c.records.Add(f.records)
		c.frameBytes.Add(uint64(f.frames))
		c.flushes.Add(1)
		c.flushBytes.Add(uint64(f.op.Len()))
	}
}

// tell wakes whoever waits for the commit mark.
func (s *Segment) tell() { s.watch.Notify() }

// wrap adds the place to an error.
func (s *Segment) wrap(err error) error {
	return &SegmentError{Segment: s.meta.ID, Topic: s.meta.Topic, File: s.path(), Err: err}
}

// find returns the position of a frame at or before the one with offset.
func (s *Segment) find(offset uint64) int64 {
	if r := s.reader.Load(); r != nil {
		if pos, ok := r.Find(offset); ok {
			return pos
		}
		return segfile.DataStart
	}
	return s.writer.Find(offset)
}

// uses counts those who read or trim a segment's file. The file of a deleted segment goes to
// the pool, which overwrites it, only when there are none left.
type uses struct {
	mu      sync.Mutex // guards the following; innermost
	n       int
	deleted bool
}

// use takes the file for reading; ErrNoSegment once it is deleted.
func (s *Segment) use() error {
	s.uses.mu.Lock()
	defer s.uses.mu.Unlock()
	if s.uses.deleted {
		return fmt.Errorf("%w: %s was deleted", ErrNoSegment, s.meta.ID)
	}
	s.uses.n++
	return nil
}

// unuse gives it back. The last user of a deleted segment retires its file.
func (s *Segment) unuse() {
	s.uses.mu.Lock()
	s.uses.n--
	last := s.uses.deleted && s.uses.n == 0
	s.uses.mu.Unlock()
	if last {
		if err := s.retire(); err != nil {
			s.store.log.Error("cannot reuse a deleted segment's file", "file", s.name, "err", err)
		}
	}
}

// remove marks the segment deleted and retires its file as soon as it is free.
func (s *Segment) remove() error {
	s.uses.mu.Lock()
	free := !s.uses.deleted && s.uses.n == 0
	s.uses.deleted = true
	s.uses.mu.Unlock()
	if free {
		return s.retire()
	}
	return nil
}

// leave gives the file up without retiring it, unless it is in use.
func (s *Segment) leave() error {
	s.uses.mu.Lock()
	defer s.uses.mu.Unlock()
	if s.uses.deleted || s.uses.n > 0 {
		return s.wrap(fmt.Errorf("the file has %d readers", s.uses.n))
	}
	s.uses.deleted = true
	return nil
}
