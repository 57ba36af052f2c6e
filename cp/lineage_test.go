package cp_test

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/ringfence/ringfence/cp"
	"github.com/ringfence/ringfence/fence"
)

// cycle splits the one range of topic logs and merges its halves, n times, the way that
// encode puts a command into a log. Every range keeps a sealed segment of two records.
func cycle(tb testing.TB, s *cp.State, n int, encode func(cp.Command) []byte) {
	tb.Helper()
	do := func(cmd cp.Command) cp.Reply {
		r := s.ApplyBytes(encode(cmd))
		if r.Err != nil {
			tb.Fatalf("%+v: %v", cmd, r.Err)
		}
		return r
	}
	fill := func(ids ...fence.RangeID) {
		for _, id := range ids {
			do(cp.RegisterSegment{ID: fence.SegmentID{Range: id}, Replicas: []cp.NodeID{"n1"}})
			do(cp.SealSegment{ID: fence.SegmentID{Range: id}, Length: 2})
		}
	}
	if s.Topic("logs") == nil {
		fill(do(cp.CreateTopic{Name: "logs", Bits: 2, ID: id(1)}).Range)
	}
	for range n {
		halves := do(cp.SplitRange{Range: s.ActiveRanges("logs")[0].ID})
		fill(halves.Range, halves.Range2)
		fill(do(cp.MergeRanges{A: halves.Range, B: halves.Range2}).Range)
	}
}

// What a range costs does not grow with the ranges before it: a state, a snapshot and an
// export of twice as many changes are twice as large.
func TestCostOfManyChanges(t *testing.T) {
	type cost struct{ snapshot, export, restored int }
	measure := func(n int) (c cost) {
		s := cp.NewState()
		cycle(t, s, n, cp.Encode)
		b := snapshot(t, s)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		again := restored(t, b)
		runtime.ReadMemStats(&after)
		if !bytes.Equal(snapshot(t, again), b) {
			t.Fatal("a snapshot read back is written as other bytes")
		}
		return cost{len(b), len(s.Export("logs")), int(after.TotalAlloc - before.TotalAlloc)}
	}
	const n = 5000
	half, whole := measure(n/2), measure(n)
	t.Logf("after %d cycles: %+v; after %d: %+v", n/2, half, n, whole)
	for what, grown := range map[string][2]int{
		"a snapshot": {half.snapshot, whole.snapshot}, "an export": {half.export, whole.export}, "reading it": {half.restored, whole.restored},
	} {
		if grown[1] > grown[0]*5/2 {
			t.Errorf("%s takes %d bytes, and %d after twice as many changes", what, grown[0], grown[1])
		}
	}
}

// A group that reads a topic from its start over thousands of changes gets every source
// once, in the order of the ranges, and ends where the topic does; also one that was away
// since the first range.
func TestGroupOverManyChanges(t *testing.T) {
	s := cp.NewState()
	cycle(t, s, 0, cp.Encode)
	if r := s.Apply(cp.CommitOffset{Group: "away", Topic: "logs", Positions: at(0, 1)}); r.Err != nil {
		t.Fatal(r.Err)
	}
	const n = 5000
	cycle(t, s, n, cp.Encode)
	last := s.ActiveRanges("logs")[0].ID
	for group, first := range map[string]uint64{"new": 0, "away": 1} {
		if p, ok := s.Position(group, last); ok != (group == "away") || ok && (len(p) != 3*n+1 || p[rangeID(0)] != 1) {
			t.Fatalf("group %q goes on in %d sources, %v", group, len(p), ok)
		}
		var order []uint32
		for {
			unread := s.Unread(group, "logs")
			read := cp.Position{}
			for _, source := range slices.SortedFunc(maps.Keys(unread), fence.RangeID.Compare) {
				offset := unread[source]
				if want := first * uint64(b2i(source.Seq == 0)); offset != want {
					t.Fatalf("group %q reads range %d from %d", group, source.Seq, offset)
				}
				order = append(order, source.Seq)
				read[source] = s.Range(source).NextOffset
			}
			if len(order) > 40 && len(order) < 3*n-40 { // the middle in one go, for time's sake
				for a := range s.Ancestors(last, order[len(order)-1]+1) {
					if a.ID.Seq < 3*n-40 {
						read[a.ID] = a.NextOffset
						order = append(order, a.ID.Seq)
					}
				}
			}
			if r := s.Apply(cp.CommitRanges{Group: group, Topic: "logs", Sources: read}); r.Err != nil {
				t.Fatal(r.Err)
			}
			if read[last] > 0 {
				break
			}
		}
		if len(order) != 3*n+1 || !slices.IsSorted(order) {
			t.Fatalf("group %q read %d ranges, in order: %v", group, len(order), slices.IsSorted(order))
		}
		if left := s.Unread(group, "logs"); len(left) != 1 || left[last] != 2 {
			t.Fatalf("group %q is left with %v", group, left)
		}
	}
	if err := s.Check(); err != nil {
		t.Fatal(err)
	}
}

