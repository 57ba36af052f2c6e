package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// as runs command lines as somebody: a user with a password, or "" with a token.
func as(t *testing.T, user, secret string) {
	t.Helper()
	for _, name := range []string{userVar, passwordVar, tokenVar} {
		t.Setenv(name, "")
	}
	if user == "" {
		t.Setenv(tokenVar, secret)
		return
	}
	t.Setenv(userVar, user)
	t.Setenv(passwordVar, secret)
}

// fails runs a command line that must end with a code, and say something.
func fails(t *testing.T, code int, says string, in string, args ...string) {
	t.Helper()
	if r := ringfence(t, in, args...); r.code != code || !strings.Contains(r.err, says) {
		t.Errorf("ringfence %s: exit %d, want %d, and %q:\n%s%s", strings.Join(args, " "), r.code, code, says, r.out, r.err)
	}
}

func secretFile(t *testing.T, secret string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(name, []byte(secret+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// Where other machines reach a server its first start makes an administrator, whose
// password is shown once; nobody gets in without one.
func TestServeFirstStart(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "d")
	cert, key, _ := certificates(t, t.TempDir(), "server")
	args := []string{"--data-dir", dir, "--listen", "0.0.0.0:0", "--tls-cert", cert, "--tls-key", key}
	s := serveIt(t, args...)
	password := s.find(t, `(?m)^  password: (\S+)$`)
	at := func(s *served) []string {
		addr := s.address(t)
		return []string{"--server", "tls://localhost" + addr[strings.LastIndex(addr, ":"):], "--server-ca", cert}
	}
	list := append(at(s), "topic", "ls")
	as(t, "", "")
	fails(t, exitDenied, "give --user", "", list...)
	as(t, adminName, "not "+password)
	fails(t, exitDenied, "user or secret is wrong", "", list...)
	as(t, adminName, password)
	ok(t, "", list...)
	s.end(t)
	if n := strings.Count(s.log.String(), password); n != 1 {
		t.Errorf("the password is %d times in what the server says:\n%s", n, s.log)
	}
	for _, audit := range []string{`what=login user=admin .* outcome=done`, `what=login user=admin .* outcome=refused`} {
		s.find(t, "("+audit+")")
	}

	again := serveIt(t, args...)
	ok(t, "", append(at(again), "topic", "ls")...)
	again.end(t)
	if strings.Contains(again.log.String(), "password:") {
		t.Errorf("a second start shows a password:\n%s", again.log)
	}

	// Who has the directory has the server.
	fails(t, exitUsage, "password not allowed", "short", "user", "passwd", adminName, "--data-dir", dir)
	ok(t, "another password\n", "user", "passwd", adminName, "--data-dir", dir)
	third := serveIt(t, args...)
	fails(t, exitDenied, "user or secret is wrong", "", append(at(third), "topic", "ls")...)
	as(t, adminName, "another password")
	ok(t, "", append(at(third), "topic", "ls")...)
}

// The password of the administrator can be told, on whatever address.
func TestServeAdminPasswordFile(t *testing.T) {
	s := serveIt(t, "--data-dir", filepath.Join(t.TempDir(), "d"), "--admin-password-file", secretFile(t, "correct horse battery"))
	addr := s.address(t)
	as(t, "", "")
	fails(t, exitDenied, "credentials", "", "topic", "ls", "--server", addr)
	ok(t, "", "topic", "ls", "--server", addr, "--user", adminName, "--password-file", secretFile(t, "correct horse battery"))
	if log := s.log.String(); strings.Contains(log, "correct horse") || strings.Contains(log, "password: ") {
		t.Errorf("the password is in the log:\n%s", log)
	}
}

// On loopback everybody gets in until there is a user, and then those whom it was
// granted, through every kind of credential.
func TestServeUsers(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "d")
	s := serveIt(t, "--data-dir", dir)
	t.Setenv(serverVar, s.address(t))
	as(t, "", "")
	ok(t, "", "topic", "create", "orders-eu")
	if out := ok(t, "", "user", "ls"); !strings.Contains(out, "no users") {
		t.Errorf("without users: %s", out)
	}
	fails(t, exitConflict, "--admin", "alice's own secret\n", "user", "add", "alice")
	ok(t, "the admin's secret", "user", "add", "root", "--admin")
	fails(t, exitDenied, "credentials", "", "topic", "ls")
	as(t, "root", "the admin's secret")
	ok(t, "alice's own secret\n", "user", "add", "alice")
	fails(t, exitConflict, "exists already", "alice's own secret\n", "user", "add", "alice")
	ok(t, "", "user", "add", "robot", "--no-password")
	fails(t, exitUsage, "want one of", "", "acl", "grant", "alice", "users", "topic", "x")
	fails(t, exitUsage, "which topic", "", "acl", "grant", "alice", "produce", "topic")
	fails(t, exitUsage, "kind", "", "acl", "grant", "alice", "produce", "planet", "x")
	fails(t, exitUsage, "operation", "", "acl", "grant", "alice", "dance", "topic", "x")
	fails(t, exitNotFound, "no such user", "", "acl", "grant", "nobody", "produce", "topic", "x")
	fails(t, exitNotFound, "no such user", "", "user", "delete", "nobody")
	ok(t, "", "acl", "grant", "alice", "produce", "topic", "orders*")
	ok(t, "", "acl", "grant", "robot", "all", "topic", "orders*")

	as(t, "alice", "alice's own secret")
	ok(t, "one\n", "produce", "orders-eu")
	fails(t, exitDenied, "may not consume", "", "consume", "orders-eu", "--from", "start")
	fails(t, exitDenied, "may not create", "", "topic", "create", "orders-us")
	fails(t, exitDenied, "may not manage users", "", "user", "ls")
	if out := ok(t, "", "topic", "ls"); !strings.Contains(out, "orders-eu") {
		t.Errorf("alice sees %s", out)
	}

	as(t, "root", "the admin's secret")
	made := parse[tokenReport](t, ok(t, "", "--json", "user", "token", "create", "robot", "--name", "ci", "--expires", "90d"))
	if made.User != "robot" || made.Name != "ci" || made.Expires == nil || made.Secret == "" {
		t.Errorf("made %+v", made)
	}
	if secret := ok(t, "", "user", "token", "create", "robot"); !strings.HasPrefix(secret, "rft_") || strings.Count(secret, "\n") != 1 {
		t.Errorf("standard output has %q", secret)
	}
	as(t, "", made.Secret)
	if out := ok(t, "", "consume", "orders-eu", "--from", "start"); !strings.Contains(out, "one") {
		t.Errorf("robot reads %q", out)
	}
	as(t, "root", "the admin's secret")
	if list := parse[[]tokenReport](t, ok(t, "", "--json", "user", "token", "ls", "robot")); len(list) != 2 || list[0].Secret != "" {
		t.Errorf("tokens %+v", list)
	}
	ok(t, "", "user", "token", "delete", made.ID)
	fails(t, exitNotFound, "no such token", "", "user", "token", "delete", made.ID)
	as(t, "", made.Secret)
	fails(t, exitDenied, "wrong", "", "topic", "ls")

	as(t, "root", "the admin's secret")
	ok(t, "", "acl", "revoke", "alice", "produce", "topic", "orders*")
	fails(t, exitNotFound, "no such grant", "", "acl", "revoke", "alice", "produce", "topic", "orders*")
	if list := parse[[]grantReport](t, ok(t, "", "--json", "acl", "ls")); len(list) != 2 ||
		list[0] != (grantReport{"robot", "all", "topic", "orders*"}) || list[1] != (grantReport{"root", "all", "cluster", "*"}) {
		t.Errorf("granted %+v", list)
	}
	if out := ok(t, "", "acl", "ls", "alice"); !strings.Contains(out, "nothing was granted") {
		t.Errorf("alice has %s", out)
	}
	ok(t, "", "quota", "set", "alice", "--records", "500")
	if out := ok(t, "", "quota", "set", "alice", "--bytes", "2MiB"); !strings.Contains(out, "500 records/s, 2.0 MiB/s") {
		t.Errorf("quota %s", out)
	}
	fails(t, exitUsage, "which quota", "", "quota", "set", "alice")
	fails(t, exitNotFound, "no such user", "", "quota", "set", "nobody", "--records", "1")
	for _, u := range parse[[]userReport](t, ok(t, "", "--json", "user", "ls")) {
		if u.User == "alice" && (u.Records != 500 || u.Bytes != 2<<20 || !u.Password) {
			t.Errorf("alice is %+v", u)
		}
	}
	fails(t, exitConflict, "make another one first", "", "user", "delete", "root", "--yes")
	fails(t, exitConflict, "make another one first", "", "acl", "revoke", "root", "all", "cluster")
	fails(t, exitFailed, "Delete user alice with 0 grants and 0 tokens? Type the user's name: \n", "yes\n", "user", "delete", "alice")
	fails(t, exitUsage, "nothing was deleted", "", "user", "delete", "alice")
	ok(t, "alice\n", "user", "delete", "alice")
	as(t, "alice", "alice's own secret")
	fails(t, exitDenied, "wrong", "", "topic", "ls")
	s.find(t, `(what=DeleteUser user=root .* outcome=done about=alice)`)
	s.find(t, `(what=Grant user=root .* about="robot: all on topic)`)
	if log := s.log.String(); strings.Contains(log, "secret\"") || strings.Contains(log, made.Secret) {
		t.Errorf("secrets are in the log:\n%s", log)
	}
	s.end(t)

	fails(t, exitConflict, "make another one first", "", "user", "delete", "root", "--yes", "--data-dir", dir)
	fresh := filepath.Join(t.TempDir(), "d")
	ok(t, "", "topic", "create", "x", "--data-dir", fresh)
	fails(t, exitConflict, "--admin", "alice's own secret\n", "user", "add", "alice", "--data-dir", fresh)
	ok(t, "the admin's secret\n", "user", "add", "root", "--admin", "--data-dir", fresh)
	fails(t, exitUsage, "It is the last user", "", "user", "delete", "root", "--data-dir", fresh)
	ok(t, "", "user", "delete", "root", "--yes", "--data-dir", fresh)

	open := serveIt(t, "--data-dir", dir, "--no-auth")
	t.Setenv(serverVar, open.address(t))
	as(t, "", "")
	ok(t, "", "topic", "ls")
}

// Credentials that do not say who it is are mistakes of the command line.
func TestCredentials(t *testing.T) {
	t.Setenv(serverVar, "127.0.0.1:1")
	as(t, "alice", "")
	fails(t, exitUsage, "password of user \"alice\" is missing", "", "topic", "ls")
	as(t, "alice", "x")
	t.Setenv(tokenVar, "y")
	fails(t, exitUsage, "both set", "", "topic", "ls")
	as(t, "", "")
	fails(t, exitUsage, "whose?", "", "topic", "ls", "--password-file", secretFile(t, "x"))
	fails(t, exitUsage, "no such file", "", "topic", "ls", "--user", "alice", "--password-file", filepath.Join(t.TempDir(), "none"))
	for what, in := range map[string]string{"empty": "", "two lines": "a\nb\n", "long": strings.Repeat("x", maxSecret+1)} {
		if s, err := secretLine(strings.NewReader(in)); err == nil {
			t.Errorf("%s: read %q", what, s)
		}
	}
	for in, want := range map[string]string{"a b": "a b", "a\n": "a", "a\r\n": "a", " a \n": " a "} {
		if s, err := secretLine(strings.NewReader(in)); s != want || err != nil {
			t.Errorf("%q is read as %q, %v", in, s, err)
		}
	}
}

// Whoever logs in can change his own password, with the old one and nothing else.
func TestOwnPassword(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "d")
	s := serveIt(t, "--data-dir", dir)
	t.Setenv(serverVar, s.address(t))
	as(t, "", "")
	fails(t, exitUsage, "whose password?", "a new password of mine\n", "user", "passwd")
	ok(t, "the admin's secret\n", "user", "add", "root", "--admin")
	as(t, "root", "the admin's secret")
	ok(t, "alice's own secret\n", "user", "add", "alice")
	token := strings.TrimSpace(ok(t, "", "user", "token", "create", "alice"))
	as(t, "alice", "alice's own secret")
	fails(t, exitDenied, "may not manage users", "a new password of mine\n", "user", "passwd", "alice")
	fails(t, exitUsage, "password not allowed", "short\n", "user", "passwd")
	fails(t, exitUsage, "whose?", "", "user", "passwd", "--no-password")
	if out := ok(t, "a new password of mine\n", "user", "passwd"); !strings.Contains(out, "user alice has another password") {
		t.Errorf("%s", out)
	}
	fails(t, exitDenied, "user or secret is wrong", "one more password of mine\n", "user", "passwd")
	as(t, "alice", "a new password of mine")
	ok(t, "", "topic", "ls")
	as(t, "", token)
	fails(t, exitUsage, "whose password?", "a new password of mine\n", "user", "passwd")
	s.find(t, "(what=ChangePassword user=alice .* outcome=done)")
}

