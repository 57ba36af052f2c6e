package store

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/ringfence/ringfence/segfile"
	"github.com/ringfence/ringfence/segfile/disk"
	"github.com/ringfence/ringfence/segfile/record"
)

// Append is one frame on its way to a segment. The caller fills the first group,
// hands it to [Segment.Append], and owns it and its memory again when Done runs.
type Append struct {
	// Frame is a whole frame as record.Builder.Finish leaves it, at the start of
	// memory from the disk's Arena, or registered with the disk, whose capacity reaches
	// to the next multiple of disk.Block. The store stamps its offset into it.
	// Once taken, its content is the store's.
	Frame []byte
	// Foreign says that Frame lies in memory, registered with the disk, that another
	// process can write, and that Head is its header as it was verified. Nothing of it is
	// believed again (foreign.go); otherwise Head is not looked at.
	Foreign bool
	Head    record.Head
	// Done runs once, on a goroutine of the store's choosing, when the outcome is
	// known. It must not block and may append again.
	Done func(*Append)
	// Lead says that the caller calls Wait or Drive at once, so that it reaps for itself.
	Lead bool
	// Answering says that the caller is in a Done: the frame starts when the others that
	// are answered at the same time have been, with what they append.
	Answering bool

	// First and Last are the offsets of the first and last record now stored; with
	// Duplicate, every record was stored before and they are not known. Where some
	// were, New holds the places in Frame of those that are stored now.
	First, Last uint64
	Duplicate   bool
	New         []uint32
	// Err is nil if the frame is durable. A *SealedError: continue in the successor.
	// After ErrStorage the outcome is unknown until the segment is fenced; the
	// records may not be counted as stored or as lost.
	Err error

	head    record.Head
	stamp   [record.HeaderSize]byte // of a foreign frame: its header as it is written
	trimmed []byte                  // arena memory of a rebuilt frame
	grows   int64                   // what its file grows by for it
	gate    gate
}

// Append queues a. It returns an error, and never calls Done, when the append
// cannot be taken: a *SealedError, ErrOverloaded, ErrOutOfSpace, ErrStorage.
func (s *Segment) Append(a *Append) error {
	head := a.Head
	if !a.Foreign {
		var err error
		if head, err = record.ParseHead(a.Frame, 0); err != nil {
			return err
		}
	}
	if n := len(a.Frame); n != int(head.FrameLen) || head.Flags != 0 || cap(a.Frame) < roundUp(n, disk.Block) {
		return fmt.Errorf("%w: %d bytes of memory for %d with a frame of %d records in %d bytes", record.ErrUsage, cap(a.Frame), n, head.Count, head.FrameLen)
	}
	a.head, a.Err, a.Duplicate, a.New = head, nil, false, nil
	a.First, a.Last = 0, 0

	sh := s.shard
	if sh == nil { // recovered
		end, _ := s.Fenced()
		return &SealedError{Segment: s.meta.ID, End: end.Offset}
	}
	sh.mu.Lock()
	if err := s.admit(a); err != nil {
		sh.mu.Unlock()
		return err
	}
	a.gate.reset()
	s.queue.push(a)
	s.queued += int64(len(a.Frame))
	sh.markReady(s)
	look := s.claim(a)
	if !a.Answering || !sh.delivering {
		sh.pump(a.Lead)
	}
	sh.mu.Unlock()
	if look {
		s.store.grown()
	}
	return nil
}

// Wait blocks until a, which s accepted, is answered; it reaps meanwhile if nobody
// else does.
func (s *Segment) Wait(a *Append) { s.shard.await(&a.gate) }

// Drive reaps until a, which s accepted, is answered, unless somebody else reaps: then it
// returns at once. The caller keeps a from being used again meanwhile.
func (s *Segment) Drive(a *Append) { s.shard.drive(&a.gate) }

// admit says whether s takes a now. The shard's mu is held.
func (s *Segment) admit(a *Append) error {
	switch {
	case s.shard.closed:
		return s.wrap(ErrClosed)
	case s.failed != nil:
		return s.wrap(s.failed)
	case s.phase == fencing:
		return &SealedError{Segment: s.meta.ID, Fencing: true}
	case s.phase == fenced:
		return &SealedError{Segment: s.meta.ID, End: s.end.Offset}
	case s.store.OutOfSpace():
		return s.wrap(s.store.noSpace())
	case s.queued+int64(len(a.Frame)) > s.store.opts.QueueBytes && s.queue.len() > 0:
		return s.wrap(ErrOverloaded)
	}
	return nil
}

// answer releases whoever waits for a.
func (a *Append) answer() {
	done := a.Done
	a.gate.release()
	if done != nil {
		done(a)
	}
}

