package simdisk

import (
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"syscall"

	"github.com/ringfence/ringfence/segfile/disk"
)

// file is one open file of a view.
type file struct {
	d        *Disk
	n        *node
	readOnly bool
	name     atomic.Pointer[string]
	closed   bool // guarded by the tree's mu
}

// open makes a file of a view. The caller holds mu.
func (d *Disk) open(n *node, name string, readOnly bool) *file {
	f := &file{d: d, n: n, readOnly: readOnly}
	f.name.Store(&name)
	n.users++
	d.files[f] = true
	return f
}

func (f *file) Name() string { return *f.name.Load() }

// do runs one blocking operation under the lock. act gets the verdict of faults
// and power; what it returns is the outcome.
func (f *file) do(ev Event, act func(t *tree, verdict error) (int, error)) (int, error) {
	t := f.d.t
	t.mu.Lock()
	defer t.mu.Unlock()
	ev.Name = f.Name()
	if f.closed {
		return 0, &disk.OpError{Op: string(ev.Action), File: ev.Name, Off: ev.Off, Len: int(ev.Len), Err: disk.ErrClosed}
	}
	n, err := act(t, t.admit(ev))
	if err != nil && err != io.EOF {
		err = &disk.OpError{Op: string(ev.Action), File: ev.Name, Off: ev.Off, Len: int(ev.Len), Err: reported(err)}
		t.record(ev, n, err)
		return n, err
	}
	t.record(ev, n, nil)
	return n, err
}

func (f *file) Size() (size int64, err error) {
	_, err = f.do(Event{Action: Size}, func(_ *tree, verdict error) (int, error) {
		size = f.n.size
		return 0, verdict
	})
	return size, err
}

func (f *file) ReadAt(p []byte, off int64) (int, error) {
	if off < 0 {
		return 0, fmt.Errorf("%w: read of %s at byte %d", disk.ErrInvalid, f.Name(), off)
	}
	return f.do(Event{Action: Read, Off: off, Len: int64(len(p))}, func(t *tree, verdict error) (int, error) {
		n, err := f.n.readVerdict(p, off, verdict)
		if err == nil && n < len(p) {
			err = io.EOF
		}
		return n, err
	})
}

// readVerdict reads, or spoils p as a failed read may.
func (n *node) readVerdict(p []byte, off int64, verdict error) (int, error) {
	got, short := 0, shortError{}
	switch {
	case verdict == nil:
		return n.read(p, off), nil
	case errors.As(verdict, &short):
		got = n.read(p[:min(short.n, len(p))], off)
	}
	for i := range p[got:] {
		p[got+i] = 0xa5
	}
	return got, verdict
}

func (f *file) WriteAt(p []byte, off int64) error {
	if off < 0 || off%blockSize != 0 || len(p)%blockSize != 0 {
		return fmt.Errorf("%w: write of %d bytes at byte %d of %s is not in blocks of %d", disk.ErrInvalid, len(p), off, f.Name(), blockSize)
	}
	if len(p) == 0 {
		return nil
	}
	_, err := f.do(Event{Action: Write, Off: off, Len: int64(len(p)), Durable: true}, func(t *tree, verdict error) (int, error) {
		if f.readOnly {
			return 0, syscall.EBADF
		}
		w := t.newWrite()
		n, err := t.writeVerdict(f.n, w, p, off, verdict)
		t.endWrite(f.n, w, off, int64(len(p)), true, err)
		return n, err
	})
	return err
}

func (t *tree) newWrite() write {
	t.ids++
	return write{id: t.ids}
}

// writeVerdict writes, or what a failed write may leave behind.
func (t *tree) writeVerdict(n *node, w write, p []byte, off int64, verdict error) (int, error) {
	short := shortError{}
	switch {
	case verdict == nil:
		return t.write(n, w, p, off, nil)
	case errors.As(verdict, &short):
		got := min(short.n, len(p))
		t.write(n, w, p, off, prefix(got))
		return got, verdict
	case errors.Is(verdict, ErrPowerCut) && !errors.Is(verdict, errCutNow):
		return 0, verdict
	}
	t.write(n, w, p, off, t.tear)
	return 0, verdict
}

// tear chooses the sectors of a block that a failing write reaches.
func (t *tree) tear() uint8 {
	switch t.rng.IntN(4) {
	case 0:
		return 0
	case 1:
		return allSectors
	}
	return uint8(t.rng.Uint32())
}

// prefix chooses the sectors of the first n bytes, block after block.
func prefix(n int) func() uint8 {
	return func() uint8 {
		whole := min(max(n, 0), blockSize) / sectorSize
		n -= blockSize
		return uint8(1<<whole - 1)
	}
}

func (t *tree) endWrite(n *node, w write, off, length int64, durable bool, err error) {
	if err != nil {
		t.abandon(n, w.id)
	} else {
		t.complete(n, w.id, off, length, durable)
	}
}

// instant is a write that is visible and done at once, and not durable.
func (t *tree) instant() write {
	t.clock++
	w := t.newWrite()
	w.done = t.clock
	return w
}

func (f *file) Allocate(off, n int64) error {
	if off < 0 || n <= 0 {
		return fmt.Errorf("%w: allocation of %d bytes at byte %d of %s", disk.ErrInvalid, n, off, f.Name())
	}
	return f.change(Event{Action: Allocate, Off: off, Len: n}, func(t *tree) error {
		return t.allocate(f.n, t.instant(), off, n)
	})
}

func (f *file) Truncate(size int64) error {
	if size < 0 {
		return fmt.Errorf("%w: truncation of %s to %d bytes", disk.ErrInvalid, f.Name(), size)
	}
	return f.change(Event{Action: Truncate, Off: size}, func(t *tree) error {
		t.truncate(f.n, t.instant(), size)
		return nil
	})
}

// change runs an operation that happens as a whole or not at all.
func (f *file) change(ev Event, act func(t *tree) error) error {
	_, err := f.do(ev, func(t *tree, verdict error) (int, error) {
		if f.readOnly {
			return 0, syscall.EBADF
		}
		if verdict == nil {
			return 0, act(t)
		}
		if errors.Is(verdict, errCutNow) && t.rng.IntN(2) == 0 {
			act(t)
		}
		return 0, verdict
	})
	return err
}

func (f *file) Sync() error {
	_, err := f.do(Event{Action: Sync}, func(t *tree, verdict error) (int, error) {
		return 0, t.syncVerdict(f.n, t.clock, verdict)
	})
	return err
}

// syncVerdict syncs, or what a failed sync may leave behind.
func (t *tree) syncVerdict(n *node, snapshot uint64, verdict error) error {
	if verdict == nil {
		if t.truthful() {
			n.sync(snapshot)
		}
	} else if !errors.Is(verdict, ErrPowerCut) || errors.Is(verdict, errCutNow) {
		n.syncFailed(snapshot, t.rng)
	}
	return verdict
}

func (f *file) Close() error {
	f.d.t.mu.Lock()
	defer f.d.t.mu.Unlock()
	if f.closed {
		return &disk.OpError{Op: "close", File: f.Name(), Err: disk.ErrClosed}
	}
	f.closeLocked()
	return nil
}

func (f *file) closeLocked() {
	f.closed = true
	delete(f.d.files, f)
	f.n.users--
	f.d.t.release(f.n)
}
