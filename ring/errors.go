package ring

import (
	"errors"
	"fmt"
	"syscall"
)

// Test with errors.Is. A request that the kernel refused has the syscall.Errno.
var (
	ErrFull        = errors.New("ring: full")                                 // Wait for a completion, then push again
	ErrClosed      = errors.New("ring: closed")                               // by Close; whether the request ran is unknown
	ErrShort       = errors.New("ring: transfer made no progress")            // storage took less than a block, again and again
	ErrInvalid     = errors.New("ring: invalid request")                      // a bug of the caller
	ErrBusy        = errors.New("ring: still used by a request in flight")    // wait for it first
	ErrNoSlot      = errors.New("ring: table of registered files is full")    // open the ring with more Files or Spare
	ErrUnavailable = errors.New("ring: io_uring cannot be used here")         // Probe says why
	ErrMemlock     = errors.New("ring: buffers do not fit the memlock limit") // raise the limit, or write unregistered
)

// SetupError is a step of Open or of a registration that the kernel refused.
type SetupError struct {
	Step  string // "setup", "map queues", "register buffers", ...
	Errno syscall.Errno
	Hint  string // likely cause and remedy
}

func (e *SetupError) Error() string {
	s := fmt.Sprintf("ring: %s: %v", e.Step, e.Errno)
	if e.Hint != "" {
		s += ": " + e.Hint
	}
	return s
}

func (e *SetupError) Unwrap() error { return e.Errno }

// Is makes a refused set-up an ErrUnavailable, so that callers have one question
// to ask before they choose another way to write.
func (e *SetupError) Is(target error) bool {
	switch target {
	case ErrUnavailable:
		return e.Step == stepSetup || e.Step == stepFeatures
	case ErrMemlock:
		return e.Step == stepBuffers && (e.Errno == syscall.ENOMEM || e.Errno == syscall.EPERM)
	}
	return false
}

const (
	stepSetup    = "set up"
	stepFeatures = "check features"
	stepMap      = "map queues"
	stepBuffers  = "register buffers"
	stepFiles    = "register files"
)
