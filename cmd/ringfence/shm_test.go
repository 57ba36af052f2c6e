package main

import (
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// What is sent through shared memory comes back over the network and over the socket of
// the memory alike, and what went through is counted.
func TestProduceThroughSharedMemory(t *testing.T) {
	dir, socket := filepath.Join(t.TempDir(), "d"), filepath.Join(t.TempDir(), "shm")
	s := serveIt(t, "--data-dir", dir, "--shm", socket)
	addr, admin := s.address(t), s.adminURL(t)
	s.find(t, `msg="sharing memory" address=(\S+)`)
	in := lines(20_000)
	out := ok(t, in, "produce", "logs", "--create", "--shm", socket, "--key-regexp", `\d+$`, "--producer-id", "7")
	if !strings.Contains(out, "20 000 records") {
		t.Errorf("it says %q", out)
	}
	ok(t, "one more\n", "produce", "logs", "--server", addr)
	for _, server := range []string{addr, "unix:" + socket} {
		if got := strings.Count(ok(t, "", "consume", "logs", "--from", "start", "--server", server), "\n"); got != 20_001 {
			t.Errorf("%d records come back from %s", got, server)
		}
	}
	ok(t, in, "produce", "logs", "--shm", socket, "--producer-id", "7") // again: nothing new
	if got := strings.Count(ok(t, "", "consume", "logs", "--from", "start", "--server", addr), "\n"); got != 20_001 {
		t.Errorf("after the same input again there are %d", got)
	}
	_, body := get(t, admin+"/metrics")
	for _, want := range []string{`shm_clients_attached_total 2`, `shm_clients 0`, `shm_bytes 0`, `shm_submissions_total [1-9]`, `shm_copies_total [1-9]`, `shm_clients_hostile_total 0`} {
		if !regexp.MustCompile(`(?m)^ringfence_` + want).MatchString(body) {
			t.Errorf("/metrics does not say %s", want)
		}
	}
	fails(t, exitUsage, "--shm with --server", "", "produce", "logs", "--shm", socket, "--server", addr)
	fails(t, exitUsage, "--shm with --server", "", "produce", "logs", "--shm", socket, "--data-dir", dir)
	s.end(t)
	if _, err := os.Lstat(socket); err == nil {
		t.Error("the socket is left behind")
	}
	fails(t, exitUnreachable, socket, "", "produce", "logs", "--shm", socket)
}

// A name that is somebody else's is left alone; limits that nothing can work with are
// refused.
func TestServeSharedRefusals(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	if err := os.WriteFile(socket, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"--listen", "", "--shm", socket}, exitUsage, "there is something of that name"},
		{[]string{"--shm-arena", "1KiB"}, exitUsage, "--shm-arena"},
		{[]string{"--shm-arena", "64MiB", "--shm-memory", "32MiB"}, exitUsage, "--shm-memory"},
		{[]string{"--shm-clients", "0"}, exitUsage, "--shm-clients"},
		{[]string{"--shm-uids", "4294967295"}, exitUsage, "--shm-uids"},
	} {
		if code, says := serveRefused(t, c.args...); code != c.code || !strings.Contains(says, c.want) {
			t.Errorf("%v: exit %d, %s", c.args, code, says)
		}
	}
	// A server with nothing but that socket, for others as well.
	open := filepath.Join(t.TempDir(), "s")
	s := serveIt(t, "--data-dir", filepath.Join(t.TempDir(), "d"), "--listen", "", "--shm", open, "--shm-uids", "0,1000")
	s.find(t, `msg="sharing memory" address=(\S+)`)
	if st, err := os.Stat(open); err != nil || st.Mode().Perm() != 0o666 {
		t.Errorf("%v, %v", st.Mode(), err)
	}
	c, err := net.Dial("unix", open)
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
}

// The table of shared memory, with the server in a process of its own.
func TestBenchShm(t *testing.T) {
	out := ok(t, "", "bench", "shm", "--runs", "1", "--seconds", "0.1", "--rows", "shm-1m,shm-one,shm-unix,shm-submit-1k",
		"--segment", "4MiB", "--retain", "8MiB", "--floor-size", "16MiB", "--dir", t.TempDir(), "--json")
	table := parse[struct {
		Rows []struct {
			ID     string
			Error  string
			Median struct{ Engine, Floor, Ratio float64 }
		}
	}](t, out)
	if len(table.Rows) != 4 {
		t.Fatalf("%d rows", len(table.Rows))
	}
	for _, r := range table.Rows {
		if r.Error != "" || r.Median.Engine <= 0 || r.Median.Floor <= 0 || r.Median.Ratio <= 0 {
			t.Errorf("%+v", r)
		}
	}
}
