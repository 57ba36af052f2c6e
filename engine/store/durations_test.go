package store

import (
	"testing"
	"time"
)

func TestDurations(t *testing.T) {
	var c DurationCounter
	for _, d := range []time.Duration{
		0, 1, shortest, // at most the first bound
		shortest + 1, 2 * shortest, // the second
		DurationBound(durationBounds - 1),   // the last
		DurationBound(durationBounds-1) + 1, // none
		time.Hour,
	} {
		c.Note(d)
	}
	d := c.Read()
	if d.UpTo[0] != 3 || d.UpTo[1] != 5 || d.UpTo[durationBounds-2] != 5 || d.UpTo[durationBounds-1] != 6 || d.Count != 8 {
		t.Errorf("%+v", d)
	}
	if last := DurationBound(durationBounds - 1); last < 16*time.Second || d.Sum != time.Hour+2*last+1+4*shortest+2 {
		t.Errorf("sum %s, last bound %s", d.Sum, last)
	}
}
