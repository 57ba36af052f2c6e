package cp_test

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/ringfence/ringfence/cp"
	"github.com/ringfence/ringfence/fence"
)

func TestCreateTopic(t *testing.T) {
	m := newMachine(t)
	r := m.do(cp.CreateTopic{Name: "logs", Bits: 8, ID: id(1), At: 1000}, nil)
	if r.Range != rangeID(0) {
		t.Fatalf("root is %v", r.Range)
	}
	root := m.Range(r.Range)
	if span(root) != "[0,256)" || root.Phase != cp.Active || len(root.From) != 0 {
		t.Fatalf("root is %+v", root)
	}
	if r := m.do(cp.CreateTopic{Name: "logs", Bits: 8, ID: id(2)}, cp.ErrTopicExists); r.Range != rangeID(0) {
		t.Fatalf("the topic in the way has root %v", r.Range)
	}
	m.do(cp.CreateTopic{Name: "logs", Bits: 99, ID: id(2)}, cp.ErrTopicExists) // before the bits
	m.do(cp.CreateTopic{Name: "a/b", Bits: 99, ID: id(2)}, cp.ErrInvalidName)  // before everything
	m.do(cp.CreateTopic{Name: "x", Bits: 0, ID: id(2)}, cp.ErrInvalidBits)
	m.do(cp.CreateTopic{Name: "x", Bits: 33}, cp.ErrInvalidBits)
	m.do(cp.CreateTopic{Name: "x", Bits: 32}, cp.ErrInvalidTopicID)
	m.do(cp.CreateTopic{Name: "x", Bits: 32, ID: id(1)}, cp.ErrInvalidTopicID)
	for _, name := range []string{"", ".", "..", "a/b", "a b", "a\x00", "é", strings.Repeat("a", 256)} {
		m.do(cp.CreateTopic{Name: name, Bits: 8, ID: id(2)}, cp.ErrInvalidName)
	}
	for i, name := range []string{"A-1_.z", "...", strings.Repeat("a", 255)} {
		m.do(cp.CreateTopic{Name: name, Bits: 1, ID: id(byte(10 + i))}, nil)
	}
	if m.Len() != 4 || m.Topic("logs").ID != id(1) || m.TopicByID(id(1)).Name != "logs" || m.Topic("no") != nil {
		t.Fatal("topics cannot be found")
	}
}

func TestSplitAndMerge(t *testing.T) {
	m := newMachine(t)
	m.topic(8)
	r := m.do(cp.SplitRange{Range: rangeID(0)}, nil)
	if r.Range != rangeID(1) || r.Range2 != rangeID(2) || m.Topic("logs").NextRangeSeq != 3 {
		t.Fatalf("split answers %+v", r)
	}
	left, right := m.Range(rangeID(1)), m.Range(rangeID(2))
	if span(left) != "[0,128)" || span(right) != "[128,256)" || m.Range(rangeID(0)).Phase != cp.Sealed {
		t.Fatalf("halves are %s and %s", span(left), span(right))
	}
	if !slices.Equal(seqs(ancestors(m.State, left.ID)), []uint32{0}) || !slices.Equal(seqs(m.Range(rangeID(0)).Children), []uint32{1, 2}) {
		t.Fatalf("halves have parents %v", ancestors(m.State, left.ID))
	}
	m.do(cp.SplitRange{Range: rangeID(1)}, nil)
	if r := m.Range(rangeID(3)); span(r) != "[0,64)" || !slices.Equal(seqs(ancestors(m.State, r.ID)), []uint32{0, 1}) {
		t.Fatalf("quarter is %+v", r)
	}
	m.do(cp.MergeRanges{A: rangeID(4), B: rangeID(3)}, nil)
	if r := m.Range(rangeID(5)); span(r) != "[0,128)" || !slices.Equal(seqs(ancestors(m.State, r.ID)), []uint32{0, 1, 3, 4}) || len(r.From) != 2 {
		t.Fatalf("sum is %+v", r)
	}
	var active []string
	for _, r := range m.ActiveRanges("logs") {
		active = append(active, span(r))
	}
	if got := strings.Join(active, " "); got != "[0,128) [128,256)" {
		t.Fatalf("active ranges are %s", got)
	}
	if n := len(slices.Collect(m.Ranges("logs"))); n != 6 {
		t.Fatalf("%d ranges in all", n)
	}
}

