package store

import (
	"errors"
	"fmt"
	"path"
	"slices"

	"github.com/ringfence/ringfence/fence"
	"github.com/ringfence/ringfence/segfile/disk"
)

const quarantineDir = "quarantine"

// SetAside moves a file that nobody knows to the quarantine directory and returns its new
// name. It is never deleted: that is for an operator to decide.
func (s *Store) SetAside(name string) (string, error) {
	to, err := s.asideName(name)
	if err == nil {
		err = s.disk.Rename(name, to)
	}
	if err != nil {
		return "", fmt.Errorf("set %s aside: %w", name, err)
	}
	if err := s.disk.SyncDir(quarantineDir); err != nil {
		return "", err
	}
	s.log.Warn("file set aside", "file", name, "to", to)
	return to, s.disk.SyncDir(path.Dir(name))
}

// Aside names the files that were set aside, now or before.
func (s *Store) Aside() (names []string, err error) {
	entries, err := s.disk.List(quarantineDir)
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", quarantineDir, err)
	}
	for _, e := range entries {
		names = append(names, e.Name)
	}
	return names, nil
}

// asideName is a name in the quarantine that no file has: a rename would replace it.
func (s *Store) asideName(name string) (string, error) {
	entries, err := s.disk.List(quarantineDir)
	if err != nil {
		return "", err
	}
	base := fmt.Sprintf("%d-%s-%s", s.opts.Now().UnixMilli(), path.Base(path.Dir(name)), path.Base(name))
	to := base
	for n := 1; slices.ContainsFunc(entries, func(e disk.Entry) bool { return e.Name == to }); n++ {
		to = fmt.Sprintf("%s.%d", base, n)
	}
	return quarantineDir + "/" + to, nil
}

// SetAsideSegment is SetAside for a segment that takes no more appends, that the metadata does
// not list, and that nobody reads.
func (s *Store) SetAsideSegment(id fence.SegmentID) (string, error) {
	seg, err := s.Segment(id)
	if err != nil {
		return "", err
	}
	if !seg.letGo() {
		return "", seg.wrap(errors.New("only a segment that takes no more can be set aside"))
	}
	if err := seg.leave(); err != nil {
		return "", err
	}
	s.mu.Lock()
	delete(s.segments, id)
	s.mu.Unlock()
	seg.watch.Notify()
	if err := seg.close(); err != nil {
		return "", seg.wrap(err)
	}
	return s.SetAside(seg.name)
}
