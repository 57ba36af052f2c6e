package ring

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// Tests against the kernel this runs on.

// create makes a file of size bytes for direct I/O, or buffered where the file
// system has none; then it says so.
func create(t testing.TB, dir, name string, size int64) *os.File {
	t.Helper()
	path := filepath.Join(dir, name)
	f, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_RDWR|syscall.O_DIRECT, 0o600)
	if errors.Is(err, syscall.EINVAL) {
		t.Logf("no direct I/O in %s: buffered", dir)
		f, err = os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_RDWR, 0o600)
	}
	if err == nil {
		err = f.Truncate(size)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func openRing(t testing.TB, o Options) *Ring {
	t.Helper()
	needRing(t)
	r, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

// Every operation, registered and not, on every kind of ring.
func TestKernelOperations(t *testing.T) {
	for _, o := range []Options{{}, {RawWait: true}, {SingleIssuer: true}, {SingleIssuer: true, RawWait: true}} {
		for _, registered := range []bool{false, true} {
			t.Run(fmt.Sprintf("single=%v/raw=%v/registered=%v", o.SingleIssuer, o.RawWait, registered), func(t *testing.T) {
				o := o
				mem := memory(t, 4<<20)
				if registered {
					o.Buffers, o.Files = [][]byte{mem}, 4
				}
				r := openRing(t, o)
				file := create(t, t.TempDir(), "f", 0)
				fd, flags := int(file.Fd()), Flags(0)
				if registered {
					var err error
					if fd, err = r.RegisterFile(fd); err != nil {
						t.Fatal(err)
					}
					flags = FixedFile
				}
				out, in := mem[:2<<20], mem[2<<20:]
				fill(out, 5)
				ops := []*Op{
					{Code: Allocate, FD: fd, Flags: flags, Size: 2 << 20},
					{Code: Write, FD: fd, Flags: flags, Buf: out[:1<<20]},
					{Code: Write, FD: fd, Flags: flags | DSync, Buf: out[1<<20:], Off: 1 << 20},
					{Code: Sync, FD: fd, Flags: flags | Datasync},
					{Code: Sync, FD: fd, Flags: flags},
					{Code: Read, FD: fd, Flags: flags, Buf: in},
					{Code: Nop},
				}
				if err := r.PushChain(ops...); err != nil {
					t.Fatal(err)
				}
				if n, err := r.SubmitAndWait(len(ops)); n != len(ops) || err != nil {
					t.Fatal(n, err)
				}
				for _, op := range ops {
					if op.Err != nil {
						t.Errorf("%v: %v", op.Code, op.Err)
					}
				}
				if !bytes.Equal(in, out) || ops[5].Res != 2<<20 {
					t.Error("read back something else")
				}
				// A read at the end of the file does not stop what is behind it.
				end := []*Op{{Code: Read, FD: fd, Flags: flags, Buf: in[:8192], Off: 2<<20 - 4096}, {Code: Sync, FD: fd, Flags: flags}}
				if err := r.PushChain(end...); err != nil {
					t.Fatal(err)
				}
				if drain(t, r); end[0].Res != 4096 || end[0].Err != nil || end[1].Err != nil {
					t.Errorf("chain at the end of the file: %d, %v, %v", end[0].Res, end[0].Err, end[1].Err)
				}
				// At the end of the file, and behind it.
				for off, want := range map[int64]int32{2<<20 - 4096: 4096, 2 << 20: 0, 3 << 20: 0} {
					if op := do(t, r, &Op{Code: Read, FD: fd, Flags: flags, Buf: in[:8192], Off: off}); op.Err != nil || op.Res != want {
						t.Errorf("read at %d: %d, %v", off, op.Res, op.Err)
					}
				}
				if op := do(t, r, &Op{Code: Write, FD: 1 << 20, Buf: in[:4096]}); op.Err != syscall.EBADF {
					t.Error("a file that is not open:", op.Err)
				}
			})
		}
	}
}

// A write to a full file system ends with ENOSPC or a short count that is resumed
// into ENOSPC; a real short transfer, not a made up one.
func TestKernelShortWriteAtLimit(t *testing.T) {
	r := openRing(t, Options{})
	mem := memory(t, 1<<20)
	fill(mem, 6)
	file := create(t, t.TempDir(), "f", 0)
	runtime.LockOSThread() // the limit is the process's, the signal the thread's
	defer runtime.UnlockOSThread()
	var old unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_FSIZE, &old); err != nil {
		t.Fatal(err)
	}
	const limit = 300 << 10
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: limit, Max: old.Max}); err != nil {
		t.Fatal(err)
	}
	op := do(t, r, &Op{Code: Write, FD: int(file.Fd()), Buf: mem})
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &old); err != nil {
		t.Fatal(err)
	}
	if op.Err != syscall.EFBIG || op.Res != limit || r.Stats().Resumed != 1 {
		t.Fatalf("%d bytes, %v, %d resumed", op.Res, op.Err, r.Stats().Resumed)
	}
	got, err := os.ReadFile(file.Name())
	if err != nil || !bytes.Equal(got, mem[:limit]) {
		t.Fatal(err, len(got), "bytes in the file")
	}
}

