package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
)

// Whoever says no is told that nothing was done, and made no mistake. Where nobody answers
// the command line was one that nobody can run so.
func TestAnswers(t *testing.T) {
	topic := question{"Delete topic t?", "t", "the topic's name", "deleted"}
	for _, tt := range []struct {
		question question
		answer   string
		code     int
		says     string
	}{
		{topic, "t\n", exitOK, ""},
		{topic, " t", exitOK, ""},
		{topic, "no\n", exitFailed, "nothing was deleted"},
		{topic, "\n", exitFailed, "nothing was deleted"},
		{topic, "yes\n", exitFailed, `nothing was deleted: "yes" is not the topic's name`},
		{topic, "", exitUsage, "nothing was deleted, because nobody answered; give --yes where nobody can"},
		{sure("Give it up?"), "yes\n", exitOK, ""},
		{sure("Give it up?"), "y\n", exitOK, ""},
		{sure("Give it up?"), "n\n", exitFailed, "nothing was changed"},
		{sure("Give it up?"), "Y?\n", exitFailed, `nothing was changed: "Y?" is not yes`},
		{sure("Give it up?"), "", exitUsage, "nothing was changed, because nobody answered; give --yes where nobody can"},
	} {
		var asked strings.Builder
		a := &app{in: strings.NewReader(tt.answer), err: &asked}
		err := a.ask(t.Context(), tt.question)
		if said := fmt.Sprint(err); exitCode(err) != tt.code || err != nil && said != tt.says {
			t.Errorf("%q to %q: exit %d, %v; want %d, %s", tt.answer, tt.question.what, exitCode(err), err, tt.code, tt.says)
		}
		if want := tt.question.what + " Type " + tt.question.is + ": \n"; asked.String() != want && strings.HasSuffix(tt.answer, "\n") {
			t.Errorf("asked %q, want %q", asked.String(), want)
		}
	}
}

// signalled is standard error that stands for whoever reads a question there and sends a
// signal in place of an answer.
type signalled struct {
	sharedBuffer
	at     string
	signal func()
	once   sync.Once
}

func (s *signalled) Write(p []byte) (int, error) {
	n, err := s.sharedBuffer.Write(p)
	if strings.Contains(s.String(), s.at) {
		s.once.Do(s.signal)
	}
	return n, err
}

// A signal ends a command that waits for an answer, or for a password.
func TestSignalInsteadOfAnAnswer(t *testing.T) {
	dir, _ := filled(t, 10)
	idle, w := io.Pipe()
	defer w.Close()
	ctx, stop := context.WithCancel(t.Context())
	errs := &signalled{at: "Type the topic's name", signal: stop}
	if code := run(ctx, []string{"topic", "delete", "t", "--data-dir", dir}, idle, io.Discard, errs); code != exitInterrupted {
		t.Errorf("topic delete: exit %d: %s", code, errs)
	}
	if list := parse[[]topicReport](t, ok(t, "", "topic", "ls", "--json", "--data-dir", dir)); len(list) != 1 {
		t.Errorf("%d topics after a question that nobody answered", len(list))
	}

	keys, screen := terminal(t)
	shows := func() bool {
		t.Helper()
		state, err := unix.IoctlGetTermios(int(screen.Fd()), unix.TCGETS)
		if err != nil {
			t.Fatal(err)
		}
		return state.Lflag&unix.ECHO != 0
	}
	if !shows() {
		t.Fatal("a new terminal shows nothing of what is typed")
	}
	users := filepath.Join(t.TempDir(), "d")
	add := []string{"user", "add", "admin", "--admin", "--data-dir", users}
	var hidden atomic.Bool
	ctx, stop = context.WithCancel(t.Context())
	errs = &signalled{at: "New password of admin: ", signal: func() {
		go func() {
			for shows() { // the question comes before
				if ctx.Err() != nil {
					return
				}
			}
			hidden.Store(true)
			stop()
		}()
	}}
	if code := run(ctx, add, screen, io.Discard, errs); code != exitInterrupted {
		t.Errorf("user add: exit %d: %s", code, errs)
	}
	if !hidden.Load() || !shows() {
		t.Errorf("what was typed was hidden: %v, and is shown after the signal: %v", hidden.Load(), shows())
	}
	fmt.Fprintln(keys, "whatever") // lets the reader go that still waits for the password
}

// terminal makes one: what is typed goes into keys, and a program reads it from screen.
func terminal(t *testing.T) (keys, screen *os.File) {
	t.Helper()
	keys, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skip("no terminals here: ", err)
	}
	t.Cleanup(func() { keys.Close() })
	if err := unix.IoctlSetPointerInt(int(keys.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(keys.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	if screen, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { screen.Close() })
	return keys, screen
}
