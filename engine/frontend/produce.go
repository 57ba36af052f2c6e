package frontend

import (
	"errors"
	"fmt"
	"slices"

	"github.com/ringfence/ringfence/cp"
	"github.com/ringfence/ringfence/fence"
	"github.com/ringfence/ringfence/segfile/record"
)

// BatchInfo is what routing needs to know of a batch: all of it is in its frame's
// header.
type BatchInfo struct {
	MinPos, MaxPos uint32 // smallest and largest key position
	Count          uint32 // records, at least 1
	Bytes          int    // what the batch adds to the segment's file
	Now            int64  // ms since the epoch; the time of a segment that the batch opens
}

// Dispatch says where a batch goes and which offsets it will probably get. The
// primary's answer is the truth; report it with [Frontend.AdoptOffsets].
type Dispatch struct {
	Range    fence.RangeID
	Segment  fence.SegmentID
	Primary  cp.NodeID
	Replicas []cp.NodeID // Primary first; not to be modified
	Base     uint64      // first offset of the segment
	First    uint64      // reserved for the first record
	Last     uint64      // reserved for the last record
	Count    uint32
	Records  []Record // of this range, in the caller's order; nil from PlanBatch
	Roll     bool     // this batch made the segment large enough to be owed a roll
}

// Record is a record with its place in the log. On the way in, Position is set by
// the caller (record.Position of the key, or record.KeylessPosition); on the way
// out, by the ReadFunc together with Offset.
type Record struct {
	record.Record
	Position uint32
	Offset   uint64
}

// size is about what a record takes in a frame. It only steers rolls.
func (r *Record) size() int64 {
	n := len(r.Key) + len(r.Value) + 24
	for i := range r.Headers {
		n += len(r.Headers[i].Key) + len(r.Headers[i].Value) + 8
	}
	return int64(n)
}

// Span is the first and last offset of the records placed in one range.
type Span struct{ First, Last uint64 }

// Placements says, by range, where the records of one produce went.
type Placements map[fence.RangeID]Span

// ReplicateFunc stores a dispatch and answers the offset of its last record once a
// quorum holds it. A fence.Sealed error says that the copy is fenced, and where.
type ReplicateFunc func(Dispatch) (last uint64, err error)

// PlanBatch routes a batch by name; see [Frontend.PlanBatchIn].
func (f *Frontend) PlanBatch(topic string, b BatchInfo) (Dispatch, error) {
	t := f.names.get(topic)
	if t == nil {
		return Dispatch{}, topicErr(topic, cp.ErrNoSuchTopic)
	}
	return f.PlanBatchIn(t, b)
}

// PlanBatchIn routes a batch whose positions all lie in one range, and reserves its
// offsets in the range's write head. Where the head is cached it takes one short lock
// and allocates nothing. Otherwise it adopts the head that the view knows, or opens
// one, which asks the control plane and may block.
//
// Errors: [ErrStraddles] (split the batch), [ErrUnroutable], cp.ErrNoSuchTopic, a
// placement error (cp.ErrNoBrokers, cp.ErrFewDomains), or what the control plane
// refused with. Nothing is reserved then.
func (f *Frontend) PlanBatchIn(t *Topic, b BatchInfo) (Dispatch, error) {
	if b.Count == 0 || b.MinPos > b.MaxPos || b.Bytes < 0 {
		return Dispatch{}, fmt.Errorf("%w: batch %+v", ErrOptions, b)
	}
	t.shard.mu.Lock()
	i := t.find(b.MinPos)
	if i < 0 {
		err := t.unroutable()
		t.shard.mu.Unlock()
		return Dispatch{}, err
	}
	rt := &t.routes[i]
	if b.MaxPos > rt.last {
		t.shard.mu.Unlock()
		return Dispatch{}, ErrStraddles
	}
	if rt.r.open {
		d := t.shard.reserve(rt.r, b.Count, int64(b.Bytes))
		t.shard.mu.Unlock()
		return d, nil
	}
	id := rt.r.id
	t.shard.mu.Unlock()
	return f.planSlowly(t, id, b)
}

// planSlowly plans into a range that has no cached head. If the range retires or its
// head closes on the way, the batch is routed again.
func (f *Frontend) planSlowly(t *Topic, id fence.RangeID, b BatchInfo) (d Dispatch, err error) {
	for range attempts {
		seg, err := f.registered(t, id, b.Now)
		var refused error
		done := false
		f.meta.RLock()
		t.shard.mu.Lock()
		switch i := t.find(b.MinPos); {
		case i < 0:
			refused = t.unroutable()
		case b.MaxPos > t.routes[i].last:
			refused = ErrStraddles
		case t.routes[i].r.id != id:
			id = t.routes[i].r.id
		case err != nil && !errors.Is(err, ErrStale):
			refused = err
		case err == nil && f.ensure(t, id, seg):
			d, done = t.shard.reserve(t.routes[i].r, b.Count, int64(b.Bytes)), true
		}
		t.shard.mu.Unlock()
		f.meta.RUnlock()
		if done || refused != nil {
			return d, refused
		}
	}
	return Dispatch{}, rangeErr(id, ErrStale)
}

