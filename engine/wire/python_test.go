package wire

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/ringfence/ringfence/segfile/record"
)

// A client that was written from the package's page, with flatbuffers' own code for
// Python, reads every vector, and what it writes is read here.
func TestPythonClient(t *testing.T) {
	var all []vector
	if err := json.Unmarshal(runPython(t, "vectors"), &all); err != nil {
		t.Fatal(err)
	}
	vectors := buildVectors(t)
	if len(all) != len(vectors) {
		t.Fatalf("it writes %d vectors, want %d", len(all), len(vectors))
	}
	for i, want := range vectors {
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

	frame, err := hex.DecodeString(strings.TrimSpace(string(runPython(t, "frame"))))
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

// runPython answers what the client prints. The interpreter is the one that .ci/run set
// up, or else the system's.
func runPython(t *testing.T, command string) []byte {
	t.Helper()
	python := "../../.bin/python/bin/python3"
	if _, err := os.Stat(python); err != nil {
		if python, err = exec.LookPath("python3"); err != nil {
			t.Skip("the client in Python cannot run: there is no python3")
		}
	}
	out, err := exec.CommandContext(t.Context(), python, "testdata/client.py", command).Output()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit) && exit.ExitCode() == 77:
		t.Skipf("the client in Python cannot run: %s", exit.Stderr)
	case exit != nil:
		t.Fatalf("client.py %s: %v\n%s", command, err, exit.Stderr)
	case err != nil:
		t.Fatal(err)
	}
	return out
}
