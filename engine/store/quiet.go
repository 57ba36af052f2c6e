package store

// A segment that is not written to for a moment is proved to its end: its pointer records,
// durably, that all of it was there. So the next start notices whatever is lost later, even
// of the very last flush, behind which nothing lies. Without that record such a loss would
// look like the end of the segment, or like a flush that a crash tore.

// quietMost is how many pointers one pass moves on a shard, so that appends do not wait behind
// them. The next pass moves others.
const quietMost = 16

// proveQuiet proves the segments that were written to and were quiet since the last look.
func (s *Store) proveQuiet() {
	if s.enter() != nil {
		return
	}
	defer s.leave()
	for _, sh := range s.shards {
		sh.proveQuiet()
	}
}

func (sh *shard) proveQuiet() {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	started := 0
	later := sh.written[:0]
	for _, s := range sh.written {
		at := s.durable.Load()
		quiet := s.lookedAt == at && s.queue.len() == 0 && s.flushes.len() == 0
		s.lookedAt = at
		switch {
		case s.proved == at || s.phase != open || s.failed != nil || sh.closed:
			s.listed = false
		case !quiet || started == quietMost || sh.inFlight >= sh.q.Depth():
			later = append(later, s)
		default:
			s.listed, s.proved = false, at
			f := s.takeAside(sh)
			f.quiet = true
			sh.inFlight++
			sh.asides = append(sh.asides, f)
			started++
		}
	}
	clear(sh.written[len(later):])
	sh.written = later
	if started > 0 {
		sh.pump(false)
	}
}
