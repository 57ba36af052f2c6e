package shm

import (
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// bell is how one side wakes the other, which sleeps on a word of the memory. It costs a
// system call only where somebody sleeps.
type bell struct{ word *uint32 }

const (
	awake    = 0
	sleeping = 1
)

// ring wakes whoever sleeps. What he is to see was stored before: he looks once more
// between saying that he sleeps and sleeping.
func (b bell) ring() {
	if atomic.LoadUint32(b.word) == sleeping && atomic.SwapUint32(b.word, awake) == sleeping {
		b.wake()
	}
}

func (b bell) wake() {
	_, _, _ = syscall.RawSyscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(b.word)), futexWake, 1, 0, 0, 0)
}

// sleep returns when somebody rings, at once if the word is not sleeping any more, after
// most, if that is not 0, and for no reason at all if the process gets a signal. The answer
// says that it was one of the last two.
func (b bell) sleep(most time.Duration) (unrung bool) {
	var limit *unix.Timespec
	if most > 0 {
		l := unix.NsecToTimespec(int64(most))
		limit = &l
	}
	_, _, errno := syscall.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(b.word)), futexWait, sleeping, uintptr(unsafe.Pointer(limit)), 0, 0)
	return errors.Is(errno, syscall.EINTR) || errors.Is(errno, syscall.ETIMEDOUT)
}

// Operations of futex(2), between processes.
const (
	futexWait = 0
	futexWake = 1
)

// waiter waits for the next slot of a lane. One goroutine waits at a time; any may stop it.
type waiter struct {
	bell    bell
	patient time.Duration // how long it spins before it sleeps
	alone   bool          // there is one processor: spinning would keep the other side from it
	idle    int           // times it was woken in a row and there was nothing

	stopped  atomic.Bool
	sleeping atomic.Bool // in sleep, or about to be
	mu       sync.Mutex  // of those who stop it: the memory stays while one of them is at it
}

// Spinning catches what comes within a few microseconds, which a sleep turns into tens.
// It pays where both sides run at once and talk without a pause, and nowhere else: how
// long the last sleeps were says whether the next one is worth it.
const (
	longestSpin  = 20 * time.Microsecond
	shortestSpin = time.Microsecond
	spinLooks    = 64 // looks between two at the clock, and at who else wants to run
)

// falseAlarms is how often in a row the other side may wake this one for nothing. Once
// for each submission is in the nature of it; more is meant to keep a processor busy.
const falseAlarms = 1000

// await returns when the next slot of l is filled; ErrStopped, or a PeerError; or errLate
// after most, if that is not 0.
func (w *waiter) await(l *lane, most time.Duration) error {
	done, err := w.see(l)
	if done {
		return err
	}
	start := time.Now()
	for w.spin(l, start) {
		if done, err = w.see(l); done {
			return err
		}
	}
	for !done {
		w.sleeping.Store(true)
		atomic.StoreUint32(w.bell.word, sleeping)
		unrung := false
		if done, err = w.see(l); !done {
			unrung = w.bell.sleep(most)
		}
		atomic.StoreUint32(w.bell.word, awake)
		w.sleeping.Store(false)
		if !done {
			done, err = w.see(l)
		}
		if !done && !unrung {
			w.idle++
		}
		if !done && most > 0 && time.Since(start) >= most {
			return errLate
		}
		if w.idle > falseAlarms {
			return breach("it rang %d times for nothing", w.idle)
		}
	}
	w.idle = 0
	w.learn(time.Since(start))
	return err
}

var errLate = errors.New("nothing came in time")

// see says whether there is nothing to wait for.
func (w *waiter) see(l *lane) (done bool, err error) {
	switch s, turn := l.look(); s {
	case filled:
		return true, nil
	case foul:
		return true, breach("slot of position %d has turn %d", l.pos, turn)
	}
	if w.stopped.Load() {
		return true, ErrStopped
	}
	return false, nil
}

// spin looks again and again for as long as that is likely to pay, and says whether
// something changed.
func (w *waiter) spin(l *lane, start time.Time) bool {
	for w.patient > 0 {
		for range spinLooks {
			if s, _ := l.look(); s != empty {
				return true
			}
		}
		if w.stopped.Load() {
			return true
		}
		if time.Since(start) > w.patient {
			break
		}
		runtime.Gosched()
	}
	return false
}

// learn takes a wait that a sleep ended into account.
func (w *waiter) learn(took time.Duration) {
	switch {
	case w.alone:
	case took < 2*longestSpin:
		w.patient = longestSpin
	case w.patient > shortestSpin:
		w.patient /= 2
	default:
		w.patient = 0
	}
}

func newWaiter(b bell) waiter {
	return waiter{bell: b, alone: min(runtime.NumCPU(), runtime.GOMAXPROCS(0)) == 1}
}

// stop has await return, now and ever after. The other side can undo what wakes the
// sleeper, so it is woken until it is awake.
func (w *waiter) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stopped.Store(true)
	for pause := 10 * time.Microsecond; w.sleeping.Load(); pause = min(2*pause, time.Millisecond) {
		atomic.StoreUint32(w.bell.word, awake)
		w.bell.wake()
		time.Sleep(pause)
	}
}
