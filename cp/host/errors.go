package host

import (
	"errors"
	"fmt"
	"syscall"
)

var (
	// ErrClosed: the host was closed.
	ErrClosed = errors.New("cp/host: closed")
	// ErrFailed: storage or the state machine failed, and the host stopped for good:
	// reads of what is in memory go on, nothing can be changed. Restart the process
	// when the cause is gone.
	ErrFailed = errors.New("cp/host: metadata stopped")
	// ErrBusy: too much is waiting on this vnode. Nothing was proposed; try again.
	ErrBusy = errors.New("cp/host: too many commands in flight")
	// ErrNotReady: the vnode has no leader at the moment. Nothing was proposed; try again.
	ErrNotReady = errors.New("cp/host: vnode has no leader")
	// ErrUnknownOutcome: the answer did not come in time. The command may have been
	// applied, or may be later. Read before deciding to repeat it.
	ErrUnknownOutcome = errors.New("cp/host: outcome unknown, the command may still be applied")
	// ErrNoSpace: the disk is full. Nothing was proposed. Commands that free space
	// are still taken; everything is when space returns.
	ErrNoSpace = errors.New("cp/host: no disk space for metadata")
	// ErrTooLarge: the command is larger than [MaxCommand].
	ErrTooLarge = errors.New("cp/host: command too large")

	// ErrLocked: another process, or another host of this one, uses the directory.
	ErrLocked = errors.New("cp/host: directory is in use")
	// ErrWiped: the directory's identity and its Raft log are not both there.
	ErrWiped = errors.New("cp/host: metadata was removed")
	// ErrRolledBack: the identity and the Raft log are from different times.
	ErrRolledBack = errors.New("cp/host: metadata was put back from another time")
	// ErrMismatch: the directory was formed with other settings, which cannot change.
	ErrMismatch = errors.New("cp/host: directory was formed with other settings")
	// ErrDamaged: bytes that had been durable cannot be read back; see [DamageError].
	ErrDamaged = errors.New("cp/host: damaged")
	// ErrNewer: written by a newer version of this program.
	ErrNewer = errors.New("cp/host: written by a newer version")
)

// DamageError is an [ErrDamaged] that says where. The files are left as they are:
// put the directory back from a copy, or replace this node in its cluster.
type DamageError struct {
	File   string
	Byte   int64 // -1: which is not known
	Reason string
}

func (e *DamageError) Error() string {
	if e.Byte < 0 {
		return fmt.Sprintf("cp/host: %s is damaged: %s", e.File, e.Reason)
	}
	return fmt.Sprintf("cp/host: %s is damaged at byte %d: %s", e.File, e.Byte, e.Reason)
}

// Is makes errors.Is(err, ErrDamaged) hold.
func (e *DamageError) Is(target error) bool { return target == ErrDamaged }

// outOfSpace tells a full disk, or a full quota, from other failures.
func outOfSpace(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}