func TestSplitRefusals(t *testing.T) {
	m := newMachine(t)
	m.topic(1)
	m.do(cp.SplitRange{Range: rangeID(9)}, cp.ErrNoSuchRange)
	m.do(cp.SplitRange{Range: fence.RangeID{Topic: id(9)}}, cp.ErrNoSuchRange)
	m.do(m.register(0, 0, 0), nil)
	m.do(cp.SplitRange{Range: rangeID(0)}, cp.ErrActiveSegment)
	m.do(cp.SealSegment{ID: segID(0, 0), Length: 3}, nil)
	m.do(cp.SplitRange{Range: rangeID(0)}, nil)
	m.do(cp.SplitRange{Range: rangeID(0)}, cp.ErrRangeSealed)
	m.do(m.register(1, 0, 0), nil)
	m.do(cp.SplitRange{Range: rangeID(1)}, cp.ErrActiveSegment) // before the width
	m.do(cp.SplitRange{Range: rangeID(2)}, cp.ErrCannotSplit)
}

func TestMergeRefusals(t *testing.T) {
	m := newMachine(t)
	m.topic(8)
	m.do(cp.CreateTopic{Name: "other", Bits: 8, ID: id(2)}, nil)
	other := fence.RangeID{Topic: id(2)}
	m.do(cp.SplitRange{Range: rangeID(0)}, nil) // 1 2
	m.do(cp.SplitRange{Range: rangeID(1)}, nil) // 3 4
	m.do(cp.SplitRange{Range: rangeID(2)}, nil) // 5 6
	m.do(cp.MergeRanges{A: rangeID(99), B: rangeID(0)}, cp.ErrNoSuchRange)
	m.do(cp.MergeRanges{A: rangeID(0), B: rangeID(99)}, cp.ErrRangeSealed) // A is looked at first
	m.do(cp.MergeRanges{A: rangeID(3), B: rangeID(99)}, cp.ErrNoSuchRange)
	m.do(cp.MergeRanges{A: rangeID(3), B: rangeID(0)}, cp.ErrRangeSealed)
	m.do(cp.MergeRanges{A: rangeID(4), B: rangeID(5)}, cp.ErrNotBuddies) // [64,128) and [128,192)
	m.do(cp.MergeRanges{A: rangeID(3), B: rangeID(3)}, cp.ErrNotBuddies)
	m.do(cp.MergeRanges{A: rangeID(3), B: other}, cp.ErrDifferentTopic)
	m.do(m.register(3, 0, 0), nil)
	m.do(cp.MergeRanges{A: rangeID(3), B: other}, cp.ErrActiveSegment) // before the topic
	m.do(cp.MergeRanges{A: rangeID(4), B: rangeID(3)}, cp.ErrActiveSegment)
	m.do(cp.SealSegment{ID: segID(3, 0), Length: 1}, nil)
	m.do(cp.SplitRange{Range: rangeID(5)}, nil)                          // 7 8
	m.do(cp.MergeRanges{A: rangeID(7), B: rangeID(6)}, cp.ErrNotBuddies) // sizes differ
	m.do(cp.MergeRanges{A: rangeID(3), B: rangeID(4)}, nil)
}

