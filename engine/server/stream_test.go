package server

import (
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ringfence/ringfence/engine/api"
	"github.com/ringfence/ringfence/engine/wire"
)

// A consumer and a producer that read nothing any more are cut off at the write
// deadline. Until then and afterwards nobody else notices, what is kept for them is
// bounded, and the consumer goes on from its cursor.
func TestK04StoppedReader(t *testing.T) {
	inBubble(t, Options{ConnBytes: 1 << 20}, func(w *world) {
		other := w.connect()
		p := other.producer("a")
		for i := range 20 {
			want[*wire.ProduceReply](other, wire.KeyProduce, &wire.Produce{Producer: p}, frameOf(uint64(i), 100<<10)...)
		}
		stopped := w.connect()
		r := stopped.consumer("a")
		page := stopped.do(wire.KeyFetch, &wire.Fetch{Consumer: r, MaxBytes: 300 << 10}).msg.(*wire.Page)
		for range 20 { // asks for all, and takes none of it
			stopped.send(wire.KeyFetch, &wire.Fetch{Consumer: r, MaxBytes: 300 << 10})
		}
		mute := w.connect() // a producer that hears none of its acknowledgements
		q := mute.producer("b")
		var sent int
		muted := make(chan struct{})
		go func() {
			defer close(muted)
			frame := frameOf(1, 10<<10)
			for id := range uint32(1000) {
				if _, err := mute.nc.Write(mute.frame(wire.KeyProduce, 100+id, &wire.Produce{Producer: q}, frame...)); err != nil {
					return
				}
				sent++
			}
		}()
		reader := w.connect()
		rr := reader.consumer("a")
		for i := range 29 { // seconds, of the 30 that the stopped ones have
			time.Sleep(time.Second)
			want[*wire.ProduceReply](other, wire.KeyProduce, &wire.Produce{Producer: p}, frameOf(uint64(20+i), 100<<10)...)
			if m := want[*wire.Page](reader, wire.KeyFetch, &wire.Fetch{Consumer: rr}); m.First == m.Next {
				t.Error("the other reader got nothing")
			}
			want[*wire.SplitRangeReply](other, wire.KeySplitRange, &wire.SplitRange{Topic: "a"})
		}
		if got := w.server.Stats(); got.PageBytes > 300<<10 || got.Connections != 4 {
			t.Errorf("held for the stopped ones: %+v", got)
		}
		time.Sleep(2 * time.Second)
		<-muted
		synctest.Wait()
		if got := w.server.Stats(); got.PageBytes != 0 || got.Connections != 2 || got.CutOff != 2 {
			t.Errorf("after the deadline: %+v", got)
		}
		if most := 2 * (1 << 20) / (10 << 10); sent > most {
			t.Errorf("the mute producer sent %d frames without reading, more than %d", sent, most)
		}
		back := w.connect()
		r = want[*wire.OpenConsumerReply](back, wire.KeyOpenConsumer, &wire.OpenConsumer{Topic: "a", From: 3, Cursor: page.Cursor}).Consumer
		if m := want[*wire.Page](back, wire.KeyFetch, &wire.Fetch{Consumer: r}); m.First != page.Next {
			t.Errorf("goes on at %d, want %d", m.First, page.Next)
		}
	})
}

