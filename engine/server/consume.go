package server

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/ringfence/ringfence/engine/wire"
)

// consumer is one consumer of a connection. What is asked of it is done in the order it
// was asked, by one goroutine at a time.
type consumer struct {
	c      *conn
	handle uint32
	topic  string
	in     Consumer // of the goroutine that does what is asked
	work   tasks

	ctx  context.Context // ends what waits for records
	stop context.CancelFunc

	mu         sync.Mutex // guards the rest; innermost
	cursor     string     // behind the last page
	subscribed bool
	credit     int64         // bytes of frames that may be pushed now
	credited   chan struct{} // tells the subscription of more; holds one
	broken     error         // a page could not be sent: reading on would skip its records
}

// Limits of what is asked of a consumer.
const (
	maxWait  = 30 * time.Second
	minPage  = 64 << 10 // bytes that a page is asked for however short memory is
	pageHead = 512      // bytes of a page's message without cursor and skips, at most
	pageSkip = 64       // and of a skip
)

// creditMost bounds what credit adds up to, in bytes: no client needs more, and no sum
// runs over.
const creditMost = 1 << 40

func (c *conn) newConsumer(topic string, in Consumer) *consumer {
	r := &consumer{
		c: c, topic: topic, in: in, work: tasks{limit: 1, all: &c.work},
		cursor: in.Cursor(), credited: make(chan struct{}, 1),
	}
	r.ctx, r.stop = context.WithCancel(c.calm)
	return r
}

// fetch answers the next page, with a wait for its first record.
func (r *consumer) fetch(h wire.Head, m *wire.Fetch) {
	wait := min(time.Duration(m.WaitMs)*time.Millisecond, maxWait)
	var over <-chan time.Time
	if wait > 0 {
		t := time.NewTimer(wait)
		defer t.Stop()
		over = t.C
	}
	for {
		changed := r.in.Changed()
		p, err := r.page(m.MaxBytes, maxPage, m.Stored)
		if err != nil {
			r.c.fail(h, err)
			return
		}
		if !p.empty() || wait == 0 || r.ctx.Err() != nil {
			r.send(h, wire.FlagReply, p, m.Stored && m.InFile)
			return
		}
		if p.CaughtUp {
			select {
			case <-changed:
			case <-over:
				wait = 0
			case <-r.ctx.Done():
			}
		}
	}
}

// page is a fetched page with what it holds of the budgets.
type page struct {
	FramePage
	raw  int
	held int64
}

func (p *page) empty() bool { return p.raw == 0 && len(p.Skips) == 0 && len(p.Finished) == 0 }

// page fetches the next page once there is room for one. An empty page holds nothing.
func (r *consumer) page(want uint32, most int64, stored bool) (p page, err error) {
	if r.broken != nil {
		return p, r.broken
	}
	if err := r.allowed(); err != nil {
		return p, err
	}
	if want == 0 {
		want = defaultPage
	}
	// Whoever does not take his pages leaves the others something: nobody gets more than
	// a part of what is left.
	total := &r.c.s.pages
	n := min(int64(want), most, max(total.left()/8, minPage))
	if err := r.c.pages.take(r.c.ctx, n); err != nil {
		return p, err
	}
	if n <= minPage && r.c.pages.alone(n) {
		total.give(-n) // a small one of each connection, whatever the others leave unread
	} else if err := total.take(r.c.ctx, n); err != nil {
		r.c.pages.give(n)
		return p, err
	}
	p.FramePage, err = r.in.FetchFrames(int(n), stored)
	for _, f := range p.Frames {
		p.raw += len(f)
	}
	p.held = int64(p.raw) + min(p.Length, writeChunk) // a file's page may be sent through memory
	p.raw += int(p.Length)
	r.c.pages.give(n - p.held)
	total.give(n - p.held)
	if err == nil {
		err = r.fits(&p)
	}
	if err != nil {
		r.release(&p)
		return p, err
	}
	r.mu.Lock()
	r.cursor = p.Cursor
	r.mu.Unlock()
	return p, nil
}

// allowed asks whether the connection may read the topic, now: that can end at any time.
func (r *consumer) allowed() error {
	who := *r.c.who.Load()
	err := r.c.s.allow(who, OpConsume, r.topic)
	if err != nil {
		r.c.refused(wire.KeyFetch, who, r.topic, err)
	}
	return err
}

// fits refuses a page that no frame of the protocol holds. The consumer is past it then
// and must not go on: its client would never see those records.
func (r *consumer) fits(p *page) error {
	head := pageHead + len(p.Cursor) + pageSkip*len(p.Skips) + 4*len(p.Finished)
	if head <= wire.MaxMessage && head+p.raw <= wire.MaxFrame {
		return nil
	}
	r.broken = refusal(wire.CodeFrameTooLarge, "topic %q: a page of %d bytes with %d skips and a cursor of %d bytes cannot be sent: open a consumer behind it",
		r.topic, p.raw, len(p.Skips), len(p.Cursor))
	return r.broken
}

func (r *consumer) release(p *page) {
	if p.File != nil {
		p.File.Close() // it was only read
	}
	r.c.pages.give(p.held)
	r.c.s.pages.give(p.held)
}

