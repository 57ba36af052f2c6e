package main

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ringfence/ringfence/engine/wire"
)

// served is a running serve command.
type served struct {
	log  *lockedBuffer
	stop context.CancelFunc
	code chan int
}

// lockedBuffer is written by the command while the test reads it.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

func serveIt(t *testing.T, args ...string) *served {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	s := &served{log: &lockedBuffer{}, stop: cancel, code: make(chan int, 1)}
	args = append([]string{"serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--arena-size", "16MiB"}, args...)
	go func() { s.code <- run(ctx, args, strings.NewReader(""), io.Discard, s.log) }()
	t.Cleanup(func() { s.end(t) })
	return s
}

// end stops it, once, and checks that it stopped as it should.
func (s *served) end(t *testing.T) {
	t.Helper()
	s.stop()
	if code, ok := <-s.code; ok {
		close(s.code)
		if code != exitOK {
			t.Errorf("ended with %d:\n%s", code, s.log)
		}
	}
}

// find waits for a line of the log and returns what the pattern's group says.
func (s *served) find(t *testing.T, pattern string) string {
	t.Helper()
	re := regexp.MustCompile(pattern)
	for end := time.Now().Add(time.Minute); time.Now().Before(end) && len(s.code) == 0; time.Sleep(5 * time.Millisecond) {
		if m := re.FindStringSubmatch(s.log.String()); m != nil {
			return m[1]
		}
	}
	t.Fatalf("no %s in the log:\n%s", pattern, s.log)
	return ""
}

func (s *served) address(t *testing.T) string { return s.find(t, `msg=serving address=(\S+)`) }
func (s *served) adminURL(t *testing.T) string {
	return "http://" + s.find(t, `msg=admin address=(\S+)`)
}

func get(t *testing.T, url string) (int, string) {
	t.Helper()
	r, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return r.StatusCode, string(b)
}

// hello says hello on a connection and returns what the server answered.
func hello(t *testing.T, c net.Conn) *wire.HelloReply {
	t.Helper()
	var e wire.Encoder
	if _, err := c.Write(e.Frame(wire.KeyHello, 0, 1, &wire.Hello{Magic: wire.Magic, MinVersion: wire.Version, MaxVersion: wire.Version}, 0)); err != nil {
		t.Fatal(err)
	}
	head := make([]byte, wire.HeadSize)
	if _, err := io.ReadFull(c, head); err != nil {
		t.Fatal(err)
	}
	h, err := wire.ParseHead(head, 64<<10)
	if err != nil {
		t.Fatal(err)
	}
	body := make([]byte, h.Length)
	if _, err := io.ReadFull(c, body); err != nil {
		t.Fatal(err)
	}
	m, err := wire.Reply(h.Key, h.Flags, body)
	if err != nil {
		t.Fatal(err)
	}
	return m.(*wire.HelloReply)
}

func TestServe(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "d")
	socket := filepath.Join(t.TempDir(), "s")
	s := serveIt(t, "--data-dir", dir, "--socket", socket)
	addr, admin := s.address(t), s.adminURL(t)
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if r := hello(t, c); !strings.HasPrefix(r.Server, "ringfence ") || r.Log == "" || r.Authenticate {
		t.Errorf("answered %+v", r)
	}
	u, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer u.Close()
	hello(t, u)
	for path, want := range map[string]string{
		"/health": "up\n", "/ready": "ready\n", "/debug/pprof/cmdline": "",
	} {
		if code, body := get(t, admin+path); code != http.StatusOK || want != "" && body != want {
			t.Errorf("%s: %d %q", path, code, body)
		}
	}
	_, body := get(t, admin+"/metrics")
	for _, m := range allMetrics {
		name := regexp.MustCompile(`fqName: "([a-z_]+)"`).FindStringSubmatch(m.desc.String())[1]
		if name == "ringfence_group_lag_records" || strings.HasPrefix(name, "ringfence_shm_user_") {
			continue // there is no group, and nobody shares memory; TestMetricsOfGroups and TestSharedFrontends have some
		}
		if strings.Count(body, "# HELP "+name+" ") != 1 || !regexp.MustCompile(`(?m)^`+name+`(_count)?({[^}]*})? [0-9]`).MatchString(body) {
			t.Errorf("/metrics does not tell %s once", name)
		}
	}
	if !strings.Contains(body, "\nringfence_connections 2\n") {
		t.Errorf("two connections are not counted:\n%s", body)
	}
	if !strings.Contains(body, "\nringfence_requests_total{request=\"Hello\"} 2\n") {
		t.Errorf("two hellos are not counted:\n%s", body)
	}
	if got := s.find(t, `msg=setting name=socket value=\S+ source=(\S+)`); got != "flag" {
		t.Errorf("the socket's setting is from %q", got)
	}
	s.end(t)
	if _, err := os.Stat(socket); err == nil {
		t.Error("the socket is left behind")
	}
	again := serveIt(t, "--data-dir", dir)
	again.address(t)
	if got := again.find(t, `msg=opened .* stop=(\S+)`); got != "clean" {
		t.Errorf("stopped %s", got)
	}
}

