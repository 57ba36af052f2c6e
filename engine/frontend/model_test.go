package frontend

import (
	"errors"
	"fmt"
	"slices"

	"github.com/ringfence/ringfence/cp"
	"github.com/ringfence/ringfence/fence"
	"pgregory.net/rapid"
)

// The model of the property test: a control plane that is the truth, one copy of every segment, and two
// frontends whose messages and commands get lost, repeated, delayed and overtaken.

var errLost = errors.New("no answer")

// stored is one record as a primary has it.
type stored struct {
	id  int
	pos uint32 // its key, by position
}

// simCopy is what the replicas of a segment hold together.
type simCopy struct {
	base      uint64
	log       []stored
	committed uint64 // first offset that no quorum has
	fenced    bool
	zombie    uint64 // the end that the old primary names in its refusals, if a failover went below it
	cut       bool   // a failover has fenced followers: nothing more gets a quorum
	waiting   []sent // appended, not yet acknowledged
}

func (c *simCopy) end() uint64 { return c.base + uint64(len(c.log)) }

// sent is a dispatch on its way, or its answer.
type sent struct {
	from    int
	d       Dispatch
	records []stored
	retry   bool
	last    uint64 // answer: offset of its last record
	sealed  bool   // answer: refused, and the copy ends at end
	end     uint64
}

// fenced is a fence on its way, or its answer.
type fencing struct {
	from       int
	roll       Roll
	end, bytes uint64
}

type node struct {
	f        *Frontend
	snapshot *View // a refresh in progress reads this
	held     []sent
}

type sim struct {
	t       *rapid.T
	truth   *truth
	nodes   [2]*node
	copies  map[fence.SegmentID]*simCopy
	sealed  map[fence.SegmentID]uint64 // lengths, once recorded
	deleted map[fence.SegmentID]bool
	acked   map[fence.RangeID]map[uint64]int // offset to record, as clients were told
	now     Instant
	wall    int64
	ids     int
	fault   string // of the next command: "", "lost", "landed"
	fetch   bool   // frontends ask the control plane; else they are told of every command

	dispatches []sent
	answers    []sent
	fences     []fencing
	ends       []fencing

	reader    Offsets
	delivered map[fence.RangeID]map[uint64]bool
	lastOf    map[uint32]stored2 // by key: where its last delivered record was
	skipped   []Skip
	seen      map[string]int // what has happened, so that the test can prove that it did
}

// stored2 is a place in the log.
type stored2 struct {
	r      fence.RangeID
	offset uint64
}

func newSim(t *rapid.T) *sim {
	s := &sim{
		t: t, truth: newTruth(t, 2), copies: map[fence.SegmentID]*simCopy{}, sealed: map[fence.SegmentID]uint64{},
		deleted: map[fence.SegmentID]bool{}, acked: map[fence.RangeID]map[uint64]int{}, wall: 1000,
		delivered: map[fence.RangeID]map[uint64]bool{}, lastOf: map[uint32]stored2{}, seen: map[string]int{},
	}
	s.truth.do(cp.CreateTopic{Name: testTopic, Bits: 3, ID: topicID(1), At: 1})
	s.fetch = rapid.Bool().Draw(t, "fetch")
	for i := range s.nodes {
		s.start(i)
	}
	return s
}

func (s *sim) did(what string) { s.seen[what]++ }

// start gives a node a new frontend, as after a restart.
func (s *sim) start(i int) {
	o := Options{
		Self: cp.NodeID(fmt.Sprint("n", i)), Bits: dice(), Writer: uint64(i), SegmentMaxBytes: 2,
		View: s.truth.snapshot(), Command: s.command,
	}
	if s.fetch {
		o.Fetch = func(topic string) (*cp.State, error) {
			if s.fault != "" {
				return nil, errLost
			}
			return s.truth.fetch(topic)
		}
	}
	f, err := New(o)
	if err != nil {
		s.t.Fatal(err)
	}
	f.StartJournal()
	s.nodes[i] = &node{f: f}
	s.recover(i, true)
}

func (s *sim) command(_ string, cmd cp.Command) cp.Reply {
	fault := s.fault
	s.fault = ""
	if fault == "lost" {
		s.did("command lost")
		return cp.Reply{Err: errLost}
	}
	reply := s.apply(cmd)
	if fault == "landed" && reply.Err == nil {
		s.did("command landed unanswered")
		return cp.Reply{Err: errLost}
	}
	return reply
}

