package main

import (
	"path/filepath"
	"strings"
	"testing"
)

// What an administrator logs in with is not taken away from the last one, on a data
// directory and through a server, and 'user describe' tells who is locked out for how long.
func TestNobodyIsLockedOut(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "d")
	fails(t, exitConflict, "the first user has to have a password", "", "user", "add", "root", "--admin", "--no-password", "--data-dir", dir)
	s := serveIt(t, "--data-dir", dir)
	t.Setenv(serverVar, s.address(t))
	as(t, "", "")
	fails(t, exitConflict, "the first user has to have a password", "", "user", "add", "root", "--admin", "--no-password")
	ok(t, "the admin's secret", "user", "add", "root", "--admin")
	as(t, "root", "the admin's secret")
	fails(t, exitConflict, "who can log in", "", "user", "passwd", "root", "--no-password")
	ok(t, "alice's own secret", "user", "add", "alice")

	if out := ok(t, "", "user", "describe", "alice"); strings.Contains(out, "locked") || strings.Contains(out, "wrong") {
		t.Errorf("before: %s", out)
	}
	as(t, "alice", "not the password")
	fails(t, exitDenied, "wrong", "", "topic", "ls")
	as(t, "root", "the admin's secret")
	if out := ok(t, "", "user", "describe", "alice"); !strings.Contains(out, "logins    1 wrong password since") {
		t.Errorf("one wrong password: %s", out)
	}
	as(t, "alice", "not the password")
	for range 4 {
		fails(t, exitDenied, "wrong", "", "topic", "ls")
	}
	fails(t, exitDenied, "locked out", "", "topic", "ls")
	as(t, "root", "the admin's secret")
	if out := ok(t, "", "user", "describe", "alice"); !strings.Contains(out, "locked    out at 127.0.0.1 until 20") || !strings.Contains(out, "5 wrong passwords; 'ringfence user passwd alice' lifts that") {
		t.Errorf("locked out: %s", out)
	}
	if d := parse[userDetail](t, ok(t, "", "user", "describe", "alice", "--json")); d.Wrong != 5 || d.At != 1 || d.From != "127.0.0.1" || d.Until == nil || !d.Until.After(d.Created) {
		t.Errorf("locked out: %+v", d)
	}
	ok(t, "alice's new secret", "user", "passwd", "alice")
	if d := parse[userDetail](t, ok(t, "", "user", "describe", "alice", "--json")); d.Wrong != 0 || d.At != 0 || d.Until != nil {
		t.Errorf("with another password: %+v", d)
	}
}

// With --tls-client-ca an administrator needs no password, until a start without it, which
// says so.
func TestAdministratorsOfCertificatesAlone(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "d")
	cert, key, _ := certificates(t, t.TempDir(), "root") // its own authority
	tls := []string{"--data-dir", dir, "--tls-cert", cert, "--tls-key", key}
	s := serveIt(t, append(tls, "--tls-client-ca", cert)...)
	addr := s.address(t)
	at := []string{"--server", "tls://localhost" + addr[strings.LastIndex(addr, ":"):], "--server-ca", cert, "--client-cert", cert, "--client-key", key}
	as(t, "", "")
	ok(t, "", append(at, "user", "add", "root", "--admin", "--no-password")...)
	ok(t, "", append(at, "topic", "create", "t")...)
	if log := s.log.String(); strings.Contains(log, "no administrator can log in") {
		t.Errorf("the log says\n%s", log)
	}
	s.end(t)
	s = serveIt(t, tls...)
	s.find(t, "(no administrator can log in: none has a password or a token.*user passwd NAME)")
	s.end(t)
	ok(t, "the admin's secret", "user", "passwd", "root", "--data-dir", dir)
	s = serveIt(t, tls...)
	s.address(t)
	if log := s.log.String(); strings.Contains(log, "no administrator can log in") {
		t.Errorf("the log says\n%s", log)
	}
}
