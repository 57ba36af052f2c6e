package frontend

import (
	"sync"
	"sync/atomic"

	"github.com/ringfence/ringfence/cp"
	"github.com/ringfence/ringfence/fence"
)

const (
	shardCount = 64
	positions  = 1 << 32 // of the keyspace, whatever a topic's bits
)

// A shard holds the hot state of the topics whose identity falls into it.
type shard struct {
	mu     sync.Mutex // guards the following and the ranges and routes of its topics; innermost, held for a few instructions
	ranges map[fence.RangeID]*rng
	heads  map[*rng]struct{} // those with a cached head
	ledger fence.Ledger

	_ [64]byte // keeps two shards' locks off one cache line
}

func (s *shard) init() {
	s.ranges = map[fence.RangeID]*rng{}
	s.heads = map[*rng]struct{}{}
}

// shard is where a topic's hot state lives. Identities are random, but for those
// that tests make, which count in the last byte.
func (f *Frontend) shard(id fence.TopicID) *shard {
	return &f.shards[(id[0]^id[15])%shardCount]
}

// rng is what a frontend knows by itself about one range.
type rng struct {
	id fence.RangeID

	// next is the first offset not reserved, and the horizon of reads together with
	// durable, the first offset not known to be acknowledged. known says that either
	// was ever set.
	next, durable uint64
	known         bool
	unrecovered   bool   // its end could not be learned since this frontend started
	nextSeq       uint32 // lowest sequence that the next segment may have

	open    bool // head is valid
	head    head
	opened  fence.SegmentID // registered by this frontend and not yet cached; zero if none
	refused fence.SegmentID // the last one whose copy answered that it is fenced; zero if none
	opening *opening        // somebody registers a head right now
}

// head is a cached write head.
type head struct {
	segment  fence.SegmentID
	start    uint64
	bytes    int64 // what this frontend sent to it, or its file holds; steers rolls, decides nothing
	max      int64 // bytes after which it is owed a roll
	replicas []cp.NodeID
}

// opening is a registration in progress: done is closed once err is set.
type opening struct {
	done chan struct{}
	err  error
}

// at is the state of a range, made if this frontend never touched it. The shard's
// mu is held.
func (s *shard) at(id fence.RangeID) *rng {
	r := s.ranges[id]
	if r == nil {
		r = &rng{id: id}
		s.ranges[id] = r
	}
	return r
}

// put and raise are the two ways to move the next offset, and which one is used is
// a matter of correctness: a seal puts, because reservations above it are void; all
// else raises, because other batches in flight hold higher ones.
func (r *rng) put(offset uint64) {
	r.next, r.known = offset, true
	r.durable = min(r.durable, offset)
}

func (r *rng) raise(offset uint64) { r.next, r.known = max(r.next, offset), true }

// past raises the next sequence past a segment's.
func (r *rng) past(id fence.SegmentID) { r.nextSeq = max(r.nextSeq, id.Seq+1) }

// cache makes seg the range's head.
func (s *shard) cache(r *rng, seg *cp.Segment, max int64) {
	r.open = true
	r.head = head{segment: seg.ID, start: seg.Start, max: max, replicas: seg.Replicas}
	if r.opened == seg.ID {
		// Nobody can have reserved anything in it yet: what is counted above its start
		// was meant for segments that are closed.
		r.put(seg.Start)
		r.opened = fence.SegmentID{}
	} else {
		r.raise(seg.Start)
	}
	r.past(seg.ID)
	s.heads[r] = struct{}{}
}

// evict forgets the cached head if it is that segment.
func (s *shard) evict(id fence.SegmentID) {
	if r := s.ranges[id.Range]; r != nil && r.open && r.head.segment == id {
		r.open, r.head = false, head{}
		delete(s.heads, r)
	}
}

