package main

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ringfence/ringfence/bench"
	"github.com/ringfence/ringfence/segfile/disk"
)

// A report that cannot be written is a failure, whichever command made it and however.
func TestLostOutputFails(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "d")
	ok(t, "a\n", "produce", "t", "--create", "--data-dir", dir)
	ok(t, "", "consume", "t", "--group", "g", "--data-dir", dir)
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip(err)
	}
	defer full.Close()
	for _, line := range []string{
		"topic ls", "topic ls --json", "topic describe t", "topic policy ls", "group list t", "group describe t g", "user ls", "consume t",
		"segment verify", "version", "version --json", "--version", "help", "help exit-codes", "topic", "topic ls --help", "completion bash",
	} {
		args := strings.Fields(line)
		if !strings.HasPrefix(line, "version") {
			args = append(args, "--data-dir", dir)
		}
		var said bytes.Buffer
		if code := run(t.Context(), args, strings.NewReader(""), full, &said); code != exitFailed || !strings.Contains(said.String(), "no space left") {
			t.Errorf("%s: exit %d: %s", line, code, &said)
		}
	}
	// What the command itself has to say goes before.
	if code := run(t.Context(), []string{"topic", "describe", "u", "--data-dir", dir}, strings.NewReader(""), full, new(bytes.Buffer)); code != exitNotFound {
		t.Errorf("no such topic: exit %d", code)
	}
}

// Help about what there is not, and arguments of a command that only has others, are
// mistakes.
func TestMistakesInWhatCobraMakes(t *testing.T) {
	for _, line := range []string{"help nonsense", "help topic nonsense", "help exit-codes now", "completion tcsh", "completion bash now", "topic nonsense"} {
		if r := ringfence(t, "", strings.Fields(line)...); r.code != exitUsage || r.out != "" {
			t.Errorf("%s: exit %d: %s%s", line, r.code, r.out, r.err)
		}
	}
	for _, line := range []string{"help", "help topic", "help topic create", "help exit-codes", "completion", "completion bash", "topic"} {
		if out := ok(t, "", strings.Fields(line)...); out == "" {
			t.Errorf("%s: nothing", line)
		}
	}
}

// The range that keeps two from being merged is the one that is named.
func TestMergeNamesTheSealedRange(t *testing.T) {
	t.Setenv(dataDirVar, filepath.Join(t.TempDir(), "d"))
	ok(t, "", "topic", "create", "t")
	ok(t, "", "topic", "split", "t", "0")
	ok(t, "", "topic", "split", "t", "1")
	for _, order := range [][]string{{"2", "1"}, {"1", "2"}} {
		r := ringfence(t, "", "topic", "merge", "t", order[0], order[1])
		if r.code != exitConflict || !strings.Contains(r.err, "range 1:") || strings.Contains(r.err, "range 2") || strings.Contains(r.err, "r2") {
			t.Errorf("merge %v: exit %d: %s", order, r.code, r.err)
		}
	}
}

// What is the end is settled when a group is made, not when something is read.
func TestGroupFromTheEndStaysThere(t *testing.T) {
	t.Setenv(dataDirVar, filepath.Join(t.TempDir(), "d"))
	ok(t, "old\n", "produce", "t", "--create")
	if out := ok(t, "", "consume", "t", "--group", "g", "--from", "end"); out != "" {
		t.Errorf("printed %q", out)
	}
	ok(t, "new\n", "produce", "t")
	if out := ok(t, "", "consume", "t", "--group", "g"); out != "new\n" {
		t.Errorf("printed %q", out)
	}
	if out := ok(t, "", "consume", "t", "--group", "g", "--from", "start", "--max", "1"); out != "old\n" {
		t.Errorf("printed %q", out)
	}
	if out := ok(t, "", "consume", "t", "--group", "g"); out != "" {
		t.Errorf("a run with --from took the group back: %q", out)
	}
}

// A file system that has no room for a measurement leaves the rest of what doctor says.
func TestDoctorWithoutRoom(t *testing.T) {
	var r doctorReport
	err := r.measured(nil, errors.Join(bench.ErrNoRoom, errors.New("9 MiB free")))
	if err != nil || len(r.Findings) != 1 || !strings.Contains(r.Findings[0].Advice, "9 MiB free") {
		t.Errorf("%v: %+v", err, r.Findings)
	}
	if err := r.measured(nil, errors.New("broken")); err == nil {
		t.Error("another failure is none")
	}
}

// What the engine has to do without is nothing that is all right.
func TestDoctorOnBuffersThatAreNotRegistered(t *testing.T) {
	info := disk.Info{Engine: "io_uring", Direct: true, Reason: "register buffers: cannot allocate memory"}
	if f := engineFinding(info, "auto"); !strings.Contains(f.Advice, "memlock") {
		t.Errorf("%+v", f)
	}
	if f := engineFinding(disk.Info{Engine: "io_uring", Direct: true, Registered: true}, "auto"); f.Advice != "" {
		t.Errorf("%+v", f)
	}
}

// The file of settings can be named in the environment, as they can.
func TestConfigInTheEnvironment(t *testing.T) {
	name := filepath.Join(t.TempDir(), "settings")
	write(t, name, "nonsense = 1\n")
	t.Setenv(configVar, name)
	dir := filepath.Join(t.TempDir(), "d")
	fails(t, exitUsage, name+`:1: there is no setting "nonsense"`, "", "serve", "--data-dir", dir)
	other := filepath.Join(t.TempDir(), "other")
	write(t, other, "listen = nonsense\n")
	fails(t, exitUsage, `--listen is "nonsense"`, "", "serve", "--data-dir", dir, "--config", other)
}
