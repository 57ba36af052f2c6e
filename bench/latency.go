package bench

import (
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// Recorder collects latencies from many goroutines: 1 us to 10 minutes, three digits.
type Recorder struct {
	mu  sync.Mutex // guards h; never held across I/O
	h   *hdrhistogram.Histogram
	sum time.Duration
}

func NewRecorder() *Recorder {
	return &Recorder{h: hdrhistogram.New(int64(time.Microsecond), int64(10*time.Minute), 3)}
}

// Record adds latencies; what lies outside the range counts as its nearest end.
func (r *Recorder) Record(took ...time.Duration) {
	r.mu.Lock()
	for _, d := range took {
		_ = r.h.RecordValue(min(max(int64(d), int64(time.Microsecond)), int64(10*time.Minute))) // in range by construction
		r.sum += d
	}
	r.mu.Unlock()
}

// Latency summarises what was recorded.
func (r *Recorder) Latency() Latency {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := r.h.TotalCount()
	if n == 0 {
		return Latency{}
	}
	at := func(q float64) time.Duration { return time.Duration(r.h.ValueAtQuantile(q)) }
	return Latency{Count: n, Mean: r.sum / time.Duration(n),
		P50: at(50), P90: at(90), P99: at(99), P999: at(99.9), Max: time.Duration(r.h.Max())}
}
