package main

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/ringfence/ringfence/engine/client"
)

// command runs one line and returns what it printed.
func command(t *testing.T, in string, args ...string) (code int, out, errText string) {
	t.Helper()
	var o, e bytes.Buffer
	code = run(t.Context(), args, strings.NewReader(in), &o, &e)
	return code, o.String(), e.String()
}

// What works on a data directory works the same through a server, of which several
// commands can use one at a time.
func TestCommandsOverServer(t *testing.T) {
	dir := t.TempDir()
	cert, key, _ := certificates(t, dir, "localhost")
	for name, way := range map[string]struct {
		serve []string
		reach func(s *served) []string
	}{
		"tcp": {nil, func(s *served) []string { return []string{"--server", s.address(t)} }},
		"unix": {[]string{"--listen", "", "--socket", filepath.Join(dir, "s")}, func(s *served) []string {
			return []string{"--server", "unix:" + s.address(t)}
		}},
		"tls": {[]string{"--tls-cert", cert, "--tls-key", key, "--tls-client-ca", cert}, func(s *served) []string {
			_, port, _ := strings.Cut(s.address(t), ":")
			return []string{"--server", "tls://localhost:" + port, "--server-ca", cert, "--client-cert", cert, "--client-key", key}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			s := serveIt(t, append([]string{"--data-dir", filepath.Join(t.TempDir(), "d")}, way.serve...)...)
			reach := way.reach(s)
			do := func(in string, want int, args ...string) string {
				t.Helper()
				code, out, errText := command(t, in, append(args, reach...)...)
				if code != want {
					t.Fatalf("%v: %d, want %d\n%s%s", args, code, want, out, errText)
				}
				return out + errText
			}
			do("", exitNotFound, "consume", "logs")
			do("", exitOK, "topic", "create", "logs")
			do("", exitConflict, "topic", "create", "logs")
			var lines strings.Builder
			for i := range 500 {
				fmt.Fprintf(&lines, "key-%d line %d\n", i%50, i)
			}
			do(lines.String(), exitOK, "produce", "logs", "--key-regexp", `^\S+`, "--producer-id", "1")
			do("", exitOK, "topic", "split", "logs", "0")
			if out := do(lines.String(), exitOK, "produce", "logs", "--key-regexp", `^\S+`, "--producer-id", "1"); !strings.Contains(out, "500 records stored before") {
				t.Errorf("sent again: %s", out)
			}
			if out := do("", exitOK, "consume", "logs", "--group", "g", "--max", "100"); strings.Count(out, "line ") != 100 {
				t.Errorf("a group's first page: %s", out)
			}
			if out := do("", exitOK, "consume", "logs", "--group", "g"); strings.Count(out, "line ") != 400 {
				t.Errorf("the rest of it: %s", out)
			}
			if out := do("", exitOK, "topic", "describe", "logs", "--json"); !strings.Contains(out, `"records": 500`) || !strings.Contains(out, `"g"`) {
				t.Errorf("described: %s", out)
			}
			do("", exitOK, "topic", "policy", "set", "week", "--max-age", "7d")
			do("", exitOK, "topic", "policy", "bind", "logs", "week")
			do("", exitConflict, "topic", "policy", "delete", "week")
			do("", exitOK, "topic", "policy", "delete", "week", "--force")
			do("", exitUsage, "consume", "logs", "--group", "g", "--member", "m", "--from", "start")
			do("", exitUsage, "consume", "logs", "--member", "m")
			if out := do("", exitOK, "group", "describe", "logs", "g"); !strings.Contains(out, "lag 0 records") {
				t.Errorf("described: %s", out)
			}
			if out := do("", exitOK, "group", "reset", "logs", "g", "--to", "start", "--yes"); !strings.Contains(out, "reads 500 records again") {
				t.Errorf("reset: %s", out)
			}
			if out := do("", exitOK, "consume", "logs", "--group", "g", "--member", "m"); strings.Count(out, "line ") != 500 || !strings.Contains(out, "500 records by member m of group g") {
				t.Errorf("read again: %s", out)
			}
			if out := do("", exitOK, "group", "list"); !strings.Contains(out, "logs") {
				t.Errorf("listed: %s", out)
			}
			do("", exitOK, "group", "delete", "logs", "g", "--yes")
			do("", exitNotFound, "group", "describe", "logs", "g")
			if out := do("", exitOK, "topic", "ls"); !strings.Contains(out, "week") {
				t.Errorf("listed: %s", out)
			}
			do("", exitUsage, "topic", "ls", "--data-dir", dir)
			do("", exitOK, "topic", "delete", "logs", "--yes")
			do("", exitNotFound, "topic", "describe", "logs")
		})
	}
}

// A socket that does not let this user in says what would; the test's own user may be
// one whom no mode keeps out.
func TestSocketThatKeepsOut(t *testing.T) {
	dial := &net.OpError{Op: "dial", Net: "unix", Err: os.NewSyscallError("connect", syscall.EACCES)}
	err := howToConnect("unix:/run/r/shm", "--shm", nil, fmt.Errorf("%w: %w", client.ErrUnavailable, dial))
	if text := err.Error(); !strings.Contains(text, "mode of the socket") || !strings.Contains(text, "--shm-uids and --shm-gids") || exitCode(err) != exitUnreachable {
		t.Errorf("%d: %s", exitCode(err), text)
	}
}

func TestServerThatIsNotThere(t *testing.T) {
	for _, args := range [][]string{
		{"topic", "ls", "--server", "127.0.0.1:1"},
		{"topic", "ls", "--server", "unix:" + filepath.Join(t.TempDir(), "none")},
	} {
		code, _, errText := command(t, "", args...)
		if code != exitUnreachable || !strings.Contains(errText, "is 'ringfence serve' running there?") || !strings.Contains(errText, args[3][len("unix:"):]) {
			t.Errorf("%v: %d %s", args, code, errText)
		}
	}
	code := run(t.Context(), []string{"topic", "ls", "--server", "127.0.0.1:1", "--server-ca", "/does/not/exist"}, strings.NewReader(""), io.Discard, io.Discard)
	if code != exitUsage {
		t.Errorf("authorities that are not there: %d", code)
	}
}