// A socket that a killed server left is taken over; one in use is not.
func TestServeStaleSocket(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	code, errText := serveRefused(t, "--listen", "", "--socket", socket)
	if code != exitFailed || !strings.Contains(errText, "another process does") {
		t.Errorf("%d %s", code, errText)
	}
	l.Close()
	if _, err := os.Stat(socket); err != nil {
		t.Fatal("the test leaves no socket: ", err)
	}
	s := serveIt(t, "--data-dir", filepath.Join(t.TempDir(), "d"), "--socket", socket)
	s.find(t, `msg=serving address=(\S*/s)`)
}

func serveRefused(t *testing.T, args ...string) (int, string) {
	t.Helper()
	var errs bytes.Buffer
	args = append([]string{"serve", "--data-dir", filepath.Join(t.TempDir(), "d"), "--admin", ""}, args...)
	code := run(t.Context(), args, strings.NewReader(""), io.Discard, &errs)
	return code, errs.String()
}

// What would be unsafe, or is not complete, is refused before anything is made.
func TestServeRefusals(t *testing.T) {
	cert, key, _ := certificates(t, t.TempDir(), "a")
	empty := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"--listen", "0.0.0.0:0"}, exitRefused, "--insecure"},
		{[]string{"--listen", "[::]:0"}, exitRefused, "--insecure"},
		{[]string{"--listen", ":0"}, exitRefused, "--insecure"},
		{[]string{"--listen", "example.invalid:0"}, exitRefused, "--insecure"},
		{[]string{"--listen", "0.0.0.0:0"}, exitRefused, "--tls-cert"},
		{[]string{"--listen", "0.0.0.0:0", "--no-auth"}, exitRefused, "--no-auth"},
		{[]string{"--listen", "0.0.0.0:0", "--no-auth", "--tls-cert", cert, "--tls-key", key, "--tls-client-ca", cert}, exitRefused, "--no-auth"},
		{[]string{"--admin-password-file", empty}, exitRefused, "--admin-password-file: " + empty + ": it is empty"},
		{[]string{"--admin-password-file", key}, exitRefused, "more than one line"},
		{[]string{"--listen", ""}, exitRefused, "nobody could reach it"},
		{[]string{"--tls-cert", cert}, exitRefused, "both --tls-cert and --tls-key"},
		{[]string{"--tls-cert", cert, "--tls-key", cert}, exitRefused, cert},
		{[]string{"--tls-cert", cert, "--tls-key", key, "--tls-client-ca", empty}, exitRefused, "holds no certificate"},
		{[]string{"--admin", "0.0.0.0:0"}, exitRefused, "--admin 0.0.0.0:0"},
		{[]string{"--idle-timeout", "-5s"}, exitUsage, "--idle-timeout is -5s"},
		{[]string{"--max-requests", "0"}, exitUsage, "--max-requests is 0"},
		{[]string{"--listen", "nonsense"}, exitUsage, "nonsense"},
		{[]string{"--log-level", "loud"}, exitUsage, "loud"},
		{[]string{"--log-format", "xml"}, exitUsage, "xml"},
		{[]string{"--max-connections", "-1"}, exitUsage, "-1"},
	} {
		code, errText := serveRefused(t, c.args...)
		if code != c.code || !strings.Contains(errText, c.want) {
			t.Errorf("%v: %d, want %d, and %q:\n%s", c.args, code, c.code, c.want, errText)
		}
	}
}

