package frontend

import (
	"errors"
	"fmt"
	"maps"
	"testing"

	"github.com/ringfence/ringfence/cp"
	"github.com/ringfence/ringfence/fence"
	"pgregory.net/rapid"
)

// consume reads a page and fails the test on any error.
func (w *world) consume(id fence.RangeID, pos cp.Position, max int) Page {
	w.t.Helper()
	before := fmt.Sprint(pos)
	page, err := w.f.ReadConsume(id, pos, max, w.s.read)
	if err != nil {
		w.t.Fatal(err)
	}
	if len(page.Records) > max || fmt.Sprint(pos) != before {
		w.t.Fatalf("%d records of %d; position %s became %v", len(page.Records), max, before, pos)
	}
	return page
}

// drain consumes until the range is caught up.
func (w *world) drain(id fence.RangeID, pos cp.Position, max int) (list []string, _ cp.Position, skips []Skip) {
	w.t.Helper()
	for range 10000 {
		page := w.consume(id, pos, max)
		list, skips, pos = append(list, keys(page.Records)...), append(skips, page.Skips...), page.Position
		if page.End {
			return list, pos, skips
		}
	}
	w.t.Fatal("never caught up")
	return
}

func TestReadConsumeTails(t *testing.T) {
	w := newWorld(t)
	page := w.consume(root(), nil, 10)
	want(t, "nothing yet", fmt.Sprint(page.Records, page.Position, page.End), fmt.Sprint([]Record{}, cp.Position{root(): 0}, true))
	w.n(3)
	page = w.consume(root(), page.Position, 2)
	want(t, "full page", fmt.Sprint(keys(page.Records), page.Position, page.End), fmt.Sprint([]string{"r0", "r1"}, cp.Position{root(): 2}, false))
	page = w.consume(root(), page.Position, 2)
	want(t, "rest", fmt.Sprint(keys(page.Records), page.Position, page.End), fmt.Sprint([]string{"r2"}, cp.Position{root(): 3}, true))
	again := w.consume(root(), page.Position, 2)
	want(t, "caught up", fmt.Sprint(again.Records, again.Position, again.End), fmt.Sprint([]Record{}, page.Position, true))
	w.roll(root())
	w.produce(at("later", 9))
	page = w.consume(root(), page.Position, 2)
	want(t, "over a roll", keys(page.Records), []string{"later"})
}

// The records of an ancestor come before a range's own, cut to its slice, each exactly once.
func TestReadConsumeOverSplits(t *testing.T) {
	w := newWorld(t)
	w.produce(many(8)...)
	left, right := w.split(root())
	w.produce(at("l", 1), at("r", 1<<31))
	list, pos, _ := w.drain(left, nil, 3)
	want(t, "left", list, append(keys(many(8)[:4]), "l"))
	want(t, "position", pos, cp.Position{left: 1})
	list, _, _ = w.drain(right, nil, 100)
	want(t, "right", list, append(keys(many(8)[4:]), "r"))
	a, b := w.split(left)
	w.produce(at("a", 1), at("b", 1<<30))
	list, _, _ = w.drain(a, nil, 1)
	want(t, "grandchild", list, []string{"k000", "k001", "l", "a"})
	list, _, _ = w.drain(b, nil, 1)
	want(t, "its sibling", list, []string{"k002", "k003", "b"})
	// A merge brings them together again, oldest first.
	m := w.merge(a, b)
	w.produce(at("m", 5))
	list, _, _ = w.drain(m, nil, 2)
	want(t, "merged", list, []string{"k000", "k001", "k002", "k003", "l", "a", "b", "m"})
	h, err := w.f.ReadHistory(m, w.s.read)
	want(t, "history", fmt.Sprint(keys(h), err), fmt.Sprint(list, nil))
}

// An ancestor that never had a key of the range is not read for it.
func TestUnrelatedAncestorsAreLeftOut(t *testing.T) {
	w := newWorld(t)
	left, right := w.split(root())
	w.produce(many(4)...)
	m := w.merge(left, right)
	a, _ := w.split(m)
	page := w.consume(a, cp.Position{right: 0, a: 0}, 10)
	want(t, "page", fmt.Sprint(len(page.Records), page.Position), fmt.Sprint(0, cp.Position{a: 0}))
	page = w.consume(a, nil, 10)
	want(t, "from the start", fmt.Sprint(keys(page.Records), page.Position, w.s.reads), fmt.Sprint([]string{"k000", "k001"}, cp.Position{a: 0}, 1))
}

