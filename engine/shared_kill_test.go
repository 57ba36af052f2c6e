package engine

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ringfence/ringfence/engine/server"
	"github.com/ringfence/ringfence/engine/wire"
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
// is stored whole or not at all, nothing else of it is, and its memory is given back.
//
// That nobody waits for it is not measured, as a pause would be, but counted: at each step
// others store records behind the moment at which the client stopped, and when they are
// stored it is still there, stopped, with its memory. So none of them waited for anything
// that it was to do, or for its end.
func TestI02ClientDiesAtEachStep(t *testing.T) {
	e := open(t, t.TempDir(), Options{})
	must(t, e.CreateTopic(within(t), "t", TopicOptions{}))
	must(t, e.CreateTopic(within(t), "others", TopicOptions{}))
	s := shareMemory(t, e, server.Options{})
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
		if signal == syscall.SIGSTOP {
			eventually(t, "the client stops", func() bool { return stateOf(t, cmd.Process.Pid) == "T" })
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
	end := func() {
		for _, cmd := range stopped {
			cmd.Process.Kill()
			cmd.Wait()
		}
		stopped = nil
	}
	cut := s.Stats().CutOff
	for _, step := range steps {
		cmd := die(step, syscall.SIGSTOP)
		stopped = append(stopped, cmd)
		if n := s.Stats(); n.Shared.Clients != int64(1+len(stopped)) || n.CutOff != cut || stateOf(t, cmd.Process.Pid) != "T" {
			t.Errorf("step %q: with %d clients that stopped %d share memory, and %d were cut off: the others may have waited for that", step, len(stopped), n.Shared.Clients, n.CutOff-cut)
		}
	}
	end()
	s.alone(bytes)
	s.stop(within(t))
	s.opts.IdleTimeout = 500 * time.Millisecond
	s.start(e)
	for _, step := range []string{"half a slot", "waiting"} {
		stopped = append(stopped, die(step, syscall.SIGSTOP))
	}
	s.alone(bytes) // they are cut off when they have been silent for too long
	end()
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

// stateOf is the state of a process, T for one that was stopped.
func stateOf(t *testing.T, pid int) string {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	must(t, err)
	_, rest, _ := strings.Cut(string(b), ") ")
	return rest[:1]
}

// I01: a server that cannot get the memory for one client says so to that one; others share
// memory before and after, and it lives on.
func TestI01ServerWithoutMemory(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	cmd := child(t, "shm narrow", path)
	out, err := cmd.StdoutPipe()
	must(t, err)
	in, err := cmd.StdinPipe()
	must(t, err)
	must(t, cmd.Start())
	lines := bufio.NewReader(out)
	if line, _ := lines.ReadString('\n'); line != "serving\n" {
		t.Fatalf("the server said %q", line)
	}
	store := func(b *bare, id uint64) {
		t.Helper()
		p, err := b.producer("t", id)
		must(t, err)
		frame := frameWith(id, 1, []byte("here"))
		mem, _ := b.g.Arena().Alloc(len(frame))
		copy(mem, frame)
		b.g.Submit(1<<31, p, mem)
		b.g.Ring()
		soon(t, "the answer", func() { _, err = b.g.Next() })
		must(t, err)
	}
	before, err := dialBare(path)
	must(t, err)
	defer before.leave()
	store(before, 1)
	_, err = dialBareFor(path, 512<<20)
	is(t, err, wire.CodeOverloaded, "no memory to share", "not enough memory", fmt.Sprint(512<<20+4096+2*1024*64))
	store(before, 2)
	after, err := dialBare(path)
	must(t, err)
	defer after.leave()
	store(after, 3)
	in.Close()
	if line, _ := lines.ReadString('\n'); line != "refused 1\n" {
		t.Errorf("the server said %q", line)
	}
	must(t, cmd.Wait())
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
