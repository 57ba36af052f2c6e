package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// asCommand makes this test binary the command: demo and bench start themselves
// again, and tests start it to kill it.
const asCommand = "TEST_AS_RINGFENCE_COMMAND"

func TestMain(m *testing.M) {
	if os.Getenv(asCommand) != "" {
		main()
		return
	}
	os.Setenv(asCommand, "1")
	os.Unsetenv("RINGFENCE_LONG") // how long tests take is no setting of serve
	os.Unsetenv(dataDirVar)
	home, err := os.MkdirTemp("", "ringfence-test-") // the contexts of whoever runs the tests are none of theirs
	if err != nil {
		panic(err)
	}
	os.Setenv("XDG_CONFIG_HOME", home)
	code := m.Run()
	_ = os.RemoveAll(home)
	os.Exit(code)
}

// ran is what one command line did.
type ran struct {
	code     int
	out, err string
}

// ringfence runs a command line in this process.
func ringfence(t *testing.T, in string, args ...string) ran {
	t.Helper()
	var out bytes.Buffer
	var errw sharedBuffer // a child's standard error goes there as well
	code := run(t.Context(), args, strings.NewReader(in), &out, &errw)
	return ran{code, out.String(), errw.String()}
}

// sharedBuffer is a buffer that several goroutines write to.
type sharedBuffer struct {
	mu sync.Mutex // guards b
	b  bytes.Buffer
}

func (s *sharedBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *sharedBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// ok runs a command line that must succeed.
func ok(t *testing.T, in string, args ...string) string {
	t.Helper()
	r := ringfence(t, in, args...)
	if r.code != 0 {
		t.Fatalf("ringfence %s: exit %d\n%s%s", strings.Join(args, " "), r.code, r.out, r.err)
	}
	return r.out
}

// process is the command in a process of its own.
func process(ctx context.Context, args ...string) *exec.Cmd {
	self, err := os.Executable()
	if err != nil {
		panic(err)
	}
	cmd := exec.CommandContext(ctx, self, args...)
	cmd.Env = append(os.Environ(), asCommand+"=1")
	return cmd
}

func parse[T any](t *testing.T, text string) (v T) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("not JSON: %v\n%s", err, text)
	}
	return v
}

// lines makes n numbered lines.
func lines(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "user%d did thing number %d\n", i%37, i)
	}
	return b.String()
}

// segments lists the segment files of a data directory.
func segments(t *testing.T, dir string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "log", "topics", "*", "*.seg"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no segment files below %s (%v)", dir, err)
	}
	return files
}

// filled is a data directory with one topic "t" of n lines.
func filled(t *testing.T, n int) (dir, text string) {
	t.Helper()
	dir, text = filepath.Join(t.TempDir(), "data"), lines(n)
	ok(t, text, "produce", "t", "--create", "--data-dir", dir, "--key-regexp", `^\w+`)
	return dir, text
}
