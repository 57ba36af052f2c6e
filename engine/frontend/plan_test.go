package frontend

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"testing"

	"github.com/ringfence/ringfence/cp"
	"github.com/ringfence/ringfence/fence"
	"pgregory.net/rapid"
)

// reader consumes a topic by plan, a few records of one source at a time.
type reader struct {
	w    *world
	at   Offsets
	only []fence.RangeID

	skips []Skip
}

func (w *world) plan(at Offsets, only ...fence.RangeID) (Offsets, []Source) {
	w.t.Helper()
	next, sources, err := w.f.Plan(testTopic, at, only)
	if err != nil {
		w.t.Fatal(err)
	}
	return next, sources
}

// step reads up to max records of the pick'th source that can be read. It is false when none has any.
func (r *reader) step(pick, max int) (records []Record, ok bool) {
	r.w.t.Helper()
	var sources []Source
	r.at, sources = r.w.plan(r.at, r.only...)
	for i := range sources {
		s := sources[(pick+i)%len(sources)]
		_, skip, err := r.w.f.Seek(s)
		if skip.Offsets > 0 {
			r.skips = append(r.skips, skip)
			r.at.Advance(s, s.From+skip.Offsets)
		}
		if errors.Is(err, io.EOF) {
			if skip.Offsets > 0 {
				return nil, true
			}
			continue
		}
		got, err := r.w.f.Read(s.Range, s.From+skip.Offsets, max, r.w.s.read)
		if err != nil {
			r.w.t.Fatal(err)
		}
		for i := range got {
			if s.Wants(got[i].Position) {
				records = append(records, got[i])
			}
		}
		r.at.Advance(s, got[len(got)-1].Offset+1)
		return records, true
	}
	return nil, false
}

func brief(sources []Source) (list []string) {
	for _, s := range sources {
		list = append(list, fmt.Sprintf("%d reads %d from %d", s.Cursor.Seq, s.Range.Seq, s.From))
	}
	return list
}

func TestPlanFromTheStart(t *testing.T) {
	w := newWorld(t)
	w.produce(many(8)...)
	left, right := w.split(root())
	a, b := w.split(left)
	at, sources := w.plan(nil)
	want(t, "the history of all is read once", brief(sources), []string{"0 reads 0 from 0"})
	want(t, "source", sources[0], Source{Cursor: root(), Range: root(), Start: 0, End: positions, Whole: true, Final: true, Limit: 8, Origin: FromStart})
	want(t, "offsets", at, Offsets{root(): {root(): 0}})
	want(t, "half way", at.Advance(sources[0], 5), false)
	at, sources = w.plan(at)
	want(t, "half way", brief(sources), []string{"0 reads 0 from 5"})
	want(t, "at its end", at.Advance(sources[0], 8), true)
	// The left half never held anything and has retired: nothing to read there.
	at, sources = w.plan(at)
	want(t, "children", brief(sources), []string{
		fmt.Sprintf("%d reads %d from 0", a.Seq, a.Seq), fmt.Sprintf("%d reads %d from 0", b.Seq, b.Seq), fmt.Sprintf("%d reads %d from 0", right.Seq, right.Seq),
	})
	want(t, "their origin: the offsets are somebody's by now", sources[0].Origin, FromCursor)
	want(t, "offsets of the children", at, Offsets{a: {a: 0}, b: {b: 0}, right: {right: 0}})
}

// A member of a group that has one half reads the parent's rest for that half alone, under its own entry.
func TestPlanOfSomeRanges(t *testing.T) {
	w := newWorld(t)
	w.produce(many(8)...)
	left, right := w.split(root())
	w.n(1)
	at, sources := w.plan(Offsets{root(): {root(): 3}}, left)
	want(t, "left", brief(sources), []string{"1 reads 0 from 3"})
	want(t, "cut to its slice", fmt.Sprint(sources[0].Start, sources[0].End, sources[0].Whole, sources[0].Wants(1<<31), sources[0].Wants(1<<31-1)), fmt.Sprint(0, uint64(1<<31), false, false, true))
	want(t, "offsets", at, Offsets{left: {root(): 3, left: 0}})
	want(t, "finished", at.Advance(sources[0], 8), true)
	at, sources = w.plan(at, left)
	want(t, "then itself", fmt.Sprint(brief(sources), at), fmt.Sprint([]string{"1 reads 1 from 0"}, Offsets{left: {left: 0}}))
	// The sibling still goes on where the parent stood.
	both := Offsets{root(): {root(): 3}, left: at[left]}
	_, sources = w.plan(both, right)
	want(t, "right", brief(sources), []string{"2 reads 0 from 3"})
	// And so it does for whoever has both now.
	_, sources = w.plan(both)
	want(t, "both", brief(sources), []string{"1 reads 1 from 0", "2 reads 0 from 3"})
}

