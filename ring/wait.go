package ring

import (
	"errors"
	"fmt"
	"sync/atomic"
	"syscall"

	abi "github.com/iceber/iouring-go/syscall"
)

// Wait blocks until at least want requests are done, runs their Done and returns how
// many. It does not wait for more than the kernel has: with nothing submitted it
// returns at once. Wait(0) only looks. An error means that the kernel lost
// completions or that the ring is closed; requests keep their own errors.
func (r *Ring) Wait(want int) (int, error) {
	if r.gone.Load() {
		return 0, ErrClosed
	}
	done := r.reap()
	for refusals := 0; ; {
		pending := r.inKernel()
		if len(r.retry) > 0 || r.failures.Load() || r.stuck.Load() {
			done += r.help(pending == 0)
			pending = r.inKernel()
		}
		if done >= want {
			return done, nil
		}
		if pending == 0 {
			if r.stuck.Load() || r.failures.Load() || len(r.retry) > 0 || r.cq.ready() > 0 {
				done += r.reap()
				continue
			}
			return done, nil
		}
		r.count.waits.Add(1)
		_, errno := r.k.enter(0, uint32(max(1, min(int(pending), want-done))), true)
		n := r.reap()
		done += n
		switch {
		case n > 0 || errno == 0 || errno == syscall.EINTR:
			refusals = 0
		case errno == syscall.EAGAIN || errno == syscall.EBUSY:
			r.count.refused.Add(1)
			if refusals++; refusals > maxRefusals {
				return done, fmt.Errorf("ring: wait: %w", errno)
			}
			pause(refusals)
		default:
			return done, fmt.Errorf("ring: wait: %w", errno)
		}
	}
}

// SubmitAndWait is Submit, then Wait, in one system call where the ring has a single
// issuer.
func (r *Ring) SubmitAndWait(want int) (int, error) {
	if !r.single || want == 0 {
		if err := r.Submit(); err != nil {
			n, _ := r.Wait(want)
			return n, err
		}
		return r.Wait(want)
	}
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		return 0, ErrClosed
	}
	left := r.sq.publish()
	if left == 0 {
		r.mu.Unlock()
		return r.Wait(want)
	}
	r.count.enters.Add(1)
	took, errno := r.k.enter(left, uint32(min(want, int(r.inKernel()+left))), true)
	var err error
	if errno != 0 || took != left {
		if took > 0 {
			r.mend(r.sq.publish())
		}
		err = r.flush()
	} else if r.stuck.Load() {
		r.stuck.Store(false)
	}
	r.mu.Unlock()
	n, werr := r.Wait(want)
	if err == nil {
		err = werr
	}
	return n, err
}

// reap takes what is in the completion queue and acts on it.
func (r *Ring) reap() int {
	done := 0
	for range 2 {
		// Only what is there now: Done may push requests that complete at once.
		for left := r.cq.ready(); left > 0; {
			var batch [16]completion
			n := r.cq.take(batch[:min(int(left), len(batch))])
			left -= uint32(n)
			for _, c := range batch[:n] {
				done += r.arrive(c)
			}
		}
		// The kernel may hold completions that it hands over only inside a call: more
		// than fitted the queue, or work it put off for us.
		flags := atomic.LoadUint32(r.sq.flags)
		if flags&(abi.IORING_SQ_CQ_OVERFLOW|sqTaskrun) == 0 {
			break
		}
		if flags&abi.IORING_SQ_CQ_OVERFLOW != 0 {
			r.count.overflows.Add(1)
		}
		r.count.enters.Add(1)
		_, _ = r.k.enter(0, 0, true) // whatever it says, the queue tells
	}
	return done
}

// arrive takes one answer. Answers to a slot's earlier life are counted and dropped.
func (r *Ring) arrive(c completion) int {
	i, gen := uint32(c.user), uint32(c.user>>32)
	if c.user == cancelUser {
		return 0
	}
	if i >= uint32(len(r.slots)) || r.slots[i].gen.Load() != gen {
		r.count.stale.Add(1)
		return 0
	}
	s := &r.slots[i]
	s.gen.Store(gen + 1) // it has been answered: a second answer is stale
	s.res = c.res
	return r.ended(i)
}

// ended counts a chain's members down, and settles the chain after the last.
func (r *Ring) ended(i uint32) int {
	head := r.slots[i].head
	h := &r.slots[head]
	if h.left--; h.left > 0 {
		return 0
	}
	return r.settle(head)
}

// settle walks a chain whose members have all been answered, in order: those that
// did what was asked are done, the first that must go on is submitted again with all
// behind it, and behind one that failed all fail.
func (r *Ring) settle(head uint32) int {
	done, broken, closing := 0, false, r.closing.Load()
	for i := head; i != none; {
		s := &r.slots[i]
		next := s.next
		n, err, again := s.judge(closing)
		switch {
		case broken:
			n, err = 0, syscall.ECANCELED
		case again:
			r.again(i)
			return done
		case err != nil:
			broken = true
		}
		if errors.Is(err, syscall.ECANCELED) && closing {
			err = ErrClosed
		}
		r.finish(i, n, err)
		done++
		i = next
	}
	return done
}

// again makes a chain of a request and all behind it, and marks it for submission.
func (r *Ring) again(head uint32) {
	s := &r.slots[head]
	switch {
	case s.parked:
		s.parked = false
	case s.res >= 0:
		r.count.resumed.Add(1)
	default:
		r.count.retried.Add(1)
	}
	members := uint32(0)
	for i := head; i != none; i = r.slots[i].next {
		r.slots[i].head, r.slots[i].parked = head, false
		members++
	}
	s.left = members
	r.retry = append(r.retry, head)
}

// finish ends a request: its slot is free for the next before its Done runs.
func (r *Ring) finish(i uint32, n int32, err error) {
	s := &r.slots[i]
	op := s.op
	s.op = nil
	if s.buffer >= 0 {
		r.buffers[s.buffer].users.Add(-1)
	}
	if op.Flags&FixedFile != 0 && op.Code != Nop {
		r.files[op.FD].users.Add(-1)
	}
	r.free.put(i)
	op.pushed, op.Res, op.Err = false, n, err
	if op.Done != nil {
		op.Done(op)
	}
}

// help does what needs the submitting side: submits chains again, entries that the
// kernel would not take before, and reports those it never will. When must is false
// and the submitting side is at work, it leaves the latter two for the next time.
func (r *Ring) help(must bool) int {
	if must || len(r.retry) > 0 {
		r.mu.Lock()
	} else if !r.mu.TryLock() {
		return 0
	}
	for _, head := range r.retry {
		r.emit(head)
	}
	r.retry = r.retry[:0]
	_ = r.flush() // its error reaches the requests
	failed := r.failed
	r.failed, r.spare = r.spare[:0], failed
	r.failures.Store(false)
	r.mu.Unlock()
	done := 0
	for _, i := range failed {
		done += r.ended(i)
	}
	return done
}
