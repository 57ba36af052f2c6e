//go:build !race

package record

import (
	"math/rand/v2"
	"sync/atomic"
	"testing"
)

// I03: a process that changes a frame while it is verified gets it rejected, or an
// answer that is wrong about its own records; never a panic. The races are the
// test, so the race detector has no say here.
func TestI03MemoryThatChanges(t *testing.T) {
	frame := mustBuild(t, 1, 0, append(variety(), variety2()...))
	var stop, spin atomic.Bool
	done := make(chan struct{})
	go func() {
		defer close(done)
		rng := rand.New(rand.NewPCG(3, 3))
		for !stop.Load() {
			at := rng.IntN(len(frame))
			old := frame[at]
			frame[at] = byte(rng.Uint32())
			for range rng.IntN(100) {
				spin.Load() // let the change be seen for a while
			}
			frame[at] = old
			for range rng.IntN(100) {
				spin.Load()
			}
		}
	}()
	accepted, rejected := 0, 0
	for n := 0; n < 100_000 || (rejected == 0 || accepted == 0) && n < 20_000_000; n++ {
		// The checksums seldom let a change through: go straight for the walk.
		h, err := ParseHead(frame, 0)
		b := Batch{Head: h}
		if err == nil {
			b.columns, err = locate(frame[HeaderSize:])
		}
		if err == nil {
			_, err = b.walk()
		}
		if err == nil {
			_, err = Verify(frame, 0, nil)
		}
		if err == nil {
			header := [HeaderSize]byte(frame)
			_, err = VerifyShared(header[:], frame, 0)
		}
		if err != nil {
			rejected++
		} else {
			accepted++
		}
	}
	stop.Store(true)
	<-done
	if rejected == 0 || accepted == 0 {
		t.Errorf("%d rejected, %d accepted", rejected, accepted)
	}
}

// variety2 follows variety.
func variety2() []sequenced {
	return consecutive(4000, benchRecords(100, 50)...)
}
