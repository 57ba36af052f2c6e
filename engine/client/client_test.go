package client

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/ringfence/ringfence/engine/api"
	"github.com/ringfence/ringfence/engine/wire"
	"github.com/ringfence/ringfence/segfile/record"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	_ api.Producer = (*Producer)(nil)
	_ api.Consumer = (*Consumer)(nil)
)

func producer(t *testing.T, c *Client, o api.ProducerOptions) *Producer {
	t.Helper()
	o.Topic = "t"
	p, err := c.NewProducer(o)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// bubble makes time pass at once where everybody waits.
func bubble(test func(*testing.T)) func(*testing.T) {
	return func(t *testing.T) { synctest.Test(t, test) }
}

func value(i int) string { return fmt.Sprintf("value-%d", i) }

func rec(i int) api.Record {
	return api.Record{Key: []byte(fmt.Sprintf("key-%d", i%7)), Value: []byte(value(i))}
}

func values(n int) (list []string) {
	for i := range n {
		list = append(list, value(i))
	}
	return list
}

// collect reads until n records came.
func collect(t *testing.T, c *Consumer, n, max int) (list []string) {
	t.Helper()
	for len(list) < n {
		page, err := c.Poll(t.Context(), max)
		if err != nil {
			t.Fatalf("after %d records: %v", len(list), err)
		}
		if len(page.Records) > max {
			t.Fatalf("a page of %d records, at most %d", len(page.Records), max)
		}
		for _, r := range page.Records {
			list = append(list, string(r.Value))
		}
	}
	return list
}

func TestProduceAndConsume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		c := f.client(t, Options{})
		p := producer(t, c, api.ProducerOptions{})
		const n = 1000
		places := make([]api.Placement, n)
		for i := range n {
			err := p.Append(t.Context(), rec(i), func(at api.Placement, err error) {
				if places[i] = at; err != nil {
					t.Error(err)
				}
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		if err := p.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		for i, at := range places {
			if at.First != uint64(i) || at.Last != uint64(i) || at.Unplaced {
				t.Fatalf("record %d is at %+v", i, at)
			}
		}
		r, err := c.NewConsumer(api.ConsumerOptions{Topic: "t", From: api.FromStart()})
		if err != nil {
			t.Fatal(err)
		}
		if got := collect(t, r, n, 37); !slices.Equal(got, values(n)) {
			t.Errorf("read %d records, not those that were sent", len(got))
		}
		if page, err := r.Fetch(1); err != nil || !page.CaughtUp || len(page.Records) > 0 {
			t.Errorf("at the end: %+v, %v", page, err)
		}
		if at, err := p.Produce(t.Context(), rec(n)); err != nil || at.First != n {
			t.Errorf("produced at %+v: %v", at, err)
		}
		if page, err := r.Fetch(1); err != nil || len(page.Records) != 1 {
			t.Errorf("what was acknowledged is not there: %+v, %v", page, err)
		}
		if err := errors.Join(r.Close(), p.Close(t.Context()), c.Close()); err != nil {
			t.Error(err)
		}
		if _, err := p.Produce(t.Context(), rec(0)); !errors.Is(err, ErrClosed) {
			t.Errorf("a closed producer says %v", err)
		}
	})
}

// A connection that is lost while a batch is on its way: before it was sent, before it
// was stored, before it was acknowledged. Whatever the point, each record is stored
// once and in order, and acknowledged.
func TestReconnectInTheMiddleOfABatch(t *testing.T) {
	for _, cut := range []string{"before", "unread", "stored"} {
		t.Run(cut, bubble(func(t *testing.T) {
			f := newFake(t)
			var mu sync.Mutex
			frames, cuts := 0, 0
			f.on = func(s *fakeConn, h wire.Head, _, raw []byte) bool {
				mu.Lock()
				defer mu.Unlock()
				if h.Key != wire.KeyProduce {
					return false
				}
				if frames++; frames%3 != 0 {
					return false
				}
				cuts++
				if cut == "stored" {
					f.store(raw)
				}
				s.close()
				return true
			}
			c := f.client(t, Options{})
			p := producer(t, c, api.ProducerOptions{BatchBytes: 4096, MaxInFlight: 3})
			const n = 600
			acked := make([]int, n)
			for i := range n {
				if cut == "before" && i%100 == 50 {
					f.cut()
				}
				err := p.Append(t.Context(), rec(i), func(_ api.Placement, err error) {
					if acked[i]++; err != nil {
						t.Errorf("record %d: %v", i, err)
					}
				})
				if err != nil {
					t.Fatal(err)
				}
			}
			if err := p.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
			for i, times := range acked {
				if times != 1 {
					t.Fatalf("record %d was answered %d times", i, times)
				}
			}
			if got := f.values(); !slices.Equal(got, values(n)) {
				t.Errorf("%d records are stored of %d, or out of order", len(got), n)
			}
			mu.Lock()
			defer mu.Unlock()
			if cuts == 0 || cut == "stored" && f.repeats == 0 {
				t.Errorf("%d cuts, %d repeats: nothing was tested", cuts, f.repeats)
			}
		}))
	}
}

// An unnumbered producer does not send again what may be stored: it says so.
func TestReconnectOfAnUnnumberedProducer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		first := true
		f.on = func(s *fakeConn, h wire.Head, _, raw []byte) bool {
			if h.Key != wire.KeyProduce || !first {
				return false
			}
			first = false
			f.store(raw)
			s.close()
			return true
		}
		c := f.client(t, Options{})
		p := producer(t, c, api.ProducerOptions{NotIdempotent: true})
		if _, err := p.Produce(t.Context(), rec(0)); !Unknown(err) {
			t.Errorf("a frame without an answer: %v", err)
		}
		if _, err := p.Produce(t.Context(), rec(1)); err != nil {
			t.Errorf("the next one: %v", err)
		}
		if got := f.values(); !slices.Equal(got, values(2)) {
			t.Errorf("stored %v", got)
		}
		if err := p.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

func TestConsumerGoesOnBehindACut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		c := f.client(t, Options{})
		p := producer(t, c, api.ProducerOptions{BatchBytes: 4096})
		const n = 500
		for i := range n {
			if err := p.Append(t.Context(), rec(i), nil); err != nil {
				t.Fatal(err)
			}
		}
		if err := p.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		r, err := c.NewConsumer(api.ConsumerOptions{Topic: "t", Group: "g"})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		cuts := 0
		for len(got) < n {
			got = append(got, collect(t, r, 1, 11)...)
			if len(got)%4 == 0 {
				f.cut()
				cuts++
			}
		}
		if !slices.Equal(got, values(n)) {
			t.Errorf("read %d records, not those that were sent", len(got))
		}
		if cuts < 10 {
			t.Errorf("%d cuts: nothing was tested", cuts)
		}
		if err := r.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		f.mu.Lock()
		group := f.group
		f.mu.Unlock()
		if group != fakeCursor(n) {
			t.Errorf("committed %s", group)
		}
		if lag, err := r.Lag(); err != nil || lag != 0 {
			t.Errorf("lag %d, %v", lag, err)
		}
		r.Close()
	})
}