// What became of logins, and who reads what, is told among the metrics.
func TestMetricsOfUsersAndGroups(t *testing.T) {
	s := serveIt(t, "--data-dir", filepath.Join(t.TempDir(), "d"), "--admin-password-file", secretFile(t, "correct horse battery"))
	t.Setenv(serverVar, s.address(t))
	admin := s.adminURL(t)
	as(t, adminName, "not the password")
	for range 5 {
		fails(t, exitDenied, "user or secret is wrong", "", "topic", "ls")
	}
	fails(t, exitDenied, "locked out", "", "topic", "ls")
	as(t, "nobody", "not the password")
	fails(t, exitDenied, "user or secret is wrong", "", "topic", "ls")
	_, body := get(t, admin+"/metrics")
	for _, line := range []string{
		`ringfence_logins_total{result="ok"} 0`, `ringfence_logins_total{result="wrong"} 6`, `ringfence_logins_total{result="locked_out"} 1`,
		`ringfence_logins_total{result="rate_limited"} 0`, `ringfence_logins_total{result="failed"} 0`,
		"ringfence_lockouts_total 1", "ringfence_groups 0", "ringfence_group_members 0",
	} {
		if !strings.Contains(body, line+"\n") {
			t.Errorf("no %s in\n%s", line, grepped(body, "login|lockout|group"))
		}
	}
}