// A merge waits for both its sides.
func TestPlanOfAMerge(t *testing.T) {
	w := newWorld(t)
	left, right := w.split(root())
	w.produce(many(8)...)
	m := w.merge(left, right)
	w.n(1)
	at, sources := w.plan(Offsets{left: {left: 4}, right: {right: 1}})
	want(t, "one side is behind", brief(sources), []string{"2 reads 2 from 1"})
	want(t, "offsets keep both", at, Offsets{left: {left: 4}, right: {right: 1}})
	at.Advance(sources[0], 4)
	at, sources = w.plan(at)
	want(t, "both are there", fmt.Sprint(brief(sources), at), fmt.Sprint([]string{"3 reads 3 from 0"}, Offsets{m: {m: 0}}))
	// By itself, the sum starts from the union.
	pos, err := w.f.StartPosition(m, Offsets{left: {left: 2}, right: {right: 1}})
	want(t, "union", fmt.Sprint(pos, err), fmt.Sprint(cp.Position{left: 2, right: 1, m: 0}, nil))
	_, sources = w.plan(Offsets{m: pos})
	want(t, "both sides can be read at once", brief(sources), []string{"3 reads 1 from 2", "3 reads 2 from 1"})
}

// Two halves that stand at different places of their parent are merged again: each reads its own rest
// of the parent, and no record comes twice, although one map could not say so.
func TestPlanOfAMergeWithASharedAncestor(t *testing.T) {
	w := newWorld(t)
	w.produce(many(8)...)
	left, right := w.split(root())
	w.produce(many(4)...)
	m := w.merge(left, right)
	w.n(1)
	r := &reader{w: w, at: Offsets{left: {root(): 2, left: 0}, right: {right: 1}}}
	var got []string
	for {
		records, ok := r.step(0, 3)
		if !ok {
			break
		}
		got = append(got, keys(records)...)
	}
	want(t, "left's rest, right's rest, then the sum", got, []string{"k002", "k003", "k000", "k001", "k003", "r0"})
	want(t, "offsets", r.at, Offsets{m: {m: 1}})
	// The one map that there is for the sum takes the lower offset.
	pos, err := w.f.StartPosition(m, Offsets{left: {root(): 2, left: 0}, right: {right: 1}})
	want(t, "union", fmt.Sprint(pos, err), fmt.Sprint(cp.Position{root(): 2, left: 0, right: 1, m: 0}, nil))
}

// Only one side of a merge is held by the parent of both: the other has its own entry.
func TestPlanOfAMergeBesideAnOldEntry(t *testing.T) {
	w := newWorld(t)
	w.produce(many(4)...)
	left, right := w.split(root())
	w.produce(many(4)...)
	m := w.merge(left, right)
	_, sources := w.plan(Offsets{root(): {root(): 0}, left: {left: 1}})
	want(t, "root is for the right half alone", brief(sources), []string{
		fmt.Sprintf("%d reads %d from 1", left.Seq, left.Seq), fmt.Sprintf("%d reads 0 from 0", right.Seq),
	})
	_ = m
}

func TestPlanRefusesForeignOffsets(t *testing.T) {
	w := newWorld(t)
	left, right := w.split(root())
	for name, tc := range map[string]struct {
		at  Offsets
		err error
	}{
		"another topic":   {Offsets{{Topic: topicID(2)}: {}}, ErrInvalidPosition},
		"unknown range":   {Offsets{{Topic: topicID(1), Seq: 9}: {}}, cp.ErrNoSuchRange},
		"not an ancestor": {Offsets{left: {right: 1}}, ErrInvalidPosition},
	} {
		_, _, err := w.f.Plan(testTopic, tc.at, nil)
		if !errors.Is(err, tc.err) {
			t.Errorf("%s: %v", name, err)
		}
		if err := w.f.CheckOffsets(testTopic, tc.at); !errors.Is(err, tc.err) {
			t.Errorf("%s: %v", name, err)
		}
		_, err = w.f.StartPosition(left, tc.at)
		wantErr(t, err, tc.err)
	}
	_, _, err := w.f.Plan("nope", nil, nil)
	wantErr(t, err, cp.ErrNoSuchTopic)
	_, err = w.f.StartPosition(fence.RangeID{Topic: topicID(2)}, nil)
	wantErr(t, err, cp.ErrNoSuchRange)
}

