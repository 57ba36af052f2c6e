package client

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ringfence/ringfence/engine/api"
	"github.com/ringfence/ringfence/engine/wire"
)

// What a row of the table says of one kind of request agrees with what it says of the
// others: nothing that may have been done is done again where that makes a difference.
func TestReactionsAgree(t *testing.T) {
	failures := []error{
		&lostError{sent: true, cause: errors.New("cut")}, &lostError{cause: errors.New("cut")}, errors.New("something else"),
	}
	for c := range wire.Code(200) {
		failures = append(failures, &wire.Error{Code: c}, &wire.Error{Code: c | 1<<15})
	}
	for _, err := range failures {
		once, twice, reads := react(err, change), react(err, repeat), react(err, look)
		frames, plain := react(err, numbered), react(err, loose)
		switch {
		case once == doubt && (plain != doubt || frames != again || twice != again || reads != again):
			t.Errorf("%v leaves it open for a change and not for others", err)
		case once == again && (plain != again || frames != again || twice != again || reads != again):
			t.Errorf("%v did nothing, and not everything is asked again", err)
		case twice == doubt || reads == doubt || frames == doubt:
			t.Errorf("%v: a doubt about what may be asked again", err)
		case !errors.Is(err, wire.CodeOutOfSpace) && retryable(err) && once == tell:
			t.Errorf("%v may go away, and is told as if it were certain", err)
		}
	}
	for n := range 100 {
		if d := backoff(n, nil); d <= 0 || d > 5*time.Second {
			t.Errorf("pause %d is %v", n, d)
		}
	}
	if d := backoff(0, &wire.Error{Code: wire.CodeRateLimited, RetryAfter: 3 * time.Second}); d != 3*time.Second {
		t.Errorf("asked for 3 s, pauses %v", d)
	}
	if d := backoff(0, &wire.Error{Code: wire.CodeRateLimited, RetryAfter: time.Hour}); d != 30*time.Second {
		t.Errorf("asked for an hour, pauses %v", d)
	}
}

// A server that refuses some frames for a while: they are sent again in order, with
// what was behind them, and stored once, also those of a producer with a name.
func TestRefusedFramesGoAgainInOrder(t *testing.T) {
	for _, code := range []wire.Code{wire.CodeOverloaded, wire.CodeRateLimited, wire.CodeUnavailable, wire.CodeShuttingDown, wire.CodeNoSuchHandle, wire.CodeWriteFailed} {
		for _, id := range []uint64{0, 7} {
			t.Run(fmt.Sprint(code, " ", id), bubble(func(t *testing.T) { refusedFrames(t, code, id) }))
		}
	}
}

func refusedFrames(t *testing.T, code wire.Code, id uint64) {
	f := newFake(t)
	refused := 0
	halted := map[uint32]bool{} // handles
	f.on = func(s *fakeConn, h wire.Head, msg, _ []byte) bool {
		if h.Key != wire.KeyProduce {
			return false
		}
		handle, _ := wire.ParseProduce(msg)
		switch {
		case halted[handle]:
			s.fail(h, wire.CodeProducerHalted, "one before was refused")
		case f.frames() >= 2*(refused+1) && refused < 5:
			refused++
			halted[handle] = true
			s.fail(h, code, "not now")
		default:
			return false
		}
		return true
	}
	c := f.client(t, Options{})
	p := producer(t, c, api.ProducerOptions{BatchBytes: 4096, ID: id})
	for i := range 2000 {
		if err := p.Append(t.Context(), rec(i), func(_ api.Placement, err error) {
			if err != nil {
				t.Errorf("record %d: %v", i, err)
			}
		}); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := f.values(); len(got) != 2000 || got[1999] != value(1999) || refused != 5 {
		t.Errorf("%d records, refused %d times", len(got), refused)
	}
}

// What a quota holds up for longer than a request may take is stored all the same.
func TestQuotaHoldsUpForLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		refused := f.holdUp(10)
		c := f.client(t, Options{RequestTimeout: 5 * time.Second})
		p := producer(t, c, api.ProducerOptions{BatchBytes: 4096, ID: 7})
		for i := range 2000 {
			if err := p.Append(t.Context(), rec(i), func(_ api.Placement, err error) {
				if err != nil {
					t.Errorf("record %d: %v", i, err)
				}
			}); err != nil {
				t.Fatal(err)
			}
		}
		if err := p.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := f.values(); len(got) != 2000 || *refused != 10 || p.Slowed() < 80*time.Second {
			t.Errorf("%d records, refused %d times, slowed down by %v", len(got), *refused, p.Slowed())
		}
	})
}

