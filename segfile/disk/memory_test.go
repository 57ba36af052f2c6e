package disk_test

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ringfence/ringfence/segfile/disk"
)

const lentBytes = 4 << 20

// mapFile maps a file, or memory for fd -1.
func mapFile(t *testing.T, fd, prot, flags int) []byte {
	t.Helper()
	mem, err := unix.Mmap(fd, 0, lentBytes, prot, flags)
	if err != nil {
		t.Skip("SKIPPED, it cannot be mapped here: ", err)
	}
	t.Cleanup(func() { _ = unix.Munmap(mem) })
	return mem
}

func memfd(t *testing.T, size int64) int {
	t.Helper()
	fd, err := unix.MemfdCreate("lent", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	if err := unix.Ftruncate(fd, size); err != nil {
		t.Fatal(err)
	}
	return fd
}

const both = unix.PROT_READ | unix.PROT_WRITE

// What cannot be used as memory of writes is refused when it is registered, not at the
// first write, and the disk is none the worse for it. (E24)
func TestE24_KindsOfMemory(t *testing.T) {
	kinds := []struct {
		name string
		mem  func(t *testing.T) []byte
		good bool
		ring bool // good for the pool, and up to the kernel with io_uring
	}{
		{name: "memfd", good: true, mem: func(t *testing.T) []byte { return mapFile(t, memfd(t, lentBytes), both, unix.MAP_SHARED) }},
		{name: "tmpfs", good: true, mem: func(t *testing.T) []byte {
			f, err := os.CreateTemp("/dev/shm", "ringfence-test")
			if err != nil {
				t.Skip("SKIPPED, no tmpfs: ", err)
			}
			defer f.Close()
			defer os.Remove(f.Name())
			if err := f.Truncate(lentBytes); err != nil {
				t.Fatal(err)
			}
			return mapFile(t, int(f.Fd()), both, unix.MAP_SHARED)
		}},
		{name: "anonymous", good: true, mem: func(t *testing.T) []byte { return mapFile(t, -1, both, unix.MAP_SHARED|unix.MAP_ANON) }},
		{name: "huge pages", good: true, mem: func(t *testing.T) []byte {
			return mapFile(t, -1, both, unix.MAP_SHARED|unix.MAP_ANON|unix.MAP_HUGETLB)
		}},
		{name: "file", good: true, ring: true, mem: func(t *testing.T) []byte {
			f, err := os.Create(filepath.Join(t.TempDir(), "f"))
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if err := f.Truncate(lentBytes); err != nil {
				t.Fatal(err)
			}
			return mapFile(t, int(f.Fd()), both, unix.MAP_SHARED)
		}},
		{name: "read only", mem: func(t *testing.T) []byte { return mapFile(t, memfd(t, lentBytes), unix.PROT_READ, unix.MAP_SHARED) }},
		{name: "no access", mem: func(t *testing.T) []byte { return mapFile(t, memfd(t, lentBytes), unix.PROT_NONE, unix.MAP_SHARED) }},
		{name: "beyond the end of its file", mem: func(t *testing.T) []byte {
			return mapFile(t, memfd(t, lentBytes-disk.Block), both, unix.MAP_SHARED)
		}},
		{name: "a hole in the mapping", mem: func(t *testing.T) []byte {
			mem := mapFile(t, -1, both, unix.MAP_SHARED|unix.MAP_ANON)
			if err := unix.Mprotect(mem[lentBytes-2*disk.Block:lentBytes-disk.Block], unix.PROT_NONE); err != nil {
				t.Fatal(err)
			}
			return mem
		}},
	}
	for _, engine := range []string{"io_uring", "pool"} {
		for _, kind := range kinds {
			t.Run(engine+"/"+kind.name, func(t *testing.T) {
				if engine == "io_uring" {
					needRing(t)
				}
				mem := kind.mem(t)
				d, err := disk.Open(t.TempDir(), disk.Options{Engine: engine, ArenaBytes: 4 << 20})
				if err != nil {
					t.Fatal(err)
				}
				defer d.Close()
				q, err := d.NewQueue(4)
				if err != nil {
					t.Fatal(err)
				}
				unregister, err := d.Register(mem)
				if kind.ring && engine == "io_uring" && err != nil {
					t.Log("refused: ", err)
				} else if kind.good != (err == nil) {
					t.Fatalf("registered: %v", err)
				}
				if err == nil {
					writes(t, d, q, mem[lentBytes-disk.Block:])
					if err := unregister(); err != nil {
						t.Fatal(err)
					}
				}
				buf, _ := d.Arena().Alloc(disk.Block)
				writes(t, d, q, buf)
				d.Arena().Free(buf)
			})
		}
	}
}

// writes writes a block and reads it back.
func writes(t *testing.T, d disk.Disk, q disk.Queue, buf []byte) {
	t.Helper()
	f, err := d.Create("f" + strconv.Itoa(len(names(t, d))))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for i := range buf {
		buf[i] = byte(i)
	}
	op := &disk.Op{Kind: disk.Write, Durable: true, File: f, Buf: buf, Done: func(*disk.Op) {}}
	if err := errors.Join(q.Push(op), q.Submit()); err != nil {
		t.Fatal(err)
	}
	if _, err := q.Wait(1); err != nil || op.Err != nil {
		t.Fatal(err, op.Err)
	}
	got := make([]byte, len(buf))
	if _, err := f.ReadAt(got, 0); err != nil || string(got) != string(buf) {
		t.Fatalf("reads back %v", err)
	}
}

func names(t *testing.T, d disk.Disk) []disk.Entry {
	t.Helper()
	list, err := d.List("")
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// Memory comes and goes 100 times, more of it at once than a ring has places for, and
// nothing is left: no page pinned, no mapping, no place.
func TestRegisterLeaksNothing(t *testing.T) {
	for _, engine := range []string{"io_uring", "pool"} {
		t.Run(engine, func(t *testing.T) {
			if engine == "io_uring" {
				needRing(t)
			}
			d, err := disk.Open(t.TempDir(), disk.Options{Engine: engine, ArenaBytes: 4 << 20})
			if err != nil {
				t.Fatal(err)
			}
			defer d.Close()
			q, err := d.NewQueue(4)
			if err != nil {
				t.Fatal(err)
			}
			before := status(t, "VmPin")
			for range 100 {
				mem := mapFile(t, memfd(t, lentBytes), both, unix.MAP_SHARED)
				unregister, err := d.Register(mem)
				if err != nil {
					t.Fatal(err)
				}
				if engine == "io_uring" && status(t, "VmPin") < before+lentBytes>>10 {
					t.Fatal("registered memory is not pinned: the test does not test it")
				}
				writes(t, d, q, mem[:disk.Block])
				if err := unregister(); err != nil {
					t.Fatal(err)
				}
			}
			if after := status(t, "VmPin"); after != before {
				t.Errorf("%d KiB are pinned, before it were %d", after, before)
			}
			mem := mapFile(t, memfd(t, lentBytes), both, unix.MAP_SHARED)
			var undo []func() error
			for i := range 100 {
				unregister, err := d.Register(mem[i*disk.Block : (i+1)*disk.Block])
				if err != nil {
					t.Fatal(err)
				}
				undo = append(undo, unregister)
			}
			writes(t, d, q, mem[99*disk.Block:100*disk.Block]) // has no place in the ring
			writes(t, d, q, mem[:disk.Block])
			for _, unregister := range undo {
				if err := unregister(); err != nil {
					t.Fatal(err)
				}
			}
			if after := status(t, "VmPin"); after != before {
				t.Errorf("%d KiB are pinned, before it were %d", after, before)
			}
		})
	}
}

// status is a number of /proc/self/status.
func status(t *testing.T, name string) int {
	t.Helper()
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(b), "\n"+name+":")
	fields := strings.Fields(after)
	if len(fields) == 0 {
		return 0
	}
	n, _ := strconv.Atoi(fields[0])
	return n
}

// Where the limit of locked memory keeps memory from being registered with the ring, it
// is written all the same.
func TestRegisterOverTheMemlockLimit(t *testing.T) {
	needRing(t)
	limited(t, 1<<20)
	d, err := disk.Open(t.TempDir(), disk.Options{Engine: "io_uring", ArenaBytes: 4 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if d.Info().Registered {
		t.Skip("SKIPPED, the limit of locked memory does not hold here")
	}
	q, err := d.NewQueue(4)
	if err != nil {
		t.Fatal(err)
	}
	before := status(t, "VmPin")
	mem := mapFile(t, memfd(t, lentBytes), both, unix.MAP_SHARED)
	unregister, err := d.Register(mem)
	if err != nil {
		t.Fatal(err)
	}
	if after := status(t, "VmPin"); after != before {
		t.Fatalf("%d KiB are pinned, before it were %d: the limit was not in the way", after, before)
	}
	writes(t, d, q, mem[:2*disk.Block])
	if err := unregister(); err != nil {
		t.Fatal(err)
	}
}

// limited is a test under a limit of locked memory, which the capability to exceed it
// would make void.
func limited(t *testing.T, bytes uint64) {
	t.Helper()
	var old unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &old); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: bytes, Max: old.Max}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Setrlimit(unix.RLIMIT_MEMLOCK, &old) })
	runtime.LockOSThread() // for good: the thread ends with the test, and its capabilities
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var caps [2]unix.CapUserData
	if err := unix.Capget(&head, &caps[0]); err != nil {
		t.Fatal(err)
	}
	caps[0].Effective &^= 1 << unix.CAP_IPC_LOCK
	if err := unix.Capset(&head, &caps[0]); err != nil {
		t.Fatal(err)
	}
}
