package engine

import (
	"bytes"
	"errors"
	"log/slog"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/ringfence/ringfence/segfile"
)

// logBook is a log that can be read while it is written.
type logBook struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (j *logBook) Write(b []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.b.Write(b)
}

func (j *logBook) count(words string) int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return strings.Count(j.b.String(), words)
}

// Damage that a read meets in a closed segment leaves traces: it is logged and counted
// once, however often it is met, and told of for as long as the directory is open.
func TestDamageFoundByReads(t *testing.T) {
	var log logBook
	dir := t.TempDir()
	e := open(t, dir, Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	newTopic(t, e, "t")
	newTopic(t, e, "u")
	fill(t, e)
	files := segmentFiles(t, e, "t")
	told := func(damaged int, text string) {
		t.Helper()
		list, err := e.Topics(within(t))
		must(t, err)
		d, err := e.Describe(within(t), "t")
		must(t, err)
		if list[0].Damaged != damaged || list[1].Damaged != 0 || d.Damaged != damaged || !strings.Contains(d.AllRanges[0].Segments[1].Damage, text) || (text == "") != (d.AllRanges[0].Segments[1].Damage == "") {
			t.Errorf("told %+v, %+v", list, d)
		}
	}
	told(0, "")
	flip(t, files[1], segfile.DataStart, 3*4096)
	for range 3 {
		_, err := readUntil(t, e, "t")
		is(t, err, ErrDamaged, `"t"`, files[1], "segment verify "+files[1], "accept-loss")
		if n := len(regexp.MustCompile(`at byte \d`).FindAllString(err.Error(), -1)); n != 1 {
			t.Errorf("%d bytes are named: %v", n, err)
		}
	}
	told(1, "segment verify "+files[1])
	if n := log.count("segment file is damaged"); n != 1 {
		t.Errorf("logged %d times", n)
	}
	if log.count(filepath.Base(files[1])) == 0 {
		t.Error("the log does not name the file")
	}
	if n := e.Stats().Store.Damages; n != 1 {
		t.Errorf("%d damages are counted", n)
	}
}

// The footers that a start took the copies of are read behind it, and what is wrong with
// them is told likewise: one that is mended is no damage any more.
func TestDamageFoundBehindStart(t *testing.T) {
	for name, c := range map[string]struct {
		frames  bool // are damaged too
		log     string
		damaged int
	}{
		"mended": {false, "segment file mended", 0},
		"not":    {true, "segment file is damaged", 1},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			stored(t, dir)
			e := open(t, dir, Options{})
			files := segmentFiles(t, e, "t")
			seg, err := e.store.Segment(e.store.IDs()[1])
			must(t, err)
			end, _ := seg.Fenced()
			shut(t, e)
			flip(t, files[1], (end.Position+4095)/4096*4096, 64)
			if c.frames {
				flip(t, files[1], segfile.DataStart, end.Position-segfile.DataStart)
			}
			var log logBook
			e = open(t, dir, Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
			if n := len(e.Opened().Faulty) + len(e.Opened().Damaged); n != 0 {
				t.Fatalf("the start found it: %+v", e.Opened())
			}
			eventually(t, "the damage is found", func() bool { return e.Stats().Store.Damages > 0 })
			shut(t, e) // waits for the check
			if log.count(c.log) != 1 {
				t.Errorf("logged %s", log.b.String())
			}
			e = open(t, dir, Options{})
			if _, err := readUntil(t, e, "t"); c.frames != errors.Is(err, ErrDamaged) {
				t.Errorf("read with %v", err)
			}
			d, err := e.Describe(within(t), "t")
			must(t, err)
			if d.Damaged != c.damaged {
				t.Errorf("%d damaged segments", d.Damaged)
			}
		})
	}
}