// reserve takes the next offsets of the range in its cached head. The reservation
// comes before the note that a roll is owed, which is made against the segment that
// the batch lands in. The shard's mu is held.
func (s *shard) reserve(r *rng, count uint32, bytes int64) Dispatch {
	first := r.next
	r.raise(first + uint64(count))
	d := Dispatch{
		Range: r.id, Segment: r.head.segment, Primary: r.head.replicas[0], Replicas: r.head.replicas,
		Base: r.head.start, First: first, Last: first + uint64(count) - 1, Count: count,
	}
	d.Roll = s.tally(r, bytes)
	return d
}

// tally counts bytes sent to the head. At its limit the range owes a roll and goes on
// taking writes: the segment overshoots until the fence lands. It says whether the
// roll is owed since now.
func (s *shard) tally(r *rng, bytes int64) bool {
	r.head.bytes += bytes
	return r.head.bytes >= r.head.max && s.ledger.Owe(r.head.roll())
}

// PlanProduce routes records, reserves their offsets and returns one dispatch for
// each range, ordered by position. It is all or nothing: on an error no offset is
// reserved and no head is cached, although a segment that was registered for an
// earlier range stays registered and is adopted by the next plan. The placements are
// a prediction. At is the time of segments opened here, in ms since the epoch.
//
// Errors: as [Frontend.PlanBatchIn], without [ErrStraddles].
func (f *Frontend) PlanProduce(topic string, records []Record, at int64) (Placements, []Dispatch, error) {
	t, err := f.Topic(topic)
	if err != nil {
		return nil, nil, err
	}
	for range attempts {
		version := t.Version()
		groups, err := t.group(records)
		if err != nil {
			return nil, nil, err
		}
		segs := make([]*cp.Segment, len(groups))
		for i := range groups {
			if segs[i], err = f.registered(t, groups[i].id, at); err != nil {
				break
			}
		}
		if err == nil {
			if dispatches, ok := f.planGroups(t, groups, segs); ok {
				return placed(dispatches), dispatches, nil
			}
		} else if !errors.Is(err, ErrStale) && version == t.Version() {
			return nil, nil, err
		}
	}
	return nil, nil, topicErr(topic, ErrStale)
}

// planGroups reserves all groups or none.
func (f *Frontend) planGroups(t *Topic, groups []group, segs []*cp.Segment) ([]Dispatch, bool) {
	f.meta.RLock()
	defer f.meta.RUnlock()
	t.shard.mu.Lock()
	defer t.shard.mu.Unlock()
	for i, g := range groups {
		if j := t.find(g.records[0].Position); j < 0 || t.routes[j].r.id != g.id {
			return nil, false
		}
		if !f.canEnsure(t, g.id, segs[i]) {
			return nil, false
		}
	}
	dispatches := make([]Dispatch, len(groups))
	for i, g := range groups {
		if !f.ensure(t, g.id, segs[i]) {
			panic("frontend: a head that could be cached a moment ago cannot be")
		}
		dispatches[i] = t.shard.reserve(t.shard.at(g.id), uint32(len(g.records)), g.bytes)
		dispatches[i].Records = g.records
	}
	return dispatches, true
}

// canEnsure is ensure without doing it. Both locks are held.
func (f *Frontend) canEnsure(t *Topic, id fence.RangeID, seg *cp.Segment) bool {
	if t.shard.at(id).open {
		return true
	}
	state := f.view.of(t.name)
	return state != nil && (usable(state.Head(id)) != nil || seg != nil && state.Segment(seg.ID) == nil)
}

func placed(dispatches []Dispatch) Placements {
	p := make(Placements, len(dispatches))
	for _, d := range dispatches {
		p[d.Range] = Span{First: d.First, Last: d.Last}
	}
	return p
}

// group is the part of a produce that belongs to one range.
type group struct {
	id      fence.RangeID
	first   uint32 // of the range; orders the groups
	records []Record
	bytes   int64
}

// group sorts records by the range that owns them, in position order; inside a group
// they keep theirs. The first position that no range owns fails the whole call.
func (t *Topic) group(records []Record) ([]group, error) {
	if len(records) == 0 {
		return nil, nil
	}
	t.shard.mu.Lock()
	defer t.shard.mu.Unlock()
	if len(t.routes) == 1 && t.routes[0].first == 0 && t.routes[0].last == positions-1 {
		return []group{{id: t.routes[0].r.id, records: records, bytes: sizeOf(records)}}, nil
	}
	where := map[int]int{} // from route to group
	var groups []group
	for _, rec := range records {
		i := t.find(rec.Position)
		if i < 0 {
			return nil, fmt.Errorf("key %q, position %d: %w", rec.Key, rec.Position, t.unroutable())
		}
		g, ok := where[i]
		if !ok {
			g = len(groups)
			where[i] = g
			groups = append(groups, group{id: t.routes[i].r.id, first: t.routes[i].first})
		}
		groups[g].records = append(groups[g].records, rec)
		groups[g].bytes += rec.size()
	}
	slices.SortFunc(groups, func(a, b group) int { return int(int64(a.first) - int64(b.first)) })
	return groups, nil
}

