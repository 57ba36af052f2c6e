package store

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"syscall"
	"testing"

	"github.com/ringfence/ringfence/fence"
	"github.com/ringfence/ringfence/segfile"
	"github.com/ringfence/ringfence/segfile/disk/simdisk"
)

// A world is a store with its producers, and what it told them. It lives through
// power cuts, kills and failing writes.
type world struct {
	t      *testing.T
	rng    *rand.Rand
	d      *simdisk.Disk
	s      *Store
	opts   Options
	ranges []*rangeModel
	seen   map[string]int

	unsettled bool // a killed process's names may yet be lost

	lender *lender // of the memory that some producers send from, and scribble over
}

// rangeModel is a range as a control plane and its producers know it.
type rangeModel struct {
	id        fence.RangeID
	segs      []*segModel
	head      *Segment // nil while there is none
	producers []*producerModel
	lost      uint64 // records below this offset were deleted
}

type segModel struct {
	id      fence.SegmentID
	base    uint64
	sealed  *fence.End // what a fence answered
	created bool       // Create answered
	deleted bool       // Delete was called
	gone    bool       // and a start found nothing of it
}

// producerModel sends batches in order, some at a time, and keeps what is not
// acknowledged to send it again.
type producerModel struct {
	source
	lends   bool
	sent    map[uint64][]byte // by sequence
	acked   map[uint64]uint64 // sequence to offset
	again   map[uint64]bool   // acknowledged as stored before
	waiting []*batch          // not acknowledged, in order
	flying  []*flying         // of waiting, the first
}

func newWorld(t *testing.T, seed uint64, seen map[string]int) *world {
	w := &world{t: t, rng: rand.New(rand.NewPCG(seed, 11)), d: newDisk(seed), seen: seen}
	w.opts = testOptions()
	w.opts.SegmentBytes = 256 << 10
	w.opts.Shards = 1 + w.rng.IntN(2)
	w.opts.Flushes = 1 + w.rng.IntN(5)
	w.opts.QueueDepth = 2 + w.rng.IntN(8)
	w.opts.CheckpointBytes = []int64{1, 100 << 10, 8 << 20}[w.rng.IntN(3)]
	w.opts.OverlapBytes = []int64{1, 5000, 64 << 10}[w.rng.IntN(3)]
	for i := range uint32(1 + w.rng.IntN(2)) {
		r := &rangeModel{id: segID(i, 0).Range}
		for j := range 1 + w.rng.IntN(3) {
			r.producers = append(r.producers, &producerModel{
				source: source{id: uint64(10*i) + uint64(j) + 1}, lends: w.rng.IntN(2) == 0,
				sent: map[uint64][]byte{}, acked: map[uint64]uint64{}, again: map[uint64]bool{},
			})
		}
		w.ranges = append(w.ranges, r)
	}
	w.lender = newLender(t, seed, 64)
	w.open()
	return w
}

func (w *world) open() *Recovery {
	w.t.Helper()
	s, rec, err := Open(w.d, w.opts, nil)
	if err != nil {
		w.t.Fatalf("open: %v", err)
	}
	w.s = s
	_, err = w.d.Register(w.lender.mem)
	must(w.t, err)
	w.d.Fail(func(simdisk.Event) error { // anything that happens on the disk is a moment to scribble
		if w.lender.rng.IntN(100) == 0 {
			w.lender.scribble()
		}
		return nil
	})
	return rec
}

// roll fences the head, if there is one, and opens its successor.
func (w *world) roll(r *rangeModel) {
	var table *segfile.ProducerTable
	base := uint64(0)
	if n := len(r.segs); n > 0 {
		last := r.segs[n-1]
		seg, err := w.s.Segment(last.id)
		if err != nil {
			return // its birth was not answered
		}
		end, err := seg.Fence()
		if err != nil {
			w.seen["fence failed"]++
			return
		}
		if last.sealed != nil && *last.sealed != end {
			w.t.Fatalf("%v answered %+v, and then %+v", last.id, *last.sealed, end)
		}
		last.sealed = &end
		table, err = seg.Producers()
		must(w.t, err)
		table, base = table.Clone(), end.Offset
	}
	m := &segModel{id: fence.SegmentID{Range: r.id, Seq: uint32(len(r.segs))}, base: base}
	r.head = nil
	seg, err := w.s.Create(w.t.Context(), metaOf(m.id, base), table)
	if err != nil {
		w.seen["birth failed"]++
		if !w.d.Cut() {
			return // nothing under its name: it is made again
		}
	}
	r.segs = append(r.segs, m)
	if err == nil {
		m.created, r.head = true, seg
	}
}