// Nor does it fail what comes while it holds up, and is held up itself.
func TestQuotaHoldsUpWhatComesMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		refused := f.holdUp(2)
		c := f.client(t, Options{RequestTimeout: 5 * time.Second})
		p := producer(t, c, api.ProducerOptions{BatchBytes: 4096})
		send := func(i int) {
			if err := p.Append(t.Context(), rec(i), func(_ api.Placement, err error) {
				if err != nil {
					t.Errorf("record %d: %v", i, err)
				}
			}); err != nil {
				t.Fatal(err)
			}
		}
		send(0)
		time.Sleep(time.Second)
		for i := range 300 { // some batches
			send(1 + i)
		}
		if err := p.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := f.values(); len(got) != 301 || *refused != 2 {
			t.Errorf("%d records, refused %d times", len(got), *refused)
		}
	})
}

// holdUp has the server put frames off for a quota, for 8 s each time: the first one, and then,
// up to so many times, the one behind each that it took. It answers how often it did.
func (f *fake) holdUp(times int) *int {
	refused := new(int)
	halted := map[uint32]bool{} // handles
	f.on = func(s *fakeConn, h wire.Head, msg, _ []byte) bool {
		if h.Key != wire.KeyProduce {
			return false
		}
		handle, _ := wire.ParseProduce(msg)
		switch {
		case halted[handle]:
			s.fail(h, wire.CodeProducerHalted, "one before was refused")
		case f.frames() >= *refused && *refused < times:
			*refused++
			halted[handle] = true
			var enc wire.Encoder
			s.put(slices.Clone(enc.Fail(h.Key, h.ID, &wire.Error{Code: wire.CodeRateLimited, Detail: "slower", RetryAfter: 8 * time.Second})))
		default:
			return false
		}
		return true
	}
	return refused
}

func (f *fake) frames() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.stored
}

// A server that breaks its promise and stores what was behind a frame that it did not
// take: the frame is not sent again, where it would look like a repeat. It fails.
func TestOvertakenFrameFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		sent := 0
		f.on = func(s *fakeConn, h wire.Head, _, raw []byte) bool {
			if h.Key != wire.KeyProduce {
				return false
			}
			if sent++; sent == 1 {
				time.Sleep(time.Second) // for another one to gather behind it
				s.fail(h, wire.CodeOverloaded, "not now")
				return true
			}
			s.answer(h, &wire.ProduceReply{First: 7, Last: 7}, nil)
			return true
		}
		c := f.client(t, Options{})
		p := producer(t, c, api.ProducerOptions{})
		outcomes := make([]error, 2)
		for i := range 2 {
			b, err := p.NewBatch(t.Context(), 0)
			if err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(b.Add(rec(i)), b.Send(t.Context(), func(_ api.Placement, err error) { outcomes[i] = err })); err != nil {
				t.Fatal(err)
			}
		}
		if err := p.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if !errors.Is(outcomes[0], ErrOverloaded) || Unknown(outcomes[0]) || outcomes[1] != nil || sent != 2 {
			t.Errorf("outcomes %v after %d frames", outcomes, sent)
		}
	})
}

