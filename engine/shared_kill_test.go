package engine

import (
	"bufio"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/ringfence/ringfence/engine/server"
)

// alone waits until one client alone shares memory, and it has what one has.
func (s *sharer) alone(bytes int64) {
	s.t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		n := s.Stats().Shared
		if n.Clients == 1 && n.Bytes == bytes {
			return
		}
		if time.Now().After(end) {
			s.t.Fatalf("%d clients share %d bytes, want one with %d", n.Clients, n.Bytes, bytes)
		}
	}
}

// I02: a client is killed, or stopped, at each step of sending a frame. What it published
// is stored whole or not at all, nothing else of it is, its memory is given back, and
// others store records meanwhile.
func TestI02ClientDiesAtEachStep(t *testing.T) {
	e := open(t, t.TempDir(), Options{})
	must(t, e.CreateTopic(within(t), "t", TopicOptions{}))
	must(t, e.CreateTopic(within(t), "others", TopicOptions{}))
	s := shareMemory(t, e, server.Options{IdleTimeout: 500 * time.Millisecond})
	other := s.dial(1 << 20)
	p, err := other.NewProducer(ProducerOptions{Topic: "others"})
	must(t, err)
	_, err = p.Produce(within(t), Record{Value: []byte("warm")})
	must(t, err)
	bytes := s.Stats().Shared.Bytes
	died := map[int]string{}
	die := func(step string, signal syscall.Signal) *exec.Cmd {
		id := 100 + len(died)
		died[id] = step
		cmd := child(t, "shm step", s.path, fmt.Sprint(stepEnv, "=", step), fmt.Sprint(signalEnv, "=", int(signal)), fmt.Sprint(idEnv, "=", id))
		out, err := cmd.StdoutPipe()
		must(t, err)
		must(t, cmd.Start())
		if line, _ := bufio.NewReader(out).ReadString('\n'); line != "reached "+step+"\n" {
			t.Fatalf("step %q: the child said %q", step, line)
		}
		for range 20 {
			_, err := p.Produce(within(t), Record{Value: []byte("meanwhile")})
			must(t, err)
		}
		return cmd
	}
	for range rounds(3) {
		for _, step := range steps {
			die(step, syscall.SIGKILL).Wait()
			s.alone(bytes)
		}
	}
	var stopped []*exec.Cmd
	for _, step := range steps {
		stopped = append(stopped, die(step, syscall.SIGSTOP))
	}
	s.alone(bytes) // they are cut off when they have been silent for too long
	for _, cmd := range stopped {
		cmd.Process.Kill()
		cmd.Wait()
	}
	must(t, p.Close(within(t)))
	got := map[string]int{}
	for _, r := range readEntries(t, e) {
		got[strings.TrimRight(string(r.Value), "0")]++ // 8000 zeros behind the second's number
	}
	stored := map[string]int{}
	for id, step := range died {
		first, second := fmt.Sprintf("first of %d", id), fmt.Sprintf("second of %d", id)
		first, second = strings.TrimRight(first, "0"), strings.TrimRight(second, "0")
		n := slices.Index(steps, step)
		published, answered := n >= slices.Index(steps, "published"), step == "answered"
		if got[first] != 1 || got[second] > 1 || got[second] == 1 && !published || got[second] == 0 && answered {
			t.Errorf("step %q: the record before it is there %d times, its own %d times", step, got[first], got[second])
		}
		stored[step] += got[second]
	}
	if stored["answered"] == 0 {
		t.Error("nothing was stored: the test tests nothing")
	}
	t.Logf("stored of those that died at each step: %v", stored)
	if n := s.Stats().Shared; n.Hostile+n.Faults != 0 {
		t.Errorf("%+v", n)
	}
}

// writer is a process that sends records under an id until all are stored.
type writer struct {
	cmd   *exec.Cmd
	acks  atomic.Int64
	said  string // what it said last, once ended is closed
	ended chan struct{}
}

