package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ringfence/ringfence/engine/api"
	"github.com/ringfence/ringfence/engine/wire"
)

// K01: a server that announces a frame of any length costs nothing until bytes come,
// before the hello is done and after.
func TestK01HostileLengths(t *testing.T) {
	head := func(length uint32) []byte {
		b := make([]byte, wire.HeadSize)
		wire.Head{Length: length, Key: wire.KeyHello, Flags: wire.FlagReply, ID: 1, Message: min(length, wire.MaxMessage)}.Put(b)
		return b
	}
	lengths := []uint32{0, 1, wire.MaxFirst, wire.MaxFirst + 1, wire.MaxFrame, wire.MaxFrame + 1, 1<<31 - 1, 1 << 31, 1<<32 - 1}
	for _, n := range lengths {
		before := allocated()
		dial := func(context.Context) (net.Conn, error) {
			mine, theirs := net.Pipe()
			go func() {
				defer mine.Close()
				var hello [wire.HeadSize]byte
				if _, err := io.ReadFull(mine, hello[:]); err == nil {
					go io.Copy(io.Discard, mine)
					mine.Write(head(n))
				}
			}()
			return theirs, nil
		}
		c, err := Dial(t.Context(), "fake:1", Options{dial: dial})
		if err == nil {
			c.Close()
			t.Fatalf("a hello of %d bytes was taken", n)
		}
		if got := allocated() - before; got > 1<<20 {
			t.Errorf("a hello of %d bytes took %d bytes of memory: %v", n, got, err)
		}
	}
	for _, n := range lengths {
		t.Run(fmt.Sprint(n), bubble(func(t *testing.T) {
			f := newFake(t)
			f.on = func(s *fakeConn, h wire.Head, _, _ []byte) bool {
				if h.Key != wire.KeyFetch {
					return false
				}
				b := make([]byte, wire.HeadSize)
				wire.Head{Length: n, Key: wire.KeyFetch, Flags: wire.FlagReply, ID: h.ID, Message: min(n, 100)}.Put(b)
				s.put(b)
				return true
			}
			c := f.client(t, Options{RequestTimeout: time.Second})
			r, err := c.NewConsumer(api.ConsumerOptions{Topic: "t"})
			if err != nil {
				t.Fatal(err)
			}
			before := allocated()
			if page, err := r.Fetch(10); err == nil {
				t.Errorf("a page of %d bytes was taken: %+v", n, page)
			}
			if got := allocated() - before; got > 1<<20 {
				t.Errorf("a page of %d bytes took %d bytes of memory", n, got)
			}
		}))
	}
}

func allocated() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.TotalAlloc
}

// K01: a frame of exactly the limit is read whole, and the connection goes on.
func TestK01LongestFrame(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.on = func(s *fakeConn, h wire.Head, _, _ []byte) bool {
			if h.Key != wire.KeyFetch {
				return false
			}
			var enc wire.Encoder
			m := &wire.Page{Consumer: 1, Cursor: fakeCursor(0)}
			raw := wire.MaxFrame - (len(enc.Frame(h.Key, wire.FlagReply, h.ID, m, 0)) - wire.HeadSize)
			s.answer(h, m, make([]byte, raw))
			return true
		}
		c := f.client(t, Options{})
		r, err := c.NewConsumer(api.ConsumerOptions{Topic: "t"})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := r.Fetch(1); !errors.Is(err, ErrProtocol) {
			t.Errorf("a page of zeros: %v", err)
		}
		if _, err := c.Topics(t.Context()); err != nil || f.dialed() != 1 {
			t.Errorf("afterwards: %v, %d connections", err, f.dialed())
		}
	})
}

func (f *fake) dialed() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.dials
}

