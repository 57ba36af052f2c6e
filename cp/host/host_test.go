package host

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ringfence/ringfence/cp"
	"github.com/ringfence/ringfence/fence"
	"go.uber.org/goleak"
)

func topicID(n int) fence.TopicID {
	return fence.TopicID{0: 1, 12: byte(n >> 24), 13: byte(n >> 16), 14: byte(n >> 8), 15: byte(n)}
}

func createTopic(n int) (string, cp.CreateTopic) {
	name := fmt.Sprintf("topic-%d", n)
	return name, cp.CreateTopic{Name: name, Bits: 8, ID: topicID(n), At: 1}
}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// open opens a host that the test closes at its end at the latest.
func open(t testing.TB, dir string) *Host {
	t.Helper()
	h, err := Open(Options{Dir: dir, Logger: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeHost(t, h) })
	return h
}

func closeHost(t testing.TB, h *Host) {
	t.Helper()
	if err := h.Close(); err != nil {
		t.Error(err)
	}
}

func create(t testing.TB, h *Host, n int) {
	t.Helper()
	name, cmd := createTopic(n)
	r, err := h.Propose(context.Background(), name, cmd)
	if err != nil || r.Err != nil {
		t.Fatalf("%s: %v %v", name, r.Err, err)
	}
}

func createMany(t testing.TB, h *Host, from, n int) {
	t.Helper()
	ps := make([]Proposal, n)
	for i := range ps {
		name, cmd := createTopic(from + i)
		ps[i] = Proposal{name, cmd}
	}
	for i, o := range h.ProposeAll(context.Background(), ps) {
		if o.Err != nil || o.Reply.Err != nil {
			t.Fatalf("topic %d: %v %v", from+i, o.Reply.Err, o.Err)
		}
	}
}

// digest is all vnodes' canonical snapshots, and how many topics they hold.
func digest(t testing.TB, h *Host) (sum string, topics int) {
	t.Helper()
	views, unreachable, err := h.Views(context.Background())
	if err != nil || len(unreachable) > 0 {
		t.Fatalf("unreachable: %v: %v", unreachable, err)
	}
	var b bytes.Buffer
	for _, v := range views {
		if err := v.State.Check(); err != nil {
			t.Fatalf("vnode %d: %v", v.Vnode, err)
		}
		if err := v.State.Snapshot(&b); err != nil {
			t.Fatal(err)
		}
		topics += v.State.Len()
	}
	return b.String(), topics
}

func TestProposeReadReopen(t *testing.T) {
	dir := t.TempDir()
	h := open(t, dir)
	if !h.Formed() || h.Incarnation() != 1 || h.Vnodes() != 4 || h.Node() != "node" || len(h.Disk()) != 32 {
		t.Errorf("%v %d %d %q %q", h.Formed(), h.Incarnation(), h.Vnodes(), h.Node(), h.Disk())
	}
	createMany(t, h, 0, 100)
	name, cmd := createTopic(7)
	r, err := h.Propose(context.Background(), name, cmd)
	if err != nil || !errors.Is(r.Err, cp.ErrTopicExists) || r.Range.Topic != topicID(7) {
		t.Errorf("a refusal is a reply: %+v, %v", r, err)
	}
	id, _ := h.Ring().Route(name)
	for look, read := range map[string]func(func(*cp.State)) error{
		"read":       func(f func(*cp.State)) error { return h.Read(context.Background(), id, f) },
		"read local": func(f func(*cp.State)) error { return h.ReadLocal(id, f) },
	} {
		found := false
		if err := read(func(s *cp.State) { found = s.Topic(name) != nil }); err != nil || !found {
			t.Errorf("%s: %v, %v", look, found, err)
		}
	}
	r, err = h.Propose(context.Background(), "", cp.DefinePolicy{Name: "short", Policy: cp.Policy{MaxAge: cp.Limit(1000)}})
	if err != nil || r.Err != nil {
		t.Fatal(r.Err, err)
	}
	home, _ := h.Ring().Home()
	if err := h.Read(context.Background(), home, func(s *cp.State) {
		if _, ok := s.Policy("short"); !ok {
			t.Error("the policy is not on the home vnode")
		}
	}); err != nil {
		t.Fatal(err)
	}
	for _, bad := range []cp.VnodeID{0, 5} {
		if err := h.ReadLocal(bad, func(*cp.State) {}); !errors.Is(err, cp.ErrNoSuchVnode) {
			t.Errorf("vnode %d: %v", bad, err)
		}
	}
	want, n := digest(t, h)
	disk := h.Disk()
	closeHost(t, h)

	again := open(t, dir)
	got, m := digest(t, again)
	if got != want || m != n || n != 100 {
		t.Errorf("%d topics before, %d after", n, m)
	}
	if again.Formed() || again.Incarnation() != 2 || again.Disk() != disk {
		t.Errorf("%v %d %q", again.Formed(), again.Incarnation(), again.Disk())
	}
	if _, err := h.Propose(context.Background(), name, cmd); !errors.Is(err, ErrClosed) {
		t.Errorf("Propose after close: %v", err)
	}
	if err := h.Read(context.Background(), id, func(*cp.State) {}); !errors.Is(err, ErrClosed) {
		t.Errorf("Read after close: %v", err)
	}
}

