package frontend

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/ringfence/ringfence/cp"
	"github.com/ringfence/ringfence/fence"
)

func TestProduce(t *testing.T) {
	w := newWorld(t)
	p := w.produce(many(10)...)
	want(t, "placements", p, Placements{root(): {0, 9}})
	got, err := w.f.Read(root(), 0, 100, w.s.read)
	if err != nil {
		t.Fatal(err)
	}
	want(t, "read back", keys(got), keys(many(10)))
	s := w.segment(seg(root(), 0))
	want(t, "segment", fmt.Sprint(s.Start, s.Replicas, s.OpenedAt, s.Writer), fmt.Sprint(0, []cp.NodeID{"n1"}, 1000, 9))
	if s.Salt == 0 {
		t.Fatal("the segment has no salt")
	}
}

func TestProduceNothing(t *testing.T) {
	w := newWorld(t)
	want(t, "placements", w.produce(), Placements{})
	p, d, err := w.f.PlanProduce(testTopic, nil, 1)
	want(t, "plan", fmt.Sprint(p, d, err), fmt.Sprint(Placements{}, []Dispatch{}, nil))
	if w.segment(seg(root(), 0)) != nil {
		t.Fatal("a segment was registered for no records")
	}
	_, err = w.f.PlanBatch(testTopic, BatchInfo{})
	wantErr(t, err, ErrOptions)
}

func TestUnknownTopic(t *testing.T) {
	w := newWorld(t)
	_, err := w.f.Produce("nope", many(1), 1, w.s.append)
	wantErr(t, err, cp.ErrNoSuchTopic)
	_, _, err = w.f.PlanProduce("nope", many(1), 1)
	wantErr(t, err, cp.ErrNoSuchTopic)
	_, err = w.f.PlanBatch("nope", BatchInfo{Count: 1})
	wantErr(t, err, cp.ErrNoSuchTopic)
	_, _, err = w.f.Route("nope", 1)
	wantErr(t, err, cp.ErrNoSuchTopic)
	want(t, "ranges", w.f.ActiveRangeIDs("nope"), nil)
}

// A produce over several ranges goes to each in position order, and every record to exactly one.
func TestProduceOverRanges(t *testing.T) {
	w := newWorld(t)
	w.n(3)
	left, right := w.split(root())
	p := w.produce(many(8)...)
	want(t, "placements", p, Placements{left: {0, 3}, right: {0, 3}})
	for id, wanted := range map[fence.RangeID][]string{left: keys(many(8)[:4]), right: keys(many(8)[4:]), root(): {"r0", "r1", "r2"}} {
		got, err := w.f.Read(id, 0, 100, w.s.read)
		if err != nil {
			t.Fatal(err)
		}
		want(t, fmt.Sprint(id), keys(got), wanted)
	}
}

// A produce that fails in its second range leaves the first one's part stored and reported.
func TestProduceIsNotAtomic(t *testing.T) {
	w := newWorld(t)
	left, right := w.split(root())
	boom := errors.New("boom")
	p, err := w.f.Produce(testTopic, many(4), 1, func(d Dispatch) (uint64, error) {
		if d.Range == right {
			return 0, boom
		}
		return w.s.append(d)
	})
	wantErr(t, err, boom)
	want(t, "placements", p, Placements{left: {0, 1}})
}

// A first produce that fails leaves no cached head, and the retry adopts the registered one.
func TestFailedProduceCachesNoHead(t *testing.T) {
	w := newWorld(t)
	boom := errors.New("unreachable")
	_, err := w.f.Produce(testTopic, many(1), 1, func(Dispatch) (uint64, error) { return 0, boom })
	wantErr(t, err, boom)
	if len(w.f.shard(topicID(1)).heads) != 0 {
		t.Fatal("a head was cached for a failed produce")
	}
	w.produce(many(1)...)
	if w.segment(seg(root(), 1)) != nil {
		t.Fatal("the retry opened a second segment")
	}
}

// The primary refuses in the middle: the range is seated at the end it names, and once the seal
// is recorded the retry opens the successor exactly there.
func TestRefusedProduceSeatsAtTheEnd(t *testing.T) {
	w := newWorld(t)
	w.n(3)
	r, _ := w.f.ActiveRoll(root())
	end, bytes := w.s.fence(r)
	_, err := w.f.Produce(testTopic, many(1), 1, w.s.append)
	wantErr(t, err, fence.ErrFenced)
	if !Retryable(err) {
		t.Fatalf("%v is not retryable", err)
	}
	want(t, "next", w.f.shard(topicID(1)).at(root()).next, 3)
	if err := w.f.RecordSeal(r, end, bytes, 5); err != nil {
		t.Fatal(err)
	}
	want(t, "retry", w.produce(many(1)...), Placements{root(): {3, 3}})
	want(t, "successor starts", w.segment(seg(root(), 1)).Start, 3)
}

