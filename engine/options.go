package engine

import (
	"cmp"
	"fmt"
	"log/slog"
	"syscall"
	"time"

	"github.com/ringfence/ringfence/cp"
)

// Options tune an Engine; the zero value is production.
type Options struct {
	// IO is "auto" (io_uring, or the pool where the kernel refuses it), "io_uring" or
	// "pool". "" means "auto".
	IO string
	// ArenaBytes is the memory that batches and reads live in; 0 means 64 MiB. It is
	// pinned, and on huge pages if the host gives them. Batches use all of it in turn.
	// With much less, a batch reuses memory sooner, which in some virtual machines is up
	// to eight times slower to fill while the disk has just read it.
	ArenaBytes int
	// SegmentBytes is the file size at which a segment rolls; 0 means 256 MiB. A policy of
	// the topic overrides it. A roll costs about ten durable writes in a row, and a fast
	// device fills 256 MiB within a tenth of a second: much smaller segments cost
	// throughput.
	SegmentBytes int64
	// PoolBytes bounds the files of deleted segments that are kept for reuse; 0 means four
	// segments.
	PoolBytes int64
	// OpenFiles is how many segment files are kept open: half of them to append to, half
	// to read. To open one more for appends, the one that was not written to for longest
	// is closed. 0 means half of what the process may have open.
	OpenFiles int
	// Shards is the number of append queues; 0 means one for every four CPUs.
	Shards int
	// Vnodes is the number of metadata shards; 0 means 4. It is fixed when the directory
	// is created.
	Vnodes int
	// Retention applies to topics without a policy of their own, and wherever a policy
	// inherits. The zero value keeps everything and rolls open segments after a week.
	Retention Policy
	// RetainEvery is how often retention and rolls by age are checked; 0 means once a
	// minute. They are also checked when the first producer opens, and when a policy is
	// defined, deleted or bound, so that a full disk need not wait.
	RetainEvery time.Duration
	// ReserveBytes is the free space, in bytes, below which appends are refused; 0 means
	// 64 MiB.
	ReserveBytes uint64
	// RawWait waits for the disk without telling Go's scheduler. That halves the CPU per
	// wait but blocks a processor meanwhile: use it only in processes with processors to
	// spare.
	RawWait bool
	// Progress, if set, is called during Open: done of total segment files are recovered.
	// It must not block.
	Progress func(done, total int)
	// Logger takes the engine's log; nil discards it.
	Logger *slog.Logger

	now        func() time.Time // tests set it
	spaceEvery time.Duration    // likewise: how often free space is looked at

	retainLater bool // likewise: retention is looked at every RetainEvery alone
}

// The least that an [Engine] works with.
const (
	MinArenaBytes   = 4 << 20
	MinSegmentBytes = cp.MinSegmentBytes // also by a policy
)

const weekMillis = 7 * 24 * 3600 * 1000

func (o Options) withDefaults(cpus int) (Options, error) {
	o.IO = cmp.Or(o.IO, "auto")
	o.ArenaBytes = cmp.Or(o.ArenaBytes, 64<<20)
	o.SegmentBytes = cmp.Or(o.SegmentBytes, 256<<20)
	o.PoolBytes = cmp.Or(o.PoolBytes, 4*o.SegmentBytes)
	o.OpenFiles = cmp.Or(o.OpenFiles, fileLimit()/2)
	o.Shards = cmp.Or(o.Shards, max(1, cpus/4))
	o.Vnodes = cmp.Or(o.Vnodes, 4)
	o.RetainEvery = cmp.Or(o.RetainEvery, time.Minute)
	o.Retention = o.Retention.Over(cp.Policy{SegmentMaxAge: cp.Limit(weekMillis)})
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.now == nil {
		o.now = time.Now
	}
	switch {
	case o.IO != "auto" && o.IO != "io_uring" && o.IO != "pool":
		return o, fmt.Errorf("engine: IO is %q, want auto, io_uring or pool", o.IO)
	case o.ArenaBytes < MinArenaBytes:
		return o, fmt.Errorf("engine: ArenaBytes is %d, want 4 MiB or more", o.ArenaBytes)
	case o.SegmentBytes < MinSegmentBytes:
		return o, fmt.Errorf("engine: SegmentBytes is %d, want 1 MiB or more", o.SegmentBytes)
	case o.OpenFiles < 16:
		return o, fmt.Errorf("engine: OpenFiles is %d, want 16 or more", o.OpenFiles)
	case o.Shards < 0 || o.Vnodes < 0 || o.PoolBytes < 0 || o.RetainEvery < 0:
		return o, fmt.Errorf("engine: Shards, Vnodes, PoolBytes and RetainEvery may not be negative")
	}
	if err := o.Retention.Validate(); err != nil {
		return o, fmt.Errorf("engine: Retention: %w", err)
	}
	return o, nil
}

// fileLimit is how many files the process may have open.
func fileLimit() int {
	var l syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l); err != nil {
		return 1024
	}
	return int(min(max(l.Cur, 64), 1<<20))
}
