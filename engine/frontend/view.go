package frontend

import (
	"fmt"
	"iter"
	"slices"

	"github.com/ringfence/ringfence/cp"
	"github.com/ringfence/ringfence/fence"
)

// View is metadata as somebody sees it: one state for each vnode of a ring. Read it
// from one goroutine at a time, or give each reader its own.
type View struct {
	Ring   cp.Ring
	Vnodes map[cp.VnodeID]*cp.State
}

// NewView returns a view of n empty vnodes.
func NewView(n int) (View, error) {
	if n < 1 || n > 1<<16 {
		return View{}, fmt.Errorf("%w: a view of %d vnodes", ErrOptions, n)
	}
	v := View{Ring: cp.NewRing(n), Vnodes: map[cp.VnodeID]*cp.State{}}
	for _, node := range v.Ring.Vnodes() {
		v.Vnodes[node.ID] = cp.NewState()
	}
	return v, nil
}

func (v View) isZero() bool { return v.Ring.Len() == 0 && len(v.Vnodes) == 0 }

// of is the state that a topic of that name lives in; nil when the ring has no vnode
// for it or the view has no state of that vnode.
func (v View) of(topic string) *cp.State {
	id, ok := v.Ring.Route(topic)
	if !ok {
		return nil
	}
	return v.Vnodes[id]
}

// ofID is the state that has the topic of that identity, nil if none does.
func (v View) ofID(id fence.TopicID) *cp.State {
	for _, s := range v.Vnodes {
		if s.TopicByID(id) != nil {
			return s
		}
	}
	return nil
}

// Topic is the topic of that name, nil if there is none.
func (v View) Topic(name string) *cp.Topic {
	if s := v.of(name); s != nil {
		return s.Topic(name)
	}
	return nil
}

// TopicByID is the topic of that identity, nil if there is none.
func (v View) TopicByID(id fence.TopicID) *cp.Topic {
	if s := v.ofID(id); s != nil {
		return s.TopicByID(id)
	}
	return nil
}

// Topics lists the topics of all vnodes by name.
func (v View) Topics() []*cp.Topic {
	var all []*cp.Topic
	for _, s := range v.Vnodes {
		for t := range s.Topics() {
			all = append(all, t)
		}
	}
	slices.SortFunc(all, func(a, b *cp.Topic) int {
		switch {
		case a.Name < b.Name:
			return -1
		case a.Name > b.Name:
			return 1
		}
		return 0
	})
	return all
}

// Range is the range of that id, nil if there is none.
func (v View) Range(id fence.RangeID) *cp.Range {
	if s := v.ofID(id.Topic); s != nil {
		return s.Range(id)
	}
	return nil
}

// Ranges visits a topic's ranges, active or sealed, by sequence.
func (v View) Ranges(topic string) iter.Seq[*cp.Range] {
	if s := v.of(topic); s != nil {
		return s.Ranges(topic)
	}
	return func(func(*cp.Range) bool) {}
}

// Segment is the segment of that id, nil if there is none.
func (v View) Segment(id fence.SegmentID) *cp.Segment {
	if s := v.ofID(id.Range.Topic); s != nil {
		return s.Segment(id)
	}
	return nil
}

// Segments visits a range's segments by start, the active one last.
func (v View) Segments(id fence.RangeID) iter.Seq[*cp.Segment] {
	if s := v.ofID(id.Topic); s != nil {
		return s.Segments(id)
	}
	return func(func(*cp.Segment) bool) {}
}

// Policy is the policy defined under a name.
func (v View) Policy(name string) (cp.Policy, bool) {
	if home, ok := v.Ring.Home(); ok && v.Vnodes[home] != nil {
		return v.Vnodes[home].Policy(name)
	}
	return cp.Policy{}, false
}

// clone is a view that shares nothing that changes.
func (v View) clone() View {
	c := View{Ring: v.Ring, Vnodes: make(map[cp.VnodeID]*cp.State, len(v.Vnodes))}
	for id, s := range v.Vnodes {
		c.Vnodes[id] = s.Clone()
	}
	return c
}

// target is the state that a command belongs to, and the name of its topic; nil when no
// vnode of the view can have it.
func (v View) target(cmd cp.Command) (*cp.State, string) {
	name, id := cp.Target(cmd)
	switch {
	case name != "":
		return v.of(name), name
	case !id.IsZero():
		if s := v.ofID(id); s != nil {
			return s, s.TopicByID(id).Name
		}
		return nil, ""
	}
	home, _ := v.Ring.Home()
	return v.Vnodes[home], ""
}
