package cp_test

import (
	"errors"
	"maps"
	"slices"

	"github.com/ringfence/ringfence/cp"
	"github.com/ringfence/ringfence/fence"
)

// model is the metadata written down without any index: flat lists, every
// question answered by looking through all of them. It follows the same rules in
// the plainest words there are.
type model struct {
	topics   []*cp.Topic
	moving   map[string]bool
	ranges   []*cp.Range
	segments []*cp.Segment
	groups   map[groupKey]*mGroup
	policies map[string]cp.Policy
	users    []*cp.User
}

type groupKey struct{ topic, group string }

type mGroup struct {
	generation uint64
	positions  map[fence.RangeID]cp.Position
}

func newModel() *model {
	return &model{moving: map[string]bool{}, groups: map[groupKey]*mGroup{}, policies: map[string]cp.Policy{}}
}

func find[T any](list []*T, is func(*T) bool) *T {
	if i := slices.IndexFunc(list, is); i >= 0 {
		return list[i]
	}
	return nil
}

func (m *model) topic(name string) *cp.Topic {
	return find(m.topics, func(t *cp.Topic) bool { return t.Name == name })
}

func (m *model) byID(id fence.TopicID) *cp.Topic {
	return find(m.topics, func(t *cp.Topic) bool { return t.ID == id })
}

func (m *model) rng(id fence.RangeID) *cp.Range {
	return find(m.ranges, func(r *cp.Range) bool { return r.ID == id })
}

func (m *model) seg(id fence.SegmentID) *cp.Segment {
	return find(m.segments, func(s *cp.Segment) bool { return s.ID == id })
}

func (m *model) head(id fence.RangeID) *cp.Segment {
	return find(m.segments, func(s *cp.Segment) bool { return s.ID.Range == id && s.Phase == cp.Active })
}

// segmentsOf sorts a range's segments by where they start.
func (m *model) segmentsOf(id fence.RangeID) []*cp.Segment {
	var all []*cp.Segment
	for _, s := range m.segments {
		if s.ID.Range == id {
			all = append(all, s)
		}
	}
	slices.SortFunc(all, func(a, b *cp.Segment) int { return a.ID.Compare(b.ID) })
	return all
}

func (m *model) movingID(id fence.TopicID) bool {
	t := m.byID(id)
	return t != nil && m.moving[t.Name]
}

// first answers the first error that applies.
type rule struct {
	broken bool
	err    error
}

func first(rules ...rule) error {
	for _, r := range rules {
		if r.broken {
			return r.err
		}
	}
	return nil
}