// A peer that is gone without a word is noticed, whatever its connection waits for.
func TestK05HalfOpen(t *testing.T) {
	inBubble(t, Options{}, func(w *world) {
		idle, polling, subscribed := w.connect(), w.connect(), w.connect()
		idle.producer("a")
		polling.send(wire.KeyFetch, &wire.Fetch{Consumer: polling.consumer("a"), WaitMs: 30000})
		subscribed.send(wire.KeySubscribe, &wire.Subscribe{Consumer: subscribed.consumer("a"), Window: 1 << 20})
		silent := w.dial()
		live := w.connect()
		time.Sleep(9 * time.Second)
		if got := w.server.Stats().Connections; got != 5 {
			t.Fatalf("%d connections, want 5", got)
		}
		time.Sleep(2 * time.Second)
		silent.closed(wire.CodeNotAuthenticated)
		for range 4 {
			live.ping()
			time.Sleep(30 * time.Second)
		}
		synctest.Wait()
		// What they were told lies unread; the write deadline of that passed as well.
		if got := w.server.Stats(); got.Connections != 1 || got.CutOff != 4 {
			t.Errorf("%+v", got)
		}
		if n := w.engine.openHandles(); n != 0 {
			t.Errorf("%d handles of clients that are gone", n)
		}
		live.ping()
		time.Sleep(61 * time.Second)
		live.closed(wire.CodeUnavailable)
	})
}

// What comes late for a connection that is gone reaches no other one.
func TestK06LateReply(t *testing.T) {
	inBubble(t, Options{}, func(w *world) {
		first := w.connect()
		p := first.producer("a")
		disk, meta := make(chan struct{}), make(chan struct{})
		w.engine.set(func() { w.engine.disk, w.engine.meta = disk, meta })
		first.send(wire.KeyProduce, &wire.Produce{Producer: p}, frameOf(1, 200)...)
		first.send(wire.KeyCreateTopic, &wire.CreateTopic{Topic: "b"})
		synctest.Wait()
		first.nc.Close()
		second := w.connect() // pipes have one address, as a port that is used again
		synctest.Wait()
		w.engine.set(func() { w.engine.disk, w.engine.meta = nil, nil })
		close(disk)
		close(meta)
		synctest.Wait()
		second.ping() // and its answer is the first thing that comes
		q := second.producer("a")
		second.last = 2 // the id of the produce whose answer is late
		if r := want[*wire.ProduceReply](second, wire.KeyProduce, &wire.Produce{Producer: q}, frameOf(2, 200)...); r.First != 1 {
			t.Errorf("got %+v, which is the first one's", r)
		}
		if got := w.server.Stats().Connections; got != 1 {
			t.Errorf("%d connections", got)
		}
	})
}

// Requests of every kind, pipelined and answered in any order, are told apart.
func TestK09Mix(t *testing.T) {
	total := 100_000
	if testing.Short() {
		total = 10_000
	}
	leakFree(t)
	w := newWorld(t, Options{Authenticate: letIn, MaxRequests: 64})
	defer w.stop()
	c := w.dial()
	c.hello()
	login := &wire.Authenticate{Mechanism: "password", User: "u", Secret: []byte("right")}
	want[*wire.AuthenticateReply](c, wire.KeyAuthenticate, login)
	p, r := c.producer("a"), c.consumer("a")
	keys := make(chan map[uint32]wire.Key, 1)
	sent := map[uint32]wire.Key{}
	keys <- sent
	var all sync.WaitGroup
	all.Go(func() {
		rng := rand.New(rand.NewPCG(9, 9))
		for n := range total {
			var key wire.Key
			var m wire.Message
			var raw []byte
			switch rng.IntN(8) {
			case 0:
				key, m = wire.KeyPing, &wire.Ping{}
			case 1:
				key, m = wire.KeyAuthenticate, login
			case 2:
				key, m = wire.KeyListPolicies, &wire.ListPolicies{}
			case 3:
				key, m = wire.KeyFetch, &wire.Fetch{Consumer: r, MaxBytes: 1000}
			case 4:
				key, m = wire.KeyLag, &wire.Lag{Consumer: r, Cursor: "0"}
			default:
				key, m, raw = wire.KeyProduce, &wire.Produce{Producer: p}, frameOf(uint64(n), 136)
			}
			<-keys
			sent[uint32(1000+n)] = key
			keys <- sent
			if _, err := c.nc.Write(append(append([]byte(nil), (&wire.Encoder{}).Frame(key, 0, uint32(1000+n), m, len(raw))...), raw...)); err != nil {
				t.Errorf("write %d: %v", n, err)
				return
			}
		}
	})
	var produced, fetched uint64
	for range total {
		a := c.next()
		<-keys
		key, ok := sent[a.ID]
		delete(sent, a.ID)
		keys <- sent
		if !ok || key != a.Key || a.err != nil {
			t.Fatalf("answer to %s %d, want %s: %v", a.Key, a.ID, key, a.err)
		}
		switch m := a.msg.(type) {
		case *wire.ProduceReply:
			produced++
		case *wire.Page:
			if m.First != fetched && len(a.raw) > 0 {
				t.Fatalf("page from %d, want %d", m.First, fetched)
			}
			fetched = m.Next
		}
	}
	all.Wait()
	if got, err := w.engine.numbers("a"); err != nil || uint64(len(got)) != produced || !slices.IsSorted(got) {
		t.Errorf("%d frames stored of %d: %v", len(got), produced, err)
	}
	c.nc.Close()
}

