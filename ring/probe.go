package ring

import (
	"errors"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	abi "github.com/iceber/iouring-go/syscall"
	"golang.org/x/sys/unix"
)

// minKernel is the oldest Linux the ring runs on: the first long-lived one with all
// features below, and without the lock-ups of early io_uring.
const minKernel = "5.15"

// Features the ring cannot do without.
var neededFeatures = []struct {
	bit  uint32
	name string
}{
	{abi.IORING_FEAT_SINGLE_MMAP, "single mmap"},
	{abi.IORING_FEAT_NODROP, "no dropped completions"},
	{abi.IORING_FEAT_SUBMIT_STABLE, "stable submissions"},
	{featExtArg, "extended arguments"},
	{featRsrcTags, "updates of registered buffers"},
}

// Operations the ring uses.
var neededOps = []struct {
	op   uint8
	name string
}{
	{abi.IORING_OP_NOP, "NOP"},
	{abi.IORING_OP_FSYNC, "FSYNC"},
	{abi.IORING_OP_READ, "READ"},
	{abi.IORING_OP_WRITE, "WRITE"},
	{abi.IORING_OP_READ_FIXED, "READ_FIXED"},
	{abi.IORING_OP_WRITE_FIXED, "WRITE_FIXED"},
	{abi.IORING_OP_FALLOCATE, "FALLOCATE"},
	{abi.IORING_OP_ASYNC_CANCEL, "ASYNC_CANCEL"},
}

// Report is what Probe found out.
type Report struct {
	Kernel string // release, such as "6.18.1"
	Usable bool   // a Ring works here
	Reason string // why not, and what to do

	MissingFeatures []string
	MissingOps      []string
	SingleIssuer    bool // Options.SingleIssuer has an effect

	Disabled int // sysctl kernel.io_uring_disabled: 0, 1 (privileged only), 2; -1 where there is none
	Seccomp  int // this process's mode: 0 none, 2 filtered; -1 unknown

	Memlock       uint64 // bytes this user may lock, math.MaxUint64 for no limit
	MemlockExempt bool   // the limit does not bind this process (CAP_IPC_LOCK)

	HugePages    string // "always", "madvise" or "never"
	HugeReserved int    // free pages of 2 MiB in the host's pool
}

// String is the report for people, one fact a line.
func (r Report) String() string {
	var b strings.Builder
	if r.Usable {
		fmt.Fprintf(&b, "io_uring: usable on Linux %s\n", r.Kernel)
	} else {
		fmt.Fprintf(&b, "io_uring: not usable on Linux %s: %s\n", r.Kernel, r.Reason)
	}
	if r.Usable && !r.SingleIssuer {
		fmt.Fprintf(&b, "single issuer: not known to this kernel (Linux 6.1), plain rings are used\n")
	}
	switch {
	case r.MemlockExempt:
		fmt.Fprintf(&b, "locked memory: no limit for this process (CAP_IPC_LOCK)\n")
	case r.Memlock == math.MaxUint64:
		fmt.Fprintf(&b, "locked memory: unlimited\n")
	default:
		fmt.Fprintf(&b, "locked memory: %s for this user; larger arenas are written unregistered (%s)\n", size(r.Memlock), memlockRemedy)
	}
	fmt.Fprintf(&b, "2 MiB pages: transparent ones %s, %d reserved\n", r.HugePages, r.HugeReserved)
	return b.String()
}

const memlockRemedy = "raise it with LimitMEMLOCK=infinity, ulimit -l unlimited, or docker run --ulimit memlock=-1"

// Probe tries io_uring out, without leaving anything behind.
func Probe() Report { return probe(thisHost) }

// host is where a probe looks.
type host struct {
	release func() string
	read    func(file string) string // its text without blanks around it, "" if there is none
	setup   func(p *abi.IOURingParams) (fd int, errno syscall.Errno)
	ops     func(fd int, ops *probeOps) syscall.Errno
	memlock func() uint64
}

