package engine

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/ringfence/ringfence/segfile/record"
)

func benchEngine(b *testing.B) (*Engine, *Producer) {
	b.Helper()
	e, err := Open(b.TempDir(), Options{Retention: Policy{MaxBytes: Limit(128 << 20)}, RetainEvery: 20e6})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := e.Close(); err != nil {
			b.Error(err)
		}
	})
	if err := e.CreateTopic(context.Background(), "bench", TopicOptions{}); err != nil {
		b.Fatal(err)
	}
	p, err := e.NewProducer(ProducerOptions{Topic: "bench"})
	if err != nil {
		b.Fatal(err)
	}
	return e, p
}

// BenchmarkBatch fills batches in place and keeps some in flight.
func BenchmarkBatch(b *testing.B) {
	for _, c := range []struct{ size, inFlight, record int }{
		{1 << 20, 4, 1024}, {256 << 10, 4, 1024}, {64 << 10, 8, 1024}, {128 << 10, 8, 100},
	} {
		b.Run(fmt.Sprintf("batch=%dKiB/inflight=%d/record=%d", c.size>>10, c.inFlight, c.record), func(b *testing.B) {
			e, p := benchEngine(b)
			value := make([]byte, c.record-16)
			key := []byte("0123456789abcdef")
			window := make(chan struct{}, c.inFlight)
			var failed atomic.Pointer[error]
			b.SetBytes(int64(c.size))
			ctx := context.Background()
			for b.Loop() {
				window <- struct{}{}
				batch, err := p.NewBatch(ctx, c.size)
				if err != nil {
					b.Fatal(err)
				}
				for {
					if err := batch.Add(Record{Key: key, Value: value}); err != nil {
						if !errors.Is(err, record.ErrBatchFull) {
							b.Fatal(err)
						}
						break
					}
				}
				err = batch.Send(ctx, func(_ Placement, err error) {
					if err != nil {
						failed.Store(&err)
					}
					<-window
				})
				if err != nil {
					b.Fatal(err)
				}
			}
			if err := p.Flush(ctx); err != nil {
				b.Fatal(err)
			}
			if err := failed.Load(); err != nil {
				b.Fatal(*err)
			}
			s := e.Stats().Store
			b.ReportMetric(float64(s.FlushBytes)/float64(s.Flushes), "B/flush")
		})
	}
}

// BenchmarkFill fills batches in place and sends none of them.
func BenchmarkFill(b *testing.B) {
	const records, size = 1000, 100
	_, p := benchEngine(b)
	ctx, text := context.Background(), make([]byte, size)
	for b.Loop() {
		batch, err := p.NewBatch(ctx, 256<<10)
		if err != nil {
			b.Fatal(err)
		}
		for i := range records {
			key, value, err := batch.Reserve(16, size-16)
			if err != nil {
				b.Fatal(err)
			}
			binary.BigEndian.PutUint64(key[8:], uint64(i))
			copy(value, text)
			if err := batch.Commit(key); err != nil {
				b.Fatal(err)
			}
		}
		if err := batch.finish(); err != nil {
			b.Fatal(err)
		}
		batch.Discard()
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/records, "ns/record")
}

// BenchmarkProduce stores records one by one from several goroutines.
func BenchmarkProduce(b *testing.B) {
	for _, workers := range []int{1, 64} {
		b.Run(fmt.Sprintf("workers=%d", workers), func(b *testing.B) {
			e, p := benchEngine(b)
			var left atomic.Int64
			left.Store(int64(b.N))
			var group sync.WaitGroup
			b.ResetTimer()
			for range workers {
				group.Go(func() {
					r := Record{Key: []byte("0123456789abcdef"), Value: make([]byte, 1008)}
					for left.Add(-1) >= 0 {
						if _, err := p.Produce(context.Background(), r); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			group.Wait()
			s := e.Stats().Store
			b.ReportMetric(float64(s.Records)/float64(s.Flushes), "records/flush")
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "records/s")
		})
	}
}
