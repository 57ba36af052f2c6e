package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/ringfence/ringfence/engine/api"
	"github.com/ringfence/ringfence/engine/shm"
	"github.com/ringfence/ringfence/engine/wire"
)

// Sharing says who may share memory with the server, and how much.
type Sharing struct {
	// UIDs and GIDs are the users and groups whose processes may; none at all means the
	// server's own user.
	UIDs, GIDs []uint32
	// Trusted are the users whose large frames go to the device from where they lie,
	// without a copy: they may share memory, too. What one of them changes meanwhile is not
	// stored, as long as it does not change it back; then it is its own frame alone that readers
	// find damaged.
	Trusted []uint32
	// ArenaBytes is the most that one client gets for its frames, and what it gets if it
	// does not ask for less; 0 means 64 MiB. Who cannot send a frame of a certain size
	// otherwise sends it over a socket.
	ArenaBytes int64
	TotalBytes int64 // of all clients; 0 means 1 GiB
	Clients    int   // at a time; 0 means 64
	// UserBytes and UserClients are how much of these one user's may have: 0 means half of it
	// where several users may share memory, and otherwise all.
	UserBytes   int64
	UserClients int
}

// sharedSlots is how many frames of one client may be under way.
const sharedSlots = 1024

// SharedStats say what goes through shared memory.
type SharedStats struct {
	Clients     int64 // now
	Bytes       int64 // of their arenas, with rings
	Attached    int64 // clients since the start
	Refused     int64 // connections of users who may not
	Submissions int64
	FrameBytes  int64 // of them
	Copies      int64 // submissions that were copied to memory of the engine
	CopiedBytes int64
	Lent        int64 // submissions that went to the device from where they lay
	RingFull    int64 // submissions after which their client could send no more until it was answered
	Hostile     int64 // clients that were cut off for breaking the rules
	Changed     int64 // of these, those that changed a frame while it was written
	Faults      int64 // clients that were cut off for memory that could not be read
	Files       int64 // descriptors of closed segments that were given, each for one page
	FileBytes   int64 // of frames that clients so read themselves
	Users       []SharedUser
}

// ServeShared is Serve for a listener whose clients may share memory with the server. Of
// those it takes only whom Options.Sharing allows, and knows them from the kernel.
func (s *Server) ServeShared(l *net.UnixListener) error { return s.serve(l, s.admitPeer) }

// admitPeer starts a connection of somebody who may share memory, or says why not.
func (s *Server) admitPeer(nc net.Conn) {
	peer, err := shm.PeerOf(nc.(*net.UnixConn))
	reason := ""
	switch o := &s.opts.Sharing; {
	case err != nil:
		reason = err.Error()
	case peer.Unknown():
		reason = fmt.Sprintf("the client's user has no number here (it shows as %d): it runs in a user namespace that maps it to nobody; map it to a user that may share memory", peer.UID)
	case !slices.Contains(o.UIDs, peer.UID) && !slices.Contains(o.GIDs, peer.GID) && !slices.Contains(o.Trusted, peer.UID):
		reason = fmt.Sprintf("user %d, group %d, may not share memory with this server: allow it in its settings shm-uids or shm-gids", peer.UID, peer.GID)
	default:
		s.admitAs(nc, &peer)
		return
	}
	s.count.sharesRefused.Add(1)
	level := s.tell.refusal.level(slog.LevelWarn)
	s.log.Log(context.Background(), level, "connection for shared memory refused", "uid", peer.UID, "gid", peer.GID, "pid", peer.PID, "reason", reason)
	s.turnAway(nc, &wire.Error{Code: wire.CodePermissionDenied, Detail: reason}, true)
}

// shared is the memory of a connection. One goroutine takes what the client submits and
// hands it to the engine itself; what becomes of it is told by whoever knows.
type shared struct {
	c     *conn
	host  *shm.Host
	bytes int64 // of the budget
	since time.Time
	log   *slog.Logger
	count tallies

	// Of a client that is trusted: its arena is registered with the engine, from the first
	// frame on that is worth it, and parts of it are lent.
	trusted    bool
	registered bool         // or that has failed. Of the goroutine
	unregister func() error // nil: everything is copied. Of the goroutine, and of close behind it
	lent       blocks

	cutOff, changed sync.Once // counts that it was, and for that

	lone int // submissions in a row that came when no other was open. Of the goroutine

	busy   sync.Mutex     // held while a submission is passed to its producer
	flying sync.WaitGroup // submissions that the engine has
	ended  chan struct{}  // closed when no more are taken
}