// At most one write head, exactly where the last one ended, under a number that
// was never used: also after retention emptied the range.
func TestRegisterSegment(t *testing.T) {
	m := newMachine(t)
	m.topic(8)
	m.do(m.register(7, 0, 0), cp.ErrNoSuchRange)
	m.do(m.register(0, 0, 1), cp.ErrSegmentOverlap) // the first one starts at 0
	first := m.register(0, 0, 0)
	m.do(first, nil)
	first.Replicas[0] = "x" // the caller goes on using its slice
	if h := m.Head(rangeID(0)); h.Replicas[0] != "a" || h.ID != segID(0, 0) || h.Salt != 5 || h.Writer != 6 || h.OpenedAt != 2000 || h.Phase != cp.Active {
		t.Fatalf("head is %+v", h)
	}
	m.do(m.register(0, 0, 0), cp.ErrSegmentExists) // before the head it is
	m.do(m.register(0, 1, 0), cp.ErrActiveSegment)
	m.do(cp.SealSegment{ID: segID(0, 0), Length: 10, Bytes: 100, At: 3000}, nil)
	m.do(m.register(0, 0, 10), cp.ErrSegmentExists)
	for _, start := range []uint64{0, 9, 11} {
		if r := m.do(m.register(0, 1, start), cp.ErrSegmentOverlap); r.NextOffset != 10 || r.NextSequence != 1 {
			t.Fatalf("refusal says %+v", r)
		}
	}
	for _, set := range [][]cp.NodeID{nil, {""}, {"a", "a"}, make([]cp.NodeID, 65)} {
		c := m.register(0, 1, 10)
		c.Replicas = set
		m.do(c, cp.ErrInvalidReplicas)
	}
	m.do(m.register(0, math.MaxUint32, 10), cp.ErrInvalidSegment)
	m.do(m.register(0, 4, 10), nil) // numbers may skip
	m.do(cp.SealSegment{ID: segID(0, 4), Length: 0}, nil)
	m.do(m.register(0, 3, 10), cp.ErrSequenceUsed)

	m.do(cp.DeleteSegment{ID: segID(0, 4)}, nil)
	m.do(cp.DeleteSegment{ID: segID(0, 0)}, nil)
	if n := len(slices.Collect(m.Segments(rangeID(0)))); n != 0 {
		t.Fatalf("%d segments after all were deleted", n)
	}
	m.do(m.register(0, 0, 0), cp.ErrSegmentOverlap)
	m.do(m.register(0, 0, 10), cp.ErrSequenceUsed)
	m.do(m.register(0, 5, 10), nil)

	m.do(cp.SealTopic{Name: "logs"}, nil)
	m.do(m.register(0, 5, 99), cp.ErrRangeSealed) // before its number and its offset
	m.do(cp.SplitRange{Range: rangeID(0)}, cp.ErrRangeSealed)
	m.do(cp.SealSegment{ID: segID(0, 5), Length: 2}, nil) // a sealed range's head still closes
}

func TestSealSegment(t *testing.T) {
	m := newMachine(t)
	m.topic(8)
	m.do(cp.SealSegment{ID: segID(0, 0), Length: 1}, cp.ErrNoSuchSegment)
	m.do(m.register(0, 0, 0), nil)
	seal := cp.SealSegment{ID: segID(0, 0), Length: 10, Bytes: 100, At: 3000}
	if r := m.do(seal, nil); r.Length != 10 {
		t.Fatalf("seal answers %+v", r)
	}
	before := snapshot(t, m.State)
	if r := m.do(cp.SealSegment{ID: segID(0, 0), Length: 10, Bytes: 7, At: 9999}, nil); r.Length != 10 {
		t.Fatalf("the same seal again answers %+v", r)
	}
	if !slices.Equal(before, snapshot(t, m.State)) {
		t.Fatal("the same length again rewrote the segment")
	}
	r := m.do(cp.SealSegment{ID: segID(0, 0), Length: 12}, cp.ErrAlreadySealed)
	var already cp.AlreadySealed
	if !errors.As(r.Err, &already) || already.Length != 10 {
		t.Fatalf("another length is refused with %v", r.Err)
	}
	m.fill(0, 1, 10, 1)
	m.do(m.register(0, 2, 11), nil)
	m.do(cp.SealSegment{ID: segID(0, 2), Length: math.MaxUint64 - 10}, cp.ErrInvalidLength)
	m.do(cp.SealSegment{ID: segID(0, 2), Length: math.MaxUint64 - 11}, nil)
	m.do(m.register(0, 3, math.MaxUint64), nil)

	seg := m.Segment(segID(0, 1))
	if c, err := cp.Sealing(seg, 15, 500, 7); err != nil || c != (cp.SealSegment{ID: seg.ID, Length: 5, Bytes: 500, At: 7}) {
		t.Fatalf("sealing at 15: %+v, %v", c, err)
	}
	if _, err := cp.Sealing(seg, 9, 500, 7); !errors.Is(err, cp.ErrInvalidLength) {
		t.Fatalf("sealing below its start: %v", err)
	}
}

