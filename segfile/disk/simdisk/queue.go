package simdisk

import (
	"errors"
	"fmt"
	"hash/maphash"
	"slices"
	"syscall"

	"github.com/ringfence/ringfence/segfile/disk"
)

// queue keeps operations in flight and ends them in random order. A write takes
// effect when it is submitted or when it ends, by chance; both are seen on real
// disks, so nobody may rely on either.
type queue struct {
	d     *Disk
	id    uint64
	depth int

	// Guarded by the tree's mu.
	pushed []*flight
	flying []*flight // submitted, in order
	closed bool
}

// flight is one operation of a queue.
type flight struct {
	op       *disk.Op
	order    uint64 // of Submit, over all queues
	f        *file
	ev       Event
	w        write  // Write
	started  bool   // Write: it has taken effect
	n        int    // Write: bytes, if started
	err      error  // Write: what starting it gave
	snapshot uint64 // Sync: the clock at Submit
	sum      uint64 // Write: of the buffer at Submit
	hold     *Hold
}

var hashSeed = maphash.MakeSeed()

func (d *Disk) NewQueue(depth int) (disk.Queue, error) {
	if depth < 1 || depth > disk.MaxDepth {
		return nil, fmt.Errorf("%w: a queue of depth %d (1 to %d)", disk.ErrInvalid, depth, disk.MaxDepth)
	}
	d.t.mu.Lock()
	defer d.t.mu.Unlock()
	if d.closed {
		return nil, disk.ErrClosed
	}
	d.t.ids++
	q := &queue{d: d, id: d.t.ids, depth: depth}
	d.queues[q] = true
	return q, nil
}

func (q *queue) Depth() int { return q.depth }

func (q *queue) InFlight() int {
	q.d.t.mu.Lock()
	defer q.d.t.mu.Unlock()
	return len(q.pushed) + len(q.flying)
}

func (q *queue) Push(op *disk.Op) error {
	if err := op.Check(q.d.Arena(), &q.d.memories); err != nil {
		return err
	}
	if err := q.push(op); err != nil {
		op.Release()
		return err
	}
	return nil
}

func (q *queue) push(op *disk.Op) error {
	f, ok := op.File.(*file)
	if !ok || f.d != q.d {
		return fmt.Errorf("%w: file %s is not of this disk", disk.ErrInvalid, op.File.Name())
	}
	t := q.d.t
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case q.closed || f.closed:
		return disk.ErrClosed
	case len(q.pushed)+len(q.flying) >= q.depth:
		return disk.ErrFull
	}
	ev := Event{Action: action(op.Kind), Name: f.Name(), Queued: true}
	if op.Kind != disk.Sync {
		ev.Off, ev.Len, ev.Durable = op.Off, int64(op.Len()), op.Durable && op.Kind == disk.Write
	}
	op.N, op.Err = 0, nil
	f.n.users++
	q.pushed = append(q.pushed, &flight{op: op, f: f, ev: ev})
	return nil
}

func action(k disk.Kind) Action {
	switch k {
	case disk.Write:
		return Write
	case disk.Read:
		return Read
	}
	return Sync
}

func (q *queue) Submit() error {
	t := q.d.t
	t.mu.Lock()
	defer t.mu.Unlock()
	if q.closed {
		return disk.ErrClosed
	}
	batch := q.pushed
	q.pushed = nil
	for _, fl := range batch {
		ev := fl.ev
		ev.Action = Submit
		t.record(ev, 0, nil)
		for _, h := range t.holds {
			if fl.hold == nil && h.match(fl.ev) {
				fl.hold = h
				h.held++
			}
		}
		t.ids++
		fl.order, fl.snapshot = t.ids, t.clock
		if fl.op.Kind == disk.Write {
			fl.w = t.newWrite()
			fl.sum = maphash.Bytes(hashSeed, bytesOf(fl.op))
			if !t.cut && !fl.f.readOnly && t.rng.IntN(2) == 0 {
				fl.started = true
				fl.n, fl.err = t.write(fl.f.n, fl.w, bytesOf(fl.op), fl.op.Off, nil)
			}
		}
		q.flying = append(q.flying, fl)
	}
	t.wake.Broadcast()
	return nil
}

