package shm

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func init() {
	// guest attaches to what the engine sends and submits n frames.
	children["guest"] = func(path string) error {
		g, c, err := attachTo(path)
		if err != nil {
			return err
		}
		defer c.Close()
		for i := range uint32(1000) {
			b, _ := g.Arena().Alloc(5000)
			for j := range b {
				b[j] = byte(i)
			}
			if !g.send(i, 3, b) {
				return errors.New("no slot")
			}
			if a, err := g.Next(); err != nil || a.ID != i {
				return fmt.Errorf("answer %+v to %d: %w", a, i, err)
			}
			g.Arena().Free(b)
		}
		return g.Close()
	}
	// who accepts one connection and says whose it is.
	children["who"] = func(path string) error {
		l, err := Listen(path, 0o666)
		if err != nil {
			return err
		}
		fmt.Println("listening")
		c, err := l.AcceptUnix()
		if err != nil {
			return err
		}
		p, err := PeerOf(c)
		fmt.Println("unknown", p.Unknown())
		return err
	}
	// idle attaches, says so, and stays until its input ends.
	children["idle"] = func(path string) error {
		_, c, err := attachTo(path)
		if err != nil {
			return err
		}
		fmt.Fprintln(c, os.Getpid())
		io.Copy(io.Discard, os.Stdin)
		return nil
	}
}

func attachTo(path string) (*Guest, *net.UnixConn, error) {
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, nil, err
	}
	r := &Receiver{UnixConn: c}
	b := make([]byte, 5)
	if _, err := io.ReadFull(r, b); err != nil || string(b) != "hello" {
		return nil, nil, fmt.Errorf("read %q: %w", b, err)
	}
	f := r.File()
	if f == nil {
		return nil, nil, errors.New("no descriptor came along")
	}
	g, err := Attach(f, small, 0)
	return g, c, err
}

// hostFor accepts one client and hands it a region.
func hostFor(t testing.TB, l *net.UnixListener, o Options) (*Host, *net.UnixConn) {
	t.Helper()
	c, err := l.AcceptUnix()
	if err != nil {
		t.Fatal(err)
	}
	h, err := Create(o)
	if err != nil {
		t.Fatal(err)
	}
	if err := Send(c, []byte("hello"), h.File()); err != nil {
		t.Fatal(err)
	}
	return h, c
}

func TestRegionBetweenProcesses(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := Listen(path, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	cmd := child("guest", path)
	var out bytes.Buffer
	cmd.Stdout = &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	h, c := hostFor(t, l, Options{Geometry: small})
	defer c.Close()
	for i := range uint32(1000) {
		s, err := h.Next()
		if err != nil {
			t.Fatal(err)
		}
		if b := h.Bytes(s); s.ID != i || s.Producer != 3 || len(b) != 5000 || !bytes.Equal(b, bytes.Repeat([]byte{byte(i)}, 5000)) {
			t.Fatalf("submission %d: %+v", i, s)
		}
		h.Complete(Completion{ID: s.ID})
	}
	if err := cmd.Wait(); err != nil {
		t.Fatal(err, out.String())
	}
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("the client ended, and its socket says %v", err)
	}
	if err := h.Close(); err != nil {
		t.Error(err)
	}
}

