package frontend

import (
	"fmt"
	"iter"
	"maps"
	"slices"

	"github.com/ringfence/ringfence/cp"
	"github.com/ringfence/ringfence/fence"
)

// View is metadata as somebody sees it: one state for each vnode of a ring. Read it
// from one goroutine at a time, or give each reader its own.
type View struct {
	Ring   cp.Ring
	Vnodes map[cp.VnodeID]*cp.State
}

// NewView returns a view of n empty vnodes.
func NewView(n int) (View, error) {
	if n < 1 || n > 1<<16 {
		return View{}, fmt.Errorf("%w: a view of %d vnodes", ErrOptions, n)
	}
	v := View{Ring: cp.NewRing(n), Vnodes: map[cp.VnodeID]*cp.State{}}
	for _, node := range v.Ring.Vnodes() {
		v.Vnodes[node.ID] = cp.NewState()
	}
	return v, nil
}

func (v View) isZero() bool { return v.Ring.Len() == 0 && len(v.Vnodes) == 0 }

// of is the state that a topic of that name lives in; nil when the ring has no vnode
// for it or the view has no state of that vnode.
func (v View) of(topic string) *cp.State {
	id, ok := v.Ring.Route(topic)
	if !ok {
		return nil
	}
	return v.Vnodes[id]
}

// ofID is the state that has the topic of that identity, nil if none does.
func (v View) ofID(id fence.TopicID) *cp.State {
	for _, s := range v.Vnodes {
		if s.TopicByID(id) != nil {
			return s
		}
	}
	return nil
}

// Topic is the topic of that name, nil if there is none.
func (v View) Topic(name string) *cp.Topic {
	if s := v.of(name); s != nil {
		return s.Topic(name)
	}
	return nil
}

// TopicByID is the topic of that identity, nil if there is none.
func (v View) TopicByID(id fence.TopicID) *cp.Topic {
	if s := v.ofID(id); s != nil {
		return s.TopicByID(id)
	}
	return nil
}

// Topics lists the topics of all vnodes by name.
func (v View) Topics() []*cp.Topic {
	var all []*cp.Topic
	for _, s := range v.Vnodes {
		for t := range s.Topics() {
			all = append(all, t)
		}
	}
	slices.SortFunc(all, func(a, b *cp.Topic) int {
		switch {
		case a.Name < b.Name:
			return -1
		case a.Name > b.Name:
			return 1
		}
		return 0
	})
	return all
}

// Range is the range of that id, nil if there is none.
func (v View) Range(id fence.RangeID) *cp.Range {
	if s := v.ofID(id.Topic); s != nil {
		return s.Range(id)
	}
	return nil
}

// Ranges visits a topic's ranges, active or sealed, by sequence.
func (v View) Ranges(topic string) iter.Seq[*cp.Range] {
	if s := v.of(topic); s != nil {
		return s.Ranges(topic)
	}
	return func(func(*cp.Range) bool) {}
}

// Segment is the segment of that id, nil if there is none.
func (v View) Segment(id fence.SegmentID) *cp.Segment {
	if s := v.ofID(id.Range.Topic); s != nil {
		return s.Segment(id)
	}
	return nil
}

// Segments visits a range's segments by start, the active one last.
func (v View) Segments(id fence.RangeID) iter.Seq[*cp.Segment] {
	if s := v.ofID(id.Topic); s != nil {
		return s.Segments(id)
	}
	return func(func(*cp.Segment) bool) {}
}

// Policy is the policy defined under a name.
func (v View) Policy(name string) (cp.Policy, bool) {
	if home, ok := v.Ring.Home(); ok && v.Vnodes[home] != nil {
		return v.Vnodes[home].Policy(name)
	}
	return cp.Policy{}, false
}

// clone is a view that shares nothing that changes.
func (v View) clone() View {
	c := View{Ring: v.Ring, Vnodes: make(map[cp.VnodeID]*cp.State, len(v.Vnodes))}
	for id, s := range v.Vnodes {
		c.Vnodes[id] = s.Clone()
	}
	return c
}

// target is the state that a command belongs to, and the name of its topic; nil when no
// vnode of the view can have it.
func (v View) target(cmd cp.Command) (*cp.State, string) {
	name, id := cp.Target(cmd)
	switch {
	case name != "":
		return v.of(name), name
	case !id.IsZero():
		if s := v.ofID(id); s != nil {
			return s, s.TopicByID(id).Name
		}
		return nil, ""
	}
	home, _ := v.Ring.Home()
	return v.Vnodes[home], ""
}

// Metadata is the whole cached view as of now, the union of all vnodes. It is the
// caller's: cheap to get, and it never changes.
func (f *Frontend) Metadata() View {
	f.meta.Lock()
	defer f.meta.Unlock()
	return f.view.clone()
}

