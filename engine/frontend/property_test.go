package frontend

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"strconv"
	"testing"

	"github.com/ringfence/ringfence/cp"
	"github.com/ringfence/ringfence/fence"
	"pgregory.net/rapid"
)

const usualChecks = 400

// TestMain sets how long the property tests look: longer than rapid by itself, and much longer with
// RINGFENCE_LONG=1. Flags given to go test win.
func TestMain(m *testing.M) {
	flag.Parse()
	effort := map[string]string{"rapid.checks": strconv.Itoa(usualChecks), "rapid.steps": "60"}
	if os.Getenv("RINGFENCE_LONG") != "" {
		effort = map[string]string{"rapid.checks": "30000", "rapid.steps": "100"}
	}
	flag.Visit(func(f *flag.Flag) { delete(effort, f.Name) })
	for name, value := range effort {
		if err := flag.Set(name, value); err != nil {
			panic(err)
		}
	}
	os.Exit(m.Run())
}

// Two frontends, one control plane, and everything that can go wrong between them; after every step the
// invariants hold:
//
//	I1   one writer of offsets     offsets come from copies alone; an acknowledged one is its record's for ever
//	I2   length is what closing answered    a seal is recorded only between a fenced copy's marks (sim.apply)
//	I3   fence, seal, successor    no seal without a fenced copy; segments start where the last one was sealed
//	I4   a fence is a latch        a fenced copy never grows
//	I5   segments tile the range   and at most one is active
//	I6   a sealed length is final  (sim.apply, and checkSegments against the view of each frontend)
//	I7   acknowledged is durable   what clients were told lies below the committed end; no commit mark is above it
//	I8   failed is not empty       an unlearned end, an old view and a lost segment are errors and move no reader
//	I9   nothing is destroyed early    only sealed segments are ever deleted
//	I10  unknown is not false      unread vnodes keep what was known, unanswered commands move nothing
//
// In the end, without faults, every frontend produces to every range, and a consumer has had every record
// once or was told of its loss, each key in order.
func TestInvariants(t *testing.T) {
	total := map[string]int{}
	// A property test that never met what it is about proves nothing: rare faults get
	// more runs. Fewer checks than usual, asked for by a flag, may miss some.
	checks, err := strconv.Atoi(flag.Lookup("rapid.checks").Value.String())
	if err != nil {
		t.Fatal(err)
	}
	for range 6 {
		rapid.Check(t, func(rt *rapid.T) { invariants(rt, total) })
		if len(neverMet(total)) == 0 || checks < usualChecks {
			break
		}
	}
	for _, what := range neverMet(total) {
		if checks >= usualChecks {
			t.Errorf("never happened: %s", what)
		}
	}
	t.Logf("%v", total)
}

// neverMet lists what the property is about and did not happen.
func neverMet(total map[string]int) (list []string) {
	for _, what := range []string{
		"split", "merge", "refused by a fence", "held behind its own fence", "failover dropped a tail",
		"orphan sealed", "end not learned", "skip", "command lost", "command landed unanswered", "restart",
		"fence lost", "fence repeated", "vnode unread", "refresh",
	} {
		if total[what] == 0 {
			list = append(list, what)
		}
	}
	return list
}

func invariants(rt *rapid.T, total map[string]int) {
	s := newSim(rt)
	node := func(rt *rapid.T) int { return rapid.IntRange(0, 1).Draw(rt, "node") }
	rt.Repeat(map[string]func(*rapid.T){
		"": func(rt *rapid.T) { s.check() },
		"produce": func(rt *rapid.T) {
			keys := rapid.SliceOfNDistinct(rapid.IntRange(0, propertyKeys-1), 1, 3, rapid.ID[int]).Draw(rt, "keys")
			positions := make([]uint32, len(keys))
			for i, k := range keys {
				positions[i] = keyPosition(k)
			}
			s.plan(node(rt), positions, false, nil)
		},
		"dispatch": func(rt *rapid.T) { each(rt, &s.dispatches, s.deliver) },
		"quorum":   func(rt *rapid.T) { s.anyCopy(rt, s.quorum) },
		"answer":   func(rt *rapid.T) { each(rt, &s.answers, s.answer) },
		"fences":   func(rt *rapid.T) { s.sendFences(node(rt)) },
		"fence":    func(rt *rapid.T) { each(rt, &s.fences, s.deliverFence) },
		"hurry": func(rt *rapid.T) { // fences that are due go out and arrive
			s.sendFences(node(rt))
			each(rt, &s.fences, s.deliverFence)
		},
		"fenced":    func(rt *rapid.T) { each(rt, &s.ends, s.fenceAnswer(rapid.IntRange(0, 5).Draw(rt, "fate"))) },
		"clock":     func(rt *rapid.T) { s.now += Instant(rapid.IntRange(1, 1500).Draw(rt, "ms")) * ms; s.wall++ },
		"age":       func(rt *rapid.T) { s.ageRolls(node(rt)) },
		"failover":  func(rt *rapid.T) { s.anyFailover(rt) },
		"orphans":   func(rt *rapid.T) { s.orphans() },
		"reshape":   func(rt *rapid.T) { s.anyReshape(rt, node(rt)) },
		"read":      func(rt *rapid.T) { s.beginRefresh(node(rt)) },
		"refresh":   func(rt *rapid.T) { s.endRefresh(rt, node(rt)) },
		"restart":   func(rt *rapid.T) { s.restart(node(rt)) },
		"retention": func(rt *rapid.T) { s.retention(rt, node(rt)) },
		"consume": func(rt *rapid.T) {
			s.consume(s.nodes[node(rt)].f, rapid.IntRange(0, 3).Draw(rt, "pick"), rapid.IntRange(1, 4).Draw(rt, "max"))
		},
		"fault": func(rt *rapid.T) { s.fault = rapid.SampledFrom([]string{"lost", "landed"}).Draw(rt, "fault") },
	})
	s.converge()
	for what, n := range s.seen {
		total[what] += n
	}
}

