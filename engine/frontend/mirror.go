package frontend

import (
	"github.com/ringfence/ringfence/cp"
	"github.com/ringfence/ringfence/fence"
)

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
		if retires(cmd) && f.opts.Fetch != nil {
			f.fetch(topic)
			f.meta.Lock()
			defer f.meta.Unlock()
			if after != nil {
				after(f.view.of(topic), reply)
			}
			return reply
		}
	}
	f.meta.Lock()
	defer f.meta.Unlock()
	cmd = f.identified(cmd)
	state, local := f.mirror(cmd)
	if f.opts.Command == nil {
		if reply = local; reply.Err != nil {
			return reply
		}
	}
	f.note(cmd)
	if after != nil {
		after(state, reply)
	}
	return reply
}

// retires says whether a command seals ranges for good, so that what the view knows of their
// segments becomes their end for every reader. In a view that missed a segment of another
// frontend that would be an end too low, and records would be passed over. Such a command is
// therefore not mirrored: the topic is fetched as it is after it, or stays as it was until the
// next refresh.
func retires(cmd cp.Command) bool {
	switch cmd.(type) {
	case cp.SplitRange, cp.MergeRanges, cp.SealTopic:
		return true
	}
	return false
}

// note journals a command, if the journal is on. Meta is held.
func (f *Frontend) note(cmd cp.Command) {
	if f.journey {
		f.journal = append(f.journal, cmd)
	}
}

// identified names the topic that a delete is about by identity, so that a replay never takes a
// later topic of the same name with it. Meta is held.
func (f *Frontend) identified(cmd cp.Command) cp.Command {
	d, ok := cmd.(cp.DeleteTopic)
	if t := f.view.Topic(d.Name); ok && t != nil && d.ID.IsZero() {
		d.ID = t.ID
		return d
	}
	return cmd
}

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
	if t := f.names.get(name); t != nil {
		t.mirrored++
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
// frontend of this process, a coordinator, the recovery of the store. Those of one topic
// are given in the order of the control plane and without gaps; a repeat is ignored.
// Commands that went through this frontend need not be given to it.
func (f *Frontend) ApplyCommitted(cmd cp.Command) {
	f.meta.Lock()
	defer f.meta.Unlock()
	cmd = f.identified(cmd)
	state, _ := f.mirror(cmd)
	f.note(cmd)
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
	case cp.SealTopic:
		if t := state.Topic(c.Name); t != nil {
			f.dropStaleOf(t.ID)
		}
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

// Follow brings one topic up to date from the control plane, for a caller who knows
// that this frontend is behind: it missed the answer to a command that took effect
// after all. It says whether it could.
func (f *Frontend) Follow(topic string) bool { return f.fetch(topic) }

// fetch brings one topic up to date from the control plane, and says whether it could.
func (f *Frontend) fetch(topic string) bool {
	if f.opts.Fetch == nil || topic == "" {
		return false
	}
	for range attempts {
		before := f.mirroredOf(topic)
		from, err := f.opts.Fetch(topic)
		if err != nil || from == nil {
			return false
		}
		if done, ok := f.install(topic, from, before); done {
			return ok
		}
	}
	return false
}

// mirroredOf counts the commands mirrored for a topic.
func (f *Frontend) mirroredOf(topic string) uint64 {
	f.meta.RLock()
	defer f.meta.RUnlock()
	if t := f.names.get(topic); t != nil {
		return t.mirrored
	}
	return 0
}

// install puts a fetched topic in the place of the one in the view. It is not done if a command was
// mirrored since the fetch began: what was read may be older than that. Counting commands is what
// tells, not the topic's revision, which a replay raises without a change.
func (f *Frontend) install(topic string, from *cp.State, mirrored uint64) (done, ok bool) {
	f.meta.Lock()
	defer f.meta.Unlock()
	state := f.view.of(topic)
	if state == nil {
		return true, false
	}
	if t := f.names.get(topic); t != nil && t.mirrored != mirrored {
		return false, false
	}
	// What is hot about a topic that is gone stays: the fetch may be late, and identities do not
	// come again.
	if !state.Adopt(from, topic) {
		return true, false
	}
	f.resync(topic)
	rec := state.Topic(topic)
	if rec == nil {
		return true, true
	}
	f.dropStaleOf(rec.ID)
	if f.journey {
		if f.fetched == nil {
			f.fetched = map[string][]byte{}
		}
		f.fetched[topic] = state.Export(topic)
	}
	return true, true
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
