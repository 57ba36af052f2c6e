package disk_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ringfence/ringfence/segfile/disk"
)

// These tests need a process with fewer rights than ours: a child confines itself,
// starts this binary again, and reports in JSON what it found.

const confineEnv, reportMark = "DISK_TEST_CONFINED", "REPORT "

// confined runs TestConfined in a child and returns its report.
func confined(t *testing.T, role, arg string, attr *syscall.SysProcAttr) map[string]string {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestConfined$", "-test.v")
	cmd.Env = append(os.Environ(), confineEnv+"="+role, "DISK_TEST_ARG="+arg, disk.EngineEnv+"=")
	cmd.Dir, cmd.SysProcAttr = t.TempDir(), attr
	out, err := cmd.CombinedOutput()
	for line := range strings.Lines(string(out)) {
		if text, ok := strings.CutPrefix(line, reportMark); ok {
			report := map[string]string{}
			must(t, json.Unmarshal([]byte(text), &report))
			if skip := report["skip"]; skip != "" {
				t.Skip("SKIPPED: ", skip)
			}
			if failed := report["error"]; failed != "" {
				t.Fatal(failed)
			}
			return report
		}
	}
	t.Fatalf("the child gave no report: %v\n%s", err, out)
	return nil
}

func TestConfined(t *testing.T) {
	role, arg := os.Getenv(confineEnv), os.Getenv("DISK_TEST_ARG")
	work := map[string]func(arg string, report map[string]string) error{
		"seccomp": confineSeccomp, "memlock": confineMemlock, "use": useDisk, "two": useTwoDisks, "full": useFullDisk, "mounted": useMounted,
	}[role]
	if work == nil {
		t.Skip("only for the child of another test")
	}
	report := map[string]string{}
	if err := work(arg, report); err != nil {
		report["error"] = err.Error()
	}
	text, _ := json.Marshal(report)
	fmt.Printf("\n%s%s\n", reportMark, text)
}

// again starts this binary again from this thread, whose confinement it inherits.
func again(role string) error {
	os.Setenv(confineEnv, role)
	return fmt.Errorf("exec: %w", syscall.Exec("/proc/self/exe", os.Args, os.Environ()))
}

// confineSeccomp takes "call:errno" pairs and makes those calls fail.
func confineSeccomp(arg string, report map[string]string) error {
	runtime.LockOSThread()
	filter := []unix.SockFilter{{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0}} // the call's number
	for pair := range strings.SplitSeq(arg, ",") {
		var call, errno uint32
		if _, err := fmt.Sscanf(pair, "%d:%d", &call, &errno); err != nil {
			return err
		}
		filter = append(filter,
			unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: call, Jt: 0, Jf: 1},
			unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: 0x00050000 | errno}) // SECCOMP_RET_ERRNO
	}
	filter = append(filter, unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: 0x7fff0000}) // SECCOMP_RET_ALLOW
	prog := &unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	if err := unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, reflect.ValueOf(prog).Pointer(), 0, 0); err != nil {
		report["skip"] = "no seccomp filter can be set here: " + err.Error()
		return nil
	}
	runtime.KeepAlive(filter)
	return again("use")
}

// confineMemlock takes "next role:limit in bytes".
func confineMemlock(arg string, report map[string]string) error {
	runtime.LockOSThread()
	role, limit, _ := strings.Cut(arg, ":")
	var bytes uint64
	if _, err := fmt.Sscan(limit, &bytes); err != nil {
		return err
	}
	if err := unix.Prctl(unix.PR_CAPBSET_DROP, unix.CAP_IPC_LOCK, 0, 0, 0); err != nil && os.Geteuid() == 0 {
		report["skip"] = "the capability that lifts the limit cannot be dropped: " + err.Error()
		return nil
	}
	if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: bytes, Max: bytes}); err != nil {
		return err
	}
	return again(role)
}

// exercise writes and reads through the queue and the blocking calls of a disk.
func exercise(d disk.Disk) error { return disk.SelfTest(d) }

func useDisk(_ string, report map[string]string) error {
	d, err := disk.Open(".", disk.Options{ArenaBytes: 16 << 20})
	if err != nil {
		return err
	}
	report["info"], report["reason"] = fmt.Sprintf("%s registered=%v", d.Info().Engine, d.Info().Registered), d.Info().Reason
	if err := exercise(d); err != nil {
		return err
	}
	if forced, err := disk.Open(".", disk.Options{Engine: "io_uring"}); err != nil {
		report["forced"] = err.Error()
	} else {
		forced.Close()
	}
	return d.Close()
}

// useTwoDisks opens two disks that together exceed the limit which one keeps.
func useTwoDisks(_ string, report map[string]string) error {
	var disks [2]disk.Disk
	for i := range disks {
		d, err := disk.Open(".", disk.Options{ArenaBytes: 6 << 20})
		if err != nil {
			return err
		}
		if _, err := d.NewQueue(4); err != nil { // holds the registration
			return err
		}
		disks[i] = d
		report[fmt.Sprint(i)] = fmt.Sprintf("%s registered=%v", d.Info().Engine, d.Info().Registered)
		report["reason"] = d.Info().Reason
	}
	for _, d := range disks {
		if err := exercise(d); err != nil {
			return err
		}
	}
	return errors.Join(disks[0].Close(), disks[1].Close())
}

