package main

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/ringfence/ringfence/cp"
	"github.com/ringfence/ringfence/engine"
	"github.com/ringfence/ringfence/engine/client"
	"github.com/ringfence/ringfence/segfile"
	"github.com/ringfence/ringfence/segfile/disk"
)

// Scripts depend on the codes: the table is what it was.
func TestExitCodes(t *testing.T) {
	wrap := func(err error) error {
		return fmt.Errorf("opening: %w", &engine.TopicError{Topic: "t", Range: -1, Err: err})
	}
	for _, tt := range []struct {
		err  error
		code int
	}{
		{nil, 0},
		{errors.New("anything"), 1},
		{usageError{errors.New("x")}, 2},
		{engine.ErrInvalidTopicName, 2}, {engine.ErrInvalidCursor, 2}, {engine.ErrForeignCursor, 2}, {cp.ErrInvalidPolicy, 2},
		{engine.ErrNoSuchTopic, 3}, {cp.ErrNoSuchSegment, 3}, {engine.ErrNoSuchPolicy, 3}, {engine.ErrNoSuchGroup, 3}, {cp.ErrNoSuchRange, 3}, {notFound{errors.New("x")}, 3},
		{engine.ErrTopicExists, 4}, {engine.ErrPolicyInUse, 4}, {engine.ErrNotMissing, 4}, {cp.ErrSegmentActive, 4}, {cp.ErrNotBuddies, 4}, {cp.ErrRangeSealed, 4},
		{engine.ErrLocked, 5}, {disk.ErrLocked, 5},
		{engine.ErrOutOfSpace, 6},
		{engine.ErrDamaged, 7}, {segfile.ErrDamaged, 7}, {&segfile.CorruptError{File: "f", Byte: 1, Reason: "r"}, 7},
		{incomplete{errors.New("x")}, 8},
		{segfile.ErrForeign, 9}, {segfile.ErrNewer, 9},
		{unproven{errors.New("x")}, 10},
		{client.ErrRefused, 11}, {denied{errors.New("x")}, 11},
		{client.ErrUnavailable, 12},
		{engine.ErrInvalidUser, 2}, {engine.ErrInvalidPassword, 2}, {engine.ErrInvalidGrant, 2}, {cp.ErrInvalidToken, 2},
		{engine.ErrNoSuchUser, 3}, {engine.ErrNoSuchGrant, 3}, {engine.ErrNoSuchToken, 3}, {engine.ErrUserExists, 4},
		{errInterrupted, 130},
		{silent{7}, 7},
	} {
		if got := exitCode(tt.err); got != tt.code {
			t.Errorf("%v: exit %d, want %d", tt.err, got, tt.code)
		}
		if tt.err != nil {
			if got := exitCode(wrap(tt.err)); got != tt.code {
				t.Errorf("%v, wrapped: exit %d, want %d", tt.err, got, tt.code)
			}
			if got := exitCode(errors.Join(tt.err, errors.New("closing failed too"))); got != tt.code {
				t.Errorf("%v, joined: exit %d, want %d", tt.err, got, tt.code)
			}
		}
	}
	seen := map[int]bool{}
	help := strings.Join(strings.Fields(ok(t, "", "help", "exit-codes")), " ")
	for _, c := range exitCodes {
		if seen[c.code] {
			t.Errorf("code %d has two meanings", c.code)
		}
		seen[c.code] = true
		if !strings.Contains(help, fmt.Sprintf(" %d %s", c.code, c.text)) {
			t.Errorf("help exit-codes does not explain %d", c.code)
		}
	}
}

// With --json an error is one JSON object with the exit code, wherever the flag is
// and whatever is wrong.
func TestErrorsAsJSON(t *testing.T) {
	dir, _ := filled(t, 1)
	for _, tt := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"topic", "describe", "nope", "--data-dir", dir, "--json"}, exitNotFound, `"nope"`},
		{[]string{"--json", "topic", "create", "t", "--data-dir", dir}, exitConflict, "exists already"},
		{[]string{"topic", "ls", "--nonsense", "--json"}, exitUsage, "--nonsense"},
		{[]string{"nonsense", "--json"}, exitUsage, "nonsense"},
		{[]string{"consume", "nope", "--data-dir", dir, "--json"}, exitNotFound, "topic create nope"},
		{[]string{"segment", "verify", dir + "/a", dir + "/b", "--json"}, exitNotFound, "no such file"},
	} {
		r := ringfence(t, "", tt.args...)
		if e := parse[errorReport](t, r.err); r.code != tt.code || e.Code != tt.code || !strings.Contains(e.Error, tt.says) {
			t.Errorf("%v: exit %d, want %d, %q in %s", tt.args, r.code, tt.code, tt.says, r.err)
		}
	}
	if r := ringfence(t, "", "topic", "describe", "--", "--json", "--data-dir", dir); r.code != exitUsage || strings.HasPrefix(r.err, "{") {
		t.Errorf("--json as an argument: %+v", r)
	}
}