// apply is the control plane, watched: what it records about a seal must be what a closed copy said.
func (s *sim) apply(cmd cp.Command) cp.Reply {
	reply := s.truth.apply(cmd)
	if reply.Err != nil {
		return reply
	}
	switch c := cmd.(type) {
	case cp.SealSegment:
		copy := s.copy(c.ID)
		end := s.truth.view.Segment(c.ID).Start + c.Length
		if !copy.fenced {
			s.t.Fatalf("%v was sealed and its copy is not fenced", c.ID)
		}
		if end < copy.committed || end > copy.end() {
			s.t.Fatalf("%v was sealed at %d, its copy is committed to %d of %d", c.ID, end, copy.committed, copy.end())
		}
		if before, ok := s.sealed[c.ID]; ok && before != c.Length {
			s.t.Fatalf("%v: sealed length %d became %d", c.ID, before, c.Length)
		}
		s.sealed[c.ID] = c.Length
		if end < copy.end() {
			s.did("failover dropped a tail")
			copy.zombie = copy.end()
		}
		copy.log, copy.committed = copy.log[:end-copy.base], end
	case cp.DeleteSegment:
		if _, ok := s.sealed[c.ID]; !ok {
			s.t.Fatalf("%v was deleted and never sealed", c.ID)
		}
		s.deleted[c.ID] = true
	}
	for _, n := range s.nodes {
		if !s.fetch && n != nil {
			n.f.ApplyCommitted(cmd)
		}
	}
	return reply
}

// unmoved fails if a call that failed moved something. A frontend that asks the control plane, or was told
// of what landed unanswered, may know better afterwards.
func (s *sim) unmoved(f *Frontend, call func() error) error {
	before, commands := f.hot(), len(s.truth.log)
	err := call()
	if err != nil && !s.fetch && len(s.truth.log) == commands && f.hot() != before {
		s.t.Fatalf("a call that failed with %v moved\n%s\n%s", err, before, f.hot())
	}
	return err
}

func (s *sim) copy(id fence.SegmentID) *simCopy {
	if s.copies[id] == nil {
		base := s.truth.view.Segment(id).Start
		s.copies[id] = &simCopy{base: base, committed: base}
	}
	return s.copies[id]
}

// recover is what follows a refresh: the end of every range is asked for, and may not be learned.
func (s *sim) recover(i int, reachable bool) {
	f := s.nodes[i].f
	view := f.Metadata()
	for r := range view.Ranges(testTopic) {
		var last *cp.Segment
		for seg := range view.Segments(r.ID) {
			last = seg
		}
		switch {
		case last == nil:
		case last.Phase == cp.Sealed:
			f.SeedRangeState(r.ID, r.NextOffset, last.ID.Seq+1)
		case reachable:
			f.SeedRangeState(r.ID, s.committedOf(last), last.ID.Seq+1)
		default:
			f.SeedUnrecoveredRange(r.ID, last.ID.Seq+1)
			s.did("end not learned")
		}
	}
}

// committedOf is what the primary answers about a segment that a frontend has as active.
func (s *sim) committedOf(seg *cp.Segment) uint64 {
	if c := s.copies[seg.ID]; c != nil {
		return c.committed
	}
	return seg.Start
}

// plan sends records to the range of a key, as a batch or by records.
func (s *sim) plan(i int, keys []uint32, retry bool, records []stored) {
	f := s.nodes[i].f
	if records == nil {
		for _, k := range keys {
			s.ids++
			records = append(records, stored{id: s.ids, pos: k})
		}
	}
	if len(keys) == 1 {
		pos := keys[0]
		d, err := f.PlanBatch(testTopic, BatchInfo{MinPos: pos, MaxPos: pos, Count: uint32(len(records)), Bytes: len(records), Now: s.wall})
		if err == nil {
			s.dispatches = append(s.dispatches, sent{from: i, d: d, records: records, retry: retry})
		} else {
			s.allowed(err)
		}
		return
	}
	list := make([]Record, len(records))
	for n, r := range records {
		list[n] = at(fmt.Sprint(r.id), r.pos)
	}
	var placements Placements
	var ds []Dispatch
	err := s.unmoved(f, func() (err error) {
		placements, ds, err = f.PlanProduce(testTopic, list, s.wall)
		return err
	})
	if err != nil {
		s.allowed(err)
		return
	}
	for _, d := range ds {
		part := sent{from: i, d: d, retry: retry}
		for _, r := range d.Records {
			n := slices.IndexFunc(records, func(x stored) bool { return fmt.Sprint(x.id) == string(r.Key) })
			part.records = append(part.records, records[n])
		}
		if placements[d.Range] != (Span{d.First, d.Last}) {
			s.t.Fatalf("placement %v of %+v", placements[d.Range], d)
		}
		s.dispatches = append(s.dispatches, part)
	}
}

