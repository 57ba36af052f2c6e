// Package disk is the seam between the engine and the machine's storage.
//
// A [Disk] is one directory tree and the way I/O reaches it. A [File] is one file
// in it, read and written with direct I/O at explicit positions. A [Queue] takes
// many reads, writes and syncs at once and reports each when it is done; the
// append path runs on it, everything else on File's blocking calls. Three
// implementations pass one contract test (package disktest): io_uring, a pool of
// pwritev2 workers with the same guarantees, and a simulated disk for tests
// (package simdisk). [Open] chooses between the first two.
//
// Buffers handed to a Queue come from the disk's [Arena], or from memory that was
// registered with the disk: the kernel uses them after the call has returned, so they
// must not be on Go's heap.
//
// What is durable, and nothing more:
//   - a durable write (File.WriteAt, Op.Durable) makes its own bytes durable, and
//     as much of the file's size as reaches them;
//   - a sync makes those writes to its file durable that were done before it started:
//     never a write still in flight, never another file;
//   - a name is durable after SyncDir of its directory, and only if the names of
//     the directories above it are;
//   - Rename is atomic, but the new name is durable only after SyncDir of its
//     directory. When the old name stood in another directory and must not come
//     back, sync that one too.
//
// A power cut may keep or lose anything else, 512 bytes at a time.
package disk

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"

	"github.com/ringfence/ringfence/segfile/buddy"
)

// Block is the unit of direct I/O: positions and lengths of queue operations are
// multiples of it.
const Block = buddy.Block

// Arena is memory that the kernel may use after a call has returned.
type Arena = buddy.Arena

// MaxDepth is the largest number of operations a Queue keeps in flight.
const MaxDepth = 4096

var (
	ErrFull    = errors.New("disk: queue full")                // reap a completion, then push again
	ErrClosed  = errors.New("disk: closed")                    // the disk, queue or file was closed
	ErrLocked  = errors.New("disk: locked by another process") // stop the other process first
	ErrShort   = errors.New("disk: transfer ended early")      // storage gave less than asked, more than once
	ErrNoSpace = errors.New("disk: no space left")             // the file system or the quota is full: free some
	ErrInvalid = errors.New("disk: invalid operation")         // the caller's mistake: alignment, memory or name
)

// Disk is one directory tree. Names are relative, slash-separated and may not
// leave the tree. All methods are safe for concurrent use and may block. Errors
// of the operating system are *OpErrors: test them with errors.Is against the
// sentinels above, fs.ErrExist, fs.ErrNotExist or a syscall.Errno.
type Disk interface {
	// Create makes a new empty file for reading and writing; it fails with an
	// fs.ErrExist if there is one. The name is durable only after SyncDir.
	Create(name string) (File, error)
	// Open opens an existing file for reading and writing, or only for reading.
	Open(name string, readOnly bool) (File, error)
	// Rename gives a file or directory a new name, atomically; a file that had the
	// new name is replaced. Files opened through this disk follow their new name.
	Rename(from, to string) error
	// Remove takes the name of a file or of an empty directory away.
	Remove(name string) error
	// Mkdir makes a directory whose parent exists; an existing one is no error.
	Mkdir(name string) error
	// SyncDir makes the names in a directory durable. "" is the root.
	SyncDir(name string) error
	// List returns the entries of a directory sorted by name. "" is the root.
	List(dir string) ([]Entry, error)
	// Space tells how many bytes the file system holds and has left for us.
	Space() (total, free uint64, err error)
	// Lock takes the tree for this disk until Close, by a file of that name in
	// the root; ErrLocked if another process or disk has it.
	Lock(name string) error
	// NewQueue makes a queue of at most depth operations in flight (1 to MaxDepth).
	NewQueue(depth int) (Queue, error)
	// Arena is the memory that queue operations use.
	Arena() *Arena
	// Register lets them use other memory, too, which may be shared with another process:
	// in whole blocks, mapped and writable as a whole. What cannot be used so is refused
	// with an error. unregister ends that: it waits until no operation uses the memory
	// and the kernel holds none of its pages; called again it does nothing. It must not
	// be called by a Done.
	Register(mem []byte) (unregister func() error, err error)
	Info() Info
	// Close closes the queues and files that are still open, gives the lock back
	// and frees the arena, unless some of it is still allocated: then that memory
	// stays, and the error says how much.
	Close() error
}

// Entry is one name in a directory.
type Entry struct {
	Name string
	Size int64
	Dir  bool
}

