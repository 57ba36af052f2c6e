package engine

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"sync"
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
//	any        cannot be looked at          lost, until that is put right; so are all of a directory
//	any        cannot be closed             likewise
//	sealed     not there and given up       skipped by readers, who are told
//	active     recovered                    sealed where it ends
//	active     recovered, not fenced        served; fenced and sealed once there is space
//	active     damaged, or another segment  lost
//	active     not there                    sealed where it begins: it never took a record
//	-          whole, of a deleted segment  removed: the process ended between the two
//	-          any other                    set aside
//	-          an empty directory           removed
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
		dir := segfile.Dir(topic.ID)
		known[dir] = true
		for _, s := range segments {
			file := segfile.Name(s.ID)
			known[file] = true
			for _, name := range []string{dir, file} {
				if n, bad := damaged[name]; bad {
					e.lose(file, s.ID, e.whyUnread(n, s))
				}
				if err := foreign[name]; err != nil {
					e.lose(file, s.ID, fmt.Errorf("%w: %s: %w: %s", ErrDamaged, filepath.Join(e.tree, name), err, putBack(s)))
				}
			}
			e.compare(s)
			if s.Phase == cp.Active {
				open = append(open, s)
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
	var mu sync.Mutex // guards what is lost, until several returns
	err = several(open, func(s *cp.Segment) error {
		n, written, err := e.sealLeftOpen(s, latched[s.ID])
		records.Add(n)
		if !written {
			unwritten.Add(1)
		}
		if unsure := (*unsureError)(nil); errors.As(err, &unsure) {
			mu.Lock()
			defer mu.Unlock()
			file := segfile.Name(s.ID)
			e.lose(file, s.ID, e.whyUnread(store.FileNote{File: file, ID: s.ID, Err: unsure.error}, s))
			return nil
		}
		return err
	})
	if err != nil {
		return err
	}
	for _, s := range open {
		e.unsettled = e.unsettled || e.lost[s.ID] != nil
	}
	r.Records, r.Unwritten = records.Load(), int(unwritten.Load())
	e.setAsideUnknown(known, rec)
	for _, topic := range rec.Empty {
		if !known[segfile.Dir(topic)] {
			e.store.Forget(topic)
		}
	}
	return nil
}

// unsureError says that nobody can tell whether a fence is durable.
type unsureError struct{ error }

// putBack is what to do about a segment whose file is not what it was.
func putBack(s *cp.Segment) string {
	if s.Phase == cp.Active { // nobody knows what was in it
		return "put it back from a copy"
	}
	return "put it back from a copy; " + withoutCopy
}

// whyUnread is why a segment is lost whose file, or the directory of it, is damaged or
// cannot be looked at.
func (e *Engine) whyUnread(n store.FileNote, s *cp.Segment) error {
	do := putBack(s)
	switch {
	case errors.Is(n.Err, fs.ErrPermission):
		do = "let the user that this process runs as read and write it (chown, chmod), and open the directory again: nothing need be lost"
	case !errors.Is(n.Err, segfile.ErrDamaged):
		do = "the kernel's log may say more; put that right and open the directory again, and nothing need be lost, or else " + do
	}
	return fmt.Errorf("%w: %w: %s", ErrDamaged, e.placed(n), do)
}

// placed is why a file is damaged, with the path that it is found under from anywhere.
func (e *Engine) placed(n store.FileNote) error {
	if c := (*segfile.CorruptError)(nil); errors.As(n.Err, &c) {
		at := *c
		at.File = filepath.Join(e.tree, n.File)
		return &at
	}
	return fmt.Errorf("%s: %w", filepath.Join(e.tree, n.File), n.Err)
}

// lose notes that a segment cannot be served.
func (e *Engine) lose(file string, id fence.SegmentID, err error) {
	e.log.Error("segment lost", "file", file, "err", err)
	e.report.Damaged = append(e.report.Damaged, store.FileNote{File: file, ID: id, Err: err})
	e.lost[id] = err
}

// withoutCopy is what to do about a sealed segment whose file nobody can make good.
const withoutCopy = "without one, move it out of the directory, and 'ringfence segment accept-loss' of its name gives up what was in it"

// compare holds a segment's file against the metadata.
func (e *Engine) compare(s *cp.Segment) {
	if e.lost[s.ID] != nil {
		return
	}
	file := segfile.Name(s.ID)
	seg, err := e.store.Segment(s.ID)
	if err != nil && s.Phase == cp.Active {
		return // perhaps it never had one
	}
	if err != nil {
		known, err := segfile.GivenUp(e.store.Disk(), s.ID, s.Salt, s.Start, s.Length)
		if known {
			e.givenUp.Store(s.ID, true)
			return
		}
		why := fmt.Errorf("%w: file %s is missing, with records [%d,%d): put it back from a copy, or give it up with 'ringfence segment accept-loss'",
			ErrDamaged, e.pathOf(s.ID), s.Start, s.Start+s.Length)
		e.lose(file, s.ID, errors.Join(why, err))
		return
	}
	if m := seg.Meta(); m.Base != s.Start || m.Salt != s.Salt {
		e.lose(file, s.ID, fmt.Errorf("%w: file %s begins at offset %d with salt %x, and was made at offset %d with salt %x: it is another segment of this name, perhaps of another time: %s",
			ErrDamaged, e.pathOf(s.ID), m.Base, m.Salt, s.Start, s.Salt, putBack(s)))
		return
	}
	if s.Phase == cp.Active {
		return // what is in it says where it ends
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
		if seg, err = e.create(s.ID, e.store.CreateFromReserve); errors.Is(err, ErrDamaged) || errors.Is(err, ErrStorage) {
			// What it would carry on is lost, or it cannot be made: whoever writes to the
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
			return 0, true, &unsureError{err}
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
	if file := (*store.SegmentError)(nil); errors.As(err, &file) {
		e.log.Warn("the file of a segment that is not needed any more stays until the next start", "segment", s.ID, "err", err)
		err = nil
	}
	return records, written, err
}

// setAsideUnknown moves what the metadata does not list out of the way. What cannot be moved
// stays: nobody reads it, and the next start tries again.
func (e *Engine) setAsideUnknown(known map[string]bool, rec *store.Recovery) {
	for _, n := range slices.Concat(rec.Unknown, rec.Damaged) {
		if !known[n.File] {
			to, err := e.store.SetAside(n.File)
			e.setAside(n.File, to, err)
		}
	}
	for _, id := range e.store.IDs() {
		if known[segfile.Name(id)] {
			continue
		}
		seg, err := e.store.Segment(id)
		if err != nil {
			continue
		}
		if e.wasDeleted(seg) {
			if err := e.store.Delete(id); err != nil {
				e.log.Warn("the file of a deleted segment stays until the next start", "segment", id, "err", err)
				continue
			}
			e.log.Info("file of a deleted segment removed", "segment", id)
			e.report.Removed++
			continue
		}
		to, err := e.store.SetAsideSegment(id)
		e.setAside(segfile.Name(id), to, err)
	}
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

// setAside notes where a file went.
func (e *Engine) setAside(file, to string, err error) {
	if err != nil {
		e.log.Warn("a file that nobody knows stays where it is", "file", file, "err", err)
		return
	}
	e.report.SetAside = append(e.report.SetAside, to)
}