func TestDeleteSegmentAndReplicas(t *testing.T) {
	m := newMachine(t)
	m.topic(8)
	set := func(seq uint32, nodes ...cp.NodeID) cp.SetSegmentReplicas {
		return cp.SetSegmentReplicas{ID: segID(0, seq), Replicas: nodes}
	}
	m.do(cp.DeleteSegment{ID: segID(0, 0)}, cp.ErrNoSuchSegment)
	m.do(set(0, "a"), cp.ErrNoSuchSegment)
	m.do(m.register(0, 0, 0), nil)
	m.do(cp.DeleteSegment{ID: segID(0, 0)}, cp.ErrSegmentActive)
	m.do(set(0, "b", "a"), cp.ErrSegmentActive)
	m.do(cp.SealSegment{ID: segID(0, 0), Length: 3}, nil)
	kept := m.Segment(segID(0, 0))
	m.do(set(0, "b", "a"), nil)
	if got := m.Segment(segID(0, 0)).Replicas; !slices.Equal(got, []cp.NodeID{"b", "a"}) {
		t.Fatalf("replicas are %v", got)
	}
	if !slices.Equal(kept.Replicas, []cp.NodeID{"a", "b"}) {
		t.Fatal("a record that was handed out changed")
	}
	own := set(0, "d", "e")
	m.do(own, nil)
	own.Replicas[0] = "x" // the caller goes on using its slice
	if got := m.Segment(segID(0, 0)).Replicas; got[0] != "d" {
		t.Fatalf("replicas are %v", got)
	}
	m.do(set(0), cp.ErrInvalidReplicas)
	m.do(set(0, "c", "c"), cp.ErrInvalidReplicas)
	m.fill(0, 1, 3, 2)
	m.fill(0, 2, 5, 2)
	m.do(cp.DeleteSegment{ID: segID(0, 1)}, nil) // a hole in the middle
	m.do(cp.DeleteSegment{ID: segID(0, 1)}, cp.ErrNoSuchSegment)
	var left []uint32
	for _, s := range m.Sealed(rangeID(0)) {
		left = append(left, s.ID.Seq)
	}
	if !slices.Equal(left, []uint32{0, 2}) {
		t.Fatalf("segments %v are left", left)
	}
}

func TestSealAndDeleteTopic(t *testing.T) {
	m := newMachine(t)
	m.do(cp.SealTopic{Name: "logs"}, cp.ErrNoSuchTopic)
	m.do(cp.DeleteTopic{Name: "logs"}, cp.ErrNoSuchTopic)
	m.topic(8)
	m.do(cp.SplitRange{Range: rangeID(0)}, nil)
	m.do(cp.CommitOffset{Group: "g", Topic: "logs", Positions: at(1, 0)}, nil)
	m.do(cp.SealTopic{Name: "logs"}, nil)
	m.do(cp.SealTopic{Name: "logs"}, nil)
	if len(m.ActiveRanges("logs")) != 0 || m.Topic("logs").Phase != cp.Sealed || m.Range(rangeID(2)).Phase != cp.Sealed {
		t.Fatal("a sealed topic has active ranges")
	}
	m.do(cp.DeleteTopic{Name: "logs", ID: id(9)}, cp.ErrNoSuchTopic)
	m.do(cp.DeleteTopic{Name: "logs", ID: id(1)}, nil)
	if m.Len() != 0 || m.Range(rangeID(0)) != nil || m.Segment(segID(0, 0)) != nil {
		t.Fatal("something of a deleted topic is left")
	}
	// A name that comes back is another topic: nothing of the old one reaches it.
	m.do(cp.CreateTopic{Name: "logs", Bits: 8, ID: id(2)}, nil)
	if p := m.Positions("g", "logs"); p != nil {
		t.Fatalf("the group went on at %v", p)
	}
	m.do(cp.CommitOffset{Group: "g", Topic: "logs", Positions: at(0, 0)}, cp.ErrDifferentTopic)
	m.do(cp.SplitRange{Range: rangeID(0)}, cp.ErrNoSuchRange)
}