var thisHost = host{
	release: kernelRelease,
	read: func(file string) string {
		b, _ := os.ReadFile(file)
		return strings.TrimSpace(string(b))
	},
	setup: func(p *abi.IOURingParams) (int, syscall.Errno) { return setup(4, p) },
	ops: func(fd int, ops *probeOps) syscall.Errno {
		k := linux{fd: fd}
		return k.register(uint32(abi.IORING_REGISTER_PROBE), unsafe.Pointer(ops), uint32(len(ops.ops)))
	},
	memlock: memlockLimit,
}

func probe(h host) Report {
	r := Report{Kernel: h.release(), Memlock: h.memlock()}
	r.Disabled = number(h.read("/proc/sys/kernel/io_uring_disabled"), -1)
	status := h.read("/proc/thread-self/status")
	r.Seccomp = number(field(status, "Seccomp:"), -1)
	if caps, err := strconv.ParseUint(field(status, "CapEff:"), 16, 64); err == nil {
		r.MemlockExempt = caps>>unix.CAP_IPC_LOCK&1 == 1
	}
	r.HugePages = "never"
	if _, after, ok := strings.Cut(h.read("/sys/kernel/mm/transparent_hugepage/enabled"), "["); ok {
		r.HugePages, _, _ = strings.Cut(after, "]")
	}
	r.HugeReserved = number(h.read("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages"), 0)

	r.Reason = r.tryRing(h)
	r.Usable = r.Reason == ""
	return r
}

// tryRing fills in what a ring of its own tells, and returns why it cannot be used.
func (r *Report) tryRing(h host) string {
	var p abi.IOURingParams
	fd, errno := h.setup(&p)
	if errno != 0 {
		return r.refusal("io_uring_setup", errno)
	}
	defer unix.Close(fd)
	r.MissingFeatures = missingFeatures(p.Features)
	if why := unfit(r.Kernel, p.Features); why != "" {
		return why
	}
	var ops probeOps
	if errno := h.ops(fd, &ops); errno != 0 {
		return r.refusal("io_uring_register", errno)
	}
	for _, o := range neededOps {
		if o.op > ops.lastOp || ops.ops[o.op].flags&opSupported == 0 {
			r.MissingOps = append(r.MissingOps, o.name)
		}
	}
	if len(r.MissingOps) > 0 {
		return fmt.Sprintf("Linux %s lacks the operations %s; Linux %s or later is needed", r.Kernel, strings.Join(r.MissingOps, ", "), minKernel)
	}
	single := abi.IOURingParams{Flags: setupSingleIssuer | setupDeferTaskrun}
	if fd, errno := h.setup(&single); errno == 0 {
		unix.Close(fd)
		r.SingleIssuer = true
	}
	return ""
}

// refusal explains an errno by what the host says about itself.
func (r *Report) refusal(call string, errno syscall.Errno) string {
	s := fmt.Sprintf("%s: %v", call, errno)
	switch {
	case errno == syscall.EPERM && r.Disabled == 2:
		return s + ": io_uring is switched off for all: sysctl kernel.io_uring_disabled=0 allows it"
	case errno == syscall.EPERM && r.Disabled == 1:
		return s + ": io_uring is for privileged processes and one group: sysctl kernel.io_uring_disabled=0 allows it, or membership of the group in kernel.io_uring_group"
	case (errno == syscall.EPERM || errno == syscall.ENOSYS || errno == syscall.EACCES) && r.Seccomp == 2:
		return s + ": a seccomp filter forbids it, as container profiles do: allow io_uring_setup, io_uring_enter and io_uring_register (docker run --security-opt seccomp=PROFILE)"
	case errno == syscall.ENOSYS:
		return s + ": this kernel was built without io_uring"
	case errno == syscall.EPERM || errno == syscall.EACCES:
		return s + ": a security module forbids it"
	case errno == syscall.ENOMEM:
		return s + fmt.Sprintf(": too little memory, or the memlock limit of %s is used up: %s", size(r.Memlock), memlockRemedy)
	case errno == syscall.EMFILE || errno == syscall.ENFILE:
		return s + ": raise the limit of open files (ulimit -n)"
	}
	return s
}