// A subscription pushes as much as its window holds, and no byte more.
func TestSubscribe(t *testing.T) {
	inBubble(t, Options{}, func(w *world) {
		c := w.connect()
		p, r := c.producer("a"), c.consumer("a")
		c.refused(wire.CodeInvalidArgument, wire.KeySubscribe, &wire.Subscribe{Consumer: r})
		for i := range 10 {
			want[*wire.ProduceReply](c, wire.KeyProduce, &wire.Produce{Producer: p}, frameOf(uint64(i), 1000)...)
		}
		id := c.send(wire.KeySubscribe, &wire.Subscribe{Consumer: r, Window: 3000, MaxBytes: 2000})
		check := func(a answer, first, next uint64) {
			t.Helper()
			m, ok := a.msg.(*wire.Page)
			if !ok || a.ID != id || a.Key != wire.KeySubscribe || a.Flags != wire.FlagReply|wire.FlagPush || m.First != first || m.Next != next {
				t.Fatalf("got %+v, %v, want [%d,%d)", a.Head, a.msg, first, next)
			}
			if m.CaughtUp != (first == next) {
				t.Errorf("[%d,%d): caught up %t", first, next, m.CaughtUp)
			}
		}
		pushed := func(first, next uint64) { t.Helper(); check(c.next(), first, next) }
		pushed(0, 2)
		pushed(2, 3)
		c.refused(wire.CodeInvalidArgument, wire.KeyFetch, &wire.Fetch{Consumer: r}) // the next frame: nothing is pushed
		c.refused(wire.CodeInvalidArgument, wire.KeySubscribe, &wire.Subscribe{Consumer: r, Window: 1})
		if m := want[*wire.LagReply](c, wire.KeyLag, &wire.Lag{Consumer: r}); m.Records != 7 {
			t.Errorf("lag %d in a subscription, want 7", m.Records)
		}
		credit := func(n uint32) { c.write(c.frame(wire.KeyCredit, 0, &wire.Credit{Consumer: r, Bytes: n})) }
		credit(1) // one frame comes however little
		pushed(3, 4)
		credit(999)
		c.ping() // which makes up for that
		credit(1 << 20)
		pushed(4, 6)
		pushed(6, 8)
		pushed(8, 10)
		pushed(10, 10)
		c.ping() // that there is nothing more is said once
		stored := c.send(wire.KeyProduce, &wire.Produce{Producer: p}, frameOf(10, 1000)...)
		var pages []answer // the acknowledgement comes before, between or behind them
		for range 3 {
			if a := c.next(); a.ID != stored {
				pages = append(pages, a)
			} else if a.err != nil {
				t.Fatal(a.err)
			}
		}
		if len(pages) != 2 {
			t.Fatalf("%d pages beside the acknowledgement", len(pages))
		}
		check(pages[0], 10, 11)
		check(pages[1], 11, 11)
		done := c.send(wire.KeyCloseConsumer, &wire.CloseConsumer{Consumer: r})
		for _, want := range []uint32{id, done} {
			if a := c.next(); a.ID != want || a.err != nil || a.Flags != wire.FlagReply {
				t.Errorf("after the close: %+v, want the end of %d", a.Head, want)
			}
		}
		credit(5) // late
		c.ping()
	})
}