// each takes one message of a queue, not always the oldest, and sometimes leaves it there to come again.
func each[M any](rt *rapid.T, queue *[]M, handle func(M)) {
	if len(*queue) == 0 {
		return
	}
	i := rapid.IntRange(0, min(2, len(*queue)-1)).Draw(rt, "message")
	m := (*queue)[i]
	*queue = append((*queue)[:i:i], (*queue)[i+1:]...)
	handle(m)
}

func (s *sim) anyCopy(rt *rapid.T, use func(fence.SegmentID)) {
	if active := s.active(); len(active) > 0 {
		seg := active[rapid.IntRange(0, len(active)-1).Draw(rt, "segment")]
		if s.copies[seg.ID] != nil {
			use(seg.ID)
		}
	}
}

func (s *sim) sendFences(i int) {
	sentAt := s.now
	for _, r := range s.nodes[i].f.FencesToSend(sentAt, window) {
		s.fences = append(s.fences, fencing{from: i, roll: r})
	}
	if again := s.nodes[i].f.FencesToSend(sentAt, window); len(again) > 0 {
		s.t.Fatalf("fences sent twice in one window: %v", again)
	}
}

func (s *sim) deliverFence(m fencing) {
	var ok bool
	if m.end, m.bytes, ok = s.fenceCopy(m.roll); ok {
		s.ends = append(s.ends, m)
	}
}

// fenceAnswer brings a fence's answer home: recorded, lost, repeated, or taken for a failure.
func (s *sim) fenceAnswer(fate int) func(fencing) {
	return func(m fencing) {
		n := s.nodes[m.from]
		switch fate {
		case 0:
			s.did("fence lost")
			return
		case 1:
			n.f.ForgetFence(m.roll)
		case 2:
			s.did("fence repeated")
			s.ends = append(s.ends, m)
			fallthrough
		default:
			err := s.unmoved(n.f, func() error { return n.f.RecordFence(m.roll, m.end, m.bytes, s.wall) })
			if err != nil {
				s.allowed(err)
				n.f.ForgetFence(m.roll)
			}
		}
		held := n.held
		n.held = nil
		for _, h := range held {
			s.plan(m.from, keysOf(h.records), true, h.records)
		}
	}
}

func (s *sim) ageRolls(i int) {
	var list []cp.Segment
	for _, seg := range s.active() {
		list = append(list, *seg)
	}
	s.nodes[i].f.RequestRolls(list)
}

func (s *sim) anyFailover(rt *rapid.T) {
	active := s.active()
	if len(active) == 0 {
		return
	}
	seg := active[rapid.IntRange(0, len(active)-1).Draw(rt, "segment")]
	via := (*Frontend)(nil)
	if n := rapid.IntRange(0, 2).Draw(rt, "via"); n < 2 {
		via = s.nodes[n].f
	}
	s.failover(seg, rapid.IntRange(0, 3).Draw(rt, "cut"), via)
}

func (s *sim) anyReshape(rt *rapid.T, i int) {
	active := s.nodes[i].f.ActiveRangeIDs(testTopic)
	if len(active) > 0 {
		s.reshape(i, active[rapid.IntRange(0, len(active)-1).Draw(rt, "range")], rapid.Bool().Draw(rt, "merge"))
	}
}

