package shm

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"go.uber.org/goleak"
)

// Some tests need a process of their own: the test binary runs itself with childEnv naming
// the part and childArg what it is told.
const (
	childEnv = "SHM_TEST_CHILD"
	childArg = "SHM_TEST_ARG"
)

var children = map[string]func(arg string) error{}

func TestMain(m *testing.M) {
	if name := os.Getenv(childEnv); name != "" {
		if err := children[name](os.Getenv(childArg)); err != nil {
			fmt.Println("FAIL:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// child is the command that plays a part.
func child(name, arg string) *exec.Cmd {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+name, childArg+"="+arg)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

func needRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED, NOT TESTED: this test needs root")
	}
}

// rounds is how often a loop runs: few by default, many with RINGFENCE_LONG set.
func rounds(few, many int) int {
	if on, _ := strconv.ParseBool(os.Getenv("RINGFENCE_LONG")); on {
		return many
	}
	return few
}

var small = Geometry{ArenaBytes: MinArena, Slots: 8}

// pair is a region with both sides in this process, each with a mapping of its own.
func pair(t testing.TB, o Options) (*Host, *Guest) {
	t.Helper()
	h, err := Create(o)
	if err != nil {
		t.Fatal(err)
	}
	g, err := Attach(again(t, h.File()), o.Geometry, o.Engine)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.Close(); err != nil {
			t.Error(err)
		}
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	})
	return h, g
}

func again(t testing.TB, f *os.File) *os.File {
	t.Helper()
	fd, err := syscall.Dup(int(f.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	return os.NewFile(uintptr(fd), f.Name())
}

func block(t testing.TB, g *Guest, n int) []byte {
	t.Helper()
	b, ok := g.Arena().Alloc(n)
	if !ok {
		t.Fatalf("no block of %d bytes", n)
	}
	return b
}

// sockets are the two ends of a connection.
func sockets(t testing.TB) (a, b *net.UnixConn) {
	t.Helper()
	l, err := Listen(filepath.Join(t.TempDir(), "s"), 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	b, err = net.DialUnix("unix", nil, l.Addr().(*net.UnixAddr))
	if err != nil {
		t.Fatal(err)
	}
	if a, err = l.AcceptUnix(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close(); b.Close() })
	return a, b
}

// send is Submit that wakes the engine.
func (g *Guest) send(id, producer uint32, frame []byte) bool {
	defer g.Ring()
	return g.Submit(id, producer, frame)
}
