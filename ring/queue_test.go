package ring

import (
	"errors"
	"math/rand/v2"
	"runtime"
	"sync"
	"syscall"
	"testing"

	abi "github.com/iceber/iouring-go/syscall"
)

// Positions are 32 bits and wrap; nothing may notice. Start positions put the wrap
// at every place of a ring's life.
func TestQueuePositionsWrap(t *testing.T) {
	for before := range uint32(20) {
		r, f := newFakeAt(t, Options{Entries: 4}, 65536, -before)
		f.late = before%2 == 0
		mem := memory(t, 4096)
		done := 0
		for n := range 40 {
			push(t, r, &Op{Code: Write, FD: 3, Buf: mem, Off: int64(n%16) * 4096, Done: func(op *Op) {
				if op.Err != nil {
					t.Error(op.Err)
				}
				done++
			}})
			if n%3 == 2 {
				drain(t, r)
			}
		}
		drain(t, r)
		if done != 40 || len(f.trace) != 40 || f.shared[0] != 40-before || f.shared[4] != 40-before {
			t.Fatalf("%d before the wrap: %d done of %d, positions %d and %d", before, done, len(f.trace), f.shared[0], f.shared[4])
		}
	}
}

// The free list's counters wrap too.
func TestFreeListWraps(t *testing.T) {
	var f freeList
	f.fill(3)
	f.head.Add(^uint32(0) - 5)
	f.tail.Add(^uint32(0) - 5)
	copy(f.slots, []uint32{7, 8, 9, 10})
	for range 50 {
		if f.len() != 3 {
			t.Fatal("length", f.len())
		}
		f.put(f.get())
	}
}

// The ring keeps fewer requests in flight than the completion queue has places, so
// the kernel never has to hold an answer back.
func TestE05DepthStaysBelowCompletionQueue(t *testing.T) {
	for _, o := range []Options{{Entries: 8, CQEntries: 8}, {Entries: 8}, {Entries: 5}, {Entries: 64, CQEntries: 8}} {
		r, f := newFake(t, o, 4096)
		f.late = true
		if d := r.Depth(); d >= len(f.cqes) || d > len(f.sqes) || d > int(o.Entries) {
			t.Fatalf("%+v: depth %d with %d and %d places", o, d, len(f.sqes), len(f.cqes))
		}
		accepted := 0
		for range 1000 {
			switch err := r.Push(&Op{}); {
			case err == nil:
				accepted++
			case !errors.Is(err, ErrFull):
				t.Fatal(err)
			}
		}
		if accepted != r.Depth() {
			t.Fatalf("%+v: %d accepted, depth %d", o, accepted, r.Depth())
		}
		drain(t, r)
		if r.Stats().Overflows != 0 {
			t.Fatalf("%+v: overflowed", o)
		}
	}
}

// Should the kernel hold answers back all the same, the ring fetches them: every
// request ends once, and the overflow is counted. The fake has two places only.
func TestE05CompletionQueueOverflow(t *testing.T) {
	for _, late := range []bool{false, true} {
		r, f := newFake(t, Options{Entries: 8}, 4096)
		f.places, f.late = 2, late
		ends := make([]int, 1000)
		for next := 0; next < len(ends); {
			op := &Op{Tag: uint64(next), Done: func(op *Op) { ends[op.Tag]++ }}
			switch err := r.Push(op); {
			case err == nil:
				next++
				continue
			case !errors.Is(err, ErrFull):
				t.Fatal(err)
			}
			if err := r.Submit(); err != nil {
				t.Fatal(err)
			}
			if _, err := r.Wait(1 + next%3); err != nil { // a reaper that is slow to come back
				t.Fatal(err)
			}
		}
		drain(t, r)
		for i, n := range ends {
			if n != 1 {
				t.Fatalf("request %d ended %d times", i, n)
			}
		}
		if r.Stats().Overflows == 0 {
			t.Fatal("nothing overflowed: this test tested nothing")
		}
	}
}