func (s *sim) beginRefresh(i int) {
	if s.nodes[i].snapshot == nil {
		v := s.truth.snapshot()
		s.nodes[i].snapshot = &v
	}
}

// endRefresh installs a snapshot that was read some time ago, with or without every vnode.
func (s *sim) endRefresh(rt *rapid.T, i int) {
	n := s.nodes[i]
	if n.snapshot == nil {
		s.beginRefresh(i)
	}
	v := *n.snapshot
	n.snapshot = nil
	home, _ := v.Ring.Route(testTopic)
	var unread []cp.VnodeID
	if rapid.IntRange(0, 3).Draw(rt, "unread") == 0 {
		s.did("vnode unread")
		unread = []cp.VnodeID{home}
		v.Vnodes[home] = cp.NewState()
	}
	n.f.Refresh(v, unread)
	s.did("refresh")
	if _, err := n.f.Topic(testTopic); err != nil {
		s.t.Fatalf("the topic vanished in a refresh: %v", err)
	}
	s.recover(i, rapid.Bool().Draw(rt, "reachable"))
}

func (s *sim) restart(i int) {
	s.did("restart")
	s.start(i)
	mine := func(m sent) bool { return m.from == i }
	s.answers = deleteFunc(s.answers, mine)
	s.ends = deleteFunc(s.ends, func(m fencing) bool { return m.from == i })
}

func deleteFunc[M any](list []M, drop func(M) bool) (kept []M) {
	for _, m := range list {
		if !drop(m) {
			kept = append(kept, m)
		}
	}
	return kept
}

func (s *sim) retention(rt *rapid.T, i int) {
	var old []*cp.Segment
	for r := range s.truth.view.Ranges(testTopic) {
		for seg := range s.truth.view.Segments(r.ID) {
			if seg.Phase == cp.Sealed {
				old = append(old, seg)
			}
		}
	}
	if len(old) == 0 {
		return
	}
	id := old[rapid.IntRange(0, min(3, len(old)-1)).Draw(rt, "segment")].ID
	if err := s.nodes[i].f.DeleteSegment(id); err != nil && !errors.Is(err, cp.ErrNoSuchSegment) {
		s.allowed(err)
	}
}

// check is what holds after every step.
func (s *sim) check() {
	for i, n := range s.nodes {
		if err := n.f.Check(); err != nil {
			s.t.Fatalf("frontend %d: %v", i, err)
		}
	}
	for _, state := range s.truth.view.Vnodes {
		if err := state.Check(); err != nil {
			s.t.Fatal(err)
		}
	}
	s.checkTiling()
	s.checkAcknowledged()
	for i, n := range s.nodes {
		s.checkMarks(i, n.f)
	}
}

// checkTiling goes over every segment that was ever registered (I3, I4, I5).
func (s *sim) checkTiling() {
	type end struct {
		next    uint64
		open    bool
		segment fence.SegmentID
	}
	ends := map[fence.RangeID]end{}
	for _, cmd := range s.truth.log {
		switch c := cmd.(type) {
		case cp.RegisterSegment:
			e := ends[c.ID.Range]
			if e.open || c.Start != e.next {
				s.t.Fatalf("%v starts at %d, the range is at %+v", c.ID, c.Start, e)
			}
			ends[c.ID.Range] = end{next: c.Start, open: true, segment: c.ID}
		case cp.SealSegment:
			if e := ends[c.ID.Range]; e.open && e.segment == c.ID { // not a repeat
				ends[c.ID.Range] = end{next: e.next + c.Length}
			}
			if copy := s.copies[c.ID]; copy.end()-copy.base != s.sealed[c.ID] {
				s.t.Fatalf("%v grew after its seal: %d of %d", c.ID, copy.end()-copy.base, s.sealed[c.ID])
			}
		}
	}
}

// checkAcknowledged finds every acknowledged record where its client was told (I1, I7).
func (s *sim) checkAcknowledged() {
	at := map[fence.RangeID]map[uint64]int{}
	for id, c := range s.copies {
		if at[id.Range] == nil {
			at[id.Range] = map[uint64]int{}
		}
		for o := c.base; o < c.committed; o++ {
			if _, twice := at[id.Range][o]; twice {
				s.t.Fatalf("offset %d of %v is in two segments", o, id.Range)
			}
			at[id.Range][o] = c.log[o-c.base].id
		}
	}
	for r, offsets := range s.acked {
		for o, id := range offsets {
			if at[r][o] != id {
				s.t.Fatalf("record %d was acknowledged at %d of %v, where %d lies", id, o, r, at[r][o])
			}
		}
	}
}