func TestPlanProduce(t *testing.T) {
	w := newWorld(t)
	left, right := w.split(root())
	p, ds, err := w.f.PlanProduce(testTopic, many(6), 55)
	if err != nil {
		t.Fatal(err)
	}
	want(t, "placements", p, Placements{left: {0, 2}, right: {0, 2}})
	want(t, "dispatches", len(ds), 2)
	d := ds[0]
	want(t, "first dispatch", fmt.Sprint(d.Range, d.Segment, d.Primary, d.Replicas, d.Base, d.First, d.Last, d.Count, keys(d.Records)),
		fmt.Sprint(left, seg(left, 0), "n1", []cp.NodeID{"n1"}, 0, 0, 2, 3, keys(many(6)[:3])))
	p, _, err = w.f.PlanProduce(testTopic, many(2), 55)
	if err != nil {
		t.Fatal(err)
	}
	want(t, "second plan", p, Placements{left: {3, 3}, right: {3, 3}})
	want(t, "opened at", w.segment(seg(left, 0)).OpenedAt, 55)
}

// All or nothing: a plan whose second range cannot open a head reserves nothing in the first.
func TestPlanProduceIsAllOrNothing(t *testing.T) {
	timeout := errors.New("no answer")
	truth := newTruth(t, 1)
	refuse := false
	f := newFrontend(t, func(o *Options) {
		o.Command = func(topic string, cmd cp.Command) cp.Reply {
			if c, ok := cmd.(cp.RegisterSegment); ok && refuse && c.ID.Range.Seq == 2 {
				return cp.Reply{Err: timeout}
			}
			return truth.apply(cmd)
		}
	})
	if _, err := f.CreateTopic(testTopic, 8, topicID(1), 1); err != nil {
		t.Fatal(err)
	}
	left, _, err := f.SplitRange(root())
	if err != nil {
		t.Fatal(err)
	}
	refuse = true
	before := f.hot()
	p, d, err := f.PlanProduce(testTopic, many(4), 1)
	wantErr(t, err, timeout)
	want(t, "result", fmt.Sprint(p, d), fmt.Sprint(Placements(nil), []Dispatch(nil)))
	want(t, "hot state", f.hot(), before)
	refuse = false
	p, _, err = f.PlanProduce(testTopic, many(4), 1)
	if err != nil {
		t.Fatal(err)
	}
	want(t, "retry", p[left], Span{0, 1})
	if truth.view.Segment(seg(left, 1)) != nil {
		t.Fatal("the retry opened a second segment on the left")
	}
}

// While the second range opens its head, the first one's is sealed by somebody else: the plan starts over.
func TestPlanProduceStartsOver(t *testing.T) {
	truth := newTruth(t, 1)
	meanwhile := func(fence.RangeID) {}
	f := newFrontend(t, func(o *Options) {
		o.Command = func(_ string, cmd cp.Command) cp.Reply {
			if c, ok := cmd.(cp.RegisterSegment); ok {
				meanwhile(c.ID.Range)
			}
			return truth.apply(cmd)
		}
	})
	if _, err := f.CreateTopic(testTopic, 8, topicID(1), 1); err != nil {
		t.Fatal(err)
	}
	left, right, err := f.SplitRange(root())
	if err != nil {
		t.Fatal(err)
	}
	meanwhile = func(id fence.RangeID) {
		if id == right {
			cmd := cp.SealSegment{ID: seg(left, 0), Length: 6, At: 1}
			truth.do(cmd)
			f.ApplyCommitted(cmd)
		}
	}
	p, ds, err := f.PlanProduce(testTopic, many(4), 1)
	want(t, "plan", fmt.Sprint(p, len(ds), err), fmt.Sprint(Placements{left: {6, 7}, right: {0, 1}}, 2, nil))
	want(t, "left's segment", ds[0].Segment, seg(left, 1))
}

