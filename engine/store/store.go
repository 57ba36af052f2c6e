package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ringfence/ringfence/fence"
	"github.com/ringfence/ringfence/segfile"
	"github.com/ringfence/ringfence/segfile/disk"
)

// Options tune a Store; the zero value is production.
type Options struct {
	Dir             string        // the path of the tree, for messages
	Shards          int           // append queues; 0 means 1
	QueueDepth      int           // flushes in flight of one shard; 0 means 64
	Flushes         int           // flushes in flight of one segment; 0 means 16
	OverlapBytes    int64         // how much must wait before a second flush overlaps the first, twice as much for a third; 0 means 64 KiB
	QueueBytes      int64         // how much may wait on one segment; 0 means 32 MiB
	SegmentBytes    int64         // the size segments are prepared for; 0 means 64 MiB
	PoolBytes       int64         // retired files kept for reuse; 0 means 8 segments
	ReserveBytes    uint64        // free space below which appends are refused; 0 means 64 MiB
	SpaceEvery      time.Duration // how often free space is checked; 0 means 1 s
	CheckpointBytes int64         // about how much the recovery of an open segment may have to read; 0 means 8 MiB
	Recoveries      int           // segments recovered at a time; 0 means 32
	Now             func() time.Time
	FenceID         func() uint64
	Logger          *slog.Logger

	// May is called once, after the whole tree was looked at and before anything in it is
	// changed, whatever was found. Its error ends Open. So the caller can find out whether
	// this is the right tree while Open looks at it.
	May func() error
}

func (o Options) withDefaults() (Options, error) {
	o.Shards = cmp.Or(o.Shards, 1)
	o.QueueDepth = cmp.Or(o.QueueDepth, 64)
	o.Flushes = cmp.Or(o.Flushes, 16)
	o.OverlapBytes = cmp.Or(o.OverlapBytes, 64<<10)
	o.QueueBytes = cmp.Or(o.QueueBytes, 32<<20)
	o.SegmentBytes = cmp.Or(o.SegmentBytes, 64<<20)
	o.PoolBytes = cmp.Or(o.PoolBytes, 8*o.SegmentBytes)
	o.ReserveBytes = cmp.Or(o.ReserveBytes, 64<<20)
	o.SpaceEvery = cmp.Or(o.SpaceEvery, time.Second)
	o.Recoveries = cmp.Or(o.Recoveries, 32)
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.May == nil {
		o.May = func() error { return nil }
	}
	if o.FenceID == nil {
		var n atomic.Uint64
		o.FenceID = func() uint64 { return n.Add(1) }
	}
	if min(o.Shards, o.Flushes, o.QueueDepth, o.Recoveries) < 0 || min(o.QueueBytes, o.SegmentBytes, o.OverlapBytes, o.CheckpointBytes, int64(o.SpaceEvery)) < 0 {
		return o, fmt.Errorf("store: negative option: %+v", o)
	}
	return o, nil
}

// Store keeps the segments of one node. All methods are safe for concurrent use.
type Store struct {
	disk   disk.Disk
	opts   Options
	log    *slog.Logger
	pool   *segfile.Pool
	shards []*shard
	reads  *reads
	lent   atomic.Int64 // bytes of the arena that scanners have
	count  counters

	toldChanged atomic.Int64 // when a frame that was changed was last told to everybody, in nanoseconds

	stalled  atomic.Int64  // open segments whose first write was late at the last look
	full     atomic.Bool   // the file system is nearly full: appends are refused
	free     atomic.Uint64 // bytes, at the last look
	told     atomic.Bool   // the log says so
	doubt    atomic.Bool   // a write found no space though there seemed to be some: a quota, perhaps
	tight    chan struct{} // the pool is to shrink; holds one
	ballast  atomic.Bool   // there is one
	looking  sync.Mutex    // one look at the space at a time; before a shard's mu
	life     sync.RWMutex  // held for reading by what Close waits for; outermost, also across I/O
	closed   bool          // guarded by life
	quit     chan struct{}
	stopPool context.CancelFunc
	tasks    sync.WaitGroup

	recovered    int // by Open, like the next
	recoveryTook time.Duration

	mu       sync.Mutex // guards the maps; never held across I/O
	segments map[fence.SegmentID]*Segment
	births   map[fence.SegmentID]bool // in Create
	watches  map[fence.TopicID]*Watch
}

// Open takes the tree behind d, recovers what an earlier process left open, and fences it.
// The Store owns d from then on, even after an error, but does not close it before it has
// called May. report, which may be nil, is told how far recovery is.
func Open(d disk.Disk, opts Options, report func(done, total int)) (*Store, *Recovery, error) {
	opts, err := opts.withDefaults()
	if err != nil {
		return nil, nil, errors.Join(err, opts.May(), d.Close())
	}
	s := &Store{
		disk: d, opts: opts, log: opts.Logger,
		segments: map[fence.SegmentID]*Segment{},
		births:   map[fence.SegmentID]bool{},
		watches:  map[fence.TopicID]*Watch{},
		tight:    make(chan struct{}, 1),
		quit:     make(chan struct{}),
	}
	began := opts.Now()
	rec, err := s.start(report)
	if err != nil {
		return nil, nil, errors.Join(err, s.release())
	}
	s.recovered, s.recoveryTook = len(rec.Recovered), opts.Now().Sub(began)
	s.lookAtSpace()
	s.tasks.Go(s.watchSpace)
	s.tasks.Go(s.watchStalls)
	s.tasks.Go(s.checkFooters)
	ctx, cancel := context.WithCancel(context.Background())
	s.stopPool = cancel
	s.tasks.Go(func() {
		s.pool.Run(ctx, func(err error) { s.log.Warn("segment pool", "err", err) })
	})
	return s, rec, nil
}

