package cp_test

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"reflect"
	"slices"
	"testing"

	"github.com/ringfence/ringfence/cp"
	"github.com/ringfence/ringfence/fence"
	"pgregory.net/rapid"
)

// long multiplies the work of property tests when RINGFENCE_LONG is set.
func long(n int) int {
	if os.Getenv("RINGFENCE_LONG") != "" {
		return n * 100
	}
	return n
}

// dice draws a number below n. Rolled by rapid it can shrink what fails; rolled
// from a seed it is fair, so that histories grow deep.
type dice func(n int) int

func rapidDice(t *rapid.T) dice {
	return func(n int) int { return rapid.IntRange(0, n-1).Draw(t, "dice") }
}

func seededDice(seed uint64) dice { return rand.New(rand.NewPCG(seed, 0)).IntN }

func pick[T any](d dice, from ...T) T { return from[d(len(from))] }

// commands draws commands of which most are about something that exists, and
// some about nothing, so that every refusal is met.
type commands struct {
	dice
	s *cp.State
}

// chance is true once in n times.
func (g commands) chance(n int) bool { return g.dice(n) == n-1 }

// around is a number that is often v.
func (g commands) around(v uint64) uint64 { return v + uint64(pick(g.dice, 0, 0, 0, 0, 0, 1, 2, -1)) }

func (g commands) name() string {
	if g.chance(30) {
		return pick(g.dice, "none", "bad/name")
	}
	return pick(g.dice, "logs", "logs", "events")
}

func (g commands) topicID() fence.TopicID { return fence.TopicID{byte(g.dice(200))} }

func (g commands) rangeID() fence.RangeID {
	t := g.s.Topic(g.name())
	if t == nil || g.chance(40) {
		return fence.RangeID{Topic: g.topicID(), Seq: uint32(g.dice(4))}
	}
	if active := g.s.ActiveRanges(t.Name); len(active) > 0 && !g.chance(5) {
		return pick(g.dice, active...).ID
	}
	return fence.RangeID{Topic: t.ID, Seq: uint32(g.dice(int(t.NextRangeSeq) + 1))}
}

func (g commands) segmentID() fence.SegmentID {
	id := g.rangeID()
	for range 5 { // most ranges are empty
		if g.s.Range(id) == nil || g.s.Range(id).NextSequence > 0 {
			break
		}
		id = g.rangeID()
	}
	all := slices.Collect(g.s.Segments(id))
	if len(all) == 0 || g.chance(20) {
		return fence.SegmentID{Range: id, Seq: uint32(g.dice(4))}
	}
	if !g.chance(3) {
		return all[len(all)-1].ID
	}
	return pick(g.dice, all...).ID
}

func (g commands) nodes() (set []cp.NodeID) {
	for range g.dice(4) {
		set = append(set, pick[cp.NodeID](g.dice, "a", "b", "c", "d"))
	}
	return set
}

func (g commands) register() cp.Command {
	c := cp.RegisterSegment{
		ID: fence.SegmentID{Range: g.rangeID()}, Replicas: []cp.NodeID{"a", "b"},
		Salt: uint64(g.dice(1 << 30)), Writer: 1, At: int64(g.dice(1000)) - 1,
	}
	if r := g.s.Range(c.ID.Range); r != nil {
		c.Start, c.ID.Seq = r.NextOffset, r.NextSequence
	}
	switch g.dice(9) {
	case 0:
		c.Start = g.around(c.Start)
	case 1:
		c.ID.Seq = uint32(g.around(uint64(c.ID.Seq)))
	case 2:
		c.Replicas = g.nodes()
	case 3:
		c.ID.Seq = uint32(g.dice(int(c.ID.Seq) + 1)) // any earlier one
	}
	return c
}

func (g commands) position(id fence.RangeID) cp.Position {
	p := cp.Position{}
	sources := []fence.RangeID{id}
	if r := g.s.Range(id); r != nil {
		sources = append(sources, ancestors(g.s, r.ID)...)
	}
	for _, source := range sources {
		if g.chance(3) {
			continue
		}
		end := 3
		if r := g.s.Range(source); r != nil && r.NextOffset > 0 {
			end = int(r.NextOffset)
		}
		p[source] = uint64(g.dice(end + 1))
		if g.chance(50) {
			p[source] = uint64(end) + 1
		}
	}
	if g.chance(20) {
		p[g.rangeID()] = 0
	}
	return p
}