func startWriter(t *testing.T, addr string, id, count int) *writer {
	t.Helper()
	w := &writer{cmd: child(t, "shm writer", addr, fmt.Sprint(idEnv, "=", id), fmt.Sprint(countEnv, "=", count)), ended: make(chan struct{})}
	out, err := w.cmd.StdoutPipe()
	must(t, err)
	must(t, w.cmd.Start())
	go func() {
		defer close(w.ended)
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			if w.said = lines.Text(); strings.HasPrefix(w.said, "ack ") {
				w.acks.Add(1)
			}
		}
		io.Copy(io.Discard, out)
		w.cmd.Wait()
	}()
	return w
}

// Producers in their own processes write one topic: two through shared memory, of which
// one is killed again and again, and one over TCP. Their server is killed as well. In the
// end each record is there once, and those of a key are in order.
func TestSharedProducersAndServerAreKilled(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "d")
	path := "shm:" + dir + ".sock"
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	tcp := l.Addr().String()
	l.Close()
	serve := func() *exec.Cmd {
		cmd := child(t, "shm serve", dir, tcpEnv+"="+tcp)
		out, err := cmd.StdoutPipe()
		must(t, err)
		must(t, cmd.Start())
		if line, _ := bufio.NewReader(out).ReadString('\n'); line != "serving\n" {
			t.Fatalf("the server said %q", line)
		}
		return cmd
	}
	const victim, steady, far = 901, 902, 903
	count := rounds(20_000)
	serving := serve()
	others := []*writer{startWriter(t, path, steady, count), startWriter(t, tcp, far, count)}
	rng := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 0))
	kills, restarts := 0, 0
	for range rounds(4) {
		w := startWriter(t, path, victim, count)
		for wait := int64(1 + rng.IntN(count/8)); w.acks.Load() < wait; time.Sleep(100 * time.Microsecond) {
			select {
			case <-w.ended:
				t.Fatalf("a writer ended and said %q", w.said)
			default:
			}
		}
		w.cmd.Process.Kill()
		<-w.ended
		kills++
		if rng.IntN(2) == 0 || restarts == 0 {
			serving.Process.Kill()
			serving.Wait()
			serving = serve()
			restarts++
		}
	}
	for _, w := range append(others, startWriter(t, path, victim, count)) {
		<-w.ended
		if w.said != "done" {
			t.Fatalf("a writer ended and said %q", w.said)
		}
	}
	serving.Process.Kill()
	serving.Wait()

	e := open(t, dir, Options{})
	next := map[string]int{}
	got := readEntries(t, e)
	for _, r := range got {
		var id, k, i int
		fmt.Sscanf(string(r.Key), "%d-%d", &id, &k)
		fmt.Sscanf(string(r.Value), "%d", &i)
		if want := next[string(r.Key)]*5 + k; i != want {
			t.Fatalf("key %s: record %d where %d is due", r.Key, i, want)
		}
		next[string(r.Key)]++
	}
	if len(got) != 3*count {
		t.Errorf("%d records, want %d", len(got), 3*count)
	}
	t.Logf("%d records of three producers, one killed %d times; their server was killed %d times", len(got), kills, restarts+1)
}

// I03, C10: a process changes everything that it can reach, at random, while the server
// looks at it. Its connections are cut off; the records of others are what they were, and
// whatever is stored of its own verifies.
func TestI03HostileProcess(t *testing.T) {
	t.Run("copied", func(t *testing.T) { hostileProcess(t, server.Options{}) })
	t.Run("written from where it lies", func(t *testing.T) { hostileProcess(t, trusting()) })
}

