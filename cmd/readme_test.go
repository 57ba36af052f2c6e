package cmd_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The README's program is compiled and run as it stands there.
func TestReadmeExampleRuns(t *testing.T) {
	readme, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, code, ok := strings.Cut(string(readme), "```go\n")
	code, _, ok2 := strings.Cut(code, "```\n")
	if !ok || !ok2 {
		t.Fatal("README.md has no Go example")
	}
	dir := t.TempDir()
	file := filepath.Join(dir, "main.go")
	if err := os.WriteFile(file, []byte(code), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "go", "run", file, filepath.Join(dir, "data"))
	cmd.Dir = ".."
	out, err := cmd.CombinedOutput()
	if want := "durable at offset 0\ncustomer-7: two pears\n"; err != nil || string(out) != want {
		t.Errorf("the example says %q (%v), want %q", out, err, want)
	}
	if n := strings.Count(code, "\n"); n > 50 {
		t.Errorf("the example has %d lines; keep it short", n)
	}
}
