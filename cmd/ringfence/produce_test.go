package main

import (
	"bufio"
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// realLogs are files of real log lines, where this machine has them.
func realLogs(t *testing.T) []string {
	t.Helper()
	dir := os.Getenv("RINGFENCE_LOGS")
	if dir == "" {
		dir = filepath.Join("..", "..", "..", "shared", "data")
	}
	files, _ := filepath.Glob(filepath.Join(dir, "*.log"))
	if len(files) == 0 {
		t.Skip("no real log files here; RINGFENCE_LOGS names a directory of *.log")
	}
	return files
}

// What goes in comes out, each line once, whatever writes to the disk and however
// it is compressed.
func TestRealLogsComeBack(t *testing.T) {
	for _, file := range realLogs(t) {
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, args := range [][]string{nil, {"--io", "pool"}, {"--compress", "zstd"}, {"--compress", "s2", "--batch", "16KiB"}} {
			t.Run(filepath.Base(file)+" "+strings.Join(args, " "), func(t *testing.T) {
				dir := filepath.Join(t.TempDir(), "data")
				ok(t, "", append([]string{"produce", "logs", "--create", "--data-dir", dir, "--file", file}, args...)...)
				got := ok(t, "", "consume", "logs", "--from", "start", "--data-dir", dir)
				if strings.TrimSuffix(got, "\n") != strings.TrimSuffix(string(want), "\n") {
					t.Errorf("%d bytes came back of %d", len(got), len(want))
				}
			})
		}
	}
}

// A producer is killed while it stores; run again under its id, everything is
// there once.
func TestKilledProducerRunsAgain(t *testing.T) {
	text := lines(300_000)
	want := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	slices.Sort(want)
	file := filepath.Join(t.TempDir(), "lines")
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, io := range []string{"auto", "pool"} {
		t.Run(io, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "data")
			args := []string{"produce", "logs", "--create", "--data-dir", dir, "--io", io, "--file", file, "--producer-id", "7", "--batch", "8KiB", "--key-regexp", `\d+$`}
			killed := false
			for try := 0; try < 20 && !killed; try++ {
				killed = killDuring(t, dir, args)
			}
			if !killed {
				t.Fatal("the producer was never killed in the middle: this test would prove nothing")
			}
			stored := strings.Count(ok(t, "", "consume", "logs", "--data-dir", dir), "\n")
			if stored == 0 || stored >= len(want) {
				t.Fatalf("%d of %d records after the kill: it was not in the middle", stored, len(want))
			}
			r := parse[produceReport](t, ok(t, "", append(args, "--json")...))
			if r.Records != int64(len(want)) || r.Duplicates == 0 {
				t.Errorf("the second run: %+v; want all %d acknowledged, some recognised", r, len(want))
			}
			got := strings.Split(strings.TrimSuffix(ok(t, "", "consume", "logs", "--data-dir", dir), "\n"), "\n")
			slices.Sort(got)
			if !slices.Equal(got, want) {
				t.Errorf("%d records after the second run, want %d, each once", len(got), len(want))
			}
			for _, f := range segments(t, dir) {
				ok(t, "", "segment", "verify", f)
			}
		})
	}
}

// killDuring starts a producer in an empty directory and kills it as soon as
// segment files hold something. It answers whether it came in time.
func killDuring(t *testing.T, dir string, args []string) bool {
	t.Helper()
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	cmd := process(t.Context(), args...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if dataBlocks(dir) > 300<<10 {
			break
		}
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Logf("it had ended: %v", err)
	}
	err := cmd.Wait()
	return err != nil && !strings.Contains(out.String(), "on stable storage")
}

// dataBlocks is the size of a directory's segment files.
func dataBlocks(dir string) (n int64) {
	files, _ := filepath.Glob(filepath.Join(dir, "log", "topics", "*", "*.seg"))
	for _, f := range files {
		if st, err := os.Stat(f); err == nil {
			n += st.Size()
		}
	}
	return n
}

func TestProduceReports(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	ok(t, "", "topic", "create", "t", "--data-dir", dir)
	r := parse[produceReport](t, ok(t, "a b\n\nc", "produce", "t", "--data-dir", dir, "--key-regexp", `^\w`, "--header", "from=test", "--json"))
	if r.Records != 3 || r.Bytes != 6 || r.Duplicates != 0 || r.Producer == 0 {
		t.Errorf("report %+v", r)
	}
	if text := ok(t, "x\n", "produce", "t", "--data-dir", dir); !strings.Contains(text, "1 record in") || !strings.Contains(text, "stable storage") {
		t.Errorf("said %q", text)
	}
	ok(t, "", "produce", "t", "--data-dir", dir) // nothing is fine
	ok(t, "once\n", "produce", "t", "--data-dir", dir, "--producer-id", "9")
	ok(t, "once\n", "produce", "t", "--data-dir", dir, "--producer-id", "9")
	if n := len(segments(t, dir)); n != 3 {
		t.Errorf("%d segment files of three runs that stored something, and two that did not", n)
	}

	out := ok(t, "", "consume", "t", "--data-dir", dir, "--format", "json")
	first := parse[recordJSON](t, strings.SplitN(out, "\n", 2)[0])
	if *first.Key != "a" || *first.Value != "a b" || first.Headers[0].Name != "from" || *first.Headers[0].Value != "test" {
		t.Errorf("record %+v", first)
	}
}

