package client

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/ringfence/ringfence/engine/api"
	"github.com/ringfence/ringfence/engine/wire"
	"github.com/ringfence/ringfence/fence"
	"github.com/ringfence/ringfence/segfile/record"
)

// Consumer reads one topic: each range in order, and ranges before those that took over their
// keys. So records with equal keys come in the order in which they were stored. It is not
// safe for concurrent use. Close it after use.
//
// It asks the server for one page at a time, and for the next one while the last is being
// handed out, unless the last was all that there was. So nothing comes that it did not ask
// for, and the server's consumer is ahead of the caller by what lies here. When the
// connection is lost, another consumer is opened behind the last page that came.
//
// # Members
//
// With ConsumerOptions.Member the consumer shares the topic's ranges with the other
// members of its group. Each range is read by one of them at a time; records with equal
// keys come in the order they were stored, across splits and merges too, and each comes
// to one member, or again to another one if it was not committed before its range moved.
//
// A call of Poll or Fetch says that what the calls before it returned is processed:
// where the consumer is to let a range go, and at a range's end, that is committed in the
// call. Otherwise nothing is committed but by Commit; Commit before Close, and nothing
// comes twice. A member that does not call Poll or Fetch while others wait for a range of
// it loses the range after a session (30 s, unless the server says otherwise), and one
// whose process dies all of its ranges. Commit then fails with ErrRangeMoved for what it
// lost.
//
// Cursor, Lag and Ranges are those of the member's own ranges; while it has none, Cursor is "".
type Consumer struct {
	c     *Client
	opts  api.ConsumerOptions
	topic fence.TopicID
	ended bool
	share *share // nil: the consumer is no member and reads the whole topic

	conn   *conn // nil: to be opened
	handle uint32
	behind string // cursor behind the last page that came
	next   *fetch // asked for; nil: nothing
	wary   bool   // frames came damaged: the server is to verify the next ones
	bytes  bool   // a descriptor did not come through: pages are to come as bytes

	page    *page  // being handed out; nil: none
	place   string // cursor behind the last page that was handed out whole
	scratch record.Scratch
	records []api.ConsumedRecord
	headers []api.Header
	old     []byte // memory of the page that was handed out, the caller's until the next call
	spare   []byte // memory for the next page
}

const (
	pageBytes = 1 << 20          // of the frames of a page; one frame may be more
	keptBytes = 4 << 20          // most that is kept for the next page
	smallPage = 64 << 10         // a shorter one that was waited for is all that there was
	pollWait  = 30 * time.Second // how long the server waits for the first record
)

// NewConsumer returns a consumer of a topic.
func (c *Client) NewConsumer(o api.ConsumerOptions) (*Consumer, error) {
	if err := api.CheckTopic(o.Topic); err != nil {
		return nil, err
	}
	if err := api.CheckGroup(o.Group); err != nil {
		return nil, err
	}
	r := &Consumer{c: c, opts: o}
	ctx, cancel := r.limit(context.Background())
	defer cancel()
	if o.Member != "" {
		r, err := c.newMember(ctx, o)
		return r, about(o.Topic, err)
	}
	if err := r.open(ctx); err != nil {
		return nil, about(o.Topic, err)
	}
	topic, err := api.TopicOfCursor(r.place)
	if err != nil {
		return nil, about(o.Topic, fmt.Errorf("%w: the cursor of a new consumer: %w", ErrProtocol, err))
	}
	r.topic = topic
	return r, nil
}

// limit is ctx for no longer than RequestTimeout.
func (r *Consumer) limit(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, r.c.opts.RequestTimeout, r.c.tooLate)
}

// open opens the server's consumer, where this one's next page is to begin.
func (r *Consumer) open(ctx context.Context) error {
	from := r.opts.From
	if r.behind != "" {
		from = api.FromCursor(r.behind)
	}
	ask := &wire.OpenConsumer{Topic: r.opts.Topic, Group: r.opts.Group, From: byte(from.Kind), Cursor: from.Cursor}
	if from.Kind == api.AtTime {
		ask.TimeMs = from.Time.UnixMilli()
	}
	if r.share != nil {
		ask = r.openShare()
	}
	for n := 0; ; n++ {
		cn, err := r.c.main.get(ctx)
		if err != nil {
			return err
		}
		msg, err := cn.call(ctx, wire.KeyOpenConsumer, ask, func(reply any) *request {
			return closeConsumer(reply.(*wire.OpenConsumerReply).Consumer)
		})
		if err == nil {
			reply := msg.(*wire.OpenConsumerReply)
			r.conn, r.handle = cn, reply.Consumer
			if r.share != nil {
				return r.openedShare(reply.Cursor)
			}
			if r.behind == "" {
				r.behind, r.place = reply.Cursor, reply.Cursor
			}
			return nil
		}
		if react(err, look) == again {
			err = r.c.pause(ctx, backoff(n, err), err)
		}
		if err != nil {
			return err
		}
	}
}

