package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// Sender makes and sends one batch at a time for one worker. Fill makes the next
// batch while those sent before are in flight, as every producer that batches does,
// so that in flight means sent and not answered, as it does for the floor. Send hands
// that batch over and returns; done runs once, on any goroutine, when the batch is
// durable or failed. Send itself fails only when nothing was handed over, and then
// done never runs; the batch is gone either way. Drop gives back a batch that was
// filled and is not sent.
type Sender interface {
	Fill(ctx context.Context) error
	Send(ctx context.Context, done func(error)) error
	Drop()
}

// Load sends batches for a while and measures what comes back.
type Load struct {
	Workers  int           // goroutines, each with its own Sender
	InFlight int           // batches that one worker has sent and not yet seen answered
	Duration time.Duration // how long to send; what is in flight then is waited for
	// Waits says that Send returns when done was called, so that a worker has one batch
	// in flight, and the next is due when it was answered.
	Waits bool
	// Rate is batches a second over all workers, 0 for as fast as the target
	// takes them. With a rate a batch's latency counts from the moment it was due,
	// not from when the target was ready to take it, so that a stall is seen by
	// every batch that it delayed.
	Rate float64
	// MaxErrors ends the run early; 0 means 1000. A target that only fails would
	// otherwise be asked millions of times.
	MaxErrors int64
	// Progress, when set, is called about four times a second.
	Progress func(done time.Duration, batches int64)
}

// Sent is what a Load did.
type Sent struct {
	Batches    int64
	Errors     int64
	FirstError error
	Took       time.Duration // from the first Send to the last completion
	Latency    Latency
	LateBy     time.Duration // how far behind its schedule a batch was sent, at worst
	Behind     bool          // less than 99 % of the wanted rate was reached: the run says nothing about that rate
}

func (l Load) check() error {
	if l.Workers < 1 || l.InFlight < 1 || l.Duration <= 0 || l.Rate < 0 || l.Waits && (l.InFlight > 1 || l.Rate > 0) {
		return fmt.Errorf("bench: load of %d workers with %d in flight for %s at rate %g", l.Workers, l.InFlight, l.Duration, l.Rate)
	}
	return nil
}

// Run sends with one Sender per worker, which newSender makes.
func (l Load) Run(ctx context.Context, newSender func(worker int) (Sender, error)) (Sent, error) {
	if err := l.check(); err != nil {
		return Sent{}, err
	}
	senders := make([]Sender, l.Workers)
	for i := range senders {
		var err error
		if senders[i], err = newSender(i); err != nil {
			return Sent{}, err
		}
	}
	r := &loadRun{Load: l, latency: NewRecorder(), start: time.Now()}
	stop := r.report()
	var wg sync.WaitGroup
	for _, s := range senders {
		if l.Waits {
			wg.Go(func() { r.oneByOne(ctx, s) })
		} else {
			wg.Go(func() { r.work(ctx, s) })
		}
	}
	wg.Wait()
	took := time.Since(r.start)
	stop()
	sent := Sent{Batches: r.batches.Load(), Errors: r.errors.Load(), Took: took,
		Latency: r.latency.Latency(), LateBy: time.Duration(r.late.Load())}
	if err := r.first.Load(); err != nil {
		sent.FirstError = *err
	}
	if l.Rate > 0 {
		sent.Behind = float64(sent.Batches) < 0.99*l.Rate*l.Duration.Seconds()
	}
	return sent, ctx.Err()
}

type loadRun struct {
	Load
	latency *Recorder
	start   time.Time

	due     atomic.Int64 // batches that were given a place in the schedule
	batches atomic.Int64
	errors  atomic.Int64
	late    atomic.Int64 // worst lateness in ns
	first   atomic.Pointer[error]
}

// A ticket is the right to have one batch in flight. It is used again and again, so
// that measuring a batch allocates nothing.
type ticket struct {
	due  time.Time
	done func(error)
}

