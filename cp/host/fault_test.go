package host

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/lni/dragonboat/v4/config"
	sm "github.com/lni/dragonboat/v4/statemachine"
	"github.com/ringfence/ringfence/cp"
)

// stopped checks what a failed host owes: everybody is told why, what is in memory
// can be read, the process lives and Close comes back.
func stopped(t *testing.T, h *Host, cause error) {
	t.Helper()
	<-h.Failed()
	if err := h.Err(); !errors.Is(err, ErrFailed) || cause != nil && !errors.Is(err, cause) {
		t.Errorf("Err: %v", err)
	}
	name, cmd := createTopic(12345)
	if _, err := h.Propose(context.Background(), name, cmd); !errors.Is(err, ErrFailed) {
		t.Errorf("Propose: %v", err)
	}
	if err := h.Read(context.Background(), 1, func(*cp.State) {}); !errors.Is(err, ErrFailed) {
		t.Errorf("Read: %v", err)
	}
	if views, unreachable, err := h.Views(context.Background()); len(views) != 0 || len(unreachable) != 4 || !errors.Is(err, ErrFailed) {
		t.Errorf("Views: %d, unreachable %v: %v", len(views), unreachable, err)
	}
	if err := h.Snapshot(context.Background(), 1); !errors.Is(err, ErrFailed) {
		t.Errorf("Snapshot: %v", err)
	}
	h.Stats()
	if err := h.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
}

