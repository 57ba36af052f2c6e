package server

import "sync"

// tasks runs functions in the order they come, at most limit at a time, each of them in
// a goroutine that ends when there is nothing more to do. How many wait is for the one
// who adds them to bound.
type tasks struct {
	limit int
	all   *sync.WaitGroup // of every goroutine that runs

	mu      sync.Mutex // guards the rest; innermost
	running int
	waiting []func()
}

func (t *tasks) add(f func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.running == t.limit {
		t.waiting = append(t.waiting, f)
		return
	}
	t.running++
	t.all.Go(func() {
		for f != nil {
			f()
			f = t.next()
		}
	})
}

// next is what to do now, nil where there is nothing and the goroutine ends.
func (t *tasks) next() (f func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.waiting) == 0 {
		t.running--
		t.waiting = nil
		return nil
	}
	f, t.waiting = t.waiting[0], t.waiting[1:]
	return f
}