// attach makes the connection's memory and has the client told. It runs on the reader's
// goroutine: that reads no frames of producers any more, whose next come from serve.
func (c *conn) attach(h wire.Head, m *wire.Attach) error {
	if c.peer == nil {
		return refusal(wire.CodeUnsupported, "memory is shared on a socket of its own alone (serve --shm)")
	}
	if c.shared.Load() != nil {
		return refusal(wire.CodeInvalidArgument, "the connection has its memory: one of each")
	}
	g := shm.Geometry{ArenaBytes: arenaFor(m.ArenaBytes, c.s.opts.Sharing.ArenaBytes), Slots: sharedSlots}
	size := int64(g.Size())
	count, full := c.s.sharers.take(c.peer.UID, size)
	if full != nil {
		return full
	}
	host, err := shm.Create(shm.Options{Geometry: g, Engine: c.s.engine.Incarnation()})
	if err != nil {
		c.s.sharers.fail(c.peer.UID, size)
		return refusal(wire.CodeOverloaded, "no memory to share: %s", err)
	}
	s := &shared{
		c: c, host: host, bytes: size, since: time.Now(), count: tallies{new(tally), count},
		log: c.s.log.With("connection", c.id, "uid", c.peer.UID, "pid", c.peer.PID), ended: make(chan struct{}),
	}
	if s.trusted = slices.Contains(c.s.opts.Sharing.Trusted, c.peer.UID); s.trusted {
		s.lent.taken = make([]bool, g.ArenaBytes/shm.Block)
	}
	c.shared.Store(s)
	s.log.Debug("client shares memory", "bytes", size, "huge_pages", host.HugePages(), "trusted", s.trusted)
	c.work.Go(s.serve)
	c.out.put(outgoing{
		key: h.Key, flags: wire.FlagReply, id: h.ID, pass: host.File(),
		msg: &wire.AttachReply{Layout: shm.Version, Slots: uint32(g.Slots), ArenaBytes: uint64(g.ArenaBytes), Incarnation: c.s.engine.Incarnation()},
	})
	return nil
}

// arenaFor is the size of an arena for a client that wants so much: whole large pages
// where it can be.
func arenaFor(want uint64, most int64) int {
	n := uint64(most)
	if want != 0 {
		n = min(n, want)
	}
	unit := uint64(shm.Block)
	if n >= hugePage {
		unit = hugePage
	}
	return int(max(n/unit*unit, shm.MinArena))
}

const hugePage = 2 << 20

// close gives the memory back. Nothing of the connection runs any more; the engine may
// still answer, which then tells nobody.
func (s *shared) close() {
	var err error
	if s.unregister != nil {
		err = s.unregister() // waits for what is being written from there
	}
	if err == nil {
		err = s.host.Close()
	}
	if err != nil {
		s.log.Error("shared memory could not be given back", "error", err)
	}
	s.c.s.sharers.give(s.c.peer.UID, s.bytes)
}

// settled is closed once no more is taken and all that was is answered.
func (s *shared) settled() <-chan struct{} {
	done := make(chan struct{})
	go func() {
		<-s.ended
		s.flying.Wait()
		close(done)
	}()
	return done
}

// serve takes submissions until the connection is to end, or the client breaks a rule:
// then it is told and cut off, and nobody else hears of it.
func (s *shared) serve() {
	defer close(s.ended)
	defer context.AfterFunc(s.c.calm, s.host.Stop)()
	// No access to the memory can fault, as far as is known. If one does it is this
	// client's end and not the server's.
	debug.SetPanicOnFault(true)
	for {
		sub, err := s.next()
		if err == nil {
			err = s.pass(sub)
		}
		switch {
		case err == nil:
			continue
		case errors.Is(err, shm.ErrStopped):
		case errors.Is(err, shm.ErrPeer):
			s.cutOff.Do(s.count.hostile)
			s.c.stop(refusal(wire.CodeMalformed, "%s", err))
		default:
			s.count.fault()
			s.log.Log(context.Background(), s.c.s.tell.fault.level(slog.LevelError), "shared memory failed", "error", err)
			s.c.stop(refusal(wire.CodeInternal, "%s", err))
		}
		return
	}
}

func (s *shared) next() (sub shm.Submission, err error) {
	defer caught(&err)
	return s.host.Next()
}