// tickets are those of one worker, all of them free.
func (r *loadRun) tickets() chan *ticket {
	free := make(chan *ticket, r.InFlight)
	for range r.InFlight {
		t := &ticket{}
		t.done = func(err error) {
			r.finish(t.due, err)
			free <- t
		}
		free <- t
	}
	return free
}

func (r *loadRun) work(ctx context.Context, s Sender) {
	free := r.tickets()
	end := r.start.Add(r.Duration)
	for ctx.Err() == nil && !r.failed() {
		if err := s.Fill(ctx); err != nil {
			r.finish(time.Now(), err)
			continue
		}
		due, ok := r.next(ctx, end)
		if !ok {
			s.Drop()
			break
		}
		t := <-free
		now := time.Now()
		if !now.Before(end) { // due in time, but there was no room for it: Behind tells
			free <- t
			s.Drop()
			break
		}
		t.due = now
		if r.Rate > 0 {
			t.due = due
			r.lateBy(now.Sub(due))
		}
		if err := s.Send(ctx, t.done); err != nil {
			t.done(err)
			if errors.Is(err, context.Canceled) {
				break
			}
		}
	}
	for range r.InFlight { // all of them back: nothing is in flight
		<-free
	}
}

// oneByOne is work for senders that wait. What it measures with is the worker's own: of
// many workers each would otherwise wait for the others' books.
func (r *loadRun) oneByOne(ctx context.Context, s Sender) {
	var outcome error
	done := func(err error) { outcome = err }
	took := make([]time.Duration, 0, 128)
	keep := func() {
		r.latency.Record(took...)
		r.batches.Add(int64(len(took)))
		took = took[:0]
	}
	defer keep()
	end := r.start.Add(r.Duration)
	calm := context.WithoutCancel(ctx) // what is sent is answered: to wait for more than that costs each record
	for now := time.Now(); now.Before(end) && ctx.Err() == nil && !r.failed(); {
		outcome = nil
		err := s.Fill(ctx)
		if err == nil {
			if err = s.Send(calm, done); err == nil {
				err = outcome // behind Send, which sets it
			}
		}
		then := time.Now()
		if err != nil {
			r.fail(err)
		} else if took = append(took, then.Sub(now)); len(took) == cap(took) {
			keep()
		}
		now = then
	}
}

// failed says whether there were too many errors to go on.
func (r *loadRun) failed() bool { return r.errors.Load() >= cmp.Or(r.MaxErrors, 1000) }

// next waits for the next place in the schedule; without a rate there is none.
func (r *loadRun) next(ctx context.Context, end time.Time) (due time.Time, ok bool) {
	if r.Rate == 0 {
		return due, true
	}
	n := r.due.Add(1) - 1
	due = r.start.Add(time.Duration(float64(n) / r.Rate * float64(time.Second)))
	if !due.Before(end) {
		return due, false
	}
	if wait := time.Until(due); wait > 0 {
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return due, false
		}
	}
	return due, true
}

func (r *loadRun) finish(due time.Time, err error) {
	if err != nil {
		r.fail(err)
		return
	}
	r.latency.Record(time.Since(due))
	r.batches.Add(1)
}

func (r *loadRun) fail(err error) {
	r.errors.Add(1)
	r.first.CompareAndSwap(nil, &err)
}

func (r *loadRun) lateBy(d time.Duration) {
	for {
		worst := r.late.Load()
		if int64(d) <= worst || r.late.CompareAndSwap(worst, int64(d)) {
			return
		}
	}
}

// report calls Progress until the returned function is called.
func (r *loadRun) report() (stop func()) {
	if r.Progress == nil {
		return func() {}
	}
	quit, gone := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(gone)
		tick := time.NewTicker(250 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				r.Progress(min(time.Since(r.start), r.Duration), r.batches.Load())
			case <-quit:
				return
			}
		}
	}()
	return func() { close(quit); <-gone }
}
