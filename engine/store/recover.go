package store

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/ringfence/ringfence/fence"
	"github.com/ringfence/ringfence/segfile"
	"github.com/ringfence/ringfence/segfile/disk"
)

// Recovery is what Open found.
type Recovery struct {
	Fenced    int             // closed before: nothing to do
	Recovered []Verdict       // left open by an earlier process, now fenced
	Unfenced  []Verdict       // likewise, and there was no space for the fence: Segment.Fence tries again
	Damaged   []FileNote      // served to nobody as if complete; also what cannot be looked at, or closed, and then a topic's directory perhaps
	Faulty    []FileNote      // among Fenced and Recovered: readable, but not every byte is as it should be
	Unknown   []FileNote      // to be set aside (SetAside)
	Empty     []fence.TopicID // whose directory has nothing in it; to be dropped if they are gone (Forget)
}

// Verdict is one recovered segment.
type Verdict struct {
	ID      fence.SegmentID
	End     fence.End
	Verdict *segfile.Verdict
}

// FileNote is a file with what is wrong with it.
type FileNote struct {
	File string
	ID   fence.SegmentID // zero when the file does not say
	Err  error
}

type found struct {
	name string
	size int64
	dir  bool
	err  error // it is a directory, and what is in it is not known
}

// survey is what was found of every file.
type survey struct {
	seen   []outcome
	report func(done, total int)

	mu   sync.Mutex // guards the following and the segments
	rec  *Recovery
	done int
	dirs map[string]*dirSync
}

// dirSync is a directory's sync, which is done once. After one that failed another proves
// nothing.
type dirSync struct {
	mu   sync.Mutex // guards the following; held across the sync
	done bool
	err  error
}

// syncDir makes the names in a directory durable: those that recovery found there
// need it once for all.
func (r *survey) syncDir(d disk.Disk, dir string) error {
	r.mu.Lock()
	one := r.dirs[dir]
	if one == nil {
		one = &dirSync{}
		r.dirs[dir] = one
	}
	r.mu.Unlock()
	one.mu.Lock()
	defer one.mu.Unlock()
	if one.done {
		return one.err
	}
	err := d.SyncDir(dir)
	if one.done = !errors.Is(err, disk.ErrNoSpace); one.done {
		one.err = err
	}
	return err
}

// settle puts an outcome on record.
func (r *survey) settle(s *Store, o *outcome) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s.file(r.rec, o)
	r.done++
	if r.report != nil {
		r.report(r.done, len(r.seen))
	}
}

// survey takes the tree and looks at every segment file, several at a time. It
// writes nothing, so that a tree it must not touch stays as it is.
func (s *Store) survey(report func(done, total int)) (*survey, error) {
	if err := s.lock(); err != nil {
		return nil, err
	}
	files, empty, err := s.listFiles()
	if err != nil {
		return nil, err
	}
	r := &survey{seen: make([]outcome, len(files)), report: report, rec: &Recovery{Empty: empty}, dirs: map[string]*dirSync{}}
	err = s.each(len(files), func(i int) error {
		o, err := s.lookAt(files[i])
		if err != nil {
			return err
		}
		r.seen[i] = o
		if !o.unfinished() {
			r.settle(s, &r.seen[i])
		}
		return nil
	})
	return r, err
}

// recover fences the segments that were left open and mends latches and footers,
// several at a time.
func (s *Store) recover(r *survey) error {
	s.lookAtSpace() // a fence takes some
	return s.each(len(r.seen), func(i int) error {
		o := &r.seen[i]
		if !o.unfinished() {
			return nil
		}
		if err := s.finish(r, o); err != nil {
			return err
		}
		r.settle(s, o)
		return nil
	})
}

// each calls do for 0 to n-1, several at a time, and returns the first error.
func (s *Store) each(n int, do func(i int) error) error {
	var (
		next  atomic.Int64
		once  sync.Once
		first error
		group sync.WaitGroup
	)
	for range min(s.opts.Recoveries, n) {
		group.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				if err := do(i); err != nil {
					once.Do(func() { first = err })
					return
				}
			}
		})
	}
	group.Wait()
	return first
}

