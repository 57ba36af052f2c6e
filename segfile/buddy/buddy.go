// Package buddy hands out blocks of one piece of memory that the kernel, or another process,
// writes to or reads from.
//
// An [Arena] is a buddy allocator that keeps its books outside that memory, so that nobody
// who can write to the memory can damage them.
package buddy

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"reflect"
	"sync"
)

// Block is the size of the smallest block, in bytes.
const Block = 4096

// ErrTooLarge is wanting more than the arena could ever give.
var ErrTooLarge = errors.New("buddy: larger than the arena")

// Arena hands out memory. Blocks are powers of two from Block up, each on a boundary of its own size (counted
// from the arena's start), and a freed block joins its free buddy again.
// It is safe for concurrent use, and no call but a waiting AllocWait allocates.
//
// Blocks from turnOrder up are given out in turn, round the whole arena, so that one is used
// again as late as can be. What another processor has read, as the one that carries out a
// virtual machine's I/O does, may still be in its cache, and memory that is there costs up
// to eight times as much to write to as memory that has left it since: 200 to 370 us for a
// MiB in place of 45, in copies of 1 KiB, until some 48 MiB go round. Smaller ones, and those of
// Pack, are given out from where there is the least to spare, lest they break up what is
// large. Those in turn leave a quarter of the arena whole, while what is broken up already has
// room for them: some that are kept long must not keep others from a block of the largest size
// that anybody asks for. More than a quarter, and the turns of a few large batches would be
// short ones.
//
// Who waits for a large block would do so for ever while others take and free small ones. So
// after a while the first who waits has a place kept for it, where a block of its size is
// nearest to being whole: what is freed there nobody else gets. Others go on beside it.
type Arena struct {
	mem  []byte  // never set again
	base uintptr // of mem

	mu      sync.Mutex // guards what follows; innermost, held for a look at the books
	free    []blocks   // per order
	state   []uint8    // per page, what starts there
	turn    int        // the page behind the block that was given out in turn last
	largest int        // the order of the largest blocks that are asked for; set once
	inUse   int64
	peak    int64
	waiters []*waiter // in order of arrival; none of them can be served by what is free
	passed  int       // frees that were of no use to the first of them
	kept    place     // for that one
}

// place is where a block of an order is to become whole.
type place struct {
	page, order int
	is          bool // there is one
}

// holds says whether the block of an order at a page lies in it.
func (p *place) holds(page, order int) bool {
	return p.is && order <= p.order && page>>p.order == p.page>>p.order
}

// turnOrder is the order of the smallest blocks that are given out in turn: 64 KiB.
const turnOrder = 4

// mostAsked is the most that anybody asks for at once, who asks for a quarter of the arena at
// most.
const mostAsked = 8 << 20

// A page's state byte: the order of the block that starts there, and whether it
// is free, given out, for long perhaps, or free and kept. Pages inside a block are stateInside.
const (
	stateInside = 0
	stateKept   = 0x20
	stateFree   = 0x40
	stateTaken  = 0x80
	stateLong   = stateTaken | stateFree
	orderMask   = 0x1f
)

type waiter struct {
	n     int
	ready chan []byte // one slot: Free hands a block over without blocking
}

// New makes an arena of mem. A beginning or end of mem that is no whole Block is left
// out.
func New(mem []byte) *Arena {
	if skip := int(-address(mem) % Block); skip < len(mem) {
		mem = mem[skip:]
	} else {
		mem = nil
	}
	pages := len(mem) / Block
	a := &Arena{mem: mem[:pages*Block]}
	a.base = address(a.mem)
	a.state = make([]uint8, pages)
	a.largest = orderOf(min(len(a.mem)/4, mostAsked))
	a.free = make([]blocks, bits.Len(uint(pages)))
	for order := range a.free {
		a.free[order] = newBlocks(pages >> order)
	}
	for page := 0; page < pages; {
		order := a.fits(page, pages)
		a.release(page, order)
		page += 1 << order
	}
	return a
}

// fits is the order of the largest block that may start at page.
func (a *Arena) fits(page, pages int) int {
	order := bits.Len(uint(pages-page)) - 1
	if page != 0 {
		order = min(order, bits.TrailingZeros(uint(page)))
	}
	return order
}

