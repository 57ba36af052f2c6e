package disk

import (
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/ringfence/ringfence/ring"
)

// maxRings is how many queues of a disk at once can keep a file in their table of
// registered files; those beyond use the plain descriptor.
const maxRings = 8

// place is a file's slot in the table of a ring; a negative slot means that there
// was no room.
type place struct {
	r    *ring.Ring
	slot int
}

// osFile is one open file. It stays open until its last operation has ended, so
// that no late write can meet another file under the same descriptor or slot. One
// that is only read may be parked: then it has no descriptor, until it is used again.
type osFile struct {
	d        *osDisk // set when opened, never again, like readOnly
	readOnly bool

	// Set when it is opened, also again; stable while an operation runs.
	h      *os.File // nil while parked
	fd     int
	direct bool
	stat   os.FileInfo // which file it is

	name     atomic.Pointer[string]
	unlinked bool // guarded by d.mu: its name is gone or another file's

	state  atomic.Int64                    // operations running, and the bits below
	places [maxRings]atomic.Pointer[place] // by ringQueue.index

	moving sync.Mutex  // held while it is parked, taken back or let go; d.mu comes after it
	used   atomic.Bool // since it was last thought of parking it
	pinned bool        // guarded by d.mu: not parked any more
	listed bool        // guarded by d.mu: has its descriptor and may be parked
}

const (
	stateClosed = int64(1) << 62
	stateParked = int64(1) << 61
)

// acquire keeps the file open until release. ErrClosed when it is closed.
func (f *osFile) acquire() error {
	for {
		s := f.state.Load()
		switch {
		case s&stateClosed != 0:
			return ErrClosed
		case s&stateParked != 0:
			if err := f.unpark(); err != nil {
				return err
			}
		case f.state.CompareAndSwap(s, s+1):
			if f.readOnly && !f.used.Load() {
				f.used.Store(true)
			}
			return nil
		}
	}
}

// release ends an operation. The last one of a closed file lets it go, elsewhere:
// the last close of an unlinked file may take a second.
func (f *osFile) release() {
	if f.state.Add(-1) == stateClosed {
		go func() { _ = f.letGo() }()
	}
}

func (f *osFile) Close() error {
	for {
		s := f.state.Load()
		if s&stateClosed != 0 {
			return osErr("close", f.Name(), ErrClosed)
		}
		if !f.state.CompareAndSwap(s, s|stateClosed) {
			continue
		}
		f.d.mu.Lock()
		f.d.forgetFile(f)
		f.d.mu.Unlock()
		if s&^stateParked != 0 {
			return nil // release will
		}
		return osErr("close", f.Name(), f.letGo())
	}
}

func (f *osFile) letGo() error {
	f.moving.Lock()
	err := f.closeHandle()
	f.moving.Unlock()
	f.d.mu.Lock()
	f.d.drop(f)
	f.d.alive--
	f.d.idle.Broadcast()
	f.d.mu.Unlock()
	return err
}

// closeHandle gives the descriptor back, if there is one. moving is held, and no
// operation runs.
func (f *osFile) closeHandle() error {
	if f.h == nil {
		return nil
	}
	for i := range f.places {
		if p := f.places[i].Load(); p != nil && p.slot >= 0 {
			_ = p.r.UnregisterFile(p.slot) // fails only when the ring is closed, which empties its table
		}
		f.places[i].Store(nil)
	}
	err := f.h.Close()
	f.h = nil
	return err
}

func (f *osFile) Name() string { return *f.name.Load() }

func (f *osFile) fail(op string, off int64, n int, err error) error {
	return &OpError{Op: op, File: f.Name(), Off: off, Len: n, Err: err}
}

func (f *osFile) Size() (int64, error) {
	if err := f.acquire(); err != nil {
		return 0, f.fail("size", 0, 0, err)
	}
	defer f.release()
	var st unix.Stat_t
	if err := unix.Fstat(f.fd, &st); err != nil {
		return 0, f.fail("size", 0, 0, err)
	}
	return st.Size, nil
}

// Buffered opens the file for reads through the page cache. A direct write drops the
// pages it makes old, also from under a socket that is still sending them, so these
// never change; a file system that would write into them is not for this.
func (f *osFile) Buffered() (*os.File, error) {
	if err := f.acquire(); err != nil {
		return nil, f.fail("open for buffered reads", 0, 0, err)
	}
	defer f.release()
	if !f.direct || !dropsPages(f.fd) {
		return nil, f.fail("open for buffered reads", 0, 0, errors.ErrUnsupported)
	}
	h, err := f.d.root.OpenFile(f.Name(), os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, osErr("open for buffered reads", f.Name(), err)
	}
	if err := f.same(h); err != nil {
		h.Close()
		return nil, osErr("open for buffered reads", f.Name(), err)
	}
	return h, nil
}

// The mark of a file that was given is a bit of its mode that means nothing else for
// files: whoever may write the directory keeps it there, and every file system that has
// modes has it.
const given = unix.S_ISVTX

