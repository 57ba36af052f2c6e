package ring

import (
	"unsafe"

	abi "github.com/iceber/iouring-go/syscall"
	"golang.org/x/sys/unix"
)

// What the kernel knows and the ABI package does not name.
const (
	setupSingleIssuer uint32 = 1 << 12
	setupDeferTaskrun uint32 = 1 << 13

	sqTaskrun uint32 = 1 << 2 // completions wait for us to enter the kernel

	featExtArg   uint32 = 1 << 8  // Linux 5.11
	featRsrcTags uint32 = 1 << 10 // Linux 5.13: empty places in a buffer table

	registerBuffersUpdate uint32 = 16

	cancelAll uint32 = 1 << 0
	cancelAny uint32 = 1 << 2 // Linux 5.19

	rwfDsync uint32 = 1 << 1

	opSupported uint16 = 1 << 0 // in a probe's answer
)

// rsrcUpdate is struct io_uring_rsrc_update2.
type rsrcUpdate struct {
	offset uint32
	_      uint32
	data   unsafe.Pointer
	tags   unsafe.Pointer
	nr     uint32
	_      uint32
}

// filesUpdate is struct io_uring_files_update.
type filesUpdate struct {
	offset uint32
	_      uint32
	fds    unsafe.Pointer
}

// probeOp is struct io_uring_probe_op, probeOps struct io_uring_probe with room
// for every operation code.
type probeOp struct {
	op    uint8
	_     uint8
	flags uint16
	_     uint32
}

type probeOps struct {
	lastOp uint8
	opsLen uint8
	_      uint16
	_      [3]uint32
	ops    [256]probeOp
}

// The kernel's sizes and offsets: a wrong one does not compile.
var (
	_ = [1]int{}[unsafe.Sizeof(abi.IOURingParams{})-120]
	_ = [1]int{}[unsafe.Offsetof(abi.IOURingParams{}.Features)-20]
	_ = [1]int{}[unsafe.Offsetof(abi.IOURingParams{}.SQOffset)-40]
	_ = [1]int{}[unsafe.Offsetof(abi.IOURingParams{}.CQOffset)-80]
	_ = [1]int{}[unsafe.Sizeof(abi.SubmissionQueueRingOffset{})-40]
	_ = [1]int{}[unsafe.Offsetof(abi.SubmissionQueueRingOffset{}.Flags)-16]
	_ = [1]int{}[unsafe.Offsetof(abi.SubmissionQueueRingOffset{}.Array)-24]
	_ = [1]int{}[unsafe.Sizeof(abi.CompletionQueueRingOffset{})-40]
	_ = [1]int{}[unsafe.Offsetof(abi.CompletionQueueRingOffset{}.Cqes)-20]
	_ = [1]int{}[unsafe.Sizeof(abi.SubmissionQueueEntry64{})-64]
	_ = [1]int{}[unsafe.Sizeof(abi.CompletionQueueEvent16{})-16]
	_ = [1]int{}[unsafe.Sizeof(rsrcUpdate{})-32]
	_ = [1]int{}[unsafe.Offsetof(rsrcUpdate{}.data)-8]
	_ = [1]int{}[unsafe.Offsetof(rsrcUpdate{}.nr)-24]
	_ = [1]int{}[unsafe.Sizeof(filesUpdate{})-16]
	_ = [1]int{}[unsafe.Sizeof(probeOp{})-8]
	_ = [1]int{}[unsafe.Offsetof(probeOps{}.ops)-16]
)

// addressOf is the one place where a pointer becomes a number for the kernel. The
// number keeps nothing alive: the slot of a request in flight holds the Op, and the
// Op its buffer, until the completion has been taken.
func addressOf[T byte | unix.Iovec](b []T) uint64 {
	return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b))))
}

// entryUser reads what SetUserData wrote; the ABI package has no getter.
func entryUser(e *abi.SubmissionQueueEntry64) uint64 {
	return *(*uint64)(unsafe.Add(unsafe.Pointer(e), 32))
}
