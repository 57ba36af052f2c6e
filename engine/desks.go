package engine

import (
	"slices"
	"sync"

	"github.com/ringfence/ringfence/engine/store"
)

// desks bounds how many segments are open for appends: each takes a file
// descriptor, and there are more topics than a process may have files open. When
// one more is opened than there may be, the one that was written least lately, as
// far as a look around tells, is rolled. Its range opens the next when it is
// written to.
type desks struct {
	mu    sync.Mutex // guards the following; nothing blocks under it
	queue []desk
	sweep int // the length of queue at which closed segments are taken off
}

// desk is an open segment and how far it was when it was looked at.
type desk struct {
	seg  *store.Segment
	mark uint64
}

// makeRoom takes a segment that was opened on the books, and rolls another one if
// there are too many.
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

// add puts an open segment on the books, and now and then takes those off that are
// closed by now.
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

// idlest takes a segment to roll off the books, nil if there are at most most. One
// that was written since it last came up comes up again later.
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