// judge says, on the submitter, what of a is written: its frame, a shorter one
// without the records the producer sent before, or nil: all of it was stored
// before, or a.Err says why none of it can be.
func (s *Segment) judge(a *Append) []byte {
	table := s.writer.Table()
	verdict, err := table.Judge(&a.head)
	switch {
	case errors.Is(err, segfile.ErrSequenceGap):
		a.Err = s.wrap(fmt.Errorf("%w: sequence %d follows %d: %w", ErrGap, a.head.FirstSeq, a.head.PrevSeq, err))
	case errors.Is(err, segfile.ErrUnknownProducer):
		a.Err = s.wrap(fmt.Errorf("%w: producer %d: %w", ErrUnknownProducer, a.head.Producer, err))
	case err != nil:
		a.Err = s.wrap(err)
	case verdict == segfile.Fresh:
		return a.Frame
	case verdict == segfile.Duplicate:
		a.Duplicate = true
		s.store.count.duplicates.Add(uint64(a.head.Count))
	default:
		return s.trim(a, table)
	}
	return nil
}

// trim rebuilds a's frame without what was stored before, in memory that is given
// back with the flush.
func (s *Segment) trim(a *Append, table *segfile.ProducerTable) []byte {
	frame, err := s.rebuild(a, table)
	switch {
	case errors.Is(err, record.ErrEmpty):
		a.Duplicate = true
		s.store.count.duplicates.Add(uint64(a.head.Count))
		return nil
	case err != nil:
		a.Err = s.wrap(err)
		return nil
	}
	count := a.head.Count
	if a.head, err = record.ParseHead(frame, 0); err != nil {
		a.Err = s.wrap(err)
		return nil
	}
	s.store.count.duplicates.Add(uint64(count - a.head.Count))
	return frame
}

// rebuild puts the records of a that are new into a frame in a.trimmed. It may be
// longer than the one that came: it is not compressed, and says which sequences
// are left out.
func (s *Segment) rebuild(a *Append, table *segfile.ProducerTable) ([]byte, error) {
	frame := a.Frame
	if a.Foreign {
		frame = a.private()
	}
	var scratch record.Scratch
	b, err := record.Verify(frame, 0, &scratch)
	if err != nil {
		if a.Foreign {
			err = fmt.Errorf("%w: %w", ErrChanged, err)
		}
		return nil, err
	}
	var fresh []uint32
	for i := range b.Len() {
		if !table.Seen(a.head.Producer, b.Seq(i), b.Position(i)) {
			fresh = append(fresh, uint32(i))
		}
	}
	if len(fresh) == b.Len() {
		return a.Frame, nil // two slices of the keys had come unequally far
	}
	frame, err = record.Trim(nil, b, a.head.PrevSeq, func(i int) bool {
		_, ok := slices.BinarySearch(fresh, uint32(i))
		return ok
	})
	if err != nil {
		return nil, err
	}
	a.New = fresh
	if slab, ok := s.store.disk.Arena().Alloc(roundUp(len(frame), disk.Block)); ok {
		a.trimmed = slab
		return slab[:copy(slab, frame)], nil
	}
	if room := cap(a.Frame); !a.Foreign && room >= roundUp(len(frame), disk.Block) {
		return append(a.Frame[:0], frame...), nil // it is read no more
	}
	return nil, fmt.Errorf("%w: no memory to leave out what was sent before", ErrOverloaded)
}

// A fifo is a queue of appends in one reused slice.
type fifo[T any] struct {
	items []T
	head  int
}

func (f *fifo[T]) len() int { return len(f.items) - f.head }

func (f *fifo[T]) push(x T) {
	if f.head > 0 && len(f.items) == cap(f.items) {
		n := copy(f.items, f.items[f.head:])
		clear(f.items[n:])
		f.items, f.head = f.items[:n], 0
	}
	f.items = append(f.items, x)
}

// all is what is in it, to be looked at.
func (f *fifo[T]) all() []T { return f.items[f.head:] }

func (f *fifo[T]) peek() T { return f.items[f.head] }

func (f *fifo[T]) pop() T {
	x := f.items[f.head]
	var zero T
	f.items[f.head] = zero
	f.head++
	if f.head == len(f.items) {
		f.items, f.head = f.items[:0], 0
	}
	return x
}

// unpop puts xs, which were popped last, back in front.
func (f *fifo[T]) unpop(xs []T) {
	if f.head >= len(xs) {
		f.head -= len(xs)
		copy(f.items[f.head:], xs)
		return
	}
	f.items = append(append([]T(nil), xs...), f.items[f.head:]...)
	f.head = 0
}

// counters of one store, for Stats.
type counters struct {
	appends, records, duplicates      atomic.Uint64
	flushes, flushBytes, payloadBytes atomic.Uint64
	failures, damages                 atomic.Uint64
	changed, voided                   atomic.Uint64
	latency                           DurationCounter // of flushes
}