// splitAll splits every active range of topic logs, so many times.
func splitAll(tb testing.TB, s *cp.State, times int) {
	tb.Helper()
	for range times {
		for _, r := range slices.Clone(s.ActiveRanges("logs")) {
			if r := s.Apply(cp.SplitRange{Range: r.ID}); r.Err != nil {
				tb.Fatal(r.Err)
			}
		}
	}
}

// What a group reads next, and what it commits, is found without holding every range
// against every other: that would not end within the time that a test has.
func TestGroupOverManyRanges(t *testing.T) {
	s := cp.NewState()
	s.Apply(cp.CreateTopic{Name: "logs", Bits: 20, ID: id(1)})
	const n = 1 << 15
	splitAll(t, s, 15)
	unread := s.Unread("g", "logs")
	if len(unread) != n {
		t.Fatalf("%d ranges are to be read, want %d", len(unread), n)
	}
	for range 2 {
		if r := s.Apply(cp.CommitRanges{Group: "g", Topic: "logs", Sources: unread}); r.Err != nil {
			t.Fatal(r.Err)
		}
		if again := s.Unread("g", "logs"); !maps.Equal(again, unread) {
			t.Fatalf("%d ranges are to be read after a commit, want %d", len(again), n)
		}
	}
}

// The ancestors of a range are its parents and theirs, be they many or few of the ranges
// before it.
func TestAncestorsAreParents(t *testing.T) {
	few, many := 0, 0
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 9))
		s := cp.NewState()
		s.Apply(cp.CreateTopic{Name: "logs", Bits: 12, ID: id(1)})
		merges := []int{2, 3, 8, 50}[rng.IntN(4)]
		for range 600 {
			active := s.ActiveRanges("logs")
			i := rng.IntN(len(active))
			if rng.IntN(merges) > 0 || i == 0 {
				s.Apply(cp.SplitRange{Range: active[i].ID})
			} else {
				s.Apply(cp.MergeRanges{A: active[i-1].ID, B: active[i].ID}) // some are no halves of one
			}
		}
		all := map[uint32]map[uint32]bool{}
		for r := range s.Ranges("logs") {
			all[r.ID.Seq] = map[uint32]bool{}
			for _, p := range r.From {
				all[r.ID.Seq][p.Seq] = true
				maps.Copy(all[r.ID.Seq], all[p.Seq])
			}
		}
		for r := range s.Ranges("logs") {
			for _, from := range []uint32{0, rng.Uint32N(r.ID.Seq + 1), r.ID.Seq, r.ID.Seq + 1} {
				var want, got []uint32
				for a := range all[r.ID.Seq] {
					if a >= from {
						want = append(want, a)
					}
				}
				slices.Sort(want)
				for a := range s.Ancestors(r.ID, from) {
					got = append(got, a.ID.Seq)
				}
				if !slices.Equal(got, want) {
					t.Fatalf("seed %d: range %d has the ancestors %v from %d on, want %v", seed, r.ID.Seq, got, from, want)
				}
			}
			if n := len(all[r.ID.Seq]); n*16 < int(r.ID.Seq) {
				few++
			} else if n > 8 {
				many++
			}
		}
	}
	if few < 500 || many < 200 {
		t.Errorf("%d ranges have few ancestors and %d many: too few to tell", few, many)
	}
}