func sizeOf(records []Record) (n int64) {
	for i := range records {
		n += records[i].size()
	}
	return n
}

// Produce routes records and has replicate store each range's part, one after the
// other in position order, waiting for each. The placements are what the primaries
// answered. At is the time of segments opened here, in ms since the epoch.
//
// It is not atomic: it stops at the first error, parts stored before stay stored and
// are in the placements returned with the error. A part that failed leaves no cached
// head; after a [fence.Sealed] the range is seated at the end it named and the same
// call can be made again.
func (f *Frontend) Produce(topic string, records []Record, at int64, replicate ReplicateFunc) (Placements, error) {
	t, err := f.Topic(topic)
	if err != nil {
		return nil, err
	}
	groups, err := t.group(records)
	if err != nil {
		return nil, err
	}
	placements := Placements{}
	for _, g := range groups {
		d, seg, err := f.target(t, g, at)
		if err != nil {
			return placements, err
		}
		last, err := replicate(d)
		if err != nil {
			if sealed := (fence.Sealed{}); errors.As(err, &sealed) {
				f.ForgetSealed(d.Range, d.Segment, sealed.End.Offset)
			}
			return placements, rangeErr(d.Range, err)
		}
		f.stored(t, d, seg, last, g.bytes)
		placements[d.Range] = Span{First: last + 1 - uint64(d.Count), Last: last}
	}
	return placements, nil
}

// target is where a group goes, without caching a head or reserving anything. The
// prediction in it is the next offset.
func (f *Frontend) target(t *Topic, g group, at int64) (Dispatch, *cp.Segment, error) {
	d := Dispatch{Range: g.id, Count: uint32(len(g.records)), Records: g.records}
	t.shard.mu.Lock()
	r := t.shard.at(g.id)
	cached, h, next := r.open, r.head, r.next
	t.shard.mu.Unlock()
	var seg *cp.Segment
	if !cached {
		var err error
		if seg, err = f.registered(t, g.id, at); err != nil {
			return d, nil, err
		}
		h = head{segment: seg.ID, start: seg.Start, replicas: seg.Replicas}
	}
	d.Segment, d.Primary, d.Replicas, d.Base = h.segment, h.replicas[0], h.replicas, h.start
	d.First = max(next, h.start)
	d.Last = d.First + uint64(d.Count) - 1
	return d, seg, nil
}

// stored takes a successful answer: the range's head is cached, this one if it still is.
func (f *Frontend) stored(t *Topic, d Dispatch, seg *cp.Segment, last uint64, bytes int64) {
	f.withHead(t, d.Range, seg, func(r *rng) {
		if r.head.segment == d.Segment {
			t.shard.tally(r, bytes)
		}
	})
	f.AdoptOffsets(d.Range, d.Segment, last)
}

// AdoptOffsets takes the primary's word that the record at offset last of that segment
// is durable on a quorum. Call it for every successful answer, also one that is just
// as planned: it moves the commit mark and ends an unrecovered state. Whoever has read
// a record from the primary may call it for that record as well.
//
// An answer for a segment that is no longer the range's head changes nothing: it would
// push the next offset past the sealed edge.
func (f *Frontend) AdoptOffsets(id fence.RangeID, segment fence.SegmentID, last uint64) {
	s := f.shardOf(id)
	s.mu.Lock()
	r := s.ranges[id]
	known := r != nil && r.open && r.head.segment == segment
	if known {
		r.adopt(last)
	}
	s.mu.Unlock()
	if known {
		return
	}
	// Not the cached head; it still counts if the view says that it is the range's.
	f.meta.RLock()
	defer f.meta.RUnlock()
	state := f.view.ofID(id.Topic)
	if state == nil {
		return
	}
	if seg := usable(state.Head(id)); seg == nil || seg.ID != segment {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.at(id).adopt(last)
}

// AdoptSize takes the primary's word of how long the file of that segment is: more than was
// counted here, where others write to it too, or flushes are padded. It says whether the
// range owes a roll since now. Of a segment that is not the cached head nothing changes.
func (f *Frontend) AdoptSize(id fence.RangeID, segment fence.SegmentID, bytes int64) (owed bool) {
	s := f.shardOf(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.ranges[id]
	if r == nil || !r.open || r.head.segment != segment {
		return false
	}
	return s.tally(r, max(bytes-r.head.bytes, 0))
}

func (r *rng) adopt(last uint64) {
	r.raise(last + 1)
	r.durable = max(r.durable, last+1)
	r.unrecovered = false
}

func (f *Frontend) shardOf(id fence.RangeID) *shard { return f.shard(id.Topic) }
