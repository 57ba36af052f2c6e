package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"golang.org/x/term"
)

// question is asked before something is done that cannot be taken back.
type question struct {
	what string // what is about to be done, and if it is to be
	want string // the answer that does it
	is   string // what that is: "the topic's name"
	done string // what is not done without it: "deleted"
}

// sure asks for a yes.
func sure(what string) question { return question{what, "yes", "yes", "changed"} }

// ask is nil where the answer is what the question wants. Anything else is no mistake but
// what somebody wants, unless nobody answers at all.
func (a *app) ask(ctx context.Context, q question) error {
	fmt.Fprintf(a.err, "%s Type %s: ", q.what, q.is)
	in := newInterruptible(ctx, a.in)
	defer in.end()
	line, _ := bufio.NewReader(in).ReadString('\n') // no answer is a no
	if !a.typed() || !strings.HasSuffix(line, "\n") {
		fmt.Fprintln(a.err) // nobody typed the end of the line
	}
	answer := strings.TrimSpace(line)
	switch {
	case answer == q.want || q.want == "yes" && answer == "y":
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	case line == "":
		return usageError{fmt.Errorf("nothing was %s, because nobody answered; give --yes where nobody can", q.done)}
	case slices.Contains([]string{"", "n", "no"}, answer):
		return fmt.Errorf("nothing was %s", q.done)
	}
	return fmt.Errorf("nothing was %s: %q is not %s", q.done, answer, q.is)
}

// typed says whether standard input is a terminal.
func (a *app) typed() bool {
	in, ok := a.in.(*os.File)
	return ok && term.IsTerminal(int(in.Fd()))
}

// typedSecret asks for a line that the terminal does not show. A terminal that shows
// nothing is of no use to anybody afterwards: it is put back also where a signal comes.
func (a *app) typedSecret(ctx context.Context, what string) (string, error) {
	fd := int(a.in.(*os.File).Fd())
	before, err := term.GetState(fd)
	if err != nil {
		return "", fmt.Errorf("reading the password: %w", err)
	}
	fmt.Fprint(a.err, what)
	defer fmt.Fprintln(a.err)
	type answer struct {
		line []byte
		err  error
	}
	got := make(chan answer, 1)
	go func() {
		line, err := term.ReadPassword(fd)
		got <- answer{line, err}
	}()
	select {
	case g := <-got:
		if errors.Is(g.err, io.EOF) {
			return "", usageError{errors.New("no password was typed")}
		}
		if g.err != nil {
			return "", fmt.Errorf("reading the password: %w", g.err)
		}
		return strings.TrimRight(string(g.line), "\r\n"), nil
	case <-ctx.Done():
		return "", errors.Join(ctx.Err(), term.Restore(fd, before))
	}
}