// A fetch waits for records as long as it says, and holds up nothing but the same
// consumer, whose requests are answered in order.
func TestLongPoll(t *testing.T) {
	inBubble(t, Options{}, func(w *world) {
		c := w.connect()
		p, r := c.producer("a"), c.consumer("a")
		start := time.Now()
		if m := want[*wire.Page](c, wire.KeyFetch, &wire.Fetch{Consumer: r, WaitMs: 5000}); !m.CaughtUp || time.Since(start) != 5*time.Second {
			t.Errorf("an empty page after %s", time.Since(start))
		}
		if m := want[*wire.Page](c, wire.KeyFetch, &wire.Fetch{Consumer: r, WaitMs: 1 << 31}); !m.CaughtUp || time.Since(start) != 35*time.Second {
			t.Errorf("an empty page after %s", time.Since(start))
		}
		one := c.send(wire.KeyFetch, &wire.Fetch{Consumer: r, WaitMs: 30000})
		two := c.send(wire.KeyFetch, &wire.Fetch{Consumer: r})
		c.ping()
		c.send(wire.KeyProduce, &wire.Produce{Producer: p}, frameOf(1, 200)...)
		var pages []uint32
		for range 3 {
			if a := c.next(); a.Key == wire.KeyFetch {
				pages = append(pages, a.ID)
			}
		}
		if !slices.Equal(pages, []uint32{one, two}) {
			t.Errorf("pages came as %v, want %d, %d", pages, one, two)
		}
		one = c.send(wire.KeyFetch, &wire.Fetch{Consumer: r, WaitMs: 30000})
		synctest.Wait()
		start = time.Now()
		two = c.send(wire.KeyCloseConsumer, &wire.CloseConsumer{Consumer: r}) // ends the wait
		for _, id := range []uint32{one, two} {
			if a := c.next(); a.ID != id || a.err != nil {
				t.Errorf("%+v, want the answer to %d: %v", a.Head, id, a.err)
			}
		}
		if time.Since(start) != 0 {
			t.Errorf("the close waited %s", time.Since(start))
		}
	})
}

// Frames reach the engine in order, also when one is refused: then none behind it does.
func TestProducerHalts(t *testing.T) {
	refusals := map[wire.Code]func(w *world) []byte{
		wire.CodeCorruptFrame:   func(*world) []byte { return frameOf(1, 128) },
		wire.CodeRecordTooLarge: func(w *world) []byte { return frameOf(1, w.engine.maxFrame+1) },
		wire.CodeOutOfSpace: func(w *world) []byte {
			w.engine.set(func() { w.engine.sendErr = errors.Join(errors.New("x"), api.ErrOutOfSpace) })
			return frameOf(1, 200)
		},
		wire.CodeOverloaded: func(w *world) []byte {
			w.engine.set(func() { w.engine.memory = make(chan struct{}) })
			return frameOf(1, 200)
		},
	}
	for code, bad := range refusals {
		inBubble(t, Options{}, func(w *world) {
			c := w.connect()
			p := c.producer("a")
			want[*wire.ProduceReply](c, wire.KeyProduce, &wire.Produce{Producer: p}, frameOf(0, 200)...)
			frame := bad(w)
			first := c.send(wire.KeyProduce, &wire.Produce{Producer: p}, frame...)
			second := c.send(wire.KeyProduce, &wire.Produce{Producer: p}, frameOf(2, 300<<10)...)
			if a := c.next(); a.ID != first || a.code() != code {
				t.Errorf("%s: %v", code, a.err)
			}
			if a := c.next(); a.ID != second || a.code() != wire.CodeProducerHalted {
				t.Errorf("%s, the frame behind: %v", code, a.err)
			}
			w.engine.set(func() { w.engine.memory = nil })
			want[*wire.Done](c, wire.KeyCloseProducer, &wire.CloseProducer{Producer: p})
			c.refused(wire.CodeNoSuchHandle, wire.KeyProduce, &wire.Produce{Producer: p}, frameOf(2, 200)...)
			p = c.producer("a")
			want[*wire.ProduceReply](c, wire.KeyProduce, &wire.Produce{Producer: p}, frameOf(1, 200)...)
			u := want[*wire.OpenProducerReply](c, wire.KeyOpenProducer, &wire.OpenProducer{Topic: "a", Unnumbered: true}).Producer
			c.refused(wire.CodeCorruptFrame, wire.KeyProduce, &wire.Produce{Producer: u}, frameOf(1, 128)...)
			want[*wire.ProduceReply](c, wire.KeyProduce, &wire.Produce{Producer: u}, frameOf(2, 200)...)
			if got, err := w.engine.numbers("a"); err != nil || !slices.Equal(got, []uint64{0, 1, 2}) {
				t.Errorf("%s: stored %v, %v", code, got, err)
			}
		})
	}
}

