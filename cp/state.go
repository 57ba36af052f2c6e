package cp

import (
	"encoding/binary"
	"iter"
	"maps"
	"slices"
	"sync/atomic"

	"github.com/ringfence/ringfence/fence"
	"github.com/zeebo/xxh3"
)

// Limits of one vnode's metadata. A command over one of them is refused.
const (
	MaxName       = 255     // bytes of the name of a topic, group, policy, node or attribute
	MaxReplicas   = 64      // nodes in one replica set
	MaxRanges     = 1 << 18 // of one topic, active and sealed: a position that names all fits a command
	MaxGroups     = 1 << 16 // groups of one topic
	MaxPolicies   = 1 << 16 // definitions
	keyspace      = 1 << 32 // positions are 32 bits whatever a topic's bits
	maxSegmentSeq = 1<<32 - 2
)

// Limits of what a policy may set.
const (
	MinSegmentAge   = 60_000                 // ms: the shortest SegmentMaxAge
	MinSegmentBytes = 1 << 20                // the smallest SegmentMaxBytes
	MaxPolicyAge    = 36_500 * 24 * 3600_000 // ms: the longest age of any kind, in time.Duration too
	MaxPolicyBytes  = 1 << 60                // the most bytes of any kind
)

// State is the metadata of one vnode. The zero value is not usable; see
// [NewState].
type State struct {
	own      atomic.Pointer[owner] // atomic for Clone, which readers may call side by side
	topics   table[string, *topic]
	ids      table[fence.TopicID, *topic]
	policies map[string]Policy // never changed in place
	access   Access
}

// topic is a Topic with everything that goes where it goes.
type topic struct {
	own       *owner
	rec       *Topic
	revision  uint64 // counts the changes; the higher of two copies is the newer
	migrating bool
	ranges    []*rng   // by sequence, without holes
	active    []*Range // by start; they tile the keyspace unless the topic is sealed
	groups    map[string]*group
	ancestors int // rng.ancestors of all, of two halves one
}

// rng is a Range with its segments.
type rng struct {
	own    *owner
	rec    *Range
	sealed []*Segment // by sequence, which is by start
	head   *Segment   // the active one, nil if none

	over      uint32 // the last range before this one that was twice as wide and covered it; see lineage.go
	ancestors int    // how many it has
}

// NewState returns a vnode without anything in it.
func NewState() *State {
	s := new(State)
	s.own.Store(new(owner))
	return s
}

// Clone returns a state equal to s that never sees its changes, nor s the
// clone's. It costs a few kilobytes whatever the size of s; both sides copy
// piecemeal what they change afterwards. For locking it counts as a query of s;
// the clone may be used by another goroutine.
func (s *State) Clone() *State {
	s.own.Store(new(owner))
	c := NewState()
	c.topics, c.ids, c.policies, c.access = s.topics.clone(), s.ids.clone(), s.policies, *s.access.clone()
	return c
}

// Adopt makes the topic of that name what it is in another state, or takes it away where
// that has none. Both go on apart, as clones do, and it costs as little; for locking it
// counts as a query of from. A topic whose identity belongs to another name here is
// refused: then nothing changes and the answer is false.
func (s *State) Adopt(from *State, name string) bool {
	old, t := s.topic(name), from.topic(name)
	if t != nil {
		if other := s.topicByID(t.rec.ID); other != nil && other != old {
			return false
		}
		from.own.Store(new(owner)) // what it has made so far is nobody's from here on
	}
	if old != nil {
		s.remove(old)
	}
	if t != nil {
		s.put(t)
	}
	return true
}

// Len is the number of topics.
func (s *State) Len() int { return s.topics.len }

// Topic is the topic of that name, nil if there is none.
func (s *State) Topic(name string) *Topic {
	if t := s.topic(name); t != nil {
		return t.rec
	}
	return nil
}

// TopicByID is the topic of that identity, nil if there is none.
func (s *State) TopicByID(id fence.TopicID) *Topic {
	if t := s.topicByID(id); t != nil {
		return t.rec
	}
	return nil
}

// Topics visits the topics ordered by name.
func (s *State) Topics() iter.Seq[*Topic] {
	return func(yield func(*Topic) bool) {
		for _, t := range s.sorted() {
			if !yield(t.rec) {
				return
			}
		}
	}
}

// TopicsAfter lists the topics whose names come after a name, in no order: to sort very many
// for each page of them would cost more than the page.
func (s *State) TopicsAfter(name string) (list []*Topic) {
	for n, t := range s.topics.all {
		if n > name {
			list = append(list, t.rec)
		}
	}
	return list
}

// Range is the range of that id, nil if there is none.
func (s *State) Range(id fence.RangeID) *Range {
	if r := s.rng(id); r != nil {
		return r.rec
	}
	return nil
}

// Ranges visits every range of a topic, active or sealed, by sequence.
func (s *State) Ranges(name string) iter.Seq[*Range] {
	return func(yield func(*Range) bool) {
		t := s.topic(name)
		if t == nil {
			return
		}
		for _, r := range t.ranges {
			if !yield(r.rec) {
				return
			}
		}
	}
}

// ActiveRanges lists the ranges that tile a topic's keyspace now, by start; it
// is empty for a sealed or unknown topic. Do not modify it; read it before the
// next Apply.
func (s *State) ActiveRanges(name string) []*Range {
	if t := s.topic(name); t != nil {
		return t.active
	}
	return nil
}