func (g commands) commit() cp.Command {
	c := cp.CommitOffset{
		Group: pick(g.dice, "g", "g", "g", "g", "h", "h", ""), Topic: g.name(),
		Reset: g.chance(8), Positions: map[fence.RangeID]cp.Position{},
	}
	c.Generation, _ = g.s.Generation(c.Group, c.Topic)
	c.Generation = g.around(c.Generation)
	for range g.dice(4) {
		id := g.rangeID()
		if t := g.s.Topic(c.Topic); t != nil && id.Topic != t.ID && !g.chance(20) {
			continue
		}
		c.Positions[id] = g.position(id)
	}
	return c
}

func (g commands) commitRanges() cp.Command {
	c := cp.CommitRanges{Group: pick(g.dice, "g", "g", "g", "h", ""), Topic: g.name(), Sources: cp.Position{}}
	c.Generation, _ = g.s.Generation(c.Group, c.Topic)
	c.Generation = g.around(c.Generation)
	for range g.dice(4) {
		id := g.rangeID()
		r := g.s.Range(id)
		if r == nil && !g.chance(20) {
			continue
		}
		end := uint64(3)
		if r != nil && r.NextOffset > 0 {
			end = r.NextOffset
		}
		c.Sources[id] = uint64(g.dice(int(end) + 1))
		if g.chance(4) {
			c.Sources[id] = end
		}
	}
	return c
}

func (g commands) policy() cp.Policy {
	bound := func() cp.Bound {
		return pick(g.dice, cp.Bound{}, cp.Unlimited(), cp.Limit(int64(g.dice(1000))+cp.MinSegmentAge), cp.Limit(int64(g.dice(10))-1))
	}
	return cp.Policy{MaxAge: bound(), MaxBytes: bound(), SegmentMaxAge: bound(), SegmentMaxBytes: bound()}
}

func (g commands) merge() cp.Command {
	c := cp.MergeRanges{A: g.rangeID(), B: g.rangeID()}
	if r := g.s.Range(c.A); r != nil && !g.chance(5) {
		for o := range g.s.Ranges(g.s.TopicByID(c.A.Topic).Name) {
			if o.Phase == cp.Active && o.Start == r.Start^(r.End-r.Start) {
				c.B = o.ID
			}
		}
	}
	return c
}

// kinds says how often each command is drawn.
var kinds = func() (all []int) {
	for kind, n := range []int{6, 14, 14, 12, 8, 20, 4, 2, 2, 1, 1, 1, 1, 1, 4, 1, 1, 1, 14, 5} {
		for range n {
			all = append(all, kind)
		}
	}
	return all
}()

func (g commands) command() cp.Command {
	switch pick(g.dice, kinds...) {
	case 0:
		return cp.CreateTopic{Name: g.name(), Bits: pick[uint8](g.dice, 1, 1, 2, 2, 3, 8, 32, 0, 33), ID: g.topicID(), At: 5}
	case 1:
		return g.register()
	case 2:
		return cp.SealSegment{ID: g.segmentID(), Length: uint64(g.dice(6)), Bytes: 100, At: int64(g.dice(1000))}
	case 3:
		return g.commit()
	case 4:
		return cp.SplitRange{Range: g.rangeID()}
	case 5:
		return g.merge()
	case 6:
		return cp.DeleteSegment{ID: g.segmentID()}
	case 7:
		return cp.SetSegmentReplicas{ID: g.segmentID(), Replicas: g.nodes()}
	case 8:
		return cp.FenceGroup{Group: "g", Topic: g.name(), Generation: uint64(g.dice(5))}
	case 9:
		return cp.DeleteGroup{Group: "g", Topic: g.name()}
	case 10:
		return cp.DefinePolicy{Name: pick(g.dice, "p", "q"), Policy: g.policy()}
	case 11:
		return cp.DeletePolicy{Name: "p"}
	case 12:
		return cp.BindTopicPolicy{Topic: g.name(), Policy: pick(g.dice, "", "p", "q")}
	case 13:
		return cp.BeginMigration{Topic: g.name()}
	case 14:
		return cp.EndMigration{Topic: g.name()}
	case 15:
		if g.chance(4) {
			return cp.ExtractTopic{Topic: g.name()}
		}
		return cp.SealTopic{Name: "events"}
	case 16:
		c := cp.DeleteTopic{Name: g.name()}
		if g.chance(2) {
			c.ID = g.topicID()
		}
		return c
	case 18:
		return g.userCommand()
	case 19:
		return g.commitRanges()
	}
	return cp.EndMigration{Topic: "logs"}
}

