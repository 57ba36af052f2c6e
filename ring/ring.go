// Package ring drives one io_uring queue pair: many reads, writes and syncs in
// flight at once, with one system call for a batch of them.
//
// A [Ring] is the pair of queues. An [Op] is one request; its owner pushes it, and
// gets it back in its Done. A chain is several requests of which each starts when
// the one before it has succeeded. An [Arena] is memory fit for requests, and
// [Probe] says what this kernel and sandbox allow.
//
// A ring has two sides. Push, PushChain, Submit and the registrations are the submitting
// side, Wait is the completing side. Each side may be used by one goroutine at a time,
// whichever it is, and the two sides may be used at the same time. With
// Options.SingleIssuer, everything from Open to Close belongs to one goroutine, which Open
// locks to its thread. The kernel may drop a request when the thread that submitted it ends,
// so a goroutine that locked its thread must not end before its requests.
//
// A ring promises that
//   - every accepted request gets exactly one Done;
//   - a transfer that ended early goes on from a block boundary of the file, with the same
//     bytes;
//   - EINTR, EAGAIN, EBUSY and requests that the kernel dropped before they began are
//     retried, a bounded number of times;
//   - no more than Depth requests are in flight;
//   - after Close the kernel holds none of the buffers.
//
// It never turns a failure into a success: a request that failed, or that Close gave up, has
// an error, and its outcome is unknown. Done must neither block nor panic; it may push and
// submit.
package ring

import (
	"cmp"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"

	abi "github.com/iceber/iouring-go/syscall"
)

// blockSize is the unit on which an interrupted transfer goes on: no file system or
// device in use asks for a coarser one.
const blockSize = 4096

// Options of a ring. The zero value is a ring of 64 requests for any goroutine.
type Options struct {
	Entries   uint32 // requests in flight at most; 0 means 64
	CQEntries uint32 // completion queue; 0 means twice the entries

	// SingleIssuer binds the ring to the goroutine and thread of Open, which is the
	// cheapest way for the kernel to deliver completions.
	SingleIssuer bool

	// Buffers are registered with the kernel, so that it need not look up their pages
	// for each request. Spare is the number of places for RegisterBuffer.
	Buffers      [][]byte
	Spare        int
	MustRegister bool // fail where Buffers exceed the memlock limit, instead of going on unregistered

	Files int // size of the table of registered files

	// RawWait waits without telling Go's scheduler: half the processor time, but it
	// holds a P, and a garbage collection cannot stop it.
	RawWait bool
}

// Info says how a ring came out.
type Info struct {
	Depth        int    // requests in flight at most; less than asked where memory was short
	CQEntries    int    // size of the completion queue
	SingleIssuer bool   // false when the kernel is too old for it
	Registered   bool   // Options.Buffers are registered
	Reason       string // why something differs from what was asked
}

// Stats counts what a ring did and met since Open.
type Stats struct {
	Enters    uint64 // system calls that submitted
	Waits     uint64 // system calls that waited
	Resumed   uint64 // transfers that ended early and went on
	Retried   uint64 // requests refused with EINTR or EAGAIN, or never begun, and submitted again
	Refused   uint64 // submissions the kernel put off: EAGAIN, EBUSY, EINTR
	Overflows uint64 // times the kernel held completions back for want of room
	Stale     uint64 // completions that belonged to no request in flight
}

type counters struct {
	enters, waits, resumed, retried, refused, overflows atomic.Uint64

	// Completions without a request of their own. Taken from the queue like the
	// others, they must not count as the end of one.
	stale atomic.Uint32
}

// Ring is one queue pair. The package comment says who may call what.
type Ring struct {
	k      kernel // set by Open, never again
	info   Info   // likewise
	single bool   // likewise

	cq completions // the completing side's

	// Work of the completing side that needs the submitting side: heads of chains to
	// submit again. Owned by the completing side, and so is spare, which failed is
	// exchanged for.
	retry, spare []uint32

	slots []slot // handed over by free and by each slot's gen
	free  freeList

	mu      sync.Mutex // guards what follows; held across submissions, which do not wait for I/O
	sq      submissions
	files   []file
	buffers []buffer
	failed  []uint32 // slots whose submission failed for good, for Wait to report
	closed  bool

	stuck    atomic.Bool // entries are published that the kernel would not take yet
	failures atomic.Bool // failed is not empty
	closing  atomic.Bool // nothing is tried again any more
	gone     atomic.Bool // the queues are not mapped any more

	count counters
}

// Open makes a ring. An error that is ErrUnavailable means that io_uring cannot be
// used here at all; Probe says more.
func Open(o Options) (*Ring, error) {
	o.Entries = cmp.Or(o.Entries, 64)
	if o.Spare < 0 || o.Files < 0 || o.Entries > maxEntries {
		return nil, fmt.Errorf("%w: ring of %d entries, %d files, %d spare buffers", ErrInvalid, o.Entries, o.Files, o.Spare)
	}
	if o.SingleIssuer {
		runtime.LockOSThread()
	}
	r, err := open(o, openLinux)
	if err != nil && o.SingleIssuer {
		runtime.UnlockOSThread()
	}
	return r, err
}

// maxEntries is the kernel's largest submission queue.
const maxEntries = 32768

// opener makes a kernel ring of that many entries and fills in what it granted.
type opener func(entries uint32, p *abi.IOURingParams, o Options) (kernel, submissions, completions, error)

