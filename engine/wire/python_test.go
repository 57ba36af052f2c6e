package wire

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ringfence/ringfence/segfile/record"
)

// A client that was written from the package's page, with flatbuffers' own code for
// Python, reads every vector, and what it writes is read here.
func TestPythonClient(t *testing.T) {
	python := findPython(t)
	var all []vector
	if err := json.Unmarshal(runPython(t, python, "vectors"), &all); err != nil {
		t.Fatal(err)
	}
	if want := buildVectors(t); len(all) != len(want) {
		t.Fatalf("it writes %d vectors, want %d", len(all), len(want))
	}
	for i, want := range buildVectors(t) {
		frame, err := hex.DecodeString(all[i].Frame)
		if err != nil {
			t.Fatal(err)
		}
		h, err := ParseHead(frame, MaxFirst)
		if err != nil || h.Key != want.Key || h.Flags != want.Flags || h.ID != want.ID || int(h.Length) != len(frame)-HeadSize {
			t.Fatalf("%s: head reads %+v: %v", want.Name, h, err)
		}
		m, err := decode(h.Key, h.Flags, frame[HeadSize:])
		if err != nil {
			t.Fatalf("%s: %v", want.Name, err)
		}
		if got := meaning(t, m); !bytes.Equal(got, want.Message) {
			t.Errorf("%s: reads %s\nwant %s", want.Name, got, want.Message)
		}
	}

	frame, err := hex.DecodeString(strings.TrimSpace(string(runPython(t, python, "frame"))))
	if err != nil {
		t.Fatal(err)
	}
	got, err := record.Verify(frame, 0, nil)
	if err != nil {
		t.Fatal(err)
	}
	want, err := record.Verify(recordFrame(t), 0, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got.Head.FirstSeq != want.Head.FirstSeq || got.Head.Producer != want.Head.Producer || got.Len() != want.Len() {
		t.Errorf("the record frame has head %+v, want %+v", got.Head, want.Head)
	}
	for i := range min(got.Len(), want.Len()) {
		if a, b := meaning(t, got.Record(i)), meaning(t, want.Record(i)); !bytes.Equal(a, b) {
			t.Errorf("record %d is %s, want %s", i, a, b)
		}
	}
}

// findPython answers an interpreter that can run the client: the one that .ci/run set
// up, or the system's.
func findPython(t *testing.T) string {
	t.Helper()
	own, err := filepath.Abs("../../.bin/python/bin/python3")
	if err != nil {
		t.Fatal(err)
	}
	reason := "there is no python3"
	for _, name := range []string{own, "python3"} {
		path, err := exec.LookPath(name)
		if err != nil {
			continue
		}
		const needs = "import sys, flatbuffers, xxhash; sys.exit(sys.version_info < (3, 10) and 'python is older than 3.10')"
		out, err := exec.CommandContext(t.Context(), path, "-c", needs).CombinedOutput()
		if err == nil {
			return path
		}
		lines := strings.Split(strings.TrimSpace(string(out)), "\n")
		reason = lines[len(lines)-1]
	}
	t.Skip("the client in Python cannot run: " + reason)
	return ""
}

func runPython(t *testing.T, python, command string) []byte {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), python, "testdata/client.py", command).Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			t.Fatalf("client.py %s: %v\n%s", command, err, exit.Stderr)
		}
		t.Fatal(err)
	}
	return out
}
