package server

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ringfence/ringfence/engine/wire"
)

// SharedUse is what one client sent through shared memory, or all of one user.
type SharedUse struct {
	Frames      int64            `json:"frames"`
	FrameBytes  int64            `json:"frame_bytes"`
	Stored      int64            `json:"stored"` // frames whose client was told that they are
	Copies      int64            `json:"copies"` // frames that were copied to memory of the engine
	CopiedBytes int64            `json:"copied_bytes"`
	Lent        int64            `json:"lent"` // frames that went to the device from where they lay
	LentBytes   int64            `json:"lent_bytes"`
	Refused     map[string]int64 `json:"refused"`   // frames, by the code that their client was told
	RingFull    int64            `json:"ring_full"` // frames after which their client could send no more until one was answered
	Waited      time.Duration    `json:"waited_ns"` // for memory of the engine to copy to
	Hostile     int64            `json:"hostile"`   // clients that were cut off for breaking the rules
	Changed     int64            `json:"changed"`   // of these, those that changed a frame while it was written
	Faults      int64            `json:"faults"`    // clients that were cut off for memory that could not be read
}

// SharedUser is a user whose clients share memory now, or did since the start, or read
// files.
type SharedUser struct {
	UID    uint32 `json:"uid"`
	Others bool   `json:"others"` // in place of a number: all users behind the first 256

	Clients    int64            `json:"clients"` // now
	Bytes      int64            `json:"bytes"`   // of their arenas, with rings
	Attached   int64            `json:"attached"`
	TurnedAway map[string]int64 `json:"turned_away"` // clients that got no memory, by what there was too little of
	Files      int64            `json:"files"`       // descriptors of closed segments that were given, each for one page
	FileBytes  int64            `json:"file_bytes"`  // of frames that clients so read themselves
	SharedUse
}

// SharedClient is a client that shares memory now.
type SharedClient struct {
	Connection uint64    `json:"connection"`
	UID        uint32    `json:"uid"`
	GID        uint32    `json:"gid"`
	PID        int32     `json:"pid"` // as this host knows it; it may be another process's by now
	User       string    `json:"user"`
	Since      time.Time `json:"since"`
	Bytes      int64     `json:"bytes"`
	HugePages  bool      `json:"huge_pages"`
	Trusted    bool      `json:"trusted"`    // its large frames are written from where they lie
	Unanswered int64     `json:"unanswered"` // frames
	SharedUse
}

// tally is a SharedUse while it is counted.
type tally struct {
	frames, bytes, stored, copies, copied, lent, lentBytes, full, waited, hostile, changed, faults atomic.Int64

	mu      sync.Mutex // guards refused; innermost
	refused map[wire.Code]int64
}

func (t *tally) refuse(code wire.Code) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.refused == nil {
		t.refused = map[wire.Code]int64{}
	}
	t.refused[code]++ // as many as there are codes
}

// use reads what was answered before what came: it never tells more answers than frames.
func (t *tally) use() SharedUse {
	u := SharedUse{Stored: t.stored.Load(), Refused: map[string]int64{}}
	t.mu.Lock()
	for code, n := range t.refused {
		u.Refused[code.String()] += n
	}
	t.mu.Unlock()
	u.Lent, u.LentBytes, u.Copies, u.CopiedBytes = t.lent.Load(), t.lentBytes.Load(), t.copies.Load(), t.copied.Load()
	u.RingFull, u.Waited = t.full.Load(), time.Duration(t.waited.Load())
	u.Hostile, u.Changed, u.Faults = t.hostile.Load(), t.changed.Load(), t.faults.Load()
	u.Frames, u.FrameBytes = t.frames.Load(), t.bytes.Load()
	return u
}

func (u *SharedUse) unanswered() int64 {
	n := u.Frames - u.Stored
	for _, refused := range u.Refused {
		n -= refused
	}
	return n
}

// tallies are those that an event of one client counts in: its own, and its user's.
type tallies [2]*tally