// compare says where the state and the model differ.
func compare(s *cp.State, m *model) error {
	if s.Len() != len(m.topics) {
		return fmt.Errorf("%d topics, want %d", s.Len(), len(m.topics))
	}
	for _, t := range m.topics {
		if got := s.Topic(t.Name); !reflect.DeepEqual(got, t) || s.TopicByID(t.ID) != got {
			return fmt.Errorf("topic is %+v, want %+v", got, t)
		}
		if s.Migrating(t.Name) != m.moving[t.Name] {
			return fmt.Errorf("topic %q moves: %v", t.Name, m.moving[t.Name])
		}
		if err := compareRanges(s, m, t); err != nil {
			return err
		}
		if err := compareGroups(s, m, t); err != nil {
			return err
		}
	}
	policies := maps.Collect(s.Policies())
	if !maps.Equal(policies, m.policies) {
		return fmt.Errorf("policies are %v, want %v", policies, m.policies)
	}
	return compareUsers(s, m)
}

func compareRanges(s *cp.State, m *model, t *cp.Topic) error {
	var all, active []*cp.Range
	for _, r := range m.ranges {
		if r.ID.Topic != t.ID {
			continue
		}
		all = append(all, r)
		if r.Phase == cp.Active {
			active = append(active, r)
		}
		if got := s.Range(r.ID); !reflect.DeepEqual(got, r) {
			return fmt.Errorf("range is %+v, want %+v", got, r)
		}
		line := m.ancestors(r.ID)
		if got := ancestors(s, r.ID); !slices.Equal(got, line) {
			return fmt.Errorf("range %v comes from %v, want %v", r.ID, got, line)
		}
		for _, a := range m.ranges {
			if got := s.IsAncestor(a.ID, r.ID); got != slices.Contains(line, a.ID) {
				return fmt.Errorf("range %v comes from %v: %v", r.ID, a.ID, got)
			}
		}
		segments := m.segmentsOf(r.ID)
		if got := slices.Collect(s.Segments(r.ID)); !reflect.DeepEqual(got, segments) {
			return fmt.Errorf("range %v has segments %+v, want %+v", r.ID, got, segments)
		}
		if got := s.Head(r.ID); !reflect.DeepEqual(got, m.head(r.ID)) {
			return fmt.Errorf("range %v has head %+v, want %+v", r.ID, got, m.head(r.ID))
		}
		for _, seg := range segments {
			if got := s.Segment(seg.ID); !reflect.DeepEqual(got, seg) {
				return fmt.Errorf("segment is %+v, want %+v", got, seg)
			}
		}
	}
	slices.SortFunc(active, func(a, b *cp.Range) int {
		if a.Start < b.Start {
			return -1
		}
		return 1
	})
	if got := s.ActiveRanges(t.Name); len(got) != len(active) || len(got) > 0 && !reflect.DeepEqual(got, active) {
		return fmt.Errorf("topic %q has %d active ranges, want %d", t.Name, len(got), len(active))
	}
	if got := slices.Collect(s.Ranges(t.Name)); !reflect.DeepEqual(got, all) {
		return fmt.Errorf("topic %q has %d ranges, want %d", t.Name, len(got), len(all))
	}
	return nil
}

