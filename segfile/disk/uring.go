package disk

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/ringfence/ringfence/ring"
)

var errForeignFile = fmt.Errorf("%w: the file is not of this disk", ErrInvalid)

// ringFiles is the size of a ring's table of registered files.
const ringFiles = 512

const _ = uint(ring.MaxPieces - MaxPieces) // the ring takes what a queue takes

// ringQueue is a queue over one io_uring. Each operation has a slot with a ring.Op
// of its own, made once, so that moving data allocates nothing.
type ringQueue struct {
	d     *osDisk // set once, like all of this group
	r     *ring.Ring
	index int // in osDisk.rings, or -1
	depth int
	slots []ringSlot

	inFlight atomic.Int64
	closed   atomic.Bool

	mu   sync.Mutex // guards free; innermost
	free []uint32
}

type ringSlot struct {
	op   ring.Op
	user *Op
	file *osFile
}

// openRing opens a ring with the arena and a table of files registered, or without
// what the kernel refuses. An arena that is not touched yet is registered later.
func (d *osDisk) openRing(depth int) (*ring.Ring, error) {
	o := ring.Options{Entries: uint32(depth), Files: ringFiles, RawWait: d.opts.RawWait, Spare: spareBuffers}
	if d.touched {
		o.Buffers = [][]byte{d.arena.Bytes()}
	} else {
		o.Spare += int(d.arena.Size()>>30) + 1
	}
	r, err := ring.Open(o)
	if err != nil && !errors.Is(err, ring.ErrUnavailable) {
		o.Files = 0 // the limit of open files may be smaller than the table
		r, err = ring.Open(o)
	}
	return r, err
}

// newRingQueue makes a queue. The caller holds d.pinning and d.mu.
func newRingQueue(d *osDisk, depth int) (*ringQueue, error) {
	r, err := d.openRing(depth)
	if err != nil {
		return nil, fmt.Errorf("disk: queue of depth %d: %w", depth, err)
	}
	for _, m := range d.memories.All() {
		if err := pin(r, m.mem); err != nil {
			return nil, errors.Join(fmt.Errorf("disk: queue of depth %d: %w", depth, err), r.Close())
		}
	}
	q := &ringQueue{d: d, r: r, index: -1, depth: min(depth, r.Depth())}
	q.slots, q.free = make([]ringSlot, q.depth), make([]uint32, q.depth)
	for i := range q.slots {
		s := &q.slots[i]
		s.op.Tag = uint64(i)
		s.op.Done = q.finish
		q.free[i] = uint32(q.depth - 1 - i)
	}
	if r.Info().Registered {
		d.info.Registered = true
	}
	for i := range d.rings {
		if d.rings[i] == nil {
			d.rings[i], q.index = r, i
			break
		}
	}
	return q, nil
}

func (q *ringQueue) Push(op *Op) error {
	if q.closed.Load() {
		return ErrClosed
	}
	i, ok := q.slot()
	if !ok {
		return ErrFull
	}
	f, err := q.d.take(op)
	if err == nil {
		s := &q.slots[i]
		s.user, s.file = op, f
		s.fill(f.descriptor(q))
		op.Impl.Index = i
		q.inFlight.Add(1)
		if err = q.r.Push(&s.op); err == nil {
			return nil
		}
		q.inFlight.Add(-1)
		s.user, s.file = nil, nil
		op.Release()
		f.release()
	}
	q.giveBack(i)
	switch {
	case errors.Is(err, ring.ErrFull):
		return ErrFull
	case errors.Is(err, ring.ErrClosed):
		return ErrClosed
	}
	return err
}

// fill says what the ring is to do.
func (s *ringSlot) fill(fd int, flags ring.Flags) {
	s.op.FD, s.op.Flags = fd, flags
	switch s.user.Kind {
	case Write:
		s.op.Code = ring.Write
		if s.user.Durable {
			s.op.Flags |= ring.DSync
		}
	case Read:
		s.op.Code = ring.Read
	case Sync:
		s.op.Code, s.op.Buf, s.op.More, s.op.Off = ring.Sync, nil, nil, 0
		s.op.Flags |= ring.Datasync
		return
	}
	s.op.Buf, s.op.More, s.op.Off = s.user.Buf, s.user.More, s.user.Off
}

// descriptor is how the ring names f. The first operation of a file on a queue
// registers it, if there is room.
func (f *osFile) descriptor(q *ringQueue) (int, ring.Flags) {
	if q.index < 0 {
		return f.fd, 0
	}
	p := f.places[q.index].Load()
	if p == nil || p.r != q.r {
		p = &place{q.r, -1}
		if n, err := q.r.RegisterFile(f.fd); err == nil {
			p.slot = n
		}
		f.places[q.index].Store(p)
	}
	if p.slot < 0 {
		return f.fd, 0
	}
	return p.slot, ring.FixedFile
}

func (q *ringQueue) slot() (uint32, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	last := len(q.free) - 1
	if last < 0 {
		return 0, false
	}
	i := q.free[last]
	q.free = q.free[:last]
	return i, true
}

func (q *ringQueue) giveBack(i uint32) {
	q.mu.Lock()
	q.free = append(q.free, i)
	q.mu.Unlock()
}

// finish ends an operation: the slot is free, and the file may close, before the
// caller's Done runs.
func (q *ringQueue) finish(r *ring.Op) {
	s := &q.slots[r.Tag]
	op, f := s.user, s.file
	op.N = int(r.Res)
	if r.Err != nil {
		op.Err = op.failure(fromRing(r.Err))
	}
	s.user, s.file, s.op.Buf, s.op.More = nil, nil, nil, nil
	q.giveBack(uint32(r.Tag))
	op.Release()
	f.release()
	q.inFlight.Add(-1)
	op.Done(op)
}

func fromRing(err error) error {
	switch {
	case errors.Is(err, ring.ErrShort):
		return ErrShort
	case errors.Is(err, ring.ErrClosed):
		return ErrClosed
	}
	return err
}

func (q *ringQueue) Submit() error {
	if q.closed.Load() {
		return ErrClosed
	}
	return q.r.Submit()
}

func (q *ringQueue) Wait(min int) (int, error) {
	if q.closed.Load() {
		return 0, ErrClosed
	}
	return q.r.Wait(min)
}

func (q *ringQueue) Depth() int    { return q.depth }
func (q *ringQueue) InFlight() int { return int(q.inFlight.Load()) }

func (q *ringQueue) Close() error {
	if q.closed.Swap(true) {
		return ErrClosed
	}
	err := q.r.Close()
	q.d.forget(q, q.r)
	return err
}

// forget takes a closed queue off the disk's books. A later queue may get its index:
// files tell the two apart by the ring.
func (d *osDisk) forget(q Queue, r *ring.Ring) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.queues, q)
	for i := range d.rings {
		if r != nil && d.rings[i] == r {
			d.rings[i] = nil
		}
	}
}
