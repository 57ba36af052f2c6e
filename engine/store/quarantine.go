package store

import (
	"fmt"
	"path"

	"github.com/ringfence/ringfence/fence"
)

const quarantineDir = "quarantine"

// SetAside moves a file that nobody knows out of the way, where it takes part in
// nothing. It is never deleted: an operator decides. Returns its new name.
func (s *Store) SetAside(name string) (string, error) {
	to := fmt.Sprintf("%s/%d-%s-%s", quarantineDir, s.opts.Now().UnixMilli(), path.Base(path.Dir(name)), path.Base(name))
	if err := s.disk.Rename(name, to); err != nil {
		return "", fmt.Errorf("set %s aside: %w", name, err)
	}
	if err := s.disk.SyncDir(quarantineDir); err != nil {
		return "", err
	}
	s.log.Warn("file set aside", "file", name, "to", to)
	return to, s.disk.SyncDir(path.Dir(name))
}

// SetAsideSegment does so with a segment that no metadata lists.
func (s *Store) SetAsideSegment(id fence.SegmentID) (string, error) {
	seg, err := s.Segment(id)
	if err != nil {
		return "", err
	}
	s.mu.Lock()
	delete(s.segments, id)
	s.mu.Unlock()
	if err := seg.close(); err != nil {
		return "", seg.wrap(err)
	}
	return s.SetAside(seg.name)
}
