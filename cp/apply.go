package cp

import (
	"bytes"

	"github.com/ringfence/ringfence/fence"
)

// Apply carries out a command and answers it. A refused command changes
// nothing; anything that is not a command of this package is refused.
func (s *State) Apply(cmd Command) Reply {
	if known(cmd) {
		return cmd.apply(s)
	}
	return refuse(ErrUnknownCommand)
}

// ApplyBytes is [State.Apply] of an encoded command, as it lies in a log. Bytes
// that are no command this software knows are refused and change nothing.
func (s *State) ApplyBytes(b []byte) Reply {
	cmd, err := Decode(b)
	if err != nil {
		return refuse(err)
	}
	return s.Apply(cmd)
}

// known is false for nil and for pointers to commands, which no log can hold.
func known(cmd Command) bool {
	switch cmd.(type) {
	case CreateTopic, SealTopic, DeleteTopic, SplitRange, MergeRanges, boundedSplit, boundedMerge,
		RegisterSegment, SealSegment, DeleteSegment, SetSegmentReplicas,
		CommitOffset, CommitRanges, FenceGroup, DeleteGroup,
		DefinePolicy, DeletePolicy, BindTopicPolicy,
		BeginMigration, EndMigration, ExtractTopic, InsertTopic,
		PutUser, DeleteUser, SetGrant, PutToken, DeleteToken, SetQuota:
		return true
	}
	return false
}

func refuse(err error) Reply { return Reply{Err: err} }

// ValidTopicName says whether a topic can have this name: 1 to 255 of the
// characters A to Z, a to z, 0 to 9, dot, underscore and minus, and not "." or
// "..", because names may end up as names of files.
func ValidTopicName(name string) bool {
	if name == "" || name == "." || name == ".." || len(name) > MaxName {
		return false
	}
	for i := range len(name) {
		switch c := name[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '.', c == '_', c == '-':
		default:
			return false
		}
	}
	return true
}

// open finds a topic that takes changes.
func (s *State) open(name string) (*topic, error) {
	t := s.topic(name)
	switch {
	case t == nil:
		return nil, ErrNoSuchTopic
	case t.migrating:
		return nil, ErrMigrating
	}
	return t, nil
}

// openRange finds a range that takes changes.
func (s *State) openRange(id fence.RangeID) (*topic, *rng, error) {
	t := s.topicByID(id.Topic)
	if t == nil || t.rng(id.Seq) == nil {
		return nil, nil, ErrNoSuchRange
	}
	if t.migrating {
		return nil, nil, ErrMigrating
	}
	return t, t.rng(id.Seq), nil
}

// openSegment finds a segment that takes changes.
func (s *State) openSegment(id fence.SegmentID) (*topic, *Segment, error) {
	seg := s.Segment(id)
	if seg == nil {
		return nil, nil, ErrNoSuchSegment
	}
	t := s.topicByID(id.Range.Topic)
	if t.migrating {
		return nil, nil, ErrMigrating
	}
	return t, seg, nil
}

func (c CreateTopic) apply(s *State) Reply {
	if !ValidTopicName(c.Name) {
		return refuse(ErrInvalidName)
	}
	if t := s.topic(c.Name); t != nil {
		return Reply{Err: ErrTopicExists, Range: fence.RangeID{Topic: t.rec.ID}}
	}
	if c.Bits < 1 || c.Bits > 32 {
		return refuse(ErrInvalidBits)
	}
	if c.ID.IsZero() || s.topicByID(c.ID) != nil {
		return refuse(ErrInvalidTopicID)
	}
	root := &Range{ID: fence.RangeID{Topic: c.ID}, End: keyspace}
	own := s.own.Load()
	s.put(&topic{
		own:      own,
		rec:      &Topic{ID: c.ID, Name: c.Name, Bits: c.Bits, NextRangeSeq: 1, Created: c.At},
		revision: 1,
		ranges:   []*rng{{own: own, rec: root}},
		active:   []*Range{root},
	})
	return Reply{Range: root.ID}
}

func (c SealTopic) apply(s *State) Reply {
	t, err := s.open(c.Name)
	if err != nil {
		return refuse(err)
	}
	if t.rec.Phase == Sealed {
		return Reply{}
	}
	t = s.change(t)
	rec := *t.rec
	rec.Phase = Sealed
	t.rec = &rec
	for _, active := range t.active {
		r := t.change(active.ID.Seq)
		rec := *r.rec
		rec.Phase = Sealed
		r.rec = &rec
	}
	t.active = nil
	return Reply{}
}

func (c DeleteTopic) apply(s *State) Reply {
	t := s.topic(c.Name)
	switch {
	case t == nil, !c.ID.IsZero() && c.ID != t.rec.ID:
		return refuse(ErrNoSuchTopic)
	case t.migrating:
		return refuse(ErrMigrating)
	}
	s.remove(t)
	return Reply{}
}

func (c BindTopicPolicy) apply(s *State) Reply {
	t, err := s.open(c.Topic)
	switch {
	case err != nil:
		return refuse(err)
	case len(c.Policy) > MaxName:
		return refuse(ErrInvalidPolicy)
	}
	t = s.change(t)
	rec := *t.rec
	rec.Policy = c.Policy
	t.rec = &rec
	return Reply{}
}

func (c DefinePolicy) apply(s *State) Reply {
	if !ValidName(c.Name) || c.Policy.check(true) != nil {
		return refuse(ErrInvalidPolicy)
	}
	if _, redefined := s.policies[c.Name]; !redefined && len(s.policies) >= MaxPolicies {
		return refuse(ErrLimit)
	}
	policies := make(map[string]Policy, len(s.policies)+1)
	for name, p := range s.policies {
		policies[name] = p
	}
	policies[c.Name] = c.Policy
	s.policies = policies
	return Reply{}
}

func (c DeletePolicy) apply(s *State) Reply {
	if _, ok := s.policies[c.Name]; !ok {
		return Reply{}
	}
	policies := make(map[string]Policy, len(s.policies))
	for name, p := range s.policies {
		if name != c.Name {
			policies[name] = p
		}
	}
	s.policies = policies
	return Reply{}
}

func (c BeginMigration) apply(s *State) Reply {
	t := s.topic(c.Topic)
	switch {
	case t == nil:
		return refuse(ErrNoSuchTopic)
	case !t.migrating:
		s.change(t).migrating = true
	}
	return Reply{}
}

func (c EndMigration) apply(s *State) Reply {
	if t := s.topic(c.Topic); t != nil && t.migrating {
		s.change(t).migrating = false
	}
	return Reply{}
}

func (c ExtractTopic) apply(s *State) Reply {
	t := s.topic(c.Topic)
	if t == nil {
		return Reply{}
	}
	s.remove(t)
	return Reply{Export: t.export()}
}

func (c InsertTopic) apply(s *State) Reply {
	in, err := importTopic(c.Export)
	if err != nil {
		return refuse(err)
	}
	byName, byID := s.topic(in.rec.Name), s.topicByID(in.rec.ID)
	switch {
	case byName != byID:
		return refuse(ErrTopicExists) // another topic of this name, or this one under another
	case byName != nil && byName.revision >= in.revision:
		return Reply{}
	}
	in.adopt(s.own.Load())
	s.put(in)
	return Reply{}
}

// Export is the whole of a topic as bytes, as ExtractTopic answers it; nil for
// an unknown topic.
func (s *State) Export(name string) []byte {
	if t := s.topic(name); t != nil {
		return bytes.Clone(t.export())
	}
	return nil
}
