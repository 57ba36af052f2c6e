package engine

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ringfence/ringfence/segfile"
)

// copyTree copies a directory as a backup would.
func copyTree(t testing.TB, from string) (to string) {
	t.Helper()
	to = filepath.Join(t.TempDir(), "copy")
	must(t, os.CopyFS(to, os.DirFS(from)))
	return to
}

// replace puts a copy of one directory in the place of another.
func replace(t testing.TB, dir, with string) {
	t.Helper()
	must(t, os.RemoveAll(dir))
	must(t, os.CopyFS(dir, os.DirFS(with)))
}

// tree lists the files below dir with their sizes.
func tree(t testing.TB, dir string) (list []string) {
	t.Helper()
	must(t, filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		st, err := d.Info()
		if err != nil {
			return err
		}
		list = append(list, fmt.Sprintf("%s %d", strings.TrimPrefix(path, dir), st.Size()))
		return nil
	}))
	return list
}

// refused fails unless Open refuses dir for that reason and leaves its segments as
// they are.
func refused(t testing.TB, dir string, sentinel error, words ...string) {
	t.Helper()
	topics := filepath.Join(dir, "log", segfile.TopicsDir)
	list := func() []string {
		if _, err := os.Stat(topics); err != nil {
			return nil
		}
		return tree(t, topics)
	}
	before := list()
	for range 2 { // the second try must not find what the first left
		e, err := Open(dir, small(Options{}))
		if err == nil {
			e.Close()
			t.Fatal("opened")
		}
		is(t, err, sentinel, words...)
	}
	if after := list(); !slices.Equal(before, after) {
		t.Fatalf("segments were %q and are %q", before, after)
	}
}

// stored makes a directory with a topic of three segments.
func stored(t testing.TB, dir string) {
	t.Helper()
	e := open(t, dir, Options{})
	newTopic(t, e, "t")
	fill(t, e)
	shut(t, e)
}

func fill(t testing.TB, e *Engine) {
	t.Helper()
	p := newProducer(t, e, ProducerOptions{Topic: "t"})
	for i := range 3 {
		produce(t, p, "k", fmt.Sprint("v", i))
		if _, err := e.Roll(within(t), "t"); err != nil {
			t.Fatal(err)
		}
	}
	must(t, p.Close(within(t)))
}

// B02, H03: neither half of a directory is ever taken for empty when the other is
// there, and nothing is touched before that is known.
func TestHalfOfADirectory(t *testing.T) {
	dir := t.TempDir()
	stored(t, dir)
	log, meta := filepath.Join(dir, "log"), filepath.Join(dir, "meta")
	logCopy, metaCopy := copyTree(t, log), copyTree(t, meta)
	other := t.TempDir()
	stored(t, other)
	restore := func() {
		t.Helper()
		replace(t, log, logCopy)
		replace(t, meta, metaCopy)
	}

	t.Run("log removed", func(t *testing.T) {
		must(t, os.RemoveAll(log))
		refused(t, dir, ErrMismatch, log, "put log back")
		restore()
	})
	t.Run("log emptied", func(t *testing.T) {
		must(t, os.RemoveAll(log))
		must(t, os.Mkdir(log, 0o700))
		refused(t, dir, ErrMismatch, log)
		restore()
	})
	t.Run("metadata removed", func(t *testing.T) {
		must(t, os.RemoveAll(meta))
		refused(t, dir, ErrMismatch, meta, "put meta back")
		restore()
	})
	t.Run("metadata and the log's identity removed", func(t *testing.T) {
		must(t, os.RemoveAll(meta))
		must(t, os.Remove(filepath.Join(log, identityName)))
		refused(t, dir, ErrMismatch, meta)
		restore()
	})
	t.Run("metadata of another directory", func(t *testing.T) {
		replace(t, meta, filepath.Join(other, "meta"))
		refused(t, dir, ErrMismatch, "one copy")
		restore()
	})
	t.Run("log of another directory", func(t *testing.T) {
		replace(t, log, filepath.Join(other, "log"))
		refused(t, dir, ErrMismatch, "one copy")
		restore()
	})
	t.Run("Raft log removed", func(t *testing.T) {
		must(t, os.RemoveAll(filepath.Join(meta, "raft")))
		refused(t, dir, ErrMismatch, "raft")
		restore()
	})

	// What is all there opens, and after a copy of both halves too.
	e := open(t, dir, Options{})
	want(t, e, "t", "v0", "v1", "v2")
	shut(t, e)
}

