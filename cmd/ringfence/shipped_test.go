package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
)

// The command lines of the unit and of the image serve a directory again after they were
// killed: under the same process number, as each container has it, and under another
// host's name, with the sockets and locks that the one before left (N02).
func TestN02ShippedExamplesServeAgain(t *testing.T) {
	image, unit := shipped(t, "Dockerfile", `(?m)^CMD (\[.*\])$`), shipped(t, "ringfence.service", `(?m)^ExecStart=(.*)$`)
	var inImage []string
	if err := json.Unmarshal([]byte(image), &inImage); err != nil {
		t.Fatal(err)
	}
	for name, args := range map[string][]string{"image": inImage, "unit": strings.Fields(unit)[1:]} {
		t.Run(name, func(t *testing.T) {
			base := t.TempDir()
			if err := os.Mkdir(filepath.Join(base, "volume"), 0o700); err != nil {
				t.Fatal(err)
			}
			dir, conf := filepath.Join(base, "volume", "data"), filepath.Join(base, "conf")
			sockets := map[string]string{"socket": filepath.Join(base, "socket"), "shm": filepath.Join(base, "shm")}
			write(t, conf, "listen = 127.0.0.1:0\nadmin = 127.0.0.1:0\n")
			for i, arg := range args {
				switch arg {
				case "/data", "/var/lib/ringfence":
					args[i] = dir
				case "/etc/ringfence.conf":
					args[i] = conf
				case "0.0.0.0:4040", "127.0.0.1:4041":
					args[i] = arg[:len(arg)-len("4040")] + "0"
				}
			}
			if !strings.Contains(strings.Join(args, " "), dir) {
				t.Fatalf("%v does not say where the data is", args)
			}
			for setting, path := range sockets {
				args = append(args, "--"+setting, path)
			}
			text := lines(200)
			first := contained(t, "one", args)
			ok(t, text, "produce", "t", "--create", "--server", "unix:"+sockets["socket"])
			ok(t, text, "produce", "t", "--shm", sockets["shm"])
			ok(t, "", "consume", "t", "--group", "g", "--max", "50", "--server", "unix:"+sockets["socket"])
			if code, said := serveRefused(t, "--data-dir", dir, "--listen", "127.0.0.1:0"); code != exitLocked {
				t.Errorf("beside it: exit %d: %s", code, said)
			}
			first.kill(t)
			for _, left := range []string{sockets["socket"], sockets["shm"], filepath.Join(dir, "log", "LOCK"), filepath.Join(dir, "meta", "lock")} {
				if _, err := os.Lstat(left); err != nil {
					t.Errorf("the kill left no %s: %v", left, err)
				}
			}
			// A lock is the kernel's: what a file says of a process that is there means nothing.
			write(t, filepath.Join(dir, "log", "LOCK"), "process 1\n")
			second := contained(t, "two", args)
			out := ok(t, "", "consume", "t", "--from", "start", "--server", "unix:"+sockets["socket"])
			if out != text+text {
				t.Errorf("%d bytes are there of %d", len(out), 2*len(text))
			}
			if out := ok(t, "", "consume", "t", "--group", "g", "--server", "unix:"+sockets["shm"]); strings.Count(out, "\n") != 350 {
				t.Errorf("the group goes on with %d records, want 350", strings.Count(out, "\n"))
			}
			second.kill(t)
		})
	}
}

func shipped(t *testing.T, file, pattern string) string {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(pattern).FindSubmatch(b)
	if m == nil {
		t.Fatalf("%s has no %s", file, pattern)
	}
	return string(m[1])
}

// container is the command with process numbers and a host name of its own, where the
// host lets the test have them, as containers do.
type container struct {
	cmd  *exec.Cmd
	said *lockedBuffer
}

// apart makes a command a shell that becomes it, with number 1 and a host's name.
func apart(cmd *exec.Cmd, host string) {
	cmd.Args = append([]string{"sh", "-c", `hostname "$0" && [ $$ = 1 ] && exec "$@"`, host, cmd.Path}, cmd.Args[1:]...)
	cmd.Path = "/bin/sh"
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWUTS}
}

func contained(t *testing.T, host string, args []string) *container {
	t.Helper()
	c := &container{cmd: process(t.Context(), args...), said: &lockedBuffer{}}
	c.cmd.Stderr = c.said
	try := exec.CommandContext(t.Context(), "/bin/true")
	if apart(try, host); try.Run() == nil {
		apart(c.cmd, host)
	} else {
		t.Log("no namespaces are to be had here: it runs as a process of this host")
	}
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.cmd.Process.Kill() // where the test has not
		_ = c.cmd.Wait()
	})
	until(t, "the server serves", func() bool { return strings.Contains(c.said.String(), `msg="sharing memory"`) })
	return c
}

func (c *container) kill(t *testing.T) {
	t.Helper()
	if err := c.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = c.cmd.Wait()
	if !c.cmd.ProcessState.Sys().(syscall.WaitStatus).Signaled() {
		t.Fatalf("it ended by itself:\n%s", c.said)
	}
}
