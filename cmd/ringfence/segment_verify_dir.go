package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/ringfence/ringfence/engine"
	"github.com/ringfence/ringfence/segfile"
)

// missingFile is a segment file that the metadata knows and that is not there, or of which
// nothing can be read.
type missingFile struct {
	file     string
	records  uint64
	accepted bool // as a loss
	there    bool
}

// verifyDir verifies the segment files of a data directory. What should be there only the
// metadata knows.
func (a *app) verifyDir(ctx context.Context) error {
	var missing []missingFile
	err := a.withEngine(ctx, false, func(ctx context.Context, e *engine.Engine) (err error) {
		missing, err = missingFiles(ctx, e)
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
		fmt.Fprintf(a.err, "ringfence: another process has %s open: its files are checked as they lie there, and which were missing when it opened it 'ringfence topic describe' says, through that process\n", dir)
	}
	err = a.segmentVerify(ctx, files, false, missing)
	if !a.json && ctx.Err() == nil && !locked {
		gone := slices.DeleteFunc(missing, func(m missingFile) bool { return m.there })
		a.printf("%s checked, %s missing\n", plural(len(files), "file"), countText(len(gone)))
	}
	return err
}

// missingFiles are those of all topics.
func missingFiles(ctx context.Context, e *engine.Engine) (list []missingFile, err error) {
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
				_, err := os.Stat(s.File)
				list = append(list, missingFile{s.File, s.Records, s.Records > 0 && s.GivenUp == s.Records, !errors.Is(err, fs.ErrNotExist)})
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
