package cp_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/ringfence/ringfence/cp"
	"github.com/ringfence/ringfence/fence"
	"pgregory.net/rapid"
)

func nodes(n int) (all []cp.NodeID) {
	for i := range n {
		all = append(all, cp.NodeID(fmt.Sprintf("n%d", i)))
	}
	return all
}

func racks(of map[cp.NodeID]string) cp.Placement {
	p := cp.Placement{SpreadBy: "rack", Attributes: map[cp.NodeID]cp.Attributes{}}
	for n, rack := range of {
		p.Attributes[n] = cp.Attributes{"rack": rack}
	}
	return p
}

func TestPlaceRefusals(t *testing.T) {
	if _, err := cp.Place(segID(0, 0), nodes(3), 0, cp.Placement{}); !errors.Is(err, cp.ErrReplication) {
		t.Errorf("no replicas: %v", err)
	}
	if _, err := cp.Place(segID(0, 0), nil, 3, cp.Placement{}); !errors.Is(err, cp.ErrNoBrokers) {
		t.Errorf("no nodes: %v", err)
	}
	set, err := cp.Place(segID(0, 0), nodes(2), 5, cp.Placement{})
	if err != nil || len(set) != 2 {
		t.Errorf("more replicas than nodes: %v, %v", set, err)
	}
}

// Three racks take one replica each; two take two and one; a hard demand for
// three is refused; nodes without a rack are one domain together.
func TestPlaceSpreads(t *testing.T) {
	three := racks(map[cp.NodeID]string{"n0": "a", "n1": "a", "n2": "b", "n3": "b", "n4": "c", "n5": "c"})
	two := racks(map[cp.NodeID]string{"n0": "a", "n1": "a", "n2": "b", "n3": "b"})
	bare := racks(map[cp.NodeID]string{"n0": "a"})
	for seq := range uint32(200) {
		set, err := cp.Place(segID(0, seq), nodes(6), 3, three)
		if err != nil || three.Domains(set) != 3 {
			t.Fatalf("three racks: %v, %v", set, err)
		}
		if set, err = cp.Place(segID(0, seq), nodes(4), 3, two); err != nil || two.Domains(set) != 2 || len(set) != 3 {
			t.Fatalf("two racks: %v, %v", set, err)
		}
		if set, err = cp.Place(segID(0, seq), nodes(4), 3, bare); err != nil || bare.Domains(set) != 2 {
			t.Fatalf("one rack and bare nodes: %v, %v", set, err)
		}
		hard := two
		hard.MinDomains, hard.Hard = 3, true
		if _, err = cp.Place(segID(0, seq), nodes(4), 3, hard); !errors.Is(err, cp.ErrFewDomains) {
			t.Fatalf("three domains of two: %v", err)
		}
		hard.Hard = false
		if _, err = cp.Place(segID(0, seq), nodes(4), 3, hard); err != nil {
			t.Fatalf("a soft demand: %v", err)
		}
		alone := cp.Placement{MinDomains: 2, Hard: true} // without an attribute, nodes count
		if _, err = cp.Place(segID(0, seq), nodes(2), 2, alone); err != nil {
			t.Fatalf("two nodes: %v", err)
		}
	}
}

// The choice depends on nothing but the set of nodes, names nobody twice, and
// changes for a segment only if a node it uses goes.
func TestPlaceProperties(t *testing.T) {
	changed := 0
	checkUntil(t, "a set that loses a node", &changed, func(t *rapid.T) {
		all := nodes(rapid.IntRange(1, 9).Draw(t, "nodes"))
		id := segID(rapid.Uint32().Draw(t, "range"), rapid.Uint32().Draw(t, "segment"))
		rf := rapid.IntRange(1, 4).Draw(t, "rf")
		set, err := cp.Place(id, all, rf, cp.Placement{})
		if err != nil || len(set) != min(rf, len(all)) {
			t.Fatalf("%v, %v", set, err)
		}
		shuffled := append(rapid.Permutation(all).Draw(t, "order"), all[0])
		if again, _ := cp.Place(id, shuffled, rf, cp.Placement{}); !slices.Equal(again, set) {
			t.Fatalf("%v in another order is %v", set, again)
		}
		if sorted := slices.Compact(slices.Sorted(slices.Values(set))); len(sorted) != len(set) {
			t.Fatalf("%v names a node twice", set)
		}
		gone := rapid.SampledFrom(all).Draw(t, "gone")
		rest := slices.DeleteFunc(slices.Clone(all), func(n cp.NodeID) bool { return n == gone })
		if len(rest) == 0 {
			return
		}
		next, _ := cp.Place(id, rest, rf, cp.Placement{})
		kept := slices.DeleteFunc(slices.Clone(set), func(n cp.NodeID) bool { return n == gone })
		if !slices.Equal(next[:len(kept)], kept) {
			t.Fatalf("without %s: %v becomes %v", gone, set, next)
		}
		if len(kept) != len(set) {
			changed++
		}
	})
}

func TestPlaceBalance(t *testing.T) {
	count := map[cp.NodeID]int{}
	for seq := range uint32(6000) {
		set, err := cp.Place(segID(1, seq), nodes(6), 2, cp.Placement{})
		if err != nil {
			t.Fatal(err)
		}
		count[set[0]]++
	}
	for n, c := range count {
		if c < 850 || c > 1150 {
			t.Errorf("%s is the primary of %d of 6000", n, c)
		}
	}
}

// Which node holds what is decided at registration, so a change of the hash only
// moves new segments; still it should not happen unnoticed.
func TestPlaceVector(t *testing.T) {
	set, err := cp.Place(fence.SegmentID{Range: fence.RangeID{Topic: fence.TopicID{1, 2, 3}, Seq: 4}, Seq: 5}, nodes(5), 3, cp.Placement{})
	if err != nil || fmt.Sprint(set) != "[n4 n2 n0]" {
		t.Fatalf("%v, %v", set, err)
	}
}

func TestReplicaReports(t *testing.T) {
	m := newMachine(t)
	m.topic(8)
	m.fill(0, 0, 0, 5) // on a and b
	m.do(m.register(0, 1, 5), nil)
	m.do(cp.SetSegmentReplicas{ID: segID(0, 0), Replicas: []cp.NodeID{"a", "c"}}, nil)
	for _, c := range []struct {
		live []cp.NodeID
		want []fence.SegmentID
	}{
		{[]cp.NodeID{"a", "b", "c"}, nil},
		{[]cp.NodeID{"a", "b"}, []fence.SegmentID{segID(0, 0)}},
		{[]cp.NodeID{"a", "a"}, nil}, // as many as there are
		{[]cp.NodeID{"c"}, []fence.SegmentID{segID(0, 1)}},
		{nil, nil},
	} {
		if got := cp.UnderReplicated(m.State, c.live, 2); !slices.Equal(got, c.want) {
			t.Errorf("with %v live, %v are short, want %v", c.live, got, c.want)
		}
	}
	p := racks(map[cp.NodeID]string{"a": "x", "b": "y", "c": "x"})
	if got := cp.DomainViolations(m.State, p); len(got) != 0 {
		t.Errorf("without a demand: %v", got)
	}
	p.MinDomains = 2
	if got := cp.DomainViolations(m.State, p); len(got) != 1 || got["logs"] != 1 {
		t.Errorf("two racks wanted: %v", got)
	}
}