// A paused looker finds overflowed answers without waiting.
func TestE05WaitZeroFetchesOverflow(t *testing.T) {
	r, f := newFake(t, Options{Entries: 4}, 4096)
	f.places = 1
	push(t, r, &Op{}, &Op{}, &Op{})
	if err := r.Submit(); err != nil {
		t.Fatal(err)
	}
	if len(f.overflow) != 2 {
		t.Fatalf("%d overflowed, want 2", len(f.overflow))
	}
	for range 10 {
		if _, err := r.Wait(0); err != nil {
			t.Fatal(err)
		}
	}
	if r.InFlight() != 0 {
		t.Fatal(r.InFlight(), "left")
	}
}

// The head moves by exactly what was taken, whatever the waits did: found nothing,
// were interrupted, or were refused.
func TestE08EveryCompletionOnce(t *testing.T) {
	rng := rand.New(rand.NewPCG(8, 0))
	r, f := newFakeAt(t, Options{Entries: 16}, 4096, ^uint32(0)-1000)
	f.late, f.order = true, rng
	f.onEnter = func(_ int, submit, wait uint32) (uint32, syscall.Errno) {
		switch n := rng.IntN(10); {
		case n < 2:
			return 0, syscall.EINTR
		case n == 2 && wait > 0:
			return 0, syscall.EAGAIN
		}
		return submit, 0
	}
	total := rounds(100_000, 1_000_000)
	ends := make([]uint8, total)
	ops := make([]Op, r.Depth())
	var idle []*Op
	for i := range ops {
		ops[i].Done = func(op *Op) {
			ends[op.Tag]++
			idle = append(idle, op)
		}
		idle = append(idle, &ops[i])
	}
	for next := 0; next < total || r.InFlight() > 0; {
		for n := rng.IntN(8); n > 0 && len(idle) > 0 && next < total; n-- {
			op := idle[len(idle)-1]
			idle = idle[:len(idle)-1]
			op.Tag = uint64(next)
			push(t, r, op)
			next++
		}
		if err := r.Submit(); err != nil {
			t.Fatal(err)
		}
		if _, err := r.Wait(rng.IntN(4)); err != nil {
			t.Fatal(err)
		}
	}
	for i, n := range ends {
		if n != 1 {
			t.Fatalf("request %d ended %d times", i, n)
		}
	}
	if f.faults < total/100 || r.Stats().Stale != 0 {
		t.Fatalf("%d faults, %d stale", f.faults, r.Stats().Stale)
	}
}

// A wait that the kernel refuses for good is an error, and nothing is lost: the same
// requests end when it relents.
func TestE08WaitErrors(t *testing.T) {
	for _, errno := range []syscall.Errno{syscall.EBUSY, syscall.EBADF} {
		r, f := newFake(t, Options{}, 4096)
		f.late = true
		done := 0
		push(t, r, &Op{Done: func(*Op) { done++ }})
		if err := r.Submit(); err != nil {
			t.Fatal(err)
		}
		f.onEnter = func(int, uint32, uint32) (uint32, syscall.Errno) { return 0, errno }
		if n, err := r.Wait(1); n != 0 || !errors.Is(err, errno) || done != 0 {
			t.Fatalf("%v: %d, %v", errno, n, err)
		}
		f.onEnter = nil
		if n, err := r.Wait(1); n != 1 || err != nil || done != 1 {
			t.Fatalf("%v: then %d, %v", errno, n, err)
		}
	}
}

// Waiting with nothing in flight, or with nothing submitted, never blocks.
func TestE08WaitForNothing(t *testing.T) {
	r, f := newFake(t, Options{}, 4096)
	for _, want := range []int{-1, 0, 1, 100} {
		if n, err := r.Wait(want); n != 0 || err != nil {
			t.Fatal(n, err)
		}
	}
	push(t, r, &Op{})
	if n, err := r.Wait(1); n != 0 || err != nil || f.calls != 0 {
		t.Fatalf("pushed, not submitted: %d, %v, %d calls", n, err, f.calls)
	}
	drain(t, r)
	if n, err := r.Wait(5); n != 0 || err != nil {
		t.Fatal(n, err)
	}
}