// A write of the Raft log that fails stops the metadata with the cause, and the
// command under way is answered with an unknown outcome.
func TestLogWriteFails(t *testing.T) {
	dir := t.TempDir()
	h, err := Open(Options{Dir: dir, Logger: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	create(t, h, 1)
	h.journal.slots[0].(*osSlot).f.Close()
	h.journal.slots[1].(*osSlot).f.Close()
	name, cmd := createTopic(2)
	if _, err := h.Propose(context.Background(), name, cmd); !errors.Is(err, ErrUnknownOutcome) || !errors.Is(err, ErrFailed) {
		t.Errorf("Propose: %v", err)
	}
	id, _ := h.Ring().Route("topic-1")
	if err := h.ReadLocal(id, func(s *cp.State) {
		if s.Topic("topic-1") == nil {
			t.Error("what was answered before cannot be read")
		}
	}); err != nil {
		t.Error(err)
	}
	<-h.Failed()
	if err := h.Err(); !errors.Is(err, ErrFailed) || !strings.Contains(err.Error(), "journal-") {
		t.Errorf("does not say which file: %v", err)
	}
	if err := h.Close(); err == nil { // the slots were closed behind its back
		t.Error("closing a closed file is no error")
	}
	h = open(t, dir)
	if _, n := digest(t, h); n != 1 && n != 2 {
		t.Errorf("%d topics", n)
	}
}

// A panic while a command is applied stops the metadata, not the process, and the
// state that may be half changed is not shown.
func TestApplyPanics(t *testing.T) {
	h := open(t, t.TempDir())
	create(t, h, 1)
	id, _ := h.Ring().Route("topic-1")
	h.vnodes[id-1].machine.mu.Lock()
	h.vnodes[id-1].machine.state = nil // any use panics
	h.vnodes[id-1].machine.mu.Unlock()
	name, cmd := createTopic(1)
	if _, err := h.Propose(context.Background(), name, cmd); !errors.Is(err, ErrUnknownOutcome) || !errors.Is(err, ErrFailed) {
		t.Errorf("Propose: %v", err)
	}
	if err := h.ReadLocal(id, func(*cp.State) { t.Error("half changed state shown") }); !errors.Is(err, ErrFailed) {
		t.Errorf("ReadLocal: %v", err)
	}
	other := id%4 + 1
	if err := h.ReadLocal(other, func(*cp.State) {}); err != nil {
		t.Errorf("another vnode: %v", err)
	}
	stopped(t, h, nil)
	if !strings.Contains(h.Err().Error(), "panicked") {
		t.Error(h.Err())
	}
}

// garbage is a state machine whose snapshots cp cannot read.
type garbage struct{ *machine }

func (garbage) SaveSnapshot(_ any, w io.Writer, _ sm.ISnapshotFileCollection, _ <-chan struct{}) error {
	_, err := w.Write([]byte("not a snapshot of cp's"))
	return err
}

// A snapshot that is whole but cannot be restored, as after a downgrade, is an
// error of Open; the process lives and Open comes back.
func TestSnapshotCannotBeRestored(t *testing.T) {
	dir := t.TempDir()
	h := open(t, dir)
	create(t, h, 1)
	id, _ := h.Ring().Route("topic-1")
	v := h.vnodes[id-1]
	if err := h.nh.StopShard(v.shard); err != nil {
		t.Fatal(err)
	}
	v.machine = &machine{host: h, state: cp.NewState()}
	create := func(uint64, uint64) sm.IConcurrentStateMachine { return garbage{v.machine} }
	cfg := config.Config{ShardID: v.shard, ReplicaID: replica, ElectionRTT: 10, HeartbeatRTT: 1}
	for h.nh.StartConcurrentReplica(nil, false, create, cfg) != nil { // still stopping
		time.Sleep(time.Millisecond)
	}
	if err := h.lead(v); err != nil {
		t.Fatal(err)
	}
	if err := h.Snapshot(context.Background(), id); err != nil {
		t.Fatal(err)
	}
	closeHost(t, h)
	if _, err := Open(Options{Dir: dir, Logger: quiet()}); !errors.Is(err, ErrFailed) || !errors.Is(err, cp.ErrSnapshot) {
		t.Errorf("got %v", err)
	}
}

// While the log is stuck, calls end at their deadline and the queue is bounded;
// what had an unknown outcome takes effect once when the log moves again.
func TestStuckLogIsBounded(t *testing.T) {
	h := open(t, t.TempDir())
	create(t, h, 0)
	h.journal.mu.Lock()
	h.journal.own() // as a write that takes for ever
	h.journal.mu.Unlock()

	short, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	const name = "stuck"
	if _, err := h.Propose(short, name, cp.CreateTopic{Name: name, Bits: 8, ID: topicID(1e6)}); !errors.Is(err, ErrUnknownOutcome) || !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("Propose: %v", err)
	}
	id, _ := h.Ring().Route(name)
	_, unreachable, err := h.Views(short)
	if len(unreachable) == 0 || err == nil {
		t.Errorf("a vnode that is stuck was read: %v", err)
	}
	if err := h.ReadLocal(id, func(*cp.State) {}); err != nil {
		t.Errorf("ReadLocal: %v", err)
	}
	// Nobody waits for these, yet their number is bounded.
	taken := 0
	for ; ; taken++ {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		_, err := h.begin(ctx, h.vnodes[id-1], cp.CreateTopic{Name: fmt.Sprint(name, taken), Bits: 8, ID: topicID(1e6 + 1 + taken)})
		cancel()
		if errors.Is(err, ErrBusy) {
			break
		}
		if err != nil || taken > 1e5 {
			t.Fatal(taken, err)
		}
	}
	if taken < 100 {
		t.Errorf("busy after %d commands", taken)
	}
	h.journal.mu.Lock()
	h.journal.disown(nil)
	h.journal.mu.Unlock()
	for {
		n := 0
		if err := h.Read(context.Background(), id, func(s *cp.State) {
			for tp := range s.Topics() {
				if strings.HasPrefix(tp.Name, name) {
					n++
				}
			}
		}); err != nil {
			t.Fatal(err)
		}
		if n == taken+1 {
			break
		}
		if n > taken+1 {
			t.Fatalf("%d topics of %d commands", n, taken+1)
		}
		time.Sleep(time.Millisecond)
	}
}

// A few huge commands are bounded by their bytes.
func TestLargeCommands(t *testing.T) {
	h := open(t, t.TempDir())
	ctx := context.Background()
	if _, err := h.Propose(ctx, "x", cp.InsertTopic{Export: make([]byte, MaxCommand)}); !errors.Is(err, ErrTooLarge) {
		t.Errorf("too large: %v", err)
	}
	r, err := h.Propose(ctx, "x", cp.InsertTopic{Export: make([]byte, MaxCommand-1000)})
	if err != nil || r.Err == nil {
		t.Errorf("a large one is carried and refused by the state: %v, %v", r.Err, err)
	}
	h.journal.mu.Lock()
	h.journal.own()
	h.journal.mu.Unlock()
	var ps []pending
	for err = nil; err == nil; {
		var p pending
		if p, err = h.begin(ctx, h.vnodes[0], cp.InsertTopic{Export: make([]byte, MaxCommand/4)}); err == nil {
			ps = append(ps, p)
		}
	}
	if !errors.Is(err, ErrBusy) || len(ps) > maxInflight/(MaxCommand/4) {
		t.Errorf("%d in flight, then %v", len(ps), err)
	}
	h.journal.mu.Lock()
	h.journal.disown(nil)
	h.journal.mu.Unlock()
	for _, p := range ps {
		if _, err := h.await(ctx, p); err != nil {
			t.Error(err)
		}
	}
	create(t, h, 1)
}

// inNamespace runs the rest of the calling test as root of a process with mounts of
// its own, where it may do what a machine's administrator does to it. It returns
// true in that process.
func inNamespace(t *testing.T) bool {
	const env = "RINGFENCE_HOST_NAMESPACE"
	if os.Getenv(env) != "" {
		return true
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe, "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), env+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS | syscall.CLONE_NEWUTS,
		UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}},
	}
	out, err := cmd.CombinedOutput()
	if errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.ENOSPC) {
		t.Skipf("no namespaces here: %v", err)
	}
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Skipf("%s", out)
	}
	return false
}

