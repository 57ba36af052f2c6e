package ring

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

const hugePage = 2 << 20

const (
	madvPopulateWrite = 23 // Linux 5.14
	madvCollapse      = 25 // Linux 6.1
)

// Arena is memory for requests outside the Go heap, starting on a 2 MiB boundary. On
// 2 MiB pages a large transfer has a few long pieces instead of hundreds of short
// ones, which is worth a factor of two to three.
type Arena struct {
	mem     []byte
	huge    bool
	touched bool
}

// NewArena maps size bytes, rounded up to 2 MiB, and touches them all, so that no
// request meets a page that is not there. It takes reserved huge pages where the
// host has enough, asks for transparent ones otherwise, and lives with 4 KiB pages
// where it gets neither. A forked child does not inherit it.
func NewArena(size int) (*Arena, error) {
	a, err := MapArena(size)
	if err != nil {
		return nil, err
	}
	if err := a.Touch(func() bool { return false }); err != nil {
		return nil, errors.Join(err, a.Close())
	}
	return a, nil
}

// MapArena is NewArena for those who cannot wait: memory that the host has to find
// first takes some tenths of a second for each GiB, or seconds. Until Touch has come
// through, pages are found when they are used.
func MapArena(size int) (*Arena, error) {
	if size <= 0 {
		return nil, fmt.Errorf("%w: arena of %d bytes", ErrInvalid, size)
	}
	size = (size + hugePage - 1) &^ (hugePage - 1)
	a := &Arena{mem: mapReserved(size), huge: true, touched: true}
	if a.mem == nil {
		mem, err := mapAligned(size)
		if err != nil {
			return nil, fmt.Errorf("ring: map an arena of %d MiB: %w", size>>20, err)
		}
		unix.Madvise(mem, unix.MADV_HUGEPAGE) // lets the first touch take them
		*a = Arena{mem: mem}
		if unix.Madvise(mem[:hugePage], madvPopulateWrite) != nil {
			a.touchNow() // an older kernel: later it would mean to write what others use
		}
	}
	mem := a.mem
	if err := errors.Join(unix.Madvise(mem, unix.MADV_DONTFORK), unix.Madvise(mem, unix.MADV_DONTDUMP)); err != nil {
		_ = unmap(mem)
		return nil, fmt.Errorf("ring: advise an arena of %d MiB: %w", size>>20, err)
	}
	return a, nil
}

// Touched tells whether all pages are there.
func (a *Arena) Touched() bool { return a.touched }

// Touch has every page found, unless stop says to give up, which it asks often. It
// may run while the memory is used, and is called once.
func (a *Arena) Touch(stop func() bool) error {
	if a.touched {
		return nil
	}
	for at := 0; at < len(a.mem); at += hugePage {
		if stop() {
			return nil
		}
		err := unix.Madvise(a.mem[at:at+hugePage], madvPopulateWrite)
		for tries := 0; tries < 16 && (errors.Is(err, syscall.EINTR) || errors.Is(err, syscall.EAGAIN)); tries++ {
			err = unix.Madvise(a.mem[at:at+hugePage], madvPopulateWrite)
		}
		if err != nil {
			return fmt.Errorf("ring: touch an arena of %d MiB: %w", len(a.mem)>>20, err)
		}
	}
	a.huge, a.touched = collapse(a.mem), true
	return nil
}

// touchNow is Touch for memory that nobody uses yet.
func (a *Arena) touchNow() {
	for i := 0; i < len(a.mem); i += 4096 {
		a.mem[i] = 0
	}
	a.huge, a.touched = collapse(a.mem), true
}

// Bytes is all of the memory.
func (a *Arena) Bytes() []byte { return a.mem }

// HugePages tells whether all of it lies on 2 MiB pages, as far as it was touched.
func (a *Arena) HugePages() bool { return a.huge }

// Close gives the memory back. Nothing may use it any more: no request, no ring it
// is registered with, no slice of Bytes.
func (a *Arena) Close() error {
	if a.mem == nil {
		return nil
	}
	err := unmap(a.mem)
	a.mem = nil
	return err
}

// mapReserved takes pages of the host's hugetlb pool, all of them or none.
func mapReserved(size int) []byte {
	p, err := unix.MmapPtr(-1, 0, nil, uintptr(size), unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_HUGETLB|unix.MAP_HUGE_2MB|unix.MAP_POPULATE)
	if err != nil {
		return nil
	}
	return unsafe.Slice((*byte)(p), size)
}

// mapAligned maps more than asked and cuts off what is not aligned.
func mapAligned(size int) ([]byte, error) {
	p, err := unix.MmapPtr(-1, 0, nil, uintptr(size+hugePage), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, err
	}
	front := -uintptr(p) & (hugePage - 1)
	if front > 0 {
		err = unix.MunmapPtr(p, front)
	}
	start := unsafe.Add(p, front)
	err = errors.Join(err, unix.MunmapPtr(unsafe.Add(start, size), hugePage-front))
	return unsafe.Slice((*byte)(start), size), err
}

func unmap(mem []byte) error {
	return unix.MunmapPtr(unsafe.Pointer(unsafe.SliceData(mem)), uintptr(len(mem)))
}

// collapse puts those pages of mem together that did not get 2 MiB at once, and tells
// whether all are.
func collapse(mem []byte) bool {
	err := unix.Madvise(mem, madvCollapse)
	if errors.Is(err, syscall.EINVAL) {
		return onHugePages(mem) // an older kernel: see what the touch got
	}
	return err == nil || onHugePages(mem) // what is in use cannot be moved, and need not be
}

// onHugePages asks the kernel whether the mapping that holds mem is all on them.
func onHugePages(mem []byte) bool {
	var kib uint64
	about, length := mappingOf(mem)
	_, after, ok := strings.Cut(about, "\nAnonHugePages:")
	fmt.Sscan(after, &kib)
	return ok && kib<<10 == length
}

// mappingOf returns what the kernel says about the mapping that holds mem, which may
// be larger, and how long it is.
func mappingOf(mem []byte) (about string, length uint64) {
	maps, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		return "", 0
	}
	var b strings.Builder
	for line := range strings.Lines(string(maps)) {
		var start, end uint64
		if n, _ := fmt.Sscanf(line, "%x-%x ", &start, &end); n == 2 {
			if length > 0 {
				break
			}
			if at := addressOf(mem); start <= at && at < end {
				length = end - start
			}
		}
		if length > 0 {
			b.WriteString(line)
		}
	}
	return b.String(), length
}
