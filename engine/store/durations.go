package store

import (
	"math/bits"
	"sync/atomic"
	"time"
)

// Durations counts times by how long they were, since Open.
type Durations struct {
	Count uint64
	Sum   time.Duration
	// UpTo[i] of them took at most DurationBound(i); what took longer than the last is in
	// Count alone.
	UpTo [durationBounds]uint64
}

// Bounds double, from 16 microseconds to 16 seconds.
const (
	durationBounds = 21
	shortest       = 16 * time.Microsecond
)

// DurationBound is the i-th bound of Durations.
func DurationBound(i int) time.Duration { return shortest << i }

// DurationCounter is what Durations are counted in, by any goroutine.
type DurationCounter struct {
	sum atomic.Int64
	by  [durationBounds + 1]atomic.Uint64 // by the first bound that is not exceeded
}

// Note counts one.
func (c *DurationCounter) Note(d time.Duration) {
	c.sum.Add(int64(d))
	i := bits.Len64(uint64(max(d-1, 0) / shortest))
	c.by[min(i, durationBounds)].Add(1)
}

// Read returns the counts so far.
func (c *DurationCounter) Read() (d Durations) {
	d.Sum = time.Duration(c.sum.Load())
	for i := range c.by {
		d.Count += c.by[i].Load()
		if i < durationBounds {
			d.UpTo[i] = d.Count
		}
	}
	return d
}
