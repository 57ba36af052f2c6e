package ring

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"testing"

	abi "github.com/iceber/iouring-go/syscall"
)

func fill(b []byte, seed int) {
	for i := range b {
		b[i] = byte(i*7 + i>>8 + seed)
	}
}

// Whatever count a write ends early with, and whenever, the file gets exactly the
// bytes asked for, and the bytes around them stay.
func TestE01ShortWrite(t *testing.T) {
	const size, off = 16384, 8192
	cuts := []int{0, 1, 511, 512, 4095, 4096, 4097, 8191, 8192, 12288, 16383}
	mem := memory(t, size)
	fill(mem, 1)
	for _, first := range cuts {
		for _, second := range append(cuts, -1) {
			r, f := newFake(t, Options{}, 32768)
			fill(f.files[3], 100)
			want := slices.Clone(f.files[3])
			copy(want[off:], mem)
			script := []int{first, second}
			f.onRequest = func(n int, q request) verdict {
				if n < len(script) {
					return verdict{limit: script[n]}
				}
				return all
			}
			op := do(t, r, &Op{Code: Write, FD: 3, Buf: mem, Off: off, Flags: DSync})
			if op.Err != nil || op.Res != size || !bytes.Equal(f.files[3], want) {
				t.Fatalf("cut at %d, then %d: %d bytes, %v, file right: %v", first, second, op.Res, op.Err, bytes.Equal(f.files[3], want))
			}
			if f.faults == 0 || len(f.trace) > 3 || r.Stats().Resumed == 0 {
				t.Fatalf("cut at %d, then %d: %d faults, %d submissions, %d resumed", first, second, f.faults, len(f.trace), r.Stats().Resumed)
			}
			for _, q := range f.trace {
				if q.opFlags != rwfDsync || (q.off-off)%blockSize != 0 || q.off+uint64(q.size) != off+size {
					t.Fatalf("cut at %d, then %d: resumed with %+v", first, second, q)
				}
			}
		}
	}
}