// caught makes an error of a fault.
func caught(err *error) {
	if r := recover(); r != nil {
		*err = fmt.Errorf("server: shared memory: %v", r)
	}
}

// pass hands one submission to the engine, or refuses it. An error ends the connection.
func (s *shared) pass(sub shm.Submission) error {
	s.busy.Lock()
	defer s.busy.Unlock()
	c := s.c
	s.count.came(sub.Length)
	s.lone++
	switch open := s.host.Unanswered(); {
	case open == sharedSlots:
		s.count.full()
		fallthrough
	case open > 1:
		s.lone = 0
	}
	p, err := c.handles.producer(sub.Producer, false)
	if err == nil {
		err = c.mayProduce(p)
	}
	if err == nil {
		err = p.takes(int(sub.Length))
	}
	if err != nil {
		return s.refuse(p, sub, err)
	}
	frame, err := s.frame(p, sub)
	if err != nil {
		return s.refuse(p, sub, err)
	}
	if err = c.spend(frame); err == nil {
		to := c.newSending(p, sub.ID)
		to.shared = s
		p.pending.Add(1)
		s.flying.Add(1)
		others := c.s.storing.Add(1) > 1
		if err = frame.Send(c.ctx, !others && s.leads(), to.done); err == nil {
			return nil
		}
		c.s.storing.Add(-1)
		s.flying.Done()
		p.pending.Done()
	}
	frame.Discard()
	return s.refuse(p, sub, err)
}

// leads says whether the goroutine may wait for the disk, as a reader of the socket may:
// the client sends one frame at a time and waits for the answer, and no other is here.
func (s *shared) leads() bool { return s.lone >= loneRequests && !s.host.Pending() }

// between returns at a moment when no submission is being passed.
func (s *shared) between() {
	s.busy.Lock()
	defer s.busy.Unlock()
}

// lendBytes is the size from which on a frame of a trusted client is not copied: a copy of
// less costs less than a flush of its own does.
const lendBytes = 32 << 10

// hurry is the context of those who do not wait: it has ended.
var hurry = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// frame copies a submission to memory of the engine, where the client cannot change it
// any more. It waits for that memory: the client waits meanwhile, and its socket does not.
// A large one of a client that is trusted is lent to the engine instead.
func (s *shared) frame(p *producer, sub shm.Submission) (Frame, error) {
	if s.trusted && sub.Length >= lendBytes && s.register() {
		return s.lend(p, sub)
	}
	f, err := p.to.NewFrame(hurry, int(sub.Length))
	if errors.Is(err, context.Canceled) {
		start := time.Now() // which costs as much as a small frame does
		f, err = p.to.NewFrame(s.c.ctx, int(sub.Length))
		s.count.waited(time.Since(start))
	}
	if err != nil {
		return nil, err
	}
	if err := s.copy(f.Bytes(), s.host.Bytes(sub)); err != nil {
		f.Discard()
		return nil, fault{err}
	}
	s.count.copied(sub.Length)
	return f, nil
}

// register registers the arena, once, and says whether it is. That is not done before
// something was submitted: until then the client can take pages out of the memory, and the
// kernel would go on to write from those that were there while the engine looks at others.
func (s *shared) register() bool {
	if s.registered {
		return s.unregister != nil
	}
	s.registered = true
	var err error
	if s.unregister, err = s.c.s.engine.Register(s.host.Arena()); err != nil {
		s.log.Log(context.Background(), s.c.s.tell.copying.level(slog.LevelWarn), "memory of a trusted client cannot be written from: its frames are copied", "error", err)
	}
	return err == nil
}

// lend lends a submission to the engine. None of it may be lent already: the engine writes
// a header into each.
func (s *shared) lend(p *producer, sub shm.Submission) (Frame, error) {
	first := int(sub.Offset / shm.Block)
	end := first + (int(sub.Length)+shm.Block-1)/shm.Block
	if !s.lent.take(first, end) {
		return nil, fault{&shm.PeerError{Reason: fmt.Sprintf("%d bytes at offset %d were submitted before and are not answered", sub.Length, sub.Offset)}}
	}
	mem := s.host.Arena()
	at := int(sub.Offset)
	f, err := p.to.Lend(mem[at:at+int(sub.Length):end*shm.Block], func() { s.lent.give(first, end) })
	if err != nil {
		s.lent.give(first, end)
		return nil, err
	}
	s.count.lent(sub.Length)
	return f, nil
}

