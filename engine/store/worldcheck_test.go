package store

import (
	"bytes"
	"errors"
	"io"
	"maps"
	"slices"
	"syscall"

	"github.com/ringfence/ringfence/fence"
	"github.com/ringfence/ringfence/segfile"
	"github.com/ringfence/ringfence/segfile/disk/simdisk"
)

// reopened checks everything that a store must still know, twice, and that the
// second start has nothing left to do.
func (w *world) reopened(killed bool) {
	rec := w.open()
	for _, v := range rec.Recovered {
		w.seen[v.Verdict.State.String()]++
	}
	w.fill(false)
	w.s.lookAtSpace()
	for _, v := range rec.Unfenced { // there was no space for the fence
		w.seen["left open"]++
		seg, err := w.s.Segment(v.ID)
		must(w.t, err)
		w.whole(seg, v.End.Offset)
		if end, err := seg.Fence(); err != nil || end != v.End {
			w.t.Fatalf("%v was left open at %+v and is fenced at %+v: %v", v.ID, v.End, end, err)
		}
	}
	if len(rec.Damaged)+len(rec.Unknown)+len(rec.Faulty) > 0 {
		w.t.Fatalf("recovery: damaged %v, unknown %v, faulty %v", rec.Damaged, rec.Unknown, rec.Faulty)
	}
	ends := w.check()
	closeStore(w.t, w.s)
	// The power goes once more: a fence is for good. What a killed process wrote may
	// be seen by the first start and still be lost; then the second has work to do,
	// and comes to the same.
	if w.rng.IntN(2) == 0 {
		w.unsettled = false
		w.d = w.d.Crash(w.rng)
	} else {
		w.d = w.d.Reopen()
	}
	before := w.d.Counts().BytesWritten
	rec = w.open()
	if len(rec.Damaged)+len(rec.Unknown) > 0 || !killed && rec.Fenced != len(ends) {
		w.t.Fatalf("the second start: %+v", rec)
	}
	if n := w.d.Counts().BytesWritten - before; n != 0 && !killed {
		w.t.Fatalf("the second start wrote %d bytes", n)
	}
	if now := w.check(); !maps.Equal(now, ends) {
		w.t.Fatalf("ends %v, and at the second start %v", ends, now)
	}
}

// cutStarts makes some starts during which the power goes, or a write fails.
func (w *world) cutStarts() {
	for w.rng.IntN(3) > 0 {
		w.d.CutAfter(w.rng.IntN(25))
		var fault *simdisk.Fault
		if w.rng.IntN(3) == 0 {
			bad := []error{syscall.EIO, syscall.ENOSPC}[w.rng.IntN(2)]
			fault = w.d.Fail(simdisk.Nth(1+w.rng.IntN(10), bad, simdisk.On(simdisk.Write)))
		}
		s, _, err := Open(w.d, w.opts, nil)
		switch {
		case err == nil:
			s.Close() // an error, once the power is gone
		case !w.d.Cut() && (fault == nil || fault.ErrorCount() == 0):
			w.t.Fatalf("open: %v", err)
		}
		if w.d.Cut() {
			w.seen["cut in a start"]++
		}
		if fault != nil {
			w.seen["fault in a start"] += fault.ErrorCount()
			fault.Stop()
		}
		w.d = w.d.Crash(w.rng)
		w.unsettled = false
		must(w.t, w.d.Check())
	}
}

// whole reads a segment, in which every offset up to end is that of a record or void.
func (w *world) whole(seg *Segment, end uint64) (items []item) {
	w.t.Helper()
	sc, err := seg.Scan(seg.Base())
	must(w.t, err)
	defer sc.Close()
	next := seg.Base()
	for {
		b, err := sc.Next()
		if skip, ok := sc.Skipped(); ok {
			if skip.From != next || skip.Damaged {
				w.t.Fatalf("%v: skips %+v at offset %d", seg.ID(), skip, next)
			}
			next += skip.Offsets
			w.seen["void"]++
		}
		if errors.Is(err, io.EOF) {
			break
		}
		must(w.t, err)
		if b.Head.Base != next {
			w.t.Fatalf("%v: a batch at offset %d, want %d", seg.ID(), b.Head.Base, next)
		}
		next = b.Head.Next()
		got, err := itemsOf(b)
		must(w.t, err)
		items = append(items, got...)
	}
	if next != end {
		w.t.Fatalf("%v: reads up to %d, want %d", seg.ID(), next, end)
	}
	return items
}

