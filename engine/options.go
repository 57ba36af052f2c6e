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
	// ArenaBytes is the memory that batches and reads live in: pinned, on huge pages
	// where the host gives them. 0 means 64 MiB. Batches take it in turn: with much less,
	// a virtual machine may find what its disk has just read slow to fill again, by a
	// factor of up to eight.
	ArenaBytes int
	// SegmentBytes is the size at which a segment rolls; 0 means 256 MiB, which a fast
	// device fills in some tens of milliseconds: a roll costs about ten durable
	// writes one after another. A policy of the topic overrides it.
	SegmentBytes int64
	// PoolBytes bounds the retired segment files that are kept to be written again;
	// 0 means four segments.
	PoolBytes int64
	// OpenFiles is how many segment files are kept open: half of them to append to, of
	// which the one that was written least lately is closed for the next; half of them
	// to read. 0 means half of what the process may have open.
	OpenFiles int
	// Shards is the number of append queues; 0 means one for every four CPUs.
	Shards int
	// Vnodes is the number of metadata shards, fixed when the directory is made; 0
	// means 4.
	Vnodes int
	// Retention is what applies to topics without a policy of their own, and where a
	// policy inherits; the zero value keeps everything and rolls after a week.
	Retention Policy
	// RetainEvery is how often retention and age rolls are looked at; 0 means a minute.
	// They are looked at besides when the first producer comes, and when a policy is
	// defined, deleted or bound: a full disk need not wait.
	RetainEvery time.Duration
	// ReserveBytes is the free space below which appends are refused; 0 means 64 MiB.
	ReserveBytes uint64
	// RawWait waits for the disk without telling Go's scheduler: half the CPU per
	// wait, at the price of a processor held meanwhile. For processes that own spare
	// ones.
	RawWait bool
	// Progress, if set, hears how far recovery is.
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
