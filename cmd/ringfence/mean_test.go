package main

import (
	"io"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ringfence/ringfence/engine"
	"github.com/ringfence/ringfence/engine/api"
)

// What an error says is what happened and what to do: once, and in the words of whoever
// reads it.
func TestErrorsSayWhatToDo(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "d")
	t.Setenv(dataDirVar, dir)
	ok(t, "a\n", "produce", "t", "--create")
	socket := filepath.Join(t.TempDir(), "s")
	none := filepath.Join(t.TempDir(), "none.pem")
	for _, c := range []struct {
		code      int
		says, not string
		in        string
		line      string
	}{
		{exitUsage, "--from is 99999999999999999999: as milliseconds", "cursor", "", "consume t --from 99999999999999999999"},
		{exitFailed, "nothing was deleted", "", "no\n", "topic delete t"},
		{exitUsage, "give --yes", "", "", "topic delete t"},
		{exitFailed, "nothing was changed", "", "no\n", "group delete t g"},
		{exitUsage, "--socket and --shm are both", "another process", "", "serve --listen 127.0.0.1:0 --admin 127.0.0.1:0 --socket " + socket + " --shm " + socket},
		{exitUsage, "give --shm PATH", "", "", "serve --shm-uids 1000"},
		{exitUsage, "--group-session is 1ms: want 1s or more", "", "", "serve --group-session 1ms"},
		{exitRefused, "--tls-cert: stat " + none, "", "", "serve --listen 127.0.0.1:0 --admin 127.0.0.1:0 --tls-cert " + none + " --tls-key " + none},
		{exitUsage, "--context and --data-dir", "", "", "topic ls --context prod --data-dir " + dir},
		{exitUsage, "--context and --server", "", "", "topic ls --context prod --server 127.0.0.1:1"},
	} {
		if c.line == "group delete t g" {
			ok(t, "", "consume", "t", "--group", "g")
		}
		r := ringfence(t, c.in, strings.Fields(c.line)...)
		if r.code != c.code || !strings.Contains(r.err, c.says) || c.not != "" && strings.Contains(r.err, c.not) {
			t.Errorf("%s: exit %d, want %d and %q: %s", c.line, r.code, c.code, c.says, r.err)
		}
	}
}

// A command of this host does not send anybody to a server that it cannot reach.
func TestWhichDirectoryOfThisHost(t *testing.T) {
	for line, server := range map[string]bool{"serve": false, "segment verify": false, "topic ls": true} {
		r := ringfence(t, "", strings.Fields(line)...)
		if r.code != exitUsage || !strings.Contains(r.err, "which data directory?") || strings.Contains(r.err, "--server") != server {
			t.Errorf("%s: exit %d: %s", line, r.code, r.err)
		}
	}
}

// The packages that errors are from are not told.
func TestPackagesAreNotTold(t *testing.T) {
	for in, want := range map[string]string{
		"segfile: create x: cp: no":          "create x: no",
		"topic t: segfile: disk: no; cp: no": "topic t: no; no",
		"--server: it is a disk: no":         "--server: it is a disk: no",
	} {
		if got := withinWords.ReplaceAllString(in, "$1"); got != want {
			t.Errorf("%q is told as %q, want %q", in, got, want)
		}
	}
}

// A run that stops for want of space asks for that, and then to be started again: that the
// producer was stopped is for programs.
func TestProduceSaysWhyItStopped(t *testing.T) {
	r := &lineProducer{named: true, report: produceReport{Producer: 7}}
	r.acked.Store(3)
	full := error(&api.TopicError{Topic: "t", Range: -1, Err: engine.ErrOutOfSpace})
	r.failed.Store(&full)
	err := r.conclude(t.Context(), &app{}, api.ErrHalted)
	if err == nil || exitCode(err) != exitSpace || strings.Contains(err.Error(), api.ErrHalted.Error()) || !strings.Contains(err.Error(), "free space on it; once that is done, store the same input again with --producer-id 7") {
		t.Errorf("%v", err)
	}
}

// Users, tokens and grants that nobody could make use of are refused.
func TestUselessAccessIsRefused(t *testing.T) {
	s := serveIt(t, "--data-dir", filepath.Join(t.TempDir(), "d"), "--admin-password-file", secretFile(t, "correct horse battery"))
	t.Setenv(serverVar, s.address(t))
	as(t, adminName, "correct horse battery")
	for _, pattern := range []string{"*a", "a b", "a*b*", "**", ".."} {
		fails(t, exitUsage, "no topic can have a name like", "", "acl", "grant", adminName, "produce", "topic", pattern)
	}
	for _, pattern := range []string{"*", "a", "a*", ".*", "a.b-c_d*"} {
		ok(t, "", "acl", "grant", adminName, "produce", "topic", pattern)
		ok(t, "", "acl", "revoke", adminName, "produce", "topic", pattern)
	}
	for _, name := range []string{" ", " a", "a "} {
		fails(t, exitUsage, "no space at its ends", "", "user", "add", name, "--no-password")
	}
	ok(t, "", "user", "token", "create", adminName, "--name", "ci")
	fails(t, exitUsage, `there is one named "ci"`, "", "user", "token", "create", adminName, "--name", "ci")
}

// A run whose identity another one takes says so.
func TestProducerTakenByAnotherRun(t *testing.T) {
	s := serveIt(t, "--data-dir", filepath.Join(t.TempDir(), "d"))
	t.Setenv(serverVar, s.address(t))
	as(t, "", "")
	ok(t, "", "topic", "create", "t")
	in, lines := io.Pipe()
	var said sharedBuffer
	ended := make(chan int)
	go func() {
		ended <- run(t.Context(), []string{"produce", "t", "--producer-id", "7"}, in, io.Discard, &said)
	}()
	if _, err := io.WriteString(lines, "a\n"); err != nil {
		t.Fatal(err)
	}
	for ok(t, "", "consume", "t", "--from", "start") != "a\n" {
		time.Sleep(5 * time.Millisecond)
	}
	ok(t, "a\n", "produce", "t", "--producer-id", "7")
	if _, err := io.WriteString(lines, "b\n"); err != nil {
		t.Fatal(err)
	}
	lines.Close()
	if code := <-ended; code != exitFailed || !strings.Contains(said.String(), "another run has opened a producer of the same ID") {
		t.Errorf("exit %d: %s", code, said.String())
	}
}

// Who may not share memory is told who may, and not how to log in.
func TestSharingRefusedToAUser(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	s := serveIt(t, "--data-dir", filepath.Join(t.TempDir(), "d"), "--shm", socket, "--shm-uids", "54321")
	s.address(t)
	as(t, "", "")
	r := ringfence(t, "a\n", "produce", "t", "--shm", socket)
	if r.code != exitDenied || !strings.Contains(r.err, "shm-uids") || strings.Contains(r.err, "--user") {
		t.Errorf("exit %d: %s", r.code, r.err)
	}
}