// An answer to an earlier life of a slot, or to no slot at all, is counted and
// dropped; it neither ends the slot's present request nor makes Wait miss its end.
func TestE12StaleCompletions(t *testing.T) {
	r, f := newFake(t, Options{Entries: 2}, 4096)
	first := do(t, r, &Op{})
	old := f.trace[0].user
	if first.Err != nil || r.slots[slotOf(old)].op != nil {
		t.Fatal("the first request has not ended")
	}
	f.mu.Lock()
	f.post(cqe(old, 0)) // the same answer again, before the slot has its next request
	f.mu.Unlock()
	if n, err := r.Wait(0); n != 0 || err != nil || r.Stats().Stale != 1 || r.InFlight() != 0 {
		t.Fatal("answered twice:", n, err, r.Stats().Stale, r.InFlight())
	}
	hold := verdict{limit: -1, hold: true}
	f.onRequest = func(int, request) verdict { return hold }
	done := 0
	count := func(*Op) { done++ }
	push(t, r, &Op{Done: count}, &Op{Done: count}) // both slots, so old's slot is in use again
	if err := r.Submit(); err != nil {
		t.Fatal(err)
	}
	f.mu.Lock()
	for _, user := range []uint64{old, old, 1 << 40, cancelUser - 1, 77} {
		f.post(cqe(user, 4096))
	}
	f.mu.Unlock()
	if n, err := r.Wait(0); n != 0 || err != nil || done != 0 {
		t.Fatal("a stale answer ended something:", n, err, done)
	}
	if s := r.Stats(); s.Stale != 5 && s.Stale != 6 { // four fit the queue, the fifth may follow
		t.Fatal(s.Stale, "stale")
	}
	if r.inKernel() != 2 {
		t.Fatal(r.inKernel(), "in the kernel, want 2")
	}
	f.release()
	if n, err := r.Wait(2); n != 2 || err != nil || done != 2 {
		t.Fatal(n, err, done)
	}
	if s := r.Stats(); s.Stale != 6 {
		t.Fatal(s.Stale, "stale")
	}
}

// An answer that comes while its request is still being submitted finds everything
// in its place, also when another goroutine waits.
func TestF02CompletionInsideSubmit(t *testing.T) {
	r, _ := newFake(t, Options{Entries: 16}, 4096)
	total := rounds(10_000, 1_000_000)
	var wg sync.WaitGroup
	done := 0
	wg.Go(func() {
		for done < total {
			n, err := r.Wait(1)
			if err != nil {
				t.Error(err)
				return
			}
			if n == 0 {
				runtime.Gosched() // nothing in flight
			}
		}
	})
	for n := 0; n < total; {
		op := &Op{Tag: uint64(n), Done: func(*Op) { done++ }}
		switch err := r.Push(op); {
		case err == nil:
			n++
			if n%3 != 0 && n < total {
				continue
			}
		case !errors.Is(err, ErrFull):
			t.Fatal(err)
		}
		if err := r.Submit(); err != nil {
			t.Fatal(err)
		}
	}
	wg.Wait()
}

// Kernel threads that poll are never asked for.
func TestE11E15NoPolling(t *testing.T) {
	for _, o := range []Options{{}, {SingleIssuer: true}, {RawWait: true}} {
		for _, old := range []bool{false, true} {
			if p := params(o, old); p.Flags&(abi.IORING_SETUP_SQPOLL|abi.IORING_SETUP_IOPOLL|abi.IORING_SETUP_SQ_AFF) != 0 {
				t.Errorf("%+v: flags %x", o, p.Flags)
			}
		}
	}
}
