package engine

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"sync/atomic"

	"github.com/ringfence/ringfence/cp"
	"github.com/ringfence/ringfence/engine/store"
	"github.com/ringfence/ringfence/fence"
	"github.com/ringfence/ringfence/segfile"
)

// reconcile brings metadata and disk together at start-up:
//
//	metadata   file                         what becomes of the segment
//	sealed     ends where it should         served
//	sealed     begins or ends elsewhere     lost: reading it and writing behind it is an error
//	sealed     damaged, or not there        lost
//	any        may not be opened            lost, until its owner is put right
//	sealed     not there and given up       skipped by readers, who are told
//	active     recovered                    sealed where it ends
//	active     recovered, not fenced        served; fenced and sealed once there is space
//	active     damaged, or no segment       lost
//	active     not there                    sealed where it begins: it never took a record
//	-          whole, of a deleted segment  removed: the process ended between the two
//	-          any other                    set aside
//
// A segment that was left open and holds no record is removed again when nothing is lost
// with it. Not one whose file is not there after a kill: it may have been taken away, and
// what is to say so if it comes back is the empty segment in its place.
func (e *Engine) reconcile(rec *store.Recovery) error {
	r := &e.report
	r.Fenced, r.Recovered, r.Faulty = rec.Fenced, len(rec.Recovered), rec.Faulty
	for _, v := range rec.Recovered {
		e.log.Info("segment recovered", "segment", v.ID, "end", v.End.Offset, "bytes", v.End.Bytes)
	}
	r.Unfenced = len(rec.Unfenced)
	damaged := map[string]store.FileNote{} // files by name
	for _, n := range rec.Damaged {
		damaged[n.File] = n
	}
	foreign := map[string]error{} // likewise
	for _, n := range rec.Unknown {
		foreign[n.File] = n.Err
	}
	known := map[string]bool{} // likewise
	var open []*cp.Segment
	topics, err := e.topics()
	if err != nil {
		return err
	}
	for _, topic := range topics {
		segments, err := e.segmentsOf(topic.Name)
		if err != nil {
			return err
		}
		for _, s := range segments {
			file := segfile.Name(s.ID)
			known[file] = true
			next := "put it back from a copy"
			if s.Phase != cp.Active { // else nobody knows what was in it
				next += "; " + withoutCopy
			}
			if n, bad := damaged[file]; bad && errors.Is(n.Err, fs.ErrPermission) {
				e.lose(file, s.ID, fmt.Errorf("%w: %w: let the user that this process runs as read and write it (chown, chmod), and open the directory again: nothing need be lost", ErrDamaged, e.placed(n)))
			} else if bad {
				e.lose(file, s.ID, fmt.Errorf("%w: %w: %s", ErrDamaged, e.placed(n), next))
			}
			if err := foreign[file]; err != nil {
				e.lose(file, s.ID, fmt.Errorf("%w: file %s: %w: %s", ErrDamaged, e.pathOf(s.ID), err, next))
			}
			if s.Phase == cp.Active {
				open = append(open, s)
			} else {
				e.compare(s)
			}
		}
	}
	latched := map[fence.SegmentID]bool{} // by this process
	for _, v := range rec.Recovered {
		latched[v.ID] = true
	}
	for _, n := range rec.Damaged {
		if !known[n.File] {
			e.lose(n.File, n.ID, fmt.Errorf("%w: %w", ErrDamaged, e.placed(n)))
		}
	}
	var records atomic.Uint64
	var unwritten atomic.Int64
	err = several(open, func(s *cp.Segment) error {
		n, written, err := e.sealLeftOpen(s, latched[s.ID])
		records.Add(n)
		if !written {
			unwritten.Add(1)
		}
		return err
	})
	if err != nil {
		return err
	}
	r.Records, r.Unwritten = records.Load(), int(unwritten.Load())
	return e.setAsideUnknown(known, rec)
}

// placed is why a file is damaged, with the path that it is found under from anywhere.
func (e *Engine) placed(n store.FileNote) error {
	if c := (*segfile.CorruptError)(nil); errors.As(n.Err, &c) {
		at := *c
		at.File = e.pathOf(n.ID)
		return &at
	}
	return fmt.Errorf("file %s: %w", e.pathOf(n.ID), n.Err)
}

// lose notes that a segment cannot be served.
func (e *Engine) lose(file string, id fence.SegmentID, err error) {
	e.log.Error("segment lost", "file", file, "err", err)
	e.report.Damaged = append(e.report.Damaged, store.FileNote{File: file, ID: id, Err: err})
	e.lost[id] = err
}

// withoutCopy is what to do about a sealed segment whose file nobody can make good.
const withoutCopy = "without one, move it out of the directory, and 'ringfence segment accept-loss' of its name gives up what was in it"

