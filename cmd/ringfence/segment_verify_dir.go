package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/ringfence/ringfence/engine"
	"github.com/ringfence/ringfence/segfile"
)

// missingFile is a segment file that the metadata knows and that is not there, or of which
// nothing can be read.
type missingFile struct {
	file     string
	records  uint64
	accepted bool // as a loss
}

// unfitFile is a segment file that is there, and is not the one that the metadata knows: no
// record of the segment can be read.
type unfitFile struct {
	topic string
	rng   uint32
	s     engine.SegmentInfo
}

// verifyDir verifies the segment files of a data directory. What should be there only the
// metadata knows.
func (a *app) verifyDir(ctx context.Context) error {
	var missing []missingFile
	unfit := map[string]unfitFile{}
	err := a.withEngine(ctx, false, func(ctx context.Context, e *engine.Engine) (err error) {
		missing, err = lostFiles(ctx, e, unfit)
		return err
	})
	locked := errors.Is(err, engine.ErrLocked)
	if err != nil && !locked {
		return err
	}
	dir, err := a.dataDirPath()
	if err != nil {
		return err
	}
	files, err := filepath.Glob(filepath.Join(globText(dir), "log", "topics", "*", "*.seg"))
	if err != nil {
		return err
	}
	if locked {
		fmt.Fprintf(a.err, "ringfence: another process has %s open: its files are checked as they lie there. Which of them were missing, or were not what the metadata says, when that process opened the directory, 'ringfence topic describe' says, through the process\n", dir)
	}
	err = a.segmentVerify(ctx, files, false, missing, unfit)
	if !a.json && ctx.Err() == nil && !locked {
		a.printf("%s checked, %s missing\n", plural(len(files), "file"), countText(len(missing)))
	}
	return err
}

// lostFiles are the missing ones of all topics; those that do not fit come into unfit, by
// their paths.
func lostFiles(ctx context.Context, e *engine.Engine, unfit map[string]unfitFile) (list []missingFile, err error) {
	topics, err := e.Topics(ctx)
	if err != nil {
		return nil, err
	}
	for _, t := range topics {
		d, err := e.Describe(ctx, t.Name)
		if err != nil {
			return nil, err
		}
		for _, r := range d.AllRanges {
			for _, s := range r.Segments {
				if !s.Missing {
					continue
				}
				if _, err := os.Stat(s.File); errors.Is(err, fs.ErrNotExist) {
					list = append(list, missingFile{s.File, s.Records, s.Records > 0 && s.GivenUp == s.Records})
				} else {
					unfit[s.File] = unfitFile{t.Name, r.Seq, s}
				}
			}
		}
	}
	return list, nil
}

func (m missingFile) report() (verifyReport, error) {
	var err error
	if !m.accepted {
		err = fmt.Errorf("%w: %s with %s is missing", segfile.ErrDamaged, m.file, plural(m.records, "record"))
	}
	r := verifyJSON(m.file, segfile.Report{}, err)
	r.Accepted = m.accepted
	return r, err
}

func (a *app) printMissing(m missingFile) {
	if m.accepted {
		a.printf("%s: missing, and the loss of %s was accepted\n", m.file, plural(m.records, "record"))
		return
	}
	a.printf("%s: missing: %s cannot be read\n", m.file, plural(m.records, "record"))
	a.printf("  next      put the file back from a copy, if there is one; without one, 'ringfence segment accept-loss %s' lets reads skip what is lost\n", m.file)
}

// err is what verify says of a file that has something else, or nothing, to tell of itself.
func (u unfitFile) err(file string, found error) error {
	if exitCode(found) == exitDamaged {
		return found
	}
	if found != nil && !errors.Is(found, segfile.ErrNeverUsed) {
		return fmt.Errorf("%w: %w: %s", segfile.ErrDamaged, found, u.text())
	}
	return fmt.Errorf("%w: %s: %s", segfile.ErrDamaged, file, u.text())
}

// text is what is lost with it.
func (u unfitFile) text() string {
	if u.s.Active {
		return fmt.Sprintf("the metadata says that it is the open segment of range %d of topic %s, from offset %d on: what was in it is not known, and cannot be read", u.rng, u.topic, u.s.Start)
	}
	return fmt.Sprintf("the metadata says that it was closed with %s, offsets %s of range %d of topic %s: they cannot be read",
		plural(u.s.Records, "record"), offsetsText(u.s.Start, u.s.Start+u.s.Records), u.rng, u.topic)
}

// next is what there is to do about it.
func (u unfitFile) next(file string) string {
	switch {
	case errors.Is(unreadable(file), fs.ErrPermission):
		return "let the user that runs ringfence read and write it (chown, chmod): nothing need be lost"
	case u.s.Active:
		return "put a good copy of the file in its place while nobody has the data directory open"
	}
	return fmt.Sprintf("put a good copy of the file, of the same time as the metadata, in its place while nobody has the data directory open, if there is one; without one, move it out of the data directory, and 'ringfence segment accept-loss %s' then gives up these records. 'ringfence segment dump' reads what a file holds that was moved away, as OTHER/topics/%s/%s",
		file, filepath.Base(filepath.Dir(file)), filepath.Base(file))
}

// unreadable is why a file cannot be opened.
func unreadable(file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	return f.Close()
}

// printUnfit tells of a file what the metadata says of it, and what it is.
func (a *app) printUnfit(file string, u unfitFile, rep segfile.Report, err error) {
	a.printf("%s: damaged: %s\n", file, u.text())
	switch {
	case err == nil || len(rep.Holes) > 0:
		a.printf("  found     %s, offsets %s\n", plural(rep.Records, "record"), offsetsText(rep.Meta.Base, rep.End.Offset))
	case errors.Is(err, segfile.ErrNeverUsed):
		a.printf("  found     nothing of it is left: the file is empty, or all zeros\n")
	default:
		a.printf("  found     %s\n", strings.TrimSuffix(err.Error(), foreignNext)) // that is said below
	}
	a.printProblems(rep.Problems)
	a.printHoles(rep.Holes)
	a.printf("  next      %s\n", u.next(file))
}

// unfit looks into the metadata whether it knows a segment file as another one than lies
// there; nil also where that cannot be told, which it says.
func (a *app) unfit(ctx context.Context, file string) (*unfitFile, error) {
	root, name, ok := segmentPath(file)
	dir := filepath.Dir(filepath.Clean(root))
	if !ok || filepath.Base(root) != "log" || !holdsData(dir) {
		return nil, nil
	}
	id, _ := segfile.ParseName(name)
	a.dataDir = dir
	var u *unfitFile
	err := a.withEngine(ctx, false, func(ctx context.Context, e *engine.Engine) error {
		topic, s, err := findSegment(ctx, e, id)
		if err == nil && s.Missing {
			u = &unfitFile{topic, id.Range.Seq, s}
		}
		if exitCode(err) == exitNotFound {
			return nil
		}
		return err
	})
	if errors.Is(err, engine.ErrLocked) {
		fmt.Fprintf(a.err, "ringfence: another process has %s open: whether the file is the one that the metadata knows 'ringfence topic describe' says, through that process\n", dir)
		return nil, nil
	}
	return u, err
}

// globText is a path as a pattern that matches it alone.
func globText(path string) string {
	var b []byte
	for i := range len(path) {
		switch path[i] {
		case '*', '?', '[', '\\':
			b = append(b, '\\')
		}
		b = append(b, path[i])
	}
	return string(b)
}
