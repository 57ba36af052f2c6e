package store

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/ringfence/ringfence/segfile/disk"
)

// Before the last segment of a range is deleted, its successor gets a file, which takes over
// what is known of the producers. If somebody else has filled the reserve, too, all that is
// left for that is the ballast: a file that exists to be removed, with room for a successor's
// header and producers.
const (
	ballastName  = "space.ballast"
	ballastBytes = 256 << 10
)

// keepBallast makes the ballast, if it is not there and space is not short. It completes one
// that a crash left unfinished.
func (s *Store) keepBallast() {
	if s.full.Load() || s.ballast.Load() {
		return
	}
	f, err := s.disk.Create(ballastName)
	if errors.Is(err, fs.ErrExist) {
		f, err = s.disk.Open(ballastName, false)
	}
	if err == nil {
		err = errors.Join(f.WriteAt(make([]byte, ballastBytes), 0), f.Close())
	}
	if err == nil {
		s.ballast.Store(true)
		return
	}
	if !errors.Is(err, disk.ErrNoSpace) {
		s.log.Warn("cannot set space aside for deletes", "err", err)
	}
	if _, err := s.dropBallast(); err != nil {
		s.log.Warn("cannot remove a file", "err", err)
	}
}

// dropBallast gives the ballast's space back, and says whether there was one, perhaps of an
// earlier process.
func (s *Store) dropBallast() (dropped bool, err error) {
	s.ballast.Store(false)
	err = s.disk.Remove(ballastName)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("store: %w", err)
	}
	return true, nil
}
