package store

import (
	"errors"
	"fmt"
	"path"

	"github.com/ringfence/ringfence/fence"
	"github.com/ringfence/ringfence/segfile"
	"github.com/ringfence/ringfence/segfile/disk"
)

// Fence closes the segment for good and answers where it ends. What was queued
// before goes to disk first; appends after it are refused with a *SealedError. It
// is idempotent, also across restarts, and the answer never changes.
//
// A copy that failed is fenced at its last acknowledged record: what the failed
// writes left behind cannot be proved durable, even where it can be read.
//
// Where there is no space for it the answer is an ErrOutOfSpace, the copy takes no
// more and can be read, and Fence is to be called again once there is space.
func (s *Segment) Fence() (fence.End, error) {
	if s.shard == nil {
		end, _ := s.Fenced()
		return end, nil
	}
	if err := s.store.enter(); err != nil {
		return fence.End{}, s.wrap(err)
	}
	defer s.store.leave()
	return s.fence()
}

func (s *Segment) fence() (fence.End, error) {
	sh := s.shard
	sh.mu.Lock()
	switch s.phase {
	case fenced:
		sh.mu.Unlock()
		return s.end, nil
	case gone:
		sh.mu.Unlock()
		return fence.End{}, fmt.Errorf("%w: %s was deleted", ErrNoSegment, s.meta.ID)
	case fencing:
		done := s.latched
		sh.mu.Unlock()
		<-done
		return s.fence()
	}
	s.phase = fencing
	s.latched = make(chan struct{})
	s.drained.reset()
	if s.queue.len() == 0 && s.flushes.len() == 0 {
		s.drained.release()
	}
	sh.pump(true)
	sh.mu.Unlock()
	sh.await(&s.drained)

	end, err := s.latch()
	if errors.Is(err, disk.ErrNoSpace) {
		s.fail(err)
		s.store.shrinkPool()
		end, err = s.latchFailed(true)
	}
	if err != nil {
		s.fail(err)
		if !errors.Is(err, ErrDamaged) {
			err = storageError(err)
		}
		s.note(err)
		err = s.wrap(err)
	}
	sh.mu.Lock()
	if err != nil {
		// No answer was given, and a later call tries again; the copy takes no more.
		s.phase = open
	} else {
		s.phase, s.end = fenced, end
		s.durable.Store(end.Position)
		s.commit.Store(end.Offset)
	}
	close(s.latched)
	sh.mu.Unlock()
	s.tail.drop()
	s.tell()
	return end, err
}

// fail notes that a write of the fence failed: nothing but a fence is written to the
// copy any more.
func (s *Segment) fail(err error) {
	s.shard.mu.Lock()
	defer s.shard.mu.Unlock()
	s.store.noteSpace(err)
	if s.failed == nil {
		if s.failed = err; !errors.Is(err, ErrDamaged) {
			s.failed = storageError(err)
		}
		s.store.count.failures.Add(1)
	}
}

// latch writes footer and latch. The segment is drained: nobody else has the writer.
func (s *Segment) latch() (fence.End, error) {
	if s.failed != nil {
		return s.latchFailed(false)
	}
	if _, err := s.writer.Fence(s.writer.End(), s.store.opts.Now().UnixMilli(), s.store.opts.FenceID()); err != nil {
		return fence.End{}, err
	}
	r, err := s.writer.Reader()
	if err != nil {
		return fence.End{}, err
	}
	return s.readThrough(r, s.writer.Trim)
}

