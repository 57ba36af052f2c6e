package shm

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Kernels before those that are named do without.
const (
	hugePage          = 2 << 20
	madvPopulateWrite = 23 // Linux 5.14
	madvCollapse      = 25 // Linux 6.1
)

// newMemory makes a file of size bytes that exists in memory alone and can neither shrink
// nor grow. All of its pages are there: a host without room for them says so here and not
// with a fault when they are used.
func newMemory(size int) (*os.File, error) {
	if free, where := roomLeft(); uint64(size) > free {
		return nil, fmt.Errorf("%w: a region of %d bytes, and %s has %d left", ErrNoRoom, size, where, free)
	}
	fd, err := unix.MemfdCreate("ringfence", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("shm: make memory to share: %w", err)
	}
	f := os.NewFile(uintptr(fd), "ringfence shared memory")
	if err := f.Truncate(int64(size)); err != nil {
		return nil, errors.Join(fmt.Errorf("shm: a region of %d bytes: %w", size, err), f.Close())
	}
	if err := reserve(f, size); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	if err := seal(f, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// reserve has every page of the file there.
func reserve(f *os.File, size int) error {
	for {
		switch err := unix.Fallocate(int(f.Fd()), 0, 0, int64(size)); {
		case err == nil:
			return nil
		case errors.Is(err, syscall.EINTR): // the pages so far are there
		case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.ENOMEM):
			free, where := roomLeft()
			return fmt.Errorf("%w: a region of %d bytes, and %s has %d left: %w", ErrNoRoom, size, where, free, err)
		default:
			return fmt.Errorf("shm: reserve %d bytes: %w", size, err)
		}
	}
}

func seal(f *os.File, seals int) error {
	if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, seals); err != nil {
		return fmt.Errorf("shm: seal the memory: %w", err)
	}
	return nil
}

// freeze takes from everybody, once both sides have mapped the memory, what would let the
// other one take pages out of it: a new mapping that can be written, and holes. Those that
// were made before are filled again.
func freeze(f *os.File, size int) error {
	if err := seal(f, unix.F_SEAL_FUTURE_WRITE|unix.F_SEAL_SEAL); err != nil {
		return err
	}
	return reserve(f, size)
}

// memory is a mapping of the whole file, in the middle of room that nobody may touch.
type memory struct {
	bytes []byte
	huge  bool // it lies on 2 MiB pages
	room  unsafe.Pointer
}

// roomFor is the address space around a mapping of size bytes: what is before and behind it
// is never mapped, so that an access that leaves it faults and meets nothing of others.
func roomFor(size int) uintptr { return uintptr(size + 2*hugePage) }

// mapMemory maps a file of whole pages on a 2 MiB boundary, so that large pages can be used, and finds
// all pages now. With huge it asks for large ones, which take time to gather: those who
// map the file later find them.
func mapMemory(f *os.File, size int, huge bool) (*memory, error) {
	room, err := unix.MmapPtr(-1, 0, nil, roomFor(size), unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return nil, fmt.Errorf("%w: map %d bytes: %w", ErrNoRoom, size, err)
	}
	start := unsafe.Add(room, hugePage-uintptr(room)&(hugePage-1))
	_, err = unix.MmapPtr(int(f.Fd()), 0, start, uintptr(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_FIXED)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%w: map %d bytes: %w", ErrNoRoom, size, err), unix.MunmapPtr(room, roomFor(size)))
	}
	m := &memory{bytes: unsafe.Slice((*byte)(start), size), room: room}
	for _, advice := range []int{unix.MADV_DONTFORK, unix.MADV_DONTDUMP} {
		err = errors.Join(err, unix.Madvise(m.bytes, advice))
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("shm: map %d bytes: %w", size, err), m.unmap())
	}
	_ = unix.Madvise(m.bytes, madvPopulateWrite) // what it does not find is found when it is used
	if large := size &^ (hugePage - 1); huge && large > 0 {
		m.huge = unix.Madvise(m.bytes[:large], madvCollapse) == nil
	}
	return m, nil
}

func (m *memory) unmap() error {
	if m.bytes == nil {
		return nil
	}
	room, length := m.room, roomFor(len(m.bytes))
	m.bytes, m.room = nil, nil
	return unix.MunmapPtr(room, length)
}

func (m *memory) word8(at int) *uint64 { return (*uint64)(unsafe.Pointer(&m.bytes[at])) }
func (m *memory) word4(at int) *uint32 { return (*uint32)(unsafe.Pointer(&m.bytes[at])) }

func (m *memory) slots(at, n int) []slot {
	return unsafe.Slice((*slot)(unsafe.Pointer(&m.bytes[at])), n)
}
