package ring

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	abi "github.com/iceber/iouring-go/syscall"
	"golang.org/x/sys/unix"
)

// A ring whose buffers do not fit the limit works without, and says what would be
// needed; or refuses, where it was told to.
func TestE02BuffersExceedTheLimit(t *testing.T) {
	mem := memory(t, 4<<20)
	for _, errno := range []syscall.Errno{syscall.ENOMEM, syscall.EPERM} {
		f := &fake{t: t, files: map[int32][]byte{3: make([]byte, 4096)}}
		refused := 0
		f.onControl = func(op uint32) syscall.Errno {
			if op == uint32(abi.IORING_REGISTER_BUFFERS) && refused == 0 {
				refused++
				return errno
			}
			return 0
		}
		r, err := open(Options{Entries: 8, Buffers: [][]byte{mem}}, f.start(0))
		if err != nil || refused != 1 {
			t.Fatal(err, refused)
		}
		if i := r.Info(); i.Registered || !strings.Contains(i.Reason, "4 MiB") || !strings.Contains(i.Reason, "limit") {
			t.Errorf("%+v", i)
		}
		if op := do(t, r, &Op{Code: Write, FD: 3, Buf: mem[:4096]}); op.Err != nil || f.trace[0].op != abi.IORING_OP_WRITE {
			t.Error("unregistered write:", op.Err, f.trace[0].op)
		}
		r.Close()

		refused, f = 0, &fake{t: t, onControl: f.onControl}
		_, err = open(Options{Entries: 8, Buffers: [][]byte{mem}, MustRegister: true}, f.start(0))
		if !errors.Is(err, ErrMemlock) || errors.Is(err, ErrUnavailable) || !f.closed {
			t.Error(err, f.closed)
		}
	}
}

// The same with the real limit, as a user without privileges meets it. Two rings
// stand for two processes: the limit is the user's.
func TestE02RealLimit(t *testing.T) {
	needRing(t)
	for _, limit := range []string{"64", "8192"} {
		out := runChild(t, "memlock", "RING_TEST_KIB="+limit)
		t.Logf("%s KiB: %s", limit, out)
	}
}

func init() {
	children["memlock"] = memlockChild
}

func memlockChild() error {
	runtime.LockOSThread() // the capability is dropped for this thread alone
	var kib uint64
	fmt.Sscan(os.Getenv("RING_TEST_KIB"), &kib)
	if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: kib << 10, Max: kib << 10}); err != nil {
		return err
	}
	if err := dropMemlockCapability(); err != nil {
		return err
	}
	if p := Probe(); p.MemlockExempt || p.Memlock != kib<<10 || !p.Usable || !strings.Contains(p.String(), "unregistered") {
		return fmt.Errorf("probe: %+v", p)
	}
	big, err := NewArena(16 << 20)
	if err != nil {
		return err
	}
	file, err := os.CreateTemp("", "ring")
	if err != nil {
		return err
	}
	defer os.Remove(file.Name())
	write := func(r *Ring, buf []byte) error {
		op := &Op{Code: Write, FD: int(file.Fd()), Buf: buf}
		err := errors.Join(r.Push(op), r.Submit())
		if n, werr := r.Wait(1); n != 1 || werr != nil {
			return fmt.Errorf("wait: %d, %v", n, werr)
		}
		return errors.Join(err, op.Err)
	}
	r, err := Open(Options{Buffers: [][]byte{big.Bytes()}, Spare: 64})
	if err != nil {
		return err
	}
	if r.Info().Registered || !strings.Contains(r.Info().Reason, size(kib<<10)) || !strings.Contains(r.Info().Reason, "16 MiB") {
		return fmt.Errorf("info: %+v", r.Info())
	}
	if err := write(r, big.Bytes()[:1<<20]); err != nil {
		return err
	}
	if _, err := Open(Options{Buffers: [][]byte{big.Bytes()}, MustRegister: true}); !errors.Is(err, ErrMemlock) {
		return fmt.Errorf("must register: %v", err)
	}
	// Small pools, one after the other, in two rings of one user, until the limit.
	second, err := Open(Options{Spare: 64})
	if err != nil {
		return err
	}
	rings, pools := [2]*Ring{r, second}, 0
	for ; ; pools++ {
		mem, err := unix.Mmap(-1, 0, 32<<10, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
		if err != nil {
			return err
		}
		err = rings[pools%2].RegisterBuffer(mem)
		if errors.Is(err, ErrMemlock) || errors.Is(err, ErrNoSlot) {
			break
		} else if err != nil {
			return err
		}
		if err := write(rings[pools%2], mem); err != nil {
			return err
		}
	}
	if kib == 64 && pools >= 2 || kib > 64 && pools < 64 {
		return fmt.Errorf("%d pools of 32 KiB within %d KiB", pools, kib)
	}
	for _, r := range rings { // both go on
		if err := errors.Join(write(r, big.Bytes()[:1<<20]), r.Close()); err != nil {
			return err
		}
	}
	fmt.Printf("%d pools of 32 KiB; %s\n", pools, rings[0].Info().Reason)
	return nil
}

// dropMemlockCapability takes CAP_IPC_LOCK, which the limit does not bind, from the
// calling thread.
func dropMemlockCapability() error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return err
	}
	data[0].Effective &^= 1 << unix.CAP_IPC_LOCK
	data[0].Permitted &^= 1 << unix.CAP_IPC_LOCK
	return unix.Capset(&header, &data[0])
}

