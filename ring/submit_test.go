package ring

import (
	"bytes"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// The very first submission may be refused although nothing is in flight that could
// make room: waiting for a completion then would be for ever.
func TestE06FirstSubmitRefused(t *testing.T) {
	for _, errno := range []syscall.Errno{syscall.EAGAIN, syscall.EBUSY, syscall.EINTR} {
		r, f := newFake(t, Options{}, 4096)
		f.onEnter = func(call int, submit, _ uint32) (uint32, syscall.Errno) {
			if call < 5 {
				return 0, errno
			}
			return submit, 0
		}
		op := &Op{}
		push(t, r, op)
		start := time.Now()
		drain(t, r)
		if op.Err != nil || f.faults != 5 || len(f.trace) != 1 {
			t.Errorf("%v: %v, %d faults, %d submissions", errno, op.Err, f.faults, len(f.trace))
		}
		if d := time.Since(start); d > 5*time.Second {
			t.Errorf("%v: took %v", errno, d)
		}
	}
}

// Refused for ever, a submission is an error, and its requests end with it; nothing
// is lost and nothing runs later.
func TestE06SubmitRefusedForGood(t *testing.T) {
	for _, errno := range []syscall.Errno{syscall.EAGAIN, syscall.EBUSY, syscall.EINTR, syscall.EBADF, syscall.EEXIST, 0} {
		r, f := newFake(t, Options{}, 4096)
		f.onEnter = func(_ int, _, wait uint32) (uint32, syscall.Errno) { return 0, errno }
		want := errno
		if errno == 0 {
			want = syscall.EAGAIN // takes nothing, says nothing
		}
		ops := []*Op{{}, {Code: Sync, FD: 3}, {}, {}}
		push(t, r, ops[:2]...)
		if err := r.PushChain(ops[2:]...); err != nil {
			t.Fatal(err)
		}
		if err := r.Submit(); !errors.Is(err, want) {
			t.Fatalf("%v: Submit says %v", errno, err)
		}
		f.onEnter = nil
		if n, err := r.Wait(4); n != 4 || err != nil {
			t.Fatalf("%v: Wait says %d, %v", errno, n, err)
		}
		for i, op := range ops {
			if w := error(want); op.Err != w && (i != 3 || op.Err != syscall.ECANCELED) {
				t.Errorf("%v: request %d ended with %v", errno, i, op.Err)
			}
		}
		if do(t, r, ops[0]); ops[0].Err != nil || len(f.trace) != 1 {
			t.Errorf("%v: afterwards %v, %d submissions", errno, ops[0].Err, len(f.trace))
		}
	}
}

// With requests in flight, a refusal is left to Wait, which goes on after it has
// seen one end. Order is kept.
func TestE06RefusedWhileBusy(t *testing.T) {
	for _, errno := range []syscall.Errno{syscall.EAGAIN, syscall.EBUSY} {
		r, f := newFake(t, Options{}, 4096)
		f.late = true
		push(t, r, &Op{Tag: 1}, &Op{Tag: 2})
		if err := r.Submit(); err != nil {
			t.Fatal(err)
		}
		full := true
		f.onEnter = func(_ int, submit, wait uint32) (uint32, syscall.Errno) {
			if submit > 0 && full {
				return 0, errno
			}
			full = full && wait == 0 // a wait brings completions, and with them room
			return submit, 0
		}
		var order []uint64
		done := func(op *Op) { order = append(order, op.Tag) }
		push(t, r, &Op{Tag: 3, Done: done}, &Op{Tag: 4, Done: done}, &Op{Tag: 5, Done: done})
		if err := r.Submit(); err != nil {
			t.Fatalf("%v: Submit says %v", errno, err)
		}
		if len(f.trace) != 2 || !r.stuck.Load() {
			t.Fatalf("%v: %d were taken", errno, len(f.trace))
		}
		if n, err := r.Wait(5); n != 5 || err != nil || !slices.Equal(order, []uint64{3, 4, 5}) {
			t.Fatalf("%v: %d, %v, order %v", errno, n, err, order)
		}
		if r.stuck.Load() || f.faults == 0 {
			t.Fatalf("%v: still stuck, or never was", errno)
		}
	}
}

// Taken in parts, everything runs once and in order.
func TestE06PartialAcceptance(t *testing.T) {
	for _, part := range []uint32{1, 2, 3, 7} {
		r, f := newFake(t, Options{}, 4096)
		f.onEnter = func(int, uint32, uint32) (uint32, syscall.Errno) { return part, 0 }
		var order []uint64
		for i := range uint64(8) {
			push(t, r, &Op{Tag: i, Done: func(op *Op) { order = append(order, op.Tag) }})
		}
		drain(t, r)
		if !slices.Equal(order, []uint64{0, 1, 2, 3, 4, 5, 6, 7}) || f.faults == 0 {
			t.Fatalf("%d at a time: %v, %d faults", part, order, f.faults)
		}
	}
}

// A chain taken in parts must not run as two chains side by side: the part behind
// the cut waits until the part before it is done.
func TestE06ChainCutByPartialAcceptance(t *testing.T) {
	for _, single := range []bool{false, true} {
		for cut := uint32(1); cut < 6; cut++ {
			r, f := newFake(t, Options{}, 65536)
			r.single = single
			mem := memory(t, 16384)
			fill(mem, int(cut))
			calls := 0
			f.late = true
			f.onEnter = func(_ int, submit, _ uint32) (uint32, syscall.Errno) {
				if calls++; calls == 1 {
					return cut, 0
				}
				return submit, 0
			}
			push(t, r, &Op{})
			ops := []*Op{
				{Code: Write, FD: 3, Buf: mem[:4096]}, {Code: Write, FD: 3, Buf: mem[4096:8192], Off: 4096},
				{Code: Write, FD: 3, Buf: mem[8192:12288], Off: 8192}, {Code: Sync, FD: 3},
			}
			if err := r.PushChain(ops...); err != nil {
				t.Fatal(err)
			}
			push(t, r, &Op{})
			if n, err := r.SubmitAndWait(6); n != 6 || err != nil {
				t.Fatal(cut, n, err)
			}
			for i, op := range ops {
				if op.Err != nil {
					t.Errorf("cut at %d: request %d: %v", cut, i, op.Err)
				}
			}
			// The real sync runs last, behind a link from everything after the cut.
			last := f.trace[len(f.trace)-1]
			if cut >= 2 && cut < 5 && last.op != opcode[Sync][0] || !bytes.Equal(f.files[3][:12288], mem[:12288]) || f.faults == 0 {
				t.Errorf("cut at %d: last %+v, %d faults", cut, last, f.faults)
			}
			syncs := 0
			for _, q := range f.trace {
				if q.op == opcode[Sync][0] {
					syncs++
				}
			}
			if syncs != 1 {
				t.Errorf("cut at %d: %d syncs", cut, syncs)
			}
		}
	}
}

// A cut chain whose first part fails does not run its second.
func TestE06CutChainFails(t *testing.T) {
	r, f := newFake(t, Options{}, 4096)
	calls := 0
	f.onEnter = func(_ int, submit, _ uint32) (uint32, syscall.Errno) {
		if calls++; calls == 1 {
			return 1, 0
		}
		return submit, 0
	}
	f.onRequest = func(n int, _ request) verdict {
		if n == 0 {
			return verdict{errno: syscall.EIO}
		}
		return all
	}
	a, b := &Op{Code: Sync, FD: 3}, &Op{Code: Sync, FD: 3}
	if err := r.PushChain(a, b); err != nil {
		t.Fatal(err)
	}
	drain(t, r)
	if a.Err != syscall.EIO || b.Err != syscall.ECANCELED || len(f.trace) != 2 || f.trace[1].op != 0 {
		t.Fatal(a.Err, b.Err, f.trace)
	}
}

// A chain is admitted whole or not at all.
func TestChainIsAllOrNothing(t *testing.T) {
	r, f := newFake(t, Options{Entries: 4}, 4096)
	push(t, r, &Op{}, &Op{})
	if err := r.PushChain(&Op{}, &Op{}, &Op{}); !errors.Is(err, ErrFull) {
		t.Fatal(err)
	}
	if err := r.PushChain(&Op{}, &Op{}, &Op{}, &Op{}, &Op{}); !errors.Is(err, ErrInvalid) {
		t.Fatal(err)
	}
	if err := r.PushChain(&Op{}, &Op{Code: Write, FD: 3}); !errors.Is(err, ErrInvalid) {
		t.Fatal(err)
	}
	if err := r.PushChain(); err != nil {
		t.Fatal(err)
	}
	if r.InFlight() != 2 {
		t.Fatal(r.InFlight())
	}
	drain(t, r)
	if len(f.trace) != 2 {
		t.Fatal(len(f.trace))
	}
}

// Requests that make no sense are refused before the kernel sees them.
func TestPushRefusesNonsense(t *testing.T) {
	r, _ := newFake(t, Options{Files: 2}, 4096)
	mem := memory(t, 4096)
	for _, op := range []*Op{
		{Code: codes}, {Code: Write, FD: 3}, {Code: Read, FD: -1, Buf: mem}, {Code: Write, FD: 3, Buf: mem, Off: -4096},
		{Code: Allocate, FD: 3}, {Code: Write, FD: 1 << 40, Buf: mem},
		{Code: Write, Flags: FixedFile, FD: 0, Buf: mem}, {Code: Write, Flags: FixedFile, FD: 2, Buf: mem},
	} {
		if err := r.Push(op); !errors.Is(err, ErrInvalid) {
			t.Errorf("%+v: %v", op, err)
		}
	}
	op := &Op{}
	push(t, r, op)
	defer func() {
		if recover() == nil {
			t.Error("pushing a request twice does not panic")
		}
		drain(t, r)
	}()
	r.Push(op)
}

// A burst far larger than the ring goes through, in order of arrival, and nobody
// waits for long.
func TestE21FullSubmissionQueue(t *testing.T) {
	r, f := newFake(t, Options{Entries: 4}, 4096)
	f.late = true
	ended, longest := 0, 0
	for n := 0; n < 1000; {
		at := n
		err := r.Push(&Op{Done: func(*Op) {
			longest = max(longest, ended-at)
			ended++
		}})
		if err == nil {
			n++
			continue
		}
		if !errors.Is(err, ErrFull) {
			t.Fatal(err)
		}
		if err := r.Submit(); err != nil {
			t.Fatal(err)
		}
		if _, err := r.Wait(1); err != nil {
			t.Fatal(err)
		}
	}
	drain(t, r)
	if ended != 1000 || longest >= r.Depth() {
		t.Fatalf("%d ended, one was overtaken by %d", ended, longest)
	}
}

// Many producers lead in turn: who finds the ring free submits and waits for all
// that queued behind it. This is how the engine shares a ring.
func TestE20SharedRing(t *testing.T) {
	r, f := newFake(t, Options{Entries: 8}, 1<<20)
	f.late = true
	shareRing(t, r, 3, rounds(100, 2000))
	if len(f.trace) < 100*100 {
		t.Fatal(len(f.trace))
	}
}

// shareRing lets 100 producers write through r, each under one lock for pushing and
// one for waiting.
func shareRing(t *testing.T, r *Ring, fd int, each int) {
	t.Helper()
	mem := memory(t, 100*4096)
	var pushing, waiting sync.Mutex
	var failures atomic.Int64
	var wg sync.WaitGroup
	for p := range 100 {
		wg.Go(func() {
			ended := make(chan error, 1)
			op := &Op{Code: Write, FD: fd, Buf: mem[p*4096:][:4096], Off: int64(p) * 4096, Done: func(op *Op) { ended <- op.Err }}
			for range each {
				for pushed := false; !pushed; {
					pushing.Lock()
					err := r.Push(op)
					if err == nil {
						pushed = true
						err = r.Submit()
					}
					pushing.Unlock()
					if errors.Is(err, ErrFull) {
						waiting.Lock()
						_, err = r.Wait(1)
						waiting.Unlock()
					}
					if err != nil {
						failures.Add(1)
						return
					}
				}
				for done := false; !done; {
					select {
					case err := <-ended:
						if err != nil {
							failures.Add(1)
						}
						done = true
					default:
						waiting.Lock()
						if len(ended) == 0 {
							r.Wait(1)
						}
						waiting.Unlock()
					}
				}
			}
		})
	}
	wg.Wait()
	if n := failures.Load(); n > 0 || r.InFlight() > 0 {
		t.Fatalf("%d failures, %d left", n, r.InFlight())
	}
}

// The hot path allocates nothing.
func TestNoAllocation(t *testing.T) {
	r, f := newFake(t, Options{}, 1<<20)
	mem := memory(t, 65536)
	ops := make([]*Op, 4)
	for i := range ops {
		ops[i] = &Op{Code: Write, FD: 3, Buf: mem[i*4096:][:4096], Off: int64(i) * 4096, Flags: DSync, Done: func(*Op) {}}
	}
	n := testing.AllocsPerRun(1000, func() {
		for _, op := range ops[:2] {
			r.Push(op)
		}
		r.PushChain(ops[2], ops[3])
		r.Submit()
		r.Wait(4)
		f.trace = f.trace[:0]
	})
	if n != 0 {
		t.Fatal(n, "allocations for four requests")
	}
}
