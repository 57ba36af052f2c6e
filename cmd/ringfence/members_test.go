package main

import (
	"bufio"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// follower is a member of a group in a process of its own, and the lines that it printed.
type follower struct {
	cmd   *exec.Cmd
	lines chan string
}

func follow(t *testing.T, addr, member string) *follower {
	t.Helper()
	f := &follower{cmd: process(t.Context(), "consume", "clicks", "--server", addr, "--group", "shop", "--member", member, "--follow"), lines: make(chan string, 1<<20)}
	out, err := f.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := f.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(f.lines)
		for in := bufio.NewReader(out); ; {
			line, err := in.ReadString('\n')
			if err != nil {
				return // a line that was cut is none
			}
			f.lines <- strings.TrimSuffix(line, "\n")
		}
	}()
	t.Cleanup(func() {
		_ = f.cmd.Process.Kill() // where the test has not
		_ = f.cmd.Wait()
	})
	return f
}

// take counts lines until so many different ones were seen, of both followers.
func take(t *testing.T, seen map[string]int, until int, from ...*follower) {
	t.Helper()
	limit := time.After(2 * time.Minute)
	for len(seen) < until {
		idle := true
		for _, f := range from {
			select {
			case line, ok := <-f.lines:
				if ok {
					seen[line]++
					idle = false
				}
			default:
			}
		}
		if !idle {
			continue
		}
		select {
		case <-limit:
			t.Fatalf("%d of %d lines came", len(seen), until)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// until waits for something that other processes do.
func until(t *testing.T, what string, so func() bool) {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); !so(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}

// N02: what README says under "Serve it", in a fresh directory: two members of a group
// share a topic, and one is killed. The other reads on what that one had, no line is
// lost, and only lines that the killed one had not committed come twice.
func TestN02_ServeItWithTwoMembers(t *testing.T) {
	s := serveIt(t, "--data-dir", filepath.Join(t.TempDir(), "ringfence"), "--group-session", "2s")
	addr := s.address(t)
	at := func(args ...string) []string { return append(args, "--server", addr) }
	ok(t, "", at("topic", "create", "clicks")...)
	ok(t, "", at("topic", "split", "clicks", "0")...)
	const half = 5000
	text := lines(2 * half)
	first := text[:len(lines(half))]
	ok(t, first, at("produce", "clicks", "--key-regexp", `\d+$`)...)

	one, two := follow(t, addr, "shop-1"), follow(t, addr, "shop-2")
	both := map[string]int{}
	take(t, both, half, one, two)
	if len(both) != half {
		t.Fatalf("%d lines, want %d", len(both), half)
	}
	until(t, "both members have a range and have committed it", func() bool {
		g := parse[groupReport](t, ok(t, "", at("group", "describe", "clicks", "shop", "--json")...))
		held := map[string]bool{}
		for _, r := range g.Ranges {
			held[r.Member] = true
		}
		return g.Lag == 0 && len(g.Ranges) == 2 && held["shop-1"] && held["shop-2"]
	})

	fails(t, exitConflict, `group "shop" has members (2): stop them first`, "", at("group", "delete", "clicks", "shop", "--yes")...)

	// The second half is on its way when one of them is killed.
	produced := make(chan ran, 1)
	go func() {
		produced <- ringfence(t, text[len(first):], at("produce", "clicks", "--key-regexp", `\d+$`)...)
	}()
	take(t, both, half+half/10, one, two)
	if err := one.cmd.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for line := range one.lines {
		both[line]++ // what it had printed
	}
	_ = one.cmd.Wait() // it was killed
	if r := <-produced; r.code != exitOK {
		t.Fatalf("produce: %+v", r)
	}
	take(t, both, 2*half, two)
	until(t, "the other has committed everything", func() bool { // also what it reads again
		return parse[groupReport](t, ok(t, "", at("group", "describe", "clicks", "shop", "--json")...)).Lag == 0
	})
	_ = two.cmd.Process.Signal(syscall.SIGTERM)
	for line := range two.lines {
		both[line]++
	}
	if err := two.cmd.Wait(); err != nil {
		t.Errorf("the member that was stopped: %v", err)
	}
	twice := 0
	for line := range strings.Lines(text) {
		n := both[strings.TrimSuffix(line, "\n")]
		if n == 0 || n > 2 {
			t.Fatalf("%q came %d times", line, n)
		}
		twice += n - 1
	}
	// A member commits as it goes: what comes twice is less than what the killed one read
	// behind its last commit, and never what came before the second half.
	t.Logf("%d of %d lines came twice", twice, 2*half)
	for line := range strings.Lines(first) {
		if n := both[strings.TrimSuffix(line, "\n")]; n != 1 {
			t.Errorf("%q, which was committed, came %d times", line, n)
			break
		}
	}
}
