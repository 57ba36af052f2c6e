package engine

import (
	"slices"
	"sync"

	"github.com/ringfence/ringfence/engine/store"
)

// desks bounds how many segments are open for appends: each takes a file descriptor, and there
// may be more topics than a process may have files open. When there is one too many, about
// the one that was not written to for longest is rolled; its range opens the next one when it
// is written to.
type desks struct {
	mu    sync.Mutex // guards the following; nothing blocks under it
	queue []desk
	sweep int // the length of queue at which closed segments are taken off
}

// desk is an open segment and how far it had come when it was looked at.
type desk struct {
	seg  *store.Segment
	mark uint64
}

// makeRoom enters a segment that was opened, and rolls another one if there are too many.
func (e *Engine) makeRoom(seg *store.Segment) {
	d := &e.desks
	d.mu.Lock()
	d.add(seg)
	idle := d.idlest(e.opts.OpenFiles / 2)
	d.mu.Unlock()
	if idle == nil {
		return
	}
	if err := e.roll(idle, false); err != nil {
		e.log.Warn("an idle segment could not be closed for another one", "segment", idle.ID(), "err", err)
		d.mu.Lock()
		d.add(idle)
		d.mu.Unlock()
	}
}

// add enters an open segment, and now and then removes those that are closed by now.
func (d *desks) add(seg *store.Segment) {
	d.queue = append(d.queue, desk{seg, seg.CommitMark()})
	if len(d.queue) < d.sweep {
		return
	}
	d.queue = slices.DeleteFunc(d.queue, func(at desk) bool {
		_, closed := at.seg.Fenced()
		return closed
	})
	d.sweep = max(64, 2*len(d.queue))
}

// idlest removes a segment and returns it, to be rolled; nil if there are at most most. A
// segment that was written to since its last turn goes to the end of the queue.
func (d *desks) idlest(most int) *store.Segment {
	for tries := 2 * len(d.queue); tries > 0 && len(d.queue) > most; tries-- {
		at := d.queue[0]
		d.queue[0], d.queue = desk{}, d.queue[1:]
		if _, closed := at.seg.Fenced(); closed {
			continue
		}
		if mark := at.seg.CommitMark(); mark != at.mark {
			d.queue = append(d.queue, desk{at.seg, mark})
			continue
		}
		return at.seg
	}
	return nil
}