// check reads everything and holds it against what was answered.
func (w *world) check() map[fence.SegmentID]fence.End {
	w.t.Helper()
	ends := map[fence.SegmentID]fence.End{}
	known := map[fence.SegmentID]bool{}
	for _, r := range w.ranges {
		next, first := uint64(0), true
		last := map[uint64]uint64{} // sequences, by producer
		where := map[uint64]map[uint64]uint64{}
		for i, m := range r.segs {
			known[m.id] = true
			seg, err := w.s.Segment(m.id)
			if err != nil {
				if m.created && !m.deleted {
					w.t.Fatalf("%v is gone: %v", m.id, err)
				}
				if !m.created && i != len(r.segs)-1 {
					w.t.Fatalf("%v was not born, and has successors", m.id)
				}
				m.gone, first = m.created && !w.unsettled, true
				continue
			}
			if m.gone {
				w.t.Fatalf("%v is back", m.id)
			}
			m.created = true
			end, ok := seg.Fenced()
			if !ok {
				w.t.Fatalf("%v is open after a start", m.id)
			}
			if m.sealed != nil && *m.sealed != end {
				w.t.Fatalf("%v was fenced at %+v and is at %+v", m.id, *m.sealed, end)
			}
			m.sealed = &end
			ends[m.id] = end
			if seg.Base() != m.base || !first && seg.Base() != next {
				w.t.Fatalf("%v starts at %d, the one before ends at %d", m.id, seg.Base(), next)
			}
			next, first = end.Offset, false
			items := w.whole(seg, end.Offset)
			for _, it := range items {
				at := slices.IndexFunc(r.producers, func(p *producerModel) bool { return p.id == it.producer })
				if at < 0 || !bytes.Equal(r.producers[at].sent[it.seq], it.value) {
					w.t.Fatalf("%v: the record at offset %d was never sent", m.id, it.offset)
				}
				if it.seq <= last[it.producer] {
					w.t.Fatalf("%v: producer %d: sequence %d at offset %d, behind %d", m.id, it.producer, it.seq, it.offset, last[it.producer])
				}
				last[it.producer] = it.seq
				if where[it.producer] == nil {
					where[it.producer] = map[uint64]uint64{}
				}
				where[it.producer][it.seq] = it.offset
			}
		}
		for _, p := range r.producers {
			for seq, offset := range p.acked {
				have, ok := where[p.id][seq]
				if offset >= r.lost && !ok || ok && have != offset {
					w.t.Fatalf("%v: producer %d: sequence %d was acknowledged at offset %d and is at %d, %v", r.id, p.id, seq, offset, have, ok)
				}
			}
			for seq := range p.again {
				if _, ok := where[p.id][seq]; !ok && r.lost == 0 {
					w.t.Fatalf("%v: producer %d: sequence %d was acknowledged as stored and is not there", r.id, p.id, seq)
				}
			}
		}
	}
	for _, id := range w.s.IDs() {
		if !known[id] {
			w.t.Fatalf("%v comes from nowhere", id)
		}
	}
	// A segment whose birth nobody heard of may be made again.
	for _, r := range w.ranges {
		if n := len(r.segs); n > 0 && !r.segs[n-1].created {
			r.segs = r.segs[:n-1]
		}
	}
	return ends
}

// finish sends everything that is left and reads all of it.
func (w *world) finish() {
	for _, r := range w.ranges {
		for tries := 0; ; tries++ {
			left := false
			for _, p := range r.producers {
				if len(p.waiting) > 0 {
					left = true
					if r.head == nil {
						w.roll(r)
					}
					w.send(r, p)
					w.collect(r, p, true)
				}
			}
			if !left {
				break
			}
			if tries > 1000 {
				w.t.Fatal("there is no end to what waits")
			}
		}
		w.roll(r)
		for _, p := range r.producers {
			if uint64(len(p.acked)+len(p.again)) != p.seq {
				w.t.Fatalf("producer %d: %d records sent, %d acknowledged", p.id, p.seq, len(p.acked)+len(p.again))
			}
		}
	}
	closeStore(w.t, w.s)
	w.d = w.d.Reopen()
	w.open()
	w.check()
	for _, id := range w.s.IDs() {
		sound(w.t, w.d, segfile.Name(id))
	}
	closeStore(w.t, w.s)
}