func (m *model) apply(cmd cp.Command) error {
	switch c := cmd.(type) {
	case cp.CreateTopic:
		err := first(rule{!cp.ValidTopicName(c.Name), cp.ErrInvalidName}, rule{m.topic(c.Name) != nil, cp.ErrTopicExists},
			rule{c.Bits < 1 || c.Bits > 32, cp.ErrInvalidBits}, rule{c.ID.IsZero() || m.byID(c.ID) != nil, cp.ErrInvalidTopicID})
		if err == nil {
			m.topics = append(m.topics, &cp.Topic{ID: c.ID, Name: c.Name, Bits: c.Bits, NextRangeSeq: 1, Created: c.At})
			m.ranges = append(m.ranges, &cp.Range{ID: fence.RangeID{Topic: c.ID}, End: 1 << 32})
		}
		return err
	case cp.SealTopic:
		return m.onTopic(c.Name, func(t *cp.Topic) error {
			t.Phase = cp.Sealed
			for _, r := range m.ranges {
				if r.ID.Topic == t.ID {
					r.Phase = cp.Sealed
				}
			}
			return nil
		})
	case cp.DeleteTopic:
		if t := m.topic(c.Name); t != nil && !c.ID.IsZero() && t.ID != c.ID {
			return cp.ErrNoSuchTopic
		}
		return m.onTopic(c.Name, func(t *cp.Topic) error { m.drop(t); return nil })
	case cp.BindTopicPolicy:
		return m.onTopic(c.Topic, func(t *cp.Topic) error {
			if len(c.Policy) > 255 {
				return cp.ErrInvalidPolicy
			}
			t.Policy = c.Policy
			return nil
		})
	case cp.SplitRange:
		return m.split(c.Range)
	case cp.MergeRanges:
		return m.merge(c.A, c.B)
	case cp.RegisterSegment:
		return m.register(c)
	case cp.SealSegment:
		return m.seal(c)
	case cp.DeleteSegment:
		return m.onSegment(c.ID, func(s *cp.Segment) error {
			if s.Phase == cp.Active {
				return cp.ErrSegmentActive
			}
			m.segments = slices.DeleteFunc(m.segments, func(o *cp.Segment) bool { return o == s })
			return nil
		})
	case cp.SetSegmentReplicas:
		return m.onSegment(c.ID, func(s *cp.Segment) error {
			err := first(rule{s.Phase == cp.Active, cp.ErrSegmentActive}, rule{!distinct(c.Replicas), cp.ErrInvalidReplicas})
			if err == nil {
				s.Replicas = c.Replicas
			}
			return err
		})
	case cp.CommitOffset:
		return m.commit(c)
	case cp.CommitRanges:
		return m.commitRanges(c)
	case cp.FenceGroup:
		return m.onGroup(c.Topic, c.Group, c.Generation, func(t *cp.Topic, g *mGroup) error { g.generation = c.Generation; return nil })
	case cp.DeleteGroup:
		return m.onTopic(c.Topic, func(*cp.Topic) error {
			if m.groups[groupKey{c.Topic, c.Group}] == nil {
				return cp.ErrNoSuchGroup
			}
			delete(m.groups, groupKey{c.Topic, c.Group})
			return nil
		})
	case cp.DefinePolicy:
		if c.Name == "" || storable(c.Policy) != nil {
			return cp.ErrInvalidPolicy
		}
		m.policies[c.Name] = c.Policy
	case cp.DeletePolicy:
		delete(m.policies, c.Name)
	case cp.PutUser, cp.DeleteUser, cp.SetGrant, cp.PutToken, cp.DeleteToken, cp.SetQuota:
		return m.applyUser(cmd)
	case cp.BeginMigration:
		if m.topic(c.Topic) == nil {
			return cp.ErrNoSuchTopic
		}
		m.moving[c.Topic] = true
	case cp.EndMigration:
		delete(m.moving, c.Topic)
	case cp.ExtractTopic:
		if t := m.topic(c.Topic); t != nil {
			m.drop(t)
		}
	default:
		return errors.New("the model has no such command")
	}
	return nil
}

func (m *model) onTopic(name string, do func(*cp.Topic) error) error {
	t := m.topic(name)
	if err := first(rule{t == nil, cp.ErrNoSuchTopic}, rule{m.moving[name], cp.ErrMigrating}); err != nil {
		return err
	}
	return do(t)
}

func (m *model) onSegment(id fence.SegmentID, do func(*cp.Segment) error) error {
	s := m.seg(id)
	if err := first(rule{s == nil, cp.ErrNoSuchSegment}, rule{m.movingID(id.Range.Topic), cp.ErrMigrating}); err != nil {
		return err
	}
	return do(s)
}

func (m *model) drop(t *cp.Topic) {
	m.topics = slices.DeleteFunc(m.topics, func(o *cp.Topic) bool { return o == t })
	m.ranges = slices.DeleteFunc(m.ranges, func(r *cp.Range) bool { return r.ID.Topic == t.ID })
	m.segments = slices.DeleteFunc(m.segments, func(s *cp.Segment) bool { return s.ID.Range.Topic == t.ID })
	maps.DeleteFunc(m.groups, func(k groupKey, _ *mGroup) bool { return k.topic == t.Name })
	delete(m.moving, t.Name)
}

// child makes the next range of the topic of its parents.
func (m *model) child(start, end uint64, from ...*cp.Range) *cp.Range {
	t := m.byID(from[0].ID.Topic)
	c := &cp.Range{ID: fence.RangeID{Topic: t.ID, Seq: t.NextRangeSeq}, Start: start, End: end}
	t.NextRangeSeq++
	for _, p := range from {
		c.From = append(c.From, p.ID)
		p.Phase = cp.Sealed
		p.Children = append(p.Children, c.ID)
	}
	m.ranges = append(m.ranges, c)
	return c
}

// ancestors: the direct parents and theirs, oldest first.
func (m *model) ancestors(id fence.RangeID) (all []fence.RangeID) {
	seen := map[fence.RangeID]bool{id: true}
	for _, r := range slices.Backward(m.ranges) { // parents were made before their children
		for _, p := range r.From {
			seen[p] = seen[p] || seen[r.ID]
		}
	}
	delete(seen, id)
	maps.DeleteFunc(seen, func(_ fence.RangeID, is bool) bool { return !is })
	return slices.SortedFunc(maps.Keys(seen), fence.RangeID.Compare)
}

