package store

import (
	"errors"
	"fmt"
	"slices"

	"github.com/ringfence/ringfence/segfile"
	"github.com/ringfence/ringfence/segfile/disk"
	"github.com/ringfence/ringfence/segfile/record"
)

// Append is one frame on its way to a segment. The caller fills the first group,
// hands it to [Segment.Append], and owns it and its memory again when Done runs.
type Append struct {
	// Frame is a whole frame as record.Builder.Finish leaves it. It lies at the start of
	// memory from the disk's Arena, or registered with the disk, and its capacity reaches
	// to the next multiple of disk.Block. The store stamps the offset into it. From Append
	// to Done its content is the store's.
	Frame []byte
	// Foreign says that another process can write to the memory of Frame, which is
	// registered with the disk, and that Head is the header as it was verified: the memory
	// is not trusted again (foreign.go). Without Foreign, Head is not used.
	Foreign bool
	Head    record.Head
	// Done runs once, on a goroutine of the store's choosing, when the outcome is
	// known. It must not block and may append again.
	Done func(*Append)
	// Lead says that the caller will call Wait or Drive at once, and so reap for itself.
	Lead bool
	// Answering says that the caller is in a Done. The frame is sent after all those that
	// are answered in this round, together with what they append.
	Answering bool

	// First and Last are the offsets of the first and last record that were stored now.
	// With Duplicate, all records had been stored before, and the offsets are not known. If
	// only some had been, New holds the places in Frame of those stored now.
	First, Last uint64
	Duplicate   bool
	New         []uint32
	// Err is nil if the frame is durable. After a *SealedError, go on in the successor.
	// After ErrStorage the outcome is unknown until the segment is fenced: the records
	// count neither as stored nor as lost.
	Err error

	head    record.Head
	stamp   [record.HeaderSize]byte // of a foreign frame: its header as it is written
	trimmed []byte                  // arena memory of a rebuilt frame
	grows   int64                   // how much its file grows for it
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

// judge says, on the submitter, which frame to write for a: its own, or one without the
// records that the producer sent before. nil means none: all of it was stored before, or
// a.Err says why it cannot be stored.
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

// rebuild puts the new records of a into a frame in a.trimmed. It may be longer than the
// original: it is not compressed, and it has to say which sequences are left out.
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
		return a.Frame, nil // all are new: its slices of the keys had just come unequally far
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
		return append(a.Frame[:0], frame...), nil // nobody reads the original any more
	}
	return nil, fmt.Errorf("%w: no memory to leave out what was sent before", ErrOverloaded)
}