// What an earlier version let policies say stays in logs and snapshots, and is no policy that
// anybody defines today.
func TestPoliciesOfEarlierVersionsStay(t *testing.T) {
	m := newMachine(t)
	for name, p := range map[string]cp.Policy{
		"small": {SegmentMaxBytes: cp.Limit(1)},
		"long":  {MaxAge: cp.Limit(math.MaxInt64), SegmentMaxAge: cp.Limit(cp.MaxPolicyAge + 1)},
		"large": {MaxBytes: cp.Limit(cp.MaxPolicyBytes + 1)},
	} {
		if err := p.Validate(); !errors.Is(err, cp.ErrInvalidPolicy) {
			t.Errorf("%s can be defined: %v", name, err)
		}
		m.do(cp.DefinePolicy{Name: name, Policy: p}, nil)
		if q, ok := restored(t, snapshot(t, m.State)).Policy(name); !ok || q != p {
			t.Errorf("%s came back as %+v", name, q)
		}
	}
}

func TestPolicies(t *testing.T) {
	m := newMachine(t)
	week := cp.Policy{MaxAge: cp.Limit(7 * 86_400_000), MaxBytes: cp.Unlimited(), SpreadBy: cp.SpreadOver("rack")}
	m.do(cp.BindTopicPolicy{Topic: "logs", Policy: "week"}, cp.ErrNoSuchTopic)
	m.topic(8)
	m.do(cp.BindTopicPolicy{Topic: "logs", Policy: "week"}, nil) // the name need not be defined
	m.do(cp.BindTopicPolicy{Topic: "logs", Policy: strings.Repeat("x", 256)}, cp.ErrInvalidPolicy)
	m.do(cp.DefinePolicy{Name: "week", Policy: week}, nil)
	m.do(cp.DefinePolicy{Name: "empty"}, nil)
	if p, ok := m.Policy("week"); !ok || p != week {
		t.Fatalf("week is %+v, %v", p, ok)
	}
	bad := map[string]cp.Policy{
		"MaxAge is -1 ms: want 0 ms to 3153600000000 ms (36500d), or off":                                                {MaxAge: cp.Limit(-1)},
		"MaxBytes is -9223372036854775808 bytes (-8388608 TiB): want 0 bytes to 1152921504606846976 bytes (1048576 TiB)": {MaxBytes: cp.Limit(math.MinInt64)},
		"SegmentMaxAge is 59999 ms: want 60000 ms (1m) to 3153600000000 ms (36500d), or off":                             {SegmentMaxAge: cp.Limit(cp.MinSegmentAge - 1)},
		"SegmentMaxBytes is 0 bytes: want 1048576 bytes (1 MiB) to 1152921504606846976 bytes (1048576 TiB), or off":      {SegmentMaxBytes: cp.Limit(0)},
		"SpreadBy names an attribute of 0 bytes: want 1 to 255":                                                          {SpreadBy: cp.SpreadOver("")},
		"SpreadBy has the setting 9":                              {SpreadBy: cp.Spread{Setting: 9}},
		"SpreadBy names an attribute and is not set":              {SpreadBy: cp.Spread{Attribute: "rack"}},
		"MaxAge has the setting 9: want a limit, off or inherit":  {MaxAge: cp.Bound{Setting: 9}},
		"MaxAge is off and has the value 5: only a limit has one": {MaxAge: cp.Bound{Setting: cp.Off, N: 5}},
	}
	for says, p := range bad {
		if err := p.Validate(); !errors.Is(err, cp.ErrInvalidPolicy) || !strings.Contains(err.Error(), says) {
			t.Errorf("got %v, want %q", err, says)
		}
		m.do(cp.DefinePolicy{Name: "bad", Policy: p}, cp.ErrInvalidPolicy)
	}
	m.do(cp.DefinePolicy{Name: "", Policy: week}, cp.ErrInvalidPolicy)
	m.do(cp.DefinePolicy{Name: "zero", Policy: cp.Policy{MaxAge: cp.Limit(0), SegmentMaxAge: cp.Limit(cp.MinSegmentAge)}}, nil)
	var names []string
	for name := range m.Policies() {
		names = append(names, name)
	}
	if !slices.Equal(names, []string{"empty", "week", "zero"}) {
		t.Fatalf("policies are %v", names)
	}
	m.do(cp.DeletePolicy{Name: "week"}, nil)
	m.do(cp.DeletePolicy{Name: "week"}, nil)
	if _, ok := m.Policy("week"); ok || m.Topic("logs").Policy != "week" {
		t.Fatal("a policy goes, its bindings stay")
	}
	m.do(cp.BindTopicPolicy{Topic: "logs"}, nil)
	if m.Topic("logs").Policy != "" {
		t.Fatal("still bound")
	}
}

