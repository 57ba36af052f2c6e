package store

import (
	"slices"
	"sort"
	"sync"
	"sync/atomic"
)

// tailBytes is how much of an open segment's newest flushes is kept in memory
// while somebody reads its tail.
const tailBytes = 4 << 20

// tail is the newest part of an open segment, for readers that keep up. The
// reaper adds, readers load an immutable snapshot: no lock between them.
type tail struct {
	snap  atomic.Pointer[[]chunk]
	bytes int64 // of the chunks; used by add alone
	gone  int   // chunks that were dropped, but still lie in front of the snapshot, in its memory; likewise
}

// chunk is one flush as it was written.
type chunk struct {
	pos  int64
	data []byte
}

// add appends a flush, in memory that nobody else has. One goroutine at a time calls it.
//
// A snapshot shares the memory of the one before and reaches one chunk further, so that a tail
// of many small flushes is not copied for each of them. Chunks that were dropped stay in that
// memory for a while: at most an eighth of all.
func (t *tail) add(pos int64, data []byte) {
	var list []chunk
	if p := t.snap.Load(); p != nil {
		list = *p
	} else {
		t.bytes, t.gone = 0, 0
	}
	t.bytes += int64(len(data))
	n := 0
	for ; n < len(list) && t.bytes > tailBytes; n++ {
		t.bytes -= int64(len(list[n].data))
	}
	list = list[n:]
	if t.gone += n; t.gone > len(list)/8 {
		list, t.gone = slices.Clone(list), 0
	}
	list = append(list, chunk{pos, data})
	t.snap.Store(&list)
}

// from returns what the tail holds from pos on, in one piece of memory; nil if
// that is not in it.
func (t *tail) from(pos int64) []byte {
	p := t.snap.Load()
	if p == nil {
		return nil
	}
	i := sort.Search(len(*p), func(i int) bool { return (*p)[i].pos > pos }) - 1
	if i < 0 {
		return nil
	}
	if c := (*p)[i]; pos < c.pos+int64(len(c.data)) {
		return c.data[pos-c.pos:]
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

// Join says that somebody reads the topic's tail until Leave: its newest flushes are kept in
// memory meanwhile.
func (w *Watch) Join() { w.readers.Add(1) }

// Leave ends a Join.
func (w *Watch) Leave() { w.readers.Add(-1) }

func (w *Watch) tailing() bool { return w.readers.Load() > 0 }

// Changed returns a channel that is closed at the next change. To miss nothing, take the
// channel first, then look for records, then wait.
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
