package engine

import (
	"time"

	"github.com/ringfence/ringfence/cp/host"
	"github.com/ringfence/ringfence/engine/store"
	"github.com/ringfence/ringfence/segfile/disk"
)

// Stats are counts since Open, and what holds now.
type Stats struct {
	IO        disk.Info
	Store     store.Stats
	Metadata  host.Stats
	Fences    int64
	FenceMean time.Duration // from the call to the latch on disk
	FenceMax  time.Duration
	FenceTook store.Durations
	Arena     int64 // bytes
	ArenaUsed int64
	Uptime    time.Duration
}

// Stats returns the counts.
func (e *Engine) Stats() Stats {
	s := Stats{
		IO: e.store.Disk().Info(), Store: e.store.Stats(), Metadata: e.host.Stats(),
		Fences: e.fences.n.Load(), FenceMax: time.Duration(e.fences.worst.Load()), FenceTook: e.fences.by.Read(),
		Arena: e.arena.Size(), ArenaUsed: e.arena.InUse(), Uptime: time.Since(e.start),
	}
	if s.Fences > 0 {
		s.FenceMean = time.Duration(e.fences.nanos.Load() / s.Fences)
	}
	return s
}