// settle seats the range behind a segment that is closed at end for good. Between the
// control plane's answer and this call others may have learned of the seal, opened the
// successor and even sealed that: then the range sits further on already and stays there.
func (s *shard) settle(id fence.SegmentID, end uint64) {
	s.evict(id)
	s.ledger.Clear(id)
	r := s.at(id.Range)
	if r.nextSeq > id.Seq+1 {
		return
	}
	r.put(end)
	r.durable = end
}

// forget seats the range at the end that a fenced copy answered with, if the
// segment is what this frontend writes to or owes. A fence in flight stays.
func (s *shard) forget(id fence.SegmentID, end uint64) {
	r := s.ranges[id.Range]
	if (r == nil || !r.open || r.head.segment != id) && !s.ledger.Owes(id) {
		return
	}
	s.evict(id)
	s.ledger.Refused(id)
	r = s.at(id.Range)
	r.put(end)
	r.refused = id
}

// roll is what closing the cached head takes.
func (h *head) roll() Roll {
	return Roll{Segment: h.segment, Primary: string(h.replicas[0]), Start: h.start}
}

// rollOf is what closing a segment takes; false if it has no replica to ask.
func rollOf(seg *cp.Segment) (Roll, bool) {
	if len(seg.Replicas) == 0 {
		return Roll{}, false
	}
	return Roll{Segment: seg.ID, Primary: string(seg.Replicas[0]), Start: seg.Start}, true
}

// Topic is a topic's place in a frontend, so that a producer looks up its name once.
// It stays usable for ever; once the topic is gone, planning with it answers
// cp.ErrNoSuchTopic, and a topic of the same name made later has another one.
type Topic struct {
	id      fence.TopicID
	name    string
	shard   *shard
	version atomic.Uint64 // stored with shard.mu held

	gone   bool    // guarded by shard.mu
	routes []route // likewise; replaced, never changed in place

	mirrored uint64 // commands mirrored in the view; guarded by meta
}

// A route is a slice [first, last] of the keyspace and the active range that owns it.
type route struct {
	first, last uint32
	r           *rng
}

// ID is the topic's identity.
func (t *Topic) ID() fence.TopicID { return t.id }

// Name is the topic's name.
func (t *Topic) Name() string { return t.name }

// Version changes whenever the topic's active ranges do, and never repeats.
func (t *Topic) Version() uint64 { return t.version.Load() }

// Slice is an active range and the positions [First, Last] it owns.
type Slice struct {
	Range       fence.RangeID
	First, Last uint32
}

// Slices lists the active ranges by position, with the version they belong to.
func (t *Topic) Slices() ([]Slice, uint64) {
	t.shard.mu.Lock()
	defer t.shard.mu.Unlock()
	list := make([]Slice, len(t.routes))
	for i, rt := range t.routes {
		list[i] = Slice{Range: rt.r.id, First: rt.first, Last: rt.last}
	}
	return list, t.version.Load()
}

// find is the index of the route that owns a position, -1 if none does. The shard's
// mu is held.
func (t *Topic) find(pos uint32) int {
	low, high := 0, len(t.routes)
	for high-low > 1 {
		mid := int(uint(low+high) >> 1)
		if t.routes[mid].first <= pos {
			low = mid
		} else {
			high = mid
		}
	}
	if low < high && t.routes[low].first <= pos && pos <= t.routes[low].last {
		return low
	}
	return -1
}

// directory finds topics by name. Its locks are leaves: nothing is taken under them.
type directory [shardCount]struct {
	mu     sync.RWMutex
	topics map[string]*Topic
	_      [64]byte
}

func (d *directory) init() {
	for i := range d {
		d[i].topics = map[string]*Topic{}
	}
}

// slot hashes a name with FNV-1a.
func slot(name string) int {
	h := uint32(2166136261)
	for i := range len(name) {
		h = (h ^ uint32(name[i])) * 16777619
	}
	return int((h ^ h>>16) % shardCount)
}

func (d *directory) get(name string) *Topic {
	s := &d[slot(name)]
	s.mu.RLock()
	t := s.topics[name]
	s.mu.RUnlock()
	return t
}

