package shm

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// Listen makes a Unix socket at path. Its directory must be one in which nobody else can
// put another thing in its place. What is there already stays, but for a socket of this
// user's that nobody listens on, which a process left that was killed.
func Listen(path string, mode os.FileMode) (*net.UnixListener, error) {
	if err := safeDirectory(filepath.Dir(path)); err != nil {
		return nil, err
	}
	if err := removeStale(path); err != nil {
		return nil, err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("listening on %s: there is something of that name: give another one, or remove it", path)
	}
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, mode); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// safeDirectory refuses a directory in which others can rename or remove what is not
// theirs.
func safeDirectory(dir string) error {
	st, err := os.Stat(dir)
	if err != nil {
		return err
	}
	owner := st.Sys().(*syscall.Stat_t).Uid
	if me := uint32(os.Geteuid()); owner != me && owner != 0 {
		return fmt.Errorf("directory %s belongs to user %d, who could put another socket in place of this one's: give a directory of user %d", dir, owner, me)
	}
	if st.Mode().Perm()&0o022 != 0 && st.Mode()&os.ModeSticky == 0 {
		return fmt.Errorf("others can write to directory %s, and put another socket in place of this one: take that from them (chmod go-w), or give another directory", dir)
	}
	return nil
}

func removeStale(path string) error {
	st, err := os.Lstat(path)
	if err != nil || st.Mode()&os.ModeSocket == 0 || st.Sys().(*syscall.Stat_t).Uid != uint32(os.Geteuid()) {
		return nil // listening says what is wrong, if something is
	}
	if c, err := net.DialTimeout("unix", path, time.Second); err == nil {
		c.Close()
		return fmt.Errorf("listening on %s: another process does", path)
	} else if !errors.Is(err, syscall.ECONNREFUSED) {
		return fmt.Errorf("listening on %s: whether another process does is not known: %w", path, err)
	}
	return os.Remove(path)
}
