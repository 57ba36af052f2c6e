package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/ringfence/ringfence/engine/shm"
)

// The floor of shared memory: the same rings between two processes, with nothing behind
// them but a copy.

var rawGeometry = shm.Geometry{ArenaBytes: 64 << 20, Slots: 1024}

// rawRing shares memory with whoever connects, copies what comes and answers it.
func rawRing(c net.Conn) {
	h, err := shm.Create(shm.Options{Geometry: rawGeometry})
	if err != nil {
		return
	}
	defer h.Close()
	if shm.Send(c.(*net.UnixConn), []byte{1}, h.File()) != nil {
		return
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		own := make([]byte, 1<<20)
		for {
			s, err := h.Next()
			if err != nil {
				return
			}
			copy(own, h.Bytes(s))
			h.Complete(shm.Completion{ID: s.ID})
		}
	}()
	_, _ = io.Copy(io.Discard, c) // until the other side is done
	h.Stop()
	<-served
}

// ringRate submits frames of size bytes, window of them at a time, for a while: how many
// there were in a second, and how long one took where the window is 1.
func ringRate(ctx context.Context, path string, size, window int, seconds float64) (rate float64, l Latency, err error) {
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return 0, l, fmt.Errorf("bench: %w", err)
	}
	defer c.Close()
	r := &shm.Receiver{UnixConn: c}
	if _, err := r.Read(make([]byte, 1)); err != nil {
		return 0, l, fmt.Errorf("bench: %w", err)
	}
	f := r.File()
	if f == nil {
		return 0, l, errors.New("bench: no memory came along")
	}
	g, err := shm.Attach(f, rawGeometry, 0)
	if err != nil {
		return 0, l, err
	}
	defer g.Close()
	blocks := make([][]byte, window)
	for i := range blocks {
		blocks[i], _ = g.Arena().Alloc(size)
	}
	text := benchText()[:size]
	rec := NewRecorder()
	start := time.Now()
	end := start.Add(time.Duration(seconds * float64(time.Second)))
	sent, seen := 0, 0
	for more := true; more || seen < sent; {
		for more && sent-seen < window {
			b := blocks[sent%window]
			copy(b, text)
			g.Submit(uint32(sent), 0, b)
			sent++
		}
		g.Ring()
		from := time.Now()
		if _, err := g.Next(); err != nil {
			return 0, l, err
		}
		if seen++; window == 1 {
			rec.Record(time.Since(from))
		}
		if more && seen%16 == 0 {
			more = time.Now().Before(end) && ctx.Err() == nil
		}
	}
	return float64(seen) / time.Since(start).Seconds(), rec.Latency(), ctx.Err()
}
