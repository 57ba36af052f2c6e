package ring

import (
	"errors"
	"fmt"
	"math"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	abi "github.com/iceber/iouring-go/syscall"
	"golang.org/x/sys/unix"
)

// aHost is one on which everything works.
func aHost() host {
	return host{
		release: func() string { return "6.1.0-test" },
		read: func(file string) string {
			return map[string]string{
				"/proc/thread-self/status":                                 "Name:\tx\nSeccomp:\t0\nCapEff:\t0000000000000000\n",
				"/proc/sys/kernel/io_uring_disabled":                       "0",
				"/sys/kernel/mm/transparent_hugepage/enabled":              "always [madvise] never",
				"/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages": "12",
			}[file]
		},
		setup: func(p *abi.IOURingParams) (int, syscall.Errno) {
			p.Features = math.MaxUint32
			fd, _ := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0) // something to close
			return fd, 0
		},
		ops: func(_ int, ops *probeOps) syscall.Errno {
			ops.lastOp = 50
			for i := range ops.ops {
				ops.ops[i] = probeOp{op: uint8(i), flags: opSupported}
			}
			return 0
		},
		memlock: func() uint64 { return 8 << 20 },
	}
}

func TestProbeReport(t *testing.T) {
	r := probe(aHost())
	if !r.Usable || r.Reason != "" || !r.SingleIssuer || r.MemlockExempt || r.Disabled != 0 || r.Seccomp != 0 || r.HugePages != "madvise" || r.HugeReserved != 12 {
		t.Fatalf("%+v", r)
	}
	for _, want := range []string{"usable on Linux 6.1.0-test", "8 MiB", "madvise", "12 reserved"} {
		if !strings.Contains(r.String(), want) {
			t.Errorf("%q is not in\n%s", want, r)
		}
	}
	before := openFiles(t)
	if r := Probe(); r.Kernel == "" || r.Usable == (r.Reason != "") {
		t.Fatalf("%+v", r)
	}
	if after := openFiles(t); before != after {
		t.Fatal("the probe leaves files open")
	}
}

// Refused by a sysctl, a filter or a module, the reason names cause and remedy.
func TestE03Reasons(t *testing.T) {
	for _, c := range []struct {
		errno    syscall.Errno
		disabled string
		seccomp  string
		want     string
	}{
		{syscall.EPERM, "2", "0", "kernel.io_uring_disabled=0"},
		{syscall.EPERM, "1", "0", "kernel.io_uring_group"},
		{syscall.EPERM, "0", "2", "seccomp"},
		{syscall.ENOSYS, "", "2", "seccomp"},
		{syscall.ENOSYS, "", "0", "built without"},
		{syscall.EPERM, "0", "0", "security module"},
		{syscall.ENOMEM, "0", "0", "LimitMEMLOCK"},
		{syscall.EMFILE, "0", "0", "ulimit -n"},
	} {
		for _, call := range []string{"io_uring_setup", "io_uring_register"} {
			h := aHost()
			files := h.read
			h.read = func(file string) string {
				switch file {
				case "/proc/sys/kernel/io_uring_disabled":
					return c.disabled
				case "/proc/thread-self/status":
					return "Name:\tx\nSeccomp:\t" + c.seccomp + "\n"
				}
				return files(file)
			}
			if call == "io_uring_setup" {
				h.setup = func(*abi.IOURingParams) (int, syscall.Errno) { return -1, c.errno }
			} else {
				h.ops = func(int, *probeOps) syscall.Errno { return c.errno }
			}
			r := probe(h)
			if r.Usable || !strings.Contains(r.Reason, c.want) || !strings.HasPrefix(r.Reason, call) || !strings.Contains(r.String(), r.Reason) {
				t.Errorf("%v, sysctl %q, seccomp %s: %s", c.errno, c.disabled, c.seccomp, r)
			}
		}
	}
}

// Under a real filter: set-up refused with either errno, and set-up allowed but
// registration refused, where a ring works without its tables.
func TestE03RealFilter(t *testing.T) {
	needRing(t)
	for _, c := range []string{"425 1", "425 38", "427 1", "427 38"} {
		t.Log(runChild(t, "seccomp", "RING_TEST_FILTER="+c))
	}
}

func init() {
	children["seccomp"] = seccompChild
}