// K05: a server that is gone without a word is found within two heartbeats, whether
// nothing is going on, a record waits for its acknowledgement, or the socket takes no
// more. What was on its way is stored once.
func TestK05SilentServer(t *testing.T) {
	const beat = time.Second
	for _, when := range []string{"idle", "waiting", "sending"} {
		t.Run(when, bubble(func(t *testing.T) {
			f := newFake(t)
			var silent atomic.Bool
			f.on = func(s *fakeConn, h wire.Head, _, _ []byte) bool {
				if !silent.Load() || !s.mortal.Load() {
					return false
				}
				if when == "sending" {
					<-s.gone // and reads nothing
				}
				return true
			}
			c := f.client(t, Options{Heartbeat: beat})
			p := producer(t, c, api.ProducerOptions{})
			if _, err := p.Produce(t.Context(), rec(0)); err != nil {
				t.Fatal(err)
			}
			f.mu.Lock()
			for _, s := range f.conns {
				s.mortal.Store(true)
			}
			f.mu.Unlock()
			time.Sleep(10 * beat)
			if n := f.dialed(); n != 2 {
				t.Fatalf("%d connections while all was well", n)
			}
			silent.Store(true)
			began := time.Now()
			if when != "idle" {
				if _, err := p.Produce(t.Context(), rec(1)); err != nil {
					t.Error(err)
				}
			} else {
				time.Sleep(2*beat + 200*time.Millisecond)
			}
			if n := f.dialed(); n < 3 {
				t.Errorf("after %v: still %d connections", time.Since(began), n)
			}
			if took := time.Since(began); took > 2*beat+500*time.Millisecond {
				t.Errorf("found after %v", took)
			}
			if when != "idle" && !slices.Equal(f.values(), values(2)) {
				t.Errorf("stored %v", f.values())
			}
		}))
	}
}

// K10: neither a program that does not come back for its records, nor a page that does
// not end, nor another producer's callback keeps an acknowledgement waiting.
func TestK10SlowConsumer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		var half atomic.Bool
		f.on = func(s *fakeConn, h wire.Head, _, _ []byte) bool {
			if h.Key != wire.KeyFetch || !half.Load() {
				return false
			}
			var enc wire.Encoder
			s.put(append(slices.Clone(enc.Frame(h.Key, wire.FlagReply, h.ID, &wire.Page{Cursor: fakeCursor(0)}, 1<<20)), make([]byte, 1000)...))
			return true
		}
		c := f.client(t, Options{})
		p := producer(t, c, api.ProducerOptions{})
		for i := range 300 {
			if _, err := p.Produce(t.Context(), rec(i)); err != nil {
				t.Fatal(err)
			}
		}
		r, err := c.NewConsumer(api.ConsumerOptions{Topic: "t"})
		if err != nil {
			t.Fatal(err)
		}
		slow := producer(t, c, api.ProducerOptions{})
		free := make(chan struct{})
		if err := slow.Append(t.Context(), rec(300), func(api.Placement, error) { <-free }); err != nil {
			t.Fatal(err)
		}
		collect(t, r, 1, 1) // and now the program thinks for a long time
		half.Store(true)
		ctx, stop := context.WithCancel(t.Context())
		var reading sync.WaitGroup
		reading.Go(func() {
			for err := error(nil); err == nil; {
				_, err = r.Poll(ctx, 20)
			}
		})
		synctest.Wait()
		began := time.Now()
		for i := range 300 {
			if _, err := p.Produce(t.Context(), rec(301+i)); err != nil {
				t.Fatal(err)
			}
		}
		if took := time.Since(began); took > 0 {
			t.Errorf("acknowledged after %v", took)
		}
		stop()
		reading.Wait()
		close(free)
		if err := slow.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// K12: whatever the server does not do, a call ends with its caller's deadline, or