// A child goes on where its parent's consumer stood.
func TestReadConsumeFromTheParentsPosition(t *testing.T) {
	w := newWorld(t)
	w.produce(many(8)...)
	page := w.consume(root(), nil, 2)
	left, right := w.split(root())
	at := Offsets{root(): page.Position}
	for id, wanted := range map[fence.RangeID][]string{left: keys(many(8)[2:4]), right: keys(many(8)[4:])} {
		pos, err := w.f.StartPosition(id, at)
		want(t, "start", fmt.Sprint(pos, err), fmt.Sprint(cp.Position{root(): 2, id: 0}, nil))
		list, _, _ := w.drain(id, pos, 10)
		want(t, "goes on", list, wanted)
	}
}

func TestForgedPositions(t *testing.T) {
	w := newWorld(t)
	w.n(3)
	left, right := w.split(root())
	for name, pos := range map[string]cp.Position{
		"sibling": {right: 0}, "other topic": {{Topic: topicID(9)}: 0}, "unknown range": {{Topic: topicID(1), Seq: 77}: 4},
	} {
		_, err := w.f.ReadConsume(left, pos, 10, w.s.read)
		if !errors.Is(err, ErrInvalidPosition) {
			t.Errorf("%s: %v", name, err)
		}
		_, err = w.f.StreamHistory(left, pos, 10, w.s.read)
		wantErr(t, err, ErrInvalidPosition)
	}
	// An offset no one can have reached waits and moves nothing.
	page := w.consume(left, cp.Position{left: 500}, 10)
	want(t, "beyond the end", fmt.Sprint(page.Position, page.End, page.Skips), fmt.Sprint(cp.Position{left: 500}, true, []Skip{}))
	page = w.consume(left, cp.Position{root(): 500, left: 0}, 10)
	want(t, "beyond a parent's end", fmt.Sprint(page.Position, page.Skips), fmt.Sprint(cp.Position{left: 0}, []Skip{}))
	_, err := w.f.ReadConsume(fence.RangeID{Topic: topicID(1), Seq: 9}, nil, 1, w.s.read)
	wantErr(t, err, cp.ErrNoSuchRange)
	_, err = w.f.ReadConsume(left, nil, 0, w.s.read)
	wantErr(t, err, ErrOptions)
	_, err = w.f.StreamHistory(left, nil, 0, w.s.read)
	wantErr(t, err, ErrOptions)
}

// A page that fails moves nothing, also when it had records already (incident C22).
func TestFailedPageMovesNothing(t *testing.T) {
	w := newWorld(t)
	w.produce(many(4)...)
	left, _ := w.split(root())
	w.n(2)
	boom := errors.New("disk")
	w.s.fail[seg(left, 0)] = boom
	page, err := w.f.ReadConsume(left, nil, 100, w.s.read)
	wantErr(t, err, boom)
	want(t, "page", page, Page{})
	delete(w.s.fail, seg(left, 0))
	list, _, _ := w.drain(left, nil, 100)
	want(t, "afterwards", list, []string{"k000", "k001", "r0", "r1"})
}

// A consumer of a range that has retired reads it to its end, and no further.
func TestReadConsumeOfARetiredRange(t *testing.T) {
	w := newWorld(t)
	w.n(3)
	left, _ := w.split(root())
	w.n(1)
	list, pos, _ := w.drain(root(), nil, 2)
	want(t, "records", list, []string{"r0", "r1", "r2"})
	want(t, "position", pos, cp.Position{root(): 3})
	list, _, _ = w.drain(root(), cp.Position{}, 2)
	want(t, "a finished position", list, nil)
	_ = left
}

// rolled stores n segments of three records each.
func rolled(t *testing.T, n int) *world {
	w := newWorld(t)
	for range n {
		w.n(3)
		w.roll(root())
	}
	return w
}

func (w *world) expire(n ...uint32) {
	w.t.Helper()
	for _, i := range n {
		if err := w.f.DeleteSegment(seg(root(), i)); err != nil {
			w.t.Fatal(err)
		}
	}
}

// expireAll rolls a range and deletes its segments.
func (w *world) expireAll(id fence.RangeID) {
	w.t.Helper()
	w.roll(id)
	for s := range w.f.Metadata().Segments(id) {
		if err := w.f.DeleteSegment(s.ID); err != nil {
			w.t.Fatal(err)
		}
	}
}