// While a topic moves, every change of it is refused, before anything else is
// looked at; its neighbours are not disturbed.
func TestMigrationFence(t *testing.T) {
	m := newMachine(t)
	m.do(cp.BeginMigration{Topic: "logs"}, cp.ErrNoSuchTopic)
	m.do(cp.EndMigration{Topic: "logs"}, nil)
	m.topic(8)
	m.do(cp.CreateTopic{Name: "other", Bits: 8, ID: id(2)}, nil)
	m.fill(0, 0, 0, 5)
	m.do(cp.BeginMigration{Topic: "logs"}, nil)
	m.do(cp.BeginMigration{Topic: "logs"}, nil)
	for _, cmd := range []cp.Command{
		cp.SealTopic{Name: "logs"}, cp.DeleteTopic{Name: "logs"},
		cp.BindTopicPolicy{Topic: "logs", Policy: strings.Repeat("x", 999)},
		cp.CommitOffset{Topic: "logs"}, cp.CommitRanges{Topic: "logs"}, cp.FenceGroup{Topic: "logs"}, cp.DeleteGroup{Topic: "logs"},
		cp.SplitRange{Range: rangeID(0)}, cp.MergeRanges{A: rangeID(0), B: rangeID(9)},
		m.register(0, 1, 99), cp.SealSegment{ID: segID(0, 0), Length: 99},
		cp.DeleteSegment{ID: segID(0, 0)}, cp.SetSegmentReplicas{ID: segID(0, 0)},
	} {
		m.do(cmd, cp.ErrMigrating)
	}
	m.do(m.register(9, 0, 0), cp.ErrNoSuchRange) // no stored topic, no fence
	m.do(cp.SealSegment{ID: segID(0, 9)}, cp.ErrNoSuchSegment)
	m.do(cp.BindTopicPolicy{Topic: "other", Policy: "p"}, nil)
	m.do(cp.CreateTopic{Name: "new", Bits: 8, ID: id(3)}, nil)
	if !m.Migrating("logs") || m.Migrating("other") {
		t.Fatal("the wrong topic moves")
	}
	m.do(cp.EndMigration{Topic: "logs"}, nil)
	m.do(m.register(0, 1, 5), nil)
	m.do(cp.BeginMigration{Topic: "logs"}, nil)
	m.do(cp.ExtractTopic{Topic: "logs"}, nil)
	m.topic(8)
	m.do(cp.SplitRange{Range: rangeID(0)}, nil)
}

