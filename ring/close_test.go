package ring

import (
	"bytes"
	"errors"
	"os"
	"syscall"
	"testing"
	"time"

	abi "github.com/iceber/iouring-go/syscall"
)

// Close cancels, but a cancelled write may still be at work: its buffer comes back
// only with its own answer, and what is written into the buffer after that never
// reaches the file.
func TestE12E13CloseWaitsForTheKernel(t *testing.T) {
	r, f := newFake(t, Options{}, 65536)
	mem := memory(t, 8192)
	fill(mem, 1)
	want := bytes.Clone(mem)
	f.onRequest = func(int, request) verdict { return verdict{limit: -1, hold: true} }
	var ended []error
	done := func(op *Op) {
		ended = append(ended, op.Err)
		for i := range op.Buf {
			op.Buf[i] = 0xEE // poison: the buffer is ours again
		}
		if err := r.Push(op); !errors.Is(err, ErrClosed) {
			t.Error("push from inside Close:", err)
		}
	}
	push(t, r, &Op{Code: Write, FD: 3, Buf: mem[:4096], Done: done}, &Op{Code: Write, FD: 3, Buf: mem[4096:], Off: 4096, Done: done})
	if err := r.Submit(); err != nil {
		t.Fatal(err)
	}
	push(t, r, &Op{Code: Write, FD: 3, Buf: mem[:4096], Off: 8192, Done: func(op *Op) { ended = append(ended, op.Err) }}) // never submitted
	closed := make(chan error)
	go func() { closed <- r.Close() }()
	time.Sleep(20 * time.Millisecond)
	select {
	case <-closed:
		t.Fatal("closed while the kernel held two writes")
	default:
	}
	f.release()
	if err := <-closed; err != nil {
		t.Fatal(err)
	}
	cancels, writes := 0, 0
	for _, q := range f.trace {
		switch q.op {
		case abi.IORING_OP_ASYNC_CANCEL:
			cancels++
		case abi.IORING_OP_WRITE:
			writes++
		}
	}
	if len(ended) != 3 || cancels != 1 || writes != 2 || !f.closed {
		t.Fatalf("%d ended, %d cancels, %d writes, closed %v", len(ended), cancels, writes, f.closed)
	}
	if !bytes.Equal(f.files[3][:8192], want) || !bytes.Equal(f.files[3][8192:12288], make([]byte, 4096)) {
		t.Fatal("the file differs")
	}
	if err := r.Close(); err != nil {
		t.Fatal("second close:", err)
	}
	for what, err := range map[string]error{"push": r.Push(&Op{}), "chain": r.PushChain(&Op{}), "submit": r.Submit(), "unregister": r.UnregisterFile(0)} {
		if !errors.Is(err, ErrClosed) {
			t.Errorf("%s after close: %v", what, err)
		}
	}
	if _, err := r.Wait(1); !errors.Is(err, ErrClosed) {
		t.Error("wait after close:", err)
	}
	if _, err := r.SubmitAndWait(1); !errors.Is(err, ErrClosed) {
		t.Error("submit and wait after close:", err)
	}
}

// What a cancel stopped, or an early end left undone, is reported as not done.
func TestE12CancelledIsNotSuccess(t *testing.T) {
	for name, v := range map[string]verdict{
		"cancelled": {limit: -1, errno: syscall.ECANCELED, hold: true}, "short": {limit: 4096, hold: true},
		"EINTR": {errno: syscall.EINTR, hold: true},
	} {
		r, f := newFake(t, Options{}, 65536)
		mem := memory(t, 8192)
		f.onRequest = func(int, request) verdict { return v }
		op, sync := &Op{Code: Write, FD: 3, Buf: mem}, &Op{Code: Sync, FD: 3}
		if err := r.PushChain(op, sync); err != nil {
			t.Fatal(err)
		}
		if err := r.Submit(); err != nil {
			t.Fatal(err)
		}
		f.release()
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
		if !errors.Is(op.Err, ErrClosed) || sync.Err == nil || len(f.trace) != 3 {
			t.Errorf("%s: write %v, sync %v, %d submissions", name, op.Err, sync.Err, len(f.trace))
		}
	}
}

// Close with a kernel that will not take the cancel request, or cannot read its
// flags, waits all the same.
func TestCloseWithoutCancel(t *testing.T) {
	r, f := newFake(t, Options{}, 4096)
	f.late = true
	op := &Op{Code: Sync, FD: 3}
	push(t, r, op)
	if err := r.Submit(); err != nil {
		t.Fatal(err)
	}
	f.onEnter = func(_ int, submit, _ uint32) (uint32, syscall.Errno) {
		if submit > 0 {
			return 0, syscall.EBUSY
		}
		return 0, 0
	}
	if err := r.Close(); err != nil || op.Err != nil || f.faults != 1 {
		t.Fatal(err, op.Err, f.faults)
	}
}