// drop gives the server's consumer up, with what was asked of it: the next call opens
// another.
func (r *Consumer) drop() {
	if r.conn != nil {
		r.conn.post(closeConsumer(r.handle))
	}
	if r.next != nil {
		r.next.leave()
	}
	r.conn, r.next = nil, nil
}

func closeConsumer(handle uint32) *request {
	return &request{key: wire.KeyCloseConsumer, msg: &wire.CloseConsumer{Consumer: handle}, owner: nobody{}}
}

// fetch is a page that was asked for.
type fetch struct {
	done  chan struct{} // closed with the rest
	waits bool          // the server waits for a record
	plain bool          // the server verifies the frames
	ans   answer

	c    *Client
	gone atomic.Bool // nobody wants the answer
}

func (f *fetch) wrote(*request) { /* there is no memory to give back */ }

func (f *fetch) answered(_ *request, a answer) {
	if a.file != nil {
		f.c.held.hold(a.file)
	}
	f.ans = a
	close(f.done)
	if f.gone.Load() {
		f.shed()
	}
}

// leave says that nobody will look at the answer, whether it is there or not.
func (f *fetch) leave() {
	f.gone.Store(true)
	if f.over() {
		f.shed()
	}
}

// shed closes the answer's file. It may be called twice.
func (f *fetch) shed() {
	if f.ans.file != nil {
		f.c.held.release(f.ans.file)
	}
}

// ask asks for the next page.
func (r *Consumer) ask(wait bool) {
	f := &fetch{done: make(chan struct{}), waits: wait, plain: r.wary, c: r.c}
	files := !r.wary && !r.bytes && r.conn.files != nil
	m := &wire.Fetch{Consumer: r.handle, MaxBytes: pageBytes, Stored: !r.wary, InFile: files}
	if wait {
		m.WaitMs = uint32(pollWait / time.Millisecond)
	}
	if r.conn.enqueue(&request{key: wire.KeyFetch, msg: m, into: r.spare, pages: true, files: files, owner: f}) {
		r.conn.drive()
	} else {
		f.answered(nil, answer{err: &lostError{cause: r.conn.err}})
	}
	r.next, r.spare = f, nil
}

// Poll returns the next records, at most max and all of one range, and waits until there are
// some, or a skip to report. If ctx ends first, it returns ctx's error and a page without
// records. If the server cannot be reached for RequestTimeout, it returns an error; the
// consumer can still be used. The page's memory is the consumer's: it is valid until the
// next Poll, Fetch or Close.
func (r *Consumer) Poll(ctx context.Context, max int) (api.Page, error) {
	page, err := r.take(ctx, max, true)
	if err != nil && ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		err = ctx.Err()
	}
	return page, err
}

// Fetch is Poll without waiting: if there is nothing to return now, the page is CaughtUp.
func (r *Consumer) Fetch(max int) (api.Page, error) {
	ctx, cancel := r.limit(context.Background())
	defer cancel()
	return r.take(ctx, max, false)
}

func (r *Consumer) take(ctx context.Context, max int, wait bool) (api.Page, error) {
	if r.ended || r.c.life.Err() != nil {
		return api.Page{}, ErrClosed
	}
	if max < 1 {
		return api.Page{}, fmt.Errorf("client: a page of %d records", max)
	}
	if r.share != nil {
		if err := r.settle(ctx); err != nil {
			return api.Page{}, about(r.opts.Topic, err)
		}
	}
	for {
		if r.page == nil {
			if r.spare == nil && cap(r.old) <= keptBytes {
				r.spare = r.old
			}
			r.old = nil
			if err := r.await(ctx, wait); err != nil {
				return api.Page{}, about(r.opts.Topic, err)
			}
		}
		stored := r.page.salt != 0
		page, err := r.deliver(max)
		if err == nil {
			return page, nil
		}
		// What is wrong with the page may be so with this copy of it alone.
		r.behind = r.Cursor()
		r.place, r.page = r.behind, nil
		r.drop()
		if !stored {
			return api.Page{}, about(r.opts.Topic, err)
		}
		r.wary = true
	}
}

// await waits for the next page and asks for the one behind it. Without wait the page
// may be an empty one, which the server answered after the call began.
func (r *Consumer) await(ctx context.Context, wait bool) error {
	var since time.Time // of the first failure in a row
	for failures := 0; ; {
		if r.share != nil {
			if err := r.settled(ctx); err != nil {
				return err
			}
		}
		fresh, err := r.round(ctx, wait)
		switch {
		case r.share != nil && moved(err):
			r.drop()
			if err := r.share.m.await(ctx); err != nil {
				return err
			}
			continue
		case err == nil && r.share != nil && len(r.share.ending) > 0 && r.page == nil:
			continue
		case err == nil && r.page != nil:
			if !r.page.small {
				r.ask(wait)
			}
			return nil
		case err == nil && fresh && !wait:
			r.page = &page{caughtUp: true, cursor: r.behind}
			return nil
		case err == nil:
			failures = 0
			continue
		case react(err, look) != again:
			return err
		}
		r.drop()
		if failures == 0 {
			since = time.Now()
		}
		if time.Since(since) > r.c.opts.RequestTimeout {
			return fmt.Errorf("%w: %w", r.c.tooLate, meant(err))
		}
		if err := r.c.pause(ctx, backoff(failures, err), err); err != nil {
			return err
		}
		failures++
	}
}

