package store

import (
	"errors"
	"io/fs"
	"math/rand/v2"
	"sync"
	"syscall"
	"testing"

	"github.com/ringfence/ringfence/segfile/disk/simdisk"
)

// A segment whose birth fails at any step leaves nothing under its name and can be
// born again.
func TestCreateThatFails(t *testing.T) {
	actions := []simdisk.Action{simdisk.Create, simdisk.Write, simdisk.Rename, simdisk.SyncDir, simdisk.Mkdir, simdisk.Open}
	failed := 0
	for _, action := range actions {
		for nth := range 3 {
			rng := rand.New(rand.NewPCG(uint64(nth), 5))
			d := newDisk(uint64(nth))
			s, _ := openStore(t, d, testOptions())
			n := 0
			fault := d.Fail(func(e simdisk.Event) error {
				if e.Action == action {
					if n++; n == nth+1 {
						return syscall.EIO
					}
				}
				return nil
			})
			seg, err := s.Create(t.Context(), metaOf(segID(0, 0), 10), nil)
			fault.Stop()
			if err != nil {
				failed += fault.ErrorCount()
				if _, err := s.Segment(segID(0, 0)); !errors.Is(err, ErrNoSegment) {
					t.Fatalf("%s %d: a segment that was not born: %v", action, nth, err)
				}
				seg = newSegment(t, s, segID(0, 0), 10, nil)
			}
			b := (&source{id: 7}).next(rng, 2, 100)
			put(t, seg, b)
			s2, _ := openStore(t, d.Crash(rng), testOptions())
			seg2, err := s2.Segment(segID(0, 0))
			must(t, err)
			holds(t, seg2, b)
			closeStore(t, s2)
			closeStore(t, s)
		}
	}
	if failed < 4 {
		t.Fatalf("%d births failed", failed)
	}
}

// Two callers that create one segment get one.
func TestCreateOnce(t *testing.T) {
	s, _ := openStore(t, newDisk(1), testOptions())
	var g sync.WaitGroup
	var mu sync.Mutex
	var made []*Segment
	for range 8 {
		g.Go(func() {
			if seg, err := s.Create(t.Context(), metaOf(segID(0, 0), 0), nil); err == nil {
				mu.Lock()
				made = append(made, seg)
				mu.Unlock()
			}
		})
	}
	g.Wait()
	seg, err := s.Segment(segID(0, 0))
	if err != nil || len(made) != 1 || made[0] != seg {
		t.Fatalf("%d segments of one id: %v", len(made), err)
	}
	if _, err := s.Create(t.Context(), metaOf(segID(0, 0), 0), nil); err == nil {
		t.Fatal("made a second time")
	}
	must(t, s.bear(segID(0, 1)))
	if _, err := s.Create(t.Context(), metaOf(segID(0, 1), 0), nil); !errors.Is(err, fs.ErrExist) {
		t.Fatalf("made twice at once: %v", err)
	}
	s.born(segID(0, 1))
	newSegment(t, s, segID(0, 1), 0, nil)
}

// C04: nothing is acknowledged in a file whose name, or that of a directory above
// it, is not durable; C01: the durable write ends before the answer.
func TestC04NamesAreDurableBeforeTheFirstAnswer(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 10))
	d := newDisk(1)
	s, _ := openStore(t, d, testOptions())
	for i := range uint32(3) {
		seg := newSegment(t, s, segID(i, 0), 0, nil)
		arena := s.Disk().Arena()
		b := (&source{id: 7}).next(rng, 1, 100)
		a := &Append{Frame: b.frame(t, arena)}
		done := make(chan []string)
		a.Done = func(a *Append) {
			d.Note("answered " + seg.File())
			done <- d.Unsynced()
		}
		must(t, seg.Append(a))
		if left := <-done; len(left) > 0 {
			t.Fatalf("answered while a crash could undo %v", left)
		}
		arena.Free(a.Frame)
		at := -1 // of the durable write
		for i, e := range d.Trace() {
			switch {
			case appendWrite(e) && e.Name == seg.File() && e.Durable && e.Err == nil:
				at = i
			case e.Action == simdisk.Note && e.Name == "answered "+seg.File() && at < 0:
				t.Fatal("answered before the write")
			}
		}
		if at < 0 {
			t.Fatal("there was no durable write")
		}
	}
}