// A node without peers opens no socket, and a closed host leaves no descriptor and
// no goroutine.
func TestNoSockets(t *testing.T) {
	running := goleak.IgnoreCurrent()
	fds := func() (sockets, files int) {
		es, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Skip(err)
		}
		for _, e := range es {
			to, _ := os.Readlink("/proc/self/fd/" + e.Name())
			if strings.HasPrefix(to, "socket:") {
				sockets++
			} else if strings.HasPrefix(to, "/") && !strings.HasPrefix(to, "/dev/") && !strings.HasPrefix(to, "/proc/") {
				files++
			}
		}
		return sockets, files
	}
	s0, f0 := fds()
	h := open(t, t.TempDir())
	create(t, h, 1)
	if s1, f1 := fds(); s1 != s0 || f1 <= f0 {
		t.Errorf("sockets %d -> %d, files %d -> %d", s0, s1, f0, f1)
	}
	closeHost(t, h)
	if s2, f2 := fds(); s2 != s0 || f2 != f0 {
		t.Errorf("after close: sockets %d -> %d, files %d -> %d", s0, s2, f0, f2)
	}
	goleak.VerifyNone(t, running)
}

func TestSettingsAreFixed(t *testing.T) {
	dir := t.TempDir()
	h, err := Open(Options{Dir: dir, Vnodes: 2, Node: "a", Logger: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Open(Options{Dir: dir, Logger: quiet()}); !errors.Is(err, ErrLocked) {
		t.Errorf("second host: %v", err)
	}
	closeHost(t, h)
	for _, o := range []Options{{Vnodes: 3}, {Node: "b"}} {
		o.Dir, o.Logger = dir, quiet()
		if _, err := Open(o); !errors.Is(err, ErrMismatch) {
			t.Errorf("%+v: %v", o, err)
		}
	}
	h = open(t, dir)
	if h.Vnodes() != 2 || h.Node() != "a" {
		t.Errorf("%d %q", h.Vnodes(), h.Node())
	}
	for _, o := range []Options{{}, {Dir: "x", Vnodes: -1}, {Dir: "x", Vnodes: 1000}} {
		if _, err := Open(o); err == nil {
			t.Errorf("%+v accepted", o)
		}
	}
}

// Form can refuse to make metadata anew; nothing is left that looks formed.
func TestFormCanRefuse(t *testing.T) {
	dir := t.TempDir()
	no := errors.New("segments are here already")
	if _, err := Open(Options{Dir: dir, Logger: quiet(), Form: func() error { return no }}); !errors.Is(err, no) {
		t.Fatal(err)
	}
	if h := open(t, dir); !h.Formed() {
		t.Error("not formed")
	}
}

// Snapshots replace the log: the journal stays small, a start finds the state in
// them, and a damaged one is refused by name.
func TestSnapshots(t *testing.T) {
	dir := t.TempDir()
	h := open(t, dir)
	createMany(t, h, 0, 8000)
	for _, v := range h.Ring().Vnodes() {
		if err := h.Snapshot(context.Background(), v.ID); err != nil {
			t.Fatal(err)
		}
	}
	create(t, h, 9000) // lets the step workers see that there is something to forget
	for live := 1 << 30; live > 4*100*200; time.Sleep(10 * time.Millisecond) {
		live = h.Stats().LiveBytes
	}
	want, n := digest(t, h)
	closeHost(t, h)

	files, err := filepath.Glob(filepath.Join(dir, "raft/snapshots/*/*/*/*/*.gbsnap"))
	if err != nil || len(files) != 4 {
		t.Fatalf("snapshot files: %v, %v", files, err)
	}
	h = open(t, dir)
	if got, m := digest(t, h); got != want || m != n {
		t.Errorf("%d topics before, %d after", n, m)
	}
	closeHost(t, h)

	b, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	for _, harm := range []func() error{
		func() error { b[len(b)/2] ^= 1; return os.WriteFile(files[0], b, 0o600) },
		func() error { return os.WriteFile(files[0], b[:len(b)-1], 0o600) },
		func() error { return os.Remove(files[0]) },
	} {
		if err := harm(); err != nil {
			t.Fatal(err)
		}
		_, err := Open(Options{Dir: dir, Logger: quiet()})
		var damage *DamageError
		if !errors.As(err, &damage) || damage.File != files[0] {
			t.Errorf("damaged snapshot: %v", err)
		}
	}
}

// Snapshots are taken without being asked for, before the log gets long.
func TestSnapshotsComeByThemselves(t *testing.T) {
	h := open(t, t.TempDir())
	for n := 0; ; n += 2000 {
		createMany(t, h, n, 2000)
		if n >= 40000 {
			t.Fatal("no snapshot after 40,000 commands")
		}
		files, _ := filepath.Glob(filepath.Join(h.opts.Dir, "raft/snapshots/*/*/*/*/*.gbsnap"))
		if len(files) > 0 {
			break
		}
		time.Sleep(maintainEvery / 2)
	}
}

// The directory may move, and the machine may be renamed.
func TestDirectoryMoves(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a")
	h := open(t, dir)
	createMany(t, h, 0, 100)
	for _, v := range h.Ring().Vnodes() {
		if err := h.Snapshot(context.Background(), v.ID); err != nil {
			t.Fatal(err)
		}
	}
	want, _ := digest(t, h)
	closeHost(t, h)
	moved := filepath.Join(t.TempDir(), "b")
	if err := os.Rename(dir, moved); err != nil {
		t.Fatal(err)
	}
	if got, _ := digest(t, open(t, moved)); got != want {
		t.Error("another state after the move")
	}
}