// Two clients have the same process id, in namespaces of their own. One is killed: its
// connection ends, and the other's does not.
func TestI09SameProcessID(t *testing.T) {
	needRoot(t)
	path := filepath.Join(t.TempDir(), "s")
	l, err := Listen(path, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	type client struct {
		kill, end func()
		host      *Host
		conn      *net.UnixConn
	}
	var both [2]client
	for i := range both {
		cmd := child("idle", path)
		cmd.SysProcAttr.Cloneflags = syscall.CLONE_NEWPID
		in, _ := cmd.StdinPipe()
		if err := cmd.Start(); err != nil {
			t.Skipf("SKIPPED, NOT TESTED: no process id namespace: %v", err)
		}
		b := &both[i]
		b.kill = func() { cmd.Process.Kill(); cmd.Wait() }
		b.end = func() { in.Close(); cmd.Wait() }
		b.host, b.conn = hostFor(t, l, Options{Geometry: small})
		defer b.host.Close()
		defer b.conn.Close()
		var pid int
		if _, err := fmt.Fscanln(b.conn, &pid); err != nil || pid != 1 {
			t.Fatalf("it has process id %d: %v", pid, err)
		}
	}
	both[0].kill()
	if _, err := both[0].conn.Read(make([]byte, 1)); err == nil {
		t.Error("the killed client's connection goes on")
	}
	if _, err := both[1].conn.Write([]byte("still there?")); err != nil {
		t.Errorf("the other's connection ended too: %v", err)
	}
	both[1].end()
}

func TestPeerOf(t *testing.T) {
	a, _ := sockets(t)
	p, err := PeerOf(a)
	if err != nil || p.UID != uint32(os.Getuid()) || p.GID != uint32(os.Getgid()) || p.PID != int32(os.Getpid()) || p.Unknown() {
		t.Errorf("%+v, %v", p, err)
	}
	if !(Peer{UID: overflowUID()}).Unknown() {
		t.Error("a user without a number is known")
	}
}

// An engine in a user namespace that maps few users does not know the others, and takes
// none of them for one that it knows.
func TestI08UserOfAnotherNamespace(t *testing.T) {
	needRoot(t)
	const user = 54321
	dir := t.TempDir()
	exe := filepath.Join(dir, "engine")
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(exe, self, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Chown(dir, user, user), os.Chmod(filepath.Dir(dir), 0o755)); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "s")
	cmd := child("who", path)
	cmd.Path = exe
	cmd.SysProcAttr.Cloneflags = syscall.CLONE_NEWUSER
	cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: user, Size: 1}}
	cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: user, Size: 1}}
	cmd.SysProcAttr.Credential = &syscall.Credential{NoSetGroups: true}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Skipf("SKIPPED, NOT TESTED: no user namespace: %v", err)
	}
	lines := bufio.NewScanner(out)
	if lines.Scan(); lines.Text() != "listening" {
		t.Fatalf("the engine said %q", lines.Text())
	}
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if lines.Scan(); lines.Text() != "unknown true" {
		t.Errorf("of root of the host it says %q", lines.Text())
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}

// Whoever is not asked for a descriptor and gets some keeps one at most, and none once
// it is closed.
func TestReceiverKeepsOneDescriptor(t *testing.T) {
	a, b := sockets(t)
	r := &Receiver{UnixConn: b}
	f, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	before := descriptors(t)
	for range 5 {
		if err := Send(a, []byte("x"), f); err != nil {
			t.Fatal(err)
		}
		if n, err := r.Read(make([]byte, 10)); n != 1 || err != nil {
			t.Fatal(n, err)
		}
	}
	if n := descriptors(t) - before; n != 1 {
		t.Errorf("%d descriptors are kept", n)
	}
	r.Close()
	if n := descriptors(t) - before; n != -1 {
		t.Errorf("%d descriptors are left behind Close", n+1)
	}
}

// A connection that is reset is an error like any other reader's.
func TestReceiverMeetsAReset(t *testing.T) {
	a, b := sockets(t)
	r := bufio.NewReader(&Receiver{UnixConn: b})
	if _, err := b.Write([]byte("never read")); err != nil {
		t.Fatal(err)
	}
	a.Close() // with bytes that were not read
	if _, err := r.Peek(1); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("reading says %v", err)
	}
}

func descriptors(t testing.TB) int {
	t.Helper()
	d, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(d)
}