// A close is answered behind the frames that were sent before it.
func TestCloseProducerFlushes(t *testing.T) {
	inBubble(t, Options{}, func(w *world) {
		c := w.connect()
		p := c.producer("a")
		disk, call := make(chan struct{}), make(chan struct{})
		w.engine.set(func() { w.engine.disk, w.engine.call, w.engine.diskErr = disk, call, api.ErrStorage })
		frame := c.send(wire.KeyProduce, &wire.Produce{Producer: p}, frameOf(1, 200)...)
		end := c.send(wire.KeyCloseProducer, &wire.CloseProducer{Producer: p})
		c.ping()
		close(disk)
		synctest.Wait() // the engine has closed the producer
		c.ping()
		close(call)
		if a := c.next(); a.ID != frame || a.code() != wire.CodeWriteFailed {
			t.Errorf("the frame: %+v, %v", a.Head, a.err)
		}
		if a := c.next(); a.ID != end || a.err != nil {
			t.Errorf("the close: %+v, %v", a.Head, a.err)
		}
	})
}

// However many subscriptions a connection asks for, there is room for what closes them,
// and for a Ping.
func TestSubscriptionsLeaveRoom(t *testing.T) {
	inBubble(t, Options{MaxRequests: 8, MaxHandles: 16}, func(w *world) {
		c := w.connect()
		c.producer("a") // makes the topic
		var subscribed []uint32
		refusals := 0
		for range 8 {
			r := c.consumer("a")
			id := c.send(wire.KeySubscribe, &wire.Subscribe{Consumer: r, Window: 1000})
			switch a := c.next(); { // that there is nothing yet, or that it is one too many
			case a.ID != id:
				t.Fatalf("%+v", a.Head)
			case a.err == nil:
				subscribed = append(subscribed, r)
			case a.code() != wire.CodeOverloaded:
				t.Fatal(a.err)
			default:
				refusals++
			}
		}
		if len(subscribed) != 4 || refusals != 4 {
			t.Fatalf("%d subscriptions and %d refusals, want 4 and 4 of 8 requests", len(subscribed), refusals)
		}
		c.ping()
		c.send(wire.KeyCloseConsumer, &wire.CloseConsumer{Consumer: subscribed[0]})
		c.next()
		c.next() // both end with Done
		r := c.consumer("a")
		id := c.send(wire.KeySubscribe, &wire.Subscribe{Consumer: r, Window: 1000})
		if a := c.next(); a.ID != id || a.err != nil {
			t.Errorf("after one was closed: %+v, %v", a.Head, a.err)
		}
	})
}
