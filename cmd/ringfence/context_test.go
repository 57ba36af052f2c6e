package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A context is what commands are about when nothing else says it.
func TestContexts(t *testing.T) {
	home := t.TempDir()
	t.Setenv("XDG_CONFIG_HOME", home)
	unsetenv(t, dataDirVar)
	unsetenv(t, serverVar)
	unsetenv(t, "RINGFENCE_CONTEXT")
	s := serveIt(t, "--data-dir", filepath.Join(t.TempDir(), "d"))
	addr := s.address(t)
	do := func(want int, args ...string) string {
		t.Helper()
		code, out, errText := command(t, "", args...)
		if code != want {
			t.Fatalf("%v: %d, want %d\n%s%s", args, code, want, out, errText)
		}
		return out + errText
	}
	if out := do(exitUsage, "topic", "ls"); !strings.Contains(out, "which data directory?") {
		t.Errorf("without anything: %s", out)
	}
	do(exitUsage, "context", "add", "here")
	do(exitOK, "context", "add", "here", "--server", addr)
	do(exitOK, "context", "add", "gone", "--server", "127.0.0.1:1", "--client-key", "")
	do(exitOK, "context", "add", "here", "--server", addr) // as it is
	if out := do(exitConflict, "context", "add", "here", "--server", "127.0.0.1:1"); !strings.Contains(out, addr) || !strings.Contains(out, "--force") {
		t.Errorf("a name that is taken: %s", out)
	}
	do(exitOK, "context", "add", "here", "--server", "127.0.0.1:1", "--force")
	do(exitOK, "context", "add", "here", "--server", addr, "--force")
	do(exitOK, "topic", "create", "logs")
	if out := do(exitOK, "context", "ls"); !strings.Contains(out, "*  here") {
		t.Errorf("listed: %s", out)
	}
	if out := do(exitOK, "context", "show"); !strings.HasPrefix(out, "context here\n") || !strings.Contains(out, addr) {
		t.Errorf("the one in use: %s", out)
	}
	if out := do(exitOK, "context", "describe", "gone", "--json"); !strings.Contains(out, `"in_use": false`) || !strings.Contains(out, `"server": "127.0.0.1:1"`) {
		t.Errorf("another one: %s", out)
	}
	do(exitNotFound, "context", "describe", "nowhere")
	do(exitOK, "context", "use")
	do(exitNotFound, "context", "describe")
	do(exitOK, "context", "use", "gone")
	do(exitUnreachable, "topic", "ls")
	do(exitOK, "topic", "ls", "--context", "here")
	t.Setenv("RINGFENCE_CONTEXT", "here")
	do(exitOK, "topic", "ls")
	os.Unsetenv("RINGFENCE_CONTEXT")
	do(exitNotFound, "topic", "ls", "--context", "nowhere")
	do(exitNotFound, "context", "use", "nowhere")
	do(exitNotFound, "context", "delete", "nowhere")
	do(exitOK, "topic", "ls", "--server", addr) // the command line wins
	t.Setenv(serverVar, addr)                   // and so does the environment
	do(exitOK, "topic", "ls")
	os.Unsetenv(serverVar)
	do(exitOK, "context", "delete", "gone")
	do(exitUsage, "topic", "ls")
	do(exitUsage, "context", "add", "x", "--server", addr, "--server-ca", "/does/not/exist")
	if err := os.WriteFile(filepath.Join(home, "ringfence", "contexts.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if out := do(exitFailed, "context", "ls"); !strings.Contains(out, "contexts.json") {
		t.Errorf("a file that is damaged: %s", out)
	}
	do(exitFailed, "topic", "ls", "--context", "here")
	do(exitUsage, "topic", "ls")
}

// unsetenv removes a variable for the test.
func unsetenv(t *testing.T, name string) {
	t.Helper()
	t.Setenv(name, "")
	os.Unsetenv(name)
}

func TestCursorInspect(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "d")
	for _, line := range [][]string{
		{"topic", "create", "logs", "--data-dir", dir}, {"produce", "logs", "--data-dir", dir},
	} {
		if code, out, errText := command(t, "a\nb\nc\n", line...); code != exitOK {
			t.Fatal(out, errText)
		}
	}
	_, _, errText := command(t, "", "consume", "logs", "--data-dir", dir, "--max", "2")
	_, cursor, ok := strings.Cut(strings.TrimSpace(errText), "--from ")
	if !ok {
		t.Fatal(errText)
	}
	code, out, errText := command(t, "", "cursor", "inspect", cursor)
	if code != exitOK || !strings.Contains(out, "of topic ") || !strings.Contains(out, "0      2") {
		t.Errorf("%d %s%s", code, out, errText)
	}
	if code, _, errText := command(t, "", "cursor", "inspect", cursor[1:]); code != exitUsage || errText == "" {
		t.Errorf("half a cursor: %d %s", code, errText)
	}
}