// explain adds the host's reason to a refused set-up.
func explain(err error) error {
	if e := (*SetupError)(nil); errors.As(err, &e) && e.Hint == "" {
		r := Report{Memlock: memlockLimit()}
		r.Disabled = number(thisHost.read("/proc/sys/kernel/io_uring_disabled"), -1)
		r.Seccomp = number(field(thisHost.read("/proc/thread-self/status"), "Seccomp:"), -1)
		_, e.Hint, _ = strings.Cut(r.refusal("", e.Errno), e.Errno.Error()+": ")
	}
	return err
}

func missingFeatures(features uint32) (names []string) {
	for _, f := range neededFeatures {
		if features&f.bit == 0 {
			names = append(names, f.name)
		}
	}
	return names
}

// unfit says what a kernel lacks, "" for nothing.
func unfit(release string, features uint32) string {
	missing := missingFeatures(features)
	switch {
	case len(missing) > 0:
		return fmt.Sprintf("Linux %s lacks %s; Linux %s or later is needed", release, strings.Join(missing, ", "), minKernel)
	case tooOld(release):
		return fmt.Sprintf("Linux %s is too old; Linux %s or later is needed", release, minKernel)
	}
	return ""
}

// tooOld compares the first two numbers of a release with minKernel. What cannot be
// read is taken for new: the features decide then.
func tooOld(release string) bool {
	var major, minor, wantMajor, wantMinor int
	if n, _ := fmt.Sscanf(release, "%d.%d", &major, &minor); n < 2 {
		return false
	}
	fmt.Sscanf(minKernel, "%d.%d", &wantMajor, &wantMinor)
	return major < wantMajor || major == wantMajor && minor < wantMinor
}

func kernelRelease() string {
	var u unix.Utsname
	unix.Uname(&u)
	return unix.ByteSliceToString(u.Release[:])
}

func memlockLimit() uint64 {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &l); err != nil {
		return math.MaxUint64
	}
	return l.Cur
}

// bufferError says why buffers could not be registered.
func bufferError(errno syscall.Errno, pieces [][]byte) error {
	need := 0
	for _, b := range pieces {
		need += len(b)
	}
	e := &SetupError{Step: stepBuffers, Errno: errno, Hint: fmt.Sprintf("buffers of %s", size(uint64(need)))}
	switch errno {
	case syscall.ENOMEM, syscall.EPERM:
		e.Hint = fmt.Sprintf("buffers of %s are needed locked, the limit of this user is %s for all its processes: %s",
			size(uint64(need)), size(memlockLimit()), memlockRemedy)
	case syscall.EFAULT, syscall.EOPNOTSUPP:
		e.Hint += ": the kernel cannot pin this memory for writing (a read-only or file mapping, or a hole in it)"
	}
	return e
}

func field(text, name string) string {
	_, after, ok := strings.Cut(text, "\n"+name)
	if !ok {
		return ""
	}
	line, _, _ := strings.Cut(after, "\n")
	return strings.TrimSpace(line)
}

func number(s string, otherwise int) int {
	if n, err := strconv.Atoi(s); err == nil {
		return n
	}
	return otherwise
}

func size(n uint64) string {
	switch {
	case n == math.MaxUint64:
		return "no limit"
	case n >= 1<<20 && n%(1<<20) == 0:
		return fmt.Sprintf("%d MiB", n>>20)
	case n >= 1<<10 && n%(1<<10) == 0:
		return fmt.Sprintf("%d KiB", n>>10)
	}
	return fmt.Sprintf("%d bytes", n)
}
