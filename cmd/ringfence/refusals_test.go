package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ringfence/ringfence/engine"
	"github.com/ringfence/ringfence/engine/api"
)

// Whatever is refused is refused in the same words and with the same exit code, on a data
// directory and through a server of a copy of it.
func TestRefusalsEitherWay(t *testing.T) {
	dir, _ := filled(t, 50)
	ok := func(in string, args ...string) string {
		t.Helper()
		return ok(t, in, append(args, "--data-dir", dir)...)
	}
	ok("", "topic", "create", "narrow", "--bits", "1")
	ok("", "topic", "split", "narrow", "0")
	ok("", "topic", "create", "wide")
	ok("", "topic", "split", "wide", "0") // 1, 2
	ok("", "topic", "split", "wide", "1") // 3, 4
	ok("", "topic", "split", "wide", "2") // 5, 6
	ok("", "topic", "policy", "set", "kept", "--max-age", "7d")
	ok("", "topic", "policy", "bind", "wide", "kept")
	ok("", "consume", "t", "--group", "g", "--max", "10")
	ok("right-secret-1", "user", "add", "ada", "--admin")
	secret := filepath.Join(t.TempDir(), "secret")
	write(t, secret, "right-secret-1\n")

	// Cursors: of records that the copies do not have any more, and of another topic.
	ok("one more\n", "produce", "wide")
	ok("", "consume", "wide", "--group", "g")
	foreign := parse[groupReport](t, ok("", "group", "describe", "t", "g", "--json")).Cursor
	pastEnd := cursorPast(t, dir, "t")
	damage(t, dir, "rotten")

	copied := filepath.Join(t.TempDir(), "copy")
	if err := os.CopyFS(copied, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	addr := serveIt(t, "--data-dir", copied).address(t)
	long := strings.Repeat("x", 300)
	for _, tt := range []struct {
		code int
		is   error // nil: the command's own
		in   string
		args []string
	}{
		{exitConflict, engine.ErrTopicExists, "", []string{"topic", "create", "t"}},
		{exitUsage, engine.ErrInvalidTopicName, "", []string{"topic", "create", "a/b"}},
		{exitUsage, engine.ErrInvalidTopicName, "", []string{"topic", "create", long}},
		{exitUsage, nil, "", []string{"topic", "create", "n", "--bits", "33"}},
		{exitNotFound, engine.ErrNoSuchPolicy, "", []string{"topic", "create", "n", "--policy", "nope"}},
		{exitNotFound, engine.ErrNoSuchTopic, "", []string{"topic", "describe", "nope"}},
		{exitNotFound, engine.ErrNoSuchTopic, "nope\n", []string{"topic", "delete", "nope"}},
		{exitNotFound, engine.ErrNoSuchTopic, "", []string{"topic", "split", "nope", "0"}},
		{exitNotFound, engine.ErrNoSuchRange, "", []string{"topic", "split", "t", "7"}},
		{exitConflict, engine.ErrRangeSealed, "", []string{"topic", "split", "wide", "0"}},
		{exitConflict, engine.ErrCannotSplit, "", []string{"topic", "split", "narrow", "1"}},
		{exitNotFound, engine.ErrNoSuchTopic, "", []string{"topic", "merge", "nope", "1", "2"}},
		{exitNotFound, engine.ErrNoSuchRange, "", []string{"topic", "merge", "wide", "3", "99"}},
		{exitConflict, engine.ErrNotBuddies, "", []string{"topic", "merge", "wide", "3", "3"}},
		{exitConflict, engine.ErrNotBuddies, "", []string{"topic", "merge", "wide", "4", "5"}},
		{exitConflict, engine.ErrRangeSealed, "", []string{"topic", "merge", "wide", "1", "2"}},
		{exitUsage, engine.ErrInvalidPolicy, "", []string{"topic", "policy", "set", "p", "--segment-max-age", "1s"}},
		{exitUsage, engine.ErrInvalidPolicy, "", []string{"topic", "policy", "set", "p", "--segment-max-bytes", "1"}},
		{exitUsage, engine.ErrInvalidPolicy, "", []string{"topic", "policy", "set", "p", "--max-bytes", "2000000TiB"}},
		{exitUsage, engine.ErrInvalidPolicy, "", []string{"topic", "policy", "set", ""}},
		{exitUsage, engine.ErrInvalidPolicy, "", []string{"topic", "policy", "set", "\xff"}},
		{exitConflict, engine.ErrPolicyInUse, "", []string{"topic", "policy", "delete", "kept"}},
		{exitNotFound, engine.ErrNoSuchPolicy, "", []string{"topic", "policy", "delete", "nope"}},
		{exitNotFound, engine.ErrNoSuchPolicy, "", []string{"topic", "policy", "bind", "t", "nope"}},
		{exitNotFound, engine.ErrNoSuchTopic, "", []string{"topic", "policy", "bind", "nope", "kept"}},
		{exitNotFound, engine.ErrNoSuchTopic, "", []string{"group", "list", "nope"}},
		{exitNotFound, engine.ErrNoSuchTopic, "", []string{"group", "describe", "nope", "g"}},
		{exitNotFound, engine.ErrNoSuchGroup, "", []string{"group", "describe", "t", "nope"}},
		{exitUsage, engine.ErrInvalidGroup, "", []string{"group", "describe", "t", "\xff"}},
		{exitUsage, engine.ErrInvalidGroup, "", []string{"consume", "t", "--group", long}},
		{exitUsage, engine.ErrInvalidGroup, "", []string{"consume", "t", "--group", "a\tb"}},
		{exitNotFound, engine.ErrNoSuchGroup, "", []string{"group", "delete", "t", "nope", "--yes"}},
		{exitUsage, engine.ErrForeignCursor, "", []string{"group", "reset", "wide", "g", "--to", foreign, "--yes"}},
		{exitUsage, engine.ErrInvalidCursor, "", []string{"consume", "t", "--from", foreign[1:]}},
		{exitUsage, engine.ErrForeignCursor, "", []string{"consume", "wide", "--from", foreign}},
		{exitUsage, engine.ErrCursorPastEnd, "", []string{"consume", "t", "--from", pastEnd}},
		{exitNotFound, engine.ErrNoSuchTopic, "", []string{"consume", "nope"}},
		{exitDamaged, engine.ErrDamaged, "", []string{"consume", "rotten", "--from", "start"}},
		{exitNotFound, engine.ErrNoSuchTopic, "x\n", []string{"produce", "nope"}},
		{exitFailed, nil, strings.Repeat("x", 8<<10) + "\n", []string{"produce", "t", "--batch", "4KiB"}},
		{exitConflict, engine.ErrUserExists, "other-secret-1\n", []string{"user", "add", "ada"}},
		{exitUsage, engine.ErrInvalidPassword, "short\n", []string{"user", "add", "bob"}},
		{exitUsage, engine.ErrInvalidUser, "other-secret-1\n", []string{"user", "add", "a\x01"}},
		{exitNotFound, engine.ErrNoSuchUser, "other-secret-1\n", []string{"user", "passwd", "nope"}},
		{exitNotFound, engine.ErrNoSuchUser, "", []string{"user", "delete", "nope"}},
		{exitNotFound, engine.ErrNoSuchUser, "", []string{"user", "token", "create", "nope"}},
		{exitUsage, engine.ErrInvalidToken, "", []string{"user", "token", "create", "ada", "--name", long}},
		{exitNotFound, engine.ErrNoSuchUser, "", []string{"user", "token", "ls", "nope"}},
		{exitNotFound, engine.ErrNoSuchToken, "", []string{"user", "token", "delete", strings.Repeat("0", 32)}},
		{exitNotFound, engine.ErrNoSuchToken, "", []string{"user", "token", "delete", "xyz"}},
		{exitUsage, engine.ErrInvalidGrant, "", []string{"acl", "grant", "ada", "produce", "group", "g"}},
		{exitUsage, engine.ErrInvalidGrant, "", []string{"acl", "grant", "ada", "produce", "topic", long}},
		{exitNotFound, engine.ErrNoSuchUser, "", []string{"acl", "grant", "nope", "produce", "topic", "t"}},
		{exitNotFound, engine.ErrNoSuchGrant, "", []string{"acl", "revoke", "ada", "produce", "topic", "t"}},
		{exitNotFound, engine.ErrNoSuchUser, "", []string{"acl", "ls", "nope"}},
		{exitNotFound, engine.ErrNoSuchUser, "", []string{"quota", "set", "nope", "--records", "1"}},
	} {
		linked := ringfence(t, tt.in, append(tt.args, "--data-dir", dir)...)
		remote := ringfence(t, tt.in, append(tt.args, "--server", addr, "--user", "ada", "--password-file", secret)...)
		if linked.code != tt.code || remote.code != tt.code {
			t.Errorf("%.60q: exit %d on a data directory, %d through a server, want %d\n%s%s", tt.args, linked.code, remote.code, tt.code, linked.err, remote.err)
		}
		if a, b := told1(linked.err, dir), told1(remote.err, copied); a != b {
			t.Errorf("%.60q says\n%s\nthrough a server\n%s", tt.args, a, b)
		}
		if tt.is != nil && !strings.Contains(linked.err, strings.TrimPrefix(tt.is.Error(), "cp: ")) && tt.is != engine.ErrNoSuchTopic {
			t.Errorf("%.60q says %s, which is not: %v", tt.args, linked.err, tt.is)
		}
	}
}

// told1 is what was said, wherever the directory is.
func told1(text, dir string) string { return strings.ReplaceAll(text, dir, "DIR") }

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// cursorPast is a cursor behind everything that a topic has.
func cursorPast(t *testing.T, dir, topic string) string {
	t.Helper()
	e, err := engine.Open(dir, engine.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	c, err := e.NewConsumer(engine.ConsumerOptions{Topic: topic, From: engine.FromEnd()})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	id, err := api.TopicOfCursor(c.Cursor())
	if err != nil {
		t.Fatal(err)
	}
	pos, marks, err := api.DecodeCursor(id, c.Cursor())
	if err != nil {
		t.Fatal(err)
	}
	for r := range pos {
		pos[r] += 1000
	}
	return api.EncodeCursor(id, pos, marks)
}

// damage makes a topic with a closed segment of which a byte is not what it was.
func damage(t *testing.T, dir, topic string) {
	t.Helper()
	ok(t, lines(200), "produce", topic, "--create", "--data-dir", dir)
	e, err := engine.Open(dir, engine.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := e.Roll(t.Context(), topic); err != nil {
		t.Fatal(err)
	}
	d, err := e.Describe(t.Context(), topic)
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "log", "topics", d.ID, filepath.Base(d.AllRanges[0].Segments[0].File))
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	at := bytes.Index(b, []byte("thing number 7"))
	if at < 0 {
		t.Fatalf("%s has no record to damage", file)
	}
	b[at] ^= 1
	if err := os.WriteFile(file, b, 0o600); err != nil {
		t.Fatal(err)
	}
}
