package store

import (
	"errors"
	"fmt"

	"github.com/ringfence/ringfence/fence"
	"github.com/ringfence/ringfence/segfile"
	"github.com/ringfence/ringfence/segfile/disk"
)

// Fence closes the segment for good and answers where it ends. What was queued
// before goes to disk first; appends after it are refused with a *SealedError. It
// is idempotent, also across restarts, and the answer never changes.
//
// A copy that failed is fenced where its durable records end, read again from
// disk: every acknowledged record is in it, and one whose outcome was unknown may be.
func (s *Segment) Fence() (fence.End, error) {
	sh := s.shard
	if sh == nil {
		end, _ := s.Fenced()
		return end, nil
	}
	sh.mu.Lock()
	switch s.phase {
	case fenced:
		sh.mu.Unlock()
		return s.end, nil
	case fencing:
		done := s.latched
		sh.mu.Unlock()
		<-done
		return s.Fence()
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
	sh.mu.Lock()
	if err != nil {
		// Not fenced: no answer was given, and a later call tries again. Appends go
		// on only if the copy did not fail.
		s.phase = open
		if s.failed == nil {
			s.failed = storageError(err)
		}
		err = s.wrap(s.failed)
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

// latch writes footer and latch. The segment is drained: nobody else has the writer.
func (s *Segment) latch() (fence.End, error) {
	if s.failed != nil {
		return s.latchFailed()
	}
	if _, err := s.writer.Fence(s.writer.End(), s.store.opts.Now().UnixMilli(), s.store.opts.FenceID()); err != nil {
		return fence.End{}, err
	}
	return s.reopen()
}

// latchFailed fences a copy after a failed write. What the writer remembers
// includes the failed flushes, so end, index and producers come from the disk.
func (s *Segment) latchFailed() (fence.End, error) {
	v, err := segfile.Recover(s.store.disk, s.name)
	if err != nil {
		return fence.End{}, err
	}
	if err := v.Err(); err != nil {
		return fence.End{}, err
	}
	if v.End.Offset < s.end.Offset {
		return fence.End{}, fmt.Errorf("%w: the disk holds offsets up to %d, but %d were acknowledged", ErrDamaged, v.End.Offset, s.end.Offset)
	}
	if _, err := v.Fence(s.store.opts.Now().UnixMilli(), s.store.opts.FenceID()); err != nil {
		return fence.End{}, err
	}
	return s.reopen()
}

// reopen turns the copy into a fenced one that is read through a Reader.
func (s *Segment) reopen() (fence.End, error) {
	r, err := segfile.OpenReader(s.store.disk, s.name)
	if err != nil {
		return fence.End{}, err
	}
	end, ok := r.End()
	if !ok {
		return end, errors.Join(fmt.Errorf("%s: the latch written a moment ago is not there", s.name), r.Close())
	}
	s.reader.Store(r)
	w := s.writer
	if s.use() != nil {
		return end, nil
	}
	s.store.tasks.Go(func() {
		defer s.unuse()
		// Off the caller's path: giving blocks back can take long.
		if err := w.Trim(); err != nil {
			s.store.log.Warn("cannot give unused blocks back", "file", s.name, "err", err)
		}
	})
	return end, nil
}

// handle returns the file to read from.
func (s *Segment) handle() (disk.File, error) {
	if r := s.reader.Load(); r != nil {
		return r.File(), nil
	}
	return s.writer.File(), nil
}

// retire gives a deleted segment's file to the pool.
func (s *Segment) retire() error {
	if r := s.reader.Load(); r != nil {
		if err := r.Close(); err != nil {
			return s.wrap(err)
		}
	}
	if s.writer != nil {
		if err := s.writer.Close(); err != nil {
			return s.wrap(err)
		}
	}
	if err := s.store.pool.Recycle(s.name); err != nil {
		return s.wrap(err)
	}
	return nil
}

func (s *Segment) close() error {
	var err error
	if r := s.reader.Load(); r != nil {
		err = r.Close()
	}
	if s.writer != nil {
		err = s.writer.Close()
	}
	return err
}
