package disk

import (
	"errors"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// calls are the system calls that move a file's bytes. Tests put others here.
type calls interface {
	pread(fd int, p []byte, off int64) (int, error)
	// pwrite with durable set is durable when it returns, or fails with EOPNOTSUPP.
	pwrite(fd int, p []byte, off int64, durable bool) (int, error)
	fdatasync(fd int) error
}

// linuxCalls are the real ones.
type linuxCalls struct{ noDsync atomic.Bool }

func (c *linuxCalls) pread(fd int, p []byte, off int64) (int, error) {
	return unix.Pread(fd, p, off)
}

func (c *linuxCalls) pwrite(fd int, p []byte, off int64, durable bool) (int, error) {
	if !durable {
		return unix.Pwrite(fd, p, off)
	}
	if c.noDsync.Load() {
		return 0, unix.EOPNOTSUPP
	}
	n, err := unix.Pwritev2(fd, [][]byte{p}, off, unix.RWF_DSYNC)
	if err == unix.ENOSYS || err == unix.EOPNOTSUPP {
		c.noDsync.Store(true)
		err = unix.EOPNOTSUPP
	}
	return max(n, 0), err
}

func (c *linuxCalls) fdatasync(fd int) error { return unix.Fdatasync(fd) }

// How often a call is made again: when it was refused for a moment, and when it did
// not get past a block boundary.
const (
	maxTries  = 16
	maxStalls = 8
)

func temporary(err error) bool {
	return errors.Is(err, unix.EINTR) || errors.Is(err, unix.EAGAIN)
}

// writeFull writes all of p at a block boundary. What storage did not take goes on
// from the last block boundary that was reached, never from the odd byte between,
// which direct I/O refuses; the bytes behind the boundary are written once more,
// unchanged. It returns the bytes that were written for certain.
func (f *osFile) writeFull(p []byte, off int64, durable bool) (int, error) {
	done, tries, stalls := 0, 0, 0
	dsync := durable
	for done < len(p) {
		n, err := f.d.calls.pwrite(f.fd, p[done:], off+int64(done), dsync)
		switch {
		case temporary(err):
			if tries++; tries > maxTries {
				return done, err
			}
			continue
		case errors.Is(err, unix.EOPNOTSUPP) && dsync:
			dsync = false // write all, then sync the file
			continue
		case err != nil:
			return done, err
		}
		n += done
		if n < len(p) {
			n = n / Block * Block
		}
		if n > done {
			done, stalls = n, 0
		} else if stalls++; stalls > maxStalls {
			return done, ErrShort
		}
	}
	if durable && !dsync {
		return done, f.sync()
	}
	return done, nil
}

func (f *osFile) sync() error {
	for range maxTries {
		if err := f.d.calls.fdatasync(f.fd); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
	return unix.EINTR
}

// readFull fills p from a block boundary, or up to the end of the file. An early
// end looks like the end of the file, but that does not move: asked again from the
// block boundary before it, the kernel gives no byte more.
func (f *osFile) readFull(p []byte, off int64) (int, error) {
	done, seen, tries, stalls := 0, 0, 0, 0
	for done < len(p) {
		n, err := f.d.calls.pread(f.fd, p[done:], off+int64(done))
		switch {
		case temporary(err):
			if tries++; tries > maxTries {
				return done, err
			}
			continue
		case err != nil:
			return done, err
		}
		total := done + n
		switch {
		case total >= len(p):
			return len(p), nil
		case n == 0 || total <= seen:
			return max(total, seen), nil
		}
		seen = total
		if boundary := total / Block * Block; boundary > done {
			done, stalls = boundary, 0
		} else if stalls++; stalls > maxStalls {
			return done, ErrShort
		}
	}
	return done, nil
}