// A file slot, or a registered buffer, is not given up while a request uses it.
func TestE13SlotStaysWhileInUse(t *testing.T) {
	mem := memory(t, 8192)
	r, f := newFake(t, Options{Files: 1, Spare: 1}, 4096)
	slot, err := r.RegisterFile(9)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.RegisterBuffer(mem); err != nil {
		t.Fatal(err)
	}
	if _, err := r.RegisterFile(10); !errors.Is(err, ErrNoSlot) {
		t.Fatal(err)
	}
	if err := r.RegisterBuffer(make([]byte, 10)); !errors.Is(err, ErrNoSlot) {
		t.Fatal(err)
	}
	f.files[int32(slot)] = make([]byte, 8192)
	f.onRequest = func(int, request) verdict { return verdict{limit: -1, hold: true} }
	push(t, r, &Op{Code: Write, Flags: FixedFile, FD: slot, Buf: mem[4096:]})
	if err := r.Submit(); err != nil {
		t.Fatal(err)
	}
	if q := f.trace[0]; q.op != abi.IORING_OP_WRITE_FIXED || q.flags != abi.IOSQE_FLAGS_FIXED_FILE || q.fd != int32(slot) || q.buffer != 0 {
		t.Fatalf("%+v", q)
	}
	if err := errors.Join(r.UnregisterFile(slot), nil); !errors.Is(err, ErrBusy) {
		t.Fatal(err)
	}
	if err := r.UnregisterBuffer(mem); !errors.Is(err, ErrBusy) {
		t.Fatal(err)
	}
	f.release()
	drain(t, r)
	if err := errors.Join(r.UnregisterFile(slot), r.UnregisterBuffer(mem)); err != nil {
		t.Fatal(err)
	}
	if err := r.UnregisterFile(slot); !errors.Is(err, ErrInvalid) {
		t.Fatal(err)
	}
	if err := r.UnregisterBuffer(mem); !errors.Is(err, ErrInvalid) {
		t.Fatal(err)
	}
	if _, err := r.RegisterFile(10); err != nil {
		t.Fatal(err)
	}
}

// A registered slot of a file that was retired never leads to the next file: real
// kernel, real files, the old one deleted.
func TestE13SlotReuse(t *testing.T) {
	needRing(t)
	r, err := Open(Options{Entries: 8, Files: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	mem := memory(t, 1<<20)
	dir := t.TempDir()
	var last *os.File
	for n := range 50 {
		file := create(t, dir, "segment", 1<<20)
		slot, err := r.RegisterFile(int(file.Fd()))
		if err != nil {
			t.Fatal(err)
		}
		fill(mem, n)
		op := &Op{Code: Write, Flags: FixedFile | DSync, FD: slot, Buf: mem}
		push(t, r, op)
		if err := r.Submit(); err != nil {
			t.Fatal(err)
		}
		busy := r.UnregisterFile(slot)
		if r.InFlight() > 0 && !errors.Is(busy, ErrBusy) {
			t.Fatal(busy)
		}
		drain(t, r)
		if op.Err != nil {
			t.Fatal(op.Err)
		}
		if err := r.UnregisterFile(slot); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(file.Name())
		if err != nil || !bytes.Equal(got, mem) {
			t.Fatal(n, err, "bytes of another file")
		}
		os.Remove(file.Name())
		if last != nil {
			last.Close()
		}
		last = file
	}
	last.Close()
}

// Memory for the queues runs out: smaller ones are tried and the result says so.
func TestE16SmallerQueues(t *testing.T) {
	mem := memory(t, 4096)
	for room := uint32(8); room <= 1024; room *= 4 {
		f, tries := &fake{t: t, files: map[int32][]byte{3: make([]byte, 4096)}}, 0
		r, err := open(Options{Entries: 1024}, func(entries uint32, p *abi.IOURingParams, o Options) (kernel, submissions, completions, error) {
			if tries++; entries > room {
				return nil, submissions{}, completions{}, &SetupError{Step: stepSetup, Errno: syscall.ENOMEM}
			}
			return f.start(0)(entries, p, o)
		})
		if err != nil || r.Depth() != int(room) || (room < 1024) != (r.Info().Reason != "") {
			t.Fatalf("room for %d: %v after %d tries", room, err, tries)
		}
		if op := do(t, r, &Op{Code: Write, FD: 3, Buf: mem}); op.Err != nil {
			t.Fatal(op.Err)
		}
		r.Close()
	}
	_, err := open(Options{}, func(uint32, *abi.IOURingParams, Options) (kernel, submissions, completions, error) {
		return nil, submissions{}, completions{}, &SetupError{Step: stepSetup, Errno: syscall.ENOMEM}
	})
	if !errors.Is(err, syscall.ENOMEM) || !errors.Is(err, ErrUnavailable) {
		t.Fatal(err)
	}
}

// A kernel that does not know the optional flags gets a ring without them.
func TestE23OldKernelFlags(t *testing.T) {
	f := &fake{t: t}
	r, err := open(Options{Entries: 8, SingleIssuer: true}, func(entries uint32, p *abi.IOURingParams, o Options) (kernel, submissions, completions, error) {
		if p.Flags&^abi.IORING_SETUP_CQSIZE != 0 {
			return nil, submissions{}, completions{}, &SetupError{Step: stepSetup, Errno: syscall.EINVAL}
		}
		return f.start(0)(entries, p, o)
	})
	if err != nil {
		t.Fatal(err)
	}
	r.single = false // the thread was not locked by Open
	if i := r.Info(); i.SingleIssuer || i.Reason == "" {
		t.Fatalf("%+v", i)
	}
	do(t, r, &Op{})
	r.Close()
}

// Many rings in one process, and their resources back after they are closed.
func TestE16ManyRings(t *testing.T) {
	needRing(t)
	before := openFiles(t)
	for range 2 {
		var rings []*Ring
		for range 100 {
			r, err := Open(Options{Entries: 256})
			if err != nil {
				t.Fatalf("ring %d: %v", len(rings), err)
			}
			rings = append(rings, r)
			do(t, r, &Op{})
		}
		for _, r := range rings {
			if err := r.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if after := openFiles(t); after != before {
		t.Fatalf("%d files open before, %d after", before, after)
	}
	if _, err := Open(Options{Entries: maxEntries + 1}); !errors.Is(err, ErrInvalid) {
		t.Fatal(err)
	}
}

func openFiles(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}
