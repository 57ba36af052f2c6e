package disk

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/ringfence/ringfence/ring"
)

// osDisk is a directory of the operating system. os.Root keeps every name inside
// it, whatever symbolic links lie about.
type osDisk struct {
	dir    string // set by Open, never again, like all of this group
	root   *os.Root
	opts   Options
	calls  calls
	memory *ring.Arena
	arena  *Arena
	info   Info
	align  int // what memory of a direct transfer must be aligned to

	closing  atomic.Bool
	touching sync.WaitGroup

	memories Memories   // of others
	pinning  sync.Mutex // held while memory of others is registered with rings; before mu

	mu      sync.Mutex // guards what follows, and from Open on info and touched; never held across I/O on file contents
	closed  bool
	files   map[*osFile]bool     // not closed
	named   map[string][]*osFile // those of them whose name is still theirs
	alive   int                  // files whose descriptor is open: those, and closed ones with an operation running
	idle    *sync.Cond           // alive went down
	parking                      // which files keep their descriptor
	queues  map[Queue]bool
	rings   [maxRings]*ring.Ring // of open queues, by index
	locks   []*os.File
	touched bool // the arena was
}

// osErr makes an error of the operating system an *OpError. The path in what the
// os package returns would only repeat the name.
func osErr(op, name string, err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, os.ErrClosed) {
		err = ErrClosed
	}
	var path *fs.PathError
	var link *os.LinkError
	var call *os.SyscallError
	switch {
	case errors.As(err, &path):
		err = path.Err
	case errors.As(err, &link):
		err = link.Err
	case errors.As(err, &call):
		err = call.Err
	}
	return &OpError{Op: op, File: name, Err: err}
}

// rooted is the name that os.Root knows a directory by.
func rooted(dir string) string {
	if dir == "" {
		return "."
	}
	return dir
}

func (d *osDisk) Create(name string) (File, error) {
	return d.openFile("create", name, os.O_RDWR|os.O_CREATE|os.O_EXCL, false)
}

func (d *osDisk) Open(name string, readOnly bool) (File, error) {
	if readOnly {
		return d.openFile("open", name, os.O_RDONLY, true)
	}
	return d.openFile("open", name, os.O_RDWR, false)
}

func (d *osDisk) openFile(op, name string, flags int, readOnly bool) (File, error) {
	if err := CheckName(name, false); err != nil {
		return nil, err
	}
	f := &osFile{d: d, readOnly: readOnly}
	if err := f.openHandle(name, flags); err != nil {
		return nil, osErr(op, name, err)
	}
	f.name.Store(&name)
	d.mu.Lock()
	if d.closed {
		d.mu.Unlock()
		f.h.Close()
		return nil, osErr(op, name, ErrClosed)
	}
	d.files[f] = true
	d.named[name] = append(d.named[name], f)
	d.alive++
	if readOnly {
		d.parking.add(f)
	}
	d.mu.Unlock()
	d.park()
	return f, nil
}

var errReplaced = fmt.Errorf("%w: another file has taken its place", ErrInvalid)

// openHandle opens the file under its name. Nobody uses it meanwhile.
func (f *osFile) openHandle(name string, flags int) error {
	flags |= unix.O_NONBLOCK // or opening a pipe waits for its other end
	direct := f.d.info.Direct
	if direct {
		flags |= unix.O_DIRECT
	}
	h, err := f.d.root.OpenFile(name, flags, 0o600)
	if direct && errors.Is(err, syscall.EINVAL) {
		// Another file system is mounted inside the tree. A Create may have made the
		// file before it was refused, so the second try opens what is there.
		direct = false
		h, err = f.d.root.OpenFile(name, flags&^(unix.O_DIRECT|os.O_EXCL), 0o600)
	}
	if err != nil {
		return err
	}
	st, err := regular(h)
	if err == nil && f.stat != nil && !os.SameFile(f.stat, st) {
		err = errReplaced
	}
	if err != nil {
		h.Close()
		return err
	}
	f.h, f.fd, f.direct, f.stat = h, int(h.Fd()), direct, st
	return nil
}