// allowed fails on an error that no fault explains.
func (s *sim) allowed(err error) {
	if errors.Is(err, errLost) || Retryable(err) {
		s.did("refused: " + fmt.Sprint(errors.Unwrap(err)))
		return
	}
	s.t.Fatalf("unexpected error: %v", err)
}

// deliver brings a dispatch to its primary.
func (s *sim) deliver(m sent) {
	c := s.copies[m.d.Segment]
	if c == nil {
		c = &simCopy{base: m.d.Base, committed: m.d.Base}
		s.copies[m.d.Segment] = c
	}
	if c.base != m.d.Base {
		s.t.Fatalf("%v starts at %d and at %d", m.d.Segment, c.base, m.d.Base)
	}
	if c.fenced {
		m.sealed, m.end = true, max(c.end(), c.zombie)
		s.answers = append(s.answers, m)
		return
	}
	c.log = append(c.log, m.records...)
	m.last = c.end() - 1
	c.waiting = append(c.waiting, m)
}

// quorum makes what a copy has appended durable on a quorum, and answers who waits for it.
func (s *sim) quorum(id fence.SegmentID) {
	c := s.copies[id]
	if c.cut {
		return
	}
	c.committed = c.end()
	s.answers = append(s.answers, c.waiting...)
	c.waiting = nil
}

// answer brings an answer back to its frontend.
func (s *sim) answer(m sent) {
	n := s.nodes[m.from]
	if !m.sealed {
		s.ack(m)
		n.f.AdoptOffsets(m.d.Range, m.d.Segment, m.last)
		n.f.AdoptSize(m.d.Range, m.d.Segment, int64(16*m.last)) // padded, and others wrote as well
		return
	}
	s.did("refused by a fence")
	awaiting := n.f.AwaitingFence(m.d.Range, m.d.Segment, s.now, window)
	n.f.ForgetSealed(m.d.Range, m.d.Segment, m.end)
	if awaiting != n.f.AwaitingFence(m.d.Range, m.d.Segment, s.now, window) {
		s.t.Fatal("a refusal took the fence in flight with it")
	}
	switch {
	case m.retry: // once only
	case awaiting:
		s.did("held behind its own fence")
		n.held = append(n.held, m)
	default:
		s.plan(m.from, keysOf(m.records), true, m.records)
	}
}

func keysOf(records []stored) (list []uint32) {
	for _, r := range records {
		if !slices.Contains(list, r.pos) {
			list = append(list, r.pos)
		}
	}
	return list
}

// ack is what the client is told.
func (s *sim) ack(m sent) {
	if s.acked[m.d.Range] == nil {
		s.acked[m.d.Range] = map[uint64]int{}
	}
	for i, r := range m.records {
		offset := m.last + 1 - uint64(len(m.records)) + uint64(i)
		if other, ok := s.acked[m.d.Range][offset]; ok && other != r.id {
			s.t.Fatalf("offset %d of %v was acknowledged for two records", offset, m.d.Range)
		}
		s.acked[m.d.Range][offset] = r.id
	}
}

// fenceCopy latches the primary's copy; it answers where it ends.
func (s *sim) fenceCopy(r Roll) (end, bytes uint64, ok bool) {
	if s.truth.view.Segment(r.Segment) == nil {
		return 0, 0, false // nobody knows it any more
	}
	c := s.copy(r.Segment)
	c.fenced = true
	end = max(c.end(), c.zombie)
	return end, end - c.base, true
}

// failover seals an active segment at an end between what is committed and what the primary has. What the
// primary has above it is gone once that is recorded, but the primary does not know.
func (s *sim) failover(seg *cp.Segment, cut int, via *Frontend) {
	c := s.copy(seg.ID)
	end := c.end() - min(uint64(cut), c.end()-c.committed)
	c.fenced, c.cut, c.waiting = true, true, nil
	cmd, err := cp.Sealing(seg, end, end-c.base, s.wall)
	if err != nil {
		s.t.Fatal(err)
	}
	if via == nil {
		if r := s.apply(cmd); r.Err != nil {
			s.t.Fatal(r.Err)
		}
		return
	}
	if err := via.ApplyHealReply([]cp.Command{cmd}); err != nil {
		s.allowed(err)
	}
}
