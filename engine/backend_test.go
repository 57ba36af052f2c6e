package engine

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/ringfence/ringfence/engine/api"
	"github.com/ringfence/ringfence/engine/server"
	"github.com/ringfence/ringfence/engine/wire"
	"github.com/ringfence/ringfence/segfile/record"
)

// A program that reconnects opens its producer again while the connection before may
// still have frames of it: those are answered before the new one's first is taken, and
// none of them is stored after.
func TestProducerOpenedAgain(t *testing.T) {
	e := open(t, t.TempDir(), Options{})
	newTopic(t, e, "t")
	b := e.Backend()
	for range rounds(10) {
		first, err := b.OpenProducer(within(t), "t", 0, false)
		must(t, err)
		var mu sync.Mutex
		var stored, failed int
		var sent sync.WaitGroup
		for seq := range uint64(20) {
			frame := frameOf(t, first.ID(), seq+1, "k")
			f, err := first.NewFrame(within(t), len(frame))
			must(t, err)
			copy(f.Bytes(), frame)
			sent.Add(1)
			must(t, f.Send(within(t), seq%2 == 0, func(_ api.Placement, err error) {
				mu.Lock()
				defer mu.Unlock()
				if err == nil {
					stored++
				} else if failed++; !errors.Is(err, ErrClosed) {
					t.Errorf("a frame of the connection before: %v", err)
				}
				sent.Done()
			}))
		}
		again, err := b.OpenProducer(within(t), "t", first.ID(), false)
		must(t, err)
		mu.Lock()
		if stored+failed != 20 {
			t.Errorf("opened again with %d of 20 frames answered", stored+failed)
		}
		mu.Unlock()
		sent.Wait()
		if _, err := first.NewFrame(within(t), 1000); !errors.Is(err, ErrClosed) {
			t.Errorf("the producer of before takes frames: %v", err)
		}
		// Sent again from the start, what was stored is recognised.
		for seq := range uint64(20) {
			frame := frameOf(t, first.ID(), seq+1, "k")
			pl := sendTo(t, again, frame)
			if pl.Duplicate != (seq < uint64(stored)) {
				t.Errorf("frame %d of %d stored before: %+v", seq, stored, pl)
			}
		}
		must(t, again.Close(within(t)))
		must(t, first.Close(within(t)))
	}
	if n := len(readAll(t, e, "t", FromStart())); n != rounds(10)*20 {
		t.Errorf("%d records, want %d", n, rounds(10)*20)
	}
}

func sendTo(t testing.TB, p server.Producer, frame []byte) (pl api.Placement) {
	t.Helper()
	f, err := p.NewFrame(within(t), len(frame))
	must(t, err)
	copy(f.Bytes(), frame)
	done := make(chan struct{})
	must(t, f.Send(within(t), false, func(got api.Placement, err error) {
		if pl = got; err != nil {
			t.Error(err)
		}
		close(done)
	}))
	soon(t, "a frame's outcome", func() { <-done })
	return pl
}

// A group's position set from a cursor is where a consumer of the group goes on.
func TestCommitCursor(t *testing.T) {
	e := open(t, t.TempDir(), Options{})
	newTopic(t, e, "t")
	produce(t, newProducer(t, e, ProducerOptions{Topic: "t"}), "k", "1", "2", "3", "4")
	b := e.Backend()
	c := newConsumer(t, e, ConsumerOptions{Topic: "t"})
	var cursors []string
	for range 3 {
		_, err := c.Fetch(1)
		must(t, err)
		cursors = append(cursors, c.Cursor())
	}
	at := func() string {
		c := newConsumer(t, e, ConsumerOptions{Topic: "t", Group: "g"})
		defer c.Close()
		page, err := c.Fetch(1)
		must(t, err)
		return string(page.Records[0].Value)
	}
	must(t, b.CommitCursor(within(t), "t", "g", cursors[1], false))
	if got := at(); got != "3" {
		t.Errorf("goes on at %q", got)
	}
	must(t, b.CommitCursor(within(t), "t", "g", cursors[0], false)) // never back
	if got := at(); got != "3" {
		t.Errorf("moved back to %q", got)
	}
	must(t, b.CommitCursor(within(t), "t", "g", cursors[0], true)) // unless asked
	if got := at(); got != "2" {
		t.Errorf("reset to %q", got)
	}
	if n, err := b.CursorLag("t", cursors[0]); n != 3 || err != nil {
		t.Errorf("lag %d, %v", n, err)
	}
	is(t, b.CommitCursor(within(t), "t", "g", "nonsense", true), ErrInvalidCursor)
	is(t, b.CommitCursor(within(t), "u", "g", cursors[0], true), ErrNoSuchTopic)
}