// Clients without a certificate of the authority are refused; a certificate that
// changes on disk is served without a restart, and half of a change is not.
func TestServeTLS(t *testing.T) {
	at := t.TempDir()
	cert, key, pool := certificates(t, at, "first")
	s := serveIt(t, "--data-dir", filepath.Join(t.TempDir(), "d"), "--tls-cert", cert, "--tls-key", key, "--tls-client-ca", cert)
	addr := s.address(t)
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	dial := func(own ...tls.Certificate) (string, error) {
		c, err := tls.Dial("tcp", addr, &tls.Config{RootCAs: pool, ServerName: "localhost", Certificates: own})
		if err != nil {
			return "", err
		}
		defer c.Close()
		name := c.ConnectionState().PeerCertificates[0].Subject.CommonName
		c.SetDeadline(time.Now().Add(time.Minute))
		if _, err := c.Write([]byte{0}); err != nil {
			return name, err
		}
		if len(own) == 0 { // TLS 1.3 tells with the first bytes that are read
			_, err = c.Read(make([]byte, 1))
			return name, err
		}
		return name, nil
	}
	if name, err := dial(pair); name != "first" || err != nil {
		t.Errorf("served %q, %v", name, err)
	}
	if _, err := dial(); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("without a certificate: %v", err)
	}
	if err := os.WriteFile(key, []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	waitFor := func(what string, ok func() bool) {
		for end := time.Now().Add(time.Minute); !ok(); time.Sleep(50 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal(what)
			}
		}
	}
	time.Sleep(keyPairEvery + 50*time.Millisecond) // so that it looks
	if name, err := dial(pair); name != "first" || err != nil {
		t.Errorf("with half of a change on disk served %q, %v", name, err)
	}
	s.find(t, `level=ERROR (msg="the certificate cannot be read again[^"]*" error=.*`+regexp.QuoteMeta(key)+`)`)
	_, _, second := certificates(t, at, "second")
	pool = second
	waitFor("the new certificate is not served", func() bool { name, _ := dial(pair); return name == "second" })
	s.find(t, `(msg="the certificate has changed")`)
}

// TLS is for those who come over a network. On this host's sockets they come without, and
// log in as all others.
func TestServeTLSAndSockets(t *testing.T) {
	cert, key, _ := certificates(t, t.TempDir(), "server")
	at := t.TempDir()
	socket, shared := filepath.Join(at, "socket"), filepath.Join(at, "shared")
	s := serveIt(t, "--data-dir", filepath.Join(t.TempDir(), "d"), "--tls-cert", cert, "--tls-key", key, "--tls-client-ca", cert,
		"--socket", socket, "--shm", shared, "--admin-password-file", secretFile(t, "correct horse battery"))
	over := s.address(t)
	for _, addr := range []string{"unix:" + socket, "unix:" + shared} {
		as(t, "", "")
		fails(t, exitDenied, "credentials", "", "topic", "ls", "--server", addr)
		as(t, adminName, "correct horse battery")
		ok(t, "", "topic", "ls", "--server", addr)
	}
	fails(t, exitUnreachable, "does it speak TLS", "", "topic", "ls", "--server", over)
}

// certificates writes a self-signed certificate for localhost and its key.
func certificates(t *testing.T, dir, name string) (cert, key string, pool *x509.CertPool) {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, DNSNames: []string{"localhost"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &k.PublicKey, k)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	for file, block := range map[string]*pem.Block{cert: {Type: "CERTIFICATE", Bytes: der}, key: {Type: "PRIVATE KEY", Bytes: raw}} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	pool = x509.NewCertPool()
	pool.AppendCertsFromPEM(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	return cert, key, pool
}

// The settings are told as they hold: where few files may be open, there are few connections,
// and one address does not get all of them.
func TestServeTellsHowManyConnections(t *testing.T) {
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	few := was
	few.Cur = 400
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &few); err != nil {
		t.Skip(err)
	}
	defer func() {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
			t.Error(err)
		}
	}()
	for _, c := range []struct {
		args       string
		all, perIP string
		warns      bool
	}{
		{"", "100", "75", false},
		{"--max-connections 40", "40", "30", false},
		{"--max-connections 4000 --max-connections-per-ip 99", "100", "99", true},
		{"--max-connections-per-ip 500", "100", "100", false},
	} {
		s := serveIt(t, append([]string{"--data-dir", filepath.Join(t.TempDir(), "d")}, strings.Fields(c.args)...)...)
		s.address(t)
		all, perIP := s.find(t, `name=max-connections value=(\S+)`), s.find(t, `name=max-connections-per-ip value=(\S+)`)
		if warned := strings.Contains(s.log.String(), "fewer connections"); all != c.all || perIP != c.perIP || warned != c.warns {
			t.Errorf("%q: %s connections, %s of one address, warned %t", c.args, all, perIP, warned)
		}
		s.end(t)
	}
}