// outcome is what became of one file.
type outcome struct {
	seg     *Segment // fenced
	open    *segfile.Verdict
	damaged *FileNote
	unknown *FileNote
	faults  []*segfile.CorruptError
}

// unfinished says whether something is to be written to the file.
func (o *outcome) unfinished() bool { return o.open != nil || o.seg != nil && len(o.faults) > 0 }

// file puts an outcome on record.
func (s *Store) file(rec *Recovery, o *outcome) {
	if o.seg != nil {
		s.segments[o.seg.meta.ID] = o.seg
	}
	switch {
	case o.damaged != nil:
		s.count.damages.Add(1)
		rec.Damaged = append(rec.Damaged, *o.damaged)
	case o.unknown != nil:
		rec.Unknown = append(rec.Unknown, *o.unknown)
	case o.open != nil:
		s.tellCut(o.open)
		v := Verdict{ID: o.seg.meta.ID, End: o.seg.end, Verdict: o.open}
		if o.seg.LeftOpen() {
			rec.Unfenced = append(rec.Unfenced, v)
		} else {
			rec.Recovered = append(rec.Recovered, v)
		}
	default:
		rec.Fenced++
	}
	s.count.damages.Add(uint64(len(o.faults)))
	for _, f := range o.faults {
		s.log.Error("segment file can be read, but is damaged", "file", f.File, "byte", f.Byte, "why", f.Reason)
		rec.Faulty = append(rec.Faulty, FileNote{File: f.File, ID: o.seg.meta.ID, Err: f})
	}
}

// tellCut logs what recovery cut off the end of a segment that was left open. A power cut leaves
// a flush that was not acknowledged so; but damage to the last one that was looks the same.
func (s *Store) tellCut(v *segfile.Verdict) {
	if v.Cut.Length == 0 {
		return
	}
	s.log.Warn("segment file ends in what is not whole: it was cut off, and kept in the file; only damage since it was written could have cost acknowledged records",
		"file", filepath.Join(s.opts.Dir, v.Name), "byte", v.Cut.Position, "bytes", v.Cut.Length, "records", v.Cut.Records, "why", v.Why)
}

// listFiles names everything in the topics' directories, and what lies beside them, and the
// topics whose directory has nothing in it.
func (s *Store) listFiles() (files []found, empty []fence.TopicID, err error) {
	topics, err := s.disk.List(segfile.TopicsDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, nil // a new tree
	}
	if err != nil {
		return nil, nil, fmt.Errorf("store: list topics: %w", err)
	}
	for _, t := range topics {
		dir := segfile.TopicsDir + "/" + t.Name
		if !t.Dir {
			files = append(files, found{name: dir, size: t.Size})
			continue
		}
		entries, err := s.disk.List(dir)
		if ofProcess(err) {
			return nil, nil, fmt.Errorf("store: list %s: %w", dir, err)
		}
		if err != nil { // the others can be read
			files = append(files, found{name: dir, dir: true, err: err})
			continue
		}
		if id, err := fence.ParseTopicID(t.Name); err == nil && len(entries) == 0 {
			empty = append(empty, id)
		}
		for _, e := range entries {
			if name := dir + "/" + e.Name; e.Dir || !segfile.IsLossRecord(name) {
				files = append(files, found{name: name, size: e.Size, dir: e.Dir})
			}
		}
	}
	return files, empty, nil
}

// ofProcess says whether an error is none of a file but of the process, or the machine, that
// wants to use it.
func ofProcess(err error) bool {
	for _, is := range []error{syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, disk.ErrClosed} {
		if errors.Is(err, is) {
			return true
		}
	}
	return false
}

