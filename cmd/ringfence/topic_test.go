package main

import (
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"testing"
)

// A script may create its topic each time that it runs: what exists is left as it is, and
// the report says so.
func TestCreateIfNotExists(t *testing.T) {
	s := serveIt(t, "--data-dir", filepath.Join(t.TempDir(), "served"))
	for _, where := range [][]string{{"--data-dir", filepath.Join(t.TempDir(), "data")}, {"--server", s.address(t)}} {
		create := func(name string, flags ...string) []string {
			return append(append([]string{"topic", "create", name}, flags...), where...)
		}
		if out := ok(t, "", create("a", "--bits", "1", "--if-not-exists")...); !strings.HasPrefix(out, "created topic a (") {
			t.Errorf("%s: created: %s", where, out)
		}
		fails(t, exitConflict, `"a"`, "", create("a")...)
		if out := ok(t, "", create("a", "--bits", "9", "--if-not-exists")...); !strings.HasPrefix(out, "topic a (") || !strings.HasSuffix(out, ") exists already, with 1 bit and no policy; it was left as it is\n") {
			t.Errorf("%s: created again: %s", where, out)
		}
		first := parse[createReport](t, ok(t, "", create("b", "--if-not-exists", "--json")...))
		again := parse[createReport](t, ok(t, "", create("b", "--if-not-exists", "--json")...))
		if first.Existed || !again.Existed || first.ID == "" || first.ID != again.ID {
			t.Errorf("%s: created twice: %+v, then %+v", where, first, again)
		}
	}
}

func TestTopics(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	in := func(args ...string) []string { return append(args, "--data-dir", dir) }
	ok(t, "", in("topic", "create", "a")...)
	ok(t, "", in("topic", "create", "b", "--bits", "2")...)
	if r := ringfence(t, "", in("topic", "create", "a")...); r.code != exitConflict || !strings.Contains(r.err, `"a"`) {
		t.Errorf("creating it twice: %+v", r)
	}
	for _, name := range []string{"", "a b", "../x", strings.Repeat("x", 300)} {
		if r := ringfence(t, "", in("topic", "create", name)...); r.code != exitUsage {
			t.Errorf("topic name %.20q: exit %d, %s", name, r.code, r.err)
		}
	}
	if r := ringfence(t, "", in("topic", "create", "c", "--bits", "40")...); r.code != exitUsage {
		t.Errorf("40 bits: %+v", r)
	}
	ok(t, lines(1000), in("produce", "a", "--key-regexp", `^\w+`)...)

	list := parse[[]topicReport](t, ok(t, "", in("topic", "ls", "--json")...))
	if len(list) != 2 || list[0].Name != "a" || list[0].Records != 1000 || list[1].Bits != 2 || list[1].Records != 0 {
		t.Errorf("topic ls: %+v", list)
	}
	if text := ok(t, "", in("topic", "ls")...); !strings.Contains(text, "1 000") || !strings.Contains(text, "TOPIC") {
		t.Errorf("topic ls: %s", text)
	}

	split := parse[map[string]uint32](t, ok(t, "", in("topic", "split", "a", "0", "--json")...))
	ok(t, lines(500), in("produce", "a", "--key-regexp", `^\w+`)...)
	d := parse[detailReport](t, ok(t, "", in("topic", "describe", "a", "--json")...))
	if d.Ranges != 2 || len(d.All) != 3 || d.All[0].Active || !d.All[1].Active || d.All[1].Parents[0] != 0 || d.Records != 1500 {
		t.Errorf("after the split into %v: %+v", split, d)
	}
	if text := ok(t, "", in("topic", "describe", "a")...); !strings.Contains(text, "sealed") || !strings.Contains(text, "[0%,50%)") || !strings.Contains(text, " [0,1000) ") || !strings.Contains(text, "(from 0)") || !strings.Contains(text, ".seg") {
		t.Errorf("topic describe: %s", text)
	}
	merged := parse[map[string]uint32](t, ok(t, "", in("topic", "merge", "a", "1", "2", "--json")...))
	if merged["range"] != 3 {
		t.Errorf("merged into %v", merged)
	}
	if got := strings.Count(ok(t, "", in("consume", "a")...), "\n"); got != 1500 {
		t.Errorf("%d lines after split and merge, want 1500", got)
	}

	for _, tt := range []struct {
		args []string
		code int
	}{
		{in("topic", "split", "a", "0"), exitConflict},  // sealed
		{in("topic", "split", "a", "99"), exitNotFound}, // no such range
		{in("topic", "split", "a", "x"), exitUsage},
		{in("topic", "split", "nope", "0"), exitNotFound},
		{in("topic", "merge", "a", "3", "3"), exitConflict},
		{in("topic", "describe", "nope"), exitNotFound},
		{in("topic", "delete", "nope", "--yes"), exitNotFound},
		{in("topic", "create"), exitUsage},
		{in("topic", "nonsense"), exitUsage},
		{in("topic", "ls", "--nonsense"), exitUsage},
		{in("nonsense"), exitUsage},
		{in("topic", "ls", "--io", "floppy"), exitUsage},
		{[]string{"topic", "ls"}, exitUsage}, // no data directory
		{[]string{"topic", "ls", "--data-dir", dir + "/missing"}, exitNotFound},
	} {
		if r := ringfence(t, "", tt.args...); r.code != tt.code || r.err == "" {
			t.Errorf("ringfence %s: exit %d, want %d: %s", strings.Join(tt.args, " "), r.code, tt.code, r.err)
		}
	}

	if r := ringfence(t, "b\n", in("topic", "delete", "a")...); r.code != exitFailed || !strings.Contains(r.err, "1 500 records") {
		t.Errorf("the wrong name deleted it: %+v", r)
	}
	ok(t, "a\n", in("topic", "delete", "a")...)
	if r := ringfence(t, "", in("consume", "a")...); r.code != exitNotFound {
		t.Errorf("consume of a deleted topic: %+v", r)
	}
}