// A real completion queue that is really too small: two and a half times as many
// requests in flight as it has places.
func TestE05KernelOverflow(t *testing.T) {
	r := openRing(t, Options{Entries: 8, CQEntries: 8})
	const depth = 20
	r.slots, r.free, r.info.Depth = make([]slot, depth), freeList{}, depth
	r.free.fill(depth)
	r.retry, r.failed, r.spare = make([]uint32, 0, depth), make([]uint32, 0, depth), make([]uint32, 0, depth)
	ends := make([]int, 1000)
	for n := 0; n < len(ends); {
		for range min(8, len(ends)-n) {
			err := r.Push(&Op{Tag: uint64(n), Done: func(op *Op) { ends[op.Tag]++ }})
			if errors.Is(err, ErrFull) {
				break
			} else if err != nil {
				t.Fatal(err)
			}
			n++
		}
		if err := r.Submit(); err != nil {
			t.Fatal(err)
		}
		if r.free.len() == 0 {
			if _, err := r.Wait(depth); err != nil {
				t.Fatal(err)
			}
		}
	}
	drain(t, r)
	for i, n := range ends {
		if n != 1 {
			t.Fatalf("request %d ended %d times", i, n)
		}
	}
	if r.Stats().Overflows == 0 {
		t.Fatal("nothing overflowed")
	}
}

// Signals interrupt the waits; every request ends once all the same.
func TestE08KernelSignals(t *testing.T) {
	r := openRing(t, Options{Entries: 32})
	file := create(t, t.TempDir(), "f", 1<<20)
	mem := memory(t, 1<<20)
	stop := make(chan struct{})
	var sent atomic.Int64
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				syscall.Kill(os.Getpid(), syscall.SIGURG) // what Go preempts with
				sent.Add(1)
				runtime.Gosched()
			}
		}
	})
	ends := make([]int, rounds(3000, 100_000))
	for n := 0; n < len(ends) || sent.Load() < 100; {
		if n == len(ends) {
			ends = append(ends, 0) // until there were enough signals
		}
		err := r.Push(&Op{Code: Write, FD: int(file.Fd()), Buf: mem[:4096], Off: int64(n%256) * 4096, Tag: uint64(n), Done: func(op *Op) {
			if op.Err != nil {
				t.Errorf("write %d: %v", op.Tag, op.Err)
			}
			ends[op.Tag]++
		}})
		if err == nil {
			n++
			continue
		}
		if err := r.Submit(); err != nil {
			t.Fatal(err)
		}
		if _, err := r.Wait(1 + n%32); err != nil {
			t.Fatal(err)
		}
	}
	drain(t, r)
	close(stop)
	wg.Wait()
	for i, n := range ends {
		if n != 1 {
			t.Fatalf("write %d ended %d times", i, n)
		}
	}
}

// Commands run beside a busy ring: the data stays right, and a child has neither the
// ring nor its memory.
func TestE14Fork(t *testing.T) {
	r := openRing(t, Options{Entries: 8, Buffers: [][]byte{memory(t, 4<<20)}})
	mem := r.buffers[0].mem
	k := r.k.(*linux)
	for name, b := range map[string][]byte{"arena": mem, "queues": k.queues, "entries": k.entries} {
		if !notInherited(b) {
			t.Errorf("a child inherits the %s", name)
		}
	}
	file := create(t, t.TempDir(), "f", 4<<20)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for range rounds(20, 1000) {
			out, err := exec.Command("/bin/ls", "-l", "/proc/self/fd").CombinedOutput()
			if err != nil || strings.Contains(string(out), "io_uring") || strings.Contains(string(out), file.Name()) {
				t.Errorf("%v: the child has\n%s", err, out)
				break
			}
		}
		close(stop)
	})
	writes := 0
	for n := 0; ; n++ {
		select {
		case <-stop:
			wg.Wait()
			if writes == 0 {
				t.Fatal("no write ran")
			}
			return
		default:
		}
		fill(mem[:2<<20], n)
		out := do(t, r, &Op{Code: Write, FD: int(file.Fd()), Buf: mem[:2<<20]})
		in := do(t, r, &Op{Code: Read, FD: int(file.Fd()), Buf: mem[2<<20:]})
		if out.Err != nil || in.Err != nil || !bytes.Equal(mem[:2<<20], mem[2<<20:]) {
			t.Fatal(out.Err, in.Err, "or the bytes differ")
		}
		writes++
	}
}