// compare holds a sealed segment's file against the metadata.
func (e *Engine) compare(s *cp.Segment) {
	if e.lost[s.ID] != nil {
		return
	}
	file := segfile.Name(s.ID)
	seg, err := e.store.Segment(s.ID)
	if err != nil {
		known, err := segfile.GivenUp(e.store.Disk(), s.ID, s.Salt, s.Start, s.Length)
		if known {
			e.givenUp.Store(s.ID, true)
			return
		}
		why := fmt.Errorf("%w: file %s with %d records is missing: put it back from a copy, or give it up with 'ringfence segment accept-loss'",
			ErrDamaged, e.pathOf(s.ID), s.Length)
		e.lose(file, s.ID, errors.Join(why, err))
		return
	}
	if m := seg.Meta(); m.Base != s.Start || m.Salt != s.Salt {
		e.lose(file, s.ID, fmt.Errorf("%w: file %s begins at offset %d with salt %x, and was made at offset %d with salt %x: it is another segment of this name: put it back from a copy of the same time; %s",
			ErrDamaged, e.pathOf(s.ID), m.Base, m.Salt, s.Start, s.Salt, withoutCopy))
		return
	}
	if end, _ := seg.Fenced(); end.Offset != s.Start+s.Length || end.Bytes != s.Bytes {
		e.lose(file, s.ID, fmt.Errorf("%w: file %s ends at offset %d with %d bytes, and was sealed at offset %d with %d bytes: put it back from a copy of the same time; %s",
			ErrDamaged, e.pathOf(s.ID), end.Offset, end.Bytes, s.Start+s.Length, s.Bytes, withoutCopy))
	}
}

// sealLeftOpen records the end of a segment that no process writes to any more, and
// says how many records it has and whether there was a file. A latch that this process has
// not written may not be durable yet: nobody was told of it.
func (e *Engine) sealLeftOpen(s *cp.Segment, latched bool) (records uint64, written bool, err error) {
	if e.lost[s.ID] != nil {
		return 0, true, nil // its end is unknown: it stays open, and nobody reads or writes it
	}
	written = true
	seg, err := e.store.Segment(s.ID)
	if errors.Is(err, store.ErrNoSegment) {
		// Registered, but the process ended before its file had a name: it never took
		// a record. The file is made so that its producers are handed on. A process that
		// ended in order had closed it if it had a file.
		clean := e.report.Stop == StopClean
		if !clean {
			e.log.Warn("segment was announced and has no file, as a process leaves it that is killed before the first record: closed where it begins; had somebody removed the file, its records would be lost",
				"segment", s.ID, "file", segfile.Name(s.ID), "offset", s.Start)
		}
		if seg, err = e.create(s.ID, e.store.CreateFromReserve); errors.Is(err, ErrDamaged) || errors.Is(err, ErrOutOfSpace) {
			// What it would carry on is lost, or there is no space: whoever writes to the
			// range finds that out. Reads go on.
			e.log.Warn("segment without a file stays open", "segment", s.ID, "err", err)
			return 0, false, nil
		}
		written = clean
	}
	if err != nil {
		return 0, written, err
	}
	records = seg.CommitMark() - s.Start
	if !latched {
		if err = seg.RenewLatch(); err != nil {
			return records, written, err
		}
	}
	if err = e.roll(seg, false); errors.Is(err, ErrOutOfSpace) {
		// It takes nothing and is read as it is. The roller tries again, and so does
		// whoever writes to the range.
		e.log.Warn("no space to close a segment that was left open", "segment", s.ID, "err", err)
		return records, written, nil
	}
	if err == nil && written {
		err = e.dropEmpty(seg)
	}
	return records, written, err
}

// setAsideUnknown moves what the metadata does not list out of the way.
func (e *Engine) setAsideUnknown(known map[string]bool, rec *store.Recovery) error {
	for _, n := range slices.Concat(rec.Unknown, rec.Damaged) {
		if known[n.File] {
			continue
		}
		to, err := e.store.SetAside(n.File)
		if err := e.setAside(n.File, to, err); err != nil {
			return err
		}
	}
	for _, id := range e.store.IDs() {
		if known[segfile.Name(id)] {
			continue
		}
		seg, err := e.store.Segment(id)
		if err != nil {
			return err
		}
		if e.wasDeleted(seg) {
			if err := e.store.Delete(id); err != nil {
				return err
			}
			e.log.Info("file of a deleted segment removed", "segment", id)
			e.report.Removed++
			continue
		}
		to, err := e.store.SetAsideSegment(id)
		if err := e.setAside(segfile.Name(id), to, err); err != nil {
			return err
		}
	}
	return nil
}

// wasDeleted says whether a file that the metadata does not list is that of a segment
// which was deleted: numbers and offsets are never used twice, so one that lies below its
// range's floors was registered once, and is listed no more. Whatever of it does not fit,
// or whose range is gone, is not called so.
func (e *Engine) wasDeleted(seg *store.Segment) (deleted bool) {
	id := seg.ID()
	end, closed := seg.Fenced()
	if !closed {
		return false
	}
	if err := e.withTopic(id.Range.Topic, func(s *cp.State, _ *cp.Topic) {
		r := s.Range(id.Range)
		if deleted = r != nil && id.Seq < r.NextSequence && end.Offset <= r.NextOffset; !deleted {
			return
		}
		for o := range s.Segments(id.Range) {
			overlaps := o.Start < end.Offset && (o.Phase == cp.Active || seg.Base() < o.Start+o.Length)
			deleted = deleted && !overlaps
		}
	}); err != nil {
		return false // it has no topic
	}
	return deleted
}

// setAside notes where a file went. On a full disk it may stay: nobody reads it, and
// the next start tries again.
func (e *Engine) setAside(file, to string, err error) error {
	switch {
	case err == nil:
		e.report.SetAside = append(e.report.SetAside, to)
	case errors.Is(fromHost(err), ErrOutOfSpace):
		e.log.Warn("no space to set a file aside", "file", file, "err", err)
	default:
		return err
	}
	return nil
}