func TestPolicies(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	in := func(args ...string) []string { return append(args, "--data-dir", dir) }
	ok(t, "", in("topic", "policy", "set", "week", "--max-age", "7d", "--max-bytes", "10GiB", "--segment-max-age", "off")...)
	list := parse[[]policyReport](t, ok(t, "", in("topic", "policy", "ls", "--json")...))
	want := policyReport{"week", 604800000.0, 10737418240.0, "off", "inherit"}
	if len(list) != 1 || list[0] != want {
		t.Errorf("policies: %+v, want %+v", list, want)
	}
	if text := ok(t, "", in("topic", "policy", "ls")...); !strings.Contains(text, "7d") || !strings.Contains(text, "10.0 GiB") {
		t.Errorf("policy ls: %s", text)
	}
	ok(t, "", in("topic", "create", "a", "--policy", "week")...)
	if d := parse[detailReport](t, ok(t, "", in("topic", "describe", "a", "--json")...)); d.Policy != "week" {
		t.Errorf("bound to %q", d.Policy)
	}
	ok(t, "", in("topic", "policy", "bind", "a")...)
	if d := parse[detailReport](t, ok(t, "", in("topic", "describe", "a", "--json")...)); d.Policy != "" {
		t.Errorf("still bound to %q", d.Policy)
	}
	for _, tt := range []struct {
		args []string
		code int
	}{
		{in("topic", "policy", "bind", "a", "nope"), exitNotFound},
		{in("topic", "create", "b", "--policy", "nope"), exitNotFound},
		{in("topic", "create", "b", "--bits", "0"), exitUsage},
		{in("topic", "describe", "b"), exitNotFound}, // neither made it
		{in("topic", "policy", "bind", "nope", "week"), exitNotFound},
		{in("topic", "policy", "delete", "nope"), exitNotFound},
		{in("topic", "policy", "set", "x", "--max-age", "soon"), exitUsage},
		{in("topic", "policy", "set", "x", "--segment-max-bytes", "0"), exitUsage},
	} {
		if r := ringfence(t, "", tt.args...); r.code != tt.code {
			t.Errorf("ringfence %s: exit %d, want %d: %s", strings.Join(tt.args, " "), r.code, tt.code, r.err)
		}
	}
	for _, says := range []struct{ flag, value, words string }{
		{"--segment-max-age", "5s", `policy "x": invalid policy: SegmentMaxAge is 5000 ms: want 60000 ms (1m) to 3153600000000 ms (36500d), or off`},
		{"--segment-max-bytes", "1", "SegmentMaxBytes is 1 bytes: want 1048576 bytes (1 MiB) to 1152921504606846976 bytes (1048576 TiB), or off"},
		{"--max-bytes", "2000000TiB", "MaxBytes is 2199023255552000000 bytes (2000000 TiB): want 0 bytes to"},
		{"--max-bytes", "9000000TiB", `size "9000000TiB": want a number of bytes`},
		{"--max-age", "99999d", "up to 36500d"},
		{"--max-age", "2000000h", "up to 36500d"},
		{"--max-age", "1us", "want a millisecond or more"},
		{"--max-bytes", "-1", `"-1" for "--max-bytes"`},
	} {
		if r := ringfence(t, "", in("topic", "policy", "set", "x", says.flag, says.value)...); r.code != exitUsage || !strings.Contains(r.err, says.words) {
			t.Errorf("%s %s: %+v, want %q", says.flag, says.value, r, says.words)
		}
	}
	ok(t, "", in("topic", "policy", "bind", "a", "week")...)
	if r := ringfence(t, "", in("topic", "policy", "delete", "week")...); r.code != exitConflict || !strings.Contains(r.err, "bound to it: a;") || !strings.Contains(r.err, "--force") {
		t.Errorf("deleting a policy that is bound: %+v", r)
	}
	ok(t, "", in("topic", "policy", "delete", "week", "--force")...)
	if d := parse[detailReport](t, ok(t, "", in("topic", "describe", "a", "--json")...)); d.Policy != "week" {
		t.Errorf("bound to %q after the policy was deleted by force", d.Policy)
	}
	if text := ok(t, "", in("topic", "policy", "ls")...); !strings.Contains(text, "no policies") {
		t.Errorf("after the deletion: %s", text)
	}
}