func (d *directory) set(name string, t *Topic) {
	s := &d[slot(name)]
	s.mu.Lock()
	defer s.mu.Unlock()
	if t == nil {
		delete(s.topics, name)
	} else {
		s.topics[name] = t
	}
}

// all lists the topics in no particular order.
func (d *directory) all() []*Topic {
	var list []*Topic
	for i := range d {
		d[i].mu.RLock()
		for _, t := range d[i].topics {
			list = append(list, t)
		}
		d[i].mu.RUnlock()
	}
	return list
}

// Topic resolves a name. It is cp.ErrNoSuchTopic for a name that this frontend's view
// does not have.
func (f *Frontend) Topic(name string) (*Topic, error) {
	if t := f.names.get(name); t != nil {
		return t, nil
	}
	return nil, topicErr(name, cp.ErrNoSuchTopic)
}

// Route says which active range owns a position, and the version of the topic that
// this holds for. Refusals: cp.ErrNoSuchTopic, [ErrUnroutable].
func (f *Frontend) Route(topic string, position uint32) (id fence.RangeID, version uint64, err error) {
	t, err := f.Topic(topic)
	if err != nil {
		return id, 0, err
	}
	t.shard.mu.Lock()
	defer t.shard.mu.Unlock()
	if i := t.find(position); i >= 0 {
		return t.routes[i].r.id, t.version.Load(), nil
	}
	return id, t.version.Load(), t.unroutable()
}

// unroutable says why no range owns a position. The shard's mu is held.
func (t *Topic) unroutable() error {
	if t.gone {
		return topicErr(t.name, cp.ErrNoSuchTopic)
	}
	return topicErr(t.name, ErrUnroutable)
}

// resync makes the hot state of the topic of that name follow the view. meta is held
// for writing.
func (f *Frontend) resync(name string) {
	state := f.view.of(name)
	var rec *cp.Topic
	if state != nil {
		rec = state.Topic(name)
	}
	t := f.names.get(name)
	if t != nil && (rec == nil || rec.ID != t.id) {
		t.retire()
		f.names.set(name, nil)
		t = nil
	}
	if rec == nil {
		return
	}
	fresh := t == nil
	if fresh {
		t = &Topic{id: rec.ID, name: name, shard: f.shard(rec.ID)}
	}
	t.follow(state, &f.epoch)
	if fresh {
		f.names.set(name, t)
	}
}

// retire makes a handle answer that its topic is gone.
func (t *Topic) retire() {
	t.shard.mu.Lock()
	defer t.shard.mu.Unlock()
	t.gone, t.routes = true, nil
}

// follow rebuilds the routes if the active ranges are not those of the state.
func (t *Topic) follow(state *cp.State, epoch *atomic.Uint64) {
	t.shard.mu.Lock()
	defer t.shard.mu.Unlock()
	active := state.ActiveRanges(t.name)
	if t.version.Load() != 0 && t.routed(active) {
		return
	}
	routes := make([]route, len(active))
	for i, r := range active {
		routes[i] = route{first: uint32(r.Start), last: uint32(r.End - 1), r: t.shard.at(r.ID)}
	}
	t.routes = routes
	t.version.Store(epoch.Add(1))
}

// learn makes slices the routes, if they are others.
func (t *Topic) learn(slices []Slice, epoch *atomic.Uint64) {
	t.shard.mu.Lock()
	defer t.shard.mu.Unlock()
	same := len(slices) == len(t.routes)
	for i := 0; same && i < len(slices); i++ {
		same = slices[i].Range == t.routes[i].r.id
	}
	if same {
		return
	}
	t.routes = make([]route, len(slices))
	for i, s := range slices {
		t.routes[i] = route{first: s.First, last: s.Last, r: t.shard.at(s.Range)}
	}
	t.version.Store(epoch.Add(1))
}

// routed says whether the routes are to just these ranges.
func (t *Topic) routed(active []*cp.Range) bool {
	if len(active) != len(t.routes) {
		return false
	}
	for i, r := range active {
		if t.routes[i].r.id != r.ID {
			return false
		}
	}
	return true
}
