package segfile

import (
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ringfence/ringfence/segfile/disk"
	"github.com/ringfence/ringfence/segfile/record"
)

func osDisk(b *testing.B) disk.Disk {
	b.Helper()
	d, err := disk.Open(b.TempDir(), disk.Options{})
	must(b, err)
	b.Cleanup(func() { d.Close() })
	return d
}

// A fence is two durable writes; beside it, one durable write of 8 KiB.
func BenchmarkFence(b *testing.B) {
	for _, size := range []int64{64 << 10, 64 << 20} {
		b.Run(fmt.Sprintf("segment=%dKiB", size>>10), func(b *testing.B) {
			d := osDisk(b)
			p, err := NewPool(d, PoolOptions{SegmentBytes: size, MaxBytes: 4 * size})
			must(b, err)
			g := &producerModel{id: 3}
			frame := g.frame(rand.New(rand.NewPCG(1, 1)), 250, 1024)
			var fenced, floor time.Duration
			for seq := uint32(1); b.Loop(); seq++ {
				b.StopTimer()
				w := create(b, p, testMeta(seq))
				buf, heads := flush(w, w.Position(), frame)
				for w.Position() < size {
					record.Stamp(frame, w.NextOffset(), w.Position(), w.Meta().Salt)
					copy(buf, frame)
					heads[0].Base, heads[0].Durable = w.NextOffset(), w.Position()
					must(b, w.File().WriteAt(buf, w.Position()))
					w.Advance(w.Position(), int64(len(buf)), heads)
				}
				b.StartTimer()
				start := time.Now()
				_, err := w.Fence(w.End(), testNow, 1)
				must(b, err)
				fenced += time.Since(start)
				b.StopTimer()
				start = time.Now()
				must(b, w.File().WriteAt(make([]byte, 2*block), DataStart)) // the file is of no more use
				floor += time.Since(start)
				must(b, w.Close())
				must(b, p.Recycle(Name(testMeta(seq).ID)))
				b.StartTimer()
			}
			b.ReportMetric(float64(fenced)/float64(floor), "of-8KiB-write")
		})
	}
}

// C09: one durable block at a time in a file of each life. Only a file whose blocks were
// all written before has nothing but the data to write: what a pool keeps ready is of that
// kind, and TestCrashKeepsAcknowledged takes all three.
func BenchmarkC09OneBlock(b *testing.B) {
	for l := range lives {
		b.Run(l.String(), func(b *testing.B) {
			d := osDisk(b)
			g := &producerModel{id: 3}
			frame := g.frame(rand.New(rand.NewPCG(1, 1)), 1, 1024)
			var times []time.Duration
			for seq := uint32(1); b.Loop(); seq++ {
				b.StopTimer()
				w := create(b, newTestPool(b, d, l), testMeta(seq))
				buf, heads := flush(w, w.Position(), frame)
				b.StartTimer()
				for range 100 {
					record.Stamp(frame, w.NextOffset(), w.Position(), w.Meta().Salt)
					copy(buf, frame)
					heads[0].Base, heads[0].Durable = w.NextOffset(), w.Position()
					start := time.Now()
					must(b, w.File().WriteAt(buf, w.Position()))
					times = append(times, time.Since(start))
					w.Advance(w.Position(), int64(len(buf)), heads)
				}
				b.StopTimer()
				must(b, w.Close())
				must(b, d.Remove(Name(testMeta(seq).ID)))
				b.StartTimer()
			}
			slices.Sort(times)
			b.ReportMetric(float64(times[len(times)/2].Microseconds()), "p50-us")
			b.ReportMetric(float64(times[len(times)*99/100].Microseconds()), "p99-us")
		})
	}
}

// Recovery of 16 open files at a time, as a start after kill -9 does it; beside
// it, reading their last 4 MiB.
func BenchmarkRecover(b *testing.B) {
	const files, size, tail = 16, 64 << 20, 4 << 20
	for _, payload := range []int{1 << 20, 64 << 10, 4 << 10} {
		b.Run(fmt.Sprintf("frame=%dKiB", payload>>10), func(b *testing.B) {
			d := osDisk(b)
			p, err := NewPool(d, PoolOptions{MaxBytes: -1})
			must(b, err)
			g := &producerModel{id: 3}
			for seq := range uint32(files) {
				w := create(b, p, testMeta(seq))
				fill(b, w, g, size, tail, payload)
				must(b, w.Close())
			}
			var read atomic.Int64
			var recovered, floor time.Duration
			for b.Loop() {
				start := time.Now()
				each(files, func(seq uint32) {
					v := mustRecover(b, d, Name(testID(seq)))
					if v.State != Clean {
						b.Error(v.State, v.Why)
					}
					read.Add(v.ReadBytes)
				})
				recovered += time.Since(start)
				b.StopTimer()
				start = time.Now()
				each(files, func(seq uint32) { readTail(b, d, Name(testID(seq)), tail) })
				floor += time.Since(start)
				b.StartTimer()
			}
			b.ReportMetric(float64(recovered)/float64(floor), "of-reading-tails")
			b.ReportMetric(float64(read.Load())/float64(b.N)/(1<<20), "MiB-read/op")
		})
	}
}

// fill writes frames whose payload is about payload bytes, the last tail of them
// not proved.
func fill(b *testing.B, w *Writer, g *producerModel, size, tail int64, payload int) {
	b.Helper()
	frame := g.frame(rand.New(rand.NewPCG(1, 1)), 1, payload-600)
	h, err := record.ParseHead(frame, 0)
	must(b, err)
	big := make([]byte, 0, 2<<20)
	pos := w.Position()
	var heads []record.Head
	for pos+int64(len(big)) < size {
		at := pos + int64(len(big))
		h.Base, h.Durable = w.NextOffset()+uint64(len(heads)), min(at, size-tail)
		record.Stamp(frame, h.Base, h.Durable, w.Meta().Salt)
		heads = append(heads, h)
		big = append(big, frame...)
		big = append(big, make([]byte, alignBlock(int64(len(big)))-int64(len(big)))...)
		if len(big) >= 1<<20 {
			must(b, w.File().WriteAt(big, pos))
			for i := range heads { // each a flush of its own
				n := int64(len(big) / len(heads))
				w.Advance(w.Position(), n, heads[i:i+1])
			}
			pos, big, heads = pos+int64(len(big)), big[:0], heads[:0]
		}
	}
}

func each(n uint32, do func(uint32)) {
	var wg sync.WaitGroup
	next := make(chan uint32)
	for range 8 {
		wg.Go(func() {
			for i := range next {
				do(i)
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	wg.Wait()
}

func readTail(b *testing.B, d disk.Disk, name string, tail int64) {
	f, err := d.Open(name, true)
	must(b, err)
	defer f.Close()
	size, err := f.Size()
	must(b, err)
	buf, ok := d.Arena().Alloc(1 << 20)
	if !ok {
		b.Fatal("the arena is full")
	}
	defer d.Arena().Free(buf)
	for at := size - tail; at < size; at += int64(len(buf)) {
		if _, err := f.ReadAt(buf, at); err != nil && err != io.EOF {
			b.Error(err)
		}
	}
}
