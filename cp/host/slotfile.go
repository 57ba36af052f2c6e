package host

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// osSlot is a slot on the operating system's file system, written around the page
// cache where the file system allows it. Every write is durable when it returns.
type osSlot struct {
	f *os.File
	// bounce holds what is written: direct I/O needs memory on page boundaries,
	// which the heap does not give. One goroutine writes at a time.
	bounce []byte
}

const bounceSize = 1 << 20

func openSlot(name string) (*osSlot, error) {
	const flags = os.O_RDWR | os.O_CREATE | syscall.O_DSYNC
	f, err := os.OpenFile(name, flags|syscall.O_DIRECT, 0o600)
	if errors.Is(err, syscall.EINVAL) { // no direct I/O here
		f, err = os.OpenFile(name, flags, 0o600)
	}
	if err != nil {
		return nil, err
	}
	b, err := syscall.Mmap(-1, 0, bounceSize, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("mmap of %d bytes: %w", bounceSize, err), f.Close())
	}
	return &osSlot{f: f, bounce: b}, nil
}

func (s *osSlot) WriteAt(p []byte, off int64) error {
	for len(p) > 0 {
		n := copy(s.bounce, p)
		if _, err := s.f.WriteAt(s.bounce[:n], off); err != nil {
			return err
		}
		p, off = p[n:], off+int64(n)
	}
	return nil
}

// ReadAt reads through a second descriptor, because direct reads have the same
// alignment rules and recovery has no hurry.
func (s *osSlot) ReadAt(p []byte, off int64) (int, error) {
	f, err := os.Open(s.f.Name())
	if err != nil {
		return 0, err
	}
	defer f.Close()
	return f.ReadAt(p, off)
}

func (s *osSlot) Truncate(size int64) error {
	return errors.Join(s.f.Truncate(size), s.f.Sync())
}

func (s *osSlot) Size() (int64, error) {
	fi, err := s.f.Stat()
	if err != nil {
		return 0, err
	}
	return fi.Size(), nil
}

func (s *osSlot) Close() error {
	err := s.f.Close()
	if s.bounce != nil {
		err = errors.Join(err, syscall.Munmap(s.bounce))
		s.bounce = nil
	}
	return err
}

// openSlots opens both slots of a directory, creating them if need be.
func openSlots(dir string) (slots [2]slotFile, names [2]string, err error) {
	for i := range slots {
		names[i] = filepath.Join(dir, fmt.Sprintf("journal-%d", i))
		s, err := openSlot(names[i])
		if err != nil {
			if i == 1 {
				_ = slots[0].Close()
			}
			return slots, names, fmt.Errorf("cp/host: %w", err)
		}
		slots[i] = s
	}
	return slots, names, syncDir(dir)
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