// What is foremost of any ranges comes from no other of them.
func TestForemost(t *testing.T) {
	kept := 0
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 8))
		s := cp.NewState()
		for i, name := range []string{"logs", "other"} {
			s.Apply(cp.CreateTopic{Name: name, Bits: 6, ID: id(byte(i + 1))})
			for range 150 {
				active := s.ActiveRanges(name)
				i := rng.IntN(len(active))
				if rng.IntN(2) == 0 || i == 0 {
					s.Apply(cp.SplitRange{Range: active[i].ID}) // some are too narrow
				} else {
					s.Apply(cp.MergeRanges{A: active[i-1].ID, B: active[i].ID}) // some are no halves of one
				}
			}
		}
		var all []fence.RangeID
		for _, name := range []string{"logs", "other"} {
			for r := range s.Ranges(name) {
				all = append(all, r.ID)
			}
		}
		for range 300 {
			p := cp.Position{{Topic: id(1), Seq: 1 << 20}: 7} // of no range
			most := 2 << rng.IntN(6)
			for range 1 + rng.IntN(most) {
				p[all[rng.IntN(len(all))]] = 0
			}
			if rng.IntN(2) == 0 {
				maps.DeleteFunc(p, func(r fence.RangeID, _ uint64) bool { return r.Topic != id(1) })
			}
			var want []fence.RangeID
			for r := range p {
				if s.Range(r) != nil && !slices.ContainsFunc(slices.Collect(maps.Keys(p)), func(a fence.RangeID) bool { return s.IsAncestor(a, r) }) {
					want = append(want, r)
				}
			}
			slices.SortFunc(want, fence.RangeID.Compare)
			if got := s.Foremost(p); !slices.Equal(got, want) {
				t.Fatalf("seed %d: foremost of %v are %v, want %v", seed, p, got, want)
			}
			kept += len(want)
		}
	}
	if kept < 10_000 {
		t.Errorf("%d were foremost: too few to tell", kept)
	}
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

// A topic that is split and merged for ever meets a limit, in good order, and a state read
// back knows it.
func TestRangesAreBounded(t *testing.T) {
	step := func(s *cp.State) error {
		active := s.ActiveRanges("logs")
		if len(active) == 1 {
			return s.Apply(cp.SplitRange{Range: active[0].ID}).Err
		}
		return s.Apply(cp.MergeRanges{A: active[0].ID, B: active[1].ID}).Err
	}
	s := cp.NewState()
	s.Apply(cp.CreateTopic{Name: "logs", Bits: 1, ID: id(1)})
	var err error
	for n := 0; err == nil && n < 1_000_000; n++ {
		err = step(s)
	}
	if n := s.Topic("logs").NextRangeSeq; err != cp.ErrLimit || n > cp.MaxRanges || n < cp.MaxRanges-1 {
		t.Fatalf("%v with %d ranges", err, n)
	}
	if err := s.Check(); err != nil {
		t.Fatal(err)
	}
	if err := step(restored(t, snapshot(t, s))); err != cp.ErrLimit {
		t.Fatalf("a restored state forgot the limit: %v", err)
	}
	var all int
	for id := s.ActiveRanges("logs")[0].ID; ; all++ {
		from := s.Range(id).From
		if len(from) == 0 {
			break
		}
		id = from[0]
	}
	if all < cp.MaxRanges/2 {
		t.Fatalf("%d generations", all)
	}
	p := cp.Position{}
	for r := range s.Ranges("logs") {
		p[r.ID] = 1 << 60
	}
	const most = 8 << 20 // of a command that a host takes
	if n := len(cp.Encode(cp.CommitOffset{Group: strings.Repeat("g", cp.MaxName), Topic: strings.Repeat("t", cp.MaxName), Positions: map[fence.RangeID]cp.Position{{}: p}})); n > most {
		t.Fatalf("a position that names every range takes %d bytes of %d", n, most)
	}
}

