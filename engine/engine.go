package engine

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ringfence/ringfence/cp"
	"github.com/ringfence/ringfence/cp/host"
	"github.com/ringfence/ringfence/engine/frontend"
	"github.com/ringfence/ringfence/engine/store"
	"github.com/ringfence/ringfence/fence"
	"github.com/ringfence/ringfence/segfile/disk"
	"github.com/ringfence/ringfence/segfile/record"
)

// nodeID names the one member of a single node's cluster.
const nodeID cp.NodeID = "local"

// commandTimeout bounds one change of the metadata.
const commandTimeout = 10 * time.Second

// Engine is a log store in one directory, inside this process. All methods are safe
// for concurrent use.
type Engine struct {
	dir     string
	tree    string // the absolute path of its log, for messages
	opts    Options
	log     *slog.Logger
	disk    disk.Disk // the store's once there is one
	arena   *disk.Arena
	lenders disk.Memories // that frames are lent from
	// lifeboat holds one slab that fits any frame, for batches that leave before the
	// memory they need can be free (reroute.go).
	lifeboat chan []byte
	// scratches is memory to verify foreign frames in, and who has some may.
	scratches chan *record.Scratch

	store  *store.Store
	host   *host.Host
	front  *frontend.Frontend
	start  time.Time // monotonic
	fences fenceStats
	report Opened
	access access // what the metadata knows of users
	hasher *hasher

	callbacks atomic.Int32 // that run now

	rolls chan struct{} // something may be owed; holds one
	quit  chan struct{}
	tasks sync.WaitGroup

	retention chan struct{} // it is to be looked at now; holds one
	written   sync.Once     // the first producer came

	held   sync.Map // fence.RangeID -> *sync.Mutex, see hold
	desks  desks    // the segments that are open for appends
	rolled sync.Map // fence.SegmentID -> *rolling, see roll

	// lost says of segments that cannot be read, and not be written on, why. Set by
	// Open, never again; see whyLost.
	lost map[fence.SegmentID]error
	// unsettled says that one of them was being written to: the process that opens the
	// directory next is not to take it for closed.
	unsettled bool
	// givenUp are sealed segments without a file whose loss was accepted.
	givenUp sync.Map // fence.SegmentID -> true

	closed   chan struct{} // once Close is through; closeErr is set then
	closeErr error

	mu      sync.Mutex // guards the following; never held across anything that blocks
	closing bool
	calls   int        // under way
	idle    *sync.Cond // calls fell to 0
	members map[*Producer]struct{}
}

// Opened is what Open found.
type Opened struct {
	IO        disk.Info
	Stop      Stop   // how the process before ended
	Fenced    int    // segments that were closed before
	Recovered int    // segments that the process before left open, closed now
	Records   uint64 // in those that were left open
	// Unfenced are segments that were left open and for whose fence there was no
	// space: they are read as they are, and closed once there is some.
	Unfenced  int
	Unwritten int // segments that were to be written and have no file: closed where they begin
	// Damaged are files whose records are not all there: reading them, and writing
	// behind them, is an error, never the end. Missing ones are among them.
	Damaged  []store.FileNote
	Faulty   []store.FileNote // files with damage that costs no record
	Removed  int              // files of segments that had been deleted
	SetAside []string         // files that the metadata does not know, moved to quarantine/
	Took     time.Duration
}

// Open opens or creates the store in dir. A second process is refused with
// ErrLocked. What a process that did not close left open is recovered and fenced
// first: every acknowledged record is there.
func Open(dir string, o Options) (*Engine, error) {
	o, err := o.withDefaults(runtime.NumCPU())
	if err != nil {
		return nil, err
	}
	if dir == "" {
		return nil, errors.New("engine: no directory was given: records would land wherever the process was started")
	}
	e := &Engine{
		dir: dir, opts: o, log: o.Logger, start: time.Now(), lost: map[fence.SegmentID]error{},
		rolls: make(chan struct{}, 1), quit: make(chan struct{}), retention: make(chan struct{}, 1),
		hasher: newHasher(), members: map[*Producer]struct{}{}, closed: make(chan struct{}), lifeboat: make(chan []byte, 1), scratches: newScratches(),
	}
	e.idle = sync.NewCond(&e.mu)
	if e.tree, err = filepath.Abs(filepath.Join(dir, "log")); err != nil {
		return nil, fmt.Errorf("open %s: %w", dir, err)
	}
	if err := e.open(); err != nil {
		if errors.Is(err, host.ErrLocked) || errors.Is(err, disk.ErrLocked) {
			err = &inUse{err}
		}
		return nil, errors.Join(fmt.Errorf("open %s: %w", dir, fromHost(err)), e.release())
	}
	e.report.Took = time.Since(e.start)
	e.logOpened()
	e.tasks.Go(e.roller)
	e.tasks.Go(e.retainer)
	return e, nil
}

