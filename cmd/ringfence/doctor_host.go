package main

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/ringfence/ringfence/ring"
	"golang.org/x/sys/unix"
)

// engineMemory is what an engine with default options takes: its arena, metadata
// and the heap of a busy producer.
const engineMemory = 512 << 20

// ringFindings explains what the kernel says about io_uring.
func ringFindings(r ring.Report) []finding {
	uring := finding{What: "io_uring", Found: "usable on Linux " + r.Kernel}
	if !r.Usable {
		uring.Found = "not usable on Linux " + r.Kernel
		uring.Advice = r.Reason
	}
	lock := finding{What: "locked memory", Found: "no limit"}
	if !r.MemlockExempt && r.Memlock != math.MaxUint64 {
		lock.Found = bytesText(r.Memlock)
		if r.Memlock < 128<<20 {
			lock.Advice = "too little to register the engine's buffers; set LimitMEMLOCK=infinity, ulimit -l unlimited, or docker run --ulimit memlock=-1"
		}
	}
	huge := finding{What: "2 MiB pages", Found: fmt.Sprintf("transparent: %s; %d reserved", r.HugePages, r.HugeReserved)}
	if r.HugePages == "never" && r.HugeReserved == 0 {
		huge.Advice = "large writes are up to three times slower from small pages: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled"
	}
	return []finding{uring, lock, huge}
}

// hostFindings looks at this process's limits.
func hostFindings() []finding {
	var fs []finding
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err == nil {
		f := finding{What: "open files", Found: countText(int64(min(files.Cur, math.MaxInt64)))}
		if files.Max < 16384 {
			f.Advice = "each segment in use is an open file; raise the limit to 65536 (ulimit -n, LimitNOFILE)"
		}
		fs = append(fs, f)
	}
	if limit, ok := memoryLimit("/proc/self/cgroup", "/sys/fs/cgroup"); ok {
		f := finding{What: "memory limit", Found: bytesText(limit)}
		if limit < engineMemory {
			f.Advice = fmt.Sprintf("the control group allows less than the %s that an engine with default options needs", bytesText(int64(engineMemory)))
		}
		fs = append(fs, f)
	}
	return fs
}

// memoryLimit is the smallest memory limit of the control groups this process is
// in (version 2), false when there is none.
func memoryLimit(self, root string) (limit int64, ok bool) {
	b, err := os.ReadFile(self)
	if err != nil {
		return 0, false
	}
	_, group, found := strings.Cut(string(b), "0::")
	if !found {
		return 0, false
	}
	group, _, _ = strings.Cut(group, "\n")
	limit = math.MaxInt64
	for dir := filepath.Clean("/" + group); ; dir = filepath.Dir(dir) {
		if b, err := os.ReadFile(filepath.Join(root, dir, "memory.max")); err == nil {
			if n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64); err == nil {
				limit = min(limit, n)
			}
		}
		if dir == "/" {
			return limit, limit < math.MaxInt64
		}
	}
}

// dirFindings looks at the file system and the device of a directory.
func dirFindings(dir string) []finding {
	fs := []finding{directFinding(dir)}
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err == nil {
		free := int64(st.Bavail) * st.Bsize
		f := finding{What: "free space", Found: bytesText(free)}
		if free < 1<<30 {
			f.Advice = "less than 1 GiB; appends are refused when it is used up"
		}
		fs = append(fs, f)
	}
	if queue, ok := blockQueue(dir); ok {
		fs = append(fs, deviceFinding(queue))
	}
	return fs
}

// directFinding asks the kernel what direct I/O needs here, or tries it.
func directFinding(dir string) finding {
	f := finding{What: "direct I/O", Found: "refused"}
	file, err := os.CreateTemp(dir, "doctor-")
	if err != nil {
		f.Found, f.Advice = "unknown", err.Error()
		return f
	}
	defer func() {
		_ = os.Remove(file.Name()) // it is empty, and its name says whose it was
		file.Close()
	}()
	var sx unix.Statx_t
	if err := unix.Statx(int(file.Fd()), "", unix.AT_EMPTY_PATH, unix.STATX_DIOALIGN, &sx); err == nil && sx.Mask&unix.STATX_DIOALIGN != 0 && sx.Dio_offset_align > 0 {
		f.Found = fmt.Sprintf("positions on %d bytes, memory on %d", sx.Dio_offset_align, sx.Dio_mem_align)
		if sx.Dio_offset_align > 4096 || sx.Dio_mem_align > 4096 {
			f.Advice = "blocks larger than 4096 bytes: the engine cannot use direct I/O here"
		}
		return f
	}
	fd, err := unix.Open(file.Name(), unix.O_RDWR|unix.O_DIRECT|unix.O_CLOEXEC, 0)
	switch {
	case err == nil:
		unix.Close(fd)
		f.Found = "allowed; the kernel does not tell the alignment"
	case errors.Is(err, unix.EINVAL):
		f.Advice = "the engine falls back to buffered writes with syncs; use ext4 or xfs on a real device"
	default:
		f.Advice = err.Error()
	}
	return f
}

// blockQueue finds the sysfs queue directory of the device that holds dir.
func blockQueue(dir string) (string, bool) {
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return "", false
	}
	dev := fmt.Sprintf("/sys/dev/block/%d:%d", unix.Major(st.Dev), unix.Minor(st.Dev))
	for _, q := range []string{dev + "/queue", dev + "/../queue"} { // a partition's queue is its disk's
		if _, err := os.Stat(q); err == nil {
			return q, true
		}
	}
	return "", false
}

func deviceFinding(queue string) finding {
	get := func(name string) string {
		b, _ := os.ReadFile(filepath.Join(queue, name)) // an absent attribute is an empty one
		return strings.TrimSpace(string(b))
	}
	f := finding{What: "device", Found: fmt.Sprintf("physical blocks of %s, cache: %s", get("physical_block_size"), get("write_cache"))}
	switch {
	case get("write_cache") != "write back":
		f.Found += ", a completed write is durable"
	case get("fua") == "1":
		f.Found += ", FUA: a durable write needs no extra flush"
	default:
		f.Found += ", no FUA: each durable write is followed by a flush of the device's cache"
	}
	return f
}
