package engine

import (
	"fmt"
	"runtime"
)

// Callbacks run on the goroutine that answers for a whole shard of the store, or that finds a
// range its write head: everybody's answers come behind them. So a call that has to wait for
// an answer, and is made by a callback, waits for itself, for good, and for all others with
// it. It is refused instead.

// errCalledBack is what such a call answers.
var errCalledBack = fmt.Errorf("%w: a callback cannot wait for the disk, which answers nobody until it returns: do it in another goroutine", ErrOverloaded)

// callBack runs the callbacks of b, in order.
func (b *batch) callBack() {
	e := b.p.e
	e.callbacks.Add(1)
	defer e.callbacks.Add(-1)
	for i := range b.calls {
		b.calls[i].done(b.placeOf(b.calls[i].at), b.err)
	}
}

// notCalledBack refuses a caller that callBack has called, however far up. Where no callback
// runs that costs next to nothing.
func (e *Engine) notCalledBack() error {
	if e.callbacks.Load() == 0 {
		return nil
	}
	const self = "github.com/ringfence/ringfence/engine.(*batch).callBack"
	var pcs [32]uintptr
	for skip := 2; ; skip += len(pcs) {
		n := runtime.Callers(skip, pcs[:])
		if n == 0 {
			return nil
		}
		for frames := runtime.CallersFrames(pcs[:n]); ; {
			f, more := frames.Next()
			if f.Function == self {
				return errCalledBack
			}
			if !more {
				break
			}
		}
	}
}
