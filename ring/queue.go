package ring

import (
	"sync/atomic"

	abi "github.com/iceber/iouring-go/syscall"
	"golang.org/x/sys/unix"
)

// The two queues lie in memory shared with the kernel. Positions only grow, modulo
// 2^32; an entry's place is its position masked. The kernel moves sq.head and
// cq.tail, we move sq.tail and cq.head.

type submissions struct {
	head, tail, flags *uint32
	mask              uint32
	entries           []abi.SubmissionQueueEntry64

	next uint32 // position of the next entry to fill; entries from tail to it are not published yet
}

type completions struct {
	head, tail *uint32
	mask       uint32
	entries    []abi.CompletionQueueEvent16
}

// completion is a private copy of an entry, so that its place can go back to the
// kernel before anybody acts on it.
type completion struct {
	user uint64
	res  int32
}

// publish makes the filled entries visible to the kernel, and tells how many it has
// not taken.
func (q *submissions) publish() uint32 {
	if *q.tail != q.next {
		atomic.StoreUint32(q.tail, q.next)
	}
	return q.next - atomic.LoadUint32(q.head)
}

// ready is the number of completions to take.
func (q *completions) ready() uint32 {
	return atomic.LoadUint32(q.tail) - *q.head
}

// take copies at most len(batch) completions and gives their places back. The head
// moves by exactly what was copied, whatever happens to the copies.
func (q *completions) take(batch []completion) int {
	head, n := *q.head, min(q.ready(), uint32(len(batch)))
	for i := range n {
		e := &q.entries[(head+i)&q.mask]
		batch[i] = completion{e.UserData(), e.Result()}
	}
	if n > 0 {
		atomic.StoreUint32(q.head, head+n)
	}
	return int(n)
}

// none ends a chain.
const none = ^uint32(0)

// slot is a request's place from Push to Done. Push fills it, then stores gen; Wait
// loads gen before it reads anything else, which orders the two sides.
type slot struct {
	gen atomic.Uint32 // changes with every submission and completion: a stale answer names an old one

	op     *Op
	head   uint32 // first slot of the chain, itself when alone
	next   uint32 // the chain's next slot, or none
	left   uint32 // in the head: members whose completion is outstanding
	buffer int32  // registered buffer, or -1

	moved  uint32       // bytes done, up to a block boundary of the file
	seen   uint32       // most bytes a Read ever reported
	res    int32        // the last result
	tries  uint8        // submissions refused with EINTR or EAGAIN
	stalls uint8        // transfers in a row that did not pass a block boundary
	final  bool         // res is not to be tried again
	vector []unix.Iovec // of a Write of several pieces; kept for the next
	parked bool         // a nop stands in for it: its chain was cut before the kernel took it
}

// freeList hands slots from the side that completes to the side that pushes: one
// reader, one writer, so two counters order it.
type freeList struct {
	slots      []uint32
	mask       uint32
	head, tail atomic.Uint32
}

func (f *freeList) fill(n int) {
	size := 1
	for size < n {
		size *= 2
	}
	f.slots, f.mask = make([]uint32, size), uint32(size-1)
	for i := range n {
		f.put(uint32(i))
	}
}

func (f *freeList) len() int { return int(f.tail.Load() - f.head.Load()) }

// get may be called only when len is positive, by the pushing side.
func (f *freeList) get() uint32 {
	h := f.head.Load()
	i := f.slots[h&f.mask]
	f.head.Store(h + 1)
	return i
}

// put is the completing side's.
func (f *freeList) put(i uint32) {
	t := f.tail.Load()
	f.slots[t&f.mask] = i
	f.tail.Store(t + 1)
}
