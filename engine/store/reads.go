package store

import (
	"errors"
	"sync"

	"github.com/ringfence/ringfence/segfile/disk"
)

var errShortFile = errors.New("the file ends before its last record")

// reads drives the scanners' reads on a queue of their own, so that a scan never
// waits behind an append.
type reads struct {
	driver
	sub sync.Mutex // makes one scanner at a time the submitter; held across Submit, never across a wait
}

// push adds a read; submit starts what was pushed. When the queue is full, push
// reaps until there is room.
func (r *reads) push(op *disk.Op) {
	for {
		r.sub.Lock()
		err := r.q.Push(op)
		r.sub.Unlock()
		if err == nil {
			return
		}
		if !errors.Is(err, disk.ErrFull) {
			op.Err = err
			op.Done(op)
			return
		}
		r.submit()
		r.reapOnce()
	}
}

// stop lets the reads in flight end and closes the queue.
func (r *reads) stop() error {
	if !r.halt(func() bool { return r.q.InFlight() > 0 }) {
		return nil
	}
	<-r.gone
	r.sub.Lock()
	defer r.sub.Unlock()
	return r.q.Close()
}

func (r *reads) submit() {
	r.sub.Lock()
	_ = r.q.Submit() // a refusal completes the reads with the error
	r.sub.Unlock()
}

// reapOnce waits for at least one completion, whoever reaps.
func (r *reads) reapOnce() {
	before := r.q.InFlight()
	full := func() bool { return r.q.InFlight() >= before && before > 0 }
	if r.reapWhile(full) {
		return
	}
	r.mu.Lock()
	for r.reaping && full() {
		r.idle.Wait()
	}
	r.mu.Unlock()
}

// reaped wakes those who wait for room.
func (r *reads) reaped() {
	r.mu.Lock()
	r.idle.Broadcast()
	r.mu.Unlock()
}
