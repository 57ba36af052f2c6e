package store

import (
	"errors"
	"sync"

	"github.com/ringfence/ringfence/segfile/disk"
)

var errShortFile = errors.New("the file ends before its last record")

// reads is the queue of the scanners that read ahead, apart from those of the shards, so that
// a scan never waits behind an append. Only those who wait for a read reap: a scanner that
// finds what it needs in memory wakes no other goroutine. There are no more such scanners
// than slabs fit into the arena, so all of them may look again after each wait.
type reads struct {
	q   disk.Queue
	sub sync.Mutex // makes one scanner at a time the submitter; held across Submit, never across a wait

	mu      sync.Mutex // guards reaping; never held across I/O
	reaping bool       // somebody waits for the queue, or it is closed
	reaped  sync.Cond  // reads were done, or may be
}

func newReads(q disk.Queue) *reads {
	r := &reads{q: q}
	r.reaped.L = &r.mu
	return r
}

// push adds a read; submit starts what was pushed. When the queue is full, push
// waits until there is room.
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
		r.until(func() bool { return r.q.InFlight() < r.q.Depth() })
	}
}

func (r *reads) submit() {
	r.sub.Lock()
	_ = r.q.Submit() // a refusal completes the reads with the error
	r.sub.Unlock()
}

// until returns when done reports true; it is called again whenever reads were done.
func (r *reads) until(done func() bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for !done() {
		if r.reaping {
			r.reaped.Wait()
			continue
		}
		r.reaping = true
		r.mu.Unlock()
		_, _ = r.q.Wait(1) // an error of the queue itself reaches each operation's Done
		r.mu.Lock()
		r.reaping = false
		r.reaped.Broadcast()
	}
}

// stop lets the reads in flight end and closes the queue; later reads fail.
func (r *reads) stop() error {
	r.until(func() bool {
		idle := !r.reaping && r.q.InFlight() == 0
		r.reaping = r.reaping || idle // and is never given back: none may wait beside Close
		return idle
	})
	r.sub.Lock()
	err := r.q.Close()
	r.sub.Unlock()
	r.mu.Lock()
	r.reaped.Broadcast()
	r.mu.Unlock()
	return err
}
