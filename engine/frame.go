package engine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"

	"github.com/ringfence/ringfence/engine/api"
	"github.com/ringfence/ringfence/segfile/disk"
	"github.com/ringfence/ringfence/segfile/record"
)

// Frame is memory for one record frame that was built elsewhere: of the engine, filled
// from a socket, or lent by whoever built it (Producer.Lend). It goes to the device from
// where it lies. One goroutine uses it, until Send or Discard.
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

// Header is the frame's header, once it is filled: what Send goes by.
func (f *Frame) Header() []byte {
	if l := f.b.loan; l != nil {
		return l.header[:]
	}
	return f.b.slab[:record.HeaderSize]
}

// Bytes is the memory to fill.
func (f *Frame) Bytes() []byte { return f.b.slab[:f.size] }

// Discard gives the memory of a frame back that was not sent.
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

// Send verifies the frame and hands it over: its records are the producer's next, with
// the sequences that it says, each higher than those sent before. One of the last few
// frames may come again as it was; what else comes with lower sequences is refused with
// record.ErrSequence, or it would be taken for a repeat whatever it says. Who sends more
// again opens the producer again, under its ID.
// done hears when all of them are durable, as with [Batch.Send], whose waiting it
// shares. After an error the frame was not sent.
//
// With lead the caller has nothing else to do: where nobody waits for the disk, Send does
// so itself, for this frame and all that others send meanwhile, and returns when done
// was called.
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
		p.dispatch(b, nil)
		return nil
	}
	b.waiters.Add(1) // it is not used again before leave
	if p.dispatch(b, b) {
		to := b.head
		p.mu.Unlock()
		to.Drive(&b.req)
		p.mu.Lock()
	}
	b.leave(p)
	return nil
}

// sentFrame is a frame that Send took, for finding out whether it comes again.
type sentFrame struct{ first, last, hash uint64 }

// follows says whether a frame is behind all that was sent, or one of the last again. mu is
// held.
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

// copy takes a lent frame into memory of the engine, which it waits for, and ends the
// loan.
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

// verify verifies a foreign frame. Decompressed it may be a thousand times as long, so no
// more are looked at at a time than there are processors, in memory that is used again.
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

// FramePage is a page of stored frames of [ConsumerOptions.Topic]: verified copies of
// them, or where they lie in a file.
type FramePage struct {
	Range uint32
	// First and Next are the offsets of the first record to take from the frames and of
	// the one behind the last. The frames may begin before.
	First, Next uint64
	Mark        uint32 // of the records, for cursors
	Skips       []Skip
	CaughtUp    bool     // there was nothing more
	Finished    []uint32 // ranges of a member that are read to their ends for good, from this page on
	Frames      []byte   // whole frames without salt, one after another; valid until the next call

	// In place of Frames: Length bytes of File from Position on, as they are stored. The
	// first frame begins there and the last ends with them; zeros lie between frames, up
	// to the next multiple of record.FrameAlign behind Position or a later one, less than
	// a disk.Block of them. Their heads were parsed with Salt, and nothing else of them
	// was looked at. The receiver closes File; the bytes stay what they are until the
	// consumer's next call, or its Close.
	File             *os.File
	Position, Length int64
	Salt             uint64
	// Give says whether a descriptor of File may be given to another process that may read
	// the topic, for good: it holds nothing but one segment of it, and ever will. It may
	// be called as long as the bytes stay what they are.
	Give func() bool
}

// FetchFrames is [Consumer.Fetch] for those who pass frames on: about maxBytes of them,
// and one at least where there is one. With stored they may come as they lie in a file,
// where their segment is closed and they are worth it.
//
// It is for the other packages of this module alone.
func (c *Consumer) FetchFrames(maxBytes int, stored bool) (FramePage, error) {
	c.frames = FramePage{Frames: c.frames.Frames[:0]}
	c.frameBytes, c.stored = max(maxBytes, 1), stored
	page, err := c.Fetch(1)
	c.frameBytes = 0
	c.frames.Skips, c.frames.CaughtUp = page.Skips, page.CaughtUp
	if c.share != nil && err == nil {
		c.frames.Finished, c.share.news = c.share.news, nil
	}
	return c.frames, err
}

// rest gives back memory between two pages, whose frames were copied: clients may take
// their time, and there may be many.
func (c *Consumer) rest() {
	for _, src := range c.open {
		if src.batch == nil {
			src.scan.Rest()
		}
	}
}

// stretch makes frames of the source's file the page, if it can.
func (c *Consumer) stretch(src *source) bool {
	if !c.stored || src.batch != nil {
		return false
	}
	st, ok := src.scan.Stretch(int64(c.frameBytes))
	if !ok {
		return false
	}
	p, salt := &c.frames, src.seg.Meta().Salt
	p.Range, p.First, p.Next, p.Mark, p.Salt = src.id.Seq, c.pos[src.id], st.Next, api.MarkOf(salt), salt
	p.File, p.Position, p.Length, p.Give = st.File, st.Position, st.Length, st.Give
	c.pos[src.id], c.marks[src.id] = p.Next, p.Mark
	return true
}

// gather puts the source's batch on the page of frames, and those behind it that can
// be had and fit. Skips between them are on the page too.
func (c *Consumer) gather(src *source) {
	p := &c.frames
	p.Range, p.First, p.Mark = src.id.Seq, src.batch.Head.Base+uint64(src.at), api.MarkOf(src.seg.Meta().Salt)
	for {
		at, h := len(p.Frames), &src.batch.Head
		p.Frames = append(p.Frames, src.batch.Frame()...)
		sent := *h
		sent.Flags = 0 // whether it was lent matters where it lies
		sent.Put(p.Frames[at:], 0)
		p.Next = h.Next()
		c.pos[src.id], c.marks[src.id] = p.Next, p.Mark
		src.batch = nil
		if len(p.Frames) >= c.frameBytes || c.advance(src) != nil {
			return // what is wrong is met again by the next page
		}
		if len(p.Frames)+len(src.batch.Frame()) > c.frameBytes {
			return
		}
	}
}
