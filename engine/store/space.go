package store

import (
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/ringfence/ringfence/segfile"
	"github.com/ringfence/ringfence/segfile/disk"
)

// When the free space, less what was accepted and is not written yet, is below the reserve,
// appends are refused. What the reserve is for goes on: fences, deletes, and creating the
// segments that a delete waits for.
//
// The free space is read from time to time and, because a fast device can fill any reserve
// between two such looks, whenever the segments have grown by an eighth of the reserve.

// OutOfSpace says whether appends are refused for lack of space.
func (s *Store) OutOfSpace() bool { return s.full.Load() }

// noSpace is the refusal for lack of space, with what there is of it.
func (s *Store) noSpace() error {
	if free := s.free.Load(); s.doubt.Load() && free >= s.opts.ReserveBytes {
		return fmt.Errorf("%w: a write in %s found none, though %d bytes are free: a quota may be used up, or there can be no more files (df -i)", ErrOutOfSpace, s.opts.Dir, free)
	}
	return fmt.Errorf("%w: %s has %d bytes free, and the reserve is %d", ErrOutOfSpace, s.opts.Dir, s.free.Load(), s.opts.ReserveBytes)
}

// watchSpace looks at the free space from time to time, and makes some when it is short. It
// also calls proveQuiet.
func (s *Store) watchSpace() {
	t := time.NewTicker(s.opts.SpaceEvery)
	defer t.Stop()
	for {
		select {
		case <-s.quit:
			return
		case <-t.C:
		case <-s.tight:
			s.shrinkPool()
			if _, free, err := s.disk.Space(); err == nil && s.full.Load() {
				s.tellSpace(true, free)
			}
			continue
		}
		s.lookAtSpace()
		s.keepBallast()
		s.proveQuiet()
	}
}

// noteSpace is told of a failed write. If it failed for lack of space, appends are refused
// until the next look, so that one copy fails and not one after another.
func (s *Store) noteSpace(err error) {
	if !errors.Is(err, disk.ErrNoSpace) {
		return
	}
	s.doubt.Store(true)
	s.full.Store(true)
	s.wantSpace()
}

// wantSpace asks watchSpace to shrink the pool.
func (s *Store) wantSpace() {
	select {
	case s.tight <- struct{}{}:
	default:
	}
}

// shrinkPool gives back the space of retired files: on a full file system it is worth more
// than faster writes.
func (s *Store) shrinkPool() {
	if err := s.pool.Shrink(0); err != nil {
		s.log.Warn("cannot shrink the segment pool", "err", err)
	}
}

// lookAtSpace reads the free space, makes some when it is short, and lets appends in again
// when it is not short any more.
func (s *Store) lookAtSpace() {
	if s.glance() {
		s.shrinkPool()
		if s.glance() {
			return
		}
	}
	if s.doubt.Load() && s.canTake(s.opts.ReserveBytes) {
		s.doubt.Store(false)
		s.glance()
	}
}

// grown is called when segments have grown a good deal since the last look.
func (s *Store) grown() {
	if s.glance() {
		s.wantSpace()
	}
}

// glance reads the free space, sets full accordingly, and says whether space is short. It
// takes microseconds.
func (s *Store) glance() (short bool) {
	s.looking.Lock()
	defer s.looking.Unlock()
	_, free, err := s.disk.Space()
	if err != nil {
		s.log.Warn("cannot read the free space", "err", err)
		return false
	}
	s.free.Store(free)
	need := s.opts.ReserveBytes + s.owed()
	full := free < need
	lean := segfile.Plenty
	switch {
	case full:
		lean = segfile.NothingKept
	case free < need+2*uint64(s.opts.SegmentBytes):
		lean = segfile.NoZeros
	}
	s.pool.Spare(lean)
	if !full && s.doubt.Load() {
		return false // full stays as it is until lookAtSpace has tried to take space
	}
	s.full.Store(full)
	s.tellSpace(full, free)
	return full
}

// tellSpace logs that appends are refused from now on, or taken again.
func (s *Store) tellSpace(full bool, free uint64) {
	if s.told.Swap(full) == full {
		return
	}
	if full {
		why := "the reserve is used"
		if free >= s.opts.ReserveBytes {
			why = "a write found no space: a quota may be used up, or there can be no more files (df -i)"
		}
		s.log.Error("file system full: appends are refused until space returns", "why", why, "free", free, "reserve", s.opts.ReserveBytes)
	} else {
		s.log.Info("space returned: appends are taken again", "free", free)
	}
}

// owed is how much space the segments will take for what they have accepted. It also starts
// the count of growth since the last look anew.
func (s *Store) owed() (bytes uint64) {
	for _, sh := range s.shards {
		sh.mu.Lock()
		bytes += uint64(sh.owed)
		sh.grown = 0
		sh.mu.Unlock()
	}
	return bytes
}

// probeName is a file that takes space to see whether there is any.
const probeName = "space.probe"

// canTake tries whether so much space can really be had: what the file system reports as free
// ignores quotas.
func (s *Store) canTake(bytes uint64) bool {
	err := s.dropProbe()
	if err == nil {
		err = s.probe(int64(bytes))
	}
	if err = errors.Join(err, s.dropProbe()); err != nil && !errors.Is(err, disk.ErrNoSpace) {
		s.log.Warn("cannot try whether there is space", "err", err)
	}
	return err == nil
}

func (s *Store) probe(bytes int64) error {
	f, err := s.disk.Create(probeName)
	if err != nil {
		return err
	}
	err = f.Allocate(0, bytes)
	if errors.Is(err, errors.ErrUnsupported) {
		err = nil // the next write will show
	}
	return errors.Join(err, f.Close())
}

func (s *Store) dropProbe() error {
	if err := s.disk.Remove(probeName); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("store: %w", err)
	}
	return nil
}

// claim notes that s has accepted a, and says whether to look at the free space. Blocks that
// the file already has cost none; what goes beyond them counts in whole blocks, as if every
// frame were a flush of its own. The shard's mu is held.
func (s *Segment) claim(a *Append) (look bool) {
	from := max(s.claimed, s.blocks)
	s.claimed += int64(roundUp(len(a.Frame), disk.Block))
	a.grows = max(s.claimed-from, 0)
	sh := s.shard
	sh.owed += a.grows
	sh.grown += a.grows
	if sh.grown < int64(s.store.opts.ReserveBytes)/8/int64(len(s.store.shards)) {
		return false
	}
	sh.grown = 0
	return true
}
