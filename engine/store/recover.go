package store

import (
	"errors"
	"fmt"
	"sync"

	"github.com/ringfence/ringfence/fence"
	"github.com/ringfence/ringfence/segfile"
)

// Recovery is what Open found.
type Recovery struct {
	Fenced    int        // closed before: nothing to do
	Recovered []Verdict  // left open by an earlier process, now fenced
	Damaged   []FileNote // served to nobody as if complete
	Unknown   []FileNote // set aside
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
}

// recover opens every segment file: fenced ones as they are, open ones after
// recovery and a fence. Several at a time.
func (s *Store) recover(report func(done, total int)) (*Recovery, error) {
	files, err := s.listFiles()
	if err != nil {
		return nil, err
	}
	rec := &Recovery{}
	var (
		mu    sync.Mutex // guards rec, done and the first error
		first error
		done  int
		group sync.WaitGroup
	)
	work := make(chan found)
	for range min(s.opts.Recoveries, len(files)) {
		group.Go(func() {
			for f := range work {
				seg, note, err := s.recoverFile(f)
				mu.Lock()
				s.file(rec, seg, note)
				if err != nil && first == nil {
					first = err
				}
				done++
				if report != nil {
					report(done, len(files))
				}
				mu.Unlock()
			}
		})
	}
	for _, f := range files {
		work <- f
	}
	close(work)
	group.Wait()
	return rec, first
}

// outcome is what became of one file.
type outcome struct {
	fenced    bool
	recovered *Verdict
	damaged   *FileNote
	unknown   *FileNote
}

func (s *Store) file(rec *Recovery, seg *Segment, o outcome) {
	if seg != nil {
		s.segments[seg.meta.ID] = seg
	}
	switch {
	case o.fenced:
		rec.Fenced++
	case o.recovered != nil:
		rec.Recovered = append(rec.Recovered, *o.recovered)
	case o.damaged != nil:
		rec.Damaged = append(rec.Damaged, *o.damaged)
	case o.unknown != nil:
		rec.Unknown = append(rec.Unknown, *o.unknown)
	}
}

// listFiles names every file below the topics directory.
func (s *Store) listFiles() ([]found, error) {
	var files []found
	topics, err := s.disk.List(segfile.TopicsDir)
	if err != nil {
		return nil, fmt.Errorf("store: list topics: %w", err)
	}
	for _, t := range topics {
		dir := segfile.TopicsDir + "/" + t.Name
		if !t.Dir {
			files = append(files, found{dir, t.Size})
			continue
		}
		entries, err := s.disk.List(dir)
		if err != nil {
			return nil, fmt.Errorf("store: list %s: %w", dir, err)
		}
		for _, e := range entries {
			if name := dir + "/" + e.Name; !e.Dir && !segfile.IsLossRecord(name) {
				files = append(files, found{name, e.Size})
			}
		}
	}
	return files, nil
}

// recoverFile brings one file to a segment, or says why it is none.
func (s *Store) recoverFile(f found) (*Segment, outcome, error) {
	id, ok := segfile.ParseName(f.name)
	if !ok {
		return nil, outcome{unknown: &FileNote{File: f.name, Err: errors.New("not a segment file's name")}}, nil
	}
	r, err := segfile.OpenReader(s.disk, f.name)
	switch {
	case err == nil:
		seg := s.adopt(r, f.name)
		return seg, outcome{fenced: true}, nil
	case errors.Is(err, segfile.ErrOpen):
		return s.recoverOpen(f, id)
	case errors.Is(err, segfile.ErrNewer):
		return nil, outcome{}, err // a newer program's files: refuse to start, touch nothing
	case errors.Is(err, segfile.ErrDamaged):
		return nil, outcome{damaged: &FileNote{File: f.name, ID: id, Err: err}}, nil
	case errors.Is(err, segfile.ErrForeign), errors.Is(err, segfile.ErrNeverUsed):
		return nil, outcome{unknown: &FileNote{File: f.name, Err: err}}, nil
	}
	return nil, outcome{}, err
}

// recoverOpen fences a segment that an earlier process left open.
func (s *Store) recoverOpen(f found, id fence.SegmentID) (*Segment, outcome, error) {
	v, err := segfile.Recover(s.disk, f.name)
	if err != nil {
		return nil, outcome{}, err
	}
	if err := v.Err(); err != nil {
		return nil, outcome{damaged: &FileNote{File: f.name, ID: id, Err: err}}, nil
	}
	if _, err := v.Fence(s.opts.Now().UnixMilli(), s.opts.FenceID()); err != nil {
		return nil, outcome{}, fmt.Errorf("fence %s: %w", f.name, err)
	}
	r, err := segfile.OpenReader(s.disk, f.name)
	if err != nil {
		return nil, outcome{}, err
	}
	seg := s.adopt(r, f.name)
	return seg, outcome{recovered: &Verdict{ID: seg.meta.ID, End: seg.end, Verdict: v}}, nil
}

// adopt makes a Segment of a fenced file.
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