// A quota that slows somebody down is no failure: it is counted apart, and told.
func TestThrottledIsNoFailure(t *testing.T) {
	s := serveIt(t, "--data-dir", filepath.Join(t.TempDir(), "d"), "--admin-password-file", secretFile(t, "correct horse battery"))
	t.Setenv(serverVar, s.address(t))
	as(t, adminName, "correct horse battery")
	ok(t, "", "topic", "create", "t")
	ok(t, "", "quota", "set", adminName, "--bytes", "32KiB")
	line := strings.Repeat("x", 1000) + "\n"
	if out := ok(t, strings.Repeat(line, 60), "produce", "t", "--batch", "4KiB"); !strings.Contains(out, "slowed down by the user's quota") {
		t.Errorf("%s", out)
	}
	_, body := get(t, s.adminURL(t)+"/metrics")
	if regexp.MustCompile(`ringfence_requests_failed_total\{reason="(rate_limited|producer_halted)"\} [1-9]`).MatchString(body) || strings.Contains(body, "ringfence_requests_throttled_total 0\n") {
		t.Errorf("%s", grepped(body, "requests_"))
	}
}

func TestMetricsOfGroups(t *testing.T) {
	s := serveIt(t, "--data-dir", filepath.Join(t.TempDir(), "d"))
	t.Setenv(serverVar, s.address(t))
	as(t, "", "")
	ok(t, lines(100), "produce", "t", "--create")
	ok(t, "", "topic", "split", "t", "0")
	ok(t, "", "consume", "t", "--group", "alone", "--max", "40")
	ok(t, "", "consume", "t", "--group", "shared", "--member", "a") // and leaves
	fails(t, exitNotFound, "none", "", "topic", "describe", "none")
	_, body := get(t, s.adminURL(t)+"/metrics")
	for _, line := range []string{
		`ringfence_group_lag_records{group="alone",topic="t"} 60`, `ringfence_group_lag_records{group="shared",topic="t"} 0`,
		"ringfence_groups 0", "ringfence_group_members 0", "# TYPE ringfence_group_lag_records gauge",
	} {
		if strings.Count(body, line+"\n") != 1 {
			t.Errorf("not once: %s in\n%s", line, grepped(body, "group"))
		}
	}
	for _, some := range []string{
		"flush_seconds_count", `flush_seconds_bucket{le="+Inf"}`, "flush_seconds_sum", "fence_seconds_count", "stored_bytes", "free_bytes", "recovery_seconds",
		`requests_total{request="Produce"}`, `requests_failed_total{reason="no_such_topic"}`,
	} {
		if !regexp.MustCompile(`(?m)^ringfence_` + regexp.QuoteMeta(some) + ` .*[1-9]`).MatchString(body) {
			t.Errorf("no %s in\n%s", some, grepped(body, "seconds|bytes|requests"))
		}
	}
	if strings.Contains(body, "ringfence_group_generations_total 0\n") {
		t.Error("a member came and went, and no generation did")
	}
}

// grepped is the lines of a text that match.
func grepped(text, pattern string) string {
	return strings.Join(regexp.MustCompile(`(?m)^.*(`+pattern+`).*$`).FindAllString(text, -1), "\n")
}