// checkMarks: no frontend shows more than is committed, nor believes in a length that was never recorded.
func (s *sim) checkMarks(i int, f *Frontend) {
	view := f.Metadata()
	for r := range view.Ranges(testTopic) {
		mark, err := f.CommitMark(r.ID)
		if err != nil {
			s.t.Fatal(err)
		}
		rec := s.truth.view.Range(r.ID)
		committed := rec.NextOffset
		for seg := range s.truth.view.Segments(r.ID) {
			if seg.Phase == cp.Active {
				committed = s.committedOf(seg)
			}
		}
		if mark > committed {
			s.t.Fatalf("frontend %d shows %v up to %d, committed is %d", i, r.ID, mark, committed)
		}
		for seg := range view.Segments(r.ID) {
			if length, ok := s.sealed[seg.ID]; seg.Phase == cp.Sealed && (!ok || length != seg.Length) {
				s.t.Fatalf("frontend %d has %v sealed with %d, recorded is %d %v", i, seg.ID, seg.Length, length, ok)
			}
		}
	}
}

// converge ends all faults: everything on its way arrives, healing and refreshes run, and then every range
// takes records again and the consumer catches up.
func (s *sim) converge() {
	s.fault = ""
	for len(s.dispatches)+len(s.answers)+len(s.fences)+len(s.ends) > 0 {
		s.dispatches, s.answers, s.fences, s.ends = s.flush()
	}
	s.orphans()
	for i, n := range s.nodes {
		n.snapshot = nil
		n.f.Refresh(s.truth.snapshot(), nil)
		s.recover(i, true)
	}
	s.check()
	for _, id := range s.nodes[0].f.ActiveRangeIDs(testTopic) {
		for i, n := range s.nodes {
			s.produceTo(i, n.f, id)
		}
	}
	s.check()
	for i, n := range s.nodes {
		n.f.Refresh(s.truth.snapshot(), nil)
		s.recover(i, true)
	}
	for s.consume(s.nodes[0].f, 0, 1000) {
	}
	s.checkDelivered()
}

// flush lets everything on its way arrive; what that sends out is the next round's.
func (s *sim) flush() ([]sent, []sent, []fencing, []fencing) {
	d, a, f, e := s.dispatches, s.answers, s.fences, s.ends
	s.dispatches, s.answers, s.fences, s.ends = nil, nil, nil, nil
	for _, m := range d {
		s.deliver(m)
	}
	for id := range s.copies {
		if _, sealed := s.sealed[id]; !sealed {
			s.quorum(id)
		}
	}
	for _, m := range a {
		s.answer(m)
	}
	for _, m := range f {
		s.deliverFence(m)
	}
	for _, m := range e {
		s.fenceAnswer(5)(m)
	}
	return s.dispatches, s.answers, s.fences, s.ends
}

// produceTo proves that a range takes records through a frontend: planned, stored and acknowledged.
func (s *sim) produceTo(i int, f *Frontend, id fence.RangeID) {
	r := f.Metadata().Range(id)
	pos := uint32(r.Start)
	for range 3 {
		b := BatchInfo{MinPos: pos, MaxPos: pos, Count: 1, Bytes: 1, Now: s.wall}
		d, err := f.PlanBatch(testTopic, b)
		if f.opts.Fetch == nil && Retryable(err) { // the other one has opened the head
			f.Refresh(s.truth.snapshot(), nil)
			d, err = f.PlanBatch(testTopic, b)
		}
		if err != nil {
			s.t.Fatalf("frontend %d cannot produce to %v any more: %v", i, id, err)
		}
		s.ids++
		s.deliver(sent{from: i, d: d, records: []stored{{id: s.ids, pos: pos}}})
		s.quorum(d.Segment)
		answers := s.answers
		s.answers = nil
		for _, m := range answers {
			if m.sealed {
				s.t.Fatalf("frontend %d: %v is refused at %d after everything has healed", i, d.Segment, m.end)
			}
			s.answer(m)
		}
	}
}

// checkDelivered: every committed record came to the consumer once, or it was told.
func (s *sim) checkDelivered() {
	told := func(r fence.RangeID, o uint64) bool {
		for _, k := range s.skipped {
			if k.Source == r && k.From <= o && o < k.From+k.Offsets {
				return true
			}
		}
		return false
	}
	for id, c := range s.copies {
		for o := c.base; o < c.committed; o++ {
			if !s.delivered[id.Range][o] && !told(id.Range, o) {
				s.t.Fatalf("offset %d of %v, record %+v, never came; consumer at %v", o, id.Range, c.log[o-c.base], s.reader)
			}
		}
	}
	if len(s.reader) > len(s.nodes[0].f.ActiveRangeIDs(testTopic)) {
		s.t.Fatal(fmt.Sprint("retired ranges stay in the offsets: ", s.reader))
	}
}