// regular refuses what is no plain file: directories, and the pipes and devices that
// somebody may have put into the tree.
func regular(h *os.File) (os.FileInfo, error) {
	st, err := h.Stat()
	switch {
	case err != nil:
		return nil, err
	case st.IsDir():
		return nil, syscall.EISDIR
	case !st.Mode().IsRegular():
		return nil, fmt.Errorf("%w: not a regular file", ErrInvalid)
	}
	return st, nil
}

func (d *osDisk) Rename(from, to string) error {
	if err := errors.Join(CheckName(from, false), CheckName(to, false)); err != nil {
		return err
	}
	if from != to {
		d.pin(to)
	}
	// Under the lock, so that names and files cannot disagree about the order of two
	// renames.
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.root.Rename(from, to); err != nil {
		return osErr("rename", from, fmt.Errorf("to %s: %w", to, innermost(err)))
	}
	if from == to {
		return nil
	}
	d.unlink(to) // replaced; who still holds it sees the old file
	if moved := d.named[from]; len(moved) > 0 {
		for _, f := range moved {
			f.name.Store(&to)
		}
		d.named[to] = moved
		delete(d.named, from)
		return nil
	}
	if st, err := d.root.Lstat(to); err == nil && st.IsDir() {
		d.moveBelow(from+"/", to+"/")
	}
	return nil
}

// unlink notes that the open files of a name have lost it. mu is held.
func (d *osDisk) unlink(name string) {
	for _, f := range d.named[name] {
		f.unlinked = true
	}
	delete(d.named, name)
}

// moveBelow renames the open files of a directory. mu is held.
func (d *osDisk) moveBelow(from, to string) {
	for name, files := range d.named {
		if rest, ok := strings.CutPrefix(name, from); ok {
			moved := to + rest
			for _, f := range files {
				f.name.Store(&moved)
			}
			delete(d.named, name)
			d.named[moved] = files
		}
	}
}

// forgetFile takes a closed file off the books. mu is held.
func (d *osDisk) forgetFile(f *osFile) {
	delete(d.files, f)
	if f.unlinked {
		return
	}
	name := f.Name()
	if left := slices.DeleteFunc(d.named[name], func(o *osFile) bool { return o == f }); len(left) > 0 {
		d.named[name] = left
	} else {
		delete(d.named, name)
	}
}

func innermost(err error) error {
	for {
		next := errors.Unwrap(err)
		if next == nil {
			return err
		}
		err = next
	}
}