func (e *Engine) open() error {
	d, err := disk.Open(filepath.Join(e.dir, "log"), disk.Options{
		Engine: e.opts.IO, ArenaBytes: e.opts.ArenaBytes, RawWait: e.opts.RawWait, OpenFiles: e.opts.OpenFiles / 2, TouchLater: true,
	})
	if err != nil {
		return err
	}
	e.disk, e.arena, e.report.IO = d, d.Arena(), d.Info()
	id, err := readIdentity(d, filepath.Join(e.dir, "log"))
	if err != nil {
		return err
	}
	meta := make(chan error, 1)
	go func() { meta <- e.openMeta(d, id) }() // while the store looks at its files
	rec, err := e.openStore(func() error { return <-meta })
	if err != nil {
		return err
	}
	slab, ok := e.arena.Pack(largestBatch(e.opts.ArenaBytes))
	if !ok {
		return fmt.Errorf("engine: an arena of %d bytes is too small", e.opts.ArenaBytes)
	}
	e.lifeboat <- slab
	if err := e.mark(id, stateOpen); err != nil {
		return err
	}
	view, err := e.readView()
	if err != nil {
		return err
	}
	e.front, err = frontend.New(frontend.Options{
		Self: nodeID, Writer: e.host.Incarnation(), Bits: e.dice, SegmentMaxBytes: e.opts.SegmentBytes,
		View: view, Command: e.command, Commands: e.commands, Fetch: e.fetch,
	})
	if err != nil {
		return err
	}
	return e.reconcile(rec)
}

// openMeta opens the metadata, before anything in the log is changed, and sees to it
// that the two belong together.
func (e *Engine) openMeta(d disk.Disk, id *identity) (err error) {
	o := host.Options{
		Dir: filepath.Join(e.dir, "meta"), Vnodes: e.opts.Vnodes, Node: nodeID, Logger: e.log,
		Form: func() error { return mayForm(d, id, e.dir) }, Access: e.access.outdate,
	}
	if id != nil {
		o.Seen = id.Opened
	}
	if e.host, err = host.Open(o); err != nil {
		return fromHost(err)
	}
	e.report.Stop, err = e.belongs(d, id)
	return err
}

func (e *Engine) openStore(may func() error) (rec *store.Recovery, err error) {
	d := e.disk
	e.disk = nil // the store closes it
	e.store, rec, err = store.Open(d, store.Options{
		Dir: e.tree, Shards: e.opts.Shards, SegmentBytes: e.opts.SegmentBytes, PoolBytes: e.opts.PoolBytes,
		QueueBytes: int64(e.opts.ArenaBytes), ReserveBytes: e.opts.ReserveBytes, SpaceEvery: e.opts.spaceEvery,
		Now: e.opts.now, FenceID: e.dice, Logger: e.log, May: may,
	}, e.opts.Progress)
	return rec, err
}

// mark writes the identity of the log. On a full disk the one before stays, which
// tells less of how this process ended and is right otherwise.
func (e *Engine) mark(before *identity, state string) error {
	id := identity{Format: identityFormat, Metadata: e.host.Disk(), Opened: e.host.Incarnation(), State: state}
	err := id.save(e.store.Disk())
	if err != nil && errors.Is(err, disk.ErrNoSpace) && before != nil {
		e.log.Warn("disk full: the log's identity stays as it was", "err", err)
		return nil
	}
	return err
}

// logOpened logs what an operator looks for after a start.
func (e *Engine) logOpened() {
	r := &e.report
	e.log.Info("opened", "dir", e.dir, "stop", r.Stop, "io", r.IO.Engine, "fenced", r.Fenced, "recovered", r.Recovered,
		"unfenced", r.Unfenced, "records", r.Records, "damaged", len(r.Damaged), "aside", len(r.SetAside), "took", r.Took)
}