func TestSkips(t *testing.T) {
	skip := func(from, n uint64, o Origin) []Skip {
		return []Skip{{Range: root(), Source: root(), From: from, Offsets: n, Exact: true, Origin: o}}
	}
	for name, tc := range map[string]struct {
		expired []uint32
		from    cp.Position
		skips   []Skip
		first   uint64
	}{
		"below the floor":     {[]uint32{0}, cp.Position{root(): 1}, skip(1, 2, FromCursor), 3},
		"at the floor":        {[]uint32{0}, cp.Position{root(): 3}, nil, 3},
		"above the floor":     {[]uint32{0}, cp.Position{root(): 4}, nil, 4},
		"from the start":      {[]uint32{0, 1}, nil, skip(0, 6, FromStart), 6},
		"inside a hole":       {[]uint32{1}, cp.Position{root(): 4}, skip(4, 2, FromCursor), 6},
		"at the hole's begin": {[]uint32{1}, cp.Position{root(): 3}, skip(3, 3, FromCursor), 6},
	} {
		w := rolled(t, 4)
		w.expire(tc.expired...)
		page := w.consume(root(), tc.from, 2)
		want(t, name, fmt.Sprint(page.Skips, page.Records[0].Offset), fmt.Sprint(tc.skips, tc.first))
		page = w.consume(root(), page.Position, 2)
		want(t, name+", not again", len(page.Skips), 0)
	}
	// Across a hole in the middle of a page.
	w := rolled(t, 3)
	w.expire(1)
	page := w.consume(root(), cp.Position{root(): 2}, 10)
	want(t, "across", fmt.Sprint(page.Skips, keys(page.Records)), fmt.Sprint(skip(3, 3, FromCursor), []string{"r2", "r0", "r1", "r2"}))
}

// Everything has expired: a reader that waits is taken to where the range goes on, and told once
// (incident C29).
func TestSkipWhileCaughtUp(t *testing.T) {
	w := rolled(t, 2)
	w.expire(0, 1)
	page := w.consume(root(), cp.Position{root(): 2}, 10)
	want(t, "page", fmt.Sprint(len(page.Records), page.End, page.Position, page.Skips[0].From, page.Skips[0].Offsets),
		fmt.Sprint(0, true, cp.Position{root(): 6}, 2, 4))
	for range 10 {
		page = w.consume(root(), page.Position, 10)
		want(t, "polled again", len(page.Skips), 0)
	}
	w.n(1)
	page = w.consume(root(), page.Position, 10)
	want(t, "goes on", fmt.Sprint(page.Records[0].Offset, len(page.Skips)), "6 0")
}

// A hole before a head that is still empty is reported with the records behind it.
func TestSkipIsReportedWhenDelivered(t *testing.T) {
	w := rolled(t, 3)
	if _, err := w.f.OpenHead(root(), 1); err != nil {
		t.Fatal(err)
	}
	w.expire(1, 2)
	page := w.consume(root(), cp.Position{root(): 3}, 10)
	want(t, "not yet", fmt.Sprint(page.Position, len(page.Skips), page.End), fmt.Sprint(cp.Position{root(): 3}, 0, true))
	w.n(1)
	page = w.consume(root(), page.Position, 10)
	want(t, "now", fmt.Sprint(page.Skips[0].From, page.Skips[0].Offsets, page.Records[0].Offset), "3 6 9")
}

// What an ancestor has lost is at most so many records of the child's; the end of the ancestor is
// known although none of its segments is left.
func TestSkipsOfAnAncestor(t *testing.T) {
	for _, tc := range []struct {
		from cp.Position
		skip string
	}{
		{cp.Position{root(): 1}, "1 5 false cursor"},
		{nil, "0 6 false start"},
		{cp.Position{root(): 6}, ""},
	} {
		w := rolled(t, 2)
		left, _ := w.split(root())
		w.n(1)
		w.expire(0, 1)
		pos := maps.Clone(tc.from)
		if pos != nil {
			pos[left] = 0
		}
		page := w.consume(left, pos, 10)
		got := ""
		for _, s := range page.Skips {
			if s.Range != left || s.Source != root() {
				t.Fatalf("skip %+v", s)
			}
			got += fmt.Sprint(s.From, s.Offsets, s.Exact, " ", s.Origin)
		}
		want(t, "skip", got, tc.skip)
		want(t, "records", fmt.Sprint(keys(page.Records), page.Position), fmt.Sprint([]string{"r0"}, cp.Position{left: 1}))
	}
}

