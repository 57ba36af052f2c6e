package disk_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ringfence/ringfence/segfile/disk"
)

// E18: what comes of each kind of file system is said with its name and the
// directory's: used, used without direct I/O, or refused. Ramfs has no direct I/O; one
// that may not be written stands for squashfs.
func TestE18FileSystems(t *testing.T) {
	for kind, want := range map[string]struct{ fs, direct, says, refused string }{
		"tmpfs":     {fs: "tmpfs", says: "nothing survives a restart"},
		"overlay":   {fs: "overlay"},
		"ramfs":     {fs: "ramfs", direct: "false", says: "refuses direct I/O: buffered I/O with syncs is used"},
		"read-only": {refused: "(tmpfs) cannot be written"},
	} {
		t.Run(kind, func(t *testing.T) {
			attr := &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
			if os.Geteuid() != 0 {
				attr.Cloneflags |= syscall.CLONE_NEWUSER
				attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}}
			}
			r := confined(t, "mounted", kind, attr)
			if want.refused != "" {
				if !strings.Contains(r["refused"], want.refused) || !strings.Contains(r["refused"], r["dir"]) || !strings.Contains(r["refused"], "read-only") {
					t.Fatal(r)
				}
				return
			}
			if r["fs"] != want.fs || want.direct != "" && r["direct"] != want.direct || !strings.Contains(r["said"], want.says) || r["refused"] != "" {
				t.Fatal(r)
			}
			if r["direct"] == "false" && !strings.Contains(r["said"], r["dir"]+" ("+want.fs+")") {
				t.Fatalf("buffered, and the reason is %q", r["said"])
			}
			t.Log(r["said"])
		})
	}
}

// useMounted opens and tries a directory on a file system of some kind.
func useMounted(kind string, report map[string]string) error {
	base, err := os.MkdirTemp(".", "")
	if err != nil {
		return err
	}
	if base, err = filepath.Abs(base); err != nil {
		return err
	}
	for _, name := range []string{"lower", "upper", "work", "on"} {
		if err := os.Mkdir(filepath.Join(base, name), 0o700); err != nil {
			return err
		}
	}
	dir := filepath.Join(base, "on")
	report["dir"] = dir
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		report["skip"] = "no private mounts here: " + err.Error()
		return nil
	}
	fs, data := kind, ""
	switch kind {
	case "overlay":
		data = fmt.Sprintf("lowerdir=%s/lower,upperdir=%s/upper,workdir=%s/work", base, base, base)
	case "read-only":
		fs = "tmpfs"
	}
	if err := unix.Mount(fs, dir, fs, 0, data); err != nil {
		report["skip"] = "cannot be mounted here: " + err.Error()
		return nil
	}
	if kind == "read-only" {
		if err := unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
			return err
		}
	}
	d, err := disk.Open(dir, disk.Options{ArenaBytes: 2 << 20})
	if err != nil {
		report["refused"] = err.Error()
		return nil
	}
	info := d.Info()
	report["fs"], report["direct"] = info.FileSystem, fmt.Sprint(info.Direct)
	report["said"] = strings.Join(append(info.Warnings, info.Reason), "; ")
	return errors.Join(exercise(d), d.Close())
}