func (t tallies) came(bytes uint32) {
	for _, t := range t {
		t.frames.Add(1)
		t.bytes.Add(int64(bytes))
	}
}

func (t tallies) copied(bytes uint32) {
	for _, t := range t {
		t.copies.Add(1)
		t.copied.Add(int64(bytes))
	}
}

func (t tallies) lent(bytes uint32) {
	for _, t := range t {
		t.lent.Add(1)
		t.lentBytes.Add(int64(bytes))
	}
}

func (t tallies) waited(d time.Duration) {
	for _, t := range t {
		t.waited.Add(int64(d))
	}
}

func (t tallies) stored() {
	for _, t := range t {
		t.stored.Add(1)
	}
}

func (t tallies) refused(code wire.Code) {
	for _, t := range t {
		t.refuse(code)
	}
}

func (t tallies) full() {
	for _, t := range t {
		t.full.Add(1)
	}
}

func (t tallies) hostile() {
	for _, t := range t {
		t.hostile.Add(1)
	}
}

func (t tallies) changed() {
	for _, t := range t {
		t.changed.Add(1)
	}
}

func (t tallies) fault() {
	for _, t := range t {
		t.faults.Add(1)
	}
}

// mostSharers is how many users have counts of their own: who may share memory is told by
// groups, too, and they may have any number of users.
const mostSharers = 256

// sharers know how much memory each user shares, so that none has more than its part, and
// count what users do.
type sharers struct {
	limits *Sharing

	mu     sync.Mutex // guards the rest; innermost
	now    holding    // of all
	held   map[uint32]holding
	users  map[uint32]*sharer // those that came first
	others sharer
}

type holding struct{ clients, bytes int64 }

// sharer is a user whose clients came since the start.
type sharer struct {
	attached         int64
	away             map[string]int64
	files, fileBytes int64
	tally
}

func newSharers(limits *Sharing) *sharers {
	return &sharers{limits: limits, held: map[uint32]holding{}, users: map[uint32]*sharer{}}
}

// of is the user of a number. mu is held.
func (s *sharers) of(uid uint32) *sharer {
	u := s.users[uid]
	if u == nil && len(s.users) < mostSharers {
		u = &sharer{}
		s.users[uid] = u
	}
	if u == nil {
		return &s.others
	}
	return u
}

// take takes memory for one more client of a user, or says why there is none for it. What
// the client does is counted in the tally.
func (s *sharers) take(uid uint32, size int64) (*tally, *wire.Error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var err *wire.Error
	reason, has, most := "", s.held[uid], s.limits
	switch {
	case s.now.clients >= int64(most.Clients):
		reason, err = "clients", refusal(wire.CodeOverloaded, "clients that share memory: %d, which is the most: end some, or raise shm-clients", s.now.clients)
	case has.clients >= int64(most.UserClients):
		reason, err = "user_clients", refusal(wire.CodeOverloaded, "clients that share memory: %d of user %d, which is the most of one user: end some, or raise shm-user-clients", has.clients, uid)
	case s.now.bytes+size > most.TotalBytes:
		reason, err = "memory", refusal(wire.CodeOverloaded, "%d bytes of shared memory are left of %d, and this client wants %d: ask for less, or raise shm-memory", most.TotalBytes-s.now.bytes, most.TotalBytes, size)
	case has.bytes+size > most.UserBytes:
		reason, err = "user_memory", refusal(wire.CodeOverloaded, "%d bytes of shared memory are left of the %d of user %d, and this client wants %d: ask for less, or raise shm-user-memory", most.UserBytes-has.bytes, most.UserBytes, uid, size)
	}
	u := s.of(uid)
	if err != nil {
		u.turnAway(reason)
		return nil, err
	}
	u.attached++
	s.hold(uid, 1, size)
	return &u.tally, nil
}

// fail takes back what take did for a client whose memory could not be made.
func (s *sharers) fail(uid uint32, size int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	u := s.of(uid)
	u.attached--
	u.turnAway("host")
	s.hold(uid, -1, -size)
}