// start looks at the tree, asks May whether to go on, and recovers. An error of May counts
// more than what was found: this may be the wrong tree.
func (s *Store) start(report func(done, total int)) (*Recovery, error) {
	r, err := s.survey(report)
	if may := s.opts.May(); may != nil {
		return nil, may
	}
	if err == nil {
		err = s.prepare()
	}
	if err != nil {
		return nil, err
	}
	return r.rec, s.recover(r)
}

// lock takes the tree.
func (s *Store) lock() error {
	err := s.disk.Lock(lockName)
	if errors.Is(err, disk.ErrLocked) {
		err = fmt.Errorf("%w: %w", ErrLocked, err)
	}
	return err
}

// prepare makes the directories, the pool and the queues.
func (s *Store) prepare() error {
	if err := s.dropProbe(); err != nil {
		return err // a crash left it, and it takes space
	}
	for _, dir := range []string{segfile.TopicsDir, quarantineDir} {
		if err := s.disk.Mkdir(dir); err != nil {
			return fmt.Errorf("store: make %s: %w", dir, err)
		}
	}
	if err := s.disk.SyncDir(""); err != nil {
		return fmt.Errorf("store: sync the data directory: %w", err)
	}
	pool, err := segfile.NewPool(s.disk, segfile.PoolOptions{
		SegmentBytes: s.opts.SegmentBytes, MaxBytes: s.opts.PoolBytes, CheckpointBytes: s.opts.CheckpointBytes,
	})
	if err != nil {
		return err
	}
	s.pool = pool
	for range s.opts.Shards {
		q, err := s.disk.NewQueue(s.opts.QueueDepth)
		if err != nil {
			return fmt.Errorf("store: append queue: %w", err)
		}
		s.shards = append(s.shards, newShard(s, q))
	}
	q, err := s.disk.NewQueue(s.opts.QueueDepth)
	if err != nil {
		return fmt.Errorf("store: read queue: %w", err)
	}
	s.reads = newReads(q)
	return nil
}

const lockName = "LOCK"

// Disk is what the store does its I/O through. Frames for Append are built in its arena.
func (s *Store) Disk() disk.Disk { return s.disk }

// Segment returns a segment stored here.
func (s *Store) Segment(id fence.SegmentID) (*Segment, error) {
	s.mu.Lock()
	seg := s.segments[id]
	s.mu.Unlock()
	if seg == nil {
		return nil, fmt.Errorf("%w: %s", ErrNoSegment, id)
	}
	return seg, nil
}

// IDs lists the segments stored here, in order.
func (s *Store) IDs() []fence.SegmentID {
	s.mu.Lock()
	ids := make([]fence.SegmentID, 0, len(s.segments))
	for id := range s.segments {
		ids = append(ids, id)
	}
	s.mu.Unlock()
	slices.SortFunc(ids, fence.SegmentID.Compare)
	return ids
}

// Watch returns the watch of a topic.
func (s *Store) Watch(topic fence.TopicID) *Watch {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.watches[topic]
	if w == nil {
		w = &Watch{}
		s.watches[topic] = w
	}
	return w
}

// Forget drops the watch of a topic that is gone, and its directory. Those who have the watch
// may go on using it.
func (s *Store) Forget(topic fence.TopicID) {
	s.mu.Lock()
	delete(s.watches, topic)
	s.mu.Unlock()
	if s.enter() == nil {
		defer s.leave()
		_ = s.pool.RemoveTopic(topic) // somebody reads a file there: a start removes it later
	}
}

// Delete removes a segment that is fenced, or that takes no more because a write to it
// failed: on a full disk it cannot be fenced, and deleting it makes space. Its file is kept
// for reuse, or unlinked later.
func (s *Store) Delete(id fence.SegmentID) error {
	if err := s.enter(); err != nil {
		return err
	}
	defer s.leave()
	seg, err := s.Segment(id)
	if err != nil {
		return err
	}
	if !seg.letGo() {
		return seg.wrap(errors.New("only a segment that takes no more can be deleted"))
	}
	s.mu.Lock()
	delete(s.segments, id)
	s.mu.Unlock()
	seg.watch.Notify()
	return seg.remove()
}

// Close answers what is queued, waits for the disk, and gives the tree back. Open
// segments stay open: the next process recovers and fences them, unless the caller
// fenced them first.
func (s *Store) Close() error {
	s.life.Lock()
	again := s.closed
	s.closed = true
	s.life.Unlock()
	if again {
		return nil
	}
	close(s.quit)
	s.stopPool()
	s.tasks.Wait()
	return s.release()
}

// enter begins what Close waits for, until leave.
func (s *Store) enter() error {
	s.life.RLock()
	if s.closed {
		s.life.RUnlock()
		return ErrClosed
	}
	return nil
}

func (s *Store) leave() { s.life.RUnlock() }

func (s *Store) release() error {
	var errs []error
	for _, sh := range s.shards {
		errs = append(errs, sh.stop())
	}
	if s.reads != nil {
		errs = append(errs, s.reads.stop())
	}
	s.mu.Lock()
	segs := s.segments
	s.segments = map[fence.SegmentID]*Segment{}
	s.mu.Unlock()
	for _, seg := range segs {
		errs = append(errs, seg.close())
	}
	return errors.Join(append(errs, s.disk.Close())...)
}