// Input that is taken for a repeat is warned about.
func TestProduceWarnsOfRepeats(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	for _, tt := range []struct{ in, says string }{
		{"one\n", ""},
		{"other\n", "sequence numbers 1 to 1 of producer 7 were stored before: these lines were NOT stored again; use another --producer-id"},
		{"other\nand more\n", "1 of the first 2 sequence numbers of producer 7 were stored before: those lines were NOT stored again, the other 1 were"},
	} {
		r := ringfence(t, tt.in, "produce", "t", "--create", "--data-dir", dir, "--producer-id", "7")
		if r.code != 0 || !strings.Contains(r.err, tt.says) || strings.Contains(r.err, "NOT stored") && tt.says == "" {
			t.Errorf("%q: %+v, want %q", tt.in, r, tt.says)
		}
	}
	if got := ok(t, "", "consume", "t", "--data-dir", dir); got != "one\nand more\n" {
		t.Errorf("stored %q", got)
	}
}

func TestProduceRefuses(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	ok(t, "", "topic", "create", "t", "--data-dir", dir)
	long := strings.Repeat("x", 20<<10)
	for cmd, rest := range map[string]string{"produce": ", or give --create", "consume": ""} {
		want := `ringfence: there is no topic "nope": create it with 'ringfence topic create nope'` + rest + "\n"
		if r := ringfence(t, "", cmd, "nope", "--data-dir", dir); r.err != want {
			t.Errorf("%s said %q, want %q", cmd, r.err, want)
		}
	}
	for _, tt := range []struct {
		name, in string
		args     []string
		code     int
		says     string
	}{
		{"missing topic", "a\n", []string{"produce", "nope"}, exitNotFound, "ringfence topic create nope"},
		{"missing file", "", []string{"produce", "t", "--file", dir + "/none"}, exitNotFound, "no such file"},
		{"a directory", "", []string{"produce", "t", "--file", dir}, exitUsage, "is a directory"},
		{"codec", "", []string{"produce", "t", "--compress", "lzma"}, exitUsage, "none, s2 or zstd"},
		{"line too long", "ok\n" + long, []string{"produce", "t", "--batch", "16KiB"}, exitFailed, "line 2 is longer than 16.0 KiB"},
		{"record too large", "ok\n" + long[:16<<10], []string{"produce", "t", "--batch", "16KiB"}, exitFailed, "line 2"},
		{"batch too small", "", []string{"produce", "t", "--batch", "1"}, exitUsage, "4.0 KiB to 8.0 MiB"},
		{"no batch", "", []string{"produce", "t", "--batch", "0"}, exitUsage, "4.0 KiB to 8.0 MiB"},
		{"batch too large", "", []string{"produce", "t", "--batch", "9MiB"}, exitUsage, "4.0 KiB to 8.0 MiB"},
		{"linger", "", []string{"produce", "new", "--create", "--linger", "-1s"}, exitUsage, "--linger"},
		{"nothing was created", "", []string{"produce", "new"}, exitNotFound, "no topic"},
		{"no topic", "", []string{"produce"}, exitUsage, "Usage:"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := ringfence(t, tt.in, append(tt.args, "--data-dir", dir)...)
			if r.code != tt.code || !strings.Contains(r.err, tt.says) {
				t.Errorf("exit %d, want %d; said %q, want %q", r.code, tt.code, r.err, tt.says)
			}
		})
	}
}

// A second process is refused as long as the first has the directory.
func TestDirectoryIsLocked(t *testing.T) {
	dir, _ := filled(t, 1)
	first := process(t.Context(), "consume", "t", "--follow", "--data-dir", dir)
	out, err := first.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := first.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil { // it has the directory open now
		t.Fatal(err)
	}
	r := ringfence(t, "", "topic", "ls", "--data-dir", dir)
	if r.code != exitLocked || !strings.Contains(r.err, "stop that process") {
		t.Errorf("a second process got exit %d: %s", r.code, r.err)
	}
	if err := first.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := first.Wait(); err != nil {
		t.Errorf("an interrupted follower ended with %v", err)
	}
	ok(t, "", "topic", "ls", "--data-dir", dir)
}

// The lines that are repeats are counted exactly, on a data directory and through a
// server, also where the borders of batches are others than before.
func TestRepeatsReported(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	served := filepath.Join(t.TempDir(), "served")
	addr := serveIt(t, "--data-dir", served).address(t)
	text := lines(3000)
	lineEnd := func(n int) int { return len(lines(n)) }
	for way, where := range map[string][]string{"linked": {"--data-dir", dir}, "server": {"--server", addr}} {
		before := 0
		for i, upTo := range []int{1000, 1000, 1777, 3000, 2500} {
			batch := []string{"4KiB", "8KiB", "5KiB", "64KiB", "6KiB"}[i]
			args := append([]string{"produce", "t", "--create", "--producer-id", "7", "--batch", batch, "--json"}, where...)
			r := parse[produceReport](t, ok(t, text[:lineEnd(upTo)], args...))
			if want := min(before, upTo); r.Records != int64(upTo) || r.Duplicates != int64(want) {
				t.Errorf("%s, run %d: %d records of which %d are repeats, want %d of which %d", way, i, r.Records, r.Duplicates, upTo, want)
			}
			before = max(before, upTo)
			if i == 1 {
				ok(t, "", append([]string{"topic", "split", "t", "0"}, where...)...)
			}
		}
		if n := strings.Count(ok(t, "", append([]string{"consume", "t", "--from", "start"}, where...)...), "\n"); n != 3000 {
			t.Errorf("%s: %d lines, want 3000", way, n)
		}
	}
}