// A consumer whose keys are rare gets its position back before it has read everything.
func TestPageIsBoundedInReads(t *testing.T) {
	w := newWorld(t)
	for range 3 * maxReads {
		w.produce(at("x", positions-1))
	}
	left, _ := w.split(root())
	page := w.consume(left, nil, 1)
	want(t, "first page", fmt.Sprint(len(page.Records), page.End, page.Position[root()] > 0), "0 false true")
	list, _, _ := w.drain(left, nil, 1)
	want(t, "in the end", len(list), 0)
}

func TestStreamHistory(t *testing.T) {
	w := rolled(t, 3)
	left, _ := w.split(root())
	w.n(2)
	w.expire(1)
	var list []string
	var pos cp.Position
	pages := 0
	for {
		page, err := w.f.StreamHistory(left, pos, 2, w.s.read)
		if err != nil {
			t.Fatal(err)
		}
		if len(page.Skips) > 0 {
			t.Fatal("history speaks of holes")
		}
		pages++
		list, pos = append(list, keys(page.Records)...), page.Position
		if page.End {
			break
		}
	}
	want(t, "records", list, []string{"r0", "r1", "r2", "r0", "r1", "r2", "r0", "r1"})
	for range 2 {
		page, err := w.f.StreamHistory(left, pos, 2, w.s.read)
		want(t, "done for ever", fmt.Sprint(page.Records, page.End, page.Position, err), fmt.Sprint([]Record{}, true, pos, nil))
	}
	// An unknown end is no obstacle to what is known.
	f2 := newFrontend(t, func(o *Options) { o.View = w.f.Metadata() })
	f2.SeedUnrecoveredRange(left, 0)
	h, err := f2.ReadHistory(left, w.s.read)
	want(t, "while unrecovered", fmt.Sprint(len(h), err), "6 <nil>")
}

// A page of an ancestor may have no records of the child's, and is not the end for that.
func TestHistoryPagesMayBeEmpty(t *testing.T) {
	w := newWorld(t)
	w.produce(at("x", positions-1), at("y", 0))
	left, _ := w.split(root())
	page, err := w.f.StreamHistory(left, nil, 1, w.s.read)
	want(t, "page", fmt.Sprint(len(page.Records), page.End, page.Position, err), fmt.Sprint(0, false, cp.Position{root(): 1, left: 0}, nil))
	h, err := w.f.ReadHistory(left, w.s.read)
	want(t, "all", fmt.Sprint(keys(h), err), "[y] <nil>")
	// An active segment that answers nothing ends the read early instead of looping for ever (incident C6).
	w.n(1)
	h, err = w.f.ReadHistory(left, func(q ReadRequest) ([]Record, error) {
		if q.Segment.Phase == cp.Active {
			return nil, nil
		}
		return w.s.read(q)
	})
	want(t, "empty page", fmt.Sprint(keys(h), err), "[y] <nil>")
}

// Every offset is delivered or reported skipped, exactly once, whichever one-record segments are gone
// and however large the pages are.
func TestEveryOffsetIsDeliveredOrSkipped(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := newWorld(rt)
		n := rapid.IntRange(1, 8).Draw(rt, "segments")
		for range n {
			w.n(1)
			w.roll(root())
		}
		live := rapid.IntRange(0, 2).Draw(rt, "live")
		w.n(live)
		for i := range n {
			if rapid.Bool().Draw(rt, "gone") {
				w.expire(uint32(i))
			}
		}
		seen := map[uint64]int{}
		from := rapid.Uint64Range(0, uint64(n)).Draw(rt, "from")
		pos := cp.Position{root(): from}
		max := rapid.IntRange(1, 4).Draw(rt, "max")
		for {
			page := w.consume(root(), pos, max)
			for _, r := range page.Records {
				seen[r.Offset]++
			}
			for _, s := range page.Skips {
				for o := s.From; o < s.From+s.Offsets; o++ {
					seen[o]++
				}
			}
			pos = page.Position
			if page.End {
				break
			}
		}
		end := pos[root()]
		for o := from; o < end; o++ {
			if seen[o] != 1 {
				rt.Fatalf("offset %d came %d times", o, seen[o])
			}
		}
		if got := uint64(len(seen)); got != end-from || end < uint64(n+live) && live > 0 {
			rt.Fatalf("%d offsets from %d, position %d of %d", got, from, end, n+live)
		}
	})
}
