package engine

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ringfence/ringfence/engine/server"
)

// A client of another language, written from the protocol's page alone, stores, reads
// and is refused as that page says.
func TestPythonClientAgainstServer(t *testing.T) {
	python, err := filepath.Abs("../.bin/python/bin/python3") // which .ci/run set up
	must(t, err)
	if _, err := os.Stat(python); err != nil {
		if python, err = exec.LookPath("python3"); err != nil {
			t.Skip("the client in Python cannot run: there is no python3")
		}
	}
	e := open(t, t.TempDir(), Options{})
	s, err := server.New(e.Backend(), server.Options{
		Logger: slog.New(slog.DiscardHandler),
		Authenticate: func(_ context.Context, l server.Login) (server.Identity, error) {
			if l.Mechanism != "password" || l.User != "ada" || string(l.Secret) != "lovelace" {
				return server.Identity{}, errors.New("wrong")
			}
			return server.Identity{User: l.User}, nil
		},
	})
	must(t, err)
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	path := filepath.Join(t.TempDir(), "socket")
	local, err := net.Listen("unix", path)
	must(t, err)
	served := make(chan error, 2)
	for _, l := range []net.Listener{tcp, local} {
		go func() { served <- s.Serve(l) }()
	}
	t.Cleanup(func() {
		must(t, s.Shutdown(context.Background()))
		for range 2 {
			must(t, <-served)
		}
	})
	client := func(address, password string) (string, error) {
		cmd := exec.CommandContext(within(t), python, "wire/testdata/client.py", "roundtrip", address, "python")
		cmd.Env = append(os.Environ(), "RINGFENCE_USER=ada", "RINGFENCE_PASSWORD="+password)
		out, err := cmd.CombinedOutput()
		var exit *exec.ExitError
		if errors.As(err, &exit) && exit.ExitCode() == 77 {
			t.Skipf("the client in Python cannot run: %s", out)
		}
		return string(out), err
	}
	for _, address := range []string{tcp.Addr().String(), "unix:" + path} {
		if out, err := client(address, "lovelace"); err != nil || out != "60 records stored and read, sent twice and stored once\n" {
			t.Errorf("%s: %v\n%s", address, err, out)
		}
	}
	if out, err := client(tcp.Addr().String(), "byron"); err == nil || !strings.Contains(out, "Failed: 0x6: ") {
		t.Errorf("with a wrong password: %v\n%s", err, out)
	}
}
