package shm

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"
)

// Both sides sleep before every answer, and each wakes the other.
func TestSleepersAreWoken(t *testing.T) {
	h, g := pair(t, Options{Geometry: small})
	h.wait.alone, g.wait.alone = true, true // never spin
	done := make(chan error, 1)
	const n = 2000
	go func() {
		for range n {
			s, err := h.Next()
			if err != nil {
				done <- err
				return
			}
			h.Complete(Completion{ID: s.ID})
		}
		done <- nil
	}()
	b := block(t, g, 10)
	for i := range uint32(n) {
		for i == n/2 && atomic.LoadUint32(h.wait.bell.word) != sleeping {
			time.Sleep(time.Microsecond) // once for certain
		}
		if !g.send(i, 0, b) {
			t.Fatal("no slot")
		}
		if c, err := g.Next(); err != nil || c.ID != i {
			t.Fatal(c, err)
		}
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// Stop ends a wait although the other side keeps undoing what would end it.
func TestStopAgainstAHostileWord(t *testing.T) {
	h, g := pair(t, Options{Geometry: small})
	word := g.mem.word4(small.ArenaBytes + offHost)
	over := make(chan struct{})
	quit := make(chan struct{})
	go func() {
		defer close(over)
		for {
			select {
			case <-quit:
				return
			default:
				atomic.StoreUint32(word, sleeping)
			}
		}
	}()
	ended := make(chan error, 1)
	go func() {
		_, err := h.Next()
		ended <- err
	}()
	for !h.wait.sleeping.Load() {
		time.Sleep(time.Microsecond)
	}
	h.Stop()
	if err := <-ended; !errors.Is(err, ErrStopped) {
		t.Error(err)
	}
	close(quit)
	<-over
	if _, err := h.Next(); !errors.Is(err, ErrStopped) {
		t.Error(err)
	}
}

// What is there when the client stops is still answered.
func TestStoppedGuestTakesWhatIsThere(t *testing.T) {
	h, g := pair(t, Options{Geometry: small})
	b := block(t, g, 10)
	for i := range uint32(3) {
		g.send(i, 0, b)
		if _, err := h.Next(); err != nil {
			t.Fatal(err)
		}
		h.Complete(Completion{ID: i})
	}
	g.Stop()
	for i := range uint32(3) {
		if c, err := g.Next(); err != nil || c.ID != i {
			t.Fatal(c, err)
		}
	}
	if _, err := g.Next(); !errors.Is(err, ErrStopped) {
		t.Error(err)
	}
}

// A client that rings and says nothing keeps no processor busy for long.
func TestFalseAlarms(t *testing.T) {
	h, g := pair(t, Options{Geometry: small})
	b := bell{g.mem.word4(small.ArenaBytes + offHost)}
	ended := make(chan error, 1)
	go func() {
		_, err := h.Next()
		ended <- err
	}()
	for {
		select {
		case err := <-ended:
			if !errors.Is(err, ErrPeer) {
				t.Error(err)
			}
			return
		default:
			b.ring()
		}
	}
}

// How long a side spins follows from how long its last sleep was.
func TestSpinningPays(t *testing.T) {
	w := waiter{}
	w.learn(30 * time.Microsecond)
	if w.patient != longestSpin {
		t.Errorf("after a short sleep: %v", w.patient)
	}
	for range 10 {
		w.learn(time.Millisecond)
	}
	if w.patient != 0 {
		t.Errorf("after long sleeps: %v", w.patient)
	}
	w.alone = true
	w.learn(time.Microsecond)
	if w.patient != 0 {
		t.Errorf("with one processor: %v", w.patient)
	}
}

// Soon waits no longer than it is told, which is no fault of the engine's however often it
// happens; and Next still waits behind it.
func TestSoon(t *testing.T) {
	h, g := pair(t, Options{Geometry: small})
	for range 2 * falseAlarms {
		if _, ok, err := g.Soon(time.Microsecond); ok || err != nil {
			t.Fatal("nothing was submitted: ", ok, err)
		}
	}
	if !g.send(3, 0, block(t, g, 10)) {
		t.Fatal("no slot")
	}
	if _, err := h.Next(); err != nil {
		t.Fatal(err)
	}
	h.Complete(Completion{ID: 3})
	if c, ok, err := g.Soon(time.Hour); c.ID != 3 || !ok || err != nil {
		t.Fatal("an answer that is there: ", c, ok, err)
	}
	g.Stop()
	if _, ok, err := g.Soon(time.Hour); ok || !errors.Is(err, ErrStopped) {
		t.Fatal("after Stop: ", ok, err)
	}
}