// open asks for less where the kernel refuses: flags that it is too old to know, and
// queues that it has no memory for.
func open(o Options, start opener) (*Ring, error) {
	asked, old := o.Entries, false
	for {
		p := params(o, old)
		k, sq, cq, err := start(o.Entries, &p, o)
		switch {
		case err == nil:
			r := newRing(k, sq, cq, int(o.Entries))
			r.single, r.info.SingleIssuer = o.SingleIssuer, p.Flags&setupSingleIssuer != 0
			if o.Entries < asked {
				r.note(fmt.Sprintf("memory for %d of %d entries only", o.Entries, asked))
			}
			if o.SingleIssuer && !r.info.SingleIssuer {
				r.note("this kernel does not know single issuers")
			}
			if err := r.registerTables(o); err != nil {
				r.k.close()
				return nil, err
			}
			return r, nil
		case errors.Is(err, syscall.EINVAL) && !old:
			old = true
		case errors.Is(err, syscall.ENOMEM) && o.Entries > 8:
			o.Entries, o.CQEntries = o.Entries/2, 0
		default:
			return nil, explain(err)
		}
	}
}

func (r *Ring) note(reason string) {
	if r.info.Reason != "" {
		reason = r.info.Reason + "; " + reason
	}
	r.info.Reason = reason
}

// params are what a ring is set up with. Neither kernel-side polling for submissions
// nor for completions is ever asked for: the first burns a core, the second needs
// poll queues that few devices have. An old kernel is spared the optional flags.
func params(o Options, old bool) abi.IOURingParams {
	p := abi.IOURingParams{Flags: abi.IORING_SETUP_CQSIZE, CQEntries: max(cmp.Or(o.CQEntries, 2*o.Entries), o.Entries)}
	if old {
		return p
	}
	p.Flags |= abi.IORING_SETUP_SUBMIT_ALL // one bad entry does not stop the rest
	if o.SingleIssuer {
		p.Flags |= setupSingleIssuer | setupDeferTaskrun | abi.IORING_SETUP_TASKRUN_FLAG
	}
	return p
}

// newRing is a ring over queues that exist. The depth stays below the completion
// queue's size, so that the kernel always has a place for an answer, and within the
// submission queue's, so that every slot always has a place to be submitted from.
func newRing(k kernel, sq submissions, cq completions, depth int) *Ring {
	depth = min(depth, len(sq.entries), len(cq.entries)-1)
	sq.next = *sq.tail
	r := &Ring{
		k: k, sq: sq, cq: cq,
		info:   Info{Depth: depth, CQEntries: len(cq.entries)},
		slots:  make([]slot, depth),
		retry:  make([]uint32, 0, depth),
		failed: make([]uint32, 0, depth),
		spare:  make([]uint32, 0, depth),
	}
	r.free.fill(depth)
	return r
}

// Depth is the largest number of requests in flight.
func (r *Ring) Depth() int { return r.info.Depth }

// InFlight is the number of requests pushed and not done.
func (r *Ring) InFlight() int { return r.info.Depth - r.free.len() }

// Info says how the ring came out.
func (r *Ring) Info() Info { return r.info }

// Stats may be called from anywhere.
func (r *Ring) Stats() Stats {
	c := &r.count
	return Stats{
		Enters: c.enters.Load(), Waits: c.waits.Load(), Resumed: c.resumed.Load(), Retried: c.retried.Load(),
		Refused: c.refused.Load(), Overflows: c.overflows.Load(), Stale: uint64(c.stale.Load()),
	}
}

// inKernel is the number of requests the kernel has taken and not answered, or
// answered into the queue. Each request it takes gives exactly one completion.
func (r *Ring) inKernel() uint32 {
	return atomic.LoadUint32(r.sq.head) - atomic.LoadUint32(r.cq.head) + r.count.stale.Load()
}

// Close cancels what can be cancelled, waits until the kernel has answered every
// request, runs their Done, and frees the ring. Neither side may be in use, and
// nothing can be pushed from inside Done. A second Close does nothing.
func (r *Ring) Close() error {
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		return nil
	}
	r.closed = true
	r.closing.Store(true)
	r.sq.publish()
	r.giveUp(syscall.ECANCELED)
	r.cancelAll()
	r.mu.Unlock()
	for r.inKernel() > 0 || r.InFlight() > 0 {
		if _, err := r.Wait(1); err != nil {
			return fmt.Errorf("ring: close: %w", err) // the queues stay mapped: the kernel may still use them
		}
	}
	r.gone.Store(true)
	r.unregisterTables()
	r.k.close()
	if r.single {
		runtime.UnlockOSThread()
	}
	return nil
}

// cancelAll asks the kernel to give up requests that have not begun, or that could
// wait for ever, such as a read from an empty pipe. It is a request itself. A kernel
// that cannot cancel everything at once answers with an error, and its requests end
// by themselves. The caller holds mu.
func (r *Ring) cancelAll() {
	if r.inKernel() == 0 {
		return
	}
	e := &r.sq.entries[r.sq.next&r.sq.mask]
	e.Reset()
	e.PrepOperation(abi.IORING_OP_ASYNC_CANCEL, -1, 0, 0, 0)
	e.SetOpFlags(cancelAll | cancelAny)
	e.SetUserData(cancelUser)
	r.sq.next++
	if n := r.sq.publish(); n > 0 {
		r.count.enters.Add(1)
		if took, _ := r.k.enter(n, 0, false); took == 0 {
			// Not taken: it was only a hint.
			r.sq.next--
			atomic.StoreUint32(r.sq.tail, r.sq.next)
		}
	}
}

// cancelUser marks the one request that has no slot.
const cancelUser = ^uint64(0)