// Segment is the segment of that id, nil if there is none.
func (s *State) Segment(id fence.SegmentID) *Segment {
	r := s.rng(id.Range)
	if r == nil {
		return nil
	}
	if r.head != nil && r.head.ID == id {
		return r.head
	}
	if i, ok := r.find(id.Seq); ok {
		return r.sealed[i]
	}
	return nil
}

// Head is a range's active segment, nil if it has none.
func (s *State) Head(id fence.RangeID) *Segment {
	if r := s.rng(id); r != nil {
		return r.head
	}
	return nil
}

// Sealed lists a range's sealed segments by start; of two with one start the
// first is empty. Do not modify it; read it before the next Apply.
func (s *State) Sealed(id fence.RangeID) []*Segment {
	if r := s.rng(id); r != nil {
		return r.sealed
	}
	return nil
}

// Segments visits a range's segments by start, the active one last.
func (s *State) Segments(id fence.RangeID) iter.Seq[*Segment] {
	return func(yield func(*Segment) bool) {
		r := s.rng(id)
		if r == nil {
			return
		}
		r.all(yield)
	}
}

// Policy is the policy defined under a name.
func (s *State) Policy(name string) (Policy, bool) {
	p, ok := s.policies[name]
	return p, ok
}

// Policies visits the defined policies ordered by name.
func (s *State) Policies() iter.Seq2[string, Policy] {
	return func(yield func(string, Policy) bool) {
		for _, name := range slices.Sorted(maps.Keys(s.policies)) {
			if !yield(name, s.policies[name]) {
				return
			}
		}
	}
}

// Migrating says whether a topic is fenced by a migration.
func (s *State) Migrating(name string) bool {
	t := s.topic(name)
	return t != nil && t.migrating
}

// Revision counts the changes a topic has seen, 0 for an unknown one. Equal
// revisions of one identity are equal topics.
func (s *State) Revision(name string) uint64 {
	if t := s.topic(name); t != nil {
		return t.revision
	}
	return 0
}

func (s *State) topic(name string) *topic {
	t, _ := s.topics.get(xxh3.HashString(name), name)
	return t
}

func (s *State) topicByID(id fence.TopicID) *topic {
	t, _ := s.ids.get(hashID(id), id)
	return t
}

func (s *State) rng(id fence.RangeID) *rng {
	if t := s.topicByID(id.Topic); t != nil {
		return t.rng(id.Seq)
	}
	return nil
}

// sorted lists the topics by name.
func (s *State) sorted() []*topic {
	list := make([]*topic, 0, s.topics.len)
	for _, t := range s.topics.all {
		list = append(list, t)
	}
	slices.SortFunc(list, func(a, b *topic) int {
		switch {
		case a.rec.Name < b.rec.Name:
			return -1
		case a.rec.Name > b.rec.Name:
			return 1
		}
		return 0
	})
	return list
}

// put stores a topic under its name and identity.
func (s *State) put(t *topic) {
	s.topics.set(s.own.Load(), xxh3.HashString(t.rec.Name), t.rec.Name, t)
	s.ids.set(s.own.Load(), hashID(t.rec.ID), t.rec.ID, t)
}

func (s *State) remove(t *topic) {
	s.topics.delete(s.own.Load(), xxh3.HashString(t.rec.Name), t.rec.Name)
	s.ids.delete(s.own.Load(), hashID(t.rec.ID), t.rec.ID)
}

// change is t as a topic that may be changed in place, with the change counted.
func (s *State) change(t *topic) *topic {
	if own := s.own.Load(); t.own != own {
		c := *t
		c.own = own
		c.ranges = slices.Clone(t.ranges)
		c.active = slices.Clone(t.active)
		c.groups = maps.Clone(t.groups)
		t = &c
		s.put(t)
	}
	t.revision++
	return t
}

func (t *topic) rng(seq uint32) *rng {
	if uint64(seq) < uint64(len(t.ranges)) {
		return t.ranges[seq]
	}
	return nil
}

// change is a range of t, which may be changed, as one that may be too.
func (t *topic) change(seq uint32) *rng {
	r := t.ranges[seq]
	if r.own != t.own {
		c := *r
		c.own = t.own
		c.sealed = slices.Clip(r.sealed) // an append must not reach the shared array
		r = &c
		t.ranges[seq] = r
	}
	return r
}

// setRange replaces a range's record, which queries may have handed out, where
// it is listed.
func (t *topic) setRange(r *rng, rec *Range) {
	r.rec = rec
	if i, ok := t.findActive(rec.Start); ok && t.active[i].ID == rec.ID {
		t.active[i] = rec
	}
}

// findActive is the place of the active range that starts at start.
func (t *topic) findActive(start uint64) (int, bool) {
	return slices.BinarySearchFunc(t.active, start, func(r *Range, start uint64) int {
		switch {
		case r.Start < start:
			return -1
		case r.Start > start:
			return 1
		}
		return 0
	})
}

// find is the place of a sealed segment.
func (r *rng) find(seq uint32) (int, bool) {
	return slices.BinarySearchFunc(r.sealed, seq, func(s *Segment, seq uint32) int {
		switch {
		case s.ID.Seq < seq:
			return -1
		case s.ID.Seq > seq:
			return 1
		}
		return 0
	})
}

// end is the offset behind a range's last record, known while nothing appends.
func (r *rng) end() (uint64, bool) { return r.rec.NextOffset, r.head == nil }

// hashID spreads identities, which are random already unless a test made them.
func hashID(id fence.TopicID) uint64 {
	a, b := binary.LittleEndian.Uint64(id[:8]), binary.LittleEndian.Uint64(id[8:])
	return (a ^ b) * 0x9e3779b97f4a7c15
}
