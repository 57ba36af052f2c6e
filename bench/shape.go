package bench

import (
	"fmt"
	"time"
)

// Shape is one pattern of I/O on one file, sequential, by one job.
type Shape struct {
	Read    bool // read instead of write
	Durable bool // every write is on stable storage when it completes (O_DSYNC)
	Grow    bool // a new file that grows; otherwise every block was written before
	Block   int  // bytes of one operation, a multiple of 4096
	Depth   int  // operations in flight
	Seconds float64
	Pause   time.Duration // between an operation and the next: what a device that has gone idle needs
}

func (s Shape) String() string {
	what := "write"
	switch {
	case s.Read:
		what = "direct read"
	case s.Durable:
		what = "dsync"
	}
	file := "written file"
	if s.Grow {
		file = "growing file"
	}
	if s.Pause > 0 {
		file += fmt.Sprintf(", %v apart", s.Pause)
	}
	return fmt.Sprintf("%s %s x %d, %s", what, sizeName(int64(s.Block)), s.Depth, file)
}

func (s Shape) check() error {
	switch {
	case s.Block <= 0 || s.Block%4096 != 0:
		return fmt.Errorf("bench: block of %d bytes: want a multiple of 4096", s.Block)
	case s.Depth < 1 || s.Depth > 1024:
		return fmt.Errorf("bench: depth %d: want 1 to 1024", s.Depth)
	case s.Seconds <= 0 || s.Seconds > 600:
		return fmt.Errorf("bench: %g seconds: want more than 0, at most 600", s.Seconds)
	case s.Pause < 0 || s.Pause > time.Second:
		return fmt.Errorf("bench: a pause of %v: want at most a second", s.Pause)
	case s.Read && (s.Durable || s.Grow):
		return fmt.Errorf("bench: a read is neither durable nor growing")
	}
	return nil
}

// Floor is what a shape got without an engine.
type Floor struct {
	Shape   string  `json:"shape"`
	Tool    string  `json:"tool"`  // "fio-3.33", "plain Go loop"
	Pages   string  `json:"pages"` // what its buffers lay on
	MBps    float64 `json:"mb_per_s"`
	OpsPerS float64 `json:"ops_per_s"`
	Latency Latency `json:"latency"`
	CPU     float64 `json:"cpu_s_per_gib"` // seconds of CPU for a GiB moved
	Command string  `json:"command,omitempty"`
}

// Latency summarises a distribution.
type Latency struct {
	Count int64         `json:"count"`
	Mean  time.Duration `json:"mean_ns"`
	P50   time.Duration `json:"p50_ns"`
	P90   time.Duration `json:"p90_ns"`
	P99   time.Duration `json:"p99_ns"`
	P999  time.Duration `json:"p99.9_ns"`
	Max   time.Duration `json:"max_ns"`
}

func (l Latency) String() string {
	return fmt.Sprintf("p50 %s, p90 %s, p99 %s, p99.9 %s, max %s",
		roundTime(l.P50), roundTime(l.P90), roundTime(l.P99), roundTime(l.P999), roundTime(l.Max))
}

// roundTime keeps three digits.
func roundTime(d time.Duration) time.Duration {
	for unit := time.Duration(1); ; unit *= 10 {
		if d < 1000*unit {
			return d.Round(unit)
		}
	}
}

func sizeName(n int64) string {
	switch {
	case n >= 1<<30 && n%(1<<30) == 0:
		return fmt.Sprintf("%d GiB", n>>30)
	case n >= 1<<20 && n%(1<<20) == 0:
		return fmt.Sprintf("%d MiB", n>>20)
	case n >= 1<<10 && n%(1<<10) == 0:
		return fmt.Sprintf("%d KiB", n>>10)
	}
	return fmt.Sprintf("%d B", n)
}