// A named producer stops at the first record that was not stored; one that drew its
// ID goes on behind it.
func TestFailureOfARecord(t *testing.T) {
	for _, id := range []uint64{0, 5} {
		synctest.Test(t, func(t *testing.T) {
			f := newFake(t)
			sent := 0
			f.on = func(s *fakeConn, h wire.Head, msg, _ []byte) bool {
				if h.Key != wire.KeyProduce {
					return false
				}
				sent++
				handle, _ := wire.ParseProduce(msg)
				if sent == 2 || sent > 2 && handle == 1 {
					if sent > 2 {
						s.fail(h, wire.CodeProducerHalted, "one before failed")
						return true
					}
					f.mu.Lock()
					f.last[s.producers[handle]]++ // it does not come again
					f.mu.Unlock()
					s.fail(h, wire.CodeOutOfSpace, "full")
					return true
				}
				return false
			}
			c := f.client(t, Options{})
			p := producer(t, c, api.ProducerOptions{ID: id})
			if _, err := p.Produce(t.Context(), rec(0)); err != nil {
				t.Fatal(err)
			}
			if _, err := p.Produce(t.Context(), rec(1)); !errors.Is(err, ErrOutOfSpace) || Unknown(err) {
				t.Errorf("on a full disk: %v", err)
			}
			_, err := p.Produce(t.Context(), rec(2))
			if id == 0 && err != nil {
				t.Errorf("the next record: %v", err)
			}
			if id != 0 && (!errors.Is(err, ErrHalted) || sent != 2) {
				t.Errorf("the next record of a named producer: %v, %d were sent", err, sent)
			}
			if err := p.Close(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

// A change is asked for once if it may have been done, and again if it was not.
func TestChangesAreNotRepeated(t *testing.T) {
	for _, tt := range []struct {
		name  string
		fault func(s *fakeConn, h wire.Head)
		asked int32
		open  bool
	}{
		{"overloaded", func(s *fakeConn, h wire.Head) { s.fail(h, wire.CodeOverloaded, "") }, 2, false},
		{"cut", func(s *fakeConn, _ wire.Head) { s.close() }, 1, true},
		{"unknown", func(s *fakeConn, h wire.Head) { s.fail(h, wire.CodeOutcomeUnknown, "") }, 1, true},
	} {
		t.Run(tt.name, bubble(func(t *testing.T) {
			f := newFake(t)
			var asked, commits atomic.Int32
			f.on = func(s *fakeConn, h wire.Head, _, _ []byte) bool {
				switch h.Key {
				case wire.KeySplitRange:
					if asked.Add(1) == 1 {
						tt.fault(s, h)
					} else {
						s.answer(h, &wire.SplitRangeReply{Left: 1, Right: 2}, nil)
					}
					return true
				case wire.KeyCommit:
					if commits.Add(1) == 1 {
						tt.fault(s, h)
						return true
					}
				}
				return false
			}
			c := f.client(t, Options{})
			_, _, err := c.SplitRange(t.Context(), "t", 0)
			if Unknown(err) != tt.open || asked.Load() != tt.asked || !tt.open && err != nil {
				t.Errorf("asked %d times, %v", asked.Load(), err)
			}
			r, err := c.NewConsumer(api.ConsumerOptions{Topic: "t", Group: "g"})
			if err != nil {
				t.Fatal(err)
			}
			if err := r.Commit(t.Context()); err != nil || commits.Load() != 2 {
				t.Errorf("a commit, asked for %d times: %v", commits.Load(), err)
			}
			r.Close()
		}))
	}
}

// What is opened on the server after its caller has gone is closed there.
func TestLateOpenIsUndone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		var closed atomic.Int32
		f.on = func(s *fakeConn, h wire.Head, _, _ []byte) bool {
			switch h.Key {
			case wire.KeyOpenConsumer:
				f.wg.Go(func() {
					time.Sleep(40 * time.Second)
					s.answer(h, &wire.OpenConsumerReply{Consumer: 3, Cursor: fakeCursor(0)}, nil)
				})
				return true
			case wire.KeyCloseConsumer:
				closed.Add(1)
			}
			return false
		}
		c := f.client(t, Options{RequestTimeout: 30 * time.Second})
		if _, err := c.NewConsumer(api.ConsumerOptions{Topic: "t"}); !errors.Is(err, ErrUnavailable) || Unknown(err) {
			t.Errorf("no answer: %v", err)
		}
		time.Sleep(20 * time.Second)
		if closed.Load() != 1 {
			t.Errorf("closed %d times", closed.Load())
		}
	})
}

// A request that its caller gave up before it was written is never sent.
func TestWithdrawnRequestIsNotSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.hello = func(h *wire.HelloReply) { h.MaxRequests = 1 }
		var created atomic.Int32
		f.on = func(s *fakeConn, h wire.Head, _, _ []byte) bool {
			if h.Key == wire.KeyCreateTopic {
				created.Add(1)
			}
			if h.Key == wire.KeyListTopics {
				f.wg.Go(func() {
					time.Sleep(10 * time.Second)
					s.answer(h, &wire.ListTopicsReply{}, nil)
				})
				return true
			}
			return false
		}
		c := f.client(t, Options{})
		go c.Topics(t.Context())
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := c.CreateTopic(ctx, "t", api.TopicOptions{}); !errors.Is(err, context.DeadlineExceeded) || Unknown(err) {
			t.Errorf("behind a request that takes all slots: %v", err)
		}
		time.Sleep(time.Minute)
		if created.Load() != 0 {
			t.Error("it was sent all the same")
		}
		if err := c.CreateTopic(t.Context(), "t", api.TopicOptions{}); err != nil {
			t.Error(err)
		}
	})
}
