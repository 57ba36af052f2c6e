package cp_test

import (
	"math"
	"slices"
	"testing"

	"github.com/ringfence/ringfence/cp"
	"pgregory.net/rapid"
)

const day = 86_400_000

// kept is a topic with sealed segments of these (sealed at, bytes), and a head
// opened at 5000.
func kept(t *testing.T, segments ...[2]int64) machine {
	m := newMachine(t)
	m.topic(8)
	for i, s := range segments {
		m.do(m.register(0, uint32(i), uint64(i)), nil)
		m.do(cp.SealSegment{ID: segID(0, uint32(i)), Length: 1, Bytes: uint64(s[1]), At: s[0]}, nil)
	}
	head := m.register(0, uint32(len(segments)), uint64(len(segments)))
	head.At = 5000
	m.do(head, nil)
	return m
}

func (m machine) expires(what string, now int64, r cp.Retention, want ...uint32) {
	m.Helper()
	var got []uint32
	for _, s := range cp.Expired(m.State, now, r) {
		got = append(got, s.ID.Seq)
	}
	if !slices.Equal(got, want) {
		m.Errorf("%s: %v expire, want %v", what, got, want)
	}
}

func defaults(p cp.Policy) cp.Retention { return cp.Retention{Defaults: p} }

func TestExpired(t *testing.T) {
	m := kept(t, [2]int64{1000, 10}, [2]int64{2000, 20}, [2]int64{3000, 30})
	m.expires("no rule", math.MaxInt64, defaults(cp.Policy{}))
	m.expires("rules off", math.MaxInt64, defaults(cp.Policy{MaxAge: cp.Unlimited(), MaxBytes: cp.Unlimited()}))
	age := func(n int64) cp.Retention { return defaults(cp.Policy{MaxAge: cp.Limit(n)}) }
	m.expires("at the age", 2000, age(1000))
	m.expires("over the age", 2001, age(1000), 0)
	m.expires("age 0", 3001, age(0), 0, 1, 2)
	m.expires("age 0, same moment", 3000, age(0), 0, 1)
	size := func(n int64) cp.Retention { return defaults(cp.Policy{MaxBytes: cp.Limit(n)}) }
	m.expires("all fit", 0, size(60))
	m.expires("one over", 0, size(59), 0)
	m.expires("two over", 0, size(49), 0, 1)
	m.expires("the last fits", 0, size(30), 0, 1)
	m.expires("nothing fits", 0, size(29), 0, 1, 2)
	m.expires("no budget", 0, size(0), 0, 1, 2)
	m.expires("either rule", 2501, defaults(cp.Policy{MaxAge: cp.Limit(1500), MaxBytes: cp.Limit(49)}), 0, 1)

	huge := kept(t, [2]int64{1000, -1}, [2]int64{1000, -1}) // 2^64-1 bytes each
	huge.expires("sums do not wrap", 0, size(100), 0, 1)
	huge.expires("nor at the largest budget", 0, size(math.MaxInt64), 0, 1)
}

// M01: a time of 0 or before is unknown, not 1970: nothing expires by it. Nor
// does anything expire while the clock stands before its seal.
func TestM01_UnknownTimes(t *testing.T) {
	m := kept(t, [2]int64{0, 1}, [2]int64{-5, 1}, [2]int64{math.MinInt64, 1}, [2]int64{1000, 1}, [2]int64{math.MaxInt64, 1})
	r := defaults(cp.Policy{MaxAge: cp.Limit(10)})
	m.expires("only the known one", 2000, r, 3)
	m.expires("at the end of time", math.MaxInt64, r, 3)
	m.expires("the clock stepped back", 500, r)
	m.expires("a clock before 1970", math.MinInt64, r)
}

// M05: a quiet topic rolls by age, so that what is in it can expire; its
// successor opens where it ended. An idle one rolls once.
func TestM05_QuietTopicRolls(t *testing.T) {
	m := newMachine(t)
	m.topic(8)
	r := defaults(cp.Policy{SegmentMaxAge: cp.Limit(cp.MinSegmentAge), MaxAge: cp.Limit(day)})
	due := func(now int64) int { return len(cp.DueForRoll(m.State, now, r)) }
	open := m.register(0, 0, 0)
	open.At = 1_000_000
	m.do(open, nil)
	if due(1_000_000+cp.MinSegmentAge-1) != 0 || due(1_000_000+cp.MinSegmentAge) != 1 {
		t.Fatal("a head rolls exactly at its age")
	}
	if due(0) != 0 || due(math.MinInt64) != 0 {
		t.Fatal("a head that opens in the future is due")
	}
	m.do(cp.SealSegment{ID: segID(0, 0), Length: 1, Bytes: 100, At: 2_000_000}, nil)
	if due(math.MaxInt64) != 0 {
		t.Fatal("a topic without a head is due")
	}
	if got := cp.Expired(m.State, 2_000_000+day+1, r); len(got) != 1 {
		t.Fatalf("%d segments expire", len(got))
	}
	m.do(cp.DeleteSegment{ID: segID(0, 0)}, nil)
	unknown := m.register(0, 1, 1)
	unknown.At = 0
	m.do(unknown, nil)
	if due(math.MinInt64) != 1 {
		t.Fatal("a head of unknown age is not due at once")
	}
	r.Defaults.SegmentMaxAge = cp.Bound{}
	if due(math.MaxInt64) != 0 {
		t.Fatal("a head is due without a rule")
	}
}

