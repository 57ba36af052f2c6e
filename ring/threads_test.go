package ring

import (
	"bytes"
	"errors"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Tests of which thread may do what, against the kernel this runs on.

// The thread that submitted exits while its requests are at work. Each of them ends,
// with success only if the bytes are in the file; and a request that would wait for
// ever ends with Close.
func TestE09SubmittingThreadExits(t *testing.T) {
	r := openRing(t, Options{Entries: 16})
	file := create(t, t.TempDir(), "f", 16<<20)
	mem := memory(t, 16<<20)
	failed := 0
	for n := range rounds(50, 10_000) {
		fill(mem[:64], n)
		var ops []*Op
		for i := range 8 {
			copy(mem[i<<20:], mem[:64])
			ops = append(ops, &Op{Code: Write, FD: int(file.Fd()), Flags: DSync, Buf: mem[i<<20:][:(1+i%3)<<16], Off: int64(i) << 20})
		}
		exited := make(chan error)
		go func() {
			runtime.LockOSThread() // and never unlock: the thread ends with this goroutine
			for _, op := range ops {
				if err := r.Push(op); err != nil {
					exited <- err
					return
				}
			}
			exited <- r.Submit()
		}()
		if err := <-exited; err != nil {
			t.Fatal(err)
		}
		if got, err := r.Wait(len(ops)); got != len(ops) || err != nil {
			t.Fatal(got, err)
		}
		block := memory(t, 4096)
		for i, op := range ops {
			if op.Err != nil {
				failed++
				if op.Err != syscall.ECANCELED && op.Err != syscall.EFAULT {
					t.Fatalf("round %d: %v", n, op.Err)
				}
			} else if got := do(t, r, &Op{Code: Read, FD: int(file.Fd()), Buf: block, Off: int64(i) << 20}); got.Err != nil || !bytes.Equal(block[:64], mem[:64]) {
				t.Fatalf("round %d: write %d succeeded, but is not there (%v)", n, i, got.Err)
			}
		}
	}
	t.Logf("%d requests were cancelled with their thread", failed)
}

func TestE09E12CloseEndsAReadThatWaits(t *testing.T) {
	for _, exits := range []bool{false, true} {
		r := openRing(t, Options{})
		var p [2]int
		if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
			t.Fatal(err)
		}
		op := &Op{Code: Read, FD: p[0], Buf: memory(t, 4096)}
		submitted := make(chan error)
		go func() {
			if exits {
				runtime.LockOSThread()
			}
			submitted <- errors.Join(r.Push(op), r.Submit())
		}()
		if err := <-submitted; err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Millisecond)
		if err := r.Close(); err != nil || !errors.Is(op.Err, ErrClosed) && op.Err != syscall.EINTR {
			t.Fatalf("exits %v: close %v, read %v", exits, err, op.Err)
		}
		unix.Close(p[0])
		unix.Close(p[1])
	}
}

// A ring of a single issuer tells a stranger off instead of losing his requests.
func TestE10SingleIssuer(t *testing.T) {
	needRing(t)
	if !Probe().SingleIssuer {
		t.Skip("SKIPPED, NOT TESTED: this kernel knows no single issuers")
	}
	r, err := Open(Options{SingleIssuer: true})
	if err != nil {
		t.Fatal(err)
	}
	op := &Op{}
	var pushed, submitted error
	var wg sync.WaitGroup
	wg.Go(func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		pushed, submitted = r.Push(op), r.Submit()
	})
	wg.Wait()
	if pushed != nil || !errors.Is(submitted, syscall.EEXIST) || !strings.Contains(submitted.Error(), "single issuer") {
		t.Fatal(pushed, submitted)
	}
	if n, err := r.Wait(1); n != 1 || err != nil || op.Err != syscall.EEXIST {
		t.Fatal(n, err, op.Err)
	}
	if do(t, r, op); op.Err != nil {
		t.Fatal(op.Err)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
}

// A ring without a single issuer is anybody's: submit, wait and register from
// goroutines that move between threads, memory and files coming and going meanwhile.
func TestE10AnyThread(t *testing.T) {
	r := openRing(t, Options{Entries: 16, Files: 8, Spare: 4})
	file := create(t, t.TempDir(), "f", 1<<20)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	var turns atomic.Int64
	for range 2 {
		mem := memory(t, 2<<20)
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				slot, err := r.RegisterFile(int(file.Fd()))
				err = errors.Join(err, r.RegisterBuffer(mem))
				err = errors.Join(err, r.UnregisterFile(slot), r.UnregisterBuffer(mem))
				if err != nil {
					t.Error(err)
					return
				}
				turns.Add(1)
			}
		})
	}
	shareRing(t, r, int(file.Fd()), rounds(10, 1000))
	close(stop)
	wg.Wait()
	if turns.Load() == 0 {
		t.Fatal("nothing was registered meanwhile")
	}
}

// Requests far apart in time do not wait for one another.
func TestE11LoneRequests(t *testing.T) {
	for _, o := range []Options{{}, {SingleIssuer: true}} {
		func() {
			needRing(t)
			r, err := Open(o)
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			file := create(t, t.TempDir(), "f", 1<<20)
			mem := memory(t, 4096)
			for n := range rounds(20, 20_000) {
				time.Sleep(time.Duration(1+n%4) * time.Millisecond)
				start := time.Now()
				op := &Op{Code: Write, FD: int(file.Fd()), Buf: mem}
				push(t, r, op)
				if got, err := r.SubmitAndWait(1); got != 1 || err != nil || op.Err != nil {
					t.Fatal(got, err, op.Err)
				}
				if d := time.Since(start); d > 10*time.Second {
					t.Fatalf("a lone write took %v", d)
				}
			}
		}()
	}
}
