package bench

import (
	"bufio"
	"fmt"
	"os"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// cpuTime is the CPU this process has used so far, user and system.
func cpuTime() time.Duration {
	var ru syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &ru); err != nil {
		return 0
	}
	return time.Duration(ru.Utime.Nano() + ru.Stime.Nano())
}

// Host is what a result must name to be compared with another.
type Host struct {
	CPU        string `json:"cpu"`
	Cores      int    `json:"cores"`
	Kernel     string `json:"kernel"`
	FileSystem string `json:"file_system"`
	Go         string `json:"go"`
}

// ThisHost describes the machine and the file system of dir.
func ThisHost(dir string) Host {
	h := Host{CPU: cpuModel(), Cores: runtime.NumCPU(), Kernel: "unknown", FileSystem: fileSystem(dir), Go: runtime.Version()}
	if b, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		h.Kernel = strings.TrimSpace(string(b))
	}
	return h
}

func (h Host) String() string {
	return fmt.Sprintf("%d cores (%s), Linux %s, %s, %s", h.Cores, h.CPU, h.Kernel, h.FileSystem, h.Go)
}

func cpuModel() string {
	f, err := os.Open("/proc/cpuinfo")
	if err != nil {
		return runtime.GOARCH
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if key, value, ok := strings.Cut(lines.Text(), ":"); ok && strings.TrimSpace(key) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return runtime.GOARCH
}

// fileSystem names the type of the file system that dir is on.
func fileSystem(dir string) string {
	var st syscall.Statfs_t
	if err := syscall.Statfs(dir, &st); err != nil {
		return "unknown file system"
	}
	names := map[int64]string{
		0xef53: "ext4", 0x58465342: "xfs", 0x9123683e: "btrfs", 0x01021994: "tmpfs", 0x794c7630: "overlay",
		0x2fc12fc1: "zfs", 0x6969: "nfs", 0x65735546: "fuse", 0xf2f52010: "f2fs",
	}
	if name, ok := names[int64(uint32(st.Type))]; ok {
		return name
	}
	return fmt.Sprintf("file system 0x%x", uint32(st.Type))
}

// Volatile says why data in dir would not survive a restart of the machine, or "".
func (h Host) Volatile() string {
	if h.FileSystem == "tmpfs" {
		return "it is on tmpfs, which lives in memory: nothing here survives a restart of the machine"
	}
	return ""
}