// command is the frontend's way to the control plane.
func (e *Engine) command(topic string, cmd cp.Command) cp.Reply {
	ctx, cancel := context.WithTimeout(context.Background(), commandTimeout)
	defer cancel()
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		reply, err := e.host.Propose(ctx, topic, cmd)
		switch {
		case err == nil:
			return reply
		case !errors.Is(err, host.ErrBusy) && !errors.Is(err, host.ErrNotReady):
			return cp.Reply{Err: fromHost(err)}
		}
		select { // nothing was proposed: it waits for its turn
		case <-time.After(pause):
		case <-ctx.Done():
			return cp.Reply{Err: fromHost(err)}
		}
	}
}

// commands proposes changes of one topic in one go.
func (e *Engine) commands(topic string, cmds ...cp.Command) []cp.Reply {
	ctx, cancel := context.WithTimeout(context.Background(), commandTimeout)
	defer cancel()
	proposals := make([]host.Proposal, len(cmds))
	for i, cmd := range cmds {
		proposals[i] = host.Proposal{Topic: topic, Command: cmd}
	}
	replies := make([]cp.Reply, len(cmds))
	for i, out := range e.host.ProposeAll(ctx, proposals) {
		if replies[i] = out.Reply; out.Err != nil {
			replies[i] = cp.Reply{Err: fromHost(out.Err)}
		}
	}
	return replies
}

// fetch copies what the control plane has of a topic, and of all that lives with it, which
// costs little.
func (e *Engine) fetch(topic string) (copied *cp.State, err error) {
	v, ok := e.host.Ring().Route(topic)
	if !ok {
		return nil, cp.ErrNoVnode
	}
	ctx, cancel := context.WithTimeout(context.Background(), commandTimeout)
	defer cancel()
	err = e.host.Read(ctx, v, func(s *cp.State) { copied = s.Clone() })
	return copied, err
}

// dice gives 64 random bits, never 0.
func (e *Engine) dice() uint64 {
	var b [8]byte
	for {
		rand.Read(b[:]) // never fails
		if n := binary.LittleEndian.Uint64(b[:]); n != 0 {
			return n
		}
	}
}

// instant is now on the monotonic clock.
func (e *Engine) instant() frontend.Instant {
	return frontend.Instant(time.Since(e.start))
}

// millis is now in milliseconds since the epoch.
func (e *Engine) millis() int64 { return e.opts.now().UnixMilli() }

func (e *Engine) stamp(r *Record) int64 {
	if r.Time.IsZero() {
		return e.millis()
	}
	return r.Time.UnixMilli()
}

// begin says that a call is under way, which Close waits for, until end. Calls may
// lie in one another.
func (e *Engine) begin() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closing {
		return ErrClosed
	}
	e.calls++
	return nil
}

// enter is begin for calls that change something: not at all once ctx has ended. A
// change under way does not look at ctx again; it ends within commandTimeout.
func (e *Engine) enter(ctx context.Context) error {
	if err := e.begin(); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		e.end()
		return err
	}
	return nil
}

// enterToFence is enter for calls that close segments.
func (e *Engine) enterToFence(ctx context.Context) error {
	if err := e.notCalledBack(); err != nil {
		return err
	}
	return e.enter(ctx)
}

func (e *Engine) end() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.calls--; e.calls == 0 {
		e.idle.Broadcast()
	}
}

func (e *Engine) isClosing() bool {
	select {
	case <-e.quit:
		return true
	default:
		return false
	}
}

// Opened says what Open found.
func (e *Engine) Opened() Opened {
	r := e.report
	r.IO = e.store.Disk().Info() // what is done behind an Open is known later
	return r
}

func (e *Engine) enlist(p *Producer) {
	e.mu.Lock()
	e.members[p] = struct{}{}
	e.mu.Unlock()
}

func (e *Engine) delist(p *Producer) {
	e.mu.Lock()
	delete(e.members, p)
	e.mu.Unlock()
}