// Give sets the mark, and looks whether it is there.
func (f *osFile) Give() error {
	was, err := f.Given()
	if was || err != nil {
		return err
	}
	var st unix.Stat_t
	err = f.call("mark as given", func() error {
		if err := unix.Fstat(f.fd, &st); err != nil {
			return err
		}
		return unix.Fchmod(f.fd, st.Mode&0o7777|given)
	})
	if err != nil {
		return err
	}
	if is, err := f.Given(); is || err != nil {
		return err
	}
	return f.fail("mark as given", 0, 0, errors.ErrUnsupported)
}

// Given looks for the mark.
func (f *osFile) Given() (bool, error) {
	var st unix.Stat_t
	err := f.call("look for a mark", func() error { return unix.Fstat(f.fd, &st) })
	return st.Mode&given != 0, err
}

// same refuses a handle that is not of this file.
func (f *osFile) same(h *os.File) error {
	st, err := regular(h)
	if err == nil && !os.SameFile(f.stat, st) {
		err = errReplaced
	}
	return err
}

// bounce is memory that direct I/O accepts, for callers whose memory it does not.
// A blocking call may use the heap: the kernel is done with it when it returns.
type bounce struct{ b []byte }

const bounceSize = 256 << 10

var bounces = sync.Pool{New: func() any {
	b := make([]byte, bounceSize+Block)
	skip := int(-address(b) % Block)
	return &bounce{b[skip : skip+bounceSize]}
}}

// fits says whether a transfer can go straight to the caller's memory.
func (f *osFile) fits(p []byte, off int64) bool {
	return !f.direct || off%Block == 0 && len(p)%Block == 0 && address(p)%uintptr(f.d.align) == 0
}

func (f *osFile) ReadAt(p []byte, off int64) (int, error) {
	if off < 0 {
		return 0, fmt.Errorf("%w: read of %s at byte %d", ErrInvalid, f.Name(), off)
	}
	if err := f.acquire(); err != nil {
		return 0, f.fail("read", off, len(p), err)
	}
	defer f.release()
	if len(p) == 0 {
		return 0, nil
	}
	read := f.readAround
	if f.fits(p, off) {
		read = f.readFull
	}
	n, err := read(p, off)
	switch {
	case err != nil:
		return n, f.fail("read", off, len(p), err)
	case n < len(p):
		return n, io.EOF
	}
	return n, nil
}

// readAround reads whole blocks and copies what is wanted of them.
func (f *osFile) readAround(p []byte, off int64) (int, error) {
	b := bounces.Get().(*bounce)
	defer bounces.Put(b)
	done := 0
	for done < len(p) {
		at := off + int64(done)
		skip := int(at % Block)
		span := min((skip+len(p)-done+Block-1)/Block*Block, bounceSize)
		n, err := f.readFull(b.b[:span], at-int64(skip))
		if n > skip {
			done += copy(p[done:], b.b[skip:n])
		}
		if err != nil || n < span {
			return done, err
		}
	}
	return done, nil
}

func (f *osFile) WriteAt(p []byte, off int64) error {
	if off < 0 || off%Block != 0 || len(p)%Block != 0 {
		return fmt.Errorf("%w: write of %d bytes at byte %d of %s is not in blocks of %d", ErrInvalid, len(p), off, f.Name(), Block)
	}
	if err := f.acquire(); err != nil {
		return f.fail("write", off, len(p), err)
	}
	defer f.release()
	if f.fits(p, off) {
		if _, err := f.writeFull(p, off, true); err != nil {
			return f.fail("write", off, len(p), err)
		}
		return nil
	}
	b := bounces.Get().(*bounce)
	defer bounces.Put(b)
	for done := 0; done < len(p); {
		n := copy(b.b, p[done:])
		if _, err := f.writeFull(b.b[:n], off+int64(done), true); err != nil {
			return f.fail("write", off, len(p), err)
		}
		done += n
	}
	return nil
}

func (f *osFile) Allocate(off, n int64) error {
	if off < 0 || n <= 0 {
		return fmt.Errorf("%w: allocation of %d bytes at byte %d of %s", ErrInvalid, n, off, f.Name())
	}
	return f.call("allocate", func() error { return unix.Fallocate(f.fd, 0, off, n) })
}

func (f *osFile) Truncate(size int64) error {
	if size < 0 {
		return fmt.Errorf("%w: truncation of %s to %d bytes", ErrInvalid, f.Name(), size)
	}
	return f.call("truncate", func() error { return unix.Ftruncate(f.fd, size) })
}

func (f *osFile) Sync() error {
	return f.call("sync", func() error { return f.d.calls.fdatasync(f.fd) })
}

// call runs a system call on the file again while signals interrupt it.
func (f *osFile) call(op string, do func() error) error {
	if err := f.acquire(); err != nil {
		return f.fail(op, 0, 0, err)
	}
	defer f.release()
	for range maxTries {
		err := do()
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return f.fail(op, 0, 0, err)
		}
		return nil
	}
	return f.fail(op, 0, 0, unix.EINTR)
}

// address is where b starts, 0 for no memory. Neither mapped memory nor Go's heap
// moves, so the number stays true while b is reachable; it is never turned back
// into a pointer.
func address(b []byte) uintptr {
	if cap(b) == 0 {
		return 0
	}
	return reflect.ValueOf(&b[:1][0]).Pointer() // a pointer goes into an interface without an allocation
}
