package ring

import (
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	abi "github.com/iceber/iouring-go/syscall"
	"golang.org/x/sys/unix"
)

// fake is a kernel for fault tests: it takes entries from the shared queues, runs
// them on files that are byte slices, and answers when and how a test wants. It
// insists on the alignment of direct I/O.
type fake struct {
	t *testing.T

	// onEnter, when set, decides about a call: the most entries it takes, or an errno.
	onEnter func(call int, submit, wait uint32) (limit uint32, errno syscall.Errno)
	// onRequest, when set, decides about the nth request: the most bytes it moves (-1
	// for all), or an errno, and whether the answer is held back until release.
	onRequest func(n int, q request) verdict
	late      bool       // answers come with the next call that wants completions, not at once
	order     *rand.Rand // late answers come in this order, nil for the order of submission
	places    uint32     // places of the completion queue that are used, 0 for all
	onControl func(op uint32) syscall.Errno

	mu       sync.Mutex
	arrived  sync.Cond
	files    map[int32][]byte
	pending  []abi.CompletionQueueEvent16
	held     []abi.CompletionQueueEvent16
	overflow []abi.CompletionQueueEvent16
	trace    []request
	calls    int
	faults   int // answers and calls that onEnter and onRequest changed
	closed   bool

	shared [8]uint32 // sq head, tail, flags; cq head, tail
	sqes   []abi.SubmissionQueueEntry64
	cqes   []abi.CompletionQueueEvent16
}

type verdict struct {
	limit int
	errno syscall.Errno
	hold  bool
}

var all = verdict{limit: -1}

type request struct {
	op, flags uint8
	fd        int32
	off, addr uint64
	size      uint32
	opFlags   uint32
	user      uint64
	buffer    uint16
	pieces    [][]byte // of a vector; addr and size are of all of it then
}

// rawCQE writes what the ABI package only reads.
type rawCQE struct {
	user  uint64
	res   int32
	flags uint32
}

func cqe(user uint64, res int32) abi.CompletionQueueEvent16 {
	raw := rawCQE{user: user, res: res}
	return *(*abi.CompletionQueueEvent16)(unsafe.Pointer(&raw))
}

func decode(e *abi.SubmissionQueueEntry64) request {
	b := (*[64]byte)(unsafe.Pointer(e))
	u32 := func(i int) uint32 { return *(*uint32)(unsafe.Pointer(&b[i])) }
	u64 := func(i int) uint64 { return *(*uint64)(unsafe.Pointer(&b[i])) }
	q := request{op: b[0], flags: b[1], fd: int32(u32(4)), off: u64(8), addr: u64(16), size: u32(24), opFlags: u32(28), user: u64(32), buffer: uint16(u32(40))}
	if q.op == abi.IORING_OP_WRITEV {
		list := unsafe.Slice((*unix.Iovec)(*(*unsafe.Pointer)(unsafe.Pointer(&q.addr))), q.size)
		q.addr, q.size = addressOf(unsafe.Slice(list[0].Base, 1)), 0
		for _, v := range list {
			q.pieces = append(q.pieces, unsafe.Slice(v.Base, v.Len))
			q.size += uint32(v.Len)
		}
	}
	return q
}

// start is an opener. base is where all four positions begin.
func (f *fake) start(base uint32) opener {
	return func(entries uint32, p *abi.IOURingParams, o Options) (kernel, submissions, completions, error) {
		f.arrived.L = &f.mu
		for i := range 5 {
			f.shared[i] = base
		}
		f.shared[2] = 0
		f.sqes = make([]abi.SubmissionQueueEntry64, roundUp(entries))
		f.cqes = make([]abi.CompletionQueueEvent16, roundUp(p.CQEntries))
		sq := submissions{head: &f.shared[0], tail: &f.shared[1], flags: &f.shared[2], mask: uint32(len(f.sqes) - 1), entries: f.sqes}
		cq := completions{head: &f.shared[3], tail: &f.shared[4], mask: uint32(len(f.cqes) - 1), entries: f.cqes}
		return f, sq, cq, nil
	}
}

