package disk

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// scratchPrefix begins the names of files that Open makes and removes.
const scratchPrefix = ".probe-"

func scratchName() string { return fmt.Sprintf("%s%d-%08x", scratchPrefix, os.Getpid(), rand.Uint32()) }

// probe finds out about the file system and what direct I/O on it needs.
func (d *osDisk) probe() error {
	h, err := d.openDir("probe", "")
	if err != nil {
		return err
	}
	var st unix.Statfs_t
	err = unix.Fstatfs(int(h.Fd()), &st)
	h.Close()
	if err != nil {
		return osErr("probe", "", err)
	}
	d.info.FileSystem = fileSystemName(int64(st.Type))
	var name unix.Utsname
	unix.Uname(&name)
	d.info.Warnings = warnings(d.info.FileSystem, unix.ByteSliceToString(name.Release[:]))
	d.align = Block
	if d.opts.ReadOnly {
		d.info.Direct, d.info.Align = true, Block // a file that refuses is read without
		return nil
	}
	d.clean()
	return d.probeDirect()
}

// probeDirect tries direct I/O on a scratch file.
func (d *osDisk) probeDirect() error {
	name := scratchName()
	defer func() { _ = d.root.Remove(name) }()
	h, err := d.root.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL|unix.O_DIRECT, 0o600)
	if errors.Is(err, syscall.EINVAL) {
		d.explain(fmt.Sprintf("%s (%s) refuses direct I/O: buffered I/O with syncs is used", d.dir, d.info.FileSystem))
		return nil
	}
	if err = osErr("create", name, err); errors.Is(err, ErrNoSpace) {
		d.warn("direct I/O was not tried out: " + err.Error())
		d.info.Direct, d.info.Align = true, Block // a file that refuses is used without
		return nil
	}
	if err != nil {
		return fmt.Errorf("disk: data directory %s (%s) cannot be written: %w", d.dir, d.info.FileSystem, err)
	}
	defer h.Close()
	var st unix.Statx_t
	known := unix.Statx(int(h.Fd()), "", unix.AT_EMPTY_PATH, unix.STATX_DIOALIGN, &st) == nil && st.Mask&unix.STATX_DIOALIGN != 0
	align, why := judgeAlign(known, st.Dio_mem_align, st.Dio_offset_align)
	if why == "" {
		b := bounces.Get().(*bounce)
		defer bounces.Put(b)
		if _, err := unix.Pread(int(h.Fd()), b.b[:Block], 0); err != nil {
			why = fmt.Sprintf("fails direct I/O (%v)", err)
		}
	}
	if why != "" {
		d.explain(fmt.Sprintf("%s (%s) %s: buffered I/O with syncs is used", d.dir, d.info.FileSystem, why))
		return nil
	}
	d.info.Direct, d.info.Align, d.align = true, align, align
	return nil
}

// judgeAlign decides about direct I/O from what the kernel says a file needs: the
// alignment, or why it cannot be used. Kernels before 6.1 say nothing; a whole block
// suits every file system that takes direct I/O there.
func judgeAlign(known bool, mem, off uint32) (align int, why string) {
	switch {
	case !known:
		return Block, ""
	case off == 0:
		return 0, "does not support direct I/O"
	case mem > Block || off > Block || off&(off-1) != 0 || mem&(mem-1) != 0:
		return 0, fmt.Sprintf("wants direct I/O aligned to %d bytes in memory and %d in the file, more than the format's %d", mem, off, Block)
	}
	return int(max(mem, off)), ""
}

// clean removes scratch files that a crash left behind, and leaves those that
// another process may be using just now.
func (d *osDisk) clean() {
	entries, _ := d.List("")
	for _, e := range entries {
		if !strings.HasPrefix(e.Name, scratchPrefix) {
			continue
		}
		if st, err := d.root.Stat(e.Name); err == nil && time.Since(st.ModTime()) > time.Hour {
			_ = d.root.Remove(e.Name)
		}
	}
}

var fileSystems = map[int64]string{
	unix.EXT4_SUPER_MAGIC: "ext4", unix.XFS_SUPER_MAGIC: "xfs", unix.BTRFS_SUPER_MAGIC: "btrfs",
	unix.TMPFS_MAGIC: "tmpfs", unix.OVERLAYFS_SUPER_MAGIC: "overlay", unix.FUSE_SUPER_MAGIC: "fuse",
	unix.NFS_SUPER_MAGIC: "nfs", unix.F2FS_SUPER_MAGIC: "f2fs", unix.SQUASHFS_MAGIC: "squashfs",
	unix.V9FS_MAGIC: "9p", unix.CEPH_SUPER_MAGIC: "ceph", unix.SMB2_SUPER_MAGIC: "cifs",
	0x2fc12fc1: "zfs", 0xca451a4e: "bcachefs", 0x858458f6: "ramfs",
}

func fileSystemName(magic int64) string {
	if name := fileSystems[magic&0xffffffff]; name != "" {
		return name
	}
	return fmt.Sprintf("file system %#x", magic)
}

