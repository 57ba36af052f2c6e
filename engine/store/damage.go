package store

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"

	"github.com/ringfence/ringfence/segfile"
	"github.com/ringfence/ringfence/segfile/disk"
	"github.com/ringfence/ringfence/segfile/record"
)

// DamageError is an ErrDamaged with its place in a segment's file and what to do.
type DamageError struct {
	File string // its path
	Byte int64  // where what is damaged begins
	Open string // the topic of a segment that is still written; "" for a closed one
	Err  error
	Lent bool // it is the payload of a lent frame, and readers go on behind it
}

func (e *DamageError) Error() string {
	why := e.Err.Error()
	if f := (*record.FrameError)(nil); errors.As(e.Err, &f) {
		why = "a frame is corrupt: " + f.Reason // without its byte, which counts from the frame's start
	}
	if e.Lent {
		return fmt.Sprintf("%v at byte %d: %s: its producer changed it while it was written from shared memory, or it was damaged later; reads skip its records and go on behind it. 'ringfence segment verify %s' shows what else is damaged; if the device is to blame, put the file back from a copy",
			ErrDamaged, e.Byte, why, e.File)
	}
	do := "put the file back from a copy, or give up what is lost with 'ringfence segment accept-loss'"
	if e.Open != "" {
		do = fmt.Sprintf("the segment is still written to: close it with 'ringfence topic roll %s', or stop the process that writes to it and open the directory again; then 'ringfence segment accept-loss' gives up what is lost", e.Open)
	}
	return fmt.Sprintf("%v at byte %d: %s: 'ringfence segment verify %s' shows what else is damaged; %s", ErrDamaged, e.Byte, why, e.File, do)
}

func (e *DamageError) Unwrap() []error { return []error{ErrDamaged, e.Err} }

// mostFound is how many damaged stretches of a segment are remembered.
const mostFound = 64

// findings are the damage of a segment that was met since it was opened.
type findings struct {
	mu   sync.Mutex // guards the following; innermost
	list []finding  // mostFound at most
}

// finding is a damaged stretch that was met.
type finding struct {
	at  int64 // the byte where it begins
	err error
}

// note records damage that a read met; each stretch is logged and counted once. It ignores
// other errors.
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
	known := slices.ContainsFunc(f.list, func(x finding) bool { return x.at == at }) || len(f.list) == mostFound
	if !known {
		f.list = append(f.list, finding{at, err})
	}
	f.mu.Unlock()
	if !known {
		s.store.count.damages.Add(1)
		s.store.log.Warn("segment file is damaged", "topic", s.meta.Topic, "segment", s.meta.ID, "file", s.path(), "byte", at, "why", err)
	}
}

// suspect records that a segment without records is damaged at its start: it may have had
// some. Its faults are reported by whoever found them.
func (s *Segment) suspect(v *segfile.Verdict) {
	if v.State != segfile.Damaged || v.End.Offset != s.meta.Base || len(v.Faults) == 0 {
		return
	}
	f := v.Faults[len(v.Faults)-1]
	s.found.mu.Lock()
	defer s.found.mu.Unlock()
	s.found.list = append(s.found.list, finding{f.Byte, &DamageError{File: s.path(), Byte: f.Byte, Err: f}})
}

// Found is the first damage that was met in the segment since the store was opened and whose
// loss was not accepted since, with the byte of the file where it begins. nil means that none
// was met: perhaps nobody has read all of it.
func (s *Segment) Found() (at int64, err error) {
	s.found.mu.Lock()
	list := slices.Clone(s.found.list)
	s.found.mu.Unlock()
	if len(list) == 0 {
		return 0, nil
	}
	holes, err := s.Holes()
	if err != nil {
		holes = nil // unknown is not accepted
	}
	for _, f := range list {
		if !slices.ContainsFunc(holes, func(h segfile.Hole) bool { return h.Accepted && reaches(h, f.at) }) {
			return f.at, f.err
		}
	}
	return 0, nil
}

// reaches says whether damage that was met at a byte belongs to a hole. It may begin in the
// padding before the hole, if the file was cut there.
func reaches(h segfile.Hole, at int64) bool {
	return h.Position <= roundUp64(at, disk.Block) && at < h.Position+h.Length
}

// path is where the segment's file is.
func (s *Segment) path() string { return filepath.Join(s.store.opts.Dir, s.name) }
