package host

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
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

// H03: a node whose metadata was removed, or put back from another time, notices
// before it joins, refuses with what to do, and changes nothing.
func TestH03WipedOrRolledBack(t *testing.T) {
	remove := func(names ...string) func(*testing.T, string, string) {
		return func(t *testing.T, dir, _ string) {
			for _, n := range names {
				if err := os.RemoveAll(filepath.Join(dir, n)); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	putBack := func(names ...string) func(*testing.T, string, string) {
		return func(t *testing.T, dir, old string) {
			remove(names...)(t, dir, old)
			for _, n := range names {
				copyTree(t, filepath.Join(old, n), filepath.Join(dir, n))
			}
		}
	}
	for name, c := range map[string]struct {
		harm func(t *testing.T, dir, yesterday string)
		want error
	}{
		"raft removed":           {remove("raft"), ErrWiped},
		"journals removed":       {remove("raft/journal-0", "raft/journal-1"), ErrWiped},
		"one journal removed":    {remove("raft/journal-0"), ErrDamaged},
		"the other removed":      {remove("raft/journal-1"), ErrDamaged},
		"identity removed":       {remove("identity.json"), ErrWiped},
		"raft put back":          {putBack("raft"), ErrRolledBack},
		"identity put back":      {putBack("identity.json"), nil}, // nothing in it is wrong
		"identity of another":    {func(t *testing.T, dir, _ string) { foreignIdentity(t, dir) }, ErrMismatch},
		"journal put back":       {putBack("raft/journal-0", "raft/journal-1"), ErrRolledBack},
		"everything put back":    {putBack("raft", "identity.json"), nil}, // see Options.Seen
		"one journal put back":   {putBack("raft/journal-0"), ErrDamaged},
		"identity damaged":       {func(t *testing.T, dir, _ string) { edit(t, dir+"/identity.json", `"starts": 5`, `"starts": 4`) }, ErrDamaged},
		"identity half written":  {func(t *testing.T, dir, _ string) { os.Truncate(dir+"/identity.json", 20) }, ErrDamaged},
		"identity of the future": {func(t *testing.T, dir, _ string) { edit(t, dir+"/identity.json", `"format": 1`, `"format": 2`) }, ErrNewer},
	} {
		t.Run(name, func(t *testing.T) {
			dir, yesterday := t.TempDir(), t.TempDir()
			for i := range 5 {
				if i == 2 {
					copyTree(t, dir, yesterday)
				}
				h := open(t, dir)
				create(t, h, i)
				closeHost(t, h)
			}
			c.harm(t, dir, yesterday)
			before := listTree(t, dir)
			for range 2 { // it does not get better by trying again
				h, err := Open(Options{Dir: dir, Logger: quiet()})
				if !errors.Is(err, c.want) || (err == nil) != (c.want == nil) {
					t.Fatalf("got %v, want %v", err, c.want)
				}
				if err == nil {
					closeHost(t, h)
					return
				}
				if !strings.Contains(err.Error(), dir) && !errors.Is(err, ErrDamaged) {
					t.Errorf("does not name the directory: %v", err)
				}
			}
			for f, size := range before {
				if now, ok := listTree(t, dir)[f]; !ok || now != size {
					t.Errorf("%s: %d bytes, now %d", f, size, now)
				}
			}
		})
	}
}

// H03: a directory that was put back as a whole is noticed by who knows better.
func TestH03WholeDirectoryPutBack(t *testing.T) {
	dir, yesterday := filepath.Join(t.TempDir(), "a"), t.TempDir()
	var last uint64
	for i := range 4 {
		if i == 2 {
			copyTree(t, dir, yesterday)
		}
		h := open(t, dir)
		last = h.Incarnation()
		closeHost(t, h)
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	copyTree(t, yesterday, dir)
	if _, err := Open(Options{Dir: dir, Seen: last, Logger: quiet()}); !errors.Is(err, ErrRolledBack) {
		t.Errorf("got %v", err)
	}
	h, err := Open(Options{Dir: dir, Seen: last - 2, Logger: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	closeHost(t, h)
}

func foreignIdentity(t *testing.T, dir string) {
	t.Helper()
	id, err := readIdentity(dir)
	if err != nil {
		t.Fatal(err)
	}
	id.Disk = newIdentity("", 0).Disk
	if err := id.save(dir); err != nil {
		t.Fatal(err)
	}
}

func edit(t *testing.T, name, from, to string) {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil || !bytes.Contains(b, []byte(from)) {
		t.Fatalf("%s has no %s: %v", name, from, err)
	}
	if err := os.WriteFile(name, bytes.Replace(b, []byte(from), []byte(to), 1), 0o600); err != nil {
		t.Fatal(err)
	}
}

func copyTree(t *testing.T, from, to string) {
	t.Helper()
	fi, err := os.Stat(from)
	if err != nil {
		t.Fatal(err)
	}
	if fi.IsDir() {
		err = os.CopyFS(to, os.DirFS(from))
	} else {
		var b []byte
		if b, err = os.ReadFile(from); err == nil {
			err = os.WriteFile(to, b, 0o600)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
}

func listTree(t *testing.T, dir string) map[string]int64 {
	t.Helper()
	files := map[string]int64{}
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		fi, err := d.Info()
		files[name] = fi.Size()
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// A crash before the first start was complete leaves a directory that the next
// start forms anew; nobody had been answered.
func TestInterruptedForming(t *testing.T) {
	for name, left := range map[string]func(dir string){
		"identity only":  func(string) {},
		"empty raft":     func(dir string) { os.Mkdir(dir+"/raft", 0o700) },
		"empty journals": func(dir string) { os.Mkdir(dir+"/raft", 0o700); os.WriteFile(dir+"/raft/journal-0", nil, 0o600) },
		"torn journal": func(dir string) {
			os.Mkdir(dir+"/raft", 0o700)
			os.WriteFile(dir+"/raft/journal-0", bytes.Repeat([]byte("torn"), block), 0o600)
		},
	} {
		dir := t.TempDir()
		if err := newIdentity("node", 4).save(dir); err != nil {
			t.Fatal(err)
		}
		left(dir)
		h, err := Open(Options{Dir: dir, Logger: quiet()})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		create(t, h, 1)
		closeHost(t, h)
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

// H01: snapshots and log are from one time, or the start is refused: an older copy
// of one under a newer other would leave a gap in the state.
func TestH01SnapshotsAndLogOfDifferentTimes(t *testing.T) {
	dir, yesterday := filepath.Join(t.TempDir(), "now"), filepath.Join(t.TempDir(), "then")
	for round := range 2 {
		h := open(t, dir)
		createMany(t, h, 1000*round, 300)
		for _, v := range h.Ring().Vnodes() {
			if err := h.Snapshot(context.Background(), v.ID); err != nil {
				t.Fatal(err)
			}
		}
		closeHost(t, h)
		if round == 0 {
			copyTree(t, dir, yesterday)
		}
	}
	for name, c := range map[string]struct {
		old  []string
		want error
	}{
		"older snapshots": {[]string{"raft/snapshots"}, ErrDamaged},
		"older log":       {[]string{"raft/journal-0", "raft/journal-1"}, ErrRolledBack},
	} {
		d := filepath.Join(t.TempDir(), "d")
		copyTree(t, dir, d)
		for _, f := range c.old {
			if err := os.RemoveAll(filepath.Join(d, f)); err != nil {
				t.Fatal(err)
			}
			copyTree(t, filepath.Join(yesterday, f), filepath.Join(d, f))
		}
		if _, err := Open(Options{Dir: d, Logger: quiet()}); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
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

// H06: every command takes effect once, whatever restarts it meets: a split is
// answered with range numbers that were never given before.
func TestH06RestartsAllocateOnce(t *testing.T) {
	dir := t.TempDir()
	rng := rand.New(rand.NewPCG(6, 6))
	seen := map[uint32]bool{}
	name, cmd := createTopic(1)
	cmd.Bits = 32
	active := []fence.RangeID{{Topic: cmd.ID}}
	for round := range long(12) {
		h := open(t, dir)
		if round == 0 {
			if r, err := h.Propose(context.Background(), name, cmd); err != nil || r.Err != nil {
				t.Fatal(r.Err, err)
			}
		}
		for range rng.IntN(6) {
			i := rng.IntN(len(active))
			r, err := h.Propose(context.Background(), name, cp.SplitRange{Range: active[i]})
			if err != nil || r.Err != nil {
				t.Fatal(r.Err, err)
			}
			for _, id := range []fence.RangeID{r.Range, r.Range2} {
				if seen[id.Seq] {
					t.Fatalf("range %d given twice", id.Seq)
				}
				seen[id.Seq] = true
			}
			active[i] = r.Range
			active = append(active, r.Range2)
		}
		if rng.IntN(3) == 0 {
			id, _ := h.Ring().Route(name)
			if err := h.Snapshot(context.Background(), id); err != nil {
				t.Fatal(err)
			}
		}
		v, _ := h.Ring().Route(name)
		if err := h.Read(context.Background(), v, func(s *cp.State) {
			if n := len(s.ActiveRanges(name)); n != len(active) {
				t.Errorf("round %d: %d active ranges, %d answered", round, n, len(active))
			}
		}); err != nil {
			t.Fatal(err)
		}
		closeHost(t, h)
	}
}

const childEnv = "RINGFENCE_HOST_CHILD"

// TestMain lets the test binary be the process that a test kills.
func TestMain(m *testing.M) {
	dir := os.Getenv(childEnv)
	if dir == "" {
		os.Exit(m.Run())
	}
	h, err := Open(Options{Dir: dir})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	go func() {
		for {
			for _, v := range h.Ring().Vnodes() {
				if err := h.Snapshot(context.Background(), v.ID); err != nil {
					fmt.Fprintln(os.Stderr, err)
				}
			}
		}
	}()
	from, _ := strconv.Atoi(os.Args[1])
	for i := from; ; i++ {
		name, cmd := createTopic(i)
		r, err := h.Propose(context.Background(), name, cmd)
		if err != nil || r.Err != nil && !errors.Is(r.Err, cp.ErrTopicExists) {
			fmt.Fprintln(os.Stderr, r.Err, err)
			os.Exit(1)
		}
		fmt.Println(i)
	}
}

// H02: a process that is killed with kill -9 at any moment, also while it takes
// snapshots, loses no command that was answered and applies none twice. Nothing is
// written to standard error meanwhile.
func TestH02KilledProcessLosesNothing(t *testing.T) {
	dir := t.TempDir()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(9, 9))
	last := -1
	for range long(6) {
		child := exec.Command(exe, strconv.Itoa(last+1))
		child.Env = append(os.Environ(), childEnv+"="+dir)
		var noise bytes.Buffer
		child.Stderr = &noise
		out, err := child.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := child.Start(); err != nil {
			t.Fatal(err)
		}
		enough := last + 1 + rng.IntN(400)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			if last, err = strconv.Atoi(lines.Text()); err != nil {
				t.Fatal(err)
			}
			if last >= enough {
				child.Process.Signal(syscall.SIGKILL)
			}
		}
		if err := child.Wait(); child.ProcessState.Success() || noise.Len() > 0 {
			t.Fatalf("child: %v\n%s", err, noise.String())
		}
	}
	h := open(t, dir)
	if _, n := digest(t, h); n != last+1 && n != last+2 { // one may have been applied and not printed
		t.Errorf("%d topics, %d were answered", n, last+1)
	}
	for i := range last + 1 {
		name, _ := createTopic(i)
		id, _ := h.Ring().Route(name)
		if err := h.ReadLocal(id, func(s *cp.State) {
			if s.Topic(name) == nil {
				t.Errorf("%s was answered and is gone", name)
			}
		}); err != nil {
			t.Fatal(err)
		}
	}
}
