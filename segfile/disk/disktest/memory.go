package disktest

import (
	"bytes"
	"sync/atomic"
	"syscall"

	"github.com/ringfence/ringfence/segfile/disk"
)

// shared maps memory that another process could have too.
func (b *bench) shared(n int) []byte {
	b.Helper()
	mem, err := syscall.Mmap(-1, 0, n, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED|syscall.MAP_ANON)
	b.ok(err)
	b.Cleanup(func() { _ = syscall.Munmap(mem) })
	return mem
}

// Registered memory is written from and read into like the arena's, in queues made
// before and after; what lies across its end, or comes after it was taken out, is not.
func testRegister(b *bench) {
	f := b.create("f")
	early := b.queue(4)
	mem := b.shared(64 * disk.Block)
	done := func(*disk.Op) {}
	refused := func(q disk.Queue, buf []byte) {
		b.Helper()
		b.is(q.Push(&disk.Op{Kind: disk.Write, File: f, Buf: buf, Done: done}), disk.ErrInvalid)
	}
	refused(early, mem[:disk.Block])
	unregister, err := b.d.Register(mem[:32*disk.Block])
	b.ok(err)
	for i, q := range []disk.Queue{early, b.queue(4)} {
		refused(q, mem[31*disk.Block:33*disk.Block])
		refused(q, mem[32*disk.Block:33*disk.Block])
		refused(q, mem[512:disk.Block+512])
		want := fill(2*disk.Block, uint64(i))
		copy(mem[disk.Block:], want)
		op := &disk.Op{Kind: disk.Write, Durable: true, File: f, Buf: mem[disk.Block : 3*disk.Block], Off: int64(i) * disk.Block, Done: done}
		b.ok(q.Push(op))
		b.drain(q)
		b.ok(op.Err)
		back := &disk.Op{Kind: disk.Read, File: f, Buf: mem[4*disk.Block : 6*disk.Block], Off: int64(i) * disk.Block, Done: done}
		b.ok(q.Push(back))
		b.drain(q)
		if b.ok(back.Err); back.N != 2*disk.Block || !bytes.Equal(back.Buf, want) {
			b.Fatalf("queue %d: registered memory reads back %d bytes, or others", i, back.N)
		}
		_, err := f.ReadAt(back.Buf, int64(i)*disk.Block)
		if b.ok(err); !bytes.Equal(back.Buf, want) {
			b.Fatalf("queue %d: the file does not have what was written from registered memory", i)
		}
	}
	b.ok(unregister())
	b.ok(unregister())
	refused(early, mem[disk.Block:2*disk.Block])
}

func testRegisterRefuses(b *bench) {
	mem := b.shared(16 * disk.Block)
	unregister, err := b.d.Register(mem[4*disk.Block : 8*disk.Block])
	b.ok(err)
	for name, bad := range map[string][]byte{
		"nothing":           nil,
		"no whole block":    mem[:disk.Block+100],
		"not on a boundary": mem[512 : disk.Block+512],
		"twice":             mem[4*disk.Block : 8*disk.Block],
		"inside":            mem[5*disk.Block : 6*disk.Block],
		"across its begin":  mem[3*disk.Block : 5*disk.Block],
		"around it":         mem,
		"the arena's":       b.d.Arena().Bytes()[:disk.Block],
	} {
		if _, err := b.d.Register(bad); err == nil {
			b.Errorf("%s: registered", name)
		} else {
			b.is(err, disk.ErrInvalid)
		}
	}
	next, err := b.d.Register(mem[8*disk.Block:])
	b.ok(err)
	b.ok(unregister())
	again, err := b.d.Register(mem[:8*disk.Block])
	b.ok(err)
	b.ok(again())
	b.ok(next())
}

// Unregister returns only when no operation uses the memory, pushed ones included.
func testUnregisterWaits(b *bench) {
	f := b.create("f")
	for round := range 20 {
		mem := b.shared(8 * disk.Block)
		q := b.queue(4)
		unregister, err := b.d.Register(mem)
		b.ok(err)
		var ended atomic.Int32
		ops := make([]disk.Op, 3)
		for i := range ops {
			ops[i] = disk.Op{Kind: disk.Write, File: f, Buf: mem[i*disk.Block : (i+1)*disk.Block], Off: int64(i) * disk.Block, Done: func(*disk.Op) { ended.Add(1) }}
			b.ok(q.Push(&ops[i]))
		}
		out := make(chan struct{})
		go func() {
			defer close(out)
			if err := unregister(); err != nil {
				b.Error(err)
			}
		}()
		probe, refused := b.queue(1), false
		for !refused { // until it has begun
			op := disk.Op{Kind: disk.Write, File: f, Buf: mem[:disk.Block], Done: func(*disk.Op) {}}
			if err := probe.Push(&op); err != nil {
				b.is(err, disk.ErrInvalid)
				refused = true
			}
			b.drain(probe)
		}
		select {
		case <-out:
			b.Fatal("unregistered with operations in flight")
		default:
		}
		b.ok(probe.Close())
		if round%2 == 0 {
			b.drain(q)
			b.ok(q.Close())
		} else {
			b.ok(q.Close())
		}
		// The queue is through with the memory before each Done, so it may return before them.
		<-out
		if n := ended.Load(); n != 3 {
			b.Fatalf("%d of 3 operations ended", n)
		}
	}
}

// A queue that was closed, and memory of a disk that was, are no reason to fail.
func testUnregisterLate(b *bench) {
	mem := b.shared(8 * disk.Block)
	q := b.queue(2)
	unregister, err := b.d.Register(mem)
	b.ok(err)
	b.ok(q.Close())
	b.ok(b.d.Close())
	b.ok(unregister())
}
