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
)

// nodeID names the one member of a single node's cluster.
const nodeID cp.NodeID = "local"

// commandTimeout bounds one change of the metadata.
const commandTimeout = 10 * time.Second

// Engine is a log store in one directory, inside this process. All methods are safe
// for concurrent use.
type Engine struct {
	dir    string
	opts   Options
	log    *slog.Logger
	arena  *disk.Arena
	store  *store.Store
	host   *host.Host
	front  *frontend.Frontend
	writer uint64 // this process's incarnation
	start  time.Time
	fences fenceStats
	report Opened

	rolls chan struct{} // something may be owed; holds one
	quit  chan struct{}
	tasks sync.WaitGroup

	heads sync.Map // fence.RangeID -> *sync.Mutex, see hold

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
	Fenced    int // segments that were closed before
	Recovered int // segments that the process before left open, closed now
	Records   uint64
	Damaged   []store.FileNote // read as errors, never as the end
	SetAside  []string         // files that the metadata does not know, moved to quarantine/
	Took      time.Duration
}

// Open opens or creates the store in dir. A second process is refused with
// ErrLocked. What a process that did not close left open is recovered and fenced
// first: every acknowledged record is there.
func Open(dir string, o Options) (*Engine, error) {
	o, err := o.withDefaults(runtime.NumCPU())
	if err != nil {
		return nil, err
	}
	e := &Engine{
		dir: dir, opts: o, log: o.Logger, start: o.now(),
		rolls: make(chan struct{}, 1), quit: make(chan struct{}),
		members: map[*Producer]struct{}{}, closed: make(chan struct{}),
	}
	e.idle = sync.NewCond(&e.mu)
	e.writer = e.dice()
	if err := e.open(); err != nil {
		return nil, errors.Join(fmt.Errorf("open %s: %w", dir, err), e.release())
	}
	e.report.Took = o.now().Sub(e.start)
	e.tasks.Go(e.roller)
	e.tasks.Go(e.retainer)
	return e, nil
}

func (e *Engine) open() error {
	d, err := disk.Open(filepath.Join(e.dir, "log"), disk.Options{
		Engine: e.opts.IO, ArenaBytes: e.opts.ArenaBytes, RawWait: e.opts.RawWait,
	})
	if err != nil {
		return err
	}
	e.report.IO = d.Info()
	e.arena = d.Arena()
	var rec *store.Recovery
	e.store, rec, err = store.Open(d, store.Options{
		Shards: e.opts.Shards, SegmentBytes: e.opts.SegmentBytes, PoolBytes: e.opts.PoolBytes,
		QueueBytes: int64(e.opts.ArenaBytes), ReserveBytes: e.opts.ReserveBytes,
		Writer: e.writer, Now: e.opts.now, FenceID: e.dice, Logger: e.log,
	}, e.opts.Progress)
	if err != nil {
		return err
	}
	e.host, err = host.Open(host.Options{Dir: filepath.Join(e.dir, "meta"), Vnodes: e.opts.Vnodes, Node: nodeID, Logger: e.log})
	if err != nil {
		return err
	}
	view, err := e.readView()
	if err != nil {
		return err
	}
	e.front, err = frontend.New(frontend.Options{
		Self: nodeID, Writer: e.writer, Bits: e.dice, SegmentMaxBytes: e.opts.SegmentBytes,
		View: view, Command: e.command,
	})
	if err != nil {
		return err
	}
	return e.reconcile(rec)
}

// command is the frontend's way to the control plane.
func (e *Engine) command(topic string, cmd cp.Command) cp.Reply {
	ctx, cancel := context.WithTimeout(context.Background(), commandTimeout)
	defer cancel()
	reply, err := e.host.Propose(ctx, topic, cmd)
	if err != nil {
		return cp.Reply{Err: err}
	}
	return reply
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
func (e *Engine) Opened() Opened { return e.report }

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
// which is an error, though nothing is lost.
func (e *Engine) Close() error {
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
	errs = append(errs, e.fenceAll(), e.release())
	if n := e.arena.InUse(); n > 0 {
		errs = append(errs, fmt.Errorf("engine: consumers and batches still hold %d bytes of memory: close and discard them before the engine", n))
	}
	return errors.Join(errs...)
}

func (e *Engine) release() error {
	var errs []error
	if e.host != nil {
		errs = append(errs, e.host.Close())
	}
	if e.store != nil {
		errs = append(errs, e.store.Close())
	}
	return errors.Join(errs...)
}

// fenceAll closes every open segment and records its end.
func (e *Engine) fenceAll() error {
	return several(e.store.IDs(), func(id fence.SegmentID) error {
		seg, err := e.store.Segment(id)
		if err != nil {
			return nil // deleted meanwhile
		}
		if _, done := seg.Fenced(); done {
			return nil
		}
		return e.roll(seg)
	})
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

// reconcile brings metadata and disk together at start-up: what the metadata thinks
// is open is sealed where its recovered copy ends; files nobody knows are set aside.
func (e *Engine) reconcile(rec *store.Recovery) error {
	e.report.Fenced, e.report.Recovered, e.report.Damaged = rec.Fenced, len(rec.Recovered), rec.Damaged
	for _, v := range rec.Recovered {
		e.log.Info("segment recovered", "segment", v.ID, "end", v.End.Offset, "bytes", v.End.Bytes)
	}
	for _, n := range rec.Damaged {
		e.log.Error("segment file damaged", "file", n.File, "err", n.Err)
	}
	known := map[fence.SegmentID]bool{}
	var open []cp.Segment
	for topic := range e.topics() {
		e.eachSegment(topic.Name, func(s *cp.Segment) {
			known[s.ID] = true
			if s.Phase == cp.Active {
				open = append(open, *s)
			}
		})
	}
	for i := range open {
		if err := e.sealLeftOpen(&open[i], rec); err != nil {
			return err
		}
	}
	return e.setAsideUnknown(known, rec)
}

// sealLeftOpen records the end of a segment that no process writes to any more.
func (e *Engine) sealLeftOpen(s *cp.Segment, rec *store.Recovery) error {
	seg, err := e.store.Segment(s.ID)
	if errors.Is(err, store.ErrNoSegment) {
		for _, n := range rec.Damaged {
			if n.ID == s.ID {
				return fmt.Errorf("segment %s cannot be closed, its end is unknown: %w", s.ID, n.Err)
			}
		}
		// Registered, but the process ended before its file had a name: it never took
		// a record. The file is made so that its producers are handed on.
		if seg, err = e.create(s.ID); err != nil {
			return err
		}
	}
	if err != nil {
		return err
	}
	end, err := seg.Fence()
	if err != nil {
		return err
	}
	e.report.Records += end.Offset - s.Start
	roll := frontend.Roll{Segment: s.ID, Primary: string(nodeID), Start: s.Start}
	if err := e.front.RecordFence(roll, end.Offset, end.Bytes, e.millis()); err != nil {
		return fmt.Errorf("record the end of segment %s: %w", s.ID, err)
	}
	return nil
}

func (e *Engine) setAsideUnknown(known map[fence.SegmentID]bool, rec *store.Recovery) error {
	for _, n := range rec.Unknown {
		to, err := e.store.SetAside(n.File)
		if err != nil {
			return err
		}
		e.report.SetAside = append(e.report.SetAside, to)
	}
	for _, id := range e.store.IDs() {
		if known[id] {
			continue
		}
		to, err := e.store.SetAsideSegment(id)
		if err != nil {
			return err
		}
		e.report.SetAside = append(e.report.SetAside, to)
	}
	return nil
}