func (q *queue) Wait(min int) (int, error) {
	t := q.d.t
	t.mu.Lock()
	if q.closed {
		t.mu.Unlock()
		return 0, disk.ErrClosed
	}
	var done []*disk.Op
	for {
		free := q.free()
		want := min - len(done)
		if n := len(free); n > 0 {
			take := t.rng.IntN(n + 1)
			for take = max(take, want); take > 0 && len(free) > 0; take-- {
				i := t.rng.IntN(len(free))
				done = append(done, q.end(free[i]))
				free = slices.Delete(free, i, i+1)
			}
		}
		if len(done) >= min || len(q.flying) == 0 || q.closed {
			break
		}
		t.wake.Wait()
	}
	t.mu.Unlock()
	for _, op := range done {
		op.Done(op)
	}
	return len(done), nil
}

// free lists the operations that may end now.
func (q *queue) free() []*flight {
	var free []*flight
	for _, fl := range q.flying {
		if fl.hold == nil || !slices.Contains(q.d.t.holds, fl.hold) {
			free = append(free, fl)
		}
	}
	return free
}

// end completes one operation. The caller holds mu and runs Done without it.
func (q *queue) end(fl *flight) *disk.Op {
	t, op, n := q.d.t, fl.op, fl.f.n
	i := slices.Index(q.flying, fl)
	if i > 0 {
		t.counts.Reordered++
	}
	q.flying = slices.Delete(q.flying, i, i+1)
	if op.Kind != disk.Sync && !op.Claims() && !q.holds(op) {
		panic(fmt.Sprintf("simdisk: the buffer of %v was freed while in flight", fl.ev))
	}
	fl.ev.Name = fl.f.Name()
	verdict := t.admit(fl.ev)
	var err error
	switch op.Kind {
	case disk.Write:
		op.N, err = t.endFlight(fl, verdict)
	case disk.Read:
		op.N, err = n.readVerdict(op.Buf, op.Off, verdict)
	case disk.Sync:
		err = t.syncVerdict(n, fl.snapshot, verdict)
	}
	q.finish(fl, err)
	return op
}

// bytesOf is what an operation writes, in one piece.
func bytesOf(op *disk.Op) []byte {
	if len(op.More) == 0 {
		return op.Buf
	}
	return slices.Concat(append([][]byte{op.Buf}, op.More...)...)
}

// holds says whether all memory of op is still allocated.
func (q *queue) holds(op *disk.Op) bool {
	return q.d.Arena().Contains(op.Buf) && !slices.ContainsFunc(op.More, func(b []byte) bool { return !q.d.Arena().Contains(b) })
}

// endFlight completes a write. One that took effect at Submit and fails now has
// written everything and proves nothing.
func (t *tree) endFlight(fl *flight, verdict error) (got int, err error) {
	op, n := fl.op, fl.f.n
	data := bytesOf(op)
	if maphash.Bytes(hashSeed, data) != fl.sum {
		t.counts.ChangedBuffers++
	}
	switch short := (shortError{}); {
	case fl.f.readOnly:
		return 0, syscall.EBADF
	case !fl.started:
		got, err = t.writeVerdict(n, fl.w, data, op.Off, verdict)
	case verdict == nil:
		got, err = fl.n, fl.err
	default:
		err = verdict
		if errors.As(verdict, &short) {
			got = min(short.n, len(data))
		}
	}
	t.endWrite(n, fl.w, op.Off, int64(len(data)), op.Durable, err)
	return got, err
}

func (q *queue) finish(fl *flight, err error) {
	if err != nil {
		err = &disk.OpError{Op: string(fl.ev.Action), File: fl.ev.Name, Off: fl.ev.Off, Len: int(fl.ev.Len), Err: reported(err)}
	}
	fl.op.Err = err
	fl.op.Release()
	q.d.t.record(fl.ev, fl.op.N, err)
	fl.f.n.users--
	q.d.t.release(fl.f.n)
}

func (q *queue) Close() error {
	t := q.d.t
	t.mu.Lock()
	if q.closed {
		t.mu.Unlock()
		return disk.ErrClosed
	}
	q.closed = true
	delete(q.d.queues, q)
	var done []*disk.Op
	for len(q.flying) > 0 {
		done = append(done, q.end(q.flying[t.rng.IntN(len(q.flying))]))
	}
	for _, fl := range q.pushed {
		q.finish(fl, disk.ErrClosed)
		done = append(done, fl.op)
	}
	q.pushed = nil
	t.wake.Broadcast()
	t.mu.Unlock()
	for _, op := range done {
		op.Done(op)
	}
	return nil
}
