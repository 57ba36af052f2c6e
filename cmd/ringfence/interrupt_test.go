package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestOnlyACancelIsDropped(t *testing.T) {
	failed := errors.New("standard output: broken")
	for _, err := range []error{nil, context.Canceled, errors.Join(context.Canceled, nil), fmt.Errorf("line 2: %w", context.Canceled),
		fmt.Errorf("x: %w", errors.Join(context.Canceled, fmt.Errorf("y: %w", context.Canceled)))} {
		if rest := withoutCancel(err); rest != nil {
			t.Errorf("%v leaves %v", err, rest)
		}
	}
	for _, err := range []error{failed, errors.Join(context.Canceled, failed), fmt.Errorf("x: %w", errors.Join(failed, context.Canceled))} {
		if rest := withoutCancel(err); !errors.Is(rest, failed) || errors.Is(rest, context.Canceled) {
			t.Errorf("%v leaves %v", err, rest)
		}
	}
}

// A producer whose input is idle stores what it read and ends at a signal.
func TestProduceEndsOnAnIdlePipe(t *testing.T) {
	for _, sig := range []os.Signal{os.Interrupt, syscall.SIGTERM} {
		dir := filepath.Join(t.TempDir(), "data")
		cmd := process(t.Context(), "produce", "t", "--create", "--data-dir", dir)
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		var errs bytes.Buffer
		cmd.Stderr = &errs
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(in, "one\ntwo\nhalf a li"); err != nil {
			t.Fatal(err)
		}
		for deadline := time.Now().Add(20 * time.Second); dataBlocks(dir) == 0; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal("nothing was stored")
			}
		}
		time.Sleep(100 * time.Millisecond) // it waits for the rest of the line
		if err := cmd.Process.Signal(sig); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait() // the pipe is still open
		if code := cmd.ProcessState.ExitCode(); code != exitInterrupted || !strings.Contains(errs.String(), "2 records acknowledged") {
			t.Errorf("%v: exit %d: %s", sig, code, errs.String())
		}
		if got := ok(t, "", "consume", "t", "--data-dir", dir); got != "one\ntwo\n" {
			t.Errorf("%v: stored %q", sig, got)
		}
	}
}

// cancelling cancels a context at the first write.
type cancelling struct {
	bytes.Buffer
	cancel context.CancelFunc
	fails  error
}

func (c *cancelling) Write(p []byte) (int, error) {
	c.cancel()
	if c.fails != nil {
		return 0, c.fails
	}
	return c.Buffer.Write(p)
}

// An interrupted reader commits what it printed, no more; one that could not print
// says so, also when it was interrupted and follows.
func TestConsumeIsInterrupted(t *testing.T) {
	dir, text := filled(t, 50_000)
	start := func(ctx context.Context, out io.Writer, args ...string) (int, string) {
		var errs bytes.Buffer
		code := run(ctx, append([]string{"consume", "t", "--data-dir", dir, "--group", "g"}, args...), strings.NewReader(""), out, &errs)
		return code, errs.String()
	}
	ctx, cancel := context.WithCancel(t.Context())
	code, said := start(ctx, &cancelling{cancel: cancel, fails: io.ErrClosedPipe}, "--follow")
	if code != exitFailed || !strings.Contains(said, "standard output") {
		t.Errorf("a follower that could not print: exit %d: %s", code, said)
	}
	if strings.Contains(said, "--from") {
		t.Errorf("it names a place behind what was not printed: %s", said)
	}
	ctx, cancel = context.WithCancel(t.Context())
	out := &cancelling{cancel: cancel}
	if code, said := start(ctx, out); code != exitInterrupted {
		t.Errorf("exit %d: %s", code, said)
	}
	if n := out.Len(); n == 0 || n == len(text) {
		t.Fatalf("%d of %d bytes before the interrupt: it was not in the middle", n, len(text))
	}
	rest := ok(t, "", "consume", "t", "--data-dir", dir, "--group", "g")
	if out.String()+rest != text {
		t.Errorf("%d bytes, then %d of %d", out.Len(), len(rest), len(text))
	}
}