func (m *model) split(id fence.RangeID) error {
	r := m.rng(id)
	if r == nil {
		return cp.ErrNoSuchRange
	}
	unit := uint64(1) << (32 - m.byID(id.Topic).Bits)
	err := first(rule{m.movingID(id.Topic), cp.ErrMigrating}, rule{r.Phase == cp.Sealed, cp.ErrRangeSealed},
		rule{m.head(id) != nil, cp.ErrActiveSegment}, rule{r.End-r.Start == unit, cp.ErrCannotSplit})
	if err == nil {
		mid := (r.Start + r.End) / 2
		m.child(r.Start, mid, r)
		m.child(mid, r.End, r)
	}
	return err
}

func (m *model) merge(aid, bid fence.RangeID) error {
	a, b := m.rng(aid), m.rng(bid)
	err := first(rule{a == nil, cp.ErrNoSuchRange}, rule{m.movingID(aid.Topic), cp.ErrMigrating}, rule{a != nil && a.Phase == cp.Sealed, cp.ErrRangeSealed},
		rule{b == nil, cp.ErrNoSuchRange}, rule{b != nil && b.Phase == cp.Sealed, cp.ErrRangeSealed},
		rule{m.head(aid) != nil || m.head(bid) != nil, cp.ErrActiveSegment}, rule{aid.Topic != bid.Topic, cp.ErrDifferentTopic})
	if err != nil {
		return err
	}
	lo, hi := a, b
	if lo.Start > hi.Start {
		lo, hi = hi, lo
	}
	size := lo.End - lo.Start
	if lo.End != hi.Start || hi.End-hi.Start != size || lo.Start%(2*size) != 0 {
		return cp.ErrNotBuddies
	}
	m.child(lo.Start, hi.End, a, b)
	return nil
}

func distinct(set []cp.NodeID) bool {
	seen := map[cp.NodeID]bool{}
	for _, n := range set {
		if n == "" || seen[n] {
			return false
		}
		seen[n] = true
	}
	return len(set) > 0 && len(set) <= 64
}

func (m *model) register(c cp.RegisterSegment) error {
	r := m.rng(c.ID.Range)
	if r == nil {
		return cp.ErrNoSuchRange
	}
	err := first(rule{m.movingID(r.ID.Topic), cp.ErrMigrating}, rule{r.Phase == cp.Sealed, cp.ErrRangeSealed},
		rule{m.seg(c.ID) != nil, cp.ErrSegmentExists}, rule{m.head(r.ID) != nil, cp.ErrActiveSegment},
		rule{c.Start != r.NextOffset, cp.ErrSegmentOverlap}, rule{c.ID.Seq < r.NextSequence, cp.ErrSequenceUsed},
		rule{c.ID.Seq == 1<<32-1, cp.ErrInvalidSegment}, rule{!distinct(c.Replicas), cp.ErrInvalidReplicas})
	if err == nil {
		r.NextSequence = c.ID.Seq + 1
		m.segments = append(m.segments, &cp.Segment{ID: c.ID, Replicas: c.Replicas, Start: c.Start, OpenedAt: c.At, Salt: c.Salt, Writer: c.Writer})
	}
	return err
}

func (m *model) seal(c cp.SealSegment) error {
	return m.onSegment(c.ID, func(s *cp.Segment) error {
		err := first(rule{s.Phase == cp.Sealed && s.Length != c.Length, cp.ErrAlreadySealed}, rule{s.Start+c.Length < s.Start, cp.ErrInvalidLength})
		if err == nil && s.Phase == cp.Active {
			s.Phase, s.Length, s.Bytes, s.SealedAt = cp.Sealed, c.Length, c.Bytes, c.At
			m.rng(s.ID.Range).NextOffset = s.Start + s.Length
		}
		return err
	})
}

// storable is Validate, but for segments of any size: what was defined by an earlier version
// is in logs and snapshots.
func storable(p cp.Policy) error {
	if b := &p.SegmentMaxBytes; b.Setting == cp.On && b.N > 0 {
		b.N = max(b.N, cp.MinSegmentBytes)
	}
	return p.Validate()
}
