package main

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// What there are several of can be listed, shown and deleted, under the names that
// people look for.
func TestNouns(t *testing.T) {
	all := commands(t)
	for noun, verbs := range map[string]string{
		"topic": "create ls list describe show delete rm", "topic policy": "set ls list delete rm", "group": "ls list describe show reset delete rm",
		"user": "add ls list describe show passwd delete rm", "user token": "create ls list delete rm", "acl": "grant revoke ls list",
		"quota": "set ls list delete rm", "context": "add use ls list describe show delete rm",
	} {
		for _, verb := range strings.Fields(verbs) {
			cmd, _, err := all[noun].Find([]string{verb})
			if err != nil || cmd == all[noun] || cmd.Name() != verb && !slices.Contains(cmd.Aliases, verb) {
				t.Errorf("there is no '%s %s': %v", noun, verb, err)
			}
		}
	}
}

// What users have is listed of one and of all, in a data directory and through a server.
func TestListsOfUsers(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "d")
	s := serveIt(t, "--data-dir", dir)
	look := func(at ...string) {
		t.Helper()
		do := func(line string) string { t.Helper(); return ok(t, "", append(strings.Fields(line), at...)...) }
		no := func(code int, says, line string) {
			t.Helper()
			fails(t, code, says, "", append(strings.Fields(line), at...)...)
		}
		if got := parse[[]quotaReport](t, do("quota ls --json")); !slices.Equal(got, []quotaReport{{"alice", 500, 0}, {"robot", 0, 2 << 20}}) {
			t.Errorf("quotas %+v", got)
		}
		if out := do("quota list"); !strings.Contains(out, "alice  500        -") || !strings.Contains(out, "robot  -          2.0 MiB") || strings.Contains(out, "zoe") {
			t.Errorf("quotas: %s", out)
		}
		if got := parse[[]quotaReport](t, do("quota ls zoe --json")); !slices.Equal(got, []quotaReport{{User: "zoe"}}) {
			t.Errorf("no quota is %+v", got)
		}
		no(exitNotFound, "no such user", "quota ls nobody")
		no(exitUsage, "user name", "quota ls a\x01")
		no(exitUsage, "user name", "quota set a\x01 --records 1")
		no(exitUsage, "user name", "user describe a\x01")
		no(exitNotFound, "no such user", "user describe nobody")
		no(exitNotFound, "no such user", "user token ls nobody")
		no(exitNotFound, "no such user", "quota delete nobody")
		tokens := parse[[]tokenReport](t, do("user token ls --json"))
		if len(tokens) != 2 || tokens[0].User != "alice" || tokens[1].User != "robot" || tokens[0].Secret != "" {
			t.Errorf("tokens %+v", tokens)
		}
		if out := do("user token ls"); !strings.Contains(out, "ci") || !strings.Contains(out, "never") {
			t.Errorf("tokens: %s", out)
		}
		if out := do("user token ls zoe"); !strings.Contains(out, "user zoe has no tokens") {
			t.Errorf("no tokens: %s", out)
		}
		d := parse[userDetail](t, do("user describe alice --json"))
		if !d.Password || d.Records != 500 || len(d.Grants) != 1 || d.Grants[0] != (grantReport{"alice", "produce", "topic", "orders*"}) || len(d.Tokens) != 1 || d.Tokens[0].Name != "ci" {
			t.Errorf("alice is %+v", d)
		}
		if out := do("user show alice"); !strings.Contains(out, "500 records/s") || !strings.Contains(out, `produce on topic "orders*"`) || !strings.Contains(out, " ci, expires 20") {
			t.Errorf("alice: %s", out)
		}
		if out := do("user show zoe"); !strings.Contains(out, "password  has none") || !strings.Contains(out, "grants    none") {
			t.Errorf("zoe: %s", out)
		}
	}
	server := []string{"--server", s.address(t)}
	do := func(in, line string) { t.Helper(); ok(t, in, append(strings.Fields(line), server...)...) }
	if out := ok(t, "", append([]string{"quota", "ls"}, server...)...); !strings.Contains(out, "no quotas; set one with") {
		t.Errorf("without quotas: %s", out)
	}
	do("the admin's secret", "user add root --admin")
	as(t, "root", "the admin's secret")
	do("alice's own secret", "user add alice")
	do("", "user add robot --no-password")
	do("", "user add zoe --no-password")
	do("", "acl grant alice produce topic orders*")
	do("", "quota set alice --records 500")
	do("", "quota set robot --bytes 2MiB")
	do("", "user token create alice --name ci --expires 90d")
	do("", "user token create robot")
	look(server...)
	s.end(t)
	look("--data-dir", dir)
	ok(t, "", "quota", "delete", "alice", "--data-dir", dir)
	if got := parse[[]quotaReport](t, ok(t, "", "quota", "ls", "--json", "--data-dir", dir)); len(got) != 1 || got[0].User != "robot" {
		t.Errorf("after one was deleted: %+v", got)
	}
}
