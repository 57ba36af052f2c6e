package store

import "time"

// A disk, or the kernel in front of it, may take a write and never answer. Then nobody knows
// what became of it: no append is answered, nothing is written again, and whoever waits for
// that segment goes on waiting, as does Close, because the kernel still has the memory. The
// log says so, for somebody to look at the machine.

// stallAfter is the time between two looks; a write that two looks in a row find is late.
const stallAfter = 10 * time.Second

func (s *Store) watchStalls() {
	t := time.NewTicker(stallAfter)
	defer t.Stop()
	for {
		select {
		case <-s.quit:
			return
		case <-t.C:
			s.lookForStalls()
		}
	}
}

// lookForStalls looks at every open segment, and reports those whose first write was already
// in flight at the last look.
func (s *Store) lookForStalls() {
	s.mu.Lock()
	var open []*Segment
	for _, seg := range s.segments {
		if seg.shard != nil && seg.reader.Load() == nil {
			open = append(open, seg)
		}
	}
	s.mu.Unlock()
	stalled := 0
	for _, seg := range open {
		at, late, news := seg.stalls()
		if late {
			stalled++
		}
		switch {
		case news && late:
			s.log.Error("the disk has not answered a write for 10 seconds; appends to this segment wait for it: look at the kernel's log",
				"file", seg.name, "byte", at)
		case news:
			s.log.Info("the disk answers again", "file", seg.name)
		}
	}
	s.stalled.Store(int64(stalled))
}

// stalls says up to where the file is durable, whether s has waited for the same write since
// the last look, and whether that is news.
func (s *Segment) stalls() (at int64, late, news bool) {
	s.shard.mu.Lock()
	defer s.shard.mu.Unlock()
	at = s.durable.Load()
	busy := s.flushes.len() > 0
	late = busy && s.waited && s.waitedAt == at
	news = late != s.late
	s.waited, s.waitedAt, s.late = busy, at, late
	return at, late, news
}
