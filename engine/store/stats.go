package store

import (
	"sync/atomic"
	"time"
)

// Stats are counts since Open.
type Stats struct {
	Segments, Open        int
	Stalled               int // open segments whose first write the disk has not answered for 10 seconds or more
	Appends, Records      uint64
	Flushes, FlushBytes   uint64 // with padding
	FrameBytes            uint64 // without
	Duplicates, Failures  uint64
	Damages               uint64 // damaged stretches that were met in files of segments
	Changed, Voided       uint64 // frames that were changed while they were written, and those that turned void for it
	OutOfSpace            bool
	ArenaBytes, ArenaUsed int

	Latency          Durations // of flushes, from when the disk was given one until it was durable
	QueuedAppends    int       // appends that are not given to the disk yet
	QueuedBytes      int64     // their frames
	UnconfirmedBytes int64     // of frames that the disk has and that are not durable, or not behind everything before them
	StoredBytes      int64     // in segment files, up to where they are durable
	FreeBytes        uint64    // of the file system, at the last look
	Recovered        int       // segments that an earlier process had left open
	RecoveryTook     time.Duration
}

// Stats returns the counts.
func (s *Store) Stats() Stats {
	c := &s.count
	st := Stats{
		Stalled: int(s.stalled.Load()),
		Appends: c.appends.Load(), Records: c.records.Load(),
		Flushes: c.flushes.Load(), FlushBytes: c.flushBytes.Load(), FrameBytes: c.frameBytes.Load(),
		Duplicates: c.duplicates.Load(), Failures: c.failures.Load(), Damages: c.damages.Load(), Changed: c.changed.Load(), Voided: c.voided.Load(), OutOfSpace: s.full.Load(),
		ArenaBytes: int(s.disk.Arena().Size()), ArenaUsed: int(s.disk.Arena().InUse()),
		Latency: c.latency.Read(), FreeBytes: s.free.Load(), Recovered: s.recovered, RecoveryTook: s.recoveryTook,
	}
	s.mu.Lock()
	st.Segments = len(s.segments)
	var open []*Segment
	for _, seg := range s.segments {
		st.StoredBytes += seg.durable.Load()
		if _, ok := seg.Fenced(); !ok {
			open = append(open, seg)
		}
	}
	s.mu.Unlock()
	st.Open = len(open)
	for _, seg := range open {
		seg.depth(&st)
	}
	return st
}

// depth adds what s has queued and in flight.
func (s *Segment) depth(st *Stats) {
	if s.shard == nil {
		return
	}
	s.shard.mu.Lock()
	defer s.shard.mu.Unlock()
	st.QueuedAppends += s.queue.len()
	st.QueuedBytes += s.queued
	st.UnconfirmedBytes += s.unconfirmed
}

// counters of one store, for Stats.
type counters struct {
	appends, records, duplicates    atomic.Uint64
	flushes, flushBytes, frameBytes atomic.Uint64
	failures, damages               atomic.Uint64
	changed, voided                 atomic.Uint64
	latency                         DurationCounter // of flushes
}
