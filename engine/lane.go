package engine

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"time"

	"github.com/ringfence/ringfence/engine/store"
	"github.com/ringfence/ringfence/fence"
)

// A lane is a producer's way into one range. Records gather in its open batch. Closed
// batches wait, are in flight once the store has them, and are answered, all in order.
// The producer's mu guards it.
//
// A lane sends only to the write head it knows. When that is fenced, or there is none
// yet, the lane stops sending until one goroutine has found or opened the next
// (findhead.go, head.go). Then the batches that the fence refused go first, in order.
type lane struct {
	p           *Producer
	id          fence.RangeID
	first, last uint32 // key positions, both in the range

	open    *batch   // being filled
	waiting []*batch // closed, not yet handed to the store; a few at most
	flying  int      // batches in flight: handed to the store, not answered
	back    []*batch // refused by a fence, in order
	head    *store.Segment
	failed  *store.Segment // the head before, after a storage error
	sent    uint64         // the range's last sequence once all that is in flight has landed
	landed  uint64         // the last sequence that did land
	size    int64          // length of the head's file when the frontend was last told

	sending   bool // somebody is in send
	finding   bool // a goroutine is in findHead or findMemory
	broken    bool // a batch failed, and those in flight behind it may too: nothing is sent until all have landed
	crowd     int  // callers who waited for the last batch
	gathering bool // somebody gives others the time to join the open batch, and then closes it
	lingerOn  bool // a timer will close the open batch
	retired   bool // the range is not active any more
}

// closeOpen moves the open batch to the waiting ones.
func (l *lane) closeOpen() {
	if b := l.open; b != nil && b.build.Len() > 0 {
		l.open = nil
		l.crowd = int(b.waiters.Load())
		l.waiting = append(l.waiting, b)
	}
}

// dropEmpty gives back an open batch without records.
func (l *lane) dropEmpty() {
	if b := l.open; b != nil && b.build.Len() == 0 {
		l.open = nil
		l.p.recycle(b)
	}
}

// pop takes the first waiting batch.
func (l *lane) pop() *batch {
	b := l.waiting[0]
	l.waiting = slices.Delete(l.waiting, 0, 1)
	return b
}

// settle closes the open batch if nothing of this lane is under way. This is all there
// is to group commit: what arrives while a batch is in flight gathers, and leaves when
// that batch lands.
func (l *lane) settle() {
	if l.free() {
		l.closeOpen()
	}
}

// free says whether nothing of the lane is under way.
func (l *lane) free() bool {
	return l.flying == 0 && len(l.waiting) == 0 && len(l.back) == 0 && !l.finding
}

// gather lets other goroutines run until that many callers have joined the open batch,
// or each has had a turn. mu is held, and released meanwhile.
func (l *lane) gather(callers int) {
	l.gathering = true
	for range callers {
		if l.flying > 0 || l.open != nil && l.open.build.Len() >= callers {
			break
		}
		l.p.mu.Unlock()
		runtime.Gosched()
		l.p.mu.Lock()
	}
	l.gathering = false
}

// send hands waiting batches to the store, as many as MaxInFlight allows. mu is held, and
// released around the store's work; one goroutine at a time does this. mine may be nil;
// otherwise it is a batch whose caller will wait for it in the store, and reap there, if
// send reports that it handed mine over.
func (l *lane) send(mine *batch) (handed bool) { return l.hand(mine, false) }

// hand is send. answering says that it runs inside the store's answer to a batch.
func (l *lane) hand(mine *batch, answering bool) (handed bool) {
	if l.sending {
		return false
	}
	l.sending = true
	for l.flying < l.p.opts.MaxInFlight && len(l.back) == 0 && len(l.waiting) > 0 && !l.finding && !l.broken {
		b, err := l.next()
		if b == nil {
			break
		}
		before := l.sent
		if err == nil {
			err = b.finish(l)
		}
		if err != nil {
			l.p.conclude(b, Placement{}, err)
			continue
		}
		switch err := l.launch(b, b == mine, answering); {
		case err != nil:
			l.flying--
			l.sent = before // nothing of b is in flight
			l.answer(b, err)
		case b == mine:
			handed = true
		}
	}
	l.sending = false
	return handed
}

// next takes the first waiting batch, planned for the lane's write head and in memory
// that the disk can be given; with an error it is to be answered instead. It returns nil
// if no batch can leave now, after it has asked for what is missing. mu is held.
func (l *lane) next() (*batch, error) {
	p := l.p
	switch {
	case p.halted != nil:
		l.failAll(p.halted)
		return nil, nil
	case l.head == nil || l.retired:
		l.find()
		return nil, nil
	}
	b := l.waiting[0]
	if b.onHeap {
		switch ok, err := b.board(l); {
		case err != nil:
			return l.pop(), err
		case !ok:
			l.findMemory()
			return nil, nil
		}
	}
	if !b.isPlanned {
		plan, ok := p.e.front.TryPlanIn(p.topic, b.routing())
		if !ok || plan.Segment != l.head.ID() {
			l.find()
			return nil, nil
		}
		b.plan = plan
	}
	b.isPlanned = false
	return l.pop(), nil
}

