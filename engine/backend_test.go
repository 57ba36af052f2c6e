package engine

import (
	"errors"
	"sync"
	"testing"

	"github.com/ringfence/ringfence/engine/api"
	"github.com/ringfence/ringfence/engine/server"
)

// A program that reconnects opens its producer again while the connection before may
// still have frames of it: those are answered before the new one's first is taken, and
// none of them is stored after.
func TestProducerOpenedAgain(t *testing.T) {
	e := open(t, t.TempDir(), Options{})
	newTopic(t, e, "t")
	b := e.Backend()
	for range rounds(10) {
		first, err := b.OpenProducer("t", 0, false)
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
			must(t, f.Send(within(t), func(_ api.Placement, err error) {
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
		again, err := b.OpenProducer("t", first.ID(), false)
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
	must(t, f.Send(within(t), func(got api.Placement, err error) {
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