// Alloc returns n bytes, with a capacity of the next power of two from Block up,
// and false when there is no such block now. What they hold is undefined.
func (a *Arena) Alloc(n int) ([]byte, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.take(n)
}

// Pack is Alloc for what may be kept for long, or is filled by the device.
func (a *Arena) Pack(n int) ([]byte, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	b, ok := a.takeBy(n, a.tight)
	if ok {
		a.state[int(address(b)-a.base)/Block] |= stateLong
	}
	return b, ok
}

// Takes is how much of the arena n bytes take: the size of their block.
func (a *Arena) Takes(n int) int { return Block << orderOf(n) }

// AllocWait is Alloc that waits for memory, behind those who wait already for so much or
// less, until ctx ends. More than the arena could ever give is refused at once.
func (a *Arena) AllocWait(ctx context.Context, n int) ([]byte, error) {
	if order := orderOf(n); order >= len(a.free) {
		return nil, fmt.Errorf("%w: %d bytes can never fit %d", ErrTooLarge, n, len(a.mem))
	}
	a.mu.Lock()
	if b, ok := a.take(n); ok { // nobody who waits can do with it
		a.mu.Unlock()
		return b, nil
	}
	w := &waiter{n: n, ready: make(chan []byte, 1)}
	if a.waiters = append(a.waiters, w); len(a.waiters) == 1 {
		a.passed = 0
	}
	a.mu.Unlock()

	select {
	case b := <-w.ready:
		return b, nil
	case <-ctx.Done():
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for i, o := range a.waiters {
		if o == w {
			a.waiters = append(a.waiters[:i], a.waiters[i+1:]...)
			if i == 0 {
				a.giveUp()
				a.serve()
			}
			return nil, context.Cause(ctx)
		}
	}
	return <-w.ready, nil // served between the two: the block is ours
}

// Free gives back what Alloc returned. Any slice that starts where Alloc's did
// will do. Freeing twice, or foreign memory, is a bug and panics.
func (a *Arena) Free(b []byte) {
	off := address(b) - a.base
	if cap(b) == 0 || off >= uintptr(len(a.mem)) || off%Block != 0 {
		panic("buddy: Free of memory that is not this arena's")
	}
	page := int(off / Block)
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.state[page]&stateTaken == 0 {
		panic("buddy: Free of a block that is not allocated")
	}
	order := int(a.state[page] & orderMask)
	a.inUse -= Block << order
	a.state[page] = stateInside
	if a.kept.holds(page, order) {
		a.freeKept(page, order)
		return
	}
	for order < len(a.free)-1 {
		buddy := page ^ 1<<order
		if buddy+1<<order > len(a.state) || a.state[buddy] != stateFree|uint8(order) {
			break
		}
		a.claim(buddy, order)
		page &^= 1 << order
		order++
	}
	a.release(page, order)
	a.serve()
}

// Contains says whether all of b lies in one block that is allocated.
func (a *Arena) Contains(b []byte) bool {
	off := address(b) - a.base
	if len(b) == 0 || off >= uintptr(len(a.mem)) {
		return false
	}
	last := off + uintptr(len(b)) - 1
	page := int(off / Block)
	a.mu.Lock()
	defer a.mu.Unlock()
	for order := range a.free { // the block's start is page with some low bits cleared
		start := page &^ (1<<order - 1)
		if s := a.state[start]; s&stateTaken != 0 {
			return last < uintptr(start)*Block+Block<<(s&orderMask)
		}
	}
	return false
}

// Size is how many bytes the arena holds.
func (a *Arena) Size() int64 { return int64(len(a.mem)) }

// Largest is the size of the largest block that there could be.
func (a *Arena) Largest() int { return Block << (len(a.free) - 1) }

// Bytes is all of the memory, to register it with a kernel.
func (a *Arena) Bytes() []byte { return a.mem }

// InUse is how many bytes are allocated now, by the size of their blocks.
func (a *Arena) InUse() int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.inUse
}

// Peak is how many bytes were ever allocated at once.
func (a *Arena) Peak() int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.peak
}

