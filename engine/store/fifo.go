package store

// A fifo is a queue in one slice, which is reused.
type fifo[T any] struct {
	items []T
	head  int
}

func (f *fifo[T]) len() int { return len(f.items) - f.head }

func (f *fifo[T]) push(x T) {
	if f.head > 0 && len(f.items) == cap(f.items) {
		n := copy(f.items, f.items[f.head:])
		clear(f.items[n:])
		f.items, f.head = f.items[:n], 0
	}
	f.items = append(f.items, x)
}

// all is what is in it, to be looked at.
func (f *fifo[T]) all() []T { return f.items[f.head:] }

func (f *fifo[T]) peek() T { return f.items[f.head] }

func (f *fifo[T]) pop() T {
	x := f.items[f.head]
	var zero T
	f.items[f.head] = zero
	f.head++
	if f.head == len(f.items) {
		f.items, f.head = f.items[:0], 0
	}
	return x
}

// unpop puts xs, which were popped last, back in front.
func (f *fifo[T]) unpop(xs []T) {
	if f.head >= len(xs) {
		f.head -= len(xs)
		copy(f.items[f.head:], xs)
		return
	}
	f.items = append(append([]T(nil), xs...), f.items[f.head:]...)
	f.head = 0
}