func roundUp(n uint32) uint32 {
	p := uint32(1)
	for p < n {
		p *= 2
	}
	return p
}

// newFake opens a ring over a fake with one file, number 3, of size bytes.
func newFake(t *testing.T, o Options, size int) (*Ring, *fake) {
	t.Helper()
	return newFakeAt(t, o, size, 0)
}

func newFakeAt(t *testing.T, o Options, size int, base uint32) (*Ring, *fake) {
	t.Helper()
	f := &fake{t: t, files: map[int32][]byte{3: make([]byte, size)}}
	if o.Entries == 0 {
		o.Entries = 8
	}
	r, err := open(o, f.start(base))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		f.release()
		if err := r.Close(); err != nil {
			t.Error("close:", err)
		}
		if n := r.InFlight(); n != 0 {
			t.Errorf("%d requests left after Close", n)
		}
	})
	return r, f
}

func (f *fake) enter(submit, wait uint32, getEvents bool) (uint32, syscall.Errno) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		f.t.Error("enter after close")
		return 0, syscall.EBADF
	}
	call, limit := f.calls, submit
	f.calls++
	if f.onEnter != nil {
		l, errno := f.onEnter(call, submit, wait)
		if errno != 0 {
			f.faults++
			return 0, errno
		}
		if l < limit {
			f.faults++
			limit = l
		}
	}
	took := f.take(limit)
	if getEvents || wait > 0 {
		f.deliver()
	}
	if took < submit {
		return took, 0 // as Linux does: it does not wait when it could not take all
	}
	wait = min(wait, f.room()) // as Linux does, too
	for deadline := time.Now().Add(10 * time.Second); f.ready() < wait; {
		if time.Now().After(deadline) {
			f.t.Error("fake: waited 10 s for completions that nothing will bring")
			return 0, syscall.EDEADLK
		}
		f.pauseForOthers()
		f.deliver()
	}
	return took, 0
}

// pauseForOthers lets other goroutines in for a moment. The caller holds mu.
func (f *fake) pauseForOthers() {
	f.mu.Unlock()
	time.Sleep(20 * time.Microsecond)
	f.mu.Lock()
}

// take runs up to limit entries. A chain ends with the call, as in Linux.
func (f *fake) take(limit uint32) uint32 {
	head, tail := f.shared[0], atomic.LoadUint32(&f.shared[1])
	n := min(limit, tail-head)
	linked, broken := false, false
	for i := range n {
		q := decode(&f.sqes[(head+i)&uint32(len(f.sqes)-1)])
		if !linked {
			broken = false
		}
		v := all
		if f.onRequest != nil && q.user != cancelUser && !broken { // what is cancelled does not run
			v = f.onRequest(len(f.trace), q)
			if v != all {
				f.faults++
			}
		}
		f.trace = append(f.trace, q)
		var res int32
		switch {
		case broken:
			res = -int32(syscall.ECANCELED)
		case v.errno != 0:
			res, broken = -int32(v.errno), true
		default:
			res = f.run(q, v.limit)
			broken = res < 0 || moves(q.op) && uint32(res) < q.size
		}
		linked = q.flags&abi.IOSQE_FLAGS_IO_LINK != 0
		switch c := cqe(q.user, res); {
		case v.hold:
			f.held = append(f.held, c)
		case f.late:
			f.pending = append(f.pending, c)
		default:
			f.post(c)
		}
	}
	atomic.StoreUint32(&f.shared[0], head+n)
	return n
}

func moves(op uint8) bool {
	return op == abi.IORING_OP_WRITEV || op == abi.IORING_OP_WRITE || op == abi.IORING_OP_WRITE_FIXED || op == abi.IORING_OP_READ || op == abi.IORING_OP_READ_FIXED
}

