package cp

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/ringfence/ringfence/fence"
	"github.com/zeebo/xxh3"
)

// Attributes are what an operator says about a node: its rack, its zone.
type Attributes map[string]string

// Placement says where the replicas of a segment may go.
type Placement struct {
	SpreadBy   string                // attribute to spread over; "" is none
	Attributes map[NodeID]Attributes // of the nodes; one that lacks SpreadBy shares one nameless domain
	MinDomains int                   // distinct domains wanted; 0 asks for none
	Hard       bool                  // refuse rather than place over fewer
}

// Place chooses the replicas of a segment: min(rf, nodes) distinct nodes, the
// first of which becomes the primary. The choice depends on the arguments alone
// and not on the order of nodes; without a node, only the segments it would hold
// go elsewhere. With SpreadBy set, every domain gets a replica before any gets a
// second one. Refusals, in order: ErrReplication, ErrNoBrokers, ErrFewDomains.
func Place(id fence.SegmentID, nodes []NodeID, rf int, p Placement) ([]NodeID, error) {
	if rf < 1 {
		return nil, ErrReplication
	}
	if len(nodes) == 0 {
		return nil, ErrNoBrokers
	}
	set := Rank(segmentKey(id), nodes)
	n := min(rf, len(set))
	if p.SpreadBy != "" {
		set = p.spread(set, n)
	}
	set = slices.Clip(set[:n])
	if covered := p.Domains(set); p.Hard && covered < p.MinDomains {
		return nil, fmt.Errorf("%w: %d of %d", ErrFewDomains, covered, p.MinDomains)
	}
	return set, nil
}

// Rank orders distinct nodes by rendezvous hashing: each key has its own order,
// in which the absence of one node moves no other two.
func Rank(key []byte, nodes []NodeID) []NodeID {
	type ranked struct {
		node  NodeID
		score uint64
	}
	buf := append(make([]byte, 0, len(key)+MaxName), key...)
	all := make([]ranked, len(nodes))
	for i, n := range nodes {
		all[i] = ranked{node: n, score: xxh3.Hash(append(buf, n...))}
	}
	slices.SortFunc(all, func(a, b ranked) int {
		return cmp.Or(cmp.Compare(b.score, a.score), cmp.Compare(b.node, a.node))
	})
	all = slices.Compact(all)
	order := make([]NodeID, len(all))
	for i, r := range all {
		order[i] = r.node
	}
	return order
}

// spread reorders ranked nodes so that the first n take turns over the domains,
// which come in the order of their best node.
func (p Placement) spread(ranked []NodeID, n int) []NodeID {
	var domains [][]NodeID
	index := map[string]int{}
	for _, node := range ranked {
		d := p.domain(node)
		i, seen := index[d]
		if !seen {
			i = len(domains)
			index[d] = i
			domains = append(domains, nil)
		}
		domains[i] = append(domains[i], node)
	}
	set := make([]NodeID, 0, n)
	for turn := 0; len(set) < n; turn++ {
		for _, d := range domains {
			if turn < len(d) && len(set) < n {
				set = append(set, d[turn])
			}
		}
	}
	return set
}

// domain is a node's failure domain; "" for one without the attribute.
func (p Placement) domain(n NodeID) string { return p.Attributes[n][p.SpreadBy] }

// Domains counts the failure domains that a replica set spans: distinct values
// of SpreadBy, or distinct nodes without it.
func (p Placement) Domains(set []NodeID) int {
	distinct := map[string]bool{}
	for _, n := range set {
		if p.SpreadBy == "" {
			distinct[string(n)] = true
		} else {
			distinct[p.domain(n)] = true
		}
	}
	return len(distinct)
}

// DomainViolations counts, by topic, the segments whose replica set spans fewer
// than p.MinDomains domains; it is empty unless SpreadBy and MinDomains are set.
func DomainViolations(s *State, p Placement) map[string]int {
	count := map[string]int{}
	if p.SpreadBy == "" || p.MinDomains < 1 {
		return count
	}
	for name, t := range s.topics.all {
		for _, r := range t.ranges {
			for seg := range r.all {
				if p.Domains(seg.Replicas) < p.MinDomains {
					count[name]++
				}
			}
		}
	}
	return count
}

// UnderReplicated lists the segments, by id, that have fewer live replicas than
// min(rf, live nodes).
func UnderReplicated(s *State, live []NodeID, rf int) []fence.SegmentID {
	alive := map[NodeID]bool{}
	for _, n := range live {
		alive[n] = true
	}
	want := min(rf, len(alive))
	var short []fence.SegmentID
	for _, t := range s.topics.all {
		for _, r := range t.ranges {
			for seg := range r.all {
				have := 0 // a replica set names nobody twice
				for _, n := range seg.Replicas {
					if alive[n] {
						have++
					}
				}
				if have < want {
					short = append(short, seg.ID)
				}
			}
		}
	}
	slices.SortFunc(short, fence.SegmentID.Compare)
	return short
}

// all visits a range's segments by start.
func (r *rng) all(yield func(*Segment) bool) {
	for _, seg := range r.sealed {
		if !yield(seg) {
			return
		}
	}
	if r.head != nil {
		yield(r.head)
	}
}

// segmentKey is what rendezvous hashing takes for a segment.
func segmentKey(id fence.SegmentID) []byte {
	key := append(make([]byte, 0, 24), id.Range.Topic[:]...)
	key = binary.LittleEndian.AppendUint32(key, id.Range.Seq)
	return binary.LittleEndian.AppendUint32(key, id.Seq)
}
