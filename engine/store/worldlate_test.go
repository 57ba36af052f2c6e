package store

import (
	"math/rand/v2"

	"github.com/ringfence/ringfence/segfile/disk/simdisk"
)

// delay holds writes up from now on, or lets them go. What is held ends before anybody
// waits for it, or with the process.
func (w *world) delay(r *rangeModel) {
	switch {
	case !w.late:
	case w.hold == nil && w.rng.IntN(4) == 0:
		one, rng := 1+w.rng.IntN(12), rand.New(rand.NewPCG(w.rng.Uint64(), 7))
		first := true
		w.hold = w.d.Hold(func(e simdisk.Event) bool {
			held := appendWrite(e) && (first || rng.IntN(one) == 0)
			first = first && !held
			return held
		})
	case w.hold != nil && w.rng.IntN(80) == 0:
		w.release()
	case r.head != nil:
		w.gap(r.head)
	}
}

// release lets the writes go that are held.
func (w *world) release() {
	if w.hold != nil {
		w.seen["late"] += w.hold.Count()
		w.hold.Release()
		w.hold = nil
	}
}

// gap says whether flushes of a segment are done behind one that is not.
func (w *world) gap(seg *Segment) bool {
	seg.shard.mu.Lock()
	defer seg.shard.mu.Unlock()
	open, done := false, 0
	for _, f := range seg.flushes.all() {
		switch {
		case !f.settled:
			open = true
		case open:
			done++
			if f.lent != nil {
				w.seen["foreign behind a late one"]++
			}
		}
	}
	if done > 0 && seg.failed != nil {
		w.seen["fault behind a late one"]++
	}
	if done > 0 {
		w.seen["done behind a late one"]++
	}
	w.seen["most done behind a late one"] = max(w.seen["most done behind a late one"], done)
	return done > 0
}

// gaps says whether any segment has such flushes.
func (w *world) gaps() bool {
	for _, r := range w.ranges {
		if r.head != nil && w.gap(r.head) {
			return true
		}
	}
	return false
}

// fenceBehind has the fence of seg come while writes are late.
func (w *world) fenceBehind(seg *Segment) {
	if w.hold == nil {
		return
	}
	if seg.shard == nil || !seg.Writable() {
		w.release()
		return
	}
	if w.gap(seg) {
		w.seen["fence behind a late one"]++
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = seg.Fence() // the caller asks again
	}()
	eventually(w.t, "the fence has begun", func() bool { return !seg.Writable() })
	w.release()
	<-done
}