// send hands the head what waits, up to four batches of a producer at a time.
func (w *world) send(r *rangeModel, p *producerModel) {
	if r.head == nil {
		return
	}
	if len(p.waiting) == len(p.flying) {
		size := []int{50, 700, 4096 - 300, 9000, 40_000}[w.rng.IntN(5)]
		b := p.next(w.rng, 1+w.rng.IntN(4), w.rng.IntN(size))
		for i, v := range b.values {
			p.sent[b.first+uint64(i)] = v
		}
		p.waiting = append(p.waiting, b)
	}
	for len(p.flying) < min(4, len(p.waiting)) {
		to := send
		if p.lends && w.rng.IntN(4) > 0 {
			to = w.lender.lend
		}
		f, err := to(w.t, r.head, p.waiting[len(p.flying)])
		if err != nil {
			return
		}
		p.flying = append(p.flying, f)
		if w.rng.IntN(2) == 0 {
			return
		}
	}
}

// collect takes the answers that are there, or waits for them.
func (w *world) collect(r *rangeModel, p *producerModel, wait bool) {
	var failed *Segment
	for len(p.flying) > 0 && (wait || p.flying[0].answered()) {
		f := p.flying[0]
		f.wait(w.t)
		p.flying = p.flying[1:]
		switch {
		case f.Err != nil:
			failed = f.seg
			w.seen["refused"]++
			switch {
			case errors.Is(f.Err, ErrChanged):
				w.seen["changed"]++
			case errors.Is(f.Err, ErrGap) && f.seg.Writable():
				w.seen["behind a changed one"]++
			}
		case f.seg == failed:
			w.t.Fatalf("acknowledged behind one that was not: offset %d", f.First)
		default:
			// A repeat may be refused by a copy that fails, and what follows it be taken by
			// the next one.
			at := slices.Index(p.waiting, f.b)
			p.waiting = slices.Delete(p.waiting, at, at+1)
			for i := range f.b.values {
				seq := f.b.first + uint64(i)
				if f.Duplicate {
					p.again[seq] = true
				} else {
					// The end of a batch that was stored in part is what it got offsets for.
					p.acked[seq] = f.Last - (f.b.last() - seq)
					if p.acked[seq] < f.First || f.Last+1 < uint64(len(f.b.values)) {
						delete(p.acked, seq)
						p.again[seq] = true
					}
				}
			}
			if f.Duplicate {
				w.seen["repeat"]++
			}
		}
		if failed != nil && !wait {
			wait = true // the ones behind it are about to be refused, too
		}
	}
	if failed != nil && r.head != nil && !r.head.Writable() {
		w.collectAll(r)
		w.roll(r)
	}
}

func (w *world) collectAll(r *rangeModel) {
	for _, p := range r.producers {
		head := r.head
		r.head = nil // no roll from within
		w.collect(r, p, true)
		r.head = head
	}
}

// trim deletes a range's oldest segment. The file goes when nobody uses it any
// more, so a crash may bring the segment back, whole.
func (w *world) trim(r *rangeModel) {
	for _, m := range r.segs[:max(len(r.segs), 1)-1] {
		if m.gone {
			continue
		}
		if m.sealed == nil {
			return
		}
		m.deleted = true
		r.lost = max(r.lost, m.sealed.Offset)
		if w.s.Delete(m.id) == nil {
			w.seen["deleted"]++
			return
		}
	}
}

// step does one thing.
func (w *world) step() {
	r := w.ranges[w.rng.IntN(len(w.ranges))]
	p := r.producers[w.rng.IntN(len(r.producers))]
	switch n := w.rng.IntN(40); {
	case r.head == nil:
		w.collectAll(r)
		w.roll(r)
	case n == 0:
		w.roll(r)
	case n == 1:
		w.trim(r)
	case n < 26:
		w.send(r, p)
	case n < 34:
		w.collect(r, p, false)
	default:
		w.collect(r, p, true)
	}
}