func hostileProcess(t *testing.T, o server.Options) {
	e := open(t, t.TempDir(), Options{})
	must(t, e.CreateTopic(within(t), "t", TopicOptions{}))
	must(t, e.CreateTopic(within(t), "hostile", TopicOptions{}))
	s := shareMemory(t, e, o)
	c := s.dial(4 << 20)
	cmd := child(t, "shm hostile", s.path, fmt.Sprint(idEnv, "=", time.Now().UnixNano()%1e9))
	must(t, cmd.Start())
	var loads []*load
	enough := func(n server.SharedStats) bool {
		return n.Hostile >= int64(rounds(5)) && (o.Sharing.Trusted == nil || n.Changed > 0)
	}
	for round := 0; round < rounds(3) || !enough(s.Stats().Shared); round++ {
		topic := fmt.Sprint("t", round)
		must(t, c.CreateTopic(within(t), topic, TopicOptions{}))
		l := &load{writers: 3, records: 1000, meanwhile: func() {}}
		l.run(t, c, ProducerOptions{Topic: topic, BatchBytes: 16 << 10})
		loads = append(loads, l)
	}
	cmd.Process.Kill()
	cmd.Wait()
	for round, l := range loads {
		r := newConsumer(t, e, ConsumerOptions{Topic: fmt.Sprint("t", round), From: FromStart()})
		got, _ := drain(t, r)
		must(t, r.Close())
		l.check(t, got)
	}
	r := newConsumer(t, e, ConsumerOptions{Topic: "hostile", From: FromStart()})
	got, skips := drain(t, r)
	must(t, r.Close())
	for _, r := range got {
		if !strings.HasPrefix(string(r.Value), "hostile ") {
			t.Errorf("a record that nobody sent: %.40q", r.Value)
		}
	}
	n := s.Stats()
	trusted := o.Sharing.Trusted != nil
	if (len(got) == 0 || len(skips) > 0) && !trusted || (n.Shared.Changed > 0) != trusted || (n.Shared.Lent > 0) != trusted || n.Shared.Faults != 0 || n.Failed == 0 {
		t.Errorf("%d records of theirs, skips %v, %+v", len(got), skips, n)
	}
	t.Logf("%d clients cut off, %d of them for what they changed, %d submissions, %d refused, %d records of theirs, %d skips",
		n.Shared.Hostile, n.Shared.Changed, n.Shared.Submissions, n.Failed, len(got), len(skips))
}

// A client in another user namespace is who the kernel says it is: root of the other one
// is this user here, and may share memory.
func TestI08AnotherUserNamespace(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED, NOT TESTED: this test needs root")
	}
	e := open(t, t.TempDir(), Options{})
	must(t, e.CreateTopic(within(t), "t", TopicOptions{}))
	s := shareMemory(t, e, server.Options{})
	must(t, os.Chmod(s.path, 0o666))
	for dir := filepath.Dir(s.path); dir != "/"; dir = filepath.Dir(dir) { // let others in
		if st, err := os.Stat(dir); err == nil && st.Mode()&0o1 == 0 {
			must(t, os.Chmod(dir, st.Mode()|0o1))
			defer os.Chmod(dir, st.Mode())
		}
	}
	self, err := os.ReadFile("/proc/self/exe")
	must(t, err)
	exe := filepath.Join(filepath.Dir(s.path), "client") // where others can run it
	must(t, os.WriteFile(exe, self, 0o755))
	run := func(uid int, want string) {
		t.Helper()
		cmd := child(t, "shm step", s.path, stepEnv+"=answered", fmt.Sprint(signalEnv, "=", int(syscall.SIGKILL)), fmt.Sprint(idEnv, "=", 7+uid))
		cmd.Path = exe
		cmd.SysProcAttr = &syscall.SysProcAttr{
			Cloneflags:  syscall.CLONE_NEWUSER,
			UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: uid, Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: uid, Size: 1}},
			Credential:  &syscall.Credential{Uid: 0, Gid: 0, NoSetGroups: true},
		}
		out, err := cmd.Output()
		if len(out) == 0 {
			t.Skipf("SKIPPED, NOT TESTED: no user namespace: %v", err)
		}
		if !strings.Contains(string(out), want) {
			t.Errorf("as user %d: %s", uid, out)
		}
	}
	run(0, "reached answered")
	run(54321, "user 54321, group 54321, may not share memory")
}
