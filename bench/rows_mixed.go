package bench

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ringfence/ringfence/engine/api"
)

// tcpMixed stores as the first row does while another client reads what is stored, as it
// comes, and without.
func tcpMixed(w Append) rowFunc {
	return func(ctx context.Context, s *Suite, dir string) ([]Sample, error) {
		return s.overTCP(ctx, dir, w, func(run *Run) (Sample, error) {
			alone, err := valid(run.Measure(ctx))
			if err != nil {
				return Sample{}, err
			}
			read, stop, err := run.follow(ctx)
			if err != nil {
				return Sample{}, err
			}
			began := time.Now()
			res, err := valid(run.Measure(ctx))
			took := time.Since(began)
			bytes := read.Load()
			if err = errors.Join(err, stop()); err != nil {
				return Sample{}, err
			}
			return Sample{Engine: res.MBps(), Floor: alone.MBps(), Notes: map[string]float64{
				"read MB/s": float64(bytes) / 1e6 / took.Seconds(), "p99 us": micros(res.Sent.Latency.P99), "p99 us without": micros(alone.Sent.Latency.P99)}}, nil
		})
	}
}

// follow has a client of its own read the topic from its end on until stop is called, and
// counts the payload bytes.
func (r *Run) follow(ctx context.Context) (read *atomic.Int64, stop func() error, err error) {
	c, err := r.net.dial(ctx)
	if err != nil {
		return nil, nil, err
	}
	in, err := c.NewConsumer(api.ConsumerOptions{Topic: topic, From: api.FromEnd()})
	if err != nil {
		return nil, nil, errors.Join(err, c.Close())
	}
	ctx, cancel := context.WithCancel(ctx)
	read = new(atomic.Int64)
	var failed error
	var reading sync.WaitGroup
	reading.Go(func() {
		for ctx.Err() == nil {
			page, err := in.Poll(ctx, 1<<16)
			if err != nil {
				if ctx.Err() == nil {
					failed = err
				}
				return
			}
			n := 0
			for i := range page.Records {
				n += len(page.Records[i].Key) + len(page.Records[i].Value)
			}
			read.Add(int64(n))
		}
	})
	return read, func() error {
		cancel()
		reading.Wait()
		return errors.Join(failed, in.Close(), c.Close())
	}, nil
}
