package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// Scratch owns the files that floors are measured on, on the file system whose
// rate is wanted. A written file is written once and used by every shape after.
type Scratch struct {
	dir     string
	size    int64 // of the written file
	written int64 // bytes of it that are on stable storage
}

// writtenSize is large enough that a device's own cache does not hold it whole
// and small enough to write in a second or two.
const writtenSize = 1 << 30

// growSize bounds a growing file; its run ends earlier when its time is over.
const growSize = 16 << 30

// growLeast is what a run has to grow to, to say anything.
const growLeast = 16 << 20

// ErrNoRoom: the file system is too full for the file of a floor.
var ErrNoRoom = errors.New("bench: no room to measure")

// NewScratch makes a directory for floors inside dir. Close removes it. size is that
// of the written file; 0 means 1 GiB.
func NewScratch(dir string, size int64) (*Scratch, error) {
	sub, err := os.MkdirTemp(dir, "floor-")
	if err != nil {
		return nil, fmt.Errorf("bench: scratch directory: %w", err)
	}
	return &Scratch{dir: sub, size: cmp.Or(size, writtenSize)}, nil
}

func (s *Scratch) Close() error { return os.RemoveAll(s.dir) }

// prepare returns the file a shape runs on and the size it may use.
func (s *Scratch) prepare(ctx context.Context, shape Shape) (file string, size int64, err error) {
	free, err := freeBytes(s.dir)
	if err != nil {
		return "", 0, err
	}
	if shape.Grow {
		file = filepath.Join(s.dir, "growing")
		if err := os.Remove(file); err != nil && !errors.Is(err, os.ErrNotExist) {
			return "", 0, fmt.Errorf("bench: %w", err)
		}
		size = min(growSize, free/4) / int64(shape.Block) * int64(shape.Block)
		if size < growLeast {
			return "", 0, fmt.Errorf("%w: %s has %s free; a growing floor needs four times its size, which is at least %s", ErrNoRoom, s.dir, sizeName(free>>20<<20), sizeName(growLeast))
		}
		return file, size, s.settle(s.dir)
	}
	file = filepath.Join(s.dir, "written")
	if s.written == 0 {
		size := min(s.size, free/4) >> 20 << 20
		if size < 4<<20 {
			return "", 0, fmt.Errorf("%w: %s has %s free; a floor needs four times its size, which is at least 4 MiB", ErrNoRoom, s.dir, sizeName(free>>20<<20))
		}
		if err := writeAll(ctx, file, size); err != nil {
			return "", 0, err
		}
		s.written = size
	}
	return file, s.written, s.settle(file)
}

// settle flushes what earlier runs left in the device's cache, which the first
// flush of the next run would pay for otherwise.
func (s *Scratch) settle(file string) error {
	f, err := os.Open(file)
	if err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	defer f.Close()
	if err := f.Sync(); err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	return nil
}

// writeAll fills a new file with pattern bytes, past the page cache where possible.
func writeAll(ctx context.Context, file string, size int64) (err error) {
	f, _, err := openDirect(file, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, false)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	buf, free, err := bigBuffer(1 << 20)
	if err != nil {
		return err
	}
	defer free()
	fillPattern(buf)
	for at := int64(0); at < size; at += int64(len(buf)) {
		if err := ctx.Err(); err != nil {
			return err
		}
		if _, err := f.WriteAt(buf, at); err != nil {
			return fmt.Errorf("bench: writing the floor's file: %w", err)
		}
	}
	return f.Sync()
}

// openDirect opens a file with direct I/O, or without where the file system
// refuses it (tmpfs, some overlays), and says which it is.
func openDirect(file string, flags int, durable bool) (f *os.File, direct bool, err error) {
	if durable {
		flags |= syscall.O_DSYNC
	}
	f, err = os.OpenFile(file, flags|syscall.O_DIRECT, 0o600)
	if errors.Is(err, syscall.EINVAL) {
		f, err = os.OpenFile(file, flags, 0o600)
		return f, false, err
	}
	return f, true, err
}

// bigBuffer returns zeroed memory aligned for direct I/O, on 2 MiB pages where
// the host gives them, and its release.
func bigBuffer(n int) (buf []byte, free func(), err error) {
	size := (n + hugePage - 1) / hugePage * hugePage
	mem, err := syscall.Mmap(-1, 0, size, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		return nil, nil, fmt.Errorf("bench: %d bytes of memory: %w", size, err)
	}
	_ = syscall.Madvise(mem, syscall.MADV_HUGEPAGE) // a wish: without it the pages are small
	clear(mem)
	return mem[:n:n], func() { _ = syscall.Munmap(mem) }, nil
}

// fillPattern writes bytes that no device takes for zeros.
func fillPattern(b []byte) {
	x := uint64(0x9e3779b97f4a7c15)
	for i := range b {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		b[i] = byte(x)
	}
}

func freeBytes(dir string) (int64, error) {
	var st syscall.Statfs_t
	if err := syscall.Statfs(dir, &st); err != nil {
		return 0, fmt.Errorf("bench: free space of %s: %w", dir, err)
	}
	return int64(st.Bavail) * int64(st.Bsize), nil
}