func runChild(t *testing.T, name string, env ...string) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(append(os.Environ(), childEnv+"="+name), env...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %v: %v\n%s", name, env, err, out)
	}
	return strings.TrimSpace(string(out))
}

// Memory that cannot be pinned is refused when it is registered, and the ring is as
// it was.
func TestE24PinningSpecialMemory(t *testing.T) {
	r := openRing(t, Options{Spare: 2})
	file := create(t, t.TempDir(), "f", 1<<20)
	const n = 1 << 20
	mapped := func(fd, prot, flags int) []byte {
		t.Helper()
		mem, err := unix.Mmap(fd, 0, n, prot, flags)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Munmap(mem) })
		return mem
	}
	memfd := func(flags int) int {
		t.Helper()
		fd, err := unix.MemfdCreate("x", flags)
		if err == nil {
			err = unix.Ftruncate(fd, n)
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Close(fd) })
		return fd
	}
	const rw = unix.PROT_READ | unix.PROT_WRITE
	hole := mapped(-1, rw, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err := unix.MunmapPtr(unsafe.Pointer(&hole[n/2]), n/2); err != nil {
		t.Fatal(err)
	}
	sealed := memfd(unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING)
	if _, err := unix.FcntlInt(uintptr(sealed), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		mem  []byte
		ok   bool
	}{
		{"anonymous", mapped(-1, rw, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS), true},
		{"memfd", mapped(memfd(unix.MFD_CLOEXEC), rw, unix.MAP_SHARED), true},
		{"sealed memfd", mapped(sealed, rw, unix.MAP_SHARED), true},
		{"arena", memory(t, n), true},
		{"read-only", mapped(-1, unix.PROT_READ, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS), false},
		{"file on disk", mapped(int(file.Fd()), rw, unix.MAP_SHARED), false},
		{"hole at the end", hole, false},
	} {
		err := r.RegisterBuffer(c.mem)
		if (err == nil) != c.ok {
			t.Errorf("%s: %v", c.name, err)
		}
		var e *SetupError
		if err != nil && (!errors.As(err, &e) || !strings.Contains(e.Hint, "pin") || errors.Is(err, ErrMemlock)) {
			t.Errorf("%s: %v", c.name, err)
		}
		if err == nil {
			op := do(t, r, &Op{Code: Write, FD: int(file.Fd()), Buf: c.mem})
			if err := r.UnregisterBuffer(c.mem); op.Err != nil || err != nil {
				t.Errorf("%s: write %v, unregister %v", c.name, op.Err, err)
			}
		}
	}
	if op := do(t, r, &Op{Code: Write, FD: int(file.Fd()), Buf: memory(t, 4096)}); op.Err != nil {
		t.Error(op.Err)
	}
	if err := r.RegisterBuffer(nil); !errors.Is(err, ErrInvalid) {
		t.Error(err)
	}
}

// A registration that needs several places takes all of them or none.
func TestRegisterBufferUndoes(t *testing.T) {
	r, f := newFake(t, Options{Spare: 3}, 4096)
	mem, err := unix.MmapPtr(-1, 0, nil, 2*maxBuffer+4096, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		t.Fatal(err)
	}
	b := unsafe.Slice((*byte)(mem), 2*maxBuffer+4096)
	defer unix.MunmapPtr(mem, uintptr(len(b)))
	updates := 0
	f.onControl = func(uint32) syscall.Errno {
		if updates++; updates == 3 {
			return syscall.ENOMEM
		}
		return 0
	}
	if err := r.RegisterBuffer(b); !errors.Is(err, ErrMemlock) || updates != 5 {
		t.Fatal(err, updates)
	}
	for i := range r.buffers {
		if r.buffers[i].mem != nil {
			t.Error("place", i, "is still taken")
		}
	}
	if err := r.RegisterBuffer(b); err != nil {
		t.Fatal(err)
	}
	for off, want := range map[int]int32{0: 0, maxBuffer - 4096: 0, maxBuffer: 1, 2 * maxBuffer: 2, maxBuffer - 2048: -1} {
		if got := r.findBuffer(b[off:][:4096]); got != want {
			t.Errorf("bytes at %d are in buffer %d, want %d", off, got, want)
		}
	}
	if err := r.UnregisterBuffer(b); err != nil || r.findBuffer(b[:1]) != -1 {
		t.Fatal(err)
	}
}

// After Close the pages are ours: the user's locked memory is back at once.
func TestCloseUnpins(t *testing.T) {
	needRing(t)
	mem := memory(t, 64<<20)
	for range 5 {
		before := pinned(t)
		r, err := Open(Options{Buffers: [][]byte{mem}})
		if err != nil {
			t.Fatal(err)
		}
		if d := pinned(t) - before; d < 64<<10 {
			t.Fatal("only", d, "KiB are pinned")
		}
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
		if d := pinned(t) - before; d > 0 {
			t.Fatal(d, "KiB are still pinned")
		}
	}
}

func pinned(t *testing.T) (kib int) {
	t.Helper()
	status, err := os.ReadFile(filepath.Join("/proc/self", "status"))
	if err != nil {
		t.Fatal(err)
	}
	fmt.Sscan(field(string(status), "VmPin:"), &kib)
	return kib
}