// fill leaves little space on the disk, or gives it back.
func (w *world) fill(full bool) {
	if !full {
		w.d.SetCapacity(1 << 40)
		return
	}
	total, free, err := w.d.Space()
	if err != nil {
		return // the power is cut
	}
	w.d.SetCapacity(int64(total-free) + int64(w.rng.IntN(40))*4096)
	w.seen["filled"]++
}

// note remembers what the pool did.
func (w *world) note() {
	st := w.s.pool.Stats()
	w.seen["recycled"] += int(st.Recycled)
	w.seen["prepared"] += int(st.Prepared)
}

// end is the machine's or the process's: what was answered until now counts.
func (w *world) end() (killed bool) {
	for _, r := range w.ranges {
		head := r.head
		r.head = nil
		for _, p := range r.producers {
			w.collect(r, p, false)
		}
		r.head = head
	}
	w.note()
	old, s := w.d, w.s
	if !old.Cut() {
		old.CutAfter(-1)
	}
	if killed = w.rng.IntN(4) == 0 && !old.Cut(); killed {
		w.seen["kill"]++
		w.unsettled = true
		w.d = old.Kill()
		abandon(s)
	} else {
		w.unsettled = false
		w.d = old.Crash(w.rng)
		if err := s.Close(); err != nil && !old.Cut() {
			w.t.Errorf("close: %v", err)
		}
		if n := old.Arena().InUse(); n != 0 {
			w.t.Errorf("%d bytes of the arena are in use after the end", n)
		}
		must(w.t, old.Arena().Check())
	}
	must(w.t, w.d.Check())
	w.lender = newLender(w.t, w.rng.Uint64(), 64) // with the process, what was on its way has ended
	for _, r := range w.ranges {
		r.head = nil
		for _, p := range r.producers {
			p.flying = nil
		}
	}
	return killed
}

// abandon ends a store's goroutines as the death of its process does: nothing is
// answered any more.
func abandon(s *Store) {
	close(s.quit)
	s.stopPool()
	s.tasks.Wait()
	for _, sh := range s.shards {
		close(sh.quit)
		<-sh.gone
	}
}

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

// Whatever power cuts, kills and failed writes do: every acknowledged record is
// there once, at its offset, in order; nothing is there that was never sent; a fence
// that was answered holds; deleted segments stay away; and the second start has
// nothing to do. (A01 to A05, A07, A09, A10, C01, C04, D05, G06)
func TestPowerCuts(t *testing.T) {
	seen := map[string]int{}
	var mu sync.Mutex
	for seed := range seeds(100) {
		ok := t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			mine := map[string]int{}
			w := newWorld(t, seed, mine)
			for round := range 3 {
				var fault *simdisk.Fault
				if w.rng.IntN(3) == 0 {
					n := 1 + w.rng.IntN(30)
					bad := []error{syscall.EIO, syscall.ENOSPC, simdisk.Short(4096)}[w.rng.IntN(3)]
					fault = w.d.Fail(simdisk.Nth(n, bad, simdisk.OnFile("topics/", simdisk.Write)))
				}
				if w.rng.IntN(2) == 0 {
					w.d.CutAfter(w.rng.IntN(60))
				}
				for range 10 + w.rng.IntN(60) {
					switch w.rng.IntN(60) {
					case 0:
						w.fill(true)
					case 1:
						w.fill(false)
						w.s.lookAtSpace()
					}
					w.step()
					if fault != nil && fault.ErrorCount() > 0 {
						w.s.full.Store(false) // the test does not wait for the next look
					}
					if w.d.Cut() {
						break
					}
				}
				if w.d.Cut() {
					mine["cut"]++
				}
				if fault != nil {
					mine["fault"] += fault.ErrorCount()
					fault.Stop()
				}
				w.reopened(w.end())
				if t.Failed() {
					t.Fatalf("in round %d", round)
				}
			}
			w.finish()
			mu.Lock()
			for k, n := range mine {
				seen[k] += n
			}
			mu.Unlock()
		})
		if !ok {
			break
		}
	}
	for _, what := range []string{"cut", "kill", "fault", "repeat", "refused", "torn", "clean", "deleted", "birth failed", "fence failed", "filled", "left open", "recycled", "changed", "behind a changed one", "void"} {
		if seen[what] == 0 {
			t.Errorf("never seen: %s (%v)", what, seen)
		}
	}
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