// latchFailed fences a copy after a failed write. What the writer remembers
// includes the failed flushes, so index and producers come from the disk. Where space
// is short, what failed writes left gives its own back first; what an earlier process
// left is kept.
func (s *Segment) latchFailed(short bool) (fence.End, error) {
	v, err := s.recovered()
	if err == nil && v.Latch.State() == fence.Open && v.End.Position > s.end.Position {
		// A record that a failed write left here would be a repeat when its producer
		// sends it again, and acknowledged, and might be lost yet. Nothing was
		// acknowledged from this block on: without its first frame the chain ends.
		if err = s.writer.File().WriteAt(make([]byte, disk.Block), s.end.Position); err == nil {
			v, err = s.recovered()
		}
	}
	if err == nil && v.Latch.State() == fence.Open && short && s.writer != nil {
		// Not what it was made with: an open file that is shorter was cut by somebody else.
		if err = s.writer.File().Truncate(max(s.end.Position, s.blocks)); err == nil {
			v, err = s.recovered()
		}
	}
	if err != nil {
		return fence.End{}, err
	}
	if v.End != s.end {
		return fence.End{}, fmt.Errorf("%w: the disk holds offsets up to %d, and %d were acknowledged: %s", ErrDamaged, v.End.Offset, s.end.Offset, v.Why)
	}
	if s.writer == nil && !s.hardened {
		if err := s.store.harden(v); err != nil {
			return fence.End{}, err
		}
		s.hardened = true
	}
	if v.Latch.State() == fence.Open {
		_, err = v.Fence(s.store.opts.Now().UnixMilli(), s.store.opts.FenceID())
	} else { // it is of the write that failed
		err = segfile.RenewLatch(s.store.disk, s.name)
	}
	if err != nil {
		return fence.End{}, err
	}
	return s.reopen()
}

// RenewLatch makes a fence durable that was found when the store was opened. Who wrote it
// may have been killed before it was.
func (s *Segment) RenewLatch() error {
	if _, ok := s.Fenced(); !ok {
		return nil
	}
	err := segfile.RenewLatch(s.store.disk, s.name)
	if err != nil {
		err = s.wrap(storageError(err))
	}
	return err
}

// recovered says what the copy's file holds.
func (s *Segment) recovered() (*segfile.Verdict, error) {
	v, err := segfile.Recover(s.store.disk, s.name)
	if err != nil {
		return nil, err
	}
	if err := v.Err(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	return v, nil
}

// reopen turns the copy into a fenced one that is read through a Reader.
func (s *Segment) reopen() (fence.End, error) {
	r, err := segfile.OpenReader(s.store.disk, s.name)
	if err != nil {
		return fence.End{}, err
	}
	return s.readThrough(r, func() error { return segfile.Trim(s.store.disk, s.name) })
}

// readThrough makes r what the fenced copy is read with, and has its unused blocks
// given back.
func (s *Segment) readThrough(r *segfile.Reader, trim func() error) (fence.End, error) {
	end, ok := r.End()
	if !ok {
		return end, errors.Join(fmt.Errorf("%s: the latch written a moment ago is not there", s.name), r.Close())
	}
	s.reader.Store(r)
	if s.use() != nil {
		return end, nil
	}
	s.store.tasks.Go(func() {
		defer s.unuse()
		// Off the caller's path: opening a file takes as long as half a write, giving
		// blocks back can take long.
		if err := trim(); err != nil {
			s.store.log.Warn("cannot give unused blocks back", "file", s.name, "err", err)
		}
		if _, err := r.File(); err != nil { // whoever reads tries again, and is told
			s.store.log.Warn("cannot open a fenced file", "file", s.name, "err", err)
		}
		if err := s.closeWriter(); err != nil { // one descriptor for a segment is enough
			s.store.log.Warn("cannot close a fenced file", "file", s.name, "err", err)
		}
	})
	return end, nil
}

// handle returns the file to read from.
func (s *Segment) handle() (disk.File, error) {
	if r := s.reader.Load(); r != nil {
		return r.File()
	}
	return s.writer.File(), nil
}

// retire gives a deleted segment's file to the pool.
func (s *Segment) retire() error {
	err := s.close()
	if err == nil {
		err = s.store.pool.Recycle(s.name)
	}
	if errors.Is(err, disk.ErrNoSpace) { // for its new name: it goes at once
		err = s.store.pool.Drop(s.name)
		if err == nil {
			err = s.store.disk.SyncDir(path.Dir(s.name))
		}
	}
	if err != nil {
		return s.wrap(err)
	}
	return nil
}

func (s *Segment) close() error {
	var errs []error
	r := s.reader.Load()
	if r != nil {
		errs = append(errs, r.Close())
	}
	if s.left != nil && s.left != r {
		errs = append(errs, s.left.Close())
	}
	return errors.Join(append(errs, s.closeWriter())...)
}

// closeWriter closes the file that was appended to. A scanner that still reads from
// it goes on with the reader's.
func (s *Segment) closeWriter() (err error) {
	s.written.Do(func() {
		if s.writer != nil {
			err = s.writer.Close()
		}
	})
	return err
}