// lookAt says what one file is, and opens it if it is fenced. It writes nothing. What cannot
// be looked at is unknown, and no reason to keep the others from being read.
func (s *Store) lookAt(f found) (outcome, error) {
	if f.err != nil {
		return outcome{damaged: &FileNote{File: f.name, Err: f.err}}, nil
	}
	if f.dir { // it may have the name of a segment to come
		return outcome{unknown: &FileNote{File: f.name, Err: errors.New("a directory where only segment files are")}}, nil
	}
	id, ok := segfile.ParseName(f.name)
	if !ok {
		why := "not a segment file's name"
		if path.Dir(f.name) == segfile.TopicsDir {
			why = "not a directory, where each topic has one; links are not followed"
		}
		return outcome{unknown: &FileNote{File: f.name, Err: errors.New(why)}}, nil
	}
	r, v, err := segfile.Look(s.disk, f.name)
	if r != nil {
		return outcome{seg: s.adopt(r, f.name), faults: r.Faults()}, nil
	}
	if err == nil {
		err = v.Err()
	}
	switch {
	case err == nil:
		return outcome{open: v, faults: v.Faults}, nil
	case errors.Is(err, segfile.ErrNewer): // a newer program's: refuse to start
		return outcome{}, err
	case errors.Is(err, segfile.ErrForeign), errors.Is(err, segfile.ErrNeverUsed), errors.Is(err, disk.ErrInvalid): // or no plain file
		return outcome{unknown: &FileNote{File: f.name, Err: err}}, nil
	case ofProcess(err):
		return outcome{}, err
	}
	return outcome{damaged: &FileNote{File: f.name, ID: id, Err: err}}, nil
}

// finish writes what is missing.
func (s *Store) finish(r *survey, o *outcome) error {
	if o.open != nil {
		return s.fenceLeftOpen(r, o)
	}
	if err := s.mend(o); err != nil {
		s.log.Error("cannot mend a segment file", "file", o.seg.name, "err", err)
	}
	return nil
}

// mend writes a damaged header, a lost latch slot or a damaged footer of a fenced file again
// from what is left. What cannot be mended stays among the faults.
func (s *Store) mend(o *outcome) error {
	name := o.seg.name
	if err := segfile.RepairHeader(s.disk, name); err != nil {
		return err
	}
	v, err := segfile.Recover(s.disk, name)
	if err != nil {
		return err
	}
	if _, err := v.Fence(s.opts.Now().UnixMilli(), s.opts.FenceID()); err != nil {
		return err
	}
	ferr := segfile.RepairFooter(s.disk, name)
	r, err := segfile.OpenReader(s.disk, name)
	if err != nil {
		return errors.Join(ferr, err)
	}
	for _, f := range o.faults {
		if !slices.ContainsFunc(r.Faults(), func(left *segfile.CorruptError) bool { return left.Byte == f.Byte }) {
			s.log.Warn("segment file mended", "file", f.File, "byte", f.Byte, "why", f.Reason)
		}
	}
	old := o.seg
	o.seg, o.faults = s.adopt(r, name), r.Faults()
	return errors.Join(ferr, old.close())
}

// checkFooters reads, behind the start, the footers that the start took the copies of,
// and writes those again that are damaged. It ends with the store.
func (s *Store) checkFooters() {
	for _, id := range s.IDs() {
		select {
		case <-s.quit:
			return
		default:
		}
		seg, err := s.Segment(id)
		if err != nil || seg.use() != nil {
			continue // deleted meanwhile
		}
		if r := seg.reader.Load(); r != nil {
			if err := s.checkFooter(r); errors.Is(err, segfile.ErrDamaged) {
				seg.note(fmt.Errorf("%w: %w", ErrDamaged, err))
			} else if err != nil {
				s.log.Error("cannot check the footer of a segment file", "file", seg.name, "err", err)
			}
		}
		seg.unuse()
	}
}

func (s *Store) checkFooter(r *segfile.Reader) error {
	err := r.CheckFooter()
	if !errors.Is(err, segfile.ErrDamaged) {
		return err
	}
	if rerr := segfile.RepairFooter(s.disk, r.Name()); rerr != nil {
		return errors.Join(err, rerr)
	}
	s.count.damages.Add(1)
	s.log.Warn("segment file mended", "file", r.Name(), "why", err)
	return nil
}