// A write of several pieces of memory, too, however it ends early.
func TestE01ShortWriteOfPieces(t *testing.T) {
	const size, off = 32768, 8192
	mem := memory(t, 2*size)
	fill(mem, 1)
	pieces := [][]byte{mem[:4096], mem[12288 : 12288+16384], mem[36864 : 36864+8192], mem[49152 : 49152+4096]}
	for _, first := range []int{0, 1, 4095, 4096, 4097, 8192, 20479, 20480, 20481, 28672, 28673, 32767} {
		for _, second := range []int{-1, 0, 1, 4096, 9000} {
			r, f := newFake(t, Options{}, 65536)
			fill(f.files[3], 100)
			want := slices.Clone(f.files[3])
			copy(want[off:], slices.Concat(pieces...))
			script := []int{first, second}
			f.onRequest = func(n int, q request) verdict {
				if n < len(script) {
					return verdict{limit: script[n]}
				}
				return all
			}
			op := do(t, r, &Op{Code: Write, FD: 3, Buf: pieces[0], More: pieces[1:], Off: off, Flags: DSync})
			if op.Err != nil || op.Res != size || !bytes.Equal(f.files[3], want) {
				t.Fatalf("cut at %d, then %d: %d bytes, %v, file right: %v", first, second, op.Res, op.Err, bytes.Equal(f.files[3], want))
			}
			if f.faults == 0 || r.Stats().Resumed == 0 {
				t.Fatalf("cut at %d, then %d: %d faults, %d resumed", first, second, f.faults, r.Stats().Resumed)
			}
			for _, q := range f.trace {
				if q.opFlags != rwfDsync || (q.off-off)%blockSize != 0 || q.off+uint64(q.size) != off+size {
					t.Fatalf("cut at %d, then %d: resumed with %+v", first, second, q)
				}
			}
		}
	}
	r, _ := newFake(t, Options{}, 65536)
	for name, op := range map[string]*Op{
		"a read":          {Code: Read, FD: 3, Buf: pieces[0], More: pieces[1:]},
		"an odd piece":    {Code: Write, FD: 3, Buf: pieces[0], More: [][]byte{mem[:100]}},
		"an odd first":    {Code: Write, FD: 3, Buf: mem[:512], More: pieces[1:]},
		"an empty piece":  {Code: Write, FD: 3, Buf: pieces[0], More: [][]byte{nil}},
		"too many pieces": {Code: Write, FD: 3, Buf: pieces[0], More: slices.Repeat(pieces[:1], MaxPieces)},
	} {
		if err := r.Push(op); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A write that never gets past a block boundary is an error after a bounded number
// of submissions; one that does is allowed as many as it has blocks.
func TestE01NoProgress(t *testing.T) {
	mem := memory(t, 16384)
	for _, limit := range []int{0, 1, 511, 4095} {
		r, f := newFake(t, Options{}, 32768)
		f.onRequest = func(int, request) verdict { return verdict{limit: limit} }
		op := do(t, r, &Op{Code: Write, FD: 3, Buf: mem})
		if !errors.Is(op.Err, ErrShort) || op.Res != 0 || len(f.trace) != maxStalls+1 {
			t.Errorf("%d bytes for ever: %d bytes, %v after %d submissions", limit, op.Res, op.Err, len(f.trace))
		}
	}
	r, f := newFake(t, Options{}, 32768)
	f.onRequest = func(n int, q request) verdict { return verdict{limit: 4096 * (n % 2)} }
	if op := do(t, r, &Op{Code: Write, FD: 3, Buf: mem}); op.Err != nil || op.Res != 16384 || len(f.trace) != 8 {
		t.Errorf("a block every other time: %d bytes, %v after %d submissions", op.Res, op.Err, len(f.trace))
	}
}

// Reads around the end of a file of any size tell the true count, with short answers
// on top or without.
func TestE01ShortRead(t *testing.T) {
	const size = 16384
	mem := memory(t, size)
	for _, length := range []int{0, 1, 511, 512, 513, 4095, 4096, 4097, 8192, 16383, 16384, 20000} {
		for _, cut := range []int{-1, 0, 1, 511, 512, 4096, 4097, 12288} {
			r, f := newFake(t, Options{}, length)
			fill(f.files[3], 9)
			clear(mem)
			f.onRequest = func(n int, q request) verdict {
				if n == 0 {
					return verdict{limit: cut}
				}
				return all
			}
			op := do(t, r, &Op{Code: Read, FD: 3, Buf: mem})
			want := min(size, length)
			if cut == 0 {
				want = 0 // to a reader, nothing is the end
			}
			if op.Err != nil || int(op.Res) != want || !bytes.Equal(mem[:want], f.files[3][:want]) || len(f.trace) > 4 {
				t.Errorf("file of %d, cut at %d: %d bytes, %v after %d submissions", length, cut, op.Res, op.Err, len(f.trace))
			}
		}
	}
}

// Negative control: the fake does refuse what direct I/O refuses, so the tests above
// would fail if a transfer went on at an odd byte.
func TestE01FakeRefusesUnaligned(t *testing.T) {
	mem := memory(t, 8192)
	r, _ := newFake(t, Options{}, 32768)
	for _, op := range []*Op{
		{Code: Write, FD: 3, Buf: mem[:4096], Off: 100},
		{Code: Write, FD: 3, Buf: mem[100:4196]},
		{Code: Read, FD: 3, Buf: mem[:100]},
	} {
		if do(t, r, op); op.Err != syscall.EINVAL {
			t.Errorf("%v of %d at %d: %v", op.Code, len(op.Buf), op.Off, op.Err)
		}
	}
}

// EINTR and EAGAIN of any request are not the caller's business, up to a bound.
func TestE07PerRequestEINTRAndEAGAIN(t *testing.T) {
	mem := memory(t, 8192)
	for _, errno := range []syscall.Errno{syscall.EINTR, syscall.EAGAIN, syscall.ECANCELED} {
		for times := range maxTries + 2 {
			for _, op := range []*Op{
				{Code: Write, FD: 3, Buf: mem}, {Code: Read, FD: 3, Buf: mem}, {Code: Sync, FD: 3},
				{Code: Allocate, FD: 3, Size: 8192}, {Code: Nop},
			} {
				fill(mem, times)
				r, f := newFake(t, Options{}, 8192)
				f.onRequest = func(n int, _ request) verdict {
					if n < times {
						return verdict{errno: errno}
					}
					return all
				}
				do(t, r, op)
				switch {
				case f.faults != times && times <= maxTries+1:
					t.Errorf("%v: %d faults of %d happened", op.Code, f.faults, times)
				case times <= maxTries && op.Err != nil:
					t.Errorf("%v refused %d times with %v: %v", op.Code, times, errno, op.Err)
				case times > maxTries && op.Err != errno:
					t.Errorf("%v refused for ever with %v: %v", op.Code, errno, op.Err)
				case int(r.Stats().Retried) != min(times, maxTries):
					t.Errorf("%v refused %d times: %d retried", op.Code, times, r.Stats().Retried)
				}
				if op.Code == Write && op.Err == nil && !bytes.Equal(f.files[3], mem) {
					t.Errorf("write refused %d times: the file differs", times)
				}
			}
		}
	}
}

// Any other errno is the caller's: reported as it is, once, and not tried again.
func TestErrnoIsReported(t *testing.T) {
	mem := memory(t, 4096)
	for _, errno := range []syscall.Errno{syscall.EIO, syscall.ENOSPC, syscall.EBADF, syscall.EFAULT, syscall.EDQUOT, syscall.EROFS} {
		r, f := newFake(t, Options{}, 8192)
		f.onRequest = func(int, request) verdict { return verdict{errno: errno} }
		if op := do(t, r, &Op{Code: Write, FD: 3, Buf: mem}); op.Err != errno || op.Res != 0 || len(f.trace) != 1 {
			t.Errorf("%v: got %v, %d bytes after %d submissions", errno, op.Err, op.Res, len(f.trace))
		}
	}
}

// In a chain, a write that ended early or was put off is finished first, and only
// then does the sync behind it run, whatever the fault and its place.
func TestE07ChainIsRedoneInOrder(t *testing.T) {
	faults := map[string]verdict{
		"short": {limit: 4096}, "odd": {limit: 4097}, "nothing": {limit: 0},
		"EINTR": {limit: -1, errno: syscall.EINTR}, "EAGAIN": {limit: -1, errno: syscall.EAGAIN},
	}
	for name, fault := range faults {
		for at := range 3 {
			for _, late := range []bool{false, true} {
				r, f := newFake(t, Options{}, 65536)
				f.late = late
				mem := memory(t, 32768)
				fill(mem, at)
				hit := false
				f.onRequest = func(n int, _ request) verdict {
					if n == at && !hit {
						hit = true
						return fault
					}
					return all
				}
				var order []string
				done := func(op *Op) { order = append(order, fmt.Sprint(op.Tag, op.Err)) }
				err := r.PushChain(
					&Op{Code: Write, FD: 3, Buf: mem[:16384], Tag: 1, Done: done},
					&Op{Code: Write, FD: 3, Buf: mem[16384:], Off: 16384, Tag: 2, Done: done},
					&Op{Code: Sync, FD: 3, Tag: 3, Done: done})
				if err != nil {
					t.Fatal(err)
				}
				drain(t, r)
				if want := []string{"1 <nil>", "2 <nil>", "3 <nil>"}; !slices.Equal(order, want) {
					t.Fatalf("%s at %d: %v", name, at, order)
				}
				short := name != "EINTR" && name != "EAGAIN" && at == 2 // a sync moves no bytes
				if f.faults != 1 || !bytes.Equal(f.files[3][:32768], mem) || short != (len(f.trace) == 3) {
					t.Fatalf("%s at %d: %d faults, %d submissions, file right: %v", name, at, f.faults, len(f.trace), bytes.Equal(f.files[3][:32768], mem))
				}
				if last := f.trace[len(f.trace)-1]; last.op != opcode[Sync][0] || (f.trace[len(f.trace)-2].op == opcode[Write][0]) != (f.trace[len(f.trace)-2].flags&4 != 0) {
					t.Fatalf("%s at %d: ended with %+v", name, at, last)
				}
			}
		}
	}
}

// A read that meets the end of its file did what was asked, but the kernel cancels
// what is behind it: that runs all the same.
func TestE07ChainGoesOnBehindEndOfFile(t *testing.T) {
	for _, length := range []int{0, 100, 4096, 5000} {
		r, f := newFake(t, Options{}, length)
		read, sync := &Op{Code: Read, FD: 3, Buf: memory(t, 8192)}, &Op{Code: Sync, FD: 3, Flags: Datasync}
		if err := r.PushChain(read, sync); err != nil {
			t.Fatal(err)
		}
		drain(t, r)
		last := f.trace[len(f.trace)-1]
		if read.Err != nil || int(read.Res) != length || sync.Err != nil || last.op != opcode[Sync][0] || last.opFlags != abi.IORING_FSYNC_DATASYNC {
			t.Errorf("file of %d: read %d, %v; sync %v; last %+v", length, read.Res, read.Err, sync.Err, last)
		}
	}
}

// Behind a request that failed for good nothing of its chain runs.
func TestChainStopsAtFailure(t *testing.T) {
	for at := range 3 {
		r, f := newFake(t, Options{}, 65536)
		mem := memory(t, 8192)
		fill(mem, 3)
		f.onRequest = func(n int, _ request) verdict {
			if n == at {
				return verdict{limit: -1, errno: syscall.EIO}
			}
			return all
		}
		ops := []*Op{{Code: Write, FD: 3, Buf: mem[:4096]}, {Code: Write, FD: 3, Buf: mem[4096:], Off: 4096}, {Code: Sync, FD: 3}}
		if err := r.PushChain(ops...); err != nil {
			t.Fatal(err)
		}
		drain(t, r)
		for i, op := range ops {
			want := error(nil)
			if i == at {
				want = syscall.EIO
			} else if i > at {
				want = syscall.ECANCELED
			}
			if op.Err != want {
				t.Errorf("failed at %d: request %d has %v, want %v", at, i, op.Err, want)
			}
		}
		if wrote := bytes.Equal(f.files[3][4096:8192], mem[4096:]); wrote != (at > 1) {
			t.Errorf("failed at %d: second write done: %v", at, wrote)
		}
	}
}