// A reader that was away while its parent range expired is told what is gone, and goes on with the
// children (scenario L03); likewise one in a hole, and one that waits where everything has expired.
func TestPlanOverWhatHasExpired(t *testing.T) {
	w := rolled(t, 3)
	left, right := w.split(root())
	w.produce(many(2)...)
	w.expire(1, 2)
	r := &reader{w: w, at: Offsets{root(): {root(): 2}}}
	var got []string
	for {
		records, ok := r.step(0, 10)
		if !ok {
			break
		}
		got = append(got, keys(records)...)
	}
	want(t, "records", got, []string{"r2", "k000", "k001"})
	want(t, "skips", r.skips, []Skip{{Range: root(), Source: root(), From: 3, Offsets: 6, Exact: true}})
	// The commit passes the gap too (scenario L12).
	if err := w.f.CommitOffset("g", testTopic, r.at); err != nil {
		t.Fatal(err)
	}
	want(t, "committed", w.f.CommittedOffsets("g", testTopic), Offsets{left: {left: 1}, right: {right: 1}})
	w.expireAll(left)
	at := Offsets{left: {left: 0}, right: {right: 1}}
	_, sources := w.plan(at)
	_, skip, err := w.f.Seek(sources[0])
	wantErr(t, err, io.EOF)
	want(t, "caught up behind what is gone", fmt.Sprint(skip.From, skip.Offsets), "0 1")
	_, skip, err = w.f.Seek(sources[1])
	wantErr(t, err, io.EOF)
	want(t, "caught up", skip.Offsets, 0)
	_, _, err = w.f.Seek(Source{Range: fence.RangeID{Topic: topicID(4)}})
	wantErr(t, err, cp.ErrNoSuchRange)
}

// A sealed topic is read to its end.
func TestPlanOfASealedTopic(t *testing.T) {
	w := newWorld(t)
	w.n(3)
	w.roll(root())
	w.f.ApplyCommitted(cp.SealTopic{Name: testTopic})
	at, sources := w.plan(nil)
	want(t, "plan", fmt.Sprint(brief(sources), sources[0].Final, sources[0].Limit), fmt.Sprint([]string{"0 reads 0 from 0"}, true, 3))
	want(t, "finished", at.Advance(sources[0], 3), true)
	at, sources = w.plan(at)
	want(t, "nothing more", fmt.Sprint(sources, at), fmt.Sprint([]Source{}, Offsets{root(): {root(): 3}}))
}

// The keys of the property test: ten, all over the keyspace.
const propertyKeys = 10

func keyPosition(k int) uint32 { return uint32(uint64(k) * positions / propertyKeys) }

// ledgerOf is what the property test knows to be true: how many records of each key there are, and how
// many a consumer has had.
type ledgerOf struct{ made, had [propertyKeys]int }

func (l *ledgerOf) produce(w *world, k int) {
	l.made[k]++
	w.produce(at(fmt.Sprintf("%d/%d", k, l.made[k]), keyPosition(k)))
}

// take fails unless the records are the next ones of their keys.
func (l *ledgerOf) take(rt *rapid.T, who string, records []Record) {
	for _, r := range records {
		var k, n int
		if _, err := fmt.Sscanf(string(r.Key), "%d/%d", &k, &n); err != nil {
			rt.Fatal(err)
		}
		if n != l.had[k]+1 {
			rt.Fatalf("%s: key %d: record %d after %d", who, k, n, l.had[k])
		}
		l.had[k] = n
	}
}

func (w *world) reshape(rt *rapid.T) {
	active := w.f.ActiveRangeIDs(testTopic)
	id := active[rapid.IntRange(0, len(active)-1).Draw(rt, "range")]
	view := w.f.Metadata()
	r := view.Range(id)
	if rapid.Bool().Draw(rt, "split") && len(active) < 12 && r.End-r.Start > 1<<24 {
		w.split(id)
		return
	}
	for _, other := range active {
		if o := view.Range(other); o.End-o.Start == r.End-r.Start && r.Start^(r.End-r.Start) == o.Start {
			w.merge(id, other)
			return
		}
	}
}

// Whatever is split, merged and rolled between reads, a consumer gets every record once and each key
// in order (scenario L01), also when it restarts from its offsets at any time, and from several
// sources in any order.
func TestConsumerSeesEveryKeyInOrder(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := newWorld(rt)
		var l ledgerOf
		r := &reader{w: w}
		rt.Repeat(map[string]func(*rapid.T){
			"produce": func(rt *rapid.T) { l.produce(w, rapid.IntRange(0, propertyKeys-1).Draw(rt, "key")) },
			"reshape": func(rt *rapid.T) { w.reshape(rt) },
			"read": func(rt *rapid.T) {
				records, _ := r.step(rapid.IntRange(0, 3).Draw(rt, "pick"), rapid.IntRange(1, 4).Draw(rt, "max"))
				l.take(rt, "consumer", records)
			},
			"restart": func(rt *rapid.T) { r.at = r.at.Clone() },
		})
		for {
			records, ok := r.step(0, 100)
			if !ok {
				break
			}
			l.take(rt, "consumer", records)
		}
		if l.had != l.made {
			rt.Fatalf("had %v of %v; offsets %v", l.had, l.made, r.at)
		}
	})
}

