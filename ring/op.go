package ring

import (
	"fmt"
	"math"

	abi "github.com/iceber/iouring-go/syscall"
	"golang.org/x/sys/unix"
)

// Code says what an Op does.
type Code uint8

const (
	Nop      Code = iota // completes, nothing else
	Write                // Buf to FD at Off
	Read                 // FD at Off to Buf; Res < len(Buf) without Err is the end of the file
	Sync                 // make completed writes of FD durable
	Allocate             // fallocate Size bytes of FD at Off with Mode
	codes
)

func (c Code) String() string {
	if c < codes {
		return [...]string{"nop", "write", "read", "sync", "allocate"}[c]
	}
	return fmt.Sprintf("code %d", uint8(c))
}

// The kernel's operation for each Code, without and with a registered buffer.
var opcode = [codes][2]uint8{
	Nop:      {abi.IORING_OP_NOP, abi.IORING_OP_NOP},
	Write:    {abi.IORING_OP_WRITE, abi.IORING_OP_WRITE_FIXED},
	Read:     {abi.IORING_OP_READ, abi.IORING_OP_READ_FIXED},
	Sync:     {abi.IORING_OP_FSYNC, abi.IORING_OP_FSYNC},
	Allocate: {abi.IORING_OP_FALLOCATE, abi.IORING_OP_FALLOCATE},
}

// Flags change what an Op does.
type Flags uint8

const (
	FixedFile Flags = 1 << iota // FD is a slot from RegisterFile
	DSync                       // Write: durable when done (RWF_DSYNC)
	Datasync                    // Sync: fdatasync instead of fsync
)

// MaxPieces is how many pieces of memory a Write moves at most.
const MaxPieces = 64

// maxTransfer is what Linux moves in one call at most.
const maxTransfer = math.MaxInt32 &^ (blockSize - 1)

// Op is one request. The caller owns it, fills the first group and leaves all of it
// alone from Push until Done runs; inside Done it may be pushed again. Its buffer
// belongs to the kernel for as long.
type Op struct {
	Code  Code
	Flags Flags
	Mode  uint32 // Allocate: the fallocate mode
	FD    int
	Buf   []byte // never Go heap: memory of an Arena or another mapping
	// More is what a Write moves behind Buf, in pieces of whole blocks, at most
	// MaxPieces with Buf. The array itself may be of Go's heap.
	More [][]byte
	Off  int64
	Size int64     // Allocate
	Tag  uint64    // the caller's own
	Done func(*Op) // runs in Wait (or Close), on its goroutine; nil is allowed

	Res int32 // bytes moved
	Err error // nil only if everything asked was done

	pushed bool // from Push to Done: a second Push is a bug worth a panic
}

// check refuses what the kernel would misunderstand.
func (op *Op) check() error {
	switch {
	case op.pushed:
		panic("ring: Op pushed again while it is in flight")
	case op.Code >= codes:
		return fmt.Errorf("%w: %v", ErrInvalid, op.Code)
	case op.Code == Nop:
		return nil
	case op.FD < 0 || op.FD > math.MaxInt32:
		return fmt.Errorf("%w: %v of file %d", ErrInvalid, op.Code, op.FD)
	case (op.Code == Write || op.Code == Read) && (len(op.Buf) == 0 || op.length() > maxTransfer || op.Off < 0):
		return fmt.Errorf("%w: %v of %d bytes at %d", ErrInvalid, op.Code, op.length(), op.Off)
	case len(op.More) > 0 && (op.Code != Write || len(op.More) >= MaxPieces || !op.inBlocks()):
		return fmt.Errorf("%w: %v of %d pieces of memory", ErrInvalid, op.Code, 1+len(op.More))
	case op.Code == Allocate && (op.Size <= 0 || op.Off < 0):
		return fmt.Errorf("%w: allocate %d bytes at %d", ErrInvalid, op.Size, op.Off)
	}
	return nil
}

// length is the bytes of a transfer.
func (op *Op) length() int {
	n := len(op.Buf)
	for _, b := range op.More {
		n += len(b)
	}
	return n
}

// inBlocks says whether all pieces of a Write are whole blocks.
func (op *Op) inBlocks() bool {
	for _, b := range op.More {
		if len(b) == 0 || len(b)%blockSize != 0 {
			return false
		}
	}
	return len(op.Buf)%blockSize == 0
}

// pieces lists what is left to write of several pieces. The kernel copies the list
// when it takes the entry; until then, and no longer, the slot must not change it.
func (s *slot) pieces() []unix.Iovec {
	s.vector = s.vector[:0]
	skip := int(s.moved)
	for i := range 1 + len(s.op.More) {
		b := s.op.Buf
		if i > 0 {
			b = s.op.More[i-1]
		}
		if skip >= len(b) {
			skip -= len(b)
			continue
		}
		v := unix.Iovec{Base: &b[skip]}
		v.SetLen(len(b) - skip)
		s.vector = append(s.vector, v)
		skip = 0
	}
	return s.vector
}

// encode fills a submission entry with what is left to do of the slot's request.
func (s *slot) encode(e *abi.SubmissionQueueEntry64, user uint64, linked bool) {
	op, fixed := s.op, 0
	if s.buffer >= 0 {
		fixed = 1
	}
	e.Reset()
	switch op.Code {
	case Write, Read:
		if len(op.More) > 0 {
			v := s.pieces()
			e.PrepOperation(abi.IORING_OP_WRITEV, int32(op.FD), addressOf(v), uint32(len(v)), uint64(op.Off)+uint64(s.moved))
			if op.Flags&DSync != 0 {
				e.SetOpFlags(rwfDsync)
			}
			break
		}
		rest := op.Buf[s.moved:]
		e.PrepOperation(opcode[op.Code][fixed], int32(op.FD), addressOf(rest), uint32(len(rest)), uint64(op.Off)+uint64(s.moved))
		if fixed == 1 {
			e.SetBufIndex(uint16(s.buffer))
		}
		if op.Code == Write && op.Flags&DSync != 0 {
			e.SetOpFlags(rwfDsync)
		}
	case Sync:
		e.PrepOperation(abi.IORING_OP_FSYNC, int32(op.FD), 0, 0, 0)
		if op.Flags&Datasync != 0 {
			e.SetOpFlags(abi.IORING_FSYNC_DATASYNC)
		}
	case Allocate:
		e.PrepOperation(abi.IORING_OP_FALLOCATE, int32(op.FD), uint64(op.Size), op.Mode, uint64(op.Off))
	default:
		e.PrepOperation(abi.IORING_OP_NOP, -1, 0, 0, 0)
	}
	var flags uint8
	if op.Flags&FixedFile != 0 && op.Code != Nop {
		flags |= abi.IOSQE_FLAGS_FIXED_FILE
	}
	if linked {
		flags |= abi.IOSQE_FLAGS_IO_LINK
	}
	if s.tries > 1 {
		// The easy way was refused twice: a kernel worker may block instead of us.
		flags |= abi.IOSQE_FLAGS_ASYNC
	}
	e.SetFlags(flags)
	e.SetUserData(user)
}