// fenceLeftOpen fences a segment that an earlier process left open. Without space for
// that it stays open and takes nothing; what is in it can be read.
func (s *Store) fenceLeftOpen(sv *survey, o *outcome) error {
	v := o.open
	hardened, err := s.closeOff(sv, v)
	if errors.Is(err, disk.ErrNoSpace) {
		s.shrinkPool()
		hardened, err = s.closeOff(sv, v)
	}
	if errors.Is(err, disk.ErrNoSpace) {
		s.log.Error("no space to fence a segment that was left open: it is closed once there is some", "file", v.Name, "err", err)
		s.noteSpace(err)
		o.seg, err = s.adoptOpen(v, hardened, err)
		return err
	}
	if ofProcess(err) {
		return fmt.Errorf("fence %s: %w", v.Name, err)
	}
	if err != nil { // it is closed or not: nothing is shown of it until that is known
		err = fmt.Errorf("it was left open, and cannot be closed: %w", storageError(err))
		*o = outcome{damaged: &FileNote{File: v.Name, ID: v.Meta.ID, Err: err}}
		return nil
	}
	r, err := v.Reader()
	if err != nil {
		return err
	}
	o.seg = s.adopt(r, v.Name)
	o.seg.suspect(v)
	o.faults = slices.DeleteFunc(o.faults, func(f *segfile.CorruptError) bool {
		return f.Byte > 0 && f.Byte < segfile.DataStart // a latch slot: written now
	})
	return nil
}

// closeOff hardens and fences, and says whether it came through the first. A process
// that died in the birth of the segment may have left a name that is not durable.
func (s *Store) closeOff(r *survey, v *segfile.Verdict) (hardened bool, err error) {
	if err := r.syncDir(s.disk, path.Dir(v.Name)); err != nil {
		return false, err
	}
	if err := s.harden(v); err != nil {
		return false, err
	}
	_, err = v.Fence(s.opts.Now().UnixMilli(), s.opts.FenceID())
	return true, err
}

// harden writes the last flushes of a file again, as they are: recovery read them,
// but where a process died and the machine did not, they may never have become
// durable, and a fence is for good. A sync instead would say that they are also where one
// that the dead process was told of had failed, after which reads still show what is not
// on the device. Only what neither a frame nor the pointer proves is written, and with the
// bytes that are there: a power cut in it leaves every sector as it is.
func (s *Store) harden(v *segfile.Verdict) error {
	at := v.Durable / disk.Block * disk.Block
	if at >= v.End.Position {
		return nil
	}
	f, err := s.disk.Open(v.Name, false)
	if err != nil {
		return err
	}
	defer f.Close()
	for buf := make([]byte, min(windowBytes, v.End.Position-at)); at < v.End.Position; at += int64(len(buf)) {
		buf = buf[:min(int64(len(buf)), v.End.Position-at)]
		n, err := f.ReadAt(buf, at)
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		clear(buf[n:]) // padding that the end of the file took
		if err := f.WriteAt(buf, at); err != nil {
			return err
		}
	}
	return nil
}

// adoptOpen makes a Segment of a recovered file that cannot be fenced, which is why.
// What is shown of it may not go again: where that could not be written once more, it
// is synced.
func (s *Store) adoptOpen(v *segfile.Verdict, hardened bool, why error) (*Segment, error) {
	r, err := v.Open()
	if err != nil {
		return nil, err
	}
	if !hardened {
		f, err := r.File()
		if err == nil {
			err = f.Sync()
		}
		if err != nil {
			return nil, errors.Join(fmt.Errorf("sync %s: %w", v.Name, storageError(err)), r.Close())
		}
	}
	seg := s.adopt(r, v.Name)
	seg.phase, seg.left, seg.failed, seg.hardened = open, r, storageError(why), hardened
	seg.shard = s.shards[shardOf(seg.meta.ID.Range, len(s.shards))]
	return seg, nil
}

// adopt makes a Segment of a file that r reads.
func (s *Store) adopt(r *segfile.Reader, name string) *Segment {
	meta := r.Meta()
	end, _ := r.End()
	seg := &Segment{store: s, meta: meta, name: name, phase: fenced, end: end}
	seg.watch = s.Watch(meta.ID.Range.Topic)
	seg.commit.Store(end.Offset)
	seg.durable.Store(end.Position)
	seg.reader.Store(r)
	return seg
}
