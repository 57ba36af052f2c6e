package engine

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"time"

	"github.com/ringfence/ringfence/engine/store"
	"github.com/ringfence/ringfence/fence"
	"github.com/ringfence/ringfence/segfile/record"
)

// A lane is a producer's way into one range. Records gather in its open batch;
// closed batches wait, fly and are answered in order. The producer's mu guards it.
//
// A lane sends only to the write head it knows. When that is fenced, or there is
// none yet, one goroutine finds or opens the next (head.go) and the lane holds
// still meanwhile; what the fence refused goes first afterwards, in order.
type lane struct {
	p           *Producer
	id          fence.RangeID
	first, last uint32 // key positions, both in the range

	open    *batch   // being filled
	waiting []*batch // closed, not yet handed to the store; a few at most
	flying  int      // handed to the store, not answered
	back    []*batch // refused by a fence, in order
	head    *store.Segment
	failed  *store.Segment // the head before, after a storage error
	sent    uint64         // the range's last sequence once all that flies has landed
	landed  uint64         // the last sequence that did land
	size    int64          // how long the head's file was when the frontend was told last

	sending   bool // somebody is in send
	finding   bool // a goroutine is in findHead or findMemory
	broken    bool // a batch failed: what flies behind it may too, and nothing follows until all has landed
	crowd     int  // callers who waited for the last batch
	gathering bool // somebody lets others join the open batch, and then closes it
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

// dropEmpty gives an open batch back that no record came to.
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

// settle closes the open batch if nothing of this lane is on its way. This is all
// there is to group commit: what arrives while a batch flies gathers, and leaves
// when that batch lands.
func (l *lane) settle() {
	if l.free() {
		l.closeOpen()
	}
}

// free says whether nothing of the lane is on its way.
func (l *lane) free() bool {
	return l.flying == 0 && len(l.waiting) == 0 && len(l.back) == 0 && !l.finding
}

// gather lets others run until so many callers have joined the open batch, or each of
// them had a turn. mu is held, and released meanwhile.
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

// send hands waiting batches to the store while the window allows. It is entered
// and left with mu held and released around the store's work; one goroutine at a
// time is in it. mine, if not nil, is the batch that the caller is going to wait for
// if it was handed over here, which is the answer: then nobody else reaps for it.
func (l *lane) send(mine *batch) (handed bool) { return l.hand(mine, false) }

// hand is send, which may be answering: then it runs in the store's answer to a batch.
func (l *lane) hand(mine *batch, answering bool) (handed bool) {
	if l.sending {
		return false
	}
	l.sending = true
	p := l.p
	for l.flying < p.opts.MaxInFlight && len(l.back) == 0 && len(l.waiting) > 0 && !l.finding && !l.broken {
		if p.halted != nil {
			l.failAll(p.halted)
			break
		}
		if l.head == nil || l.retired {
			l.find()
			break
		}
		b := l.waiting[0]
		if b.onHeap {
			ok, err := b.board(l)
			if err != nil {
				p.conclude(l.pop(), Placement{}, err)
				continue
			}
			if !ok {
				l.findMemory()
				break
			}
		}
		if !b.isPlanned {
			plan, ok := p.e.front.TryPlanIn(p.topic, b.routing())
			if !ok || plan.Segment != l.head.ID() {
				l.find()
				break
			}
			b.plan = plan
		}
		b.isPlanned = false
		l.pop()
		before := l.sent
		if err := b.finish(l); err != nil {
			p.conclude(b, Placement{}, err)
			continue
		}
		l.flying++
		b.head = l.head
		b.req.Frame, b.req.Lead, b.req.Foreign, b.req.Answering = b.frame, b == mine, b.loan != nil, answering
		if b.req.Foreign {
			b.req.Head = b.info
		}
		roll := b.plan.Roll
		p.mu.Unlock()
		err := b.head.Append(&b.req) // b may have landed, and be another one, when it returns
		p.mu.Lock()
		if roll {
			p.e.owed() // behind the batch that made it due
		}
		if err == nil && b == mine {
			handed = true
		}
		if err != nil {
			l.flying--
			l.sent = before // nothing of b is on its way
			l.answer(b, err)
		}
	}
	l.sending = false
	return handed
}

// landed is the store's answer to a batch.
func (p *Producer) landed(b *batch) {
	p.mu.Lock()
	l := b.lane
	l.flying--
	if b.req.Err == nil {
		l.hand(nil, true) // before anything else: the device waits for what waits here
	}
	// Those that are answered now are likely to come again at once: with them the next
	// flush carries all, without them it would leave with a straggler and make them
	// wait for it.
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
		// Fenced between plan and append: nothing of it was stored. It goes again, to
		// the successor, behind those that flew before it.
		l.back = append(l.back, b)
	case errors.Is(err, store.ErrStorage):
		l.head = nil // this copy takes no more: fence it, go on in a successor
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

// sizeStep is how much longer a file gets until the frontend hears of it.
const sizeStep = 256 << 10

// tellSize tells the frontend how long the file is that b was written to: rolls go by that,
// and records that are flushed alone take a block each.
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

// putBack makes the refused batches the first to go. Their frames name their
// predecessors anew.
func (l *lane) putBack() {
	l.sent = l.landed
	for _, b := range l.back {
		b.isPlanned, b.head = false, nil
	}
	l.waiting = append(l.back, l.waiting...)
	l.back = nil
}

// conclude tells everybody who waits for b. mu is held, and released around what
// they hear, which comes in the order of the lane.
func (p *Producer) conclude(b *batch, place Placement, err error) {
	b.waiters.Add(1) // keeps it until all here is done, also while mu is released
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
			p.free(b) // before its owner hears
		}
		if done != nil {
			close(done) // those who wake up would meet at mu
		}
		for i := range b.calls {
			b.calls[i].done(b.placeOf(b.calls[i].at), b.err)
		}
		p.mu.Lock()
	}
	b.leave(p)
	p.pending[age] -= n
	p.changed.Broadcast()
}

// compress replaces the batch's frame by a compressed one in memory of its own, if
// the producer compresses.
func (p *Producer) compress(b *batch, frame []byte) ([]byte, error) {
	if p.opts.Codec == record.None {
		return frame, nil
	}
	arena := p.e.arena
	dst, ok := arena.Alloc(len(frame))
	if !ok {
		return frame, nil // plain is always right
	}
	out, err := record.Compress(dst, frame, p.opts.Codec)
	if err != nil || &out[0] == &frame[0] {
		arena.Free(dst)
		return frame, err
	}
	p.free(b)
	b.slab, b.onHeap = dst, false
	return out, nil
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
