package store

import (
	"sync"
	"sync/atomic"
)

// tailBytes is how much of an open segment's newest flushes is kept in memory
// while somebody reads its tail.
const tailBytes = 4 << 20

// tail is the newest part of an open segment, for readers that keep up. The
// reaper adds, readers load an immutable snapshot: no lock between them.
type tail struct {
	snap atomic.Pointer[[]chunk]
}

// chunk is one flush as it was written.
type chunk struct {
	pos  int64
	data []byte
}

// add appends a copy of a flush. One goroutine at a time calls it, or take.
func (t *tail) add(pos int64, data []byte) { t.take(pos, append([]byte(nil), data...)) }

// take is add for memory that nobody else has.
func (t *tail) take(pos int64, data []byte) {
	var old []chunk
	if p := t.snap.Load(); p != nil {
		old = *p
	}
	total := int64(len(data))
	keep := len(old)
	for keep > 0 && total+int64(len(old[keep-1].data)) <= tailBytes {
		keep--
		total += int64(len(old[keep].data))
	}
	next := make([]chunk, 0, len(old)-keep+1)
	next = append(next, old[keep:]...)
	next = append(next, chunk{pos, data})
	t.snap.Store(&next)
}

// from returns what the tail holds from pos on, in one piece of memory; nil if
// that is not in it.
func (t *tail) from(pos int64) []byte {
	p := t.snap.Load()
	if p == nil {
		return nil
	}
	for _, c := range *p {
		if pos >= c.pos && pos < c.pos+int64(len(c.data)) {
			return c.data[pos-c.pos:]
		}
	}
	return nil
}

func (t *tail) drop() { t.snap.Store(nil) }

// Watch lets readers of one topic wait for something new in it.
type Watch struct {
	readers atomic.Int32

	mu sync.Mutex // guards ch; innermost, nothing blocks under it
	ch chan struct{}
}

// Join says that somebody reads at the topic's tail until Leave: its newest
// flushes are kept in memory meanwhile.
func (w *Watch) Join()  { w.readers.Add(1) }
func (w *Watch) Leave() { w.readers.Add(-1) }

func (w *Watch) tailing() bool { return w.readers.Load() > 0 }

// Changed returns a channel that is closed at the next change. Take it, look for
// records, then wait: nothing is missed.
func (w *Watch) Changed() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ch == nil {
		w.ch = make(chan struct{})
	}
	return w.ch
}

// Notify wakes everybody who waits.
func (w *Watch) Notify() {
	w.mu.Lock()
	if w.ch != nil {
		close(w.ch)
		w.ch = nil
	}
	w.mu.Unlock()
}