// after RequestTimeout, and says whether what it asked for may have been done.
func TestK12Deadlines(t *testing.T) {
	calls := []struct {
		name    string
		changes bool
		do      func(context.Context, *Client, *Producer, *Consumer) error
	}{
		{"produce", true, func(ctx context.Context, _ *Client, p *Producer, _ *Consumer) error {
			_, err := p.Produce(ctx, rec(0))
			return err
		}},
		{"commit", true, func(ctx context.Context, _ *Client, _ *Producer, r *Consumer) error { return r.Commit(ctx) }},
		{"reset", true, func(ctx context.Context, _ *Client, _ *Producer, r *Consumer) error { return r.Reset(ctx) }},
		{"poll", false, func(ctx context.Context, _ *Client, _ *Producer, r *Consumer) error {
			_, err := r.Poll(ctx, 1)
			return err
		}},
		{"create", true, func(ctx context.Context, c *Client, _ *Producer, _ *Consumer) error {
			return c.CreateTopic(ctx, "u", api.TopicOptions{})
		}},
		{"list", false, func(ctx context.Context, c *Client, _ *Producer, _ *Consumer) error {
			_, err := c.Topics(ctx)
			return err
		}},
	}
	for _, ill := range []string{"unavailable", "unreachable", "silent"} {
		for _, call := range calls {
			for _, own := range []bool{true, false} {
				if call.name == "poll" && !own && ill == "silent" {
					continue // it waits for a record, as long as it takes
				}
				t.Run(fmt.Sprintf("%s/%s/own=%v", ill, call.name, own), bubble(func(t *testing.T) {
					f := newFake(t)
					var on atomic.Bool
					f.on = func(s *fakeConn, h wire.Head, _, _ []byte) bool {
						if !on.Load() || h.Key == wire.KeyPing || h.Key == wire.KeyHello {
							return false
						}
						if ill == "unavailable" {
							s.fail(h, wire.CodeUnavailable, "no quorum")
						}
						return true
					}
					c := f.client(t, Options{RequestTimeout: 30 * time.Second})
					p := producer(t, c, api.ProducerOptions{})
					r, err := c.NewConsumer(api.ConsumerOptions{Topic: "t", Group: "g"})
					if err != nil {
						t.Fatal(err)
					}
					on.Store(true)
					if ill == "unreachable" {
						f.mu.Lock()
						f.refuse = true
						f.mu.Unlock()
						f.cut()
						synctest.Wait()
					}
					ctx, limit := t.Context(), 30*time.Second
					if own {
						limit = 7 * time.Second
						var cancel context.CancelFunc
						ctx, cancel = context.WithTimeout(ctx, limit)
						defer cancel()
					}
					began := time.Now()
					err = call.do(ctx, c, p, r)
					if took := time.Since(began); err == nil || took > limit+6*time.Second || own && took != limit {
						t.Errorf("ended after %v with %v", took, err)
					}
					// The producer's record goes on for as long as RequestTimeout says.
					want := call.changes && ill == "silent" || own && call.name == "produce"
					if Unknown(err) != want {
						t.Errorf("Unknown says %v of: %v", !want, err)
					}
					if own && !errors.Is(err, context.DeadlineExceeded) {
						t.Errorf("not the deadline's error: %v", err)
					}
				}))
			}
		}
	}
}

// K12: a producer whose server does nothing holds a bounded number of batches; then its
// callers wait, and end with their contexts. Every callback comes.
func TestK12BoundedMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.on = func(_ *fakeConn, h wire.Head, _, _ []byte) bool { return h.Key == wire.KeyProduce }
		c := f.client(t, Options{RequestTimeout: 30 * time.Second})
		p := producer(t, c, api.ProducerOptions{BatchBytes: 4096, MaxInFlight: 2})
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		taken := 0
		var told, open atomic.Int64
		var err error
		for ; err == nil; taken++ {
			err = p.Append(ctx, api.Record{Value: make([]byte, 1000)}, func(_ api.Placement, err error) {
				if told.Add(1); Unknown(err) {
					open.Add(1)
				} else if err == nil {
					t.Error("acknowledged by nobody")
				}
			})
		}
		if taken--; !errors.Is(err, context.DeadlineExceeded) || taken < 6 || taken > 5*4 {
			t.Errorf("%d records taken, then %v", taken, err)
		}
		time.Sleep(2 * time.Minute)
		if int(told.Load()) != taken || open.Load() == 0 {
			t.Errorf("%d of %d callbacks came, %d unknown", told.Load(), taken, open.Load())
		}
	})
}

// Many goroutines use one client while its connections come and go.
func TestConcurrentUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		c := f.client(t, Options{})
		var all sync.WaitGroup
		for g := range 8 {
			all.Go(func() {
				p := producer(t, c, api.ProducerOptions{BatchBytes: 4096, MaxInFlight: 1 + g%3, Linger: time.Duration(g%2) * time.Millisecond})
				for i := range 100 {
					if _, err := p.Produce(t.Context(), rec(i)); err != nil {
						t.Error(err)
					}
					if i%20 == g {
						f.cut()
					}
				}
				if err := p.Close(t.Context()); err != nil {
					t.Error(err)
				}
			})
			all.Go(func() {
				r, err := c.NewConsumer(api.ConsumerOptions{Topic: "t", From: api.FromStart()})
				if err != nil {
					t.Error(err)
					return
				}
				collect(t, r, 800, 1+g)
				r.Close()
			})
			all.Go(func() {
				for range 50 {
					if _, err := c.Topics(t.Context()); err != nil {
						t.Error(err)
					}
				}
			})
		}
		all.Wait()
	})
}
