package store

import "time"

// A disk, or the kernel in front of it, may keep a write and never answer. What became of
// it is not known then, so nobody is answered, nothing is written again, and who waits for
// that segment goes on waiting, as does Close: the memory is the kernel's still. It is told,
// for somebody to look at the machine.

// stallAfter is the time between two looks; a write that both find is late.
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

// lookForStalls looks at every open segment, and tells of those whose first write was
// there at the last look already.
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

// stalls says whether s waits for a write that it waited for when last asked, whether that
// is new, and up to where the file is durable.
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