func compareGroups(s *cp.State, m *model, t *cp.Topic) error {
	n := 0
	for k, g := range m.groups {
		if k.topic != t.Name {
			continue
		}
		n++
		if got, ok := s.Generation(k.group, k.topic); !ok || got != g.generation {
			return fmt.Errorf("group %v has generation %d, %v, want %d", k, got, ok, g.generation)
		}
		if got := s.Positions(k.group, k.topic); !maps.EqualFunc(got, g.positions, maps.Equal[cp.Position, cp.Position]) {
			return fmt.Errorf("group %v stands at %v, want %v", k, got, g.positions)
		}
		if got, want := s.Unread(k.group, k.topic), m.unread(g, t.ID); !maps.Equal(got, want) {
			return fmt.Errorf("group %v reads next %v, want %v", k, got, want)
		}
		for _, r := range m.ranges {
			if r.ID.Topic != t.ID {
				continue
			}
			want := m.position(g, r.ID)
			if got, ok := s.Position(k.group, r.ID); ok != (want != nil) || !maps.Equal(got, want) {
				return fmt.Errorf("group %v goes on in %v at %v, %v, want %v", k, r.ID, got, ok, want)
			}
		}
	}
	if got := len(slices.Collect(s.Groups(t.Name))); got != n {
		return fmt.Errorf("topic %q has %d groups, want %d", t.Name, got, n)
	}
	return nil
}

type failer interface {
	fatal
	Fatalf(format string, args ...any)
}

// history applies drawn commands to a state and the model, and counts what they
// were answered with.
func history(t failer, d dice, commandCount int, answers map[error]int) {
	t.Helper()
	s, m := cp.NewState(), newModel()
	g := commands{dice: d, s: s}
	before := snapshot(t, s)
	for range commandCount {
		cmd := g.command()
		reply, want := s.Apply(cmd), m.apply(cmd)
		if !errors.Is(reply.Err, want) || (reply.Err == nil) != (want == nil) {
			t.Fatalf("%T%+v: %v, want %v", cmd, cmd, reply.Err, want)
		}
		answers[want]++
		after := snapshot(t, s)
		if want != nil && !bytes.Equal(before, after) {
			t.Fatalf("%T%+v was refused and changed the state", cmd, cmd)
		}
		if before = after; want != nil {
			continue
		}
		if err := s.Check(); err != nil {
			t.Fatalf("%T%+v: %v", cmd, cmd, err)
		}
		if err := compare(s, m); err != nil {
			t.Fatalf("%T%+v: %v", cmd, cmd, err)
		}
	}
}

// Any history of commands gives the replies and the state that the plain model
// gives, every invariant holds after each command, and a refusal changes
// nothing.
func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		history(t, rapidDice(t), rapid.IntRange(1, 60).Draw(t, "commands"), map[error]int{})
	})
}

// The same with histories from seeds, long enough to meet every answer.
func TestModelSeeds(t *testing.T) {
	answers := map[error]int{}
	for seed := range uint64(long(40)) {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) { history(t, seededDice(seed), 400, answers) })
	}
	for _, err := range []error{
		nil, cp.ErrMigrating, cp.ErrInvalidName, cp.ErrTopicExists, cp.ErrInvalidBits, cp.ErrInvalidTopicID, cp.ErrNoSuchTopic,
		cp.ErrNoSuchRange, cp.ErrNoSuchSegment, cp.ErrRangeSealed, cp.ErrSegmentActive, cp.ErrActiveSegment, cp.ErrSegmentOverlap,
		cp.ErrSequenceUsed, cp.ErrCannotSplit, cp.ErrDifferentTopic, cp.ErrNotBuddies, cp.ErrAlreadySealed, cp.ErrInvalidReplicas,
		cp.ErrInvalidGroup, cp.ErrStaleGeneration, cp.ErrNotASource, cp.ErrPastEnd, cp.ErrInvalidPolicy, cp.ErrNoSuchGroup,
		cp.ErrInvalidSegment, cp.ErrInvalidUser, cp.ErrInvalidHash, cp.ErrInvalidGrant, cp.ErrUserExists, cp.ErrNoSuchUser,
		cp.ErrInvalidToken, cp.ErrTokenExists,
	} {
		if answers[err] == 0 {
			t.Errorf("no command was answered with %v", err)
		}
	}
	t.Logf("answers: %v", answers)
}
