package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Data must never end up somewhere nobody meant (scenario N01).
func TestN01DataDirectory(t *testing.T) {
	base := t.TempDir()
	t.Chdir(base)
	dir := filepath.Join(base, "dir")
	file := filepath.Join(base, "file")
	link := filepath.Join(base, "link")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	const none = "\x01" // not set
	for _, tt := range []struct {
		name, flag, env string
		create          bool
		want, wantErr   string
	}{
		{"nothing set", none, none, false, "", "which data directory?"},
		{"flag", dir, none, false, dir, ""},
		{"flag, relative to the shell", "dir", none, false, dir, ""},
		{"flag before variable", dir, "/nowhere", false, dir, ""},
		{"variable", none, dir, false, dir, ""},
		{"variable, relative", none, "dir", false, "", "must be an absolute path"},
		{"flag, empty", "", dir, false, "", "--data-dir is blank"},
		{"flag, blank", "  ", none, false, "", "--data-dir is blank"},
		{"variable, empty", none, "", false, "", "RINGFENCE_DATA_DIR is blank"},
		{"variable, blank", none, " \t", false, "", "RINGFENCE_DATA_DIR is blank"},
		{"a file", file, none, true, "", "is a file"},
		{"a link to a directory", link, none, false, link, ""},
		{"missing, to read", filepath.Join(base, "missing"), none, false, "", "does not exist"},
		{"missing, to create", filepath.Join(base, "new"), none, true, filepath.Join(base, "new"), ""},
		{"parent missing", filepath.Join(base, "a", "b"), none, true, "", "no such file"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a := &app{dataDir: unset, err: os.Stderr, env: func(string) (string, bool) { return tt.env, tt.env != none }}
			if tt.flag != none {
				a.dataDir = tt.flag
			}
			got, err := a.resolveDataDir(tt.create)
			if tt.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), tt.wantErr) {
					t.Errorf("got %q, %v; want an error with %q", got, err, tt.wantErr)
				}
				return
			}
			if err != nil || got != tt.want {
				t.Errorf("got %q, %v; want %q", got, err, tt.want)
			}
		})
	}
}

func TestN01NotWritable(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Skip("root may write everywhere")
	}
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o500); err != nil {
		t.Fatal(err)
	}
	a := &app{dataDir: dir, err: os.Stderr, env: os.LookupEnv}
	if _, err := a.resolveDataDir(false); err == nil || !strings.Contains(err.Error(), "no permission") {
		t.Errorf("got %v", err)
	}
}

// A directory without data is no empty store, and one of other files is not begun in
// (N01): its disk is perhaps not mounted, or the path is a mistake.
func TestN01NoData(t *testing.T) {
	dir := t.TempDir()
	for _, cmd := range []string{"topic ls", "consume t", "produce t", "topic describe t", "topic policy ls"} {
		fails(t, exitNotFound, "there is no Ringfence data in "+dir, "", append(strings.Fields(cmd), "--data-dir", dir)...)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("they left %v (%v)", left, err)
	}
	other := filepath.Join(dir, "report.txt")
	if err := os.WriteFile(other, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, cmd := range []string{"topic create t", "produce t --create", "topic policy set p --max-age 1d", "serve --admin= --listen 127.0.0.1:0"} {
		fails(t, exitUsage, "other files (report.txt)", "", append(strings.Fields(cmd), "--data-dir", dir)...)
	}
	// What a fresh file system holds is in nobody's way.
	err := os.Remove(other)
	for _, name := range []string{"lost+found", ".Trash", "log"} {
		err = errors.Join(err, os.Mkdir(filepath.Join(dir, name), 0o700))
	}
	if err != nil {
		t.Fatal(err)
	}
	fails(t, exitNotFound, "no Ringfence data", "", "topic", "ls", "--data-dir", dir)
	ok(t, "", "topic", "create", "t", "--data-dir", dir)
	if out := ok(t, "", "topic", "ls", "--data-dir", dir); !strings.Contains(out, "TOPIC") {
		t.Errorf("topic ls: %s", out)
	}
	// An unmounted half of it is for the engine to find.
	if err := os.Rename(filepath.Join(dir, "meta"), filepath.Join(dir, "away")); err != nil {
		t.Fatal(err)
	}
	if r := ringfence(t, "", "topic", "ls", "--data-dir", dir); r.code == 0 || r.code == exitNotFound {
		t.Errorf("without its metadata: %+v", r)
	}
}

// A directory in memory is used, with a warning.
func TestN01WarnsOfMemory(t *testing.T) {
	dir, err := os.MkdirTemp("/dev/shm", "ringfence-")
	if err != nil {
		t.Skipf("no tmpfs to try: %v", err)
	}
	defer os.RemoveAll(dir)
	var said strings.Builder
	a := &app{dataDir: dir, err: &said, env: os.LookupEnv}
	if _, err := a.resolveDataDir(false); err != nil || !strings.Contains(said.String(), "nothing here survives a restart") {
		t.Errorf("got %v and %q", err, said.String())
	}
}

// The data is where the variable said, also for the next process (N01, N02).
func TestN02_DataSurvivesTheProcess(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	t.Setenv(dataDirVar, dir)
	text := lines(100)
	write := process(t.Context(), "produce", "t", "--create")
	write.Stdin = strings.NewReader(text)
	if out, err := write.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	read := process(t.Context(), "consume", "t")
	out, err := read.Output()
	if err != nil || string(out) != text {
		t.Errorf("another process read %d bytes of %d: %v", len(out), len(text), err)
	}
}