func seccompChild() error {
	var call, errno int
	fmt.Sscan(os.Getenv("RING_TEST_FILTER"), &call, &errno)
	runtime.LockOSThread()
	if err := forbid(uint32(call), uint32(errno)); err != nil {
		return err
	}
	p := Probe()
	if p.Usable || p.Seccomp != 2 || !strings.Contains(p.Reason, "seccomp") {
		return fmt.Errorf("probe: %+v", p)
	}
	fmt.Println(p.Reason)
	mem, err := NewArena(1)
	if err != nil {
		return err
	}
	r, err := Open(Options{Buffers: [][]byte{mem.Bytes()}})
	if call == abi.SYS_IO_URING_SETUP {
		if !errors.Is(err, ErrUnavailable) || !errors.Is(err, syscall.Errno(errno)) || !strings.Contains(err.Error(), "seccomp") {
			return fmt.Errorf("open: %v", err)
		}
		return nil
	}
	if err != nil || r.Info().Registered || r.Info().Reason == "" {
		return fmt.Errorf("open: %v, %+v", err, r)
	}
	op := &Op{}
	if err := errors.Join(r.Push(op), r.Submit()); err != nil {
		return err
	}
	if n, err := r.Wait(1); n != 1 || err != nil || op.Err != nil {
		return fmt.Errorf("nop: %d, %v, %v", n, err, op.Err)
	}
	if _, err := Open(Options{Buffers: [][]byte{mem.Bytes()}, MustRegister: true}); err == nil {
		return errors.New("registered in spite of the filter")
	}
	return r.Close()
}

// forbid installs a filter that answers one system call with errno, for all threads.
func forbid(call, errno uint32) error {
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0}, // the call's number
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: call, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | errno},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	_, _, e := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&prog)))
	if e != 0 {
		return e
	}
	return nil
}

// Each operation the ring uses, missing in turn, is named beside the kernel version.
func TestE04MissingOperation(t *testing.T) {
	seen := map[uint8]bool{}
	for _, o := range neededOps {
		for _, beyond := range []bool{false, true} {
			h := aHost()
			all := h.ops
			h.ops = func(fd int, ops *probeOps) syscall.Errno {
				all(fd, ops)
				if ops.ops[o.op].flags = 0; beyond {
					ops.ops[o.op].flags, ops.lastOp = opSupported, o.op-1 // the kernel ends before it
				}
				return 0
			}
			if beyond && o.op == 0 {
				continue
			}
			r := probe(h)
			if r.Usable || !strings.Contains(r.Reason, o.name) || !strings.Contains(r.Reason, r.Kernel) || len(r.MissingOps) == 0 {
				t.Errorf("without %s: %+v", o.name, r)
			}
		}
		seen[o.op] = true
	}
	for code := range codes {
		for _, op := range opcode[code] {
			if !seen[op] {
				t.Errorf("%v uses operation %d, which is not probed", code, op)
			}
		}
	}
	if !seen[abi.IORING_OP_ASYNC_CANCEL] {
		t.Error("cancel is not probed")
	}
}

// Which kernels are accepted.
func TestE23KernelFloor(t *testing.T) {
	for release, ok := range map[string]bool{
		"5.15.0": true, "5.15": true, "5.16.2-generic": true, "6.1.0-18-amd64": true, "10.0": true, "what": true,
		"5.14.21-150400": false, "5.4.0": false, "4.19.0": false, "5.1": false,
	} {
		h := aHost()
		h.release = func() string { return release }
		if r := probe(h); r.Usable != ok || !ok && (!strings.Contains(r.Reason, release) || !strings.Contains(r.Reason, minKernel)) {
			t.Errorf("%s: %+v", release, r)
		}
	}
	for _, f := range neededFeatures {
		h := aHost()
		setup := h.setup
		h.setup = func(p *abi.IOURingParams) (int, syscall.Errno) {
			fd, errno := setup(p)
			p.Features &^= f.bit
			return fd, errno
		}
		if r := probe(h); r.Usable || !strings.Contains(r.Reason, f.name) || len(r.MissingFeatures) != 1 {
			t.Errorf("without %s: %+v", f.name, r)
		}
	}
	h := aHost()
	setup := h.setup
	h.setup = func(p *abi.IOURingParams) (int, syscall.Errno) {
		if p.Flags != 0 {
			return -1, syscall.EINVAL
		}
		return setup(p)
	}
	if r := probe(h); !r.Usable || r.SingleIssuer || !strings.Contains(r.String(), "single issuer") {
		t.Errorf("%+v", r)
	}
}