// Consumers that have fetched and then stand still keep no memory that producers need,
// however many there are.
func TestIdleConsumersLeaveMemory(t *testing.T) {
	e := open(t, t.TempDir(), Options{})
	newTopic(t, e, "t")
	p := newProducer(t, e, ProducerOptions{Topic: "t", BatchBytes: 2 << 20})
	large := make([]byte, 1<<20)
	for range 6 {
		_, err := p.Produce(within(t), Record{Key: []byte("k"), Value: large})
		must(t, err)
	}
	for _, sealed := range []bool{false, true} {
		if sealed {
			_, err := e.Roll(within(t), "t")
			must(t, err)
		}
		before := e.Stats().ArenaUsed
		for range 40 {
			c, err := e.Backend().OpenConsumer("t", "", api.FromStart())
			must(t, err)
			defer c.Close()
			for range 4 { // far enough to read ahead
				page, err := c.FetchFrames(1, false)
				must(t, err)
				if page.Next == page.First {
					t.Fatal("an empty page")
				}
			}
		}
		if used, most := e.Stats().ArenaUsed-before, e.Stats().Arena/2; used > most {
			t.Errorf("sealed %t: consumers that stand still keep %d bytes of the arena, at most %d", sealed, used, most)
		}
		_, err := p.Produce(within(t), Record{Key: []byte("k"), Value: large})
		must(t, err)
	}
}

// Frames that are small only compressed take no more memory than some of them at a time.
func TestCompressedFramesAreBounded(t *testing.T) {
	e := open(t, t.TempDir(), Options{})
	newTopic(t, e, "t")
	const each = 8 << 20
	var build record.Builder
	build.Reset(make([]byte, each+4096), 7)
	must(t, build.Add(&record.Record{Key: []byte("k"), Value: make([]byte, each), Timestamp: 1}, 1))
	plain, err := build.Finish(0)
	must(t, err)
	frame, err := record.Compress(make([]byte, len(plain)), plain, record.S2)
	must(t, err)
	if len(frame) > each/100 {
		t.Fatalf("compressed to %d bytes", len(frame))
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	const n = 50
	for range n {
		if _, err := e.verify(frame); err != nil {
			t.Fatal(err)
		}
	}
	runtime.ReadMemStats(&after)
	if got, most := after.TotalAlloc-before.TotalAlloc, uint64(each*(runtime.GOMAXPROCS(0)+2)); got > most {
		t.Errorf("%d frames of %d bytes took %d bytes, at most %d", n, each, got, most)
	}
}

// A producer that is opened again waits for what the one before has on its way to the
// disk, no longer than its request lasts, and then says to try again.
func TestOpenProducerIsBounded(t *testing.T) {
	e := open(t, t.TempDir(), Options{})
	newTopic(t, e, "t")
	b := e.Backend()
	first, err := b.OpenProducer(within(t), "t", 7, false)
	must(t, err)
	p := first.(*lease).Producer
	age := p.age
	count := func(n int) { // of records whose outcome the disk does not tell
		p.mu.Lock()
		p.pending[age] += n
		p.changed.Broadcast()
		p.mu.Unlock()
	}
	count(1)
	short, cancel := context.WithTimeout(within(t), 20*time.Millisecond)
	defer cancel()
	for range 2 {
		_, err = b.OpenProducer(short, "t", 7, false)
		if is(t, err, wire.CodeUnavailable); !wire.CodeUnavailable.Retryable() {
			t.Error("nobody tries again")
		}
	}
	if _, err := first.NewFrame(within(t), 1000); !errors.Is(err, ErrClosed) {
		t.Errorf("the one before still takes frames: %v", err)
	}
	other, err := b.OpenProducer(within(t), "t", 8, false) // which is not held up
	must(t, err)
	must(t, other.Close(within(t)))
	count(-1)
	again, err := b.OpenProducer(within(t), "t", 7, false)
	must(t, err)
	must(t, again.Close(within(t)))
	must(t, first.Close(within(t)))
}