// H03: metadata of an earlier time is refused, as the log was written since.
func TestMetadataRolledBack(t *testing.T) {
	dir := t.TempDir()
	stored(t, dir)
	meta := filepath.Join(dir, "meta")
	earlier := copyTree(t, meta)
	e := open(t, dir, Options{})
	fill(t, e)
	shut(t, e)
	replace(t, meta, earlier)
	refused(t, dir, ErrMismatch, "copy")
}

// A log of an earlier time misses segments: reading them and writing behind them
// are errors that say so, and what is there can be read.
func TestLogRolledBack(t *testing.T) {
	dir := t.TempDir()
	e := open(t, dir, Options{})
	newTopic(t, e, "t")
	newTopic(t, e, "u")
	fill(t, e)
	shut(t, e)
	log := filepath.Join(dir, "log")
	earlier := copyTree(t, log)
	e = open(t, dir, Options{})
	fill(t, e)
	shut(t, e)
	replace(t, log, earlier)

	e = open(t, dir, Options{})
	if s := e.Opened().Stop; s != StopUnknown {
		t.Errorf("the stop before was %q, want %q", s, StopUnknown)
	}
	if n := len(e.Opened().Damaged); n != 3 {
		t.Errorf("%d segments are reported, want 3", n)
	}
	c := newConsumer(t, e, ConsumerOptions{Topic: "t", From: FromStart()})
	var got []entry
	var err error
	for err == nil {
		var page Page
		page, err = c.Fetch(10)
		got = keep(got, page)
	}
	is(t, err, ErrDamaged, "missing", "range 0", ".seg")
	if v := values(got); !slices.Equal(v, []string{"v0", "v1", "v2"}) {
		t.Errorf("read %q", v)
	}
	p := newProducer(t, e, ProducerOptions{Topic: "t"})
	_, err = p.Produce(within(t), Record{Key: []byte("k"), Value: []byte("v")})
	is(t, err, ErrDamaged, "missing")
	q := newProducer(t, e, ProducerOptions{Topic: "u"})
	produce(t, q, "k", "other topics work")
	want(t, e, "u", "other topics work")
}

// The identity is checked byte for byte. Removed, it is written anew where the log
// shows that it is the metadata's.
func TestIdentityDamaged(t *testing.T) {
	dir := t.TempDir()
	stored(t, dir)
	name := filepath.Join(dir, "log", identityName)
	good, err := os.ReadFile(name)
	must(t, err)
	n := len(strings.TrimSpace(string(good)))
	for i := 0; i < n; i += 1 + n/12 {
		bad := slices.Clone(good)
		bad[i] ^= 4
		must(t, os.WriteFile(name, bad, 0o600))
		refused(t, dir, ErrDamaged, identityName, "byte", "remove it")
	}
	must(t, os.WriteFile(name, good[:n/2], 0o600))
	refused(t, dir, ErrDamaged, identityName)
	must(t, os.WriteFile(name, []byte(`{"format":2}`), 0o600))
	_, err = Open(dir, small(Options{}))
	if err == nil || errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), "newer version") {
		t.Fatal(err)
	}
	must(t, os.Remove(name))
	e := open(t, dir, Options{})
	if s := e.Opened().Stop; s != StopUnknown {
		t.Errorf("the stop before was %q", s)
	}
	want(t, e, "t", "v0", "v1", "v2")
	shut(t, e)
	if _, err := os.Stat(name); err != nil {
		t.Error(err)
	}
}

