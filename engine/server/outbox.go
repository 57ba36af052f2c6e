package server

import (
	"context"
	"fmt"
	"os"
	"slices"
	"sync"

	"github.com/ringfence/ringfence/engine/api"
	"github.com/ringfence/ringfence/engine/wire"
)

// outbox is what a connection owes its client: the requests that are not answered yet,
// and the answers and pages that are not written yet. There are never more answers than
// requests, and of pages one for each consumer, so nobody waits to put something in, a
// driver of the engine least of all.
//
// One goroutine writes at a time: the connection's writer, or where there is nothing else
// to write whoever has a page, or the one answer that the client waits for.
type outbox struct {
	requests int     // most at a time
	bytes    int64   // most of these, but for one alone
	total    *budget // what requests hold of it goes back when they are answered

	mu       sync.Mutex // guards the rest; innermost
	open     map[uint32]debt
	taken    int64         // bytes of these
	held     int64         // what they hold of the total budget
	admitted int           // of these, those that were not refused for closing
	arriving int           // 1 while the last of these was not read whole
	quiet    chan struct{} // closed when that is 0; nil until somebody waits for it
	queue    []outgoing
	guest    bool // somebody writes who is not the writer
	busy     bool // the writer writes
	ending   bool // the writer ends when the queue is empty
	ended    bool // it did

	wake chan struct{} // tells the writer of something to do; holds one
	room chan struct{} // tells the reader of an answer; holds one
}

// debt is a request that is not answered.
type debt struct {
	bytes   int64
	held    int64 // of the total budget
	refused bool
}

// outgoing is one frame to write.
type outgoing struct {
	rest   []byte // in place of the rest of these: what is left of a frame
	key    wire.Key
	flags  uint16
	id     uint32
	msg    wire.Message  // nil: a ProduceReply with place
	place  api.Placement // where the records are
	frames [][]byte      // behind the message
	file   *os.File      // and behind these, if it is not nil, length bytes of it
	from   int64         // where they begin
	length int64
	given  bool            // a descriptor of the file may go in place of them: msg is a Page then
	raw    int             // bytes of all that
	pass   *os.File        // whose descriptor goes beside the first byte; nil: none
	sent   chan<- struct{} // told, if it is not nil, once nobody looks at the frames any more; has room for it
}

func (o *outgoing) release() {
	if o.sent != nil {
		o.sent <- struct{}{}
	}
}

func newOutbox(requests int, bytes int64, total *budget) *outbox {
	return &outbox{
		requests: requests, bytes: bytes, total: total,
		open: map[uint32]debt{},
		wake: make(chan struct{}, 1), room: make(chan struct{}, 1),
	}
}

// admit notes a request before its body is read, and waits until there is room for it.
// One goroutine calls it. An id that does not tell requests apart ends the connection:
// no answer would be understood. alone says that no other request is open.
func (b *outbox) admit(ctx context.Context, h wire.Head, refused bool) (alone bool, err error) {
	n := int64(h.Length)
	if h.ID == 0 {
		return false, &wire.Error{Code: wire.CodeMalformed, Detail: fmt.Sprintf("%s request with id 0, which is no request's", h.Key)}
	}
	for {
		b.mu.Lock()
		if _, ok := b.open[h.ID]; ok {
			b.mu.Unlock()
			return false, &wire.Error{Code: wire.CodeMalformed, Detail: fmt.Sprintf("%s request with id %d, and one of that id is not answered yet", h.Key, h.ID)}
		}
		if len(b.open) < b.requests && (b.taken == 0 || b.taken+n <= b.bytes) {
			b.open[h.ID] = debt{bytes: n, refused: refused}
			b.taken += n
			if !refused {
				b.admitted++
				b.arriving = 1
			}
			alone = len(b.open) == 1
			b.mu.Unlock()
			return alone, nil
		}
		b.mu.Unlock()
		select {
		case <-b.room:
		case <-ctx.Done():
			return false, ctx.Err()
		}
	}
}

// hold says what an admitted request took of the total budget.
func (b *outbox) hold(id uint32, n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	d := b.open[id]
	b.held += n - d.held
	d.held = n
	b.open[id] = d
}

// holds is what all open requests hold of the total budget.
func (b *outbox) holds() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.held
}

// put hands a frame to the writer. It does not wait. After the writer has ended the
// frame is dropped.
func (b *outbox) put(o outgoing) {
	b.mu.Lock()
	if b.ended {
		b.mu.Unlock()
		o.release()
		return
	}
	b.queue = append(b.queue, o)
	b.mu.Unlock()
	signal(b.wake)
}

// lone says whether the caller may write a frame here and now, in place of putting it:
// nothing else is written or waits to be, and no more requests are open than so many,
// whose answers could go with it. The caller then calls wrote.
func (b *outbox) lone(o *outgoing, open int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.guest || b.busy || b.ended || len(b.queue) > 0 || len(b.open) > open {
		return false
	}
	b.guest = true
	b.answered(o)
	b.settle()
	return true
}

// wrote ends what lone began. rest is what could not be written, for the writer.
func (b *outbox) wrote(rest []byte) {
	b.mu.Lock()
	b.guest = false
	if len(rest) > 0 {
		b.queue = slices.Insert(b.queue, 0, outgoing{rest: rest})
	}
	more := len(b.queue) > 0 || b.ending
	b.mu.Unlock()
	if more {
		signal(b.wake)
	}
}

// take moves what is to be written to dst, and says whether the writer ends when it is.
func (b *outbox) take(dst []outgoing) (list []outgoing, ended bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.guest {
		return dst[:0], false // it wakes the writer
	}
	list, b.queue = b.queue, dst[:0]
	for i := range list {
		b.answered(&list[i])
	}
	b.settle()
	if b.busy = len(list) > 0; !b.busy {
		b.ended = b.ending
	}
	return list, b.ended
}

// answered forgets the request that a frame answers. Its id is free from now on, before
// the client can see the answer. mu is held.
func (b *outbox) answered(o *outgoing) {
	d, ok := b.open[o.id]
	if !ok || o.flags&wire.FlagPush != 0 {
		return
	}
	delete(b.open, o.id)
	b.taken -= d.bytes
	b.held -= d.held
	b.total.give(d.held)
	if !d.refused {
		b.admitted--
	}
	signal(b.room)
}

// arrived says that the request admitted last was read whole, and will be answered.
func (b *outbox) arrived() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.arriving = 0
}

// settled is closed once no request that was let in and read waits for its answer.
func (b *outbox) settled() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.quiet == nil {
		b.quiet = make(chan struct{})
	}
	settled := b.quiet
	b.settle()
	return settled
}

func (b *outbox) settle() {
	if b.quiet != nil && b.admitted <= b.arriving {
		close(b.quiet)
		b.quiet = nil
	}
}

// finish has the writer end after what is queued and, if there is one, a last error that
// belongs to no request.
func (b *outbox) finish(last *wire.Error) {
	b.mu.Lock()
	if last != nil {
		b.queue = append(b.queue, outgoing{flags: wire.FlagReply | wire.FlagFailed, msg: last})
	}
	b.ending = true
	b.mu.Unlock()
	signal(b.wake)
}

// settleDebts gives back what requests hold that will not be answered any more.
func (b *outbox) settleDebts() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, d := range b.open {
		b.total.give(d.held)
	}
	clear(b.open)
}

// signal wakes the one who waits on c, now or at its next look.
func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