// launch hands a finished batch to the write head's store. lead says that the caller will
// wait for it in the store, and reaps meanwhile. mu is held, and released around the
// store's work: b may have landed, and be another batch, when launch returns nil.
func (l *lane) launch(b *batch, lead, answering bool) error {
	p := l.p
	l.flying++
	b.head = l.head
	b.req.Frame, b.req.Lead, b.req.Foreign, b.req.Answering = b.frame, lead, b.loan != nil, answering
	if b.req.Foreign {
		b.req.Head = b.info
	}
	roll := b.plan.Roll
	p.mu.Unlock()
	err := b.head.Append(&b.req)
	p.mu.Lock()
	if roll {
		p.e.owed() // behind the batch that made it due
	}
	return err
}

// landed is called by the store with the outcome of a batch.
func (p *Producer) landed(b *batch) {
	p.mu.Lock()
	l := b.lane
	l.flying--
	if b.req.Err == nil {
		l.hand(nil, true) // before anything else: the device waits for what waits here
	}
	// The callers that are answered now are likely to send again at once. If the next
	// flush waits for them, it carries them all; if not, it would leave with the first
	// one alone, and the others would wait until it lands.
	callers := int(b.waiters.Load())
	again := callers > 1 && l.flying == 0
	if again && l.open != nil {
		callers += l.open.build.Len()
	}
	l.gathering = l.gathering || again // from the first answer on, which runs without mu
	l.answer(b, b.req.Err)
	if again {
		l.gather(callers)
	}
	if !l.lingerOn {
		l.settle()
	}
	l.hand(nil, true)
	p.mu.Unlock()
}

// answer deals with one batch's outcome, in the order of the lane.
func (l *lane) answer(b *batch, err error) {
	p := l.p
	switch _, sealed := errors.AsType[*store.SealedError](err); {
	case err == nil:
		l.landed = max(l.landed, b.info.LastSeq)
		if !b.req.Duplicate {
			p.e.front.AdoptOffsets(l.id, b.plan.Segment, b.req.Last)
			l.tellSize(b)
		}
		p.conclude(b, Placement{Range: l.id.Seq, First: b.req.First, Last: b.req.Last, Duplicate: b.req.Duplicate}, nil)
	case sealed:
		// Fenced between plan and append: nothing of it was stored. It is sent again, to
		// the successor, behind those that were sent before it.
		l.back = append(l.back, b)
	case errors.Is(err, store.ErrStorage):
		l.head = nil // this copy takes no more: fence it and go on in a successor
		l.failed = b.head
		fallthrough
	default:
		l.broken = true
		if errors.Is(err, store.ErrGap) { // one before it failed
			err = fmt.Errorf("%w: %w", ErrHalted, err)
		}
		p.conclude(b, Placement{}, err)
	}
	if l.flying == 0 && l.broken {
		l.broken, l.sent = false, l.landed // the next one does not follow on what failed
	}
	if l.flying == 0 && (len(l.back) > 0 || l.head == nil) {
		l.putBack()
		if len(l.waiting) > 0 {
			l.find()
		}
	}
}

// sizeStep is how much a file grows before the frontend is told again.
const sizeStep = 256 << 10

// tellSize tells the frontend how long b's file is. Rolls go by the file's length, which
// can be far more than its records: those that are flushed alone take a block each.
func (l *lane) tellSize(b *batch) {
	size := b.head.Position()
	if size >= l.size && size < l.size+sizeStep {
		return
	}
	l.size = size
	if l.p.e.front.AdoptSize(l.id, b.plan.Segment, size) {
		l.p.e.owed()
	}
}

// putBack makes the refused batches the first to go. Their frames will name their
// predecessors anew.
func (l *lane) putBack() {
	l.sent = l.landed
	for _, b := range l.back {
		b.isPlanned, b.head = false, nil
	}
	l.waiting = append(l.back, l.waiting...)
	l.back = nil
}

// conclude tells everybody who waits for b its outcome, in the order of the lane. mu is
// held, and released while they are told.
func (p *Producer) conclude(b *batch, place Placement, err error) {
	b.waiters.Add(1) // keeps b from being recycled while mu is released
	if err != nil {
		p.halt(err)
	}
	b.over, b.place, b.err = true, place, about(p.name, int64(b.lane.id.Seq), err)
	n, age := b.records(), b.age
	if b.wholes != nil {
		n = 0     // counted with the wholes
		p.free(b) // other parts of them may need the memory
		p.concludePart(b)
	}
	if b.done != nil || len(b.calls) > 0 {
		done := b.done
		p.mu.Unlock()
		if b.loan != nil {
			p.free(b) // before its owner is told
		}
		if done != nil {
			close(done) // without mu, which those who wake up need
		}
		if len(b.calls) > 0 {
			b.callBack()
		}
		p.mu.Lock()
	}
	b.leave(p)
	p.pending[age] -= n
	p.changed.Broadcast()
}

// linger closes the open batch after the producer's Linger.
func (l *lane) linger() {
	if l.lingerOn || l.open == nil {
		return
	}
	l.lingerOn = true
	p := l.p
	time.AfterFunc(p.opts.Linger, func() {
		p.mu.Lock()
		l.lingerOn = false
		l.closeOpen()
		l.send(nil)
		p.mu.Unlock()
	})
}
