package server

import (
	"errors"
	"io"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ringfence/ringfence/engine/wire"
)

func headOf(length uint32, key wire.Key, id, message uint32) []byte {
	b := make([]byte, wire.HeadSize)
	wire.Head{Length: length, Key: key, ID: id, Message: message}.Put(b)
	return b
}

// What a length announces is held against the limit of the phase before anything else
// is done about it, and what came before it is still answered.
func TestK01FrameLength(t *testing.T) {
	huge := []uint32{wire.MaxFrame + 1, math.MaxInt32, 1 << 31, math.MaxUint32}
	for _, n := range append(huge, wire.MaxFirst+1) {
		inBubble(t, Options{}, func(w *world) {
			c := w.dial()
			c.write(headOf(n, wire.KeyHello, 1, 8))
			c.closed(wire.CodeFrameTooLarge)
		})
	}
	for _, n := range huge {
		inBubble(t, Options{}, func(w *world) {
			c := w.connect()
			gate := make(chan struct{})
			w.engine.set(func() { w.engine.meta = gate })
			id := c.send(wire.KeyCreateTopic, &wire.CreateTopic{Topic: "a"})
			c.write(headOf(n, wire.KeyProduce, 9, 8))
			synctest.Wait() // the bad head is read, the request still waits
			close(gate)
			if a := c.next(); a.ID != id || a.err != nil {
				t.Errorf("length %d: %+v instead of the answer to what came before", n, a)
			}
			c.closed(wire.CodeFrameTooLarge)
		})
	}
	inBubble(t, Options{}, func(w *world) { // the exact limits are taken
		c := w.dial()
		c.write(headOf(wire.MaxFirst, wire.KeyHello, 1, wire.MaxFirst))
		c.write(make([]byte, wire.MaxFirst))
		if a := c.next(); a.ID != 1 || a.code() != wire.CodeMalformed {
			t.Errorf("a hello as long as may be: %v", a.err)
		}
		c.closed(0)
		c = w.connect()
		c.refused(wire.CodeNoSuchHandle, wire.KeyProduce, &wire.Produce{Producer: 1}, make([]byte, wire.MaxFrame-24)...)
		for _, n := range []uint32{0, 1, wire.MaxMessage} {
			c.last++
			c.write(headOf(n, wire.KeyPing, c.last, n))
			c.write(make([]byte, n))
			if a := c.next(); a.ID != c.last || a.code() != wire.CodeMalformed {
				t.Errorf("a ping of %d zeros: %v", n, a.err)
			}
		}
		c.ping()
		c.write(headOf(wire.MaxMessage+1, wire.KeyPing, 9, wire.MaxMessage+1))
		c.closed(wire.CodeFrameTooLarge)
	})
}