// What a policy lets go is gone when the command ends, and the space with it. Before that
// the command says what goes, and nothing is changed unless that is wanted.
func TestPolicyIsAppliedAtOnce(t *testing.T) {
	dir, _ := filled(t, 100)
	in := func(args ...string) []string { return append(args, "--data-dir", dir) }
	for range 3 {
		ok(t, lines(100), in("produce", "t")...)
	}
	records := func(want uint64) {
		t.Helper()
		if list := parse[[]topicReport](t, ok(t, "", in("topic", "ls", "--json")...)); list[0].Records != want {
			t.Errorf("%+v, want %d records", list, want)
		}
	}
	if n := len(segments(t, dir)); n != 4 {
		t.Fatalf("%d segments", n)
	}
	one := parse[detailReport](t, ok(t, "", in("topic", "describe", "t", "--json")...)).All[0].Segments[3].Bytes
	set := func(size uint64) []string {
		return in("topic", "policy", "set", "p", "--max-bytes", fmt.Sprint(size))
	}
	refused := func(code int, r ran, says ...string) {
		t.Helper()
		for _, words := range append(says, "topic t", "nothing was changed") {
			if r.code != code || !strings.Contains(r.err, words) {
				t.Errorf("no %q, or not exit %d, in %+v", words, code, r)
			}
		}
	}

	ok(t, "", set(2*one+one/2)...) // nothing is bound to it
	refused(exitFailed, ringfence(t, "no\n", in("topic", "policy", "bind", "t", "p")...), "2 closed segments with 200 records")
	records(400)
	ok(t, "yes\n", in("topic", "policy", "bind", "t", "p")...)
	records(200)
	ok(t, "", set(2*one+one/2)...) // which takes no more
	refused(exitUsage, ringfence(t, "", set(0)...), "2 closed segments with 200 records")
	records(200)
	ok(t, "", append(set(0), "--yes")...)
	records(0)

	ok(t, lines(10), in("produce", "t")...)
	refused(exitFailed, ringfence(t, "no\n", in("topic", "policy", "set", "p", "--max-age", "1ms")...), "with 10 records (")
	addr := serveIt(t, "--data-dir", dir).address(t)
	refused(exitFailed, ringfence(t, "no\n", "topic", "policy", "set", "p", "--max-age", "1ms", "--server", addr), "with 10 records (")
	ok(t, "", "topic", "policy", "bind", "t", "--server", addr)
	if list := parse[[]topicReport](t, ok(t, "", "topic", "ls", "--json", "--server", addr)); list[0].Records != 10 {
		t.Errorf("%+v", list)
	}
}

// A topic whose policy was forgotten says so.
func TestForgottenPolicy(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "d")
	in := func(args ...string) []string { return append(args, "--data-dir", dir) }
	ok(t, "", in("topic", "policy", "set", "week", "--max-age", "7d")...)
	ok(t, "", in("topic", "create", "t", "--policy", "week")...)
	if out := ok(t, "", in("topic", "describe", "t")...); !strings.Contains(out, "policy week\n") {
		t.Errorf("%s", out)
	}
	ok(t, "", in("topic", "policy", "delete", "week", "--force")...)
	if out := ok(t, "", in("topic", "describe", "t")...); !strings.Contains(out, "policy week, which is not defined: nothing expires until it is") {
		t.Errorf("%s", out)
	}
	if out := ok(t, "", in("topic", "ls")...); !strings.Contains(out, "week (not defined)") {
		t.Errorf("%s", out)
	}
	addr := serveIt(t, "--data-dir", dir).address(t)
	if r := parse[topicReport](t, ok(t, "", "topic", "describe", "t", "--json", "--server", addr)); r.Policy != "week" || !r.Missing {
		t.Errorf("through a server: %+v", r)
	}
	ok(t, "", "topic", "policy", "set", "week", "--max-age", "7d", "--server", addr)
	if r := parse[topicReport](t, ok(t, "", "topic", "describe", "t", "--json", "--server", addr)); r.Policy != "week" || r.Missing {
		t.Errorf("defined again: %+v", r)
	}
}

// How long a server may take to answer is for whoever asks to say.
func TestTimeout(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0") // takes connections and says nothing
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if r := ringfence(t, "", "topic", "ls", "--server", l.Addr().String(), "--timeout", "50ms"); r.code != exitUnreachable || r.err == "" {
		t.Errorf("%+v", r)
	}
	if r := ringfence(t, "", "topic", "ls", "--server", l.Addr().String(), "--timeout", "0s"); r.code != exitUsage || !strings.Contains(r.err, "--timeout") {
		t.Errorf("%+v", r)
	}
}
