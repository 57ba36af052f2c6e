package engine

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"

	"github.com/ringfence/ringfence/segfile/disk"
	"github.com/ringfence/ringfence/segfile/record"
)

// Frame is memory for one record frame that was built elsewhere: the engine's own, to be
// filled from a socket, or lent by whoever built the frame (Producer.Lend). It goes to the
// device from where it lies. It is not safe for concurrent use; it ends with Send or
// Discard.
type Frame struct {
	p    *Producer
	b    *batch
	size int
}

// NewFrame returns memory for a frame of size bytes. It waits for memory until ctx
// ends.
//
// It is for the other packages of this module alone.
func (p *Producer) NewFrame(ctx context.Context, size int) (*Frame, error) {
	if most := p.MaxFrame(); size <= record.HeaderSize || size > most {
		return nil, about(p.name, -1, fmt.Errorf("%w: a frame of %d bytes, at most %d", ErrRecordTooLarge, size, most))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, ErrClosed
	}
	b, err := p.freshBatch(ctx, (size+disk.Block-1)/disk.Block*disk.Block)
	if err != nil {
		return nil, about(p.name, -1, err)
	}
	return &Frame{p: p, b: b, size: size}, nil
}

// MaxFrame is the size of the largest frame that NewFrame gives memory for.
func (p *Producer) MaxFrame() int { return largestBatch(p.e.opts.ArenaBytes) }

// Header is the frame's header, once the frame is filled: the copy that Send goes by.
func (f *Frame) Header() []byte {
	if l := f.b.loan; l != nil {
		return l.header[:]
	}
	return f.b.slab[:record.HeaderSize]
}

// Bytes is the memory to fill.
func (f *Frame) Bytes() []byte { return f.b.slab[:f.size] }

// Discard gives back the memory of a frame that was not sent.
func (f *Frame) Discard() {
	if f.b == nil {
		return
	}
	if f.b.loan != nil {
		f.p.free(f.b)
	}
	f.p.mu.Lock()
	f.p.recycle(f.b)
	f.p.mu.Unlock()
	f.b = nil
}

// Send verifies the frame and hands it over. Its records are the producer's next, under the
// sequences that the frame gives them, which must be higher than those sent before. Only
// the last few frames may be sent again, unchanged; any other frame with lower sequences is
// refused with record.ErrSequence, because it would be taken for a repeat whatever it
// contains. To send more again, open the producer again under its ID.
//
// Send waits, and calls done, as [Batch.Send] does. After an error the frame was not sent.
//
// lead says that the caller has nothing else to do: if nobody else is waiting for the disk,
// Send does so itself, for this frame and for all that others send meanwhile, and returns
// after done was called.
func (f *Frame) Send(ctx context.Context, lead bool, done func(Placement, error)) error {
	if f.b == nil {
		return ErrBatchSent
	}
	p := f.p
	head, err := f.verify(ctx)
	b := f.b
	if err == nil {
		err = p.fits(&head, f.size)
	}
	if err != nil {
		return about(p.name, -1, err)
	}
	head.PrevSeq, head.Base, head.Durable = 0, 0, 0
	b.frame = b.slab[:f.size]
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.room(ctx, head.MinPos); err != nil {
		return err
	}
	if !p.opts.NotIdempotent && !p.follows(&head) {
		return about(p.name, -1, fmt.Errorf("%w: a frame of sequences %d to %d behind one that ends with %d: frames of a producer ascend; open it again to send again",
			record.ErrSequence, head.FirstSeq, head.LastSeq, p.seq))
	}
	f.b = nil
	b.info, b.age = head, p.age
	p.seq = max(p.seq, head.LastSeq)
	p.pending[p.age] += int(head.Count)
	b.calls = append(b.calls, call{at: wholeBatch, done: done})
	if !lead {
		p.enqueue(b, nil)
		return nil
	}
	b.waiters.Add(1) // keeps b from being recycled before leave
	if p.enqueue(b, b) {
		to := b.head
		p.mu.Unlock()
		to.Drive(&b.req)
		p.mu.Lock()
	}
	b.leave(p)
	return nil
}

// sentFrame identifies a frame that Send took, to recognise it if it comes again.
type sentFrame struct{ first, last, hash uint64 }

// follows says whether a frame's sequences are above all that were sent, or it is one of
// the last frames again. mu is held.
func (p *Producer) follows(h *record.Head) bool {
	f := sentFrame{h.FirstSeq, h.LastSeq, h.Hash}
	if h.FirstSeq <= p.seq {
		return slices.Contains(p.sent[:], f)
	}
	p.sent[p.sentAt] = f
	p.sentAt = (p.sentAt + 1) % len(p.sent)
	return true
}

// verify verifies the frame. A compressed one that is lent is copied first.
func (f *Frame) verify(ctx context.Context) (record.Head, error) {
	if f.b.loan != nil {
		head, err := record.VerifyShared(f.Header(), f.Bytes(), 0)
		if !errors.Is(err, record.ErrUsage) {
			return head, err
		}
		if err := f.copy(ctx); err != nil {
			return head, err
		}
	}
	return f.p.e.verify(f.Bytes())
}

// copy moves a lent frame to memory of the engine, for which it waits, and ends the loan.
func (f *Frame) copy(ctx context.Context) error {
	own, err := f.p.NewFrame(ctx, f.size)
	if err != nil {
		return err
	}
	copy(own.Bytes(), f.Bytes())
	copy(own.Bytes(), f.Header())
	f.Discard()
	f.b = own.b
	return nil
}

// verify verifies a foreign frame. Decompressed it may be a thousand times as long; so at
// most one per processor is verified at a time, in memory that is reused.
func (e *Engine) verify(frame []byte) (record.Head, error) {
	s := <-e.scratches
	defer func() { e.scratches <- s }()
	view, err := record.Verify(frame, 0, s)
	return view.Head, err
}

func newScratches() chan *record.Scratch {
	n := runtime.GOMAXPROCS(0)
	c := make(chan *record.Scratch, n)
	for range n {
		c <- new(record.Scratch)
	}
	return c
}

// fits refuses a frame that is not one of the producer's.
func (p *Producer) fits(h *record.Head, size int) error {
	switch {
	case int(h.FrameLen) != size:
		return fmt.Errorf("%w: the frame has %d bytes, and says %d", record.ErrCorrupt, size, h.FrameLen)
	case h.Flags != 0:
		return fmt.Errorf("%w: a frame with flags %#x, which are the engine's", record.ErrCorrupt, h.Flags)
	case h.Producer != p.opts.ID:
		return fmt.Errorf("%w: the frame is of producer %d, sent as producer %d", record.ErrCorrupt, h.Producer, p.opts.ID)
	case (h.FirstSeq == 0) != p.opts.NotIdempotent:
		return fmt.Errorf("%w: a producer numbers all its records or none", record.ErrCorrupt)
	}
	return nil
}

// room waits until the lane of a key position takes another batch. mu is held, and
// released while waiting.
func (p *Producer) room(ctx context.Context, pos uint32) error {
	for {
		if err := p.ready(ctx); err != nil {
			return err
		}
		if len(p.laneOf(pos).waiting) < p.opts.MaxInFlight {
			return nil
		}
		if err := p.wait(ctx); err != nil {
			return about(p.name, -1, err)
		}
	}
}
