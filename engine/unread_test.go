package engine

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/ringfence/ringfence/engine/store"
	"github.com/ringfence/ringfence/segfile"
)

// leftFile is the newest segment file of the topic that kill leaves.
func leftFile(t testing.TB, dir string) string {
	t.Helper()
	newest := ""
	files, err := filepath.Glob(filepath.Join(dir, "log", "topics", "*", "*.seg"))
	must(t, err)
	for _, file := range files {
		b, err := os.ReadFile(file)
		must(t, err)
		if m, ok := segfile.Identify(b); ok && m.Topic == "left" {
			newest = max(newest, file)
		}
	}
	return newest
}

// An open segment's file of another history of the same directory has the same name and
// begins at the same offset. None of its records is taken for this one's.
func TestOpenSegmentOfAnotherHistory(t *testing.T) {
	dir := t.TempDir()
	kill(t, dir)
	other := copyTree(t, dir)
	kill(t, dir)
	kill(t, other)
	path := leftFile(t, dir)
	own, err := os.ReadFile(path)
	must(t, err)
	foreign, err := os.ReadFile(leftFile(t, other))
	must(t, err)
	must(t, os.WriteFile(path, foreign, 0o600))
	for range 2 {
		e := open(t, dir, Options{})
		if n := len(e.Opened().Damaged); n != 1 {
			t.Fatalf("%d damaged files", n)
		}
		got, err := readUntil(t, e, "left")
		is(t, err, ErrDamaged, filepath.Base(path), "another segment of this name")
		if len(got) != 10 {
			t.Errorf("read %q", got)
		}
		_, err = newProducer(t, e, ProducerOptions{Topic: "left"}).Produce(within(t), Record{Value: []byte("v")})
		is(t, err, ErrDamaged, filepath.Base(path))
		shut(t, e)
	}
	must(t, os.WriteFile(path, own, 0o600))
	e := open(t, dir, Options{})
	if got := readAll(t, e, "left", FromStart()); len(got) != 20 {
		t.Errorf("read %q", got)
	}
}

// What lies in one topic's directory, or in its place, keeps no other topic from being
// opened, and is neither moved nor taken for a topic without records: once it is put right
// everything is there.
func TestOneTopicThatCannotBeLookedAt(t *testing.T) {
	aside := func(t *testing.T, path string) (back func()) {
		must(t, os.Rename(path, path+".aside"))
		return func() {
			must(t, os.RemoveAll(path))
			must(t, os.Rename(path+".aside", path))
		}
	}
	moved := func(t *testing.T, path, to string) (back func()) {
		must(t, os.Rename(path, to))
		return func() {
			must(t, os.Remove(path))
			must(t, os.Rename(to, path))
		}
	}
	cases := map[string]func(t *testing.T, file string) (back func()){
		"link to elsewhere": func(t *testing.T, file string) func() {
			to := filepath.Join(t.TempDir(), "moved")
			back := moved(t, filepath.Dir(file), to)
			must(t, os.Symlink(to, filepath.Dir(file)))
			return back
		},
		"link inside": func(t *testing.T, file string) func() {
			to := filepath.Join(filepath.Dir(file), "..", "..", "moved")
			back := moved(t, filepath.Dir(file), to)
			must(t, os.Symlink("../moved", filepath.Dir(file)))
			return back
		},
		"link to itself": func(t *testing.T, file string) func() {
			back := aside(t, file)
			must(t, os.Symlink(filepath.Base(file), file))
			return back
		},
		"pipe": func(t *testing.T, file string) func() {
			back := aside(t, file)
			must(t, syscall.Mkfifo(file, 0o600))
			return back
		},
	}
	for name, spoil := range cases {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			e := open(t, dir, Options{})
			newTopic(t, e, "u")
			produce(t, newProducer(t, e, ProducerOptions{Topic: "u"}), "k", "safe")
			shut(t, e)
			kill(t, dir)
			file := leftFile(t, dir)
			back := spoil(t, file)
			for i := range 2 {
				e := open(t, dir, Options{})
				if r := e.Opened(); len(r.Damaged) != 1 || slices.ContainsFunc(r.SetAside, func(s string) bool { return filepath.Ext(s) != ".aside" }) || r.Stop != StopUnclean {
					t.Fatalf("open %d: %+v", i, r)
				}
				want(t, e, "u", "safe")
				_, err := readUntil(t, e, "left")
				is(t, err, ErrDamaged, filepath.Base(filepath.Dir(file)))
				_, err = newProducer(t, e, ProducerOptions{Topic: "left"}).Produce(within(t), Record{Value: []byte("v")})
				is(t, err, ErrDamaged, filepath.Base(filepath.Dir(file)))
				for _, s := range e.Opened().SetAside { // the test's own copy
					must(t, os.Rename(filepath.Join(dir, "log", s), file+".aside"))
				}
				shut(t, e)
			}
			back()
			e = open(t, dir, Options{})
			if got := readAll(t, e, "left", FromStart()); len(got) != 10 {
				t.Errorf("read %q", got)
			}
		})
	}
}

// A file in the pool that cannot be looked at is left alone.
func TestPoolFileThatCannotBeLookedAt(t *testing.T) {
	dir := t.TempDir()
	stored(t, dir)
	odd := filepath.Join(dir, "log", "pool", "00000000000000aa.old")
	must(t, syscall.Mkfifo(odd, 0o600))
	e := open(t, dir, Options{})
	want(t, e, "t", "v0", "v1", "v2")
	newTopic(t, e, "u")
	produce(t, newProducer(t, e, ProducerOptions{Topic: "u"}), "k", "v")
	shut(t, e)
	if _, err := os.Lstat(odd); err != nil {
		t.Error(err)
	}
}

// A file that nobody knows, and that cannot be moved, stays where it is, and those behind it
// are moved.
func TestUnknownFileThatCannotBeMoved(t *testing.T) {
	dir := t.TempDir()
	e := open(t, dir, Options{})
	must(t, os.WriteFile(filepath.Join(dir, "log", "topics", "stray"), []byte("stray"), 0o600))
	e.setAsideUnknown(nil, &store.Recovery{Unknown: []store.FileNote{{File: "topics/gone"}, {File: "topics/stray"}}})
	if list := e.report.SetAside; len(list) != 1 || !strings.HasSuffix(list[0], "stray") {
		t.Errorf("set aside: %q", list)
	}
}
