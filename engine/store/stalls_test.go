package store

import (
	"log/slog"
	"math/rand/v2"
	"testing"

	"github.com/ringfence/ringfence/segfile/disk/simdisk"
)

// A write that the disk keeps is told of, once two looks have found it, and so is its end.
func TestStalledWriteIsTold(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 3))
	d := newDisk(1)
	o := testOptions()
	var log told
	o.Logger = slog.New(slog.NewTextHandler(&log, nil))
	s, _ := openStore(t, d, o)
	seg, other := newSegment(t, s, segID(0, 0), 0, nil), newSegment(t, s, segID(1, 0), 0, nil)
	p, q := &source{id: 1}, &source{id: 2}
	look := func(stalled, told int) {
		t.Helper()
		put(t, other, q.next(rng, 1, 10)) // the disk answers others
		s.lookForStalls()
		if n := s.Stats().Stalled; n != stalled || log.count("not answered") != told {
			t.Fatalf("%d segments stalled, told %d times, want %d and %d", n, log.count("not answered"), stalled, told)
		}
	}
	put(t, seg, p.next(rng, 1, 10))
	look(0, 0)
	hold := d.Hold(func(e simdisk.Event) bool { return appendWrite(e) && e.Name == seg.File() })
	f, err := send(t, seg, p.next(rng, 1, 10))
	must(t, err)
	eventually(t, "the write", func() bool { return hold.Count() == 1 })
	look(0, 0) // it may just have come
	look(1, 1)
	look(1, 1)
	hold.Release()
	f.wait(t)
	must(t, f.Err)
	look(0, 1)
	if log.count("answers again") != 1 {
		t.Error("its end was not told")
	}
}