// bounded is a command as logs had it when lineages were lists.
func bounded(cmd cp.Command) []byte {
	b := cp.Encode(cmd)
	switch cmd.(type) {
	case cp.SplitRange:
		b[1] = 4
	case cp.MergeRanges:
		b[1] = 5
	}
	return b
}

// A log of then is answered as it was then: also the one split too many, which the software
// that wrote it refused after 1182 cycles, and today's does not.
func TestBoundedLineage(t *testing.T) {
	s := cp.NewState()
	s.Apply(cp.CreateTopic{Name: "logs", Bits: 1, ID: id(1)})
	accepted := 0
	for ; ; accepted++ {
		cmd := cp.Command(nil)
		if active := s.ActiveRanges("logs"); len(active) == 1 {
			cmd = cp.SplitRange{Range: active[0].ID}
		} else {
			cmd = cp.MergeRanges{A: active[0].ID, B: active[1].ID}
		}
		if accepted%500 == 499 {
			s = restored(t, snapshot(t, s))
		}
		before := snapshot(t, s)
		r := s.ApplyBytes(bounded(cmd))
		if r.Err == nil && accepted < 10_000 {
			continue
		}
		if r.Err != cp.ErrLimit || !bytes.Equal(before, snapshot(t, s)) {
			t.Fatalf("after %d: %v", accepted, r.Err)
		}
		if r := s.Apply(cmd); r.Err != nil {
			t.Fatalf("today it is refused too: %v", r.Err)
		}
		break
	}
	if accepted != boundedSteps {
		t.Errorf("%d splits and merges are accepted, want %d", accepted, boundedSteps)
	}
}

const boundedSteps = 2364 // so many fit into 1<<22 ancestors

// The log that earlier software wrote leads to the state and the answers that it had.
func TestBoundedGolden(t *testing.T) {
	b, err := os.ReadFile(filepath.Join("testdata", "log-bounded.golden"))
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSuffix(string(b), "\n"), "\n")
	old, now := cp.NewState(), cp.NewState()
	for _, cmd := range everyCommand() {
		now.Apply(cmd)
	}
	for ; len(lines) >= 3; lines = lines[3:] {
		cmd, _ := hex.DecodeString(strings.TrimSpace(lines[1]))
		want, _ := hex.DecodeString(strings.TrimSpace(lines[2]))
		if got := old.ApplyBytes(cmd).Encode(); len(cmd) == 0 || !bytes.Equal(got, want) {
			t.Fatalf("%s %x is answered with %x, was with %x", lines[0], cmd, got, want)
		}
	}
	if !bytes.Equal(snapshot(t, old), snapshot(t, now)) {
		t.Fatal("the log leads to another state")
	}
}

// What a change of a topic with a long history costs: a split and a merge, the export and
// the import that follow each in a frontend.
func BenchmarkManyChanges(b *testing.B) {
	for _, n := range []int{100, 1000, 5000} {
		s := cp.NewState()
		cycle(b, s, n, cp.Encode)
		b.Run(fmt.Sprintf("change/cycles=%d", n), func(b *testing.B) {
			b.ReportAllocs()
			s := s.Clone()
			for b.Loop() {
				halves := s.Apply(cp.SplitRange{Range: s.ActiveRanges("logs")[0].ID})
				s.Apply(cp.MergeRanges{A: halves.Range, B: halves.Range2})
			}
		})
		b.Run(fmt.Sprintf("import/cycles=%d", n), func(b *testing.B) {
			b.ReportAllocs()
			export := s.Export("logs")
			b.ReportMetric(float64(len(export)), "bytes")
			for b.Loop() {
				cp.NewState().Apply(cp.InsertTopic{Export: export})
			}
		})
		b.Run(fmt.Sprintf("snapshot/cycles=%d", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				_ = s.Snapshot(io.Discard)
			}
		})
	}
}