// H12, L08: a topic that moves takes everything of it along, its groups'
// positions too; a repeat of the move takes nothing back.
func TestH12L08_MoveTopic(t *testing.T) {
	m, dst := newMachine(t), newMachine(t)
	m.topic(8)
	m.fill(0, 0, 0, 5)
	m.do(cp.SplitRange{Range: rangeID(0)}, nil)
	m.do(m.register(1, 0, 0), nil)
	m.do(cp.CommitOffset{Group: "g", Topic: "logs", Generation: 3, Positions: at(1, 0)}, nil)
	m.do(cp.BindTopicPolicy{Topic: "logs", Policy: "p"}, nil)
	m.do(cp.BeginMigration{Topic: "logs"}, nil)
	export := m.Export("logs")
	if m.Export("none") != nil || m.do(cp.ExtractTopic{Topic: "none"}, nil).Export != nil {
		t.Fatal("an absent topic has an export")
	}
	dst.do(cp.InsertTopic{Export: export}, nil)
	once := snapshot(t, dst.State)
	dst.do(cp.InsertTopic{Export: export}, nil)
	if !slices.Equal(once, snapshot(t, dst.State)) {
		t.Fatal("a second insert changed something")
	}
	r := m.do(cp.ExtractTopic{Topic: "logs"}, nil)
	if !slices.Equal(r.Export, export) {
		t.Fatal("the copy taken before is not what was removed")
	}
	if m.Len() != 0 || dst.Migrating("logs") {
		t.Fatal("the topic is still here, or fenced there")
	}
	m.do(cp.EndMigration{Topic: "logs"}, nil)
	if p := dst.Positions("g", "logs"); len(p) != 1 || dst.Head(rangeID(1)) == nil || dst.Topic("logs").Policy != "p" {
		t.Fatalf("arrived with positions %v", p)
	}
	if g, _ := dst.Generation("g", "logs"); g != 3 {
		t.Fatalf("arrived with generation %d", g)
	}
	dst.do(cp.SealSegment{ID: segID(1, 0), Length: 7}, nil)
	dst.do(cp.InsertTopic{Export: export}, nil) // a proposal that was thought lost
	if dst.Segment(segID(1, 0)).Length != 7 {
		t.Fatal("a late insert took back a seal")
	}
	other := newMachine(t)
	other.do(cp.CreateTopic{Name: "logs", Bits: 8, ID: id(7)}, nil)
	other.do(cp.InsertTopic{Export: export}, cp.ErrTopicExists)
	for i := range export {
		bad := slices.Clone(export)
		bad[i] ^= 0x40
		err := error(cp.ErrInvalidExport)
		if i == 0 {
			err = cp.ErrUnsupported
		}
		other.do(cp.InsertTopic{Export: bad}, err)
		other.do(cp.InsertTopic{Export: export[:i]}, cp.ErrInvalidExport)
	}
}

func TestGroupsAreBounded(t *testing.T) {
	s := cp.NewState()
	s.Apply(cp.CreateTopic{Name: "logs", Bits: 1, ID: id(1)})
	for i := range cp.MaxGroups {
		if r := s.Apply(cp.FenceGroup{Group: fmt.Sprint(i), Topic: "logs"}); r.Err != nil {
			t.Fatalf("group %d: %v", i, r.Err)
		}
	}
	if r := s.Apply(cp.FenceGroup{Group: "more", Topic: "logs"}); r.Err != cp.ErrLimit {
		t.Fatalf("one group more: %v", r.Err)
	}
	if r := s.Apply(cp.FenceGroup{Group: "0", Topic: "logs", Generation: 1}); r.Err != nil {
		t.Fatalf("a group that is there: %v", r.Err)
	}
}

// Anything that is no command of this software is refused and changes nothing.
func TestUnknownCommand(t *testing.T) {
	m := newMachine(t)
	m.topic(8)
	m.do(nil, cp.ErrUnknownCommand)
	m.do(&cp.SealTopic{Name: "logs"}, cp.ErrUnknownCommand)
	before := snapshot(t, m.State)
	good := cp.Encode(cp.SealTopic{Name: "logs"})
	newer, unknown := slices.Clone(good), slices.Clone(good)
	newer[0], unknown[1] = 2, 200
	for _, c := range []struct {
		bytes []byte
		err   error
	}{
		{nil, cp.ErrMalformed}, {[]byte{1}, cp.ErrMalformed}, {[]byte{0, 1, 2}, cp.ErrMalformed},
		{newer, cp.ErrNewerCommand}, {unknown, cp.ErrUnknownCommand}, {[]byte{1, 0}, cp.ErrUnknownCommand},
		{append(slices.Clone(good), 0), cp.ErrMalformed}, {good[:len(good)-1], cp.ErrMalformed},
	} {
		if r := m.ApplyBytes(c.bytes); !errors.Is(r.Err, c.err) {
			t.Errorf("%x: %v, want %v", c.bytes, r.Err, c.err)
		}
	}
	if !slices.Equal(before, snapshot(t, m.State)) {
		t.Fatal("bytes that are no command changed the state")
	}
	if r := m.ApplyBytes(good); r.Err != nil {
		t.Fatal(r.Err)
	}
}