func (s *sharers) give(uid uint32, size int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hold(uid, -1, -size)
}

// hold keeps an entry of those alone who have clients. mu is held.
func (s *sharers) hold(uid uint32, clients, bytes int64) {
	h := s.held[uid]
	h.clients, h.bytes = h.clients+clients, h.bytes+bytes
	s.now.clients, s.now.bytes = s.now.clients+clients, s.now.bytes+bytes
	if s.held[uid] = h; h.clients == 0 {
		delete(s.held, uid)
	}
}

// gave counts a page that a client of a user reads from its file.
func (s *sharers) gave(uid uint32, bytes int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	u := s.of(uid)
	u.files++
	u.fileBytes += bytes
}

func (u *sharer) turnAway(reason string) {
	if u.away == nil {
		u.away = map[string]int64{}
	}
	u.away[reason]++
}

// stats are the users by number, and last those without counts of their own, if there
// are any.
func (s *sharers) stats() (now holding, list []SharedUser) {
	s.mu.Lock()
	defer s.mu.Unlock()
	rest := s.now
	one := func(uid uint32, u *sharer, h holding) SharedUser {
		away := maps.Clone(u.away)
		if away == nil {
			away = map[string]int64{}
		}
		return SharedUser{UID: uid, Clients: h.clients, Bytes: h.bytes, Attached: u.attached, TurnedAway: away, Files: u.files, FileBytes: u.fileBytes, SharedUse: u.use()}
	}
	for uid, u := range s.users {
		h := s.held[uid]
		rest.clients, rest.bytes = rest.clients-h.clients, rest.bytes-h.bytes
		list = append(list, one(uid, u, h))
	}
	slices.SortFunc(list, func(a, b SharedUser) int { return cmp.Compare(a.UID, b.UID) })
	if others := one(0, &s.others, rest); others.Attached > 0 || len(others.TurnedAway) > 0 || others.Files > 0 {
		others.Others = true
		list = append(list, others)
	}
	return s.now, list
}

// sharedStats are the counters now.
func (s *Server) sharedStats() SharedStats {
	now, users := s.sharers.stats()
	st := SharedStats{Clients: now.clients, Bytes: now.bytes, Refused: s.count.sharesRefused.Load(), Users: users}
	for i := range users {
		u := &users[i]
		st.Attached += u.Attached
		st.Files += u.Files
		st.FileBytes += u.FileBytes
		st.Submissions += u.Frames
		st.FrameBytes += u.FrameBytes
		st.Copies += u.Copies
		st.CopiedBytes += u.CopiedBytes
		st.Lent += u.Lent
		st.RingFull += u.RingFull
		st.Hostile += u.Hostile
		st.Changed += u.Changed
		st.Faults += u.Faults
	}
	return st
}

// SharedClients are the clients that share memory now, in the order in which they came.
// There are not many more than Sharing.Clients: those that are about to end are told, too.
func (s *Server) SharedClients() []SharedClient {
	var all []*shared
	s.mu.Lock()
	for c := range s.conns {
		if sh := c.shared.Load(); sh != nil {
			all = append(all, sh)
		}
	}
	s.mu.Unlock()
	slices.SortFunc(all, func(a, b *shared) int { return cmp.Compare(a.c.id, b.c.id) })
	list := make([]SharedClient, len(all))
	for i, sh := range all {
		list[i] = sh.about()
	}
	return list
}

// about says who the client is and what it did.
func (s *shared) about() SharedClient {
	a := SharedClient{
		Connection: s.c.id, UID: s.c.peer.UID, GID: s.c.peer.GID, PID: s.c.peer.PID, Since: s.since,
		Bytes: s.bytes, HugePages: s.host.HugePages(), Trusted: s.trusted, SharedUse: s.count[0].use(),
	}
	if who := s.c.who.Load(); who != nil {
		a.User = who.User
	}
	a.Unanswered = a.unanswered()
	return a
}
