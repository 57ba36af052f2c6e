// Package buddy hands out blocks of one piece of memory, for those who fill them for the
// kernel or for another process.
//
// An [Arena] is a buddy allocator with its books outside the memory: whoever else can
// write that cannot hurt them.
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
// from the arena's start), and a freed block joins its free buddy again. The block
// freed last is given out first, because it is the likeliest to be in the cache.
// It is safe for concurrent use, and no call but a waiting AllocWait allocates.
type Arena struct {
	mem  []byte  // never set again
	base uintptr // of mem

	mu      sync.Mutex // guards what follows; innermost, held for no more than a few list steps
	heads   []int32    // per order, the first free block (a page number) or none
	next    []int32    // per page, links of the free list; valid at a free block's first page
	prev    []int32
	state   []uint8 // per page, what starts there
	inUse   int64
	peak    int64
	waiters []*waiter // in order of arrival; Free serves the first before anybody
}

// A page's state byte: the order of the block that starts there, and whether it
// is free or given out. Pages inside a block are stateInside.
const (
	stateInside = 0
	stateFree   = 0x40
	stateTaken  = 0x80
	orderMask   = 0x3f
)

const none = int32(-1)

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
	a.next, a.prev, a.state = make([]int32, pages), make([]int32, pages), make([]uint8, pages)
	a.heads = make([]int32, bits.Len(uint(pages)))
	for i := range a.heads {
		a.heads[i] = none
	}
	// From the back, so that the largest blocks at the front are given out first.
	var cuts []int32
	for page := 0; page < pages; page += 1 << a.fits(page, pages) {
		cuts = append(cuts, int32(page))
	}
	for i := len(cuts) - 1; i >= 0; i-- {
		a.link(cuts[i], a.fits(int(cuts[i]), pages))
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

// AllocWait is Alloc that waits for memory, behind those who wait already, until
// ctx ends. More than the arena could ever give is refused at once.
func (a *Arena) AllocWait(ctx context.Context, n int) ([]byte, error) {
	if order := orderOf(n); order >= len(a.heads) {
		return nil, fmt.Errorf("%w: %d bytes can never fit %d", ErrTooLarge, n, len(a.mem))
	}
	a.mu.Lock()
	if len(a.waiters) == 0 {
		if b, ok := a.take(n); ok {
			a.mu.Unlock()
			return b, nil
		}
	}
	w := &waiter{n: n, ready: make(chan []byte, 1)}
	a.waiters = append(a.waiters, w)
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
			a.serve() // those behind may want less
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
	page := int32(off / Block)
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.state[page]&stateTaken == 0 {
		panic("buddy: Free of a block that is not allocated")
	}
	order := int(a.state[page] & orderMask)
	a.inUse -= Block << order
	a.state[page] = stateInside
	for order < len(a.heads)-1 {
		buddy := page ^ 1<<order
		if int(buddy)+1<<order > len(a.state) || a.state[buddy] != stateFree|uint8(order) {
			break
		}
		a.unlink(buddy, order)
		page &^= 1 << order
		order++
	}
	a.link(page, order)
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
	for order := range a.heads { // the block's start is page with some low bits cleared
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
func (a *Arena) Largest() int { return Block << (len(a.heads) - 1) }

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
		case s&(stateFree|stateTaken) == 0 || page&(1<<order-1) != 0:
			return fmt.Errorf("buddy: arena page %d starts no block (state %#x)", page, s)
		case s&stateTaken != 0:
			taken += Block << order
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
	for order, page := range a.heads {
		for last := none; page != none; last, page = page, a.next[page] {
			if a.state[page] != stateFree|uint8(order) || a.prev[page] != last {
				return fmt.Errorf("buddy: arena free list %d is broken at page %d", order, page)
			}
			free--
		}
	}
	if free != 0 {
		return fmt.Errorf("buddy: arena free lists miss %d blocks", free)
	}
	return nil
}

// take finds a block for n bytes and splits it down. The caller holds mu.
func (a *Arena) take(n int) ([]byte, bool) {
	want := orderOf(n)
	order := want
	for order < len(a.heads) && a.heads[order] == none {
		order++
	}
	if order >= len(a.heads) {
		return nil, false
	}
	page := a.heads[order]
	a.unlink(page, order)
	for order > want {
		order--
		a.link(page+1<<order, order)
	}
	a.state[page] = stateTaken | uint8(order)
	a.inUse += Block << order
	a.peak = max(a.peak, a.inUse)
	off := int(page) * Block
	return a.mem[off : off+n : off+Block<<order], true
}

// serve hands blocks to those who wait, in order. The caller holds mu.
func (a *Arena) serve() {
	for len(a.waiters) > 0 {
		b, ok := a.take(a.waiters[0].n)
		if !ok {
			return
		}
		a.waiters[0].ready <- b
		a.waiters = append(a.waiters[:0], a.waiters[1:]...)
	}
}

func (a *Arena) link(page int32, order int) {
	head := a.heads[order]
	a.state[page] = stateFree | uint8(order)
	a.next[page], a.prev[page] = head, none
	if head != none {
		a.prev[head] = page
	}
	a.heads[order] = page
}

func (a *Arena) unlink(page int32, order int) {
	next, prev := a.next[page], a.prev[page]
	if prev == none {
		a.heads[order] = next
	} else {
		a.next[prev] = next
	}
	if next != none {
		a.prev[next] = prev
	}
	a.state[page] = stateInside
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
