package main

import (
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/ringfence/ringfence/engine"
	"github.com/ringfence/ringfence/engine/shm"
)

// check refuses settings that cannot be used, before anything is opened. What depends on
// the host at the moment, as an address that is taken, is found when it is used.
func (f *serveFlags) check() error {
	if err := f.checkLimits(); err != nil {
		return err
	}
	return errors.Join(checkListen("listen", f.listen), checkListen("admin", f.admin),
		checkSocket("socket", f.socket), checkSocket("shm", f.shm))
}

func (f *serveFlags) checkLimits() error {
	for _, n := range []struct {
		name string
		n    int
	}{{"max-connections", f.maxConns}, {"max-connections-per-ip", f.maxPerIP}, {"max-requests", f.maxRequests}, {"shm-clients", f.shmClients}} {
		if n.n < 1 || n.n > maxCount {
			return fmt.Errorf("--%s is %d: want 1 to %d", n.name, n.n, maxCount)
		}
	}
	for _, n := range []struct {
		name     string
		n, least sizeFlag
	}{{"segment-size", f.segment, engine.MinSegmentBytes}, {"arena-size", f.arena, engine.MinArenaBytes}, {"reserve-size", f.reserve, 1}} {
		if n.n < n.least || n.n > maxSize {
			return fmt.Errorf("--%s is %d bytes: want %s to %s", n.name, n.n, bytesText(n.least), bytesText(sizeFlag(maxSize)))
		}
	}
	if f.shmArena < shm.MinArena || f.shmArena > shm.MaxArena || f.shmMemory < f.shmArena {
		return fmt.Errorf("--shm-arena is %d and --shm-memory %d bytes: want %d to %d for one client, and as much or more for all",
			f.shmArena, f.shmMemory, shm.MinArena, shm.MaxArena)
	}
	if f.shmUserMemory != 0 && (f.shmUserMemory < shm.MinArena || f.shmUserMemory > f.shmMemory) {
		return fmt.Errorf("--shm-user-memory is %d bytes: want %d or more, and no more than --shm-memory has for all, %d", f.shmUserMemory, shm.MinArena, f.shmMemory)
	}
	if f.shmUserClients < 0 || f.shmUserClients > f.shmClients {
		return fmt.Errorf("--shm-user-clients is %d: want 1 to %d, as many as --shm-clients lets in, or 0 for the default", f.shmUserClients, f.shmClients)
	}
	for _, id := range slices.Concat(f.shmUIDs, f.shmGIDs, f.shmTrusted) {
		if id >= math.MaxUint32 {
			return fmt.Errorf("--shm-uids, --shm-gids and --shm-trusted-uids: %d is no number of a user or group", id)
		}
	}
	for _, d := range []struct {
		name string
		d    time.Duration
	}{{"idle-timeout", f.idle}, {"frame-timeout", f.frameTime}, {"write-timeout", f.writeTime}, {"group-session", f.groupSession}, {"shutdown-grace", f.grace}} {
		if d.d <= 0 {
			return fmt.Errorf("--%s is %s: want more than 0", d.name, d.d)
		}
	}
	if f.groupSession < leastSession {
		return fmt.Errorf("--group-session is %s: want %s or more, or no member is ever heard in time", f.groupSession, leastSession)
	}
	if f.shm == "" && len(f.shmUIDs)+len(f.shmGIDs)+len(f.shmTrusted) > 0 {
		return errors.New("--shm-uids, --shm-gids and --shm-trusted-uids say who may use the socket of --shm, and there is none: give --shm PATH, or leave them out")
	}
	if f.shm != "" && filepath.Clean(f.shm) == filepath.Clean(f.socket) {
		return fmt.Errorf("--socket and --shm are both %s: each has a path of its own", f.shm)
	}
	return nil
}

// leastSession leaves a member's heartbeat time to arrive.
const leastSession = time.Second

const (
	maxCount = 1 << 24 // more than any host has of what is counted, and its sums fit an int
	maxSize  = 1 << 50 // likewise of what is measured
)

// checkListen refuses an address that no host could listen on.
func checkListen(setting, addr string) error {
	if addr == "" {
		return nil
	}
	_, port, err := net.SplitHostPort(addr)
	if err == nil {
		_, err = net.LookupPort("tcp", port)
	}
	if err != nil {
		return fmt.Errorf("--%s is %q: want HOST:PORT with a port from 0 to 65535: %w", setting, addr, err)
	}
	return nil
}

const maxSocketPath = 107 // bytes; the kernel's limit

// checkSocket refuses a path where there can be no socket.
func checkSocket(setting, path string) error {
	if path == "" {
		return nil
	}
	if len(path) > maxSocketPath {
		return fmt.Errorf("--%s %s: the path of a socket has %d bytes at most, and this one has %d", setting, path, maxSocketPath, len(path))
	}
	if st, err := os.Lstat(path); err == nil && st.Mode()&os.ModeSocket == 0 {
		return fmt.Errorf("--%s %s: there is something of that name that is no socket: give another one, or remove it", setting, path)
	}
	if parent := filepath.Dir(path); noDir(parent) {
		return fmt.Errorf("--%s %s: there is no directory %s for it: make it first, or give another path", setting, path, parent)
	}
	return nil
}

// noDir says that a directory is missing, or is something else. One that may not be looked
// at can be there.
func noDir(path string) bool {
	st, err := os.Stat(path)
	return errors.Is(err, os.ErrNotExist) || err == nil && !st.IsDir()
}

// isLoopback says whether only this machine reaches an address.
func isLoopback(addr string) (bool, error) {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return false, err
	}
	if host == "localhost" {
		return true, nil
	}
	ip := net.ParseIP(strings.Trim(host, "[]"))
	return ip != nil && ip.IsLoopback(), nil
}

// numbers are those of users or groups.
func numbers(list []uint) (ids []uint32) {
	for _, n := range list {
		ids = append(ids, uint32(n))
	}
	return ids
}