func (d *osDisk) Remove(name string) error {
	if err := CheckName(name, false); err != nil {
		return err
	}
	d.pin(name)
	if err := d.root.Remove(name); err != nil {
		return osErr("remove", name, err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.unlink(name)
	return nil
}

func (d *osDisk) Mkdir(name string) error {
	if err := CheckName(name, false); err != nil {
		return err
	}
	err := d.root.Mkdir(name, 0o700)
	if errors.Is(err, fs.ErrExist) {
		if st, serr := d.root.Stat(name); serr == nil && st.IsDir() {
			return nil
		}
	}
	return osErr("mkdir", name, err)
}

func (d *osDisk) SyncDir(name string) error {
	h, err := d.openDir("sync directory", name)
	if err != nil {
		return err
	}
	err = h.Sync()
	if cerr := h.Close(); err == nil {
		err = cerr
	}
	return osErr("sync directory", name, err)
}

// openDir opens a directory. What is none is refused, not opened.
func (d *osDisk) openDir(op, name string) (*os.File, error) {
	if err := CheckName(name, true); err != nil {
		return nil, err
	}
	h, err := d.root.OpenFile(rooted(name), os.O_RDONLY|unix.O_DIRECTORY, 0)
	return h, osErr(op, name, err)
}

func (d *osDisk) List(dir string) ([]Entry, error) {
	h, err := d.openDir("list", dir)
	if err != nil {
		return nil, err
	}
	defer h.Close()
	var entries []Entry
	for {
		infos, err := h.Readdir(512)
		for _, st := range infos { // names that vanish in between are left out by Readdir
			e := Entry{Name: st.Name(), Dir: st.IsDir()}
			if !e.Dir {
				e.Size = st.Size()
			}
			entries = append(entries, e)
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, osErr("list", dir, err)
		}
	}
	slices.SortFunc(entries, func(a, b Entry) int { return strings.Compare(a.Name, b.Name) })
	return entries, nil
}

func (d *osDisk) Space() (total, free uint64, err error) {
	h, err := d.openDir("space", "")
	if err != nil {
		return 0, 0, err
	}
	defer h.Close()
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(h.Fd()), &st); err != nil {
		return 0, 0, osErr("space", "", err)
	}
	return st.Blocks * uint64(st.Frsize), st.Bavail * uint64(st.Frsize), nil
}

// Lock holds an advisory lock on an open file, which the kernel gives back when
// the process ends in whatever way. The file's content only tells people who has it.
func (d *osDisk) Lock(name string) error {
	if err := CheckName(name, false); err != nil {
		return err
	}
	h, err := d.root.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return osErr("lock", name, err)
	}
	for {
		err = unix.Flock(int(h.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		defer h.Close()
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return osErr("lock", name, err)
		}
		holder := make([]byte, 64)
		n, _ := h.ReadAt(holder, 0)
		return &OpError{Op: "lock", File: name, Err: fmt.Errorf("%w (%s in %s)", ErrLocked, strings.TrimSpace(string(holder[:n])), d.dir)}
	}
	if h.Truncate(0) == nil { // a full disk must not keep the lock from us
		fmt.Fprintf(h, "process %d\n", os.Getpid())
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		h.Close()
		return osErr("lock", name, ErrClosed)
	}
	d.locks = append(d.locks, h)
	return nil
}

func (d *osDisk) Arena() *Arena { return d.arena }

func (d *osDisk) Info() Info {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.info
}

func (d *osDisk) NewQueue(depth int) (Queue, error) {
	if depth < 1 || depth > MaxDepth {
		return nil, fmt.Errorf("%w: a queue of depth %d (1 to %d)", ErrInvalid, depth, MaxDepth)
	}
	d.pinning.Lock()
	defer d.pinning.Unlock()
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, ErrClosed
	}
	var q Queue
	if d.info.Engine == "pool" {
		q = newPoolQueue(d, depth)
	} else {
		u, err := newRingQueue(d, depth)
		if err != nil {
			return nil, err
		}
		q = u
	}
	d.queues[q] = true
	return q, nil
}

func (d *osDisk) Close() error {
	d.mu.Lock()
	if d.closed {
		d.mu.Unlock()
		return ErrClosed
	}
	d.closed = true
	queues, files, locks := d.queues, d.files, d.locks
	d.queues, d.files, d.locks = map[Queue]bool{}, map[*osFile]bool{}, nil
	d.mu.Unlock()
	d.closing.Store(true)
	d.touching.Wait()

	var errs []error
	for q := range queues {
		if err := q.Close(); !errors.Is(err, ErrClosed) {
			errs = append(errs, err)
		}
	}
	for f := range files {
		if err := f.Close(); !errors.Is(err, ErrClosed) {
			errs = append(errs, err)
		}
	}
	d.mu.Lock()
	for d.alive > 0 {
		d.idle.Wait()
	}
	d.mu.Unlock()
	for _, h := range locks {
		errs = append(errs, h.Close())
	}
	errs = append(errs, d.root.Close())
	if n := d.arena.InUse(); n > 0 {
		errs = append(errs, fmt.Errorf("disk: closed with %d bytes of the arena still allocated", n))
	} else {
		errs = append(errs, d.memory.Close())
	}
	return errors.Join(errs...)
}
