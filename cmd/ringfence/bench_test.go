package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ringfence/ringfence/bench"
)

func TestBenchAppend(t *testing.T) {
	dir := t.TempDir()
	type report struct {
		Result struct {
			Records  int64   `json:"records"`
			Rate     float64 `json:"records_per_s"`
			ReadBack string  `json:"read_back"`
		} `json:"result"`
		Floor *bench.Floor `json:"floor"`
		Ratio *float64     `json:"ratio"`
	}
	t.Setenv("PATH", t.TempDir()) // without fio: the plain loop is enough here
	r := parse[report](t, ok(t, "", "bench", "append", "--seconds", "0.2", "--retain", "0", "--floor", "--floor-size", "16MiB", "--dir", dir, "--json"))
	if r.Result.Records == 0 || r.Result.Rate <= 0 || r.Result.ReadBack == "" || r.Floor == nil || r.Ratio == nil || !strings.HasPrefix(r.Floor.Tool, "plain Go") {
		t.Errorf("report %+v", r)
	}
	out := ok(t, "", "bench", "append", "--seconds", "0.1", "--retain", "0", "--batch", "0", "--workers", "4", "--dir", dir, "--compress", "s2")
	for _, want := range []string{"stable storage", "records/s", "p99.9", "bytes of file", "s/GiB", "pages", "errors", "read back"} {
		if !strings.Contains(out, want) {
			t.Errorf("the report does not mention %q:\n%s", want, out)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	for _, args := range [][]string{{"--record", "8"}, {"--compress", "lzma"}, {"--workers", "-1"}, {"--batch", "512"}, {"--suite", "--rows", "nonsense"}} {
		if r := ringfence(t, "", append([]string{"bench", "append", "--dir", dir}, args...)...); r.code == 0 || r.err == "" {
			t.Errorf("bench append %v: %+v", args, r)
		}
	}
	if r := ringfence(t, "", "bench", "append", "--seconds", "0.1", "--retain", "2MiB", "--segment", "1MiB", "--batch", "64KiB", "--dir", dir); r.code != exitOK || !strings.Contains(r.err, "first 6.0 MiB are written that do not count") {
		t.Errorf("with files that are written again: %+v", r)
	}
	// A rate that cannot be reached is no result.
	if r := ringfence(t, "", "bench", "append", "--seconds", "0.2", "--retain", "0", "--dir", dir, "--rate", "1e6"); r.code != exitUnproven || !strings.Contains(r.out, "NO RESULT") {
		t.Errorf("an impossible rate: %+v", r)
	}
}

func TestBenchSuite(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	args := []string{"bench", "append", "--suite", "--runs", "1", "--seconds", "0.1", "--rows", "fresh,fence", "--floor-size", "16MiB", "--dir", t.TempDir()}
	tab := parse[bench.Table](t, ok(t, "", append(args, "--json")...))
	if len(tab.Outcomes) != 2 || tab.Outcomes[0].Median.Ratio <= 0 || tab.Outcomes[1].Median.Engine <= 0 || tab.Costs.Sum() <= 0 {
		t.Errorf("table %+v", tab)
	}
	if out := ok(t, "", append(args, "--markdown")...); strings.Count(out, "\n| ") != 3 {
		t.Errorf("as Markdown: %s", out)
	}
}

// The row that kills a process does so, on a small scale.
func TestBenchFillAndKill(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	a := &app{engine: "auto"}
	if err := a.fillAndKill(t.Context(), dir, bench.Reopen{Sealed: 3, SealedBytes: 1 << 20, Open: 4, OpenBytes: 1 << 20}); err != nil {
		t.Fatal(err)
	}
	list := parse[[]topicReport](t, ok(t, "", "topic", "ls", "--data-dir", dir, "--json"))
	if len(list) != 2 || list[0].Name != "open" || list[0].Ranges != 4 || list[0].Bytes < 4<<20 || list[1].Segments < 3 {
		t.Errorf("after the kill: %+v", list)
	}
}

// A directory that is not there has a code of its own, and what to do about it.
func TestMeasureNowhere(t *testing.T) {
	nowhere := filepath.Join(t.TempDir(), "none")
	fails(t, exitNotFound, nowhere, "", "bench", "append", "--dir", nowhere)
	fails(t, exitNotFound, "mkdir", "", "doctor", "--data-dir", nowhere)
}

func TestDoctor(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	r := parse[doctorReport](t, ok(t, "", "doctor", "--seconds", "0", "--json"))
	found := map[string]finding{}
	for _, f := range r.Findings {
		found[f.What] = f
	}
	for _, want := range []string{"io_uring", "locked memory", "2 MiB pages", "direct I/O", "free space", "the engine uses"} {
		if found[want].Found == "" {
			t.Errorf("doctor says nothing about %q: %+v", want, r.Findings)
		}
	}
	if pool := parse[doctorReport](t, ok(t, "", "doctor", "--seconds", "0", "--io", "pool", "--json")); !strings.Contains(pool.Findings[len(pool.Findings)-1].Found, "pool") {
		t.Errorf("with --io pool: %+v", pool.Findings)
	}
	t.Setenv("PATH", t.TempDir())
	out := ok(t, "", "doctor", "--seconds", "0.05")
	for _, want := range []string{"a durable 4 KiB write", "expected rate", "recycled segments", "plain Go loop", "dsync 1 MiB x 4"} {
		if !strings.Contains(out, want) {
			t.Errorf("doctor does not mention %q:\n%s", want, out)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("doctor left %v, %v", left, err)
	}
}

// A container's limit below what the engine needs is named (scenario D09).
func TestD09MemoryLimit(t *testing.T) {
	root := t.TempDir()
	group := filepath.Join(root, "system", "box")
	if err := os.MkdirAll(group, 0o755); err != nil {
		t.Fatal(err)
	}
	self := filepath.Join(root, "self")
	write := func(file, text string) {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write(self, "0::/system/box\n")
	if n, ok := memoryLimit(self, root); ok {
		t.Errorf("no limit anywhere, but %d", n)
	}
	write(filepath.Join(group, "memory.max"), "max\n")
	write(filepath.Join(root, "system", "memory.max"), "268435456\n")
	if n, ok := memoryLimit(self, root); !ok || n != 256<<20 {
		t.Errorf("a limit further up: %d, %v", n, ok)
	}
	write(filepath.Join(group, "memory.max"), "134217728\n")
	if n, ok := memoryLimit(self, root); !ok || n != 128<<20 {
		t.Errorf("the smallest counts: %d, %v", n, ok)
	}
	if _, ok := memoryLimit(filepath.Join(root, "none"), root); ok {
		t.Error("a limit without a control group")
	}
}

func TestMeasuringRefuses(t *testing.T) {
	for _, args := range []string{
		"bench append --workers 0", "bench append --seconds 0", "bench append --seconds -1", "bench append --seconds NaN", "bench append --rows 1m",
		"bench append --markdown", "bench append --runs 3", "bench append --suite --rows nope", "bench append --suite --runs 0", "bench append --in-flight 0", "bench append --ahead -1",
		"bench append --batch 9MiB", "bench append --batch 1KiB", "bench append --record 8", "bench append --retain 1MiB", "bench append --rate -1",
		"doctor --seconds -1", "doctor --seconds NaN",
	} {
		dir := t.TempDir()
		r := ringfence(t, "", append(strings.Fields(args), "--data-dir", dir)...)
		if files, _ := os.ReadDir(dir); r.code != exitUsage || r.err == "" || len(files) > 0 {
			t.Errorf("%s: exit %d, %d files: %s", args, r.code, len(files), r.err)
		}
	}
}
