package ring

import (
	"fmt"
	"runtime"
	"sync/atomic"
	"syscall"
	"time"

	abi "github.com/iceber/iouring-go/syscall"
)

// Push adds a request, which starts with the next Submit. ErrFull means that Depth
// requests are in flight: Wait for one, then push again.
func (r *Ring) Push(op *Op) error {
	if err := op.check(); err != nil {
		return err
	}
	r.mu.Lock()
	err := r.admit(op, 1)
	if err == nil {
		i := r.place(op)
		r.link(i, i, none)
		r.slots[i].left = 1
		r.emit(i)
	}
	r.mu.Unlock()
	return err
}

// PushChain adds requests of which each starts when the one before it has done all
// that was asked of it. When one fails, those behind it fail with ECANCELED and do
// not run. Their Dones run in order, when all have ended. All are added or none.
func (r *Ring) PushChain(ops ...*Op) error {
	if len(ops) == 0 {
		return nil
	}
	for _, op := range ops {
		if err := op.check(); err != nil {
			return err
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, op := range ops {
		if err := r.admit(op, len(ops)); err != nil {
			return err
		}
	}
	head := none
	for n := len(ops) - 1; n >= 0; n-- { // from the back, so that each knows its next
		i := r.place(ops[n])
		r.link(i, none, head)
		head = i
	}
	r.slots[head].left = uint32(len(ops))
	for i := head; i != none; i = r.slots[i].next {
		r.slots[i].head = head
	}
	r.emit(head)
	return nil
}

// admit says whether n requests like op can be taken. The caller holds mu.
func (r *Ring) admit(op *Op, n int) error {
	switch {
	case r.closed:
		return ErrClosed
	case n > r.info.Depth:
		return fmt.Errorf("%w: chain of %d requests in a ring of %d", ErrInvalid, n, r.info.Depth)
	case r.free.len() < n:
		return ErrFull
	case op.Code != Nop && op.Flags&FixedFile != 0 && (op.FD >= len(r.files) || !r.files[op.FD].used):
		return fmt.Errorf("%w: %v of file slot %d, which is empty", ErrInvalid, op.Code, op.FD)
	}
	return nil
}

// place gives a request its slot, and takes its file and buffer into use.
func (r *Ring) place(op *Op) uint32 {
	i := r.free.get()
	s := &r.slots[i]
	if op.pushed {
		panic("ring: Op twice in one chain")
	}
	op.pushed, op.Res, op.Err = true, 0, nil
	s.op, s.buffer = op, -1
	s.moved, s.seen, s.res, s.tries, s.stalls, s.final, s.parked = 0, 0, 0, 0, 0, false, false
	if (op.Code == Write || op.Code == Read) && len(op.More) == 0 {
		s.buffer = r.findBuffer(op.Buf)
	}
	if s.buffer >= 0 {
		r.buffers[s.buffer].users.Add(1)
	}
	if op.Flags&FixedFile != 0 && op.Code != Nop {
		r.files[op.FD].users.Add(1)
	}
	return i
}

func (r *Ring) link(i, head, next uint32) {
	r.slots[i].head, r.slots[i].next = head, next
}

// emit fills entries for a chain. There is always room: no slot has more than one
// entry in the queue, and there are no more slots than entries. The slot's new
// generation is stored last, and before the entry can be published, so that an
// answer that comes at once finds everything in its place.
func (r *Ring) emit(head uint32) {
	for i := head; i != none; {
		s := &r.slots[i]
		next := s.next
		gen := s.gen.Load() + 1
		s.encode(&r.sq.entries[r.sq.next&r.sq.mask], uint64(gen)<<32|uint64(i), next != none)
		r.sq.next++
		s.gen.Store(gen)
		i = next
	}
}

// Submit starts what was pushed. An error means that those requests end with it, in
// Wait. A kernel that cannot take them yet, because requests before them hold what
// it needs, is no error: Wait submits them when those are done.
func (r *Ring) Submit() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return ErrClosed
	}
	return r.flush()
}

// How often the kernel may refuse to take anything while it has nothing else to do
// for us, and how long we pause in between: less than a fifth of a second in all.
const (
	maxRefusals = 16
	maxPause    = 25 * time.Millisecond
)

// flush hands all entries to the kernel. The caller holds mu.
func (r *Ring) flush() error {
	left := r.sq.publish()
	for refusals := 0; left > 0; {
		r.count.enters.Add(1)
		took, errno := r.k.enter(left, 0, false)
		left = r.sq.publish()
		switch {
		case errno == 0 && took > 0:
			r.mend(left)
			refusals = 0
		case errno == 0 || errno == syscall.EINTR || errno == syscall.EAGAIN || errno == syscall.EBUSY:
			r.count.refused.Add(1)
			if errno != syscall.EINTR {
				// What is short may be held by our own requests. Then the completing side
				// goes on when it has seen one: it looks at stuck after it has moved the
				// completion queue's head, and we look at that head after we set stuck, so
				// one of us sees the other.
				r.stuck.Store(true)
				if r.inKernel() > 0 {
					return nil
				}
				r.stuck.Store(false)
			}
			if refusals++; refusals <= maxRefusals {
				pause(refusals)
				continue
			}
			fallthrough
		default:
			if errno == 0 {
				errno = syscall.EAGAIN
			}
			r.giveUp(errno)
			if errno == syscall.EEXIST {
				return fmt.Errorf("ring: submit from a thread that is not the single issuer: %w", errno)
			}
			return fmt.Errorf("ring: submit: %w", errno)
		}
	}
	r.stuck.Store(false)
	return nil
}

func pause(n int) {
	if n <= 2 {
		runtime.Gosched()
		return
	}
	time.Sleep(min(50*time.Microsecond<<(n-3), maxPause))
}

// mend repairs a chain of which the kernel took only the first part. The rest would
// start as a chain of its own, beside the first, so nops go in its place; when all
// have ended, the chain goes on from where it was cut. The caller holds mu.
func (r *Ring) mend(left uint32) {
	for pos := r.sq.next - left; pos != r.sq.next; pos++ {
		e := &r.sq.entries[pos&r.sq.mask]
		i := slotOf(entryUser(e))
		s := &r.slots[i]
		if s.head == i {
			return // a chain, or a single request, begins here
		}
		s.parked = true
		s.gen.Store(s.gen.Load()) // orders it before the answer
		user := entryUser(e)
		e.Reset()
		e.PrepOperation(abi.IORING_OP_NOP, -1, 0, 0, 0)
		e.SetUserData(user)
	}
}

// giveUp takes back every entry the kernel did not take; the requests end with
// errno. The caller holds mu.
func (r *Ring) giveUp(errno syscall.Errno) {
	head := atomic.LoadUint32(r.sq.head)
	for pos := head; pos != r.sq.next; pos++ {
		i := slotOf(entryUser(&r.sq.entries[pos&r.sq.mask]))
		s := &r.slots[i]
		s.res, s.final = -int32(errno), true
		s.gen.Store(s.gen.Load() + 1)
		r.failed = append(r.failed, i)
	}
	r.sq.next = head
	atomic.StoreUint32(r.sq.tail, head)
	r.stuck.Store(false)
	if len(r.failed) > 0 {
		r.failures.Store(true)
	}
}

func slotOf(user uint64) uint32 { return uint32(user) }