// notInherited tells whether the kernel marked a mapping as not to be copied by fork.
func notInherited(b []byte) bool {
	about, _ := mappingOf(b)
	_, flags, _ := strings.Cut(about, "\nVmFlags:")
	return slices.Contains(strings.Fields(flags), "dc")
}

// A buffer is handed out again only after its request's end: four buffers, many
// writers, every freed buffer poisoned.
func TestE19BufferReuse(t *testing.T) {
	r := openRing(t, Options{Entries: 4})
	const blocks = 256
	file := create(t, t.TempDir(), "f", blocks*4096)
	mem := memory(t, 4*4096)
	rng := rand.New(rand.NewPCG(19, 0))
	var free [][]byte
	for i := range 4 {
		free = append(free, mem[i*4096:][:4096])
	}
	var want [blocks]uint32
	next := 0
	for range rounds(2000, 100_000) {
		if len(free) > 0 {
			buf := free[len(free)-1]
			free = free[:len(free)-1]
			fill(buf, rng.IntN(256))
			at := next % blocks
			next++
			want[at] = crc32.ChecksumIEEE(buf)
			push(t, r, &Op{Code: Write, FD: int(file.Fd()), Buf: buf, Off: int64(at) * 4096, Done: func(op *Op) {
				if op.Err != nil {
					t.Error(op.Err)
				}
				for i := range op.Buf {
					op.Buf[i] = 0xEE
				}
				free = append(free, op.Buf)
			}})
		}
		if err := r.Submit(); err != nil {
			t.Fatal(err)
		}
		wait := rng.IntN(2)
		if len(free) == 0 {
			wait = 1
		}
		if _, err := r.Wait(wait); err != nil {
			t.Fatal(err)
		}
	}
	drain(t, r)
	got, err := os.ReadFile(file.Name())
	if err != nil {
		t.Fatal(err)
	}
	for at := range min(next, blocks) {
		if crc32.ChecksumIEEE(got[at*4096:][:4096]) != want[at] {
			t.Fatal("block", at, "has other bytes")
		}
	}
}

// The collector runs as often as it can while the kernel works on an arena.
func TestF01GarbageCollector(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(1))
	r := openRing(t, Options{Entries: 16})
	file := create(t, t.TempDir(), "f", 8<<20)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		var keep [][]byte
		for {
			select {
			case <-stop:
				return
			default:
				keep = append(keep[len(keep)/2:], make([]byte, 64<<10))
				runtime.GC()
			}
		}
	})
	for n := range rounds(30, 5000) {
		mem := memory(t, 2<<20)
		var ops []*Op
		for i := range 16 {
			buf := mem[i<<16:][:1<<16]
			fill(buf, n+i)
			op := &Op{Code: Write, FD: int(file.Fd()), Buf: buf, Off: int64(i) << 16}
			ops = append(ops, op)
			push(t, r, op)
		}
		drain(t, r)
		in := do(t, r, &Op{Code: Read, FD: int(file.Fd()), Buf: mem[1<<20:]})
		for _, op := range ops {
			if op.Err != nil {
				t.Fatal(op.Err)
			}
		}
		if in.Err != nil || !bytes.Equal(mem[:1<<20], mem[1<<20:]) {
			t.Fatal(n, in.Err, "the file differs from memory")
		}
	}
	close(stop)
	wg.Wait()
}

// Memory that is gone when the kernel reads it is an error of that request, and of
// nothing else.
func TestF04FaultInMappedMemory(t *testing.T) {
	r := openRing(t, Options{})
	file := create(t, t.TempDir(), "f", 1<<20)
	fd, err := unix.MemfdCreate("client", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.Ftruncate(fd, 1<<20); err != nil {
		t.Fatal(err)
	}
	mem, err := unix.Mmap(fd, 0, 1<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(mem)
	if op := do(t, r, &Op{Code: Write, FD: int(file.Fd()), Buf: mem}); op.Err != nil {
		t.Fatal(op.Err)
	}
	if err := unix.Ftruncate(fd, 0); err != nil { // the client cuts it
		t.Fatal(err)
	}
	if op := do(t, r, &Op{Code: Write, FD: int(file.Fd()), Buf: mem}); op.Err != syscall.EFAULT {
		t.Fatal("memory that is gone:", op.Err)
	}
	if op := do(t, r, &Op{Code: Write, FD: int(file.Fd()), Buf: memory(t, 1<<20)}); op.Err != nil {
		t.Fatal("the next write:", op.Err)
	}
}
