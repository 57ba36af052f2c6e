package ring

import (
	"syscall"
)

// How often a request is submitted again: when it was refused, and when a transfer
// did not get past a block boundary.
const (
	maxTries  = 16
	maxStalls = 8
)

// judge says what a slot's last result means: the bytes moved in all, the error, and
// whether to submit what is left. Those before it in its chain did what was asked.
func (s *slot) judge(closing bool) (n int32, err error, again bool) {
	switch {
	case s.parked && !s.final:
		if closing {
			return 0, syscall.ECANCELED, false
		}
		return 0, nil, true
	case s.res < 0:
		return s.refused(closing)
	case s.op.Code == Write || s.op.Code == Read:
		return s.advance(closing)
	}
	return 0, nil, false
}

// refused judges an errno. A request that nobody here cancelled ends with ECANCELED if it
// never began: the one before it in its chain ended early; the thread that submitted it
// is gone; or the kernel could not start a worker for it, which a few signals in a row
// do, as Go's preemption sends them. It did nothing, and is submitted again.
func (s *slot) refused(closing bool) (int32, error, bool) {
	errno := syscall.Errno(-s.res)
	temporary := errno == syscall.EINTR || errno == syscall.EAGAIN || errno == syscall.ECANCELED
	if !temporary || s.final {
		return int32(s.moved), errno, false
	}
	if closing {
		return int32(s.moved), syscall.ECANCELED, false
	}
	if s.tries++; s.tries > maxTries {
		return int32(s.moved), errno, false
	}
	return 0, nil, true
}

// advance judges a transfer. What goes on, goes on at the last block boundary of the
// file that was reached, never at the odd byte between, which direct I/O refuses; the
// bytes behind the boundary are moved once more, unchanged.
func (s *slot) advance(closing bool) (int32, error, bool) {
	op := s.op
	size := uint32(op.length())
	total := s.moved + uint32(s.res)
	if total >= size {
		return int32(size), nil, false
	}
	if op.Code == Read {
		// The end of a file looks like an early end, but it does not move: asked again,
		// the kernel gives no byte more.
		if s.res == 0 || total <= s.seen {
			return int32(max(total, s.seen)), nil, false
		}
		s.seen = total
	}
	boundary := uint32(max(0, (op.Off+int64(total))&^(blockSize-1)-op.Off))
	if boundary > s.moved {
		s.moved, s.stalls = boundary, 0
	} else if s.stalls++; s.stalls > maxStalls {
		return int32(s.moved), ErrShort, false
	}
	if closing {
		return int32(s.moved), syscall.ECANCELED, false
	}
	return 0, nil, true
}
