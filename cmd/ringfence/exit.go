package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/ringfence/ringfence/cp"
	"github.com/ringfence/ringfence/engine"
	"github.com/ringfence/ringfence/engine/client"
	"github.com/ringfence/ringfence/segfile"
	"github.com/ringfence/ringfence/segfile/disk"
	"github.com/spf13/cobra"
)

// Exit codes. They are an interface: scripts depend on them, so none is ever
// given a second meaning.
const (
	exitOK          = 0
	exitFailed      = 1
	exitUsage       = 2
	exitNotFound    = 3
	exitConflict    = 4
	exitLocked      = 5
	exitSpace       = 6
	exitDamaged     = 7
	exitIncomplete  = 8
	exitForeign     = 9
	exitUnproven    = 10
	exitDenied      = 11
	exitUnreachable = 12
	exitRefused     = 78
	exitInterrupted = 130
)

var exitCodes = []struct {
	code int
	text string
}{
	{exitOK, "done"},
	{exitFailed, "failed for a reason that has no code of its own, which the message says; or nothing was done, because a question was answered with no"},
	{exitUsage, "the command line is wrong, or a setting in the environment or in a file; a name is not allowed, or a cursor is not usable"},
	{exitNotFound, "the topic, range, group, policy, user, file or data directory does not exist"},
	{exitConflict, "it exists already, or its state does not allow this"},
	{exitLocked, "another process has the data directory open"},
	{exitSpace, "the disk is full: appends are refused until there is space again"},
	{exitDamaged, "a file is damaged; the message names file and byte. Damage whose loss was accepted ends with 0"},
	{exitIncomplete, "the file is an open segment with an incomplete tail, as a crash leaves it; opening the data directory recovers it"},
	{exitForeign, "the file is not a segment file, belongs to another place, or was written by a newer version"},
	{exitUnproven, "a demo or benchmark ran, and its result is not what it must be"},
	{exitDenied, "the server does not let this user in, now or at all, or the user may not do this"},
	{exitUnreachable, "the server cannot be reached, or takes no requests"},
	{exitRefused, "serve refuses to start: its settings can be understood (else it ends with 2), and would be unsafe, or are not complete: a file of a secret or a certificate too"},
	{exitInterrupted, "stopped by SIGINT or SIGTERM; what was acknowledged is stored"},
}

// Errors of the command itself that have a code.
type (
	usageError struct{ error }
	notFound   struct{ error }
	conflict   struct{ error }
	incomplete struct{ error }
	unproven   struct{ error }
	refusal    struct{ error }
	denied     struct{ error }
	// unreachable is of a server that was asked without a client's connection.
	unreachable struct{ error }
	// told is reported as it is although a signal came.
	told struct{ error }
	// silent ends with a code and no message: the report said it all.
	silent struct{ code int }
)

func (e usageError) Unwrap() error  { return e.error }
func (e notFound) Unwrap() error    { return e.error }
func (e conflict) Unwrap() error    { return e.error }
func (e incomplete) Unwrap() error  { return e.error }
func (e unproven) Unwrap() error    { return e.error }
func (e refusal) Unwrap() error     { return e.error }
func (e denied) Unwrap() error      { return e.error }
func (e unreachable) Unwrap() error { return e.error }
func (e told) Unwrap() error        { return e.error }
func (e silent) Error() string      { return fmt.Sprintf("exit code %d", e.code) }

var errInterrupted = errors.New("interrupted")

// withoutCancel is what err says besides that its context was cancelled, which may
// be joined to a failure that has to be told.
func withoutCancel(err error) error {
	for inner := err; inner != nil; inner = errors.Unwrap(inner) {
		joined, ok := inner.(interface{ Unwrap() []error })
		if !ok {
			continue
		}
		var rest []error
		for _, e := range joined.Unwrap() {
			rest = append(rest, withoutCancel(e))
		}
		return errors.Join(rest...)
	}
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

func isSilent(err error) bool {
	var s silent
	return errors.As(err, &s)
}

// exitCode is the one place where an error becomes a code.
func exitCode(err error) int {
	var (
		s     silent
		usage usageError
		nf    notFound
		con   conflict
		inc   incomplete
		unp   unproven
		ref   refusal
		den   denied
		away  unreachable
	)
	is := func(targets ...error) bool {
		for _, t := range targets {
			if errors.Is(err, t) {
				return true
			}
		}
		return false
	}
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &s):
		return s.code
	case errors.As(err, &unp):
		return exitUnproven
	case errors.As(err, &ref):
		return exitRefused
	case errors.As(err, &inc):
		return exitIncomplete
	case errors.Is(err, errInterrupted):
		return exitInterrupted
	case errors.As(err, &usage), is(engine.ErrInvalidTopicName, engine.ErrInvalidCursor, engine.ErrForeignCursor, engine.ErrCursorPastEnd, engine.ErrNotASource,
		engine.ErrInvalidBits, engine.ErrInvalidPolicy, engine.ErrInvalidGroup,
		engine.ErrInvalidUser, client.ErrInvalidAddress, engine.ErrInvalidPassword, engine.ErrInvalidGrant, engine.ErrInvalidToken):
		return exitUsage
	case errors.As(err, &den), is(client.ErrRefused):
		return exitDenied
	case is(engine.ErrLocked, disk.ErrLocked):
		return exitLocked
	case is(engine.ErrOutOfSpace):
		return exitSpace
	case is(segfile.ErrForeign, segfile.ErrNewer):
		return exitForeign
	case is(engine.ErrDamaged, segfile.ErrDamaged):
		return exitDamaged
	case errors.As(err, &nf), is(engine.ErrNoSuchTopic, engine.ErrNoSuchGroup, engine.ErrNoSuchPolicy, engine.ErrNoSuchUser, engine.ErrNoSuchGrant, engine.ErrNoSuchToken, engine.ErrNoSuchRange, cp.ErrNoSuchSegment):
		return exitNotFound
	case errors.As(err, &con), is(engine.ErrTopicExists, engine.ErrUserExists, engine.ErrLastAdministrator, engine.ErrPolicyInUse, client.ErrGroupInUse, client.ErrMemberReplaced, engine.ErrNotBuddies, engine.ErrCannotSplit, engine.ErrRangeSealed, cp.ErrSegmentActive, engine.ErrNotMissing):
		return exitConflict
	case errors.As(err, &away), is(client.ErrUnavailable):
		return exitUnreachable
	}
	return exitFailed
}

// exitCodesTopic is 'ringfence help exit-codes'.
func exitCodesTopic() *cobra.Command {
	var b strings.Builder
	b.WriteString("ringfence ends with one of these codes:\n\n")
	for _, c := range exitCodes {
		fmt.Fprintf(&b, "%s\n", hanging(fmt.Sprintf("  %3d  ", c.code), c.text))
	}
	b.WriteString(`
With --json an error is one JSON object, the last line of standard error:

  {"error": what happened and what to do, "code": the exit code}`)
	return &cobra.Command{Use: "exit-codes", Short: "What the exit codes mean", Long: b.String()}
}
