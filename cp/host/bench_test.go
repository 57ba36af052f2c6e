package host

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"
)

// BenchmarkPropose measures one command at a time beside what one durable write of
// a block costs in the same directory at the same moment.
func BenchmarkPropose(b *testing.B) {
	for _, callers := range []int{1, 4, 16} {
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) {
			dir := b.TempDir()
			h := open(b, dir)
			var n atomic.Int64
			var times []time.Duration
			b.SetParallelism(max(1, callers/2)) // of GOMAXPROCS, 2 here
			if callers == 1 {
				for b.Loop() {
					name, cmd := createTopic(int(n.Add(1)))
					t := time.Now()
					if r, err := h.Propose(context.Background(), name, cmd); err != nil || r.Err != nil {
						b.Fatal(r.Err, err)
					}
					times = append(times, time.Since(t))
				}
				b.ReportMetric(float64(median(times).Microseconds()), "p50-us")
				b.ReportMetric(float64(median(floor(b, dir)).Microseconds()), "floor-p50-us")
				return
			}
			b.RunParallel(func(p *testing.PB) {
				for p.Next() {
					name, cmd := createTopic(int(n.Add(1)))
					if r, err := h.Propose(context.Background(), name, cmd); err != nil || r.Err != nil {
						b.Fatal(r.Err, err)
					}
				}
			})
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "commands/s")
		})
	}
}

func floor(b *testing.B, dir string) (times []time.Duration) {
	s, err := openSlot(filepath.Join(dir, "floor"))
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	const n = 1000
	if err := grow(s, 0, n*block); err != nil {
		b.Fatal(err)
	}
	p := make([]byte, block)
	for i := range n {
		t := time.Now()
		if err := s.WriteAt(p, int64(i)*block); err != nil {
			b.Fatal(err)
		}
		times = append(times, time.Since(t))
	}
	return times
}

func median(d []time.Duration) time.Duration {
	d = slices.Sorted(slices.Values(d))
	return d[len(d)/2]
}

// BenchmarkProposeAll creates topics in bulk.
func BenchmarkProposeAll(b *testing.B) {
	const topics = 20000
	for b.Loop() {
		h := open(b, b.TempDir())
		ps := make([]Proposal, topics)
		for i := range ps {
			name, cmd := createTopic(i)
			ps[i] = Proposal{name, cmd}
		}
		for _, o := range h.ProposeAll(context.Background(), ps) {
			if o.Err != nil || o.Reply.Err != nil {
				b.Fatal(o)
			}
		}
		h.Close()
	}
	b.ReportMetric(float64(topics*b.N)/b.Elapsed().Seconds(), "topics/s")
}

// BenchmarkOpen measures a start: of a fresh directory, and of one with topics.
func BenchmarkOpen(b *testing.B) {
	for _, topics := range []int{0, 10000} {
		b.Run(fmt.Sprintf("topics=%d", topics), func(b *testing.B) {
			dir := b.TempDir()
			if topics > 0 {
				h := open(b, dir)
				ps := make([]Proposal, topics)
				for i := range ps {
					name, cmd := createTopic(i)
					ps[i] = Proposal{name, cmd}
				}
				h.ProposeAll(context.Background(), ps)
				h.Close()
			}
			for b.Loop() {
				if topics == 0 {
					os.RemoveAll(dir)
				}
				open(b, dir).Close()
			}
		})
	}
}