// send has a page written and waits until it is: the consumer's next call takes the
// memory of its frames, and its file may be another segment's then. With given the client
// takes a descriptor of that.
func (r *consumer) send(h wire.Head, flags uint16, p page, given bool) {
	m := &wire.Page{
		Consumer: r.handle, Range: p.Range, First: p.First, Next: p.Next, Mark: p.Mark, CaughtUp: p.CaughtUp, Cursor: p.Cursor,
		Finished: p.Finished, Salt: p.Salt,
	}
	for _, s := range p.Skips {
		m.Skips = append(m.Skips, &wire.Skip{Range: s.Range, From: s.From, Offsets: s.Offsets, Damaged: s.Damaged})
	}
	r.c.page(outgoing{
		key: h.Key, flags: flags, id: h.ID, msg: m, raw: p.raw,
		frames: p.Frames, file: p.File, from: p.Position, length: p.Length,
		given: given && p.File != nil && r.c.peer != nil && p.Give(),
	})
	r.release(&p)
}

// subscribe pushes pages while there is credit, until the consumer is closed.
func (r *consumer) subscribe(h wire.Head, m *wire.Subscribe) {
	err := r.push(h, m)
	r.mu.Lock()
	r.subscribed = false
	r.mu.Unlock()
	r.c.subscriptions.Add(-1)
	switch {
	case err != nil:
		r.c.fail(h, err)
	case r.c.s.closing.Load():
		r.c.fail(h, refusal(wire.CodeShuttingDown, "the server is shutting down: subscribe again from the cursor of the last page"))
	default:
		r.c.reply(h, &wire.Done{})
	}
}

func (r *consumer) push(h wire.Head, m *wire.Subscribe) error {
	said := false // that there is nothing more
	for {
		changed := r.in.Changed()
		credit, ok := r.awaitCredit()
		if !ok {
			return nil
		}
		p, err := r.page(m.MaxBytes, min(credit, maxPage), m.Stored)
		if err != nil {
			return err
		}
		if !p.empty() || p.CaughtUp && !said {
			r.mu.Lock()
			r.credit -= int64(p.raw)
			r.mu.Unlock()
			r.send(h, wire.FlagReply|wire.FlagPush, p, false)
			said = p.CaughtUp
		}
		if !p.CaughtUp {
			continue
		}
		select {
		case <-changed:
		case <-r.ctx.Done():
			return nil
		}
	}
}

// awaitCredit is how much may be pushed, and false when the subscription ends.
func (r *consumer) awaitCredit() (int64, bool) {
	for {
		r.mu.Lock()
		credit := r.credit
		r.mu.Unlock()
		if r.ctx.Err() != nil {
			return 0, false
		}
		if credit > 0 {
			return credit, true
		}
		select {
		case <-r.credited:
		case <-r.ctx.Done():
		}
	}
}

// addCredit is heard by the reader.
func (r *consumer) addCredit(n uint32) {
	r.mu.Lock()
	r.credit = min(r.credit+int64(n), creditMost)
	r.mu.Unlock()
	signal(r.credited)
}

// begin makes the consumer one that is subscribed to.
func (r *consumer) begin(m *wire.Subscribe) error {
	if m.Window == 0 {
		return refusal(wire.CodeInvalidArgument, "topic %q: a subscription with a window of 0 bytes gets nothing", r.topic)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.subscribed {
		return r.busyLocked()
	}
	// A subscription is a request that is not answered for as long as it lives. Others
	// need their places, the one that closes it among them.
	most := int64(max(r.c.s.opts.MaxRequests/2, 1))
	if r.c.subscriptions.Add(1) > most {
		r.c.subscriptions.Add(-1)
		return refusal(wire.CodeOverloaded, "topic %q: %d subscriptions on one connection, which is the most: close one, or connect again", r.topic, most)
	}
	r.subscribed, r.credit = true, int64(m.Window)
	return nil
}

// idle refuses what a subscription would keep waiting for ever.
func (r *consumer) idle() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.subscribed {
		return r.busyLocked()
	}
	return nil
}

func (r *consumer) busyLocked() error {
	return refusal(wire.CodeInvalidArgument, "topic %q: consumer %d has a subscription: close it, or open another one", r.topic, r.handle)
}

func (r *consumer) place() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.cursor
}

// close ends the consumer behind what was asked of it before.
func (r *consumer) close(h wire.Head) {
	err := r.in.Close()
	r.c.handles.release()
	if err != nil {
		r.c.fail(h, err)
		return
	}
	r.c.reply(h, &wire.Done{})
}

// maxCredit is the longest Credit that is looked at, in bytes.
const maxCredit = 1 << 10

// credit takes a message that has no answer. So one that cannot be read ends the
// connection; one for a consumer that was closed meanwhile is none of its faults.
func (c *conn) credit(h wire.Head) error {
	if h.Length > maxCredit {
		return refusal(wire.CodeMalformed, "Credit with %d bytes, at most %d", h.Length, maxCredit)
	}
	c.await(int(h.Length))
	msg, err := c.br.Peek(int(h.Length))
	if err != nil {
		return torn(err)
	}
	m, err := wire.Request(h.Key, msg)
	_, _ = c.br.Discard(len(msg)) // they are there
	if err != nil {
		return err
	}
	credit, ok := m.(*wire.Credit)
	if !ok {
		return errors.New("server: Credit unpacked to something else")
	}
	if r, err := c.handles.consumer(credit.Consumer, false); err == nil {
		r.addCredit(credit.Bytes)
	}
	return nil
}