func TestPlanBatch(t *testing.T) {
	w := newWorld(t)
	left, right := w.split(root())
	half := uint32(1 << 31)
	d, err := w.f.PlanBatch(testTopic, BatchInfo{MinPos: 5, MaxPos: half - 1, Count: 3, Bytes: 100, Now: 1})
	if err != nil {
		t.Fatal(err)
	}
	want(t, "left", fmt.Sprint(d.Range, d.Segment, d.Primary, d.Base, d.First, d.Last, d.Count), fmt.Sprint(left, seg(left, 0), "n1", 0, 0, 2, 3))
	d, err = w.f.PlanBatch(testTopic, BatchInfo{MinPos: half, MaxPos: positions - 1, Count: 2, Bytes: 100})
	if err != nil {
		t.Fatal(err)
	}
	want(t, "right", d.Range, right)
	d, err = w.f.PlanBatch(testTopic, BatchInfo{MinPos: 0, MaxPos: 0, Count: 2})
	if err != nil {
		t.Fatal(err)
	}
	want(t, "reserved behind the first", fmt.Sprint(d.First, d.Last), fmt.Sprint(3, 4))
	_, err = w.f.PlanBatch(testTopic, BatchInfo{MinPos: half - 1, MaxPos: half, Count: 2})
	wantErr(t, err, ErrStraddles)
	for _, bad := range []BatchInfo{{Count: 0}, {Count: 1, MinPos: 2, MaxPos: 1}, {Count: 1, Bytes: -1}} {
		_, err = w.f.PlanBatch(testTopic, bad)
		wantErr(t, err, ErrOptions)
	}
}

// Whoever may not wait gets a plan only where a head is cached.
func TestTryPlanIn(t *testing.T) {
	w := newWorld(t)
	h, _ := w.f.Topic(testTopic)
	before := w.f.hot()
	if _, ok := w.f.TryPlanIn(h, BatchInfo{Count: 1}); ok {
		t.Fatal("planned without a head")
	}
	want(t, "state", w.f.hot(), before)
	w.n(1)
	d, ok := w.f.TryPlanIn(h, BatchInfo{Count: 2, MaxPos: 9})
	want(t, "plan", fmt.Sprint(d.First, d.Last, ok), "1 2 true")
	w.split(root())
	if _, ok := w.f.TryPlanIn(h, BatchInfo{Count: 2, MaxPos: positions - 1}); ok {
		t.Fatal("planned a batch over two ranges")
	}
}

func TestOpenHead(t *testing.T) {
	w := newWorld(t)
	id, err := w.f.OpenHead(root(), 42)
	if err != nil {
		t.Fatal(err)
	}
	want(t, "segment", id, seg(root(), 0))
	want(t, "opened at", w.segment(id).OpenedAt, 42)
	again, err := w.f.OpenHead(root(), 43)
	want(t, "again", fmt.Sprint(again, err), fmt.Sprint(id, nil))
	_, err = w.f.OpenHead(fence.RangeID{Topic: topicID(5)}, 1)
	wantErr(t, err, cp.ErrNoSuchRange)
}

func TestRouteAndVersion(t *testing.T) {
	w := newWorld(t)
	h, _ := w.f.Topic(testTopic)
	want(t, "handle", fmt.Sprint(h.ID(), h.Name()), fmt.Sprint(topicID(1), testTopic))
	id, v1, err := w.f.Route(testTopic, 7)
	want(t, "route", fmt.Sprint(id, v1, err), fmt.Sprint(root(), h.Version(), nil))
	w.n(2)
	w.roll(root())
	w.n(1)
	want(t, "a roll changes no version", h.Version(), v1)
	left, right := w.split(root())
	if h.Version() == v1 {
		t.Fatal("a split does not change the version")
	}
	slices, v2 := h.Slices()
	want(t, "slices", fmt.Sprint(slices, v2), fmt.Sprint([]Slice{{left, 0, 1<<31 - 1}, {right, 1 << 31, positions - 1}}, h.Version()))
	want(t, "active", w.f.ActiveRangeIDs(testTopic), []fence.RangeID{left, right})
	id, v, err := w.f.Route(testTopic, 1<<31)
	want(t, "route to the right half", fmt.Sprint(id, v, err), fmt.Sprint(right, v2, nil))
	// A topic that goes and comes back never shows an old version.
	if err := w.f.DeleteTopic(testTopic); err != nil {
		t.Fatal(err)
	}
	if _, err := w.f.CreateTopic(testTopic, 8, topicID(3), 1); err != nil {
		t.Fatal(err)
	}
	h2, _ := w.f.Topic(testTopic)
	if v := h2.Version(); v == v1 || v == v2 {
		t.Fatalf("version %d was used before", v)
	}
}

// Every position of a finely split topic leads to the range that owns it.
func TestRouteEveryPosition(t *testing.T) {
	w := newWorld(t)
	for range 4 {
		for _, id := range w.f.ActiveRangeIDs(testTopic) {
			w.split(id)
		}
	}
	view := w.f.Metadata()
	for i := range 256 {
		for _, pos := range []uint32{uint32(i) << 24, uint32(i)<<24 | 1<<24 - 1} {
			id, _, err := w.f.Route(testTopic, pos)
			if err != nil {
				t.Fatal(err)
			}
			if r := view.Range(id); uint64(pos) < r.Start || r.End <= uint64(pos) || r.Phase != cp.Active {
				t.Fatalf("position %d leads to %+v", pos, r)
			}
		}
	}
}