// round gets one answer, into r.page if there is something in it. fresh says that it
// was asked for here.
func (r *Consumer) round(ctx context.Context, wait bool) (fresh bool, err error) {
	if r.idle() {
		if !wait {
			return true, nil
		}
		return false, r.share.m.await(ctx)
	}
	if r.next != nil && r.next.waits && !wait && !r.next.over() {
		r.drop() // it comes with the next record only
	}
	if r.conn == nil {
		limited, cancel := r.limit(ctx)
		defer cancel()
		if err := r.open(limited); err != nil {
			return false, err
		}
	}
	if fresh = r.next == nil; fresh {
		r.ask(wait)
	}
	var news <-chan struct{}
	if r.share != nil {
		news = r.share.m.news
	}
	late := time.NewTimer(pollWait + r.c.opts.RequestTimeout)
	defer late.Stop()
	select {
	case <-r.next.done:
	case <-news:
		return false, nil
	case <-late.C:
		return fresh, &lostError{sent: true, cause: r.c.tooLate}
	case <-ctx.Done():
		return fresh, context.Cause(ctx)
	case <-r.c.quit:
		return fresh, ErrClosed
	}
	a, plain, waited := r.next.ans, r.next.plain, r.next.waits
	r.next = nil
	if a.err != nil {
		return fresh, a.err
	}
	m := a.msg.(*wire.Page)
	if m.FileBytes > 0 {
		a.raw, err = r.c.readPage(a.raw, a.file, m, r.conn.limit)
		switch {
		case errors.Is(err, ErrProtocol):
			r.drop()
			return fresh, err
		case err != nil:
			r.drop() // the next page is to be this one again
			r.bytes, r.wary = r.bytes || errors.Is(err, errNoDescriptor), !errors.Is(err, errNoDescriptor)
			return false, nil
		}
	}
	p, err := newPage(m, a.raw, r.topic)
	switch {
	case m.Salt != 0 && plain:
		err = fmt.Errorf("%w: a page of range %d: frames that were to be verified came as they are stored", ErrProtocol, m.Range)
	case m.Salt != 0 && err != nil:
		r.drop()
		r.wary = true
		return false, nil // the server says what is wrong, once it has looked
	}
	if err != nil {
		r.drop()
		return fresh, err
	}
	p.small = waited && len(p.raw) < smallPage
	r.wary = r.wary && !p.rest()
	r.behind = p.cursor
	if p.rest() || len(p.skips) > 0 {
		r.page = p
	} else {
		r.place, r.spare = p.cursor, a.raw
		r.passed(p)
	}
	return fresh, nil
}

func (f *fetch) over() bool {
	select {
	case <-f.done:
		return true
	default:
		return false
	}
}

// deliver hands out the next records of the page.
func (r *Consumer) deliver(max int) (api.Page, error) {
	p := r.page
	r.records, r.headers = r.records[:0], r.headers[:0]
	if p.rest() {
		if err := p.frame(&r.scratch); err != nil {
			return api.Page{}, err
		}
		b := &p.batch
		for n := min(p.end, p.next+uint64(max), b.Head.Next()); p.next < n; p.next++ {
			i := int(p.next - b.Head.Base)
			from := len(r.headers)
			r.headers = b.Headers(i, r.headers)
			rec := api.ConsumedRecord{
				Range: p.seq, Offset: p.next, Key: b.Key(i), Value: b.Value(i), Time: time.UnixMilli(b.Timestamp(i)),
			}
			if len(r.headers) > from {
				rec.Headers = r.headers[from:len(r.headers):len(r.headers)]
			}
			r.records = append(r.records, rec)
		}
	}
	out := api.Page{Records: r.records, Skips: p.skips, CaughtUp: p.caughtUp && len(r.records) == 0}
	p.skips = nil
	if !p.rest() {
		r.page, r.place, r.old = nil, p.cursor, p.raw
		r.passed(p)
	}
	return out, nil
}

// passed notes that a page is handed out whole.
func (r *Consumer) passed(p *page) {
	if r.share != nil {
		r.share.end(p)
	}
}

// Close gives the consumer up. It commits nothing. A member leaves its group, and others
// go on where it has committed; an error says that they do so only when its session is
// over.
func (r *Consumer) Close() error {
	if r.ended {
		return nil
	}
	r.ended = true
	r.drop()
	r.page, r.old, r.spare = nil, nil, nil
	if r.share == nil {
		return nil
	}
	ctx, cancel := r.limit(context.Background())
	defer cancel()
	return about(r.opts.Topic, r.share.m.leave(ctx))
}
