package disk

import (
	"sync"
	"sync/atomic"
)

// poolQueue does operations on a few goroutines with blocking system calls, where
// io_uring is refused or not wanted. The channels hold depth operations, so no
// sender ever waits.
type poolQueue struct {
	d     *osDisk
	depth int
	work  chan *Op
	done  chan *Op
	group sync.WaitGroup // the workers

	pushed []*Op // owned by the side that pushes

	inFlight  atomic.Int64 // pushed and not done
	submitted atomic.Int64 // submitted and not taken by Wait
	closed    atomic.Bool
}

func newPoolQueue(d *osDisk, depth int) *poolQueue {
	q := &poolQueue{
		d: d, depth: depth,
		work: make(chan *Op, depth), done: make(chan *Op, depth), pushed: make([]*Op, 0, depth),
	}
	for range min(depth, d.opts.Workers) {
		q.group.Go(func() {
			for op := range q.work {
				op.run()
				q.done <- op
			}
		})
	}
	return q
}

// run does an operation of the pool.
func (op *Op) run() {
	f := op.File.(*osFile)
	var err error
	switch op.Kind {
	case Write:
		op.N, err = f.writePieces(op)
	case Read:
		op.N, err = f.readFull(op.Buf, op.Off)
	case Sync:
		err = f.sync()
	}
	op.Err = op.failure(err)
}

// writePieces writes all of op. Several pieces are made durable together: the sync of
// a file proves every write to it that has completed.
func (f *osFile) writePieces(op *Op) (done int, err error) {
	if len(op.More) == 0 {
		return f.writeFull(op.Buf, op.Off, op.Durable)
	}
	if done, err = f.writeFull(op.Buf, op.Off, false); err != nil {
		return done, err
	}
	for _, b := range op.More {
		n, err := f.writeFull(b, op.Off+int64(done), false)
		if done += n; err != nil {
			return done, err
		}
	}
	if op.Durable {
		err = f.sync()
	}
	return done, err
}

// failure is what the caller of a queue gets for an error.
func (op *Op) failure(err error) error {
	if err == nil {
		return nil
	}
	off, n := op.Off, op.Len()
	if op.Kind == Sync {
		off, n = 0, 0
	}
	return &OpError{Op: op.Kind.String(), File: op.File.Name(), Off: off, Len: n, Err: err}
}

// take checks an operation for a queue of d and keeps its file open.
func (d *osDisk) take(op *Op) (*osFile, error) {
	if err := op.Check(d.arena, &d.memories); err != nil {
		return nil, err
	}
	f, ok := op.File.(*osFile)
	err := errForeignFile
	if ok && f.d == d {
		err = f.acquire()
	}
	if err != nil {
		op.Release()
		return nil, err
	}
	op.N, op.Err = 0, nil
	return f, nil
}

func (q *poolQueue) Push(op *Op) error {
	switch {
	case q.closed.Load():
		return ErrClosed
	case q.inFlight.Load() >= int64(q.depth):
		return ErrFull
	}
	if _, err := q.d.take(op); err != nil {
		return err
	}
	q.inFlight.Add(1)
	q.pushed = append(q.pushed, op)
	return nil
}

func (q *poolQueue) Submit() error {
	if q.closed.Load() {
		return ErrClosed
	}
	q.submitted.Add(int64(len(q.pushed)))
	for _, op := range q.pushed {
		q.work <- op
	}
	q.pushed = q.pushed[:0]
	return nil
}

func (q *poolQueue) Wait(min int) (int, error) {
	if q.closed.Load() {
		return 0, ErrClosed
	}
	n := 0
	for left := len(q.done); left > 0; left-- { // only what is there: Done may push more
		q.finish(<-q.done)
		n++
	}
	for n < min && q.submitted.Load() > 0 {
		q.finish(<-q.done)
		n++
	}
	return n, nil
}

func (q *poolQueue) finish(op *Op) {
	q.submitted.Add(-1)
	q.report(op)
}

func (q *poolQueue) report(op *Op) {
	op.Release()
	op.File.(*osFile).release()
	q.inFlight.Add(-1)
	op.Done(op)
}

func (q *poolQueue) Depth() int    { return q.depth }
func (q *poolQueue) InFlight() int { return int(q.inFlight.Load()) }

// Close lets the workers finish what was submitted; what was only pushed ends with
// ErrClosed.
func (q *poolQueue) Close() error {
	if q.closed.Swap(true) {
		return ErrClosed
	}
	q.d.forget(q, nil)
	close(q.work)
	q.group.Wait()
	for len(q.done) > 0 {
		q.finish(<-q.done)
	}
	for _, op := range q.pushed {
		op.Err = op.failure(ErrClosed)
		q.report(op)
	}
	q.pushed = nil
	return nil
}