// Check walks the whole arena and reports the first broken invariant.
func (a *Arena) Check() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	free, taken := 0, int64(0)
	for page := 0; page < len(a.state); {
		s := a.state[page]
		order := int(s & orderMask)
		switch {
		case s&(stateFree|stateTaken|stateKept) == 0 || page&(1<<order-1) != 0:
			return fmt.Errorf("buddy: arena page %d starts no block (state %#x)", page, s)
		case s&stateTaken != 0:
			taken += Block << order
		case s&stateKept != 0:
			if !a.kept.holds(page, order) || order == a.kept.order {
				return fmt.Errorf("buddy: arena page %d is kept (state %#x), and the place is %+v", page, s, a.kept)
			}
		default:
			free++
		}
		for i := page + 1; i < page+1<<order; i++ {
			if a.state[i] != stateInside {
				return fmt.Errorf("buddy: arena page %d has state %#x inside the block at %d", i, a.state[i], page)
			}
		}
		page += 1 << order
	}
	if taken != a.inUse {
		return fmt.Errorf("buddy: arena counts %d bytes in use and has %d", a.inUse, taken)
	}
	for order := range a.free {
		n := 0
		for page := a.free[order].from(0); page >= 0; page = a.free[order].from(page + 1) {
			if a.state[page<<order] != stateFree|uint8(order) {
				return fmt.Errorf("buddy: arena books of order %d are wrong at page %d", order, page<<order)
			}
			n++
		}
		if n != a.free[order].count {
			return fmt.Errorf("buddy: arena counts %d free blocks of order %d and has %d", a.free[order].count, order, n)
		}
		free -= n
	}
	if free != 0 {
		return fmt.Errorf("buddy: arena books miss %d free blocks", free)
	}
	return nil
}

// take finds a block for n bytes, in turn if it is large. The caller holds mu.
func (a *Arena) take(n int) ([]byte, bool) {
	if orderOf(n) < turnOrder {
		return a.takeBy(n, a.tight)
	}
	b, ok := a.takeBy(n, a.nextInTurn)
	if ok {
		a.turn = int(address(b)-a.base)/Block + cap(b)/Block
	}
	return b, ok
}

// takeBy splits down the block for n bytes that find finds. The caller holds mu.
func (a *Arena) takeBy(n int, find func(order int) (page, in int)) ([]byte, bool) {
	want := orderOf(n)
	page, order := find(want)
	if page < 0 {
		return nil, false
	}
	start := page >> order << order
	a.claim(start, order)
	for order > want { // keep the half with the page, free the other
		order--
		if half := start + 1<<order; page >= half {
			a.release(start, order)
			start = half
		} else {
			a.release(half, order)
		}
	}
	a.state[page] = stateTaken | uint8(order)
	a.inUse += Block << order
	a.peak = max(a.peak, a.inUse)
	off := page * Block
	return a.mem[off : off+n : off+Block<<order], true
}

// tight finds the first block of the smallest order from want up that has any, -1 for none.
func (a *Arena) tight(want int) (page, order int) {
	for order := want; order < len(a.free); order++ {
		if i := a.free[order].from(0); i >= 0 {
			return i << order, order
		}
	}
	return -1, 0
}

// nextInTurn finds the first page from turn on, and then from the start on, where a block
// of order want can be made, and the order of the free block that it lies in; -1 for none.
func (a *Arena) nextInTurn(want int) (page, order int) {
	if want < a.largest && a.whole() <= len(a.state)>>a.largest/4 {
		if page, order = a.nextBelow(want, a.largest); page >= 0 {
			return page, order
		}
	}
	return a.nextBelow(want, len(a.free))
}

// whole is how many free blocks there are of the largest order that is asked for.
func (a *Arena) whole() (n int) {
	for o := a.largest; o < len(a.free); o++ {
		n += a.free[o].count << (o - a.largest)
	}
	return n
}

// nextBelow is nextInTurn among the free blocks of an order below end.
func (a *Arena) nextBelow(want, end int) (page, order int) {
	for _, from := range [...]int{(a.turn + 1<<want - 1) >> want << want, 0} {
		page = -1
		for o := want; o < end; o++ {
			i := a.free[o].from(from >> o)
			if i < 0 {
				continue
			}
			if p := max(i<<o, from); page < 0 || p < page {
				page, order = p, o
			}
		}
		if page >= 0 {
			return page, order
		}
	}
	return -1, 0
}

