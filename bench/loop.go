package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// Measure returns the floor of a shape: fio's where it is installed, else the
// plain loop's.
func Measure(ctx context.Context, scratch *Scratch, s Shape) (Floor, error) {
	floor, err := Fio(ctx, scratch, s)
	if errors.Is(err, ErrNoFio) {
		return Loop(ctx, scratch, s)
	}
	return floor, err
}

// Loop measures a shape with plain Go: Depth goroutines that read or write the
// next block with one blocking call each.
func Loop(ctx context.Context, scratch *Scratch, s Shape) (floor Floor, err error) {
	if err := s.check(); err != nil {
		return Floor{}, err
	}
	file, size, err := scratch.prepare(ctx, s)
	if err != nil {
		return Floor{}, err
	}
	f, direct, err := openDirect(file, os.O_RDWR|os.O_CREATE, s.Durable)
	if err != nil {
		return Floor{}, fmt.Errorf("bench: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	mem, free, err := bigBuffer(s.Block * s.Depth)
	if err != nil {
		return Floor{}, err
	}
	defer free()
	fillPattern(mem)

	var (
		next, ops atomic.Int64
		latency   = NewRecorder()
		blocks    = size / int64(s.Block)
		cpu       = cpuTime()
		start     = time.Now()
		deadline  = start.Add(time.Duration(s.Seconds * float64(time.Second)))
		fail      = make(chan error, s.Depth)
		wg        sync.WaitGroup
	)
	for i := range s.Depth {
		buf := mem[i*s.Block : (i+1)*s.Block]
		wg.Go(func() {
			for t := start; t.Before(deadline) && ctx.Err() == nil; {
				n := next.Add(1) - 1
				if s.Grow && n >= blocks {
					return
				}
				if err := transfer(f, buf, n%blocks*int64(s.Block), s.Read); err != nil {
					fail <- err
					return
				}
				now := time.Now()
				latency.Record(now.Sub(t))
				if t = now; s.Pause > 0 {
					time.Sleep(s.Pause)
					t = time.Now()
				}
				ops.Add(1)
			}
		})
	}
	wg.Wait()
	took, cpu := time.Since(start), cpuTime()-cpu
	select {
	case err := <-fail:
		return Floor{}, fmt.Errorf("bench: floor: %w", err)
	default:
	}
	if ctx.Err() != nil {
		return Floor{}, ctx.Err()
	}
	bytes := float64(ops.Load()) * float64(s.Block)
	floor = Floor{Shape: s.String(), Tool: "plain Go loop", Pages: "2 MiB pages, if the host gives them",
		MBps: bytes / 1e6 / took.Seconds(), OpsPerS: float64(ops.Load()) / took.Seconds(),
		Latency: latency.Latency(), CPU: cpu.Seconds() / (bytes / (1 << 30))}
	if !direct {
		floor.Tool += ", buffered: the file system refuses direct I/O"
	}
	return floor, nil
}

func transfer(f *os.File, buf []byte, at int64, read bool) (err error) {
	if read {
		_, err = f.ReadAt(buf, at)
	} else {
		_, err = f.WriteAt(buf, at)
	}
	return err
}