// A policy overrides the defaults field by field: set, off and inherited are
// three things. A name that nobody defined holds everything but the backstop.
func TestEffectivePolicy(t *testing.T) {
	m := kept(t, [2]int64{1000, 10}, [2]int64{2000, 20})
	r := cp.Retention{
		Defaults: cp.Policy{MaxAge: cp.Limit(1), MaxBytes: cp.Limit(15), SegmentMaxAge: cp.Limit(cp.MinSegmentAge), SpreadBy: cp.SpreadOver("rack")},
		Lookup:   m.Policy,
	}
	m.expires("unbound", 99_999, r, 0, 1)
	m.do(cp.BindTopicPolicy{Topic: "logs", Policy: "p"}, nil)
	if got := r.Unresolved(m.State); !slices.Equal(got, []string{"logs"}) {
		t.Errorf("unresolved topics are %v", got)
	}
	m.expires("undefined", math.MaxInt64, r)
	if n := len(cp.DueForRoll(m.State, math.MaxInt64, r)); n != 0 {
		t.Errorf("%d heads of an undefined policy are due", n)
	}
	if p, ok := r.Effective(m.Topic("logs")); ok || p.SpreadBy != r.Defaults.SpreadBy {
		t.Errorf("an undefined policy is %+v, %v: placement keeps the default", p, ok)
	}
	r.Backstop = cp.Limit(500)
	m.expires("undefined, old", 1501, r, 0)
	r.Backstop = cp.Bound{}

	m.do(cp.DefinePolicy{Name: "p", Policy: cp.Policy{MaxAge: cp.Unlimited()}}, nil)
	m.expires("age off, size inherited", math.MaxInt64, r, 0, 1)
	m.do(cp.DefinePolicy{Name: "p", Policy: cp.Policy{MaxAge: cp.Limit(0), MaxBytes: cp.Unlimited()}}, nil)
	m.expires("age 0, size off", 1001, r, 0)
	m.do(cp.DefinePolicy{Name: "p", Policy: cp.Policy{MaxAge: cp.Unlimited(), MaxBytes: cp.Unlimited(), SegmentMaxAge: cp.Unlimited(), SpreadBy: cp.Spread{Setting: cp.Off}}}, nil)
	m.expires("everything off", math.MaxInt64, r)
	if p, ok := r.Effective(m.Topic("logs")); !ok || p.SpreadBy.Setting != cp.Off || len(r.Unresolved(m.State)) != 0 {
		t.Errorf("a policy that turns spreading off is %+v, %v", p, ok)
	}
	if n := len(cp.DueForRoll(m.State, math.MaxInt64, r)); n != 0 {
		t.Errorf("%d heads are due with the roll off", n)
	}
	r.Lookup = nil
	m.expires("nothing to look it up in", math.MaxInt64, r)
}

// M06: the decision is one function of the metadata and the time that comes with
// it, and time alone never brings a segment back.
func TestM06_OneDecision(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := cp.NewState()
		s.Apply(cp.CreateTopic{Name: "logs", Bits: 8, ID: id(1)})
		var all []*cp.Segment
		for i := range rapid.IntRange(0, 8).Draw(t, "segments") {
			id := segID(0, uint32(i))
			s.Apply(cp.RegisterSegment{ID: id, Replicas: []cp.NodeID{"a"}, Start: uint64(i)})
			s.Apply(cp.SealSegment{ID: id, Length: 1, Bytes: rapid.Uint64Range(0, 50).Draw(t, "bytes"), At: rapid.Int64Range(0, 100).Draw(t, "at")})
			all = append(all, s.Segment(id))
		}
		p := cp.Policy{MaxAge: cp.Limit(rapid.Int64Range(0, 100).Draw(t, "age")), MaxBytes: cp.Limit(rapid.Int64Range(0, 200).Draw(t, "size"))}
		now := rapid.Int64Range(0, 300).Draw(t, "now")
		got := cp.Expired(s, now, defaults(p))

		// The rule as it is written down: add up, then take the oldest away.
		total := uint64(0)
		for _, seg := range all {
			total += seg.Bytes
		}
		var want []*cp.Segment
		for _, seg := range all {
			old := seg.SealedAt > 0 && now-seg.SealedAt > p.MaxAge.N
			large := total > uint64(p.MaxBytes.N)
			if large {
				total -= seg.Bytes
			}
			if old || large {
				want = append(want, seg)
			}
		}
		if !slices.Equal(got, want) {
			t.Fatalf("%d expire, want %d", len(got), len(want))
		}
		later := cp.Expired(s, now+rapid.Int64Range(0, 100).Draw(t, "later"), defaults(p))
		for _, seg := range got {
			if !slices.Contains(later, seg) {
				t.Fatalf("%v expired and came back", seg.ID)
			}
		}
	})
}