// Info says how this disk does its work, for logs and doctor.
type Info struct {
	Engine     string   // "io_uring", "pool" or "sim"
	Reason     string   // why this engine, or this way, when a better one was wanted; may be empty
	FileSystem string   // "ext4", "xfs", ... of the tree's root
	Direct     bool     // false: the file system refused direct I/O and buffered I/O is used with syncs
	Align      int      // what direct I/O must be aligned to here, at most Block; 0 when not Direct
	HugePages  bool     // the arena lies on 2 MiB pages
	Registered bool     // the arena is registered with the kernel
	Warnings   []string // what an operator should know about this kernel and file system
}

// File is one open file. ReadAt and the blocking writes are safe for concurrent
// use and take memory and positions of any alignment unless they say otherwise.
type File interface {
	// Name is the file's name in the tree; it follows Disk.Rename.
	Name() string
	Size() (int64, error)
	// ReadAt fills p or returns an error; io.EOF with the count at the file's end.
	ReadAt(p []byte, off int64) (int, error)
	// WriteAt writes p, whose length and position are multiples of Block, and
	// returns when it is durable. After an error nothing is known about those bytes.
	WriteAt(p []byte, off int64) error
	// Allocate reserves blocks for [off, off+n) and lets the file grow to cover
	// them; they read as zeros. Where the file system cannot: errors.ErrUnsupported.
	Allocate(off, n int64) error
	Truncate(size int64) error
	// Sync makes everything written to this file durable, and nothing else.
	// After an error nothing is known about any byte that was not durable before,
	// and a later Sync that succeeds proves nothing about them.
	Sync() error
	// Close ends the use of the file. Operations that a queue has taken finish
	// first, in the background; new ones are refused with ErrClosed.
	Close() error
}

// Buffered is a File that can also be read through the system's page cache, which is
// what sendfile does.
type Buffered interface {
	// Buffered opens the file once more, for such reads; the caller closes it. It is for
	// files that nobody writes any more: what is written meanwhile may be seen or not.
	// What was written before is seen, whatever the cache had of an earlier life of the
	// file. errors.ErrUnsupported where that is not known to be so.
	Buffered() (*os.File, error)
}

// Giver is a File whose descriptor can be given to another process, which nobody can make
// let go of it again.
type Giver interface {
	// Give marks the file as given, before anybody gets it. The mark is the file's, under
	// whatever name, and outlives this process, as those may who have the descriptor; it
	// need not outlive a power cut, which none of them does. errors.ErrUnsupported where
	// the file system does not keep it.
	Give() error
	// Given says whether it was. Such a file is never written again for somebody else: who
	// has it open could read that.
	Given() (bool, error)
}

// Kind is what an Op does.
type Kind uint8

const (
	Write Kind = iota // write Buf at Off
	Read              // fill Buf from Off; N < len(Buf) without Err is the end of the file
	Sync              // make the writes of File that were done before its Submit durable
)

func (k Kind) String() string {
	switch k {
	case Write:
		return "write"
	case Read:
		return "read"
	case Sync:
		return "sync"
	}
	return fmt.Sprintf("Kind(%d)", uint8(k))
}

// Op is one operation on a Queue. The caller fills the first group and leaves the
// rest alone from Push until Done runs; the Op may be used again from inside Done.
type Op struct {
	Kind    Kind
	Durable bool // Write: durable when done (a write with RWF_DSYNC)
	File    File
	Buf     []byte // from the disk's Arena, or registered; length a multiple of Block and not zero, except for Sync
	// More is what a Write moves behind Buf: further memory from the disk's Arena, of
	// whole Blocks; with Buf at most MaxPieces.
	More [][]byte
	Off  int64     // a multiple of Block
	Done func(*Op) // runs on the goroutine that called Wait or Close; must not block

	N   int   // bytes moved
	Err error // nil only if all of a Write is done; a storage error is an *OpError

	// Impl belongs to the queue while the operation is in flight.
	Impl Impl
}

// MaxPieces is how many pieces of memory one operation moves at most.
const MaxPieces = 64

// Len is how many bytes op moves.
func (op *Op) Len() int {
	n := len(op.Buf)
	for _, b := range op.More {
		n += len(b)
	}
	return n
}

// Impl is the queue's own state of an operation.
type Impl struct {
	Index uint32
	Tries uint32
	Tag   uint64

	memory *Memory // claimed by Check
}