// The machine gets another name between two starts, as a container does.
func TestMachineIsRenamed(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	dir := t.TempDir()
	want := ""
	for i, name := range []string{"first", "second"} {
		if err := syscall.Sethostname([]byte(name)); err != nil {
			t.Skip(err)
		}
		h := open(t, dir)
		if i == 0 {
			createMany(t, h, 0, 50)
			if err := h.Snapshot(context.Background(), 1); err != nil {
				t.Fatal(err)
			}
			want, _ = digest(t, h)
		} else if got, _ := digest(t, h); got != want {
			t.Error("another state under another name")
		}
		closeHost(t, h)
	}
}

// D01: on a volume that somebody else fills, commands go on as long as the journal
// has blocks, snapshots fail harmlessly, then commands are refused with one error
// while reads and deletes go on; all of it ends when space returns. The process
// and the host live through it.
func TestD01FullVolume(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=24m"); err != nil {
		t.Skip(err)
	}
	defer syscall.Unmount(dir, syscall.MNT_DETACH)
	h := open(t, filepath.Join(dir, "meta"))
	createMany(t, h, 0, 100)

	ballast, err := os.Create(filepath.Join(dir, "ballast"))
	if err != nil {
		t.Fatal(err)
	}
	defer ballast.Close()
	fill := func() {
		for {
			if _, err := ballast.Write(make([]byte, 4096)); err != nil {
				if !outOfSpace(err) {
					t.Fatal(err)
				}
				return
			}
		}
	}
	fill()
	if err := h.Snapshot(context.Background(), 1); err == nil {
		t.Fatal("a snapshot succeeded: the volume is not full")
	}

	acked, ctx := 100, context.Background()
	for {
		name, cmd := createTopic(acked)
		r, err := h.Propose(ctx, name, cmd)
		if errors.Is(err, ErrNoSpace) {
			break
		}
		if err != nil || r.Err != nil {
			t.Fatalf("after %d topics: %v %v", acked, r.Err, err)
		}
		acked++
		if acked > 1e6 {
			t.Fatal("never refused")
		}
	}
	if acked < 500 || !h.Stats().NoSpace {
		t.Errorf("refused after %d topics, %+v", acked, h.Stats())
	}
	if _, n := digest(t, h); n != acked {
		t.Errorf("%d topics of %d can be read", n, acked)
	}
	name, _ := createTopic(0)
	if r, err := h.Propose(ctx, name, cp.DeleteTopic{Name: name}); err != nil || r.Err != nil {
		t.Errorf("a delete was refused: %v %v", r.Err, err)
	}
	if err := h.Err(); err != nil {
		t.Fatal(err)
	}

	// Space returns.
	if err := ballast.Truncate(0); err != nil {
		t.Fatal(err)
	}
	if _, err := ballast.Seek(0, 0); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		name, cmd := createTopic(acked)
		r, err := h.Propose(ctx, name, cmd)
		if err == nil && r.Err == nil {
			break
		}
		if !errors.Is(err, ErrNoSpace) || time.Now().After(deadline) {
			t.Fatal(r.Err, err)
		}
	}
	for _, v := range h.Ring().Vnodes() {
		if err := h.Snapshot(ctx, v.ID); err != nil {
			t.Error(err)
		}
	}
	want, _ := digest(t, h)
	closeHost(t, h)

	// A start needs no space that it does not have already.
	fill()
	for range 2 {
		h, err = Open(Options{Dir: filepath.Join(dir, "meta"), Logger: quiet()})
		if err != nil {
			t.Fatalf("on a full volume: %v", err)
		}
		name, cmd := createTopic(acked + 1)
		if _, err := h.Propose(ctx, name, cmd); err != nil {
			t.Error(err)
		}
		if r, err := h.Propose(ctx, name, cp.DeleteTopic{Name: name}); err != nil || r.Err != nil {
			t.Error(r.Err, err)
		}
		closeHost(t, h)
	}
	h, err = Open(Options{Dir: filepath.Join(dir, "meta"), Logger: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	if got, _ := digest(t, h); got != want {
		t.Error("another state after the restart")
	}
	closeHost(t, h)
}