// dropsPages says whether a direct write to an open file is known to take the pages that
// it makes old out of the page cache instead of changing them.
func dropsPages(fd int) bool {
	var st unix.Statfs_t
	if unix.Fstatfs(fd, &st) != nil {
		return false
	}
	name := fileSystemName(int64(st.Type))
	return name == "ext4" || name == "xfs"
}

// warnings are what is known of a kernel and file system that may cost data or
// durability.
func warnings(fileSystem, release string) (w []string) {
	var major, minor, patch int
	fmt.Sscanf(release, "%d.%d.%d", &major, &minor, &patch)
	switch fileSystem {
	case "ext4":
		if major == 6 && minor == 1 && (patch == 64 || patch == 65) {
			w = append(w, fmt.Sprintf("Linux %s can corrupt files on ext4 with synchronous direct writes: upgrade the kernel", release))
		}
	case "btrfs":
		w = append(w, "btrfs may quietly replace direct I/O by buffered I/O on files with checksums, which is slower; chattr +C on the empty data directory avoids it")
	case "tmpfs", "ramfs":
		w = append(w, fileSystem+" lives in memory: nothing survives a restart of the machine")
	case "fuse", "nfs", "9p", "ceph", "cifs":
		w = append(w, fmt.Sprintf("on %s, durability and locks are what the server behind it makes of them", fileSystem))
	}
	return w
}

// ErrSelfTest means that storage gave back other bytes than were written.
var ErrSelfTest = errors.New("disk: self-test failed")

// test runs the self-test. A full disk cannot be tested, and must not keep anybody
// from reading and deleting. A file system that io_uring cannot write durably gets
// the pool, unless io_uring is a must.
func (d *osDisk) test() error {
	err := SelfTest(d)
	if errors.Is(err, ErrNoSpace) {
		d.warn("the self-test was left out: " + err.Error())
		return nil
	}
	if err != nil && !errors.Is(err, ErrSelfTest) && d.info.Engine == "io_uring" && d.opts.Engine == "auto" {
		d.info.Engine, d.info.Registered = "pool", false
		d.explain("io_uring fails here: " + err.Error())
		err = SelfTest(d)
	}
	return err
}

// SelfTest writes a scratch file in every way the engine writes, reads it back in
// every way it reads, also after opening it anew, and compares. An ErrSelfTest
// means that the storage must not be used.
func SelfTest(d Disk) (err error) {
	name := scratchName()
	f, err := d.Create(name)
	if err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, f.Close())
		if rerr := d.Remove(name); err == nil {
			err = rerr
		}
	}()
	const blocks = 8
	image := make([]byte, blocks*Block)
	rng := rand.NewChaCha8([32]byte([]byte(fmt.Sprintf("%-32s", name))))
	rng.Read(image)
	if err := selfWrite(d, f, image); err != nil {
		return err
	}
	if err := selfRead(f, image); err != nil {
		return err
	}
	again, err := d.Open(name, true)
	if err != nil {
		return err
	}
	defer again.Close()
	return selfRead(again, image)
}

// selfWrite writes an image back to front: blocking, by queue and durable, by queue
// and then synced.
func selfWrite(d Disk, f File, image []byte) error {
	last := len(image) - 2*Block
	if err := f.WriteAt(image[last:], int64(last)); err != nil {
		return err
	}
	buf, ok := d.Arena().Alloc(last)
	if !ok {
		return fmt.Errorf("disk: no memory for the self-test of %d bytes in an arena of %d", last, d.Arena().Size())
	}
	defer d.Arena().Free(buf) // after the queue's Close: the kernel may still read it
	q, err := d.NewQueue(4)
	if err != nil {
		return err
	}
	defer q.Close()
	copy(buf, image)
	half := last / 2 / Block * Block
	parts := []Op{
		{Kind: Write, Durable: true, Buf: buf[half:], Off: int64(half)},
		{Kind: Write, Buf: buf[:half]},
		{Kind: Sync},
	}
	for i := range parts {
		op := &parts[i]
		op.File, op.Done = f, func(*Op) {}
		if err := q.Push(op); err != nil {
			return err
		}
		if err := q.Submit(); err != nil {
			return err
		}
		if _, err := q.Wait(1); err != nil {
			return err
		}
		if op.Err != nil {
			return op.Err
		}
	}
	return nil
}

// selfRead compares a whole file, and odd parts of it, with what it must hold.
func selfRead(f File, image []byte) error {
	got := make([]byte, len(image)+1)
	n, err := f.ReadAt(got, 0)
	if !errors.Is(err, io.EOF) || n != len(image) {
		return fmt.Errorf("%w: %d bytes written to %s, %d read back (%w)", ErrSelfTest, len(image), f.Name(), n, err)
	}
	for i := range image {
		if got[i] != image[i] {
			return fmt.Errorf("%w: byte %d of %s reads back as %#x, written %#x", ErrSelfTest, i, f.Name(), got[i], image[i])
		}
	}
	odd := got[:Block+700]
	if _, err := f.ReadAt(odd, Block-300); err != nil {
		return err
	}
	if !bytes.Equal(odd, image[Block-300:][:len(odd)]) {
		return fmt.Errorf("%w: an unaligned read of %s differs", ErrSelfTest, f.Name())
	}
	return nil
}