// Queue moves many operations at once. Push and Submit are called by one
// goroutine at a time, Wait by one at a time; a Wait may run beside a Push or
// Submit. Close runs beside none of them. Operations complete in any order.
type Queue interface {
	// Push adds an operation, which starts with the next Submit; ErrFull if Depth
	// are in flight, ErrInvalid if it breaks a rule of Op. After an error the
	// operation is not taken and Done will not run.
	Push(op *Op) error
	// Submit starts what was pushed. An error means that those operations will
	// complete with that error in Wait; nothing is lost or doubled.
	Submit() error
	// Wait blocks until at least min operations are done (0: only looks), runs
	// their Done and returns how many. It waits only for operations that were
	// submitted, so it returns at once with 0 when there are none.
	Wait(min int) (int, error)
	Depth() int
	// InFlight counts the operations pushed whose Done has not been called.
	InFlight() int
	// Close waits until the kernel holds no buffer any more. Operations that have
	// not completed are reported to their Done.
	Close() error
}

// OpError is a failed operation with its place.
type OpError struct {
	Op   string // "write", "read", "sync", "create", ...
	File string
	Off  int64 // of a transfer
	Len  int   // of a transfer; otherwise 0
	Err  error
}

func (e *OpError) Error() string {
	if e.Len == 0 {
		return fmt.Sprintf("disk: %s %s: %v", e.Op, displayName(e.File), e.Err)
	}
	return fmt.Sprintf("disk: %s %s at byte %d (%d bytes): %v", e.Op, displayName(e.File), e.Off, e.Len, e.Err)
}

func (e *OpError) Unwrap() error { return e.Err }

// Is lets a full file system and an exhausted quota be one thing to callers.
func (e *OpError) Is(target error) bool {
	return target == ErrNoSpace && (errors.Is(e.Err, syscall.ENOSPC) || errors.Is(e.Err, syscall.EDQUOT))
}

func displayName(name string) string {
	if name == "" {
		return "the root directory"
	}
	return name
}

// CheckName refuses names that are not plain relative paths inside the tree. The
// empty name is the root and stands only for a directory.
func CheckName(name string, dir bool) error {
	if name == "" && dir {
		return nil
	}
	if name == "." || !fs.ValidPath(name) {
		return fmt.Errorf("%w: name %q does not stay inside the tree", ErrInvalid, name)
	}
	for i := range len(name) {
		if name[i] == 0 {
			return fmt.Errorf("%w: name %q holds a zero byte", ErrInvalid, name)
		}
	}
	return nil
}

// Check says whether op keeps the rules that every queue shares, given the memory
// it may use, which it claims until Release. It does not look at op.File.
func (op *Op) Check(a *Arena, others *Memories) error {
	switch {
	case op.File == nil || op.Done == nil:
		return fmt.Errorf("%w: a queue operation needs a File and a Done", ErrInvalid)
	case op.Kind == Sync:
		return nil
	case op.Kind > Sync:
		return fmt.Errorf("%w: unknown operation %d", ErrInvalid, op.Kind)
	case op.Off < 0 || op.Off%Block != 0 || len(op.Buf) == 0 || len(op.Buf)%Block != 0:
		return fmt.Errorf("%w: %s of %d bytes at byte %d is not in blocks of %d", ErrInvalid, op.Kind, len(op.Buf), op.Off, Block)
	case len(op.More) > 0:
		return op.checkPieces(a)
	case a.Contains(op.Buf):
		return nil
	}
	if op.Impl.memory = others.Claim(op.Buf); op.Impl.memory == nil {
		return fmt.Errorf("%w: the buffer of a queue operation must be allocated from the disk's arena, or registered with the disk", ErrInvalid)
	}
	return nil
}

// checkPieces is Check for an operation on several pieces of memory.
func (op *Op) checkPieces(a *Arena) error {
	if op.Kind != Write || len(op.More) >= MaxPieces {
		return fmt.Errorf("%w: %s of %d pieces of memory", ErrInvalid, op.Kind, 1+len(op.More))
	}
	for i := range 1 + len(op.More) {
		b := op.Buf
		if i > 0 {
			b = op.More[i-1]
		}
		if len(b) == 0 || len(b)%Block != 0 || !a.Contains(b) {
			return fmt.Errorf("%w: piece %d of a write, %d bytes, is not whole blocks of the disk's arena", ErrInvalid, i, len(b))
		}
	}
	return nil
}
