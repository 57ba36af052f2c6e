package server

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/ringfence/ringfence/engine/api"
	"github.com/ringfence/ringfence/engine/wire"
)

// groups is the coordinator of the groups with members, and what it asks of the engine.
type groups struct {
	e    Engine
	base uint64 // generations of this start of the engine are higher, those of others before lower

	mu sync.Mutex // guards co; innermost but for what the engine's look at its metadata takes
	co *coordinator
}

func newGroups(e Engine, o *Options) *groups {
	base := e.Incarnation() << 32
	return &groups{e: e, base: base, co: newCoordinator(base, o.Session, o.MaxGroups, o.MaxMembers)}
}

// refresh brings what a group may read up to date. mu is held, so that nobody brings an
// older answer later.
func (s *groups) refresh(now time.Time, key groupKey) error {
	if s.co.groups[key] == nil {
		return nil
	}
	identity, unread, err := s.e.Unread(key.topic, key.name)
	switch {
	case errors.Is(err, api.ErrNoSuchTopic):
		s.co.drop(s.co.groups[key])
		return err
	case err == nil:
		s.co.update(now, key, identity, unread)
	}
	return nil // what could not be told now is told by the next call
}

// topicChanged brings the groups of a topic up to date after its ranges have changed.
func (s *groups) topicChanged(topic string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var keys []groupKey
	for key := range s.co.groups {
		if key.topic == topic {
			keys = append(keys, key)
		}
	}
	for _, key := range keys {
		_ = s.refresh(time.Now(), key) // a topic that is gone has no groups
	}
}

// join makes a member. A group that has none is fenced first, so that what a server
// before this one may still be told to commit is refused.
func (s *groups) join(ctx context.Context, m *wire.JoinGroup) (assignment, error) {
	key := groupKey{m.Topic, m.Group}
	for fenced := ""; ; {
		identity, a, err := s.tryJoin(key, m, fenced)
		if err != nil || a.generation != 0 {
			return a, err
		}
		if err := s.e.FenceGroup(ctx, m.Topic, m.Group, s.base); err != nil {
			return assignment{}, err
		}
		fenced = identity
	}
}

// tryJoin joins a group of a topic that was fenced, or has members already. Otherwise
// there is no assignment.
func (s *groups) tryJoin(key groupKey, m *wire.JoinGroup, fenced string) (identity string, a assignment, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	identity, unread, err := s.e.Unread(key.topic, key.name)
	if err != nil {
		return "", a, err
	}
	if g := s.co.groups[key]; identity != fenced && (g == nil || g.identity != identity) {
		return identity, a, nil
	}
	a, err = s.co.join(time.Now(), key, identity, m.Member, m.Instance, unread)
	return identity, a, err
}

// heartbeat answers a member's assignment, with a wait for another one than it has
// adopted until ctx ends.
func (s *groups) heartbeat(ctx context.Context, m *wire.Heartbeat) (assignment, error) {
	key := groupKey{m.Topic, m.Group}
	wait := min(time.Duration(m.WaitMs)*time.Millisecond, maxWait, s.co.session/2)
	over := time.Now().Add(wait)
	for first := true; ; first = false {
		a, changed, due, err := s.beat(key, m, first)
		rest := time.Until(over)
		if err != nil || a.generation != m.Generation || rest <= 0 || ctx.Err() != nil {
			return a, err
		}
		next := time.NewTimer(min(rest, max(time.Until(due), 0)))
		select {
		case <-changed:
		case <-next.C:
		case <-ctx.Done():
		}
		next.Stop()
	}
}

// beat is one look at a member's assignment, with what changes it. Only the first of a
// request says that the member is there.
func (s *groups) beat(key groupKey, m *wire.Heartbeat, first bool) (a assignment, changed <-chan struct{}, due time.Time, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if err := s.refresh(now, key); err != nil {
		return a, nil, due, err
	}
	if first {
		a, err = s.co.heartbeat(now, key, m.Member, m.Generation)
	} else {
		a, err = s.co.look(now, key, m.Member, m.Generation)
	}
	if err == nil {
		g := s.co.groups[key]
		changed, due = g.changed, s.co.due(g)
	}
	return a, changed, due, err
}

func (s *groups) leave(m *wire.LeaveGroup) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.co.leave(time.Now(), groupKey{m.Topic, m.Group}, m.Member, m.Generation)
}

// holds refuses to open a consumer of ranges that are not a member's.
func (s *groups) holds(m *wire.OpenConsumer) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, err := s.co.holds(time.Now(), groupKey{m.Topic, m.Group}, m.Member, m.Generation, m.Ranges)
	return err
}

// commit stores a member's place in its ranges. They stay the member's until it is done.
func (s *groups) commit(ctx context.Context, m *wire.Commit) error {
	key := groupKey{m.Topic, m.Group}
	if m.Reset {
		return refusal(wire.CodeInvalidArgument, "topic %q: group %q is reset while it has no members", m.Topic, m.Group)
	}
	ranges, err := rangesOf(m.Cursor)
	if err != nil {
		return err
	}
	s.mu.Lock()
	p, err := s.co.begin(time.Now(), key, m.Member, m.Generation, ranges)
	s.mu.Unlock()
	if err != nil {
		return err
	}
	err = s.e.CommitRanges(ctx, m.Topic, m.Group, m.Cursor, s.base)
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if err == nil {
		err = s.refresh(now, key)
	}
	s.co.end(now, p)
	return err
}

// rangesOf lists the ranges that a cursor names.
func rangesOf(cursor string) (ranges []uint32, err error) {
	topic, err := api.TopicOfCursor(cursor)
	if err != nil {
		return nil, err
	}
	pos, _, err := api.DecodeCursor(topic, cursor)
	for id := range pos {
		ranges = append(ranges, id.Seq)
	}
	slices.Sort(ranges)
	return ranges, err
}

// idle refuses what is not done to a group while it has members.
func (s *groups) idle(topic, group string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := groupKey{topic, group}
	now := time.Now()
	if err := s.refresh(now, key); err != nil {
		return err
	}
	g := s.co.groups[key]
	if g == nil || len(g.members) == 0 {
		return nil
	}
	return refusal(wire.CodeGroupInUse, "topic %q: group %q has members (%d): stop them first, or wait %s after they were killed",
		topic, group, len(g.members), s.co.session)
}

// stats adds what is known of the groups with members.
func (s *groups) stats(to *Stats) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.co.sweep(time.Now())
	to.Groups, to.Generations, to.HandOvers = len(s.co.groups), int64(s.co.last-s.base), s.co.handOvers
	for _, g := range s.co.groups {
		to.Members += len(g.members)
	}
}

// members lists a group's members by name; without any its generation is 0.
func (s *groups) members(topic, group string) (generation uint64, names []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := groupKey{topic, group}
	_ = s.refresh(time.Now(), key) // a topic that is gone has none
	g := s.co.groups[key]
	if g == nil {
		return 0, nil
	}
	return g.generation, slices.Sorted(maps.Keys(g.members))
}

// name adds who reads them to a group's ranges.
func (s *groups) name(topic string, info *api.GroupInfo) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := groupKey{topic, info.Name}
	_ = s.refresh(time.Now(), key) // a topic that is gone has none
	g := s.co.groups[key]
	if g == nil {
		return
	}
	for i := range info.Ranges {
		if r := g.grants[info.Ranges[i].Range]; r != nil && !r.over {
			info.Ranges[i].Member = r.holder
		}
	}
}