// serve hands blocks to those who wait, in order, but that those behind get what is of no use
// to those before them. The caller holds mu.
func (a *Arena) serve() {
	if len(a.waiters) == 0 {
		return
	}
	least := len(a.free) // the order that was not to be had
	left := a.waiters[:0]
	for i, w := range a.waiters {
		order := orderOf(w.n)
		if order < least {
			if b, ok := a.take(w.n); ok {
				w.ready <- b
				if i == 0 {
					a.giveUp()
				}
				continue
			}
			least = order
		}
		left = append(left, w)
	}
	clear(a.waiters[len(left):])
	a.waiters = left
	if a.passed++; a.passed >= passedMost && len(left) > 0 && !a.kept.is {
		a.keep(orderOf(left[0].n)) // it looks through the whole arena
	}
}

// passedMost is how many frees may be of no use to the first who waits before a place is kept.
const passedMost = 64

// keep finds a place for the first who waits, for a block of an order, which there is
// nowhere, and takes what is free there out of the books. The caller holds mu.
func (a *Arena) keep(order int) {
	best := [2]int{len(a.state) + 1} // pages given out for long, and at all
	for page := 0; page+1<<order <= len(a.state); page += 1 << order {
		if n := a.given(page, order); n[0] < best[0] || n[0] == best[0] && n[1] < best[1] {
			best, a.kept = n, place{page, order, true}
		}
	}
	a.eachKept(stateFree, func(page, order int) {
		a.claim(page, order)
		a.state[page] = stateKept | uint8(order)
	})
}

// given is how many pages of a place are given out for long, and how many at all.
func (a *Arena) given(page, order int) (n [2]int) {
	for end := page + 1<<order; page < end; {
		s := a.state[page]
		size := 1 << (s & orderMask)
		for o := order + 1; s == stateInside; o++ { // a larger block begins before
			s, size = a.state[page>>o<<o], 1<<order
		}
		if s&stateLong == stateLong {
			n[0] += size
		}
		if s&stateTaken != 0 {
			n[1] += size
		}
		page += size
	}
	return n
}

// eachKept visits the blocks of a state in the place that is kept.
func (a *Arena) eachKept(state uint8, visit func(page, order int)) {
	for page, end := a.kept.page, a.kept.page+1<<a.kept.order; page < end; {
		s := a.state[page]
		if s == stateInside {
			return
		}
		order := int(s & orderMask)
		if s&^orderMask == state {
			visit(page, order)
		}
		page += 1 << order
	}
}

// giveUp forgets what was kept for the first who waits, who waits no more. The caller holds mu.
func (a *Arena) giveUp() {
	if a.kept.is {
		a.eachKept(stateKept, a.release)
	}
	a.kept, a.passed = place{}, 0
}

// freeKept joins a block that was freed with what is free of the place that it lies in, and
// gives that to the first who waits once it is whole. The caller holds mu.
func (a *Arena) freeKept(page, order int) {
	for order < a.kept.order && a.state[page^1<<order] == stateKept|uint8(order) {
		a.state[page^1<<order] = stateInside
		page &^= 1 << order
		order++
	}
	a.state[page] = stateKept | uint8(order)
	if order == a.kept.order {
		a.giveUp() // there is one such block now, which is in nobody's turn
		a.serve()
	}
}

// release enters a free block in the books, claim takes it out.
func (a *Arena) release(page, order int) {
	a.state[page] = stateFree | uint8(order)
	a.free[order].set(page >> order)
}

func (a *Arena) claim(page, order int) {
	a.state[page] = stateInside
	a.free[order].clear(page >> order)
}

// orderOf is the order of the smallest block that holds n bytes.
func orderOf(n int) int {
	if n < 0 {
		panic("buddy: allocation of a negative size")
	}
	return bits.Len(uint(max(n, 1)-1) / Block)
}

// address is where b starts, 0 for no memory. Neither mapped memory nor Go's heap
// moves, so the number stays true while b is reachable; it is never turned back
// into a pointer.
func address(b []byte) uintptr {
	if cap(b) == 0 {
		return 0
	}
	return reflect.ValueOf(&b[:1][0]).Pointer() // a pointer goes into an interface without an allocation
}