// blocks are those of an arena that are lent.
type blocks struct {
	mu    sync.Mutex // innermost
	taken []bool
}

// take takes the blocks from first up to end, if none of them is taken.
func (b *blocks) take(first, end int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if slices.Contains(b.taken[first:end], true) {
		return false
	}
	b.set(first, end, true)
	return true
}

func (b *blocks) give(first, end int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.set(first, end, false)
}

func (b *blocks) set(first, end int, to bool) {
	for i := first; i < end; i++ {
		b.taken[i] = to
	}
}

// fault is an error that is not about the frame: the memory failed, or the client.
type fault struct{ error }

// copy copies in pieces, which stay in the processor's caches for those who look at them
// next: one copy of a megabyte or more goes past them.
func (s *shared) copy(to, from []byte) (err error) {
	defer caught(&err)
	const piece = 64 << 10
	for len(from) > 0 {
		n := copy(to, from[:min(len(from), piece)])
		to, from = to[n:], from[n:]
	}
	return nil
}

// refuse answers a submission with an error, over the socket: it has words.
func (s *shared) refuse(p *producer, sub shm.Submission, err error) error {
	if f := (fault{}); errors.As(err, &f) {
		return f.error
	}
	if p != nil {
		err = told(p.lost(err))
		if p.numbers && p.halted == nil {
			p.halted = err
		}
	}
	s.fail(sub.ID, err)
	return nil
}

func (s *shared) fail(id uint32, err error) {
	s.count.refused(told(err).Code)
	s.host.Answered()
	s.c.fail(wire.Head{Key: wire.KeyProduce, ID: id}, err)
}

// complete answers a submission that the engine took. The engine calls it.
func (s *shared) complete(id uint32, at api.Placement, err error) {
	if err != nil {
		s.fail(id, err)
		if errors.Is(err, api.ErrChanged) {
			s.cutOff.Do(s.count.hostile) // once, however many of its frames are changed
			s.changed.Do(s.count.changed)
			s.c.stop(refusal(wire.CodeMalformed, "%s", err))
		}
	} else {
		s.count.stored()
		s.host.Complete(shm.Completion{ID: id, Range: at.Range, First: at.First, Last: at.Last, Repeats: at.Repeats})
	}
	s.flying.Done()
}

func (o Sharing) withDefaults() (Sharing, error) {
	if len(o.UIDs)+len(o.GIDs) == 0 {
		o.UIDs = []uint32{uint32(os.Geteuid())}
	}
	o.ArenaBytes = cmp.Or(o.ArenaBytes, 64<<20)
	o.TotalBytes = cmp.Or(o.TotalBytes, 1<<30)
	o.Clients = cmp.Or(o.Clients, 64)
	if o.several() {
		o.UserBytes = cmp.Or(o.UserBytes, o.TotalBytes/2)
		o.UserClients = cmp.Or(o.UserClients, (o.Clients+1)/2)
	}
	o.UserBytes = cmp.Or(o.UserBytes, o.TotalBytes)
	o.UserClients = cmp.Or(o.UserClients, o.Clients)
	switch {
	case o.ArenaBytes < shm.MinArena || o.ArenaBytes > shm.MaxArena:
		return o, fmt.Errorf("server: Sharing.ArenaBytes is %d: want %d to %d", o.ArenaBytes, shm.MinArena, shm.MaxArena)
	case o.TotalBytes < 0 || o.Clients < 0 || o.UserBytes < 0 || o.UserClients < 0:
		return o, fmt.Errorf("server: Sharing.TotalBytes is %d, Clients %d, UserBytes %d and UserClients %d: leave them 0 for the defaults",
			o.TotalBytes, o.Clients, o.UserBytes, o.UserClients)
	}
	// A client that does not say how much it wants gets what one may have, with its rings.
	rings := int64(shm.Geometry{Slots: sharedSlots}.Size())
	o.ArenaBytes = max(shm.MinArena, min(o.ArenaBytes, o.TotalBytes-rings, o.UserBytes-rings))
	return o, nil
}

// several says whether more than one user may share memory.
func (o *Sharing) several() bool {
	users := map[uint32]bool{}
	for _, uid := range slices.Concat(o.UIDs, o.Trusted) {
		users[uid] = true
	}
	return len(users) > 1 || len(o.GIDs) > 0
}
