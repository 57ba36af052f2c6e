package main

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ringfence/ringfence/engine/api"
	"github.com/ringfence/ringfence/engine/client"
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
	c, err := client.Dial(t.Context(), addr, client.Options{})
	if err == nil {
		_, err = c.Roll(t.Context(), "logs")
	}
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	ok(t, "the last one\n", "produce", "logs", "--server", addr)
	near := ok(t, "", "consume", "logs", "--from", "start", "--shm", socket)
	if far := ok(t, "", "consume", "logs", "--from", "start", "--server", addr); near != far || strings.Count(near, "\n") != 20_002 {
		t.Errorf("%d bytes are read from files, %d over the network", len(near), len(far))
	}
	if out := ok(t, "", "consume", "logs", "--group", "g", "--shm", socket); strings.Count(out, "\n") != 20_002 {
		t.Errorf("a group gets %d records from files", strings.Count(out, "\n"))
	}
	files := "[1-9]"
	var fs syscall.Statfs_t
	if err := syscall.Statfs(dir, &fs); err != nil {
		t.Fatal(err)
	}
	if fs.Type != 0xef53 && fs.Type != 0x58465342 { // ext4, xfs: files of others are not read through the page cache
		files = "0"
	}
	var body string
	until(t, "the server notices that the last client is gone", func() bool {
		_, body = get(t, admin+"/metrics")
		return regexp.MustCompile(`(?m)^ringfence_shm_bytes 0$`).MatchString(body)
	})
	for _, want := range []string{`shm_clients_attached_total 4`, `shm_files_total ` + files, `shm_file_bytes_total ` + files, `shm_clients 0`, `shm_bytes 0`, `shm_submissions_total [1-9]`, `shm_copies_total [1-9]`, `shm_clients_hostile_total 0`} {
		if !regexp.MustCompile(`(?m)^ringfence_` + want).MatchString(body) {
			t.Errorf("/metrics does not say %s", want)
		}
	}
	fails(t, exitUsage, "--shm with --server", "", "produce", "logs", "--shm", socket, "--server", addr)
	fails(t, exitUsage, "--shm with --server", "", "produce", "logs", "--shm", socket, "--data-dir", dir)
	fails(t, exitUsage, "--shm with --server", "", "consume", "logs", "--shm", socket, "--server", addr)
	s.end(t)
	if _, err := os.Lstat(socket); err == nil {
		t.Error("the socket is left behind")
	}
	fails(t, exitUnreachable, socket, "", "produce", "logs", "--shm", socket)
}

// Who shares memory is told while it does, what its user did for good, by the command, at
// the admin address and among the metrics alike; and what one user may have is a setting.
func TestSharedFrontends(t *testing.T) {
	dir, socket := filepath.Join(t.TempDir(), "d"), filepath.Join(t.TempDir(), "shm")
	s := serveIt(t, "--data-dir", dir, "--shm", socket, "--shm-user-clients", "1")
	admin := strings.TrimPrefix(s.adminURL(t), "http://")
	s.find(t, `msg="sharing memory" address=(\S+)`)
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		if code, _ := get(t, "http://"+admin+"/ready"); code == http.StatusOK || time.Now().After(end) {
			break
		}
	}
	if out := ok(t, "", "shm", "--admin", admin); !strings.HasPrefix(out, "no program shares memory") {
		t.Errorf("before anybody came: %s", out)
	}
	if f := parse[sharedFrontends](t, ok(t, "", "shm", "--admin", admin, "--json")); f.Clients == nil || f.Users == nil {
		t.Errorf("before anybody came: %+v", f)
	}
	c, err := client.DialShm(t.Context(), socket, client.Options{MemoryBytes: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.CreateTopic(t.Context(), "t", api.TopicOptions{}); err != nil {
		t.Fatal(err)
	}
	p, err := c.NewProducer(api.ProducerOptions{Topic: "t"})
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if _, err := p.Produce(t.Context(), api.Record{Value: make([]byte, 2000)}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := client.DialShm(t.Context(), socket, client.Options{MemoryBytes: 1 << 20, RequestTimeout: time.Second}); err == nil || !strings.Contains(err.Error(), "shm-user-clients") {
		t.Errorf("one too many: %v", err)
	}

	me := uint32(os.Geteuid())
	f := parse[sharedFrontends](t, ok(t, "", "shm", "--admin", admin, "--json"))
	if len(f.Clients) != 1 || f.Clients[0].UID != me || f.Clients[0].PID != int32(os.Getpid()) || f.Clients[0].Frames != 3 || f.Clients[0].Stored != 3 || f.Clients[0].FrameBytes < 6000 {
		t.Errorf("%+v", f.Clients)
	}
	if len(f.Users) != 1 || f.Users[0].UID != me || f.Users[0].Frames != 3 || f.Users[0].Clients != 1 || f.Users[0].TurnedAway["user_clients"] == 0 {
		t.Errorf("%+v", f.Users)
	}
	_, body := get(t, "http://"+admin+"/shm")
	if at := parse[sharedFrontends](t, body); len(at.Clients) != 1 || at.Clients[0].Connection != f.Clients[0].Connection {
		t.Errorf("at the admin address: %s", body)
	}
	text := ok(t, "", "shm", "--admin", admin)
	for _, want := range []string{"CONNECTION", fmt.Sprint(os.Getpid()), "UNANSWERED", "TURNED AWAY", "user_clients", "1.1 MiB"} {
		if !strings.Contains(text, want) {
			t.Errorf("it does not say %q:\n%s", want, text)
		}
	}

	_, body = get(t, "http://"+admin+"/metrics")
	uid := fmt.Sprintf(`uid="%d"`, me)
	for _, want := range []string{
		`clients{U} 1`, `bytes{U} [1-9]`, `clients_attached_total{U} 1`, `clients_hostile_total{U} 0`, `clients_turned_away_total{reason="user_clients",U} [1-9]`,
		`frames_total{path="copied",U} 3`, `frames_total{path="lent",U} 0`, `frame_bytes_total{path="copied",U} [1-9]`, `frames_stored_total{U} 3`,
		`ring_full_total{U} 0`, `wait_seconds_total{U} [0-9]`,
	} {
		if !regexp.MustCompile(`(?m)^ringfence_shm_user_` + strings.ReplaceAll(want, "U}", uid+"}")).MatchString(body) {
			t.Errorf("/metrics does not say %s", want)
		}
	}
	if err := errors.Join(p.Close(t.Context()), c.Close()); err != nil {
		t.Error(err)
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		f = parse[sharedFrontends](t, ok(t, "", "shm", "--admin", admin, "--json"))
		if len(f.Clients) == 0 || time.Now().After(end) {
			break
		}
	}
	if len(f.Clients) != 0 || f.Users[0].Frames != 3 || f.Users[0].Clients != 0 || f.Users[0].Bytes != 0 {
		t.Errorf("after it left: %+v", f)
	}
	if text := ok(t, "", "shm", "--admin", admin); !strings.HasPrefix(text, "no program shares memory now\n") || !strings.Contains(text, "TURNED AWAY") {
		t.Errorf("after it left: %s", text)
	}
	s.end(t)
	fails(t, exitUnreachable, "--admin", "", "shm", "--admin", admin)
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
		{[]string{"--shm-user-clients", "65"}, exitUsage, "--shm-user-clients"},
		{[]string{"--shm-user-clients", "-1"}, exitUsage, "--shm-user-clients"},
		{[]string{"--shm-user-memory", "2GiB"}, exitUsage, "--shm-user-memory"},
		{[]string{"--shm-user-memory", "1KiB"}, exitUsage, "--shm-user-memory"},
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