// A name that somebody else took is refused and left alone; a socket that a killed
// process of this user left is replaced.
func TestI08Names(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "s")
	for what, make := range map[string]func() error{
		"file":             func() error { return os.WriteFile(path, []byte("x"), 0o600) },
		"link to nowhere":  func() error { return os.Symlink(filepath.Join(dir, "nowhere"), path) },
		"link to a socket": func() error { return os.Symlink(filepath.Join(dir, "other"), path) },
		"directory":        func() error { return os.Mkdir(path, 0o700) },
	} {
		if err := make(); err != nil {
			t.Fatal(err)
		}
		if l, err := Listen(path, 0o600); err == nil || !strings.Contains(err.Error(), path) {
			l.Close()
			t.Errorf("a %s of that name: %v", what, err)
		}
		if _, err := os.Lstat(path); err != nil {
			t.Errorf("the %s is gone: %v", what, err)
		}
		os.Remove(path)
	}

	l, err := Listen(path, 0o640)
	if err != nil {
		t.Fatal(err)
	}
	if st, _ := os.Stat(path); st.Mode().Perm() != 0o640 {
		t.Errorf("mode %v", st.Mode())
	}
	if _, err := Listen(path, 0o600); err == nil || !strings.Contains(err.Error(), "another process") {
		t.Errorf("while somebody listens: %v", err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	if l, err = Listen(path, 0o600); err != nil {
		t.Fatalf("a socket that nobody listens on: %v", err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	if os.Geteuid() == 0 {
		os.Lchown(path, 12345, 12345)
		if l, err = Listen(path, 0o600); err == nil {
			l.Close()
			t.Error("a socket of another user's was replaced")
		}
		os.Remove(path)
		os.Chown(dir, 12345, 12345)
		if _, err = Listen(path, 0o600); err == nil || !strings.Contains(err.Error(), "12345") {
			t.Errorf("a directory of another user's: %v", err)
		}
		os.Chown(dir, 0, 0)
	}
	os.Chmod(dir, 0o777)
	if _, err := Listen(path, 0o600); err == nil || !strings.Contains(err.Error(), "others can write") {
		t.Errorf("a directory that others can write to: %v", err)
	}
	os.Chmod(dir, 0o777|os.ModeSticky)
	if l, err = Listen(path, 0o600); err != nil {
		t.Errorf("like /tmp: %v", err)
	} else {
		l.Close()
	}
}

// Descriptors that are asked for come in their order, and one that this process could not
// take keeps its place.
func TestReceiverKeepsTheirOrder(t *testing.T) {
	a, b := sockets(t)
	r := &Receiver{UnixConn: b, Most: 4}
	dir := t.TempDir()
	before := descriptors(t)
	read := func(n int) {
		t.Helper()
		if _, err := io.ReadFull(r, make([]byte, n)); err != nil {
			t.Fatal(err)
		}
	}
	next := func(want string) {
		t.Helper()
		f := r.File()
		if f == nil {
			if want != "" {
				t.Errorf("no descriptor, want that of %s", want)
			}
			return
		}
		defer f.Close()
		if at, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", f.Fd())); filepath.Base(at) != want {
			t.Errorf("the descriptor of %s, %v; want %q", at, err, want)
		}
	}
	open := func(name string) *os.File {
		t.Helper()
		f, err := os.Create(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	send := func(name string) {
		t.Helper()
		f := open(name)
		defer f.Close()
		if err := Send(a, []byte(name), f); err != nil {
			t.Fatal(err)
		}
	}
	send("1")
	send("2")
	read(2)
	next("1")
	next("2")
	next("")
	many := []*os.File{open("3"), open("4"), open("5")} // more than there is room for at a time
	var fds []int
	for _, f := range many {
		defer f.Close()
		fds = append(fds, int(f.Fd()))
	}
	if _, _, err := a.WriteMsgUnix([]byte("x"), syscall.UnixRights(fds...), nil); err != nil {
		t.Fatal(err)
	}
	send("6")
	read(2)
	next("3")
	next("4")
	next("")
	next("6")
	for i := range 7 {
		send(fmt.Sprint(i))
		read(1)
	}
	next("3")
	r.Over()
	next("")
	send("7")
	read(1)
	next("")
	for _, f := range many {
		f.Close()
	}
	if n := descriptors(t); n != before {
		t.Errorf("%d descriptors are open, %d before", n, before)
	}
}