// A connection that announces what it may not costs next to nothing.
func TestK01Memory(t *testing.T) {
	inBubble(t, Options{}, func(w *world) {
		const n = 20
		clients := make([]*client, n)
		for i := range clients {
			clients[i] = w.connect()
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for _, c := range clients {
			c.write(headOf(math.MaxUint32, wire.KeyProduce, 1, 8))
			c.closed(wire.CodeFrameTooLarge)
		}
		runtime.ReadMemStats(&after)
		if got := (after.TotalAlloc - before.TotalAlloc) / n; got > 1<<20 {
			t.Errorf("%d bytes allocated for each connection", got)
		}
	})
}

// What is wrong with a message is answered and the connection goes on; what is wrong
// with a head ends it.
func TestMalformed(t *testing.T) {
	inBubble(t, Options{}, func(w *world) {
		c := w.connect()
		raw := func(key wire.Key, msg []byte) answer {
			c.last++
			c.write(append(headOf(uint32(len(msg)), key, c.last, uint32(len(msg))), msg...))
			return c.next()
		}
		if a := raw(wire.KeyCreateTopic, []byte("no flatbuffer at all")); a.ID != c.last || a.code() != wire.CodeMalformed {
			t.Errorf("garbage: %+v", a)
		}
		if a := raw(99, []byte("whatever")); a.ID != c.last || a.code() != wire.CodeUnknownKey {
			t.Errorf("unknown key: %+v", a)
		}
		if a := raw(wire.KeyProduce, make([]byte, maxProduce+1)); a.code() != wire.CodeMalformed {
			t.Errorf("long message of Produce: %+v", a)
		}
		if a := raw(wire.KeyProduce, make([]byte, 30)); a.code() != wire.CodeMalformed {
			t.Errorf("garbage for Produce: %+v", a)
		}
		c.last++
		c.write(append(headOf(1000, 99, c.last, 10), make([]byte, 1000)...)) // with what may be record frames
		if a := c.next(); a.code() != wire.CodeUnknownKey {
			t.Errorf("unknown key with record frames: %+v", a)
		}
		c.refused(wire.CodeMalformed, wire.KeyHello, &wire.Hello{Magic: wire.Magic, MinVersion: 1, MaxVersion: 1})
		c.refused(wire.CodeUnsupported, wire.KeyAuthenticate, &wire.Authenticate{})
		c.refused(wire.CodeNoSuchHandle, wire.KeyFetch, &wire.Fetch{Consumer: 5})
		c.refused(wire.CodeNoSuchHandle, wire.KeySubscribe, &wire.Subscribe{Consumer: 5, Window: 1})
		c.refused(wire.CodeNoSuchHandle, wire.KeyCloseConsumer, &wire.CloseConsumer{Consumer: 5})
		c.refused(wire.CodeNoSuchHandle, wire.KeyCloseProducer, &wire.CloseProducer{Producer: 5})
		c.refused(wire.CodeNoSuchHandle, wire.KeyLag, &wire.Lag{Consumer: 5})
		c.refused(wire.CodeInvalidArgument, wire.KeyOpenConsumer, &wire.OpenConsumer{Topic: "a", From: 5})
		c.write(c.frame(wire.KeyCredit, 0, &wire.Credit{Consumer: 5, Bytes: 1})) // has no answer, and may be late
		c.ping()
	})
	for name, bad := range map[string]func(c *client) []byte{
		"id 0":             func(c *client) []byte { return c.frame(wire.KeyPing, 0, &wire.Ping{}) },
		"a reply":          func(c *client) []byte { return c.enc.Frame(wire.KeyPing, wire.FlagReply, 7, &wire.Done{}, 0) },
		"message too long": func(c *client) []byte { return headOf(8, wire.KeyPing, 7, 9) },
		"frames of Ping":   func(c *client) []byte { return c.frame(wire.KeyPing, 7, &wire.Ping{}, 1, 2, 3) },
		"garbage Credit":   func(c *client) []byte { return append(headOf(8, wire.KeyCredit, 0, 8), make([]byte, 8)...) },
		"long Credit":      func(c *client) []byte { return headOf(maxCredit+1, wire.KeyCredit, 0, maxCredit+1) },
	} {
		inBubble(t, Options{}, func(w *world) {
			c := w.connect()
			go c.nc.Write(bad(c)) // what is behind a bad head is not read
			t.Log(name)
			c.closed(wire.CodeMalformed)
		})
	}
}

// An id that is in flight tells requests apart no more: an answer to the second would be
// taken for one to the first.
func TestDuplicateID(t *testing.T) {
	inBubble(t, Options{}, func(w *world) {
		c := w.connect()
		gate := make(chan struct{})
		w.engine.set(func() { w.engine.meta = gate })
		id := c.send(wire.KeyCreateTopic, &wire.CreateTopic{Topic: "a"})
		c.write(c.frame(wire.KeyPing, id, &wire.Ping{})[:wire.HeadSize])
		synctest.Wait()
		close(gate)
		if a := c.next(); a.ID != id || a.Key != wire.KeyCreateTopic || a.err != nil {
			t.Errorf("the first request: %+v", a)
		}
		c.closed(wire.CodeMalformed)
		c = w.connect() // an id that was answered is free again
		for range 3 {
			c.last = 7
			c.ping()
		}
	})
}

// Connections that announce the most and send a byte a second take memory for what they
// sent, none of the engine's beyond its part, and hold up nobody.
func TestK02SlowDrip(t *testing.T) {
	inBubble(t, Options{MaxHandles: 1}, func(w *world) {
		const n = 500
		good := w.connect()
		p := good.producer("a")
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		drips := make([]*client, n)
		frame := good.frame(wire.KeyProduce, 99, &wire.Produce{Producer: 1}, frameOf(1, 8<<20)...)
		for i := range drips {
			c := w.connect()
			c.producer("a")
			drips[i] = c
			go func() {
				c.nc.Write(frame[:60])
				for _, b := range frame[60:] {
					if _, err := c.nc.Write([]byte{b}); err != nil {
						return
					}
					time.Sleep(time.Second)
				}
			}()
		}
		for second := range 25 {
			time.Sleep(time.Second)
			want[*wire.ProduceReply](good, wire.KeyProduce, &wire.Produce{Producer: p}, frameOf(uint64(second), 300<<10)...)
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		t.Logf("%d KiB for %d connections", (int64(after.HeapAlloc)-int64(before.HeapAlloc))>>10, n)
		w.engine.set(func() {
			if most := int(w.server.opts.ReceiveBytes); w.engine.mostHeld > most+300<<10 {
				t.Errorf("frames on their way held %d bytes of the engine, at most %d should", w.engine.mostHeld, most)
			}
			if w.engine.mostHeld < 8<<20 {
				t.Error("no frame was received straight into the engine")
			}
		})
		if got := w.server.Stats().HeapBytes; got > n*2*readBuffer {
			t.Errorf("%d bytes taken for requests of which %d bytes came", got, 25*n)
		}
		for _, c := range drips {
			c.closed(wire.CodeUnavailable)
		}
		synctest.Wait()
		if got := w.server.Stats(); got.CutOff != n || got.Connections != 1 {
			t.Errorf("after the deadline: %+v", got)
		}
		good.ping()
	})
}

// A frame has one deadline, from its first byte to its last.
func TestFrameDeadline(t *testing.T) {
	inBubble(t, Options{}, func(w *world) {
		c := w.connect()
		frame := c.frame(wire.KeyProduce, 9, &wire.Produce{Producer: c.producer("a")}, frameOf(1, 300<<10)...)
		start := time.Now()
		for _, n := range []int{5, 30, 100 << 10} {
			c.write(frame[:n])
			frame = frame[n:]
			time.Sleep(9 * time.Second)
		}
		c.closed(wire.CodeUnavailable)
		if took := time.Since(start); took != 30*time.Second {
			t.Errorf("cut off after %s", took)
		}
	})
}

// A request whose memory all clients together do not have is refused and skipped.
func TestTotalBytes(t *testing.T) {
	inBubble(t, Options{TotalBytes: 2 * wire.MaxFrame, ReceiveBytes: 1}, func(w *world) {
		var slow []*client
		for range 2 {
			c := w.connect()
			frame := c.frame(wire.KeyProduce, 50, &wire.Produce{Producer: c.producer("a")}, frameOf(1, 9<<20)...)
			c.write(frame[:len(frame)-1])
			slow = append(slow, c)
		}
		synctest.Wait()
		c := w.connect()
		p := c.producer("b")
		c.refused(wire.CodeOverloaded, wire.KeyProduce, &wire.Produce{Producer: p}, frameOf(2, 9<<20)...)
		c.refused(wire.CodeProducerHalted, wire.KeyProduce, &wire.Produce{Producer: p}, frameOf(3, 200)...)
		c.ping()
		for _, c := range slow {
			c.write([]byte{0})
			if a := c.next(); a.err != nil {
				t.Errorf("those that were there first: %v", a.err)
			}
		}
		p = c.producer("b")
		want[*wire.ProduceReply](c, wire.KeyProduce, &wire.Produce{Producer: p}, frameOf(2, 9<<20)...)
		if got, err := w.engine.numbers("b"); err != nil || len(got) != 1 || got[0] != 2 {
			t.Errorf("stored %v, %v", got, err)
		}
	})
}

// Connections that begin long requests, and take their time with the rest, take all the
// memory that there is for requests. Short ones of the others are let in all the same, and
// where a long one has no room the slowest are cut off, but nobody who was quick.
func TestK02SlowRequestsTakeAllMemory(t *testing.T) {
	inBubble(t, Options{TotalBytes: 2 * wire.MaxFrame, ReceiveBytes: 1, Authenticate: letIn}, func(w *world) {
		logIn := func() *client {
			c := w.connect()
			want[*wire.AuthenticateReply](c, wire.KeyAuthenticate, &wire.Authenticate{Mechanism: "password", User: "u", Secret: []byte("right")})
			return c
		}
		most := w.server.opts.TotalBytes
		begin := func(c *client, long int) {
			c.write(append(headOf(uint32(long), wire.KeyCommit, 99, uint32(long)), make([]byte, long-1)...))
		}
		left := func() int64 { synctest.Wait(); return most - w.server.Stats().HeapBytes }
		var slow []*client
		for size := int64(1 << 20); size >= readBuffer; size /= 2 {
			for left() >= 2*size || size == readBuffer && left() >= size { // while one grows it takes more
				c := logIn()
				begin(c, int(size))
				slow = append(slow, c)
			}
		}
		if n := left(); n >= readBuffer {
			t.Fatalf("%d bytes are left", n)
		}
		good := logIn() // its hello and its login are requests, too
		p := good.producer("a")
		want[*wire.ProduceReply](good, wire.KeyProduce, &wire.Produce{Producer: p}, frameOf(1, 5000)...)
		good.refused(wire.CodeOverloaded, wire.KeyProduce, &wire.Produce{Producer: p}, frameOf(2, 300<<10)...)
		if n := w.server.Stats().CutOff; n != 0 {
			t.Errorf("%d were cut off at once", n)
		}
		time.Sleep(slowArrival)
		p = good.producer("a")
		good.refused(wire.CodeOverloaded, wire.KeyProduce, &wire.Produce{Producer: p}, frameOf(2, 300<<10)...)
		synctest.Wait()
		p = good.producer("a")
		want[*wire.ProduceReply](good, wire.KeyProduce, &wire.Produce{Producer: p}, frameOf(2, 300<<10)...)
		slow[0].closed(wire.CodeOverloaded)
		synctest.Wait()
		if n := w.server.Stats().CutOff; n != 1 {
			t.Errorf("%d were cut off, for the memory of one", n)
		}
		for _, c := range slow[1:] {
			c.write([]byte{0})
			if a := c.next(); a.ID != 99 || a.code() != wire.CodeMalformed {
				t.Errorf("one that was not in the way: %+v", a)
			}
		}
		if got, err := w.engine.numbers("a"); err != nil || len(got) != 2 {
			t.Errorf("stored %v, %v", got, err)
		}
	})
}

// No bytes make a connection panic, hang or leave anything behind.
func FuzzConnection(f *testing.F) {
	c := &client{}
	hello := c.frame(wire.KeyHello, 1, &wire.Hello{Magic: wire.Magic, MinVersion: 1, MaxVersion: 1})
	seed := func(frames ...[]byte) { f.Add(true, slices.Concat(frames...)) }
	f.Add(false, []byte{})
	f.Add(false, []byte("GET / HTTP/1.1\r\n\r\n"))
	f.Add(false, hello)
	f.Add(true, hello)
	topic := c.frame(wire.KeyCreateTopic, 2, &wire.CreateTopic{Topic: "a"})
	seed(topic, c.frame(wire.KeyOpenProducer, 3, &wire.OpenProducer{Topic: "a"}), c.frame(wire.KeyProduce, 4, &wire.Produce{Producer: 1}, frameOf(1, 200)...))
	seed(topic, c.frame(wire.KeyOpenConsumer, 3, &wire.OpenConsumer{Topic: "a"}), c.frame(wire.KeyFetch, 4, &wire.Fetch{Consumer: 1, WaitMs: 1000}),
		c.frame(wire.KeySubscribe, 5, &wire.Subscribe{Consumer: 1, Window: 10}), c.frame(wire.KeyCredit, 0, &wire.Credit{Consumer: 1, Bytes: 10}))
	seed(c.frame(wire.KeyProduce, 4, &wire.Produce{Producer: 1}, 1, 2, 3), headOf(math.MaxUint32, 33, 1, 8))
	f.Fuzz(func(t *testing.T, in bool, b []byte) {
		if in {
			b = slices.Concat(hello, b)
		}
		inBubble(t, Options{}, func(w *world) {
			c := w.dial()
			w.engine.topics["a"] = &fakeTopic{name: "a", changed: make(chan struct{}), groups: map[string]string{}}
			var all sync.WaitGroup
			defer all.Wait()
			all.Go(func() {
				c.nc.Write(b)
				time.Sleep(time.Millisecond)
				c.nc.Close()
			})
			for {
				a, err := c.read()
				if err == nil {
					continue
				}
				var bad *wire.Error
				if errors.As(err, &bad) && len(a.raw) == 0 {
					t.Fatalf("the server sent what is no frame: %v", err)
				}
				if errors.Is(err, io.EOF) || errors.Is(err, io.ErrClosedPipe) || errors.Is(err, io.ErrUnexpectedEOF) {
					return
				}
				t.Fatal(err)
			}
		})
	})
}

// Frames cut up anyhow are the same frames.
func TestFragments(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for seed := range 50 {
		inBubble(t, Options{ReceiveBytes: 64 << 10}, func(w *world) {
			c := w.connect()
			p := c.producer("a")
			var stream []byte
			var sizes []int
			for i := range 20 {
				n := 130 + rng.IntN(1<<rng.IntN(18))
				sizes = append(sizes, n)
				c.last++
				stream = append(stream, c.frame(wire.KeyProduce, c.last, &wire.Produce{Producer: p}, frameOf(uint64(i), n)...)...)
			}
			go func() {
				for len(stream) > 0 {
					n := min(len(stream), 1+rng.IntN(1<<rng.IntN(17)))
					c.nc.Write(stream[:n])
					stream = stream[n:]
				}
			}()
			for range sizes {
				if a := c.next(); a.err != nil {
					t.Fatalf("seed %d: %v", seed, a.err)
				}
			}
			got, err := w.engine.numbers("a")
			if err != nil {
				t.Fatal(err)
			}
			for i, n := range got {
				if n != uint64(i) || len(w.engine.topics["a"].frames[i]) != sizes[i] {
					t.Fatalf("seed %d: frame %d is %d of %d bytes, want %d", seed, i, n, len(w.engine.topics["a"].frames[i]), sizes[i])
				}
			}
		})
	}
}
