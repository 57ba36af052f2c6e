// Package disk is the seam between the engine and the machine's storage.
//
// A [Disk] is one directory tree and the way I/O reaches it. A [File] is one file
// in it, read and written with direct I/O at explicit positions. A [Queue] takes
// many reads, writes and syncs at once and reports each when it is done; the
// append path runs on it, everything else on File's blocking calls. Three
// implementations pass one contract test (package disktest): io_uring, a pool of
// pwritev2 workers with the same guarantees, and a simulated disk for tests
// (package simdisk).
//
// Buffers handed to a Queue come from the disk's [Arena], because the kernel uses
// them after the call returned and Go's heap may not lend them.
package disk

import (
	"errors"
	"fmt"
)

// Block is the unit of direct I/O: positions and lengths of queue operations are
// multiples of it.
const Block = 4096

var (
	ErrFull   = errors.New("disk: queue full")                 // reap a completion, then push again
	ErrClosed = errors.New("disk: closed")                     // the disk, queue or file was closed
	ErrLocked = errors.New("disk: locked by another process")  // stop the other process first
	ErrShort  = errors.New("disk: transfer ended early")       // storage gave less than asked, more than once
)

// Disk is one directory tree. Names are relative, slash-separated and may not
// leave the tree. All methods are safe for concurrent use and may block.
type Disk interface {
	// Create makes a new empty file for reading and writing; it fails with an
	// fs.ErrExist if there is one. The name is durable only after SyncDir.
	Create(name string) (File, error)
	// Open opens an existing file for reading and writing, or only for reading.
	Open(name string, readOnly bool) (File, error)
	Rename(from, to string) error
	Remove(name string) error
	// Mkdir makes a directory whose parent exists; an existing one is no error.
	Mkdir(name string) error
	// SyncDir makes the names in a directory durable. "" is the root.
	SyncDir(name string) error
	// List returns the entries of a directory sorted by name.
	List(dir string) ([]Entry, error)
	// Space tells how many bytes the file system holds and has left for us.
	Space() (total, free uint64, err error)
	// Lock takes the tree for this process until Close; ErrLocked if it is taken.
	Lock(name string) error
	// NewQueue makes a queue of at most depth operations in flight.
	NewQueue(depth int) (Queue, error)
	// Arena is the memory that queue operations use.
	Arena() *Arena
	Info() Info
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
	Engine     string // "io_uring", "pool" or "sim"
	Reason     string // why this engine, when another was wanted
	Direct     bool   // false: the file system refused direct I/O and buffered I/O is used with syncs
	HugePages  bool   // the arena lies on 2 MiB pages
	Registered bool   // the arena is registered with the kernel
}

// File is one open file. ReadAt and the blocking writes are safe for concurrent
// use and take memory and positions of any alignment unless they say otherwise.
type File interface {
	Name() string
	Size() (int64, error)
	// ReadAt fills p or returns an error; io.EOF with the count at the file's end.
	ReadAt(p []byte, off int64) (int, error)
	// WriteAt writes p, whose length and position are multiples of Block, and
	// returns when it is durable. After an error nothing is known about those bytes.
	WriteAt(p []byte, off int64) error
	// Allocate reserves blocks for [off, off+n) and lets the file grow to cover them.
	Allocate(off, n int64) error
	Truncate(size int64) error
	// Sync makes everything written to this file durable, and nothing else.
	Sync() error
	Close() error
}

// Kind is what an Op does.
type Kind uint8

const (
	Write Kind = iota // write Buf at Off
	Read              // fill Buf from Off; N < len(Buf) without Err is the end of the file
	Sync              // make all completed writes of File durable
)

// Op is one operation on a Queue. The caller fills the first group and leaves the
// rest alone from Push until Done runs; the Op may be used again from inside Done.
type Op struct {
	Kind    Kind
	Durable bool // Write: durable when done (a write with RWF_DSYNC)
	File    File
	Buf     []byte // from the disk's Arena; length a multiple of Block, except a Read's at a file's end
	Off     int64
	Done    func(*Op) // runs on the goroutine that called Wait; must not block

	N   int   // bytes moved
	Err error // nil only if all of a Write is done; a storage error is an *OpError

	// Impl belongs to the queue while the operation is in flight.
	Impl Impl
}

// Impl is the queue's own state of an operation.
type Impl struct {
	Index uint32
	Tries uint32
	Tag   uint64
}

// Queue moves many operations at once. Push and Submit are called by one
// goroutine at a time, Wait by one at a time; a Wait may run beside a Push or
// Submit. Operations complete in any order.
type Queue interface {
	// Push adds an operation, which starts with the next Submit; ErrFull if Depth are in flight.
	Push(op *Op) error
	// Submit starts what was pushed. An error means that those operations will
	// complete with that error in Wait; nothing is lost or doubled.
	Submit() error
	// Wait blocks until at least min operations are done (0: only looks), runs
	// their Done and returns how many. It returns at once with 0 when nothing is
	// in flight.
	Wait(min int) (int, error)
	Depth() int
	InFlight() int
	// Close waits until the kernel holds no buffer any more. Operations that have
	// not completed are reported to their Done.
	Close() error
}

// OpError is a failed operation with its place.
type OpError struct {
	Op   string // "write", "read", "sync"
	File string
	Off  int64
	Len  int
	Err  error
}

func (e *OpError) Error() string {
	return fmt.Sprintf("disk: %s %s at byte %d (%d bytes): %v", e.Op, e.File, e.Off, e.Len, e.Err)
}

func (e *OpError) Unwrap() error { return e.Err }
