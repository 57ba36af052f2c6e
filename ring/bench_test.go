package ring

import (
	"fmt"
	"testing"
)

// BenchmarkDurableOverwrite writes a file that has all its blocks again and again,
// each write durable when it is done. TMPDIR chooses the device; the floor is fio
// with --sync=dsync and buffers on 2 MiB pages.
func BenchmarkDurableOverwrite(b *testing.B) {
	for _, c := range []struct{ size, depth int }{{4 << 10, 1}, {4 << 10, 4}, {1 << 20, 4}} {
		for _, single := range []bool{false, true} {
			b.Run(fmt.Sprintf("size=%dKiB/depth=%d/single=%v", c.size>>10, c.depth, single), func(b *testing.B) {
				benchWrites(b, c.size, c.depth, single)
			})
		}
	}
}

func benchWrites(b *testing.B, size, depth int, single bool) {
	needRing(b)
	const span = 64 << 20
	mem := memory(b, 16<<20)
	r, err := Open(Options{Entries: uint32(depth), Buffers: [][]byte{mem}, Files: 1, SingleIssuer: single})
	if err != nil {
		b.Fatal(err)
	}
	defer r.Close()
	file := create(b, b.TempDir(), "bench", 0)
	for off := int64(0); off < span; off += int64(len(mem)) {
		if _, err := file.WriteAt(mem, off); err != nil {
			b.Fatal(err)
		}
	}
	slot, err := r.RegisterFile(int(file.Fd()))
	if err != nil {
		b.Fatal(err)
	}
	if err := file.Sync(); err != nil {
		b.Fatal(err)
	}
	next, left := int64(0), b.N
	ops := make([]Op, depth)
	again := func(op *Op) {
		if op.Err != nil {
			b.Fatal(op.Err)
		}
		if left == 0 {
			return
		}
		left--
		op.Off = next % span
		next += int64(size)
		if err := r.Push(op); err != nil {
			b.Fatal(err)
		}
	}
	b.SetBytes(int64(size))
	b.ReportAllocs()
	b.ResetTimer()
	for i := range ops {
		ops[i] = Op{Code: Write, Flags: FixedFile | DSync, FD: slot, Buf: mem[i*size:][:size], Done: again}
		again(&ops[i])
	}
	for r.InFlight() > 0 {
		if _, err := r.SubmitAndWait(1); err != nil {
			b.Fatal(err)
		}
	}
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "writes/s")
	b.ReportMetric(float64(r.Stats().Enters+r.Stats().Waits)/float64(b.N), "calls/op")
}

// BenchmarkNop is the cost of the ring itself.
func BenchmarkNop(b *testing.B) {
	needRing(b)
	for _, batch := range []int{1, 16} {
		b.Run(fmt.Sprintf("batch=%d", batch), func(b *testing.B) {
			r, err := Open(Options{Entries: 16})
			if err != nil {
				b.Fatal(err)
			}
			defer r.Close()
			ops := make([]Op, batch)
			b.ReportAllocs()
			for n := 0; n < b.N; n += batch {
				for i := range ops {
					r.Push(&ops[i])
				}
				r.Submit()
				if n, err := r.Wait(batch); n != batch || err != nil {
					b.Fatal(n, err)
				}
			}
		})
	}
}
