package store

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"

	"github.com/ringfence/ringfence/segfile"
	"github.com/ringfence/ringfence/segfile/record"
)

// DamageError is an ErrDamaged that was met in a segment's file, and what to do.
type DamageError struct {
	File string // its path
	Byte int64  // where what is damaged begins
	Err  error
	Lent bool // it is the payload of a lent frame, and readers go on behind it
}

func (e *DamageError) Error() string {
	why := e.Err.Error()
	if f := (*record.FrameError)(nil); errors.As(e.Err, &f) {
		why = "a frame is corrupt: " + f.Reason // the byte that it names is another count
	}
	if e.Lent {
		return fmt.Sprintf("%v at byte %d: %s: its producer changed it while it was written from memory that it lent, or it was damaged since: reads skip its records, and go on behind it: 'ringfence segment verify %s' says what else is; where the device is to blame put the file back from a copy",
			ErrDamaged, e.Byte, why, e.File)
	}
	return fmt.Sprintf("%v at byte %d: %s: 'ringfence segment verify %s' says what else is; put the file back from a copy, or give what is lost up with 'ringfence segment accept-loss'",
		ErrDamaged, e.Byte, why, e.File)
}

func (e *DamageError) Unwrap() []error { return []error{ErrDamaged, e.Err} }

// mostFound is how many damaged stretches of a segment are told apart.
const mostFound = 64

// findings are what was met of a segment's damage since it was opened.
type findings struct {
	mu    sync.Mutex // guards the following; innermost
	at    []int64    // the stretches, mostFound at most
	first error
}

// note puts damage on record that a read met: the log and the counts hear of each stretch
// once. Any other error is none of its concern.
func (s *Segment) note(err error) {
	if !errors.Is(err, ErrDamaged) {
		return
	}
	var (
		at int64
		de *DamageError
		ce *segfile.CorruptError
	)
	switch {
	case errors.As(err, &de):
		at, err = de.Byte, de
	case errors.As(err, &ce):
		at = ce.Byte
	}
	f := &s.found
	f.mu.Lock()
	known := slices.Contains(f.at, at) || len(f.at) == mostFound
	if !known {
		f.at = append(f.at, at)
	}
	if f.first == nil {
		f.first = err
	}
	f.mu.Unlock()
	if !known {
		s.store.count.damages.Add(1)
		s.store.log.Warn("segment file is damaged", "topic", s.meta.Topic, "segment", s.meta.ID, "file", s.path(), "byte", at, "why", err)
	}
}

// Found is the first damage that was met in the segment since the store was opened, and
// the byte of the file where it begins; nil for none: nobody has read it all, perhaps.
func (s *Segment) Found() (at int64, err error) {
	s.found.mu.Lock()
	defer s.found.mu.Unlock()
	if s.found.first != nil {
		at = s.found.at[0]
	}
	return at, s.found.first
}

// path is where the segment's file is.
func (s *Segment) path() string { return filepath.Join(s.store.opts.Dir, s.name) }
