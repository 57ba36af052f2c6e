package cmd_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The README's program is compiled and run as it stands there.
func TestReadmeExampleRuns(t *testing.T) {
	_, code := readmeExample(t)
	dir := t.TempDir()
	file := filepath.Join(dir, "main.go")
	if err := os.WriteFile(file, []byte(code), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "go", "run", file, filepath.Join(dir, "data"))
	cmd.Dir = ".."
	out, err := cmd.CombinedOutput()
	if string(out) != exampleSays || err != nil {
		t.Errorf("the example says %q (%v), want %q", out, err, exampleSays)
	}
	if n := strings.Count(code, "\n"); n > 50 {
		t.Errorf("the example has %d lines; keep it short", n)
	}
}

const exampleSays = "durable at offset 0\ncustomer-7: two pears\n"

// A program outside of the repository is made with the commands that the README gives,
// from a shell, with nothing but what this repository needs itself.
func TestReadmeExampleElsewhere(t *testing.T) {
	readme, code := readmeExample(t)
	_, rest, ok := strings.Cut(readme, "is built against a checkout of it:\n\n")
	commands, _, ok2 := strings.Cut(rest, "\n\n")
	if !ok || !ok2 || strings.Count(commands, "\n") != 4 || strings.Count(commands, checkoutInReadme) != 1 {
		t.Fatalf("README.md gives no commands for a program elsewhere: %q", commands)
	}
	checkout, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := errors.Join(os.Mkdir(filepath.Join(dir, "hello"), 0o755), os.WriteFile(filepath.Join(dir, "hello", "main.go"), []byte(code), 0o644)); err != nil {
		t.Fatal(err)
	}
	commands = strings.Replace(commands, "mkdir hello", "mkdir -p hello", 1)
	cmd := exec.CommandContext(t.Context(), "sh", "-ec", strings.Replace(commands, checkoutInReadme, checkout, 1))
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOFLAGS=", "GOWORK=off", "GOPROXY=off", "GOSUMDB=off") // its modules are here
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.Output()
	if string(out) != exampleSays || err != nil {
		t.Errorf("the example says %q (%v), want %q\n%s", out, err, exampleSays, said.String())
	}
}

const checkoutInReadme = "/path/to/the/checkout"

// readmeExample is the README, and the program in it.
func readmeExample(t *testing.T) (readme, code string) {
	t.Helper()
	b, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	readme = string(b)
	_, code, ok := strings.Cut(readme, "```go\n")
	code, _, ok2 := strings.Cut(code, "```\n")
	if !ok || !ok2 {
		t.Fatal("README.md has no Go example")
	}
	return readme, code
}
