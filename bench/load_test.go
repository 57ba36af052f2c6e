package bench

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// nothingToFill is the part of a Sender that has no batches to make.
type nothingToFill struct{}

func (nothingToFill) Fill(context.Context) error { return nil }
func (nothingToFill) Drop()                      {}

// stalling is a target that takes 100 us a batch, one at a time, and stands still
// for two seconds out of every ten.
type stalling struct {
	nothingToFill
	start time.Time
}

func (s *stalling) Send(_ context.Context, done func(error)) error {
	if in := time.Since(s.start) % (10 * time.Second); in >= 4*time.Second && in < 6*time.Second {
		time.Sleep(6*time.Second - in)
	}
	time.Sleep(100 * time.Microsecond)
	done(nil)
	return nil
}

// A stall delays every batch that was due during it, not only the one that was
// being sent (scenario N05).
func TestN05LatencyCountsFromWhenDue(t *testing.T) {
	run := func(rate float64) (sent Sent) {
		synctest.Test(t, func(t *testing.T) {
			var err error
			sent, err = Load{Workers: 1, InFlight: 1, Duration: 20 * time.Second, Rate: rate}.Run(t.Context(),
				func(int) (Sender, error) { return &stalling{start: time.Now()}, nil })
			if err != nil {
				t.Fatal(err)
			}
		})
		return sent
	}
	open := run(1000)
	if open.Latency.P99 < 1800*time.Millisecond {
		t.Errorf("p99 %s with a stall of 2 s every 10 s; it hides the stall", open.Latency.P99)
	}
	if open.LateBy < 1900*time.Millisecond || open.LateBy > 2100*time.Millisecond {
		t.Errorf("late by %s, want about the stall of 2 s", open.LateBy)
	}
	if open.Behind || open.Batches != 20_000 {
		t.Errorf("sent %d of 20000 batches, behind=%v", open.Batches, open.Behind)
	}
	// The control: without a schedule only two batches in thousands see the stall.
	if closed := run(0); closed.Latency.P99 > time.Millisecond {
		t.Errorf("closed loop: p99 %s; this control should not see the stall", closed.Latency.P99)
	}
	// A rate that the target cannot keep is not a result.
	if fast := run(50_000); !fast.Behind {
		t.Errorf("sent %d batches at a wanted 50000/s and did not say that it fell behind", fast.Batches)
	}
}

type failing struct {
	nothingToFill
	sent, every int
}

var errTest = errors.New("no")

func (f *failing) Send(_ context.Context, done func(error)) error {
	f.sent++
	switch {
	case f.sent%(2*f.every) == 0:
		return errTest // refused: done is not called
	case f.sent%f.every == 0:
		done(errTest)
	default:
		time.Sleep(time.Millisecond)
		done(nil)
	}
	return nil
}

func TestLoadCountsErrorsApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &failing{every: 10}
		sent, err := Load{Workers: 1, InFlight: 3, Duration: time.Second}.Run(t.Context(), func(int) (Sender, error) { return f, nil })
		if err != nil {
			t.Fatal(err)
		}
		if sent.Errors != int64(f.sent/10) || sent.Errors == 0 || !errors.Is(sent.FirstError, errTest) {
			t.Errorf("%d errors (first: %v) of %d batches, want one in ten", sent.Errors, sent.FirstError, f.sent)
		}
		if sent.Batches+sent.Errors != int64(f.sent) || sent.Latency.Count != sent.Batches {
			t.Errorf("%d good and %d bad of %d, %d latencies", sent.Batches, sent.Errors, f.sent, sent.Latency.Count)
		}
	})
}

// A worker that waits counts the same.
func TestLoadWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var all []*failing
		sent, err := Load{Workers: 3, InFlight: 1, Waits: true, Duration: time.Second}.Run(t.Context(), func(int) (Sender, error) {
			all = append(all, &failing{every: 10})
			return all[len(all)-1], nil
		})
		if err != nil {
			t.Fatal(err)
		}
		good, bad := int64(0), int64(0)
		for _, f := range all {
			good, bad = good+int64(f.sent-f.sent/10), bad+int64(f.sent/10)
		}
		if sent.Batches != good || sent.Errors != bad || good != 3000 || sent.Latency.Count != good || !errors.Is(sent.FirstError, errTest) {
			t.Errorf("%d good and %d bad, first %v, %d latencies: want %d and %d", sent.Batches, sent.Errors, sent.FirstError, sent.Latency.Count, good, bad)
		}
		if sent.Latency.Mean != time.Millisecond || sent.Latency.Max > 2*time.Millisecond {
			t.Errorf("latencies of %s and at most %s, each took a millisecond", sent.Latency.Mean, sent.Latency.Max)
		}
	})
}

func TestLoadStopsAtMaxErrors(t *testing.T) {
	f := &failing{every: 1}
	sent, err := Load{Workers: 1, InFlight: 1, Duration: time.Hour, MaxErrors: 7}.Run(t.Context(), func(int) (Sender, error) { return f, nil })
	if err != nil || sent.Errors != 7 {
		t.Errorf("%d errors, %v; want to stop after 7", sent.Errors, err)
	}
}

func TestLoadChecksItself(t *testing.T) {
	for _, l := range []Load{{}, {Workers: 1, InFlight: 1}, {Workers: 1, Duration: 1}, {InFlight: 1, Duration: 1}, {Workers: 1, InFlight: 1, Duration: 1, Rate: -1}, {Workers: 1, InFlight: 2, Duration: 1, Waits: true}, {Workers: 1, InFlight: 1, Duration: 1, Rate: 1, Waits: true}} {
		if _, err := l.Run(t.Context(), nil); err == nil {
			t.Errorf("%+v was accepted", l)
		}
	}
}