// run proposes a command and, once it is committed, mirrors it in the view. After runs
// then, with meta held for writing.
func (f *Frontend) run(topic string, cmd cp.Command, after func(*cp.State, cp.Reply)) cp.Reply {
	var reply cp.Reply
	if f.opts.Command != nil {
		if reply = f.opts.Command(topic, cmd); reply.Err != nil {
			return reply
		}
	}
	f.meta.Lock()
	defer f.meta.Unlock()
	state, local := f.mirror(cmd)
	if f.opts.Command == nil {
		if reply = local; reply.Err != nil {
			return reply
		}
	}
	if f.journey {
		f.journal = append(f.journal, f.journaled(cmd, state))
	}
	if after != nil {
		after(state, reply)
	}
	return reply
}

// journaled is a command as it may be replayed over a newer view: a topic is deleted by
// identity, so that no successor of the same name goes with it.
func (f *Frontend) journaled(cmd cp.Command, _ *cp.State) cp.Command { return cmd }

// mirror applies a committed command to the view and makes the hot state follow. The
// view may refuse it: when it has it already, or is too old to understand it. Meta is
// held for writing.
func (f *Frontend) mirror(cmd cp.Command) (*cp.State, cp.Reply) {
	state, name := f.view.target(cmd)
	if state == nil {
		return nil, cp.Reply{Err: unknownTarget(cmd)}
	}
	if d, ok := cmd.(cp.DeleteTopic); ok {
		return state, f.mirrorDelete(state, d)
	}
	reply := state.Apply(cmd)
	if reply.Err != nil {
		return state, reply
	}
	switch cmd.(type) {
	case cp.CreateTopic, cp.SealTopic, cp.SplitRange, cp.MergeRanges, cp.InsertTopic, cp.ExtractTopic:
		f.resync(name)
	}
	return state, reply
}

// mirrorDelete also drops what is hot: no segment of the topic will ever be needed again.
func (f *Frontend) mirrorDelete(state *cp.State, cmd cp.DeleteTopic) cp.Reply {
	rec := state.Topic(cmd.Name)
	reply := state.Apply(cmd)
	if reply.Err != nil {
		return reply
	}
	f.resync(cmd.Name)
	f.shard(rec.ID).drop(rec.ID)
	return reply
}

// drop forgets everything hot about a topic.
func (s *shard) drop(id fence.TopicID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for rid, r := range s.ranges {
		if rid.Topic == id {
			r.open = false
			delete(s.ranges, rid)
			delete(s.heads, r)
		}
	}
	s.ledger.DropTopic(id)
}

// unknownTarget is what a control plane answers to a command about a topic it does not
// have.
func unknownTarget(cmd cp.Command) error { return cp.NewState().Apply(cmd).Err }

// ApplyCommitted mirrors a command that was committed by another path: by another
// frontend of this process, a coordinator, the recovery of the store. It may come late or
// twice; what the view cannot use it ignores. Commands that went through this frontend
// need not be given to it.
func (f *Frontend) ApplyCommitted(cmd cp.Command) {
	f.meta.Lock()
	defer f.meta.Unlock()
	state, reply := f.mirror(cmd)
	if f.journey && reply.Err == nil {
		f.journal = append(f.journal, cmd)
	}
	f.follow(state, cmd)
}

// follow makes heads and rolls follow a command that somebody else committed. Meta is
// held.
func (f *Frontend) follow(state *cp.State, cmd cp.Command) {
	if state == nil {
		return
	}
	switch c := cmd.(type) {
	case cp.SealSegment:
		f.sealedElsewhere(state, c.ID)
	case cp.SetSegmentReplicas:
		f.moved(state, c.ID)
	case cp.SplitRange:
		f.retired(c.Range)
	case cp.MergeRanges:
		f.retired(c.A)
		f.retired(c.B)
	}
}

// sealedElsewhere seats the range behind a segment that the view has as sealed; if it does
// not have it so, the head is dropped and nothing else is known. Meta is held.
func (f *Frontend) sealedElsewhere(state *cp.State, id fence.SegmentID) {
	s := f.shardOf(id.Range)
	s.mu.Lock()
	defer s.mu.Unlock()
	if seg := state.Segment(id); seg != nil && seg.Phase == cp.Sealed {
		s.forget(id, seg.Start+seg.Length)
		return
	}
	s.evict(id)
}

// moved gives the cached head the replica set that the view has. Meta is held.
func (f *Frontend) moved(state *cp.State, id fence.SegmentID) {
	seg := state.Segment(id)
	if seg == nil || len(seg.Replicas) == 0 {
		return
	}
	s := f.shardOf(id.Range)
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.ranges[id.Range]; r != nil && r.open && r.head.segment == id {
		r.head.replicas = seg.Replicas
	}
}