// A cursor taken anywhere inside of a page names the next record.
func TestCursorInsideOfAPage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		c := f.client(t, Options{})
		p := producer(t, c, api.ProducerOptions{})
		const n = 50
		for i := range n {
			if err := p.Append(t.Context(), rec(i), nil); err != nil {
				t.Fatal(err)
			}
		}
		if err := p.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		r, err := c.NewConsumer(api.ConsumerOptions{Topic: "t", From: api.FromStart()})
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		for i := range n {
			if want := fakeCursor(uint64(i)); r.Cursor() != want && i > 0 {
				t.Fatalf("before record %d the cursor is %s, want %s", i, r.Cursor(), want)
			}
			if lag, err := r.Lag(); err != nil || lag != uint64(n-i) {
				t.Fatalf("before record %d the lag is %d, %v", i, lag, err)
			}
			again, err := c.NewConsumer(api.ConsumerOptions{Topic: "t", From: api.FromCursor(r.Cursor())})
			if err != nil {
				t.Fatal(err)
			}
			if got := collect(t, again, 1, 1); got[0] != value(i) {
				t.Fatalf("cursor of record %d leads to %s", i, got[0])
			}
			again.Close()
			collect(t, r, 1, 1)
		}
	})
}

func TestErrorsOfTheServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		var code wire.Code
		f.on = func(s *fakeConn, h wire.Head, _, _ []byte) bool {
			if h.Key == wire.KeyCreateTopic {
				s.fail(h, code, "what happened")
				return true
			}
			return false
		}
		c := f.client(t, Options{RequestTimeout: 200 * time.Millisecond})
		for is, want := range meanings {
			code = is
			err := c.CreateTopic(context.Background(), "t", api.TopicOptions{})
			if !errors.Is(err, want) || !errors.Is(err, is) {
				t.Errorf("%v became %v, which is not %v", is, err, want)
			}
			if want := is == wire.CodeOutcomeUnknown || is == wire.CodeStorageFailed || is == wire.CodeWriteFailed; Unknown(err) != want {
				t.Errorf("%v: Unknown says %v", is, !want)
			}
		}
	})
}

