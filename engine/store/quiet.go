package store

// A segment that is not written to for a moment is proved to its end: its pointer says,
// durably, that all of it was there. What gets lost of it later is missed when a store
// starts, the very last flush too, although nothing lies behind that. Without it nobody
// could tell the loss from the end, or from a flush that a crash tore.

// quietMost is how many pointers one look starts on a shard, so that appends do not wait
// behind them. The next look has others.
const quietMost = 16

// proveQuiet proves the segments that were quiet since the last look.
func (s *Store) proveQuiet() {
	if s.enter() != nil {
		return
	}
	defer s.leave()
	started := map[*shard]int{}
	for _, seg := range s.unfenced() {
		if started[seg.shard] < quietMost && seg.proveQuiet() {
			started[seg.shard]++
		}
	}
}

// proveQuiet starts the write of the pointer if nothing was written since the last look,
// and something before that. It says whether it did.
func (s *Segment) proveQuiet() bool {
	sh := s.shard
	sh.mu.Lock()
	defer sh.mu.Unlock()
	at := s.durable.Load()
	quiet := s.lookedAt == at
	s.lookedAt = at
	if !quiet || s.proved == at || s.phase != open || s.failed != nil || s.queue.len() > 0 || s.flushes.len() > 0 || sh.closed || sh.inFlight >= sh.q.Depth() {
		return false
	}
	s.proved = at
	f := s.takeAside(sh)
	f.quiet = true
	sh.inFlight++
	sh.asides = append(sh.asides, f)
	sh.pump(false)
	return true
}
