package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A server that takes only clients with a certificate says so to one that has none, and to
// one whose certificate is of somebody else.
func TestServerWantsACertificate(t *testing.T) {
	cert, key, _ := certificates(t, t.TempDir(), "root") // its own authority
	alien, alienKey, _ := certificates(t, t.TempDir(), "alien")
	s := serveIt(t, "--data-dir", filepath.Join(t.TempDir(), "d"), "--tls-cert", cert, "--tls-key", key, "--tls-client-ca", cert)
	addr := s.address(t)
	port := addr[strings.LastIndex(addr, ":"):]
	as(t, "", "")
	at := []string{"topic", "ls", "--server", "tls://localhost" + port, "--server-ca", cert}
	fails(t, exitUnreachable, "takes only clients with a certificate of its authority (serve --tls-client-ca): give --client-cert and --client-key", "", at...)
	fails(t, exitUnreachable, "does not take the certificate of --client-cert", "", append(at, "--client-cert", alien, "--client-key", alienKey)...)
	fails(t, exitUnreachable, "name the server as its certificate does", "", "topic", "ls", "--server", "tls://127.0.0.1"+port, "--server-ca", cert)
	ok(t, "", append(at, "--client-cert", cert, "--client-key", key)...)
}

// Who comes to the wrong one of a server's two addresses is told which it is.
func TestTheOtherAddressOfAServer(t *testing.T) {
	cert, _, _ := certificates(t, t.TempDir(), "x")
	dir := t.TempDir()
	s := serveIt(t, "--data-dir", filepath.Join(dir, "d"), "--shm", filepath.Join(dir, "shm"))
	clients, admin := s.address(t), strings.TrimPrefix(s.adminURL(t), "http://")
	as(t, "", "")
	for _, args := range [][]string{{"--server", admin}, {"--server", "tls://" + admin, "--server-ca", cert}} {
		fails(t, map[bool]int{true: exitFailed, false: exitUnreachable}[len(args) == 2], "is it the admin address of a server (serve --admin), which speaks HTTP", "", append(args, "topic", "ls")...)
	}
	fails(t, exitUnreachable, clients+" does not speak HTTP, as an admin address does: clients may reach the server there", "", "shm", "--admin", clients)
	for _, flag := range []string{"--server=" + clients, "--server=unix:" + filepath.Join(dir, "shm"), "--context=x", "--user=x", "--data-dir=" + dir, "--server-ca=" + cert} {
		fails(t, exitUsage, "asks the admin address of a server, not the one of clients: give what 'serve --admin' says with --admin HOST:PORT", "", "shm", flag)
	}
	t.Setenv(serverVar, clients) // of which it need not know
	ok(t, "", "shm", "--admin", admin, "--timeout", "20s")
}

// An address that nothing can be reached at is told with what named it.
func TestWhoseAddressIsWrong(t *testing.T) {
	home := t.TempDir()
	environ := []string{"HOME=" + home}
	if code, said := with(t, environ, "context", "add", "prod", "--server", "log.example:4040"); code != exitOK {
		t.Fatal(said)
	}
	file := filepath.Join(home, ".config", "ringfence", "contexts.json")
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	write(t, file, strings.Replace(string(b), "log.example:4040", "log.example:no such port", 1))
	for _, c := range []struct {
		says string
		env  string
		args []string
	}{
		{`what context "prod" ('ringfence context add --force' replaces it) says`, "", nil},
		{`what context "prod" ('ringfence context add --force' replaces it) says`, "", []string{"--context", "prod"}},
		{"what RINGFENCE_SERVER says", "RINGFENCE_SERVER=nonsense", nil},
		{"what --server says", "RINGFENCE_SERVER=127.0.0.1:1", []string{"--server", "nonsense"}},
	} {
		if code, said := with(t, append(environ, c.env), append(c.args, "topic", "ls")...); code != exitUsage || !strings.Contains(said, c.says) {
			t.Errorf("%s %v: exit %d: %s, want %q", c.env, c.args, code, said, c.says)
		}
	}
	write(t, file, strings.Replace(string(b), "log.example:4040", "127.0.0.1:1", 1))
	if code, said := with(t, environ, "topic", "ls"); code != exitUnreachable || !strings.Contains(said, `The address 127.0.0.1:1 is what context "prod"`) {
		t.Errorf("exit %d: %s", code, said)
	}
}

// Who may see nothing is not told that there is nothing.
func TestNothingThatYouMaySee(t *testing.T) {
	s := serveIt(t, "--data-dir", filepath.Join(t.TempDir(), "d"))
	t.Setenv(serverVar, s.address(t))
	as(t, "", "")
	if out := ok(t, "", "topic", "ls"); !strings.HasPrefix(out, "no topics; ") {
		t.Errorf("everybody: %s", out)
	}
	ok(t, lines(10), "produce", "secrets", "--create")
	ok(t, "", "consume", "secrets", "--group", "g")
	ok(t, "the admin's secret", "user", "add", "root", "--admin")
	as(t, "root", "the admin's secret")
	ok(t, "alice's own secret", "user", "add", "alice")
	as(t, "alice", "alice's own secret")
	if out := ok(t, "", "topic", "ls"); !strings.HasPrefix(out, "no topics that you may see; ") {
		t.Errorf("alice: %s", out)
	}
	if out := ok(t, "", "group", "ls"); !strings.HasPrefix(out, "no groups that you may see; ") {
		t.Errorf("alice: %s", out)
	}
}

// A data directory that holds what settings of serve name, and nothing else, is begun in.
func TestCertificatesInTheDataDirectory(t *testing.T) {
	dir := t.TempDir()
	cert, key, _ := certificates(t, dir, "server")
	if code, said := serveRefused(t, "--data-dir", dir); code != exitUsage || !strings.Contains(said, "other files (cert.pem)") {
		t.Errorf("not named: exit %d: %s", code, said)
	}
	notes := filepath.Join(dir, "notes")
	write(t, notes, "mine\n")
	args := []string{"--data-dir", dir, "--tls-cert", cert, "--tls-key", key}
	if code, said := serveRefused(t, args...); code != exitUsage || !strings.Contains(said, "other files (notes)") {
		t.Errorf("another file: exit %d: %s", code, said)
	}
	if err := os.Remove(notes); err != nil {
		t.Fatal(err)
	}
	s := serveIt(t, args...)
	s.address(t)
	s.end(t)
	ok(t, "", "topic", "ls", "--data-dir", dir)
}

// Which of the variables wins is what the help says.
func TestWhichVariableWins(t *testing.T) {
	_, help := with(t, nil, "help", "connection")
	if !strings.Contains(strings.Join(strings.Fields(help), " "), "RINGFENCE_SERVER wins over RINGFENCE_DATA_DIR, and that over the context") {
		t.Errorf("help connection: %s", help)
	}
	dir, _ := filled(t, 1)
	both := []string{dataDirVar + "=" + dir, serverVar + "=127.0.0.1:1"}
	if code, said := with(t, both, "topic", "ls"); code != exitUnreachable {
		t.Errorf("exit %d: %s", code, said)
	}
	if code, said := with(t, both[:1], "topic", "ls"); code != exitOK {
		t.Errorf("exit %d: %s", code, said)
	}
}