// retired drops the cached head of a range that takes no more. Meta is held.
func (f *Frontend) retired(id fence.RangeID) {
	s := f.shardOf(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.ranges[id]; r != nil && r.open {
		f.dropStaleHead(s, r)
	}
}

// fetch brings one topic up to date from the control plane, and says whether it could.
func (f *Frontend) fetch(topic string) bool {
	if f.opts.Fetch == nil || topic == "" {
		return false
	}
	export, err := f.opts.Fetch(topic)
	if err != nil {
		return false
	}
	f.meta.Lock()
	defer f.meta.Unlock()
	state := f.view.of(topic)
	if state == nil {
		return false
	}
	rec := state.Topic(topic)
	if export == nil {
		if rec != nil {
			f.mirror(cp.DeleteTopic{Name: topic, ID: rec.ID})
		}
		return true
	}
	reply := state.Apply(cp.InsertTopic{Export: export})
	if reply.Err != nil && rec != nil {
		// Another topic of this name took the place of the one in the view.
		f.mirror(cp.DeleteTopic{Name: topic, ID: rec.ID})
		reply = state.Apply(cp.InsertTopic{Export: export})
	}
	f.resync(topic)
	if rec = state.Topic(topic); rec != nil {
		f.dropStaleOf(rec.ID)
	}
	return reply.Err == nil
}

// dropStaleOf is dropStale for the heads and rolls of one topic. Meta is held.
func (f *Frontend) dropStaleOf(id fence.TopicID) {
	s := f.shard(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	for r := range s.heads {
		if r.id.Topic == id {
			f.dropStaleHead(s, r)
		}
	}
	for _, roll := range s.ledger.Due() {
		if roll.Range().Topic == id && f.superseded(roll.Segment) {
			s.ledger.Clear(roll.Segment)
		}
	}
}

// viewSegment is a segment as the view has it, nil if it does not.
func (f *Frontend) viewSegment(id fence.SegmentID) *cp.Segment {
	f.meta.RLock()
	defer f.meta.RUnlock()
	return f.view.Segment(id)
}

// nameOf is the name of a topic, "" if the view does not know it.
func (f *Frontend) nameOf(id fence.TopicID) string {
	f.meta.RLock()
	defer f.meta.RUnlock()
	if t := f.view.TopicByID(id); t != nil {
		return t.Name
	}
	return ""
}

// resyncAll makes every topic's hot state follow the view. Meta is held for writing.
func (f *Frontend) resyncAll() {
	for _, t := range f.names.all() {
		if rec := f.view.Topic(t.name); rec == nil {
			f.resync(t.name)
		}
	}
	for _, s := range f.view.Vnodes {
		for t := range s.Topics() {
			f.resync(t.Name)
		}
	}
}

// PutCache replaces the view by one that was read from the control plane, and takes it
// over. A vnode that could not be read keeps what the old view had of it; a vnode that
// answered is believed, also when it is empty. Offsets, heads and rolls are not touched:
// call [Frontend.DropStaleActiveSegments] after. [Frontend.Refresh] does the whole of it
// in one step.
func (f *Frontend) PutCache(v View, unreachable []cp.VnodeID) {
	f.meta.Lock()
	defer f.meta.Unlock()
	f.putCache(v, unreachable)
}

func (f *Frontend) putCache(v View, unreachable []cp.VnodeID) {
	next := View{Ring: v.Ring, Vnodes: maps.Clone(v.Vnodes)}
	if next.Vnodes == nil {
		next.Vnodes = map[cp.VnodeID]*cp.State{}
	}
	for _, id := range unreachable {
		if old := f.view.Vnodes[id]; old != nil {
			next.Vnodes[id] = old
		}
	}
	f.view = next
	f.resyncAll()
}

// StartJournal makes the frontend note the commands it applies to its view, for one whose
// view is re-seeded from reads that may be older than its own writes.
func (f *Frontend) StartJournal() {
	f.meta.Lock()
	defer f.meta.Unlock()
	f.journey = true
}

// TakeJournal returns what was noted since the last call, oldest first, and empties it.
// Refused commands and those without an answer were never noted.
func (f *Frontend) TakeJournal() []cp.Command {
	f.meta.Lock()
	defer f.meta.Unlock()
	return f.takeJournal()
}

func (f *Frontend) takeJournal() []cp.Command {
	taken := f.journal
	f.journal = nil
	return taken
}

// ReplayJournal applies noted commands to the view again, and to nothing else. What the
// view refuses it has already, or cannot have. A group never moves back: even a commit that
// reset one only raises here, because another may have committed more since.
func (f *Frontend) ReplayJournal(commands []cp.Command) {
	f.meta.Lock()
	defer f.meta.Unlock()
	f.replayJournal(commands)
}

func (f *Frontend) replayJournal(commands []cp.Command) {
	for _, cmd := range commands {
		if c, ok := cmd.(cp.CommitOffset); ok {
			c.Reset = false
			cmd = c
		}
		f.mirror(cmd)
	}
}

// Refresh installs a view read from the control plane in one step: journal taken, view
// replaced, journal replayed, stale heads and rolls dropped. Nothing that this frontend
// commits meanwhile is lost from its view.
func (f *Frontend) Refresh(v View, unreachable []cp.VnodeID) {
	f.meta.Lock()
	defer f.meta.Unlock()
	journal := f.takeJournal()
	f.putCache(v, unreachable)
	f.replayJournal(journal)
	f.dropStale()
}
