package ring

import (
	"errors"
	"syscall"
	"unsafe"

	abi "github.com/iceber/iouring-go/syscall"
	"golang.org/x/sys/unix"
)

// kernel is what a ring asks of the kernel beside the memory they share. Tests put
// a fake one here.
type kernel interface {
	// enter gives the kernel up to submit entries and, with wait > 0 or getEvents,
	// lets it deliver completions; it waits until there are wait of them. It tells
	// how many entries were taken.
	enter(submit, wait uint32, getEvents bool) (uint32, syscall.Errno)
	register(op uint32, arg unsafe.Pointer, n uint32) syscall.Errno
	close()
}

// linux is the real one.
type linux struct {
	fd      int
	rawWait bool
	queues  []byte // submission and completion ring
	entries []byte // submission entries
}

// A call that does not wait uses RawSyscall: it is short, and telling the scheduler
// would cost more than it takes. One that waits gives its processor away, unless
// the caller has processors to spare.
func (k *linux) enter(submit, wait uint32, getEvents bool) (uint32, syscall.Errno) {
	var flags uint32
	if getEvents || wait > 0 {
		flags = abi.IORING_ENTER_FLAGS_GETEVENTS
	}
	call := syscall.RawSyscall6
	if wait > 0 && !k.rawWait {
		call = syscall.Syscall6
	}
	n, _, errno := call(abi.SYS_IO_URING_ENTER, uintptr(k.fd), uintptr(submit), uintptr(wait), uintptr(flags), 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return uint32(n), 0
}

func (k *linux) register(op uint32, arg unsafe.Pointer, n uint32) syscall.Errno {
	for {
		_, _, errno := syscall.Syscall6(abi.SYS_IO_URING_REGISTER, uintptr(k.fd), uintptr(op), uintptr(arg), uintptr(n), 0, 0)
		if errno != syscall.EINTR {
			return errno
		}
	}
}

func (k *linux) close() {
	if k.entries != nil {
		unix.Munmap(k.entries)
	}
	if k.queues != nil {
		unix.Munmap(k.queues)
	}
	unix.Close(k.fd)
}

func setup(entries uint32, p *abi.IOURingParams) (int, syscall.Errno) {
	fd, _, errno := syscall.RawSyscall(abi.SYS_IO_URING_SETUP, uintptr(entries), uintptr(unsafe.Pointer(p)), 0)
	return int(fd), errno
}

// openLinux makes a kernel ring and maps its queues.
func openLinux(entries uint32, p *abi.IOURingParams, o Options) (kernel, submissions, completions, error) {
	fd, errno := setup(entries, p)
	if errno != 0 {
		return nil, submissions{}, completions{}, &SetupError{Step: stepSetup, Errno: errno}
	}
	k := &linux{fd: fd, rawWait: o.RawWait}
	if why := unfit(kernelRelease(), p.Features); why != "" {
		k.close()
		return nil, submissions{}, completions{}, &SetupError{Step: stepFeatures, Errno: syscall.ENOSYS, Hint: why}
	}
	size := max(uint64(p.SQOffset.Array)+uint64(p.SQEntries)*4, uint64(p.CQOffset.Cqes)+uint64(p.CQEntries)*16)
	var err error
	if k.queues, err = mapQueue(fd, abi.IORING_OFF_SQ_RING, size); err == nil {
		k.entries, err = mapQueue(fd, abi.IORING_OFF_SQES, uint64(p.SQEntries)*64)
	}
	if err != nil {
		k.close()
		var errno syscall.Errno
		errors.As(err, &errno)
		return nil, submissions{}, completions{}, &SetupError{Step: stepMap, Errno: errno}
	}
	word := func(off uint32) *uint32 { return (*uint32)(unsafe.Pointer(&k.queues[off])) }
	sq := submissions{
		head: word(p.SQOffset.Head), tail: word(p.SQOffset.Tail), flags: word(p.SQOffset.Flags),
		mask:    *word(p.SQOffset.RingMask),
		entries: unsafe.Slice((*abi.SubmissionQueueEntry64)(unsafe.Pointer(&k.entries[0])), p.SQEntries),
	}
	// Position i always uses entry i: the indirection is filled once and forgotten.
	for i := range p.SQEntries {
		*word(p.SQOffset.Array + 4*i) = i
	}
	cq := completions{
		head: word(p.CQOffset.Head), tail: word(p.CQOffset.Tail),
		mask:    *word(p.CQOffset.RingMask),
		entries: unsafe.Slice((*abi.CompletionQueueEvent16)(unsafe.Pointer(&k.queues[p.CQOffset.Cqes])), p.CQEntries),
	}
	return k, sq, cq, nil
}

// mapQueue maps a part of the ring, which a forked child shall not inherit.
func mapQueue(fd int, off, size uint64) ([]byte, error) {
	b, err := unix.Mmap(fd, int64(off), int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE)
	if err == nil {
		err = unix.Madvise(b, unix.MADV_DONTFORK)
	}
	return b, err
}