// The same for a group whose members share the ranges, change all the time and keep their places in
// the control plane; nothing that is committed ever moves back (scenario L04).
func TestGroupSeesEveryKeyInOrder(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := newWorld(rt)
		var l ledgerOf
		share := func(n int) (list []fence.RangeID) { // of the active ranges: bits of n say whose
			for i, id := range w.f.ActiveRangeIDs(testTopic) {
				if n>>(i%8)&1 == 1 {
					list = append(list, id)
				}
			}
			return list
		}
		read := func(rt *rapid.T, only []fence.RangeID, pick, max int) bool {
			if len(only) == 0 {
				return false
			}
			r := &reader{w: w, at: w.f.CommittedOffsets("g", testTopic), only: only}
			records, ok := r.step(pick, max)
			l.take(rt, "group", records)
			if err := w.f.CommitOffset("g", testTopic, r.at); err != nil {
				rt.Fatal(err)
			}
			return ok
		}
		rt.Repeat(map[string]func(*rapid.T){
			"produce": func(rt *rapid.T) { l.produce(w, rapid.IntRange(0, propertyKeys-1).Draw(rt, "key")) },
			"reshape": func(rt *rapid.T) { w.reshape(rt) },
			"read": func(rt *rapid.T) {
				only := share(rapid.IntRange(1, 255).Draw(rt, "share"))
				read(rt, only, rapid.IntRange(0, 3).Draw(rt, "pick"), rapid.IntRange(1, 4).Draw(rt, "max"))
			},
		})
		for {
			more := false
			for _, id := range w.f.ActiveRangeIDs(testTopic) {
				more = read(rt, []fence.RangeID{id}, 0, 100) || more
			}
			if !more && !read(rt, w.f.ActiveRangeIDs(testTopic), 0, 100) {
				break
			}
		}
		if l.had != l.made {
			rt.Fatalf("had %v of %v; offsets %v", l.had, l.made, w.f.CommittedOffsets("g", testTopic))
		}
		if kept := w.f.CommittedOffsets("g", testTopic); len(kept) > len(w.f.ActiveRangeIDs(testTopic)) {
			rt.Fatalf("positions of retired ranges stay: %v", kept)
		}
	})
}

// A range that is merged out of ranges merged before is reached whatever the order of its sides.
func TestPlanOfDeepMerges(t *testing.T) {
	w := newWorld(t)
	w.produce(many(16)...)
	for range 3 {
		for _, id := range w.f.ActiveRangeIDs(testTopic) {
			w.split(id)
		}
		w.produce(many(16)...)
	}
	for len(w.f.ActiveRangeIDs(testTopic)) > 1 {
		active := w.f.ActiveRangeIDs(testTopic)
		for i := 0; i < len(active); i += 2 {
			w.merge(active[i], active[i+1])
		}
		w.produce(many(16)...)
	}
	r := &reader{w: w}
	var got []string
	for i := 0; ; i++ {
		records, ok := r.step(i, 3)
		if !ok {
			break
		}
		got = append(got, keys(records)...)
	}
	slices.Sort(got)
	want(t, "records", len(got), 16*7)
	want(t, "offsets", len(r.at), 1)
}

// A plan over a history of thousands of ranges without a record left looks at each a few times: it
// makes so many allocations for each whether there are many or more.
func TestPlanOverManyChanges(t *testing.T) {
	_, a, _ := pair(t, 1, true)
	last, ranges := root(), 1
	grow := func(n int) float64 {
		for ; ranges < n; ranges += 3 {
			left, right, err := a.SplitRange(last)
			if err == nil {
				last, err = a.MergeRanges(left, right)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		return testing.AllocsPerRun(1, func() {
			at, sources, err := a.Plan(testTopic, nil, nil)
			if err != nil || len(sources) != 1 || sources[0].Range != last || len(at) != 1 {
				t.Fatal(at, sources, err)
			}
		}) / float64(ranges)
	}
	few, many := grow(300), grow(6000)
	t.Logf("%.1f allocations for each of 300 ranges, %.1f for each of 6000", few, many)
	if many > 3*few {
		t.Errorf("a plan makes %.1f allocations for each of 300 ranges, and %.1f for each of 6000", few, many)
	}
}