// A second engine on a directory is refused, in this process and in another, and
// the first does not notice.
func TestLocked(t *testing.T) {
	dir := t.TempDir()
	e := open(t, dir, Options{})
	newTopic(t, e, "t")
	_, err := Open(dir, small(Options{}))
	is(t, err, ErrLocked, dir)
	if text := err.Error(); strings.Count(text, "in use") != 1 || strings.Contains(text, "cp/host") || strings.Contains(text, "disk:") {
		t.Errorf("said otherwise than once: %s", text)
	}
	if strings.Contains(err.Error(), "allocated") {
		t.Errorf("an open that is refused keeps memory: %v", err)
	}
	out, err := child(t, "open", dir).Output()
	if err == nil || !strings.Contains(string(out), ErrLocked.Error()) {
		t.Fatalf("a second process: %v, %s", err, out)
	}
	p := newProducer(t, e, ProducerOptions{Topic: "t"})
	produce(t, p, "k", "v")
	shut(t, e)
	out, err = child(t, "open", dir).Output()
	if err != nil || !strings.Contains(string(out), "opened") {
		t.Fatalf("the lock was not given back: %v, %s", err, out)
	}
}

// C06: Open says how the process before ended.
func TestStopMarker(t *testing.T) {
	dir := t.TempDir()
	stop := func(want Stop) {
		t.Helper()
		e := open(t, dir, Options{})
		defer shut(t, e)
		if s := e.Opened().Stop; s != want {
			t.Fatalf("the stop before was %q, want %q", s, want)
		}
	}
	stop(StopNew)
	stop(StopClean)
	kill(t, dir)
	stop(StopUnclean)
	stop(StopClean)
	backup := copyTree(t, filepath.Join(dir, "log"))
	stop(StopClean)
	replace(t, filepath.Join(dir, "log"), backup)
	stop(StopUnknown)
	stop(StopClean)
}

// A range whose segment filled up has a successor registered that may never have been
// written to. After a stop in order that is no reason to worry anybody; after one that
// was not, it is reported, as its file could have been removed.
func TestUnwrittenSuccessor(t *testing.T) {
	dir := t.TempDir()
	e := open(t, dir, Options{SegmentBytes: 1 << 20})
	newTopic(t, e, "t")
	p := newProducer(t, e, ProducerOptions{Topic: "t"})
	fillSegment := func() {
		t.Helper()
		sealed := func() (n int) {
			d, err := e.Describe(within(t), "t")
			must(t, err)
			for _, s := range d.AllRanges[0].Segments {
				if !s.Active {
					n++
				}
			}
			return n
		}
		for before := sealed(); sealed() == before; {
			produce(t, p, "k", string(make([]byte, 200_000)))
			eventually(t, "rolls are done", func() bool { return len(e.front.DueRolls()) == 0 })
		}
	}
	unwritten := func() (n int) {
		d, err := e.Describe(within(t), "t")
		must(t, err)
		for _, s := range d.AllRanges[0].Segments {
			if s.File == "" {
				n++
			}
		}
		return n
	}
	fillSegment()
	if unwritten() != 1 {
		t.Skip("the successor is not registered with the seal: there is nothing to test")
	}
	shut(t, e)
	e = open(t, dir, Options{SegmentBytes: 1 << 20})
	if o := e.Opened(); o.Stop != StopClean || o.Unwritten != 0 || len(o.Damaged) > 0 {
		t.Errorf("%+v", o)
	}
	p = newProducer(t, e, ProducerOptions{Topic: "t"})
	fillSegment()
	if unwritten() != 1 {
		t.Fatal("the successor has a file")
	}
	crashed := copyTree(t, dir) // as after a kill: nothing is being written
	shut(t, e)
	e = open(t, crashed, Options{})
	if o := e.Opened(); o.Stop != StopUnclean || o.Unwritten != 1 || len(o.Damaged) > 0 {
		t.Errorf("%+v", o)
	}
	p = newProducer(t, e, ProducerOptions{Topic: "t"})
	produce(t, p, "k", "goes on")
}
