package frontend

import (
	"fmt"
	"maps"
	"slices"

	"github.com/ringfence/ringfence/cp"
)

// Check verifies what always holds inside a frontend and names the first thing that does not. It
// walks over everything; tests run it after every step.
func (f *Frontend) Check() error {
	f.meta.RLock()
	defer f.meta.RUnlock()
	topics := f.names.all()
	for _, t := range topics {
		if err := f.checkTopic(t); err != nil {
			return err
		}
	}
	routed := 0
	for _, t := range f.view.Topics() {
		if f.view.Topic(t.Name) == t {
			routed++
		}
	}
	if routed != len(topics) {
		return fmt.Errorf("frontend: %d topics in the view, %d by name", routed, len(topics))
	}
	for _, id := range slices.Sorted(maps.Keys(f.view.Vnodes)) {
		if err := f.view.Vnodes[id].Check(); err != nil {
			return fmt.Errorf("frontend: view of vnode %d: %w", id, err)
		}
	}
	for i := range f.shards {
		if err := f.shards[i].check(); err != nil {
			return err
		}
	}
	return nil
}

// checkTopic: the routes are those of the view, and an active topic's tile the keyspace.
func (f *Frontend) checkTopic(t *Topic) error {
	t.shard.mu.Lock()
	defer t.shard.mu.Unlock()
	state := f.view.of(t.name)
	rec := state.Topic(t.name)
	if rec == nil || rec.ID != t.id || t.gone {
		return fmt.Errorf("frontend: topic %q is routed, in the view it is %+v", t.name, rec)
	}
	if !t.routed(state.ActiveRanges(t.name)) {
		return fmt.Errorf("frontend: routes of topic %q are not its active ranges", t.name)
	}
	next := uint64(0)
	for _, rt := range t.routes {
		if uint64(rt.first) != next || rt.last < rt.first || t.shard.ranges[rt.r.id] != rt.r {
			return fmt.Errorf("frontend: topic %q: route %d..%d to %v does not follow on %d", t.name, rt.first, rt.last, rt.r.id, next)
		}
		next = uint64(rt.last) + 1
	}
	if rec.Phase == cp.Active && next != positions {
		return fmt.Errorf("frontend: routes of topic %q end at %d", t.name, next)
	}
	return nil
}

// check: what is cached about a range agrees with itself.
func (s *shard) check() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, r := range s.ranges {
		_, listed := s.heads[r]
		switch {
		case r.id != id:
			return fmt.Errorf("frontend: %v is stored as %v", r.id, id)
		case r.open != listed:
			return fmt.Errorf("frontend: %v has a head %v, listed %v", id, r.open, listed)
		case r.durable > r.next:
			return fmt.Errorf("frontend: %v is durable to %d, past what was reserved, %d", id, r.durable, r.next)
		case !r.open:
		case r.head.segment.Range != id || len(r.head.replicas) == 0:
			return fmt.Errorf("frontend: %v has head %+v", id, r.head)
		case r.next < r.head.start:
			return fmt.Errorf("frontend: %v goes on at %d, below its head's start %d", id, r.next, r.head.start)
		case r.nextSeq <= r.head.segment.Seq:
			return fmt.Errorf("frontend: %v may use sequence %d again", id, r.nextSeq)
		}
	}
	if len(s.heads) > len(s.ranges) {
		return fmt.Errorf("frontend: %d heads of %d ranges", len(s.heads), len(s.ranges))
	}
	return nil
}