// Close lets the calls under way end, flushes and closes every producer, fences
// every open segment and gives the directory back. What was acknowledged is on disk
// in any case; Close spares the next Open a recovery. Whoever calls it again, or
// meanwhile, waits and gets the same answer.
//
// Close consumers and discard batches first: what they hold cannot be given back,
// which is an error, though nothing is lost. A callback cannot close the engine.
func (e *Engine) Close() error {
	if err := e.notCalledBack(); err != nil {
		return err
	}
	e.mu.Lock()
	if e.closing {
		e.mu.Unlock()
		<-e.closed
		return e.closeErr
	}
	e.closing = true
	close(e.quit)
	for e.calls > 0 {
		e.idle.Wait()
	}
	producers := slices.Collect(maps.Keys(e.members))
	e.mu.Unlock()
	e.closeErr = e.close(producers)
	close(e.closed)
	return e.closeErr
}

func (e *Engine) close(producers []*Producer) error {
	ctx, cancel := context.WithTimeout(context.Background(), commandTimeout)
	defer cancel()
	errs := make([]error, len(producers))
	var group sync.WaitGroup
	for i, p := range producers {
		group.Go(func() { errs[i] = p.Close(ctx) })
	}
	group.Wait()
	e.tasks.Wait()
	left, err := e.fenceAll()
	errs = append(errs, err, e.closeMeta())
	if errors.Join(errs...) == nil && left == 0 && !e.unsettled {
		errs = append(errs, e.mark(&identity{}, stateClosed))
	}
	errs = append(errs, e.release())
	if n := e.arena.InUse(); n > 0 {
		errs = append(errs, fmt.Errorf("engine: consumers and batches still hold %d bytes of memory: close and discard them before the engine", n))
	}
	return errors.Join(errs...)
}

func (e *Engine) closeMeta() error {
	if e.host == nil {
		return nil
	}
	return e.host.Close()
}

// release gives back what open took, however far it came.
func (e *Engine) release() error {
	errs := []error{e.closeMeta()}
	select {
	case slab := <-e.lifeboat:
		e.arena.Free(slab)
	default: // not there yet, or still at sea: Close says so
	}
	if e.store != nil {
		errs = append(errs, e.store.Close())
	}
	if e.disk != nil {
		errs = append(errs, e.disk.Close())
	}
	return errors.Join(errs...)
}

// fenceAll closes every open segment, records its end, and removes it when nothing was
// stored in it. It says how many it left, for which there was no space: the next start
// closes them. They are closed for good: a segment has one writer for life, so the next
// process could not append to what this one left open, and would have to recover it.
func (e *Engine) fenceAll() (left int64, err error) {
	var full atomic.Int64
	ids := e.store.IDs()
	err = several(ids, func(id fence.SegmentID) error {
		seg, err := e.store.Segment(id)
		if err != nil {
			return nil // deleted meanwhile
		}
		if _, done := seg.Fenced(); done {
			return nil
		}
		err = e.roll(seg, false)
		if errors.Is(err, ErrOutOfSpace) {
			full.Add(1)
			e.log.Warn("no space to close a segment: the next start does", "segment", id, "err", err)
			return nil
		}
		if err != nil {
			return err
		}
		return e.dropEmpty(seg)
	})
	return full.Load(), errors.Join(err, e.dropClosed(ids))
}

// dropClosed removes what this process closed before, because it was open for long, and
// stored nothing in. One after another, for each is held against those before it, and the
// last first, so that those are there.
func (e *Engine) dropClosed(ids []fence.SegmentID) error {
	slices.SortFunc(ids, fence.SegmentID.Compare)
	for _, id := range slices.Backward(ids) {
		seg, err := e.store.Segment(id)
		if err != nil || seg.Meta().Writer != e.host.Incarnation() {
			continue // gone, or of another process: it may stand for a file that was taken away
		}
		if _, closed := seg.Fenced(); !closed {
			continue
		}
		if err := e.dropEmpty(seg); err != nil {
			return err
		}
	}
	return nil
}

// several calls do for each of list, some at a time, and joins the errors.
func several[T any](list []T, do func(T) error) error {
	const together = 16
	var next atomic.Int64
	errs := make([]error, len(list))
	var group sync.WaitGroup
	for range min(together, len(list)) {
		group.Go(func() {
			for i := int(next.Add(1)) - 1; i < len(list); i = int(next.Add(1)) - 1 {
				errs[i] = do(list[i])
			}
		})
	}
	group.Wait()
	return errors.Join(errs...)
}
