package shm

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Peer is who is on the other side of a Unix socket, as the kernel knows it: whoever made
// the connection, in the numbers of this process's user namespace.
type Peer struct {
	UID, GID uint32
	PID      int32 // for the log: it may be another process's by now
}

// PeerOf asks the kernel.
func PeerOf(c *net.UnixConn) (Peer, error) {
	var cred *unix.Ucred
	raw, err := c.SyscallConn()
	if err == nil {
		err = errors.Join(raw.Control(func(fd uintptr) {
			cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
		}), err)
	}
	if err != nil {
		return Peer{}, fmt.Errorf("shm: ask who the peer is: %w", err)
	}
	return Peer{UID: cred.Uid, GID: cred.Gid, PID: cred.Pid}, nil
}

// Unknown says that the peer's user has no number in this user namespace: it is in another
// one, and could be anybody.
func (p Peer) Unknown() bool { return p.UID == overflowUID() }

// overflowUID is the number that the kernel tells where there is none.
func overflowUID() uint32 {
	b, _ := os.ReadFile("/proc/sys/kernel/overflowuid")
	if n, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 32); err == nil {
		return uint32(n)
	}
	return 65534
}

// Send writes b with a descriptor of f beside its first byte.
func Send(c *net.UnixConn, b []byte, f *os.File) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	n := 0
	if e := raw.Control(func(fd uintptr) { n, _, err = c.WriteMsgUnix(b, unix.UnixRights(int(fd)), nil) }); e != nil {
		return e
	}
	if err == nil && n < len(b) {
		_, err = c.Write(b[n:])
	}
	return err
}