// A sealed topic takes nothing more, and says so.
func TestSealedTopicIsUnroutable(t *testing.T) {
	w := newWorld(t)
	w.n(1)
	w.f.ApplyCommitted(cp.SealTopic{Name: testTopic})
	_, err := w.f.PlanBatch(testTopic, BatchInfo{Count: 1})
	wantErr(t, err, ErrUnroutable)
	_, err = w.f.Produce(testTopic, many(1), 1, w.s.append)
	wantErr(t, err, ErrUnroutable)
	_, _, err = w.f.Route(testTopic, 1)
	wantErr(t, err, ErrUnroutable)
}

func TestAdoptOffsets(t *testing.T) {
	w := newWorld(t)
	plan := func(n uint32) Dispatch {
		t.Helper()
		d, err := w.f.PlanBatch(testTopic, BatchInfo{Count: n})
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	mark := func() uint64 {
		t.Helper()
		m, err := w.f.CommitMark(root())
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	next := func() uint64 { return w.f.shard(topicID(1)).at(root()).next }
	d := plan(5)
	want(t, "nothing is committed by a plan", mark(), 0)
	plan(5)
	w.f.AdoptOffsets(root(), d.Segment, 2) // a retry was trimmed: the truth is lower than the plan
	want(t, "max, not set", fmt.Sprint(next(), mark()), "10 3")
	w.f.AdoptOffsets(root(), d.Segment, 19)
	want(t, "higher than planned", fmt.Sprint(next(), mark()), "20 20")
	w.f.AdoptOffsets(root(), seg(root(), 7), 99)
	want(t, "another segment", fmt.Sprint(next(), mark()), "20 20")
	w.f.AdoptOffsets(fence.RangeID{Topic: topicID(8)}, seg(root(), 0), 99)

	// A late answer after the head has closed would wedge the range (incident F11).
	r, _ := w.f.ActiveRoll(root())
	if err := w.f.RecordSeal(r, 20, 1, 1); err != nil {
		t.Fatal(err)
	}
	w.f.AdoptOffsets(root(), d.Segment, 30)
	want(t, "late answer", fmt.Sprint(next(), mark()), "20 20")
	want(t, "successor", plan(1).Base, 20)
}

// Whoever has read a record from the primary may say so, also where this frontend has no head cached.
func TestAdoptOffsetsOfAHeadThatIsNotCached(t *testing.T) {
	w := newWorld(t)
	id, err := w.f.OpenHead(root(), 1)
	if err != nil {
		t.Fatal(err)
	}
	w.f.AdoptOffsets(root(), id, 4)
	m, err := w.f.CommitMark(root())
	want(t, "mark", fmt.Sprint(m, err), "5 <nil>")
}

// Everybody who needs the same head at the same time gets it from one registration, or its error.
func TestOneRegistrationForMany(t *testing.T) {
	const n = 32
	for _, refusal := range []error{nil, errors.New("no answer")} {
		synctest.Test(t, func(t *testing.T) {
			truth := newTruth(t, 1)
			registered := 0
			gate := make(chan struct{})
			f := newFrontend(t, func(o *Options) {
				o.Command = func(_ string, cmd cp.Command) cp.Reply {
					if _, ok := cmd.(cp.RegisterSegment); ok {
						registered++ // a second one at the same time would be a race, too
						<-gate
						if refusal != nil {
							return cp.Reply{Err: refusal}
						}
					}
					return truth.apply(cmd)
				}
			})
			if _, err := f.CreateTopic(testTopic, 8, topicID(1), 1); err != nil {
				t.Fatal(err)
			}
			firsts := make([]uint64, n)
			for i := range n {
				go func() {
					d, err := f.PlanBatch(testTopic, BatchInfo{Count: 2})
					if !errors.Is(err, refusal) {
						t.Error(err)
					}
					firsts[i] = d.First
				}()
			}
			synctest.Wait() // all of them wait for the one
			close(gate)
			synctest.Wait()
			want(t, "registrations", registered, 1)
			if refusal != nil {
				return
			}
			slices.Sort(firsts)
			for i, first := range firsts {
				if first != uint64(2*i) {
					t.Fatalf("reservations overlap or leave a gap: %v", firsts)
				}
			}
		})
	}
}