// E03: a seccomp filter, as containers have, makes the pool do the work, and the
// reason names the call and the likely cause. Numbers: 425 set-up, 427 register.
func TestE03BlockedIOUring(t *testing.T) {
	needRing(t)
	for _, tc := range []struct{ name, filter, says string }{
		{"EPERM", fmt.Sprintf("425:%d", unix.EPERM), "seccomp"},
		{"ENOSYS", fmt.Sprintf("425:%d", unix.ENOSYS), "seccomp"},
		{"register only", fmt.Sprintf("427:%d", unix.EPERM), "seccomp"},
		{"enter only", fmt.Sprintf("426:%d", unix.EPERM), "io_uring fails here"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			report := confined(t, "seccomp", tc.filter, nil)
			if report["info"] != "pool registered=false" || !strings.Contains(report["reason"], tc.says) {
				t.Errorf("%s: %s", report["info"], report["reason"])
			}
			if report["forced"] == "" {
				t.Error("io_uring was asked for, is blocked, and opened")
			}
			t.Log(report["reason"])
		})
	}
}

// E02: an arena that may not be locked is used unregistered, with the amounts in the
// reason; a second engine of the same user does not disturb the first.
func TestE02MemlockLimit(t *testing.T) {
	needRing(t)
	for _, tc := range []struct{ limit, says string }{{"65536", "64 KiB"}, {"8388608", "8 MiB"}} {
		report := confined(t, "memlock", "use:"+tc.limit, nil)
		if report["info"] != "io_uring registered=false" || !strings.Contains(report["reason"], tc.says) || !strings.Contains(report["reason"], "16 MiB") {
			t.Errorf("limit %s: %s: %s", tc.limit, report["info"], report["reason"])
		}
		t.Log(report["reason"])
	}
	report := confined(t, "memlock", "two:8388608", nil)
	if report["0"] != "io_uring registered=true" || report["1"] != "io_uring registered=false" || report["reason"] == "" {
		t.Errorf("two disks under 8 MiB: %v", report)
	}
}

// D01: on a small file system that is full, every operation that needs room fails
// with ErrNoSpace, reads and deletes go on, opening works, and all is well again
// when there is room.
func TestD01FullFileSystem(t *testing.T) {
	for _, engine := range []string{"pool", "io_uring"} {
		t.Run(engine, func(t *testing.T) {
			if engine == "io_uring" {
				needRing(t)
			}
			attr := &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
			if os.Geteuid() != 0 {
				attr.Cloneflags |= syscall.CLONE_NEWUSER
				attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}}
			}
			report := confined(t, "full", engine, attr)
			if report["refused"] != "4" || report["warned"] != "true" || report["engine"] != engine {
				t.Fatal(report)
			}
		})
	}
}

func useFullDisk(engine string, report map[string]string) error {
	dir, err := os.MkdirTemp(".", "")
	if err != nil {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		report["skip"] = "no private mounts here: " + err.Error()
		return nil
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=4m"); err != nil {
		report["skip"] = "no tmpfs can be mounted here: " + err.Error()
		return nil
	}
	o := disk.Options{Engine: engine, ArenaBytes: 2 << 20}
	d, err := disk.Open(dir, o)
	if err != nil {
		return err
	}
	f, err := d.Create("f")
	if err != nil {
		return err
	}
	want := bytes.Repeat([]byte{7}, 64<<10)
	if err := f.WriteAt(want, 0); err != nil {
		return err
	}
	hog := filepath.Join(dir, "hog")
	os.WriteFile(hog, make([]byte, 8<<20), 0o600) // from outside, until it is full
	refused := 0
	count := func(err error) {
		if errors.Is(err, disk.ErrNoSpace) && errors.Is(err, syscall.ENOSPC) {
			refused++
		}
	}
	buf, _ := d.Arena().Alloc(64 << 10)
	write := func(durable bool) error {
		q, err := d.NewQueue(1)
		if err != nil {
			return err
		}
		op := &disk.Op{Kind: disk.Write, Durable: durable, File: f, Buf: buf, Off: 1 << 20, Done: func(*disk.Op) {}}
		if err := errors.Join(q.Push(op), q.Submit()); err != nil {
			return err
		}
		_, err = q.Wait(1)
		return errors.Join(err, op.Err, q.Close())
	}
	count(f.WriteAt(want, 1<<20))
	count(f.Allocate(1<<20, 1<<20))
	count(write(true))
	count(write(false))
	report["refused"] = fmt.Sprint(refused)

	second, err := disk.Open(dir, o) // a restart on a full disk
	if err != nil {
		return fmt.Errorf("open on a full disk: %w", err)
	}
	report["warned"] = fmt.Sprint(strings.Contains(strings.Join(second.Info().Warnings, "\n"), "no space"))
	report["engine"] = second.Info().Engine
	if err := second.Close(); err != nil {
		return err
	}
	got := make([]byte, len(want))
	if _, err := f.ReadAt(got, 0); err != nil || !bytes.Equal(got, want) {
		return fmt.Errorf("read on a full disk: %w", err)
	}
	if _, free, err := d.Space(); err != nil || free > 64<<10 {
		return fmt.Errorf("%d bytes free on a full disk: %w", free, err)
	}
	if err := d.Remove("hog"); err != nil {
		return fmt.Errorf("delete on a full disk: %w", err)
	}
	if err := errors.Join(f.WriteAt(want, 1<<20), write(true)); err != nil {
		return fmt.Errorf("there is room again: %w", err)
	}
	d.Arena().Free(buf)
	return d.Close()
}
