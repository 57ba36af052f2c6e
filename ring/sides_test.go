package ring

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"runtime"
	"sync"
	"syscall"
	"testing"

	abi "github.com/iceber/iouring-go/syscall"
)

// The two sides run beside each other while the kernel takes submissions in parts or
// not at all, ends transfers early, refuses requests and answers in any order. Every
// request ends once, every write is whole, and what ends a chain runs only when the
// writes before it are in the file.
func TestBothSidesUnderFaults(t *testing.T) {
	for seed := range uint64(rounds(20, 2000)) {
		bothSides(t, seed)
		if t.Failed() {
			t.Fatal("seed", seed)
		}
	}
}

func bothSides(t *testing.T, seed uint64) {
	const units = 64 // a unit is two blocks, written by one request or by a chain
	const unit = 2 * blockSize
	rng, faults := rand.New(rand.NewPCG(seed, 0)), rand.New(rand.NewPCG(seed, 1))
	r, f := newFakeAt(t, Options{Entries: 8}, units*unit, uint32(rng.IntN(300))-150)
	f.late, f.order = seed%2 == 0, faults
	mem := memory(t, units*unit)
	fill(mem, int(seed))
	refused := 0 // in a row: fewer than the ring puts up with
	f.onEnter = func(_ int, submit, _ uint32) (uint32, syscall.Errno) {
		fault := faults.IntN(8)
		if refused++; fault > 4 || refused > maxRefusals/2 {
			refused = 0
			return submit, 0
		}
		switch fault {
		case 0:
			return 0, syscall.EAGAIN
		case 1:
			return 0, syscall.EINTR
		case 2:
			return 0, syscall.EBUSY
		}
		return uint32(faults.IntN(int(submit) + 1)), 0
	}
	early := 0
	var spent [units]int // faults of a unit stay below what the ring puts up with
	f.onRequest = func(_ int, q request) verdict {
		if q.op == abi.IORING_OP_FALLOCATE {
			if at := q.off; !bytes.Equal(f.files[3][at:at+unit], mem[at:at+unit]) {
				early++
			}
		}
		fault := faults.IntN(8)
		if spent[q.off/unit]++; spent[q.off/unit] > maxStalls {
			fault = 7
		}
		switch fault {
		case 0:
			return verdict{errno: syscall.EINTR}
		case 1:
			return verdict{errno: syscall.EAGAIN}
		case 2, 3:
			if moves(q.op) {
				return verdict{limit: faults.IntN(int(q.size) + 1)}
			}
		}
		return all
	}
	ends := make([]int, 3*units)
	done := func(op *Op) {
		if ends[op.Tag]++; op.Err != nil || int(op.Res) != len(op.Buf) {
			t.Errorf("request %d: %d bytes, %v", op.Tag, op.Res, op.Err)
		}
	}
	chains := 0
	var pushing sync.WaitGroup
	pushing.Go(func() {
		for n := 0; n < units && !t.Failed(); {
			at, tag := int64(n)*unit, uint64(3*n)
			buf := mem[at : at+unit]
			whole := &Op{Code: Write, FD: 3, Buf: buf, Off: at, Tag: tag, Done: done}
			ops := []*Op{whole}
			if n%2 == 1 {
				ops = []*Op{
					{Code: Write, FD: 3, Buf: buf[:blockSize], Off: at, Tag: tag, Done: done},
					{Code: Write, FD: 3, Buf: buf[blockSize:], Off: at + blockSize, Tag: tag + 1, Done: done},
					{Code: Allocate, FD: 3, Off: at, Size: unit, Tag: tag + 2, Done: done},
				}
			}
			switch err := r.PushChain(ops...); {
			case err == nil:
				n++
				chains += len(ops) / 2
				if rng.IntN(3) > 0 {
					continue
				}
			case !errors.Is(err, ErrFull):
				t.Error(err)
			}
			if err := r.Submit(); err != nil {
				t.Error(err)
			}
			runtime.Gosched()
		}
		if err := r.Submit(); err != nil {
			t.Error(err)
		}
	})
	stop := make(chan struct{})
	var waiting sync.WaitGroup
	waiting.Go(func() {
		for want := 0; ; want = (want + 1) % 4 {
			n, err := r.Wait(want)
			if err != nil {
				t.Error(err)
			}
			if n > 0 {
				continue
			}
			select {
			case <-stop:
				if r.InFlight() == 0 {
					return
				}
			default:
			}
			runtime.Gosched()
		}
	})
	pushing.Wait()
	close(stop)
	waiting.Wait()
	for i, n := range ends {
		if want := [2][3]int{{1, 0, 0}, {1, 1, 1}}[i/3%2][i%3]; n != want {
			t.Errorf("request %d ended %d times", i, n)
		}
	}
	if !bytes.Equal(f.files[3], mem) || early > 0 {
		t.Errorf("file right: %v; %d chains ended before their writes", bytes.Equal(f.files[3], mem), early)
	}
	if chains != units/2 || f.faults < units/2 {
		t.Errorf("%d chains, %d faults", chains, f.faults)
	}
}