// run does what a request asks, on at most limit bytes.
func (f *fake) run(q request, limit int) int32 {
	if !moves(q.op) {
		return 0
	}
	if q.off%512 != 0 || q.addr%512 != 0 || q.size%512 != 0 {
		return -int32(syscall.EINVAL)
	}
	file, ok := f.files[q.fd]
	if !ok {
		return -int32(syscall.EBADF)
	}
	n := int(q.size)
	if limit >= 0 {
		n = min(n, limit)
	}
	mem := slices.Concat(q.pieces...)
	if q.pieces == nil {
		mem = unsafe.Slice((*byte)(*(*unsafe.Pointer)(unsafe.Pointer(&q.addr))), n)
	}
	mem = mem[:n]
	if q.op == abi.IORING_OP_READ || q.op == abi.IORING_OP_READ_FIXED {
		return int32(copy(mem, file[min(int(q.off), len(file)):]))
	}
	if int(q.off)+n > len(file) {
		return -int32(syscall.ENOSPC)
	}
	return int32(copy(file[q.off:], mem))
}

// post puts an answer into the completion queue, or behind it when there is no room.
func (f *fake) post(c abi.CompletionQueueEvent16) {
	if len(f.overflow) > 0 || f.ready() >= f.room() {
		f.overflow = append(f.overflow, c)
		atomic.StoreUint32(&f.shared[2], abi.IORING_SQ_CQ_OVERFLOW)
		return
	}
	tail := f.shared[4]
	f.cqes[tail&uint32(len(f.cqes)-1)] = c
	atomic.StoreUint32(&f.shared[4], tail+1)
}

func (f *fake) room() uint32 {
	if f.places > 0 {
		return f.places
	}
	return uint32(len(f.cqes))
}

func (f *fake) ready() uint32 { return f.shared[4] - atomic.LoadUint32(&f.shared[3]) }

// deliver posts what is due.
func (f *fake) deliver() {
	for len(f.overflow) > 0 && f.ready() < f.room() {
		c := f.overflow[0]
		f.overflow = f.overflow[1:]
		rest := f.overflow
		f.overflow = nil
		f.post(c)
		f.overflow = rest
	}
	if len(f.overflow) == 0 {
		atomic.StoreUint32(&f.shared[2], 0)
	}
	if f.order != nil {
		f.order.Shuffle(len(f.pending), func(i, j int) { f.pending[i], f.pending[j] = f.pending[j], f.pending[i] })
	}
	for _, c := range f.pending {
		f.post(c)
	}
	f.pending = f.pending[:0]
}

// release answers what was held.
func (f *fake) release() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.pending = append(f.pending, f.held...)
	f.held = nil
	f.onRequest, f.onEnter = nil, nil
}

func (f *fake) register(op uint32, _ unsafe.Pointer, _ uint32) syscall.Errno {
	if f.onControl != nil {
		return f.onControl(op)
	}
	return 0
}

func (f *fake) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.held)+len(f.pending)+len(f.overflow) > 0 {
		f.t.Error("closed while the kernel still had requests")
	}
	f.closed = true
}

// memory is an arena for one test.
func memory(t testing.TB, size int) []byte {
	t.Helper()
	a, err := NewArena(size)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	})
	return a.Bytes()[:size]
}

// drain submits and waits until nothing is in flight.
func drain(t testing.TB, r *Ring) {
	t.Helper()
	if err := r.Submit(); err != nil {
		t.Fatal(err)
	}
	for r.InFlight() > 0 {
		if _, err := r.Wait(1); err != nil {
			t.Fatal(err)
		}
	}
}

func push(t testing.TB, r *Ring, ops ...*Op) {
	t.Helper()
	for _, op := range ops {
		if err := r.Push(op); err != nil {
			t.Fatal(err)
		}
	}
}

// do runs one request to its end.
func do(t testing.TB, r *Ring, op *Op) *Op {
	t.Helper()
	push(t, r, op)
	drain(t, r)
	return op
}
