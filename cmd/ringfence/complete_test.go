package main

import (
	"net"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// A shell completes the names that a server knows, contexts, and the values of flags; what
// fails completes nothing, and says nothing.
func TestCompletion(t *testing.T) {
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
	s := serveIt(t, "--data-dir", filepath.Join(t.TempDir(), "d"))
	addr := s.address(t)
	ok(t, "", "topic", "create", "orders", "--server", addr)
	ok(t, "one\n", "produce", "clicks", "--create", "--server", addr)
	ok(t, "", "consume", "clicks", "--group", "shop", "--from", "start", "--server", addr)
	is := func(want []string, args ...string) {
		t.Helper()
		r := ringfence(t, "", append([]string{"__complete"}, args...)...)
		lines := strings.Split(strings.TrimSpace(r.out), "\n")
		if got := lines[:len(lines)-1]; r.code != exitOK || !slices.Equal(got, want) || lines[len(lines)-1] != ":4" {
			t.Errorf("%q completes to %q, want %q: %s", args, lines, want, r.err)
		}
	}
	topics := []string{"clicks", "orders"}
	is(topics, "produce", "--server", addr, "")
	is([]string{}, "produce", "") // no server is named
	ok(t, "", "context", "add", "here", "--server", addr)
	ok(t, "", "context", "add", "there", "--server", "127.0.0.1:1")
	is([]string{"here", "there"}, "context", "use", "")
	is([]string{"here", "there"}, "topic", "ls", "--context", "")
	is([]string{}, "context", "add", "")
	for _, args := range [][]string{{"produce"}, {"consume"}, {"topic", "delete"}, {"topic", "describe"}, {"group", "ls"}, {"group", "describe"}} {
		is(topics, append(args, "")...)
	}
	is([]string{}, "topic", "create", "")
	is([]string{"shop"}, "consume", "clicks", "--group", "")
	is([]string{}, "consume", "--group", "") // of which topic?
	is([]string{"start", "end"}, "consume", "clicks", "--from", "")
	is([]string{"start", "end"}, "group", "reset", "clicks", "shop", "--to", "")
	is([]string{"text", "json"}, "serve", "--log-format", "")
	is([]string{"debug", "info", "warn", "error"}, "serve", "--log-level", "")
	is([]string{}, "topic", "ls", "--server", "") // no files
	is([]string{}, "produce", "clicks", "--header", "")
	ok(t, "", "topic", "split", "clicks", "0", "--server", addr)
	is([]string{"1", "2"}, "topic", "split", "clicks", "")
	is([]string{"2"}, "topic", "merge", "clicks", "1", "")
	ok(t, "", "topic", "policy", "set", "week", "--max-age", "7d", "--server", addr)
	is([]string{"week"}, "topic", "policy", "bind", "clicks", "")
	is([]string{"week"}, "topic", "policy", "delete", "")
	is([]string{"week"}, "topic", "create", "new", "--policy", "")
	is([]string{"shop"}, "group", "delete", "clicks", "")
	is([]string{"value", "json", "raw"}, "consume", "--format", "")
	is([]string{"none", "s2", "zstd"}, "produce", "--compress", "")
	is([]string{"auto", "io_uring", "pool"}, "topic", "ls", "--io", "")
	is([]string{"cluster", "group", "topic"}[:0], "acl", "ls", "x", "")
	is([]string{"topic", "group", "cluster"}, "acl", "grant", "ada", "consume", "")

	ok(t, "the admin's secret\n", "user", "add", "root", "--admin")
	is([]string{}, "user", "delete", "") // nobody logs in
	as(t, "root", "the admin's secret")
	is([]string{"root"}, "user", "delete", "")
	is([]string{"root"}, "acl", "grant", "")
	is([]string{"root"}, "quota", "set", "")
	is([]string{}, "user", "add", "")

	silent, err := net.Listen("tcp", "127.0.0.1:0") // takes connections, and says nothing
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	is([]string{}, "produce", "--server", silent.Addr().String(), "")
	is([]string{}, "produce", "--server", "127.0.0.1:1", "")
	is([]string{}, "produce", "--server", "nowhere at all", "")
}