// A server that does not tell ranges is asked once; all records go one way to it.
func TestServerThatDoesNotRoute(t *testing.T) {
	f := newFake(t)
	var asked atomic.Int64
	f.on = func(s *fakeConn, h wire.Head, _, _ []byte) bool {
		if h.Key == wire.KeyRoute {
			asked.Add(1)
			s.fail(h, wire.CodeUnknownKey, "what is Route?")
		}
		return h.Key == wire.KeyRoute
	}
	c := f.client(t, Options{RequestTimeout: time.Minute})
	for range 3 {
		p := producer(t, c, api.ProducerOptions{})
		for i := range 5 {
			if _, err := p.Produce(t.Context(), rec(i)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if n := asked.Load(); n != 1 {
		t.Errorf("asked %d times", n)
	}
}

// Records gather by range, those without a key in frames of one run of sequences, and
// sequences ascend from frame to frame.
func TestFramesOfOneRange(t *testing.T) {
	f := newFake(t)
	const half = 1 << 31
	var mu sync.Mutex
	var last uint64
	var frames, keyless int
	f.on = func(s *fakeConn, h wire.Head, msg, raw []byte) bool {
		switch h.Key {
		case wire.KeyRoute:
			s.answer(h, &wire.RouteReply{Topic: fakeTopic.String(), Ranges: []uint32{5, 6}, Last: []uint32{half - 1, ^uint32(0)}}, nil)
		case wire.KeyProduce:
			b, err := record.Verify(raw, 0, nil)
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			frames++
			if b.Head.FirstSeq <= last {
				t.Errorf("sequence %d comes behind %d", b.Head.FirstSeq, last)
			}
			last = b.Head.LastSeq
			if b.Head.MinPos < half && b.Head.MaxPos >= half {
				t.Errorf("a frame from %d to %d", b.Head.MinPos, b.Head.MaxPos)
			}
			if b.Key(0) == nil {
				keyless += b.Len()
			}
			s.answer(h, &wire.ProduceReply{Range: 5 + b.Head.MinPos/half, Last: uint64(b.Len()) - 1}, nil)
		default:
			return false
		}
		return true
	}
	c := f.client(t, Options{})
	p := producer(t, c, api.ProducerOptions{})
	for i := range 10000 {
		r := rec(i)
		if i%3 == 0 {
			r.Key = nil
		} else {
			r.Key = []byte{byte(i), byte(i >> 8)}
		}
		if err := p.Append(t.Context(), r, func(pl api.Placement, err error) {
			if err != nil || pl.Range != 5 && pl.Range != 6 {
				t.Errorf("%+v, %v", pl, err)
			}
		}); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	defer mu.Unlock()
	if frames < 4 || keyless != 3334 {
		t.Errorf("%d frames, %d records without a key", frames, keyless)
	}
}
