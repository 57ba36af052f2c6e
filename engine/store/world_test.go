package store

import (
	"errors"
	"math/rand/v2"
	"slices"
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

	late  bool          // some writes end only when somebody waits for them
	hold  *simdisk.Hold // those
	aloft int           // bytes that are not answered
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

// lent is how many frames may be in the lender's memory: each producer's in flight.
const lent = 2 * 3 * 12

func newWorld(t *testing.T, seed uint64, late bool, seen map[string]int) *world {
	w := &world{t: t, rng: rand.New(rand.NewPCG(seed, 11)), d: newDisk(seed), late: late, seen: seen}
	w.opts = testOptions()
	w.opts.SegmentBytes = 256 << 10
	w.opts.Shards = 1 + w.rng.IntN(2)
	w.opts.Flushes = 1 + w.rng.IntN(5)
	w.opts.QueueDepth = 2 + w.rng.IntN(8)
	w.opts.CheckpointBytes = []int64{1, 100 << 10, 8 << 20}[w.rng.IntN(3)]
	w.opts.OverlapBytes = []int64{1, 5000, 64 << 10}[w.rng.IntN(3)]
	if late {
		w.opts.SegmentBytes = 8 << 20
		w.opts.Flushes = 2 + w.rng.IntN(15)
		w.opts.QueueDepth = 4 + w.rng.IntN(29)
	}
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
	w.lender = newLender(t, seed, lent)
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
	if len(r.segs) == 0 {
		w.release()
	}
	if n := len(r.segs); n > 0 {
		last := r.segs[n-1]
		seg, err := w.s.Segment(last.id)
		if err != nil {
			return // its birth was not answered
		}
		w.fenceBehind(seg)
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
		if w.late && w.rng.IntN(4) == 0 {
			size = 240_000
		}
		b := p.next(w.rng, 1+w.rng.IntN(4), w.rng.IntN(size))
		for i, v := range b.values {
			p.sent[b.first+uint64(i)] = v
		}
		p.waiting = append(p.waiting, b)
	}
	most := 4
	if w.late {
		most = 12
	}
	for len(p.flying) < min(most, len(p.waiting)) {
		if w.aloft > 12<<20 {
			return // of the arena
		}
		to := send
		if p.lends && w.rng.IntN(4) > 0 {
			to = w.lender.lend
		}
		f, err := to(w.t, r.head, p.waiting[len(p.flying)])
		if err != nil {
			return
		}
		p.flying = append(p.flying, f)
		f.size = len(f.Frame)
		w.aloft += f.size
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
		if !f.answered() {
			w.release()
		}
		f.wait(w.t)
		p.flying = p.flying[1:]
		w.aloft -= f.size
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
	w.delay(r)
	switch n := w.rng.IntN(40); {
	case r.head == nil:
		w.collectAll(r)
		w.roll(r)
	case n == 0 && w.late && w.hold == nil && w.rng.IntN(2) == 0: // files are larger, too
	case n == 0:
		w.roll(r)
	case n == 1:
		w.trim(r)
	case n < 26:
		w.send(r, p)
	case n < 34 || w.hold != nil && n < 39:
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

// prove looks for quiet segments, twice, so that those which are quiet are found to be.
func (w *world) prove() {
	w.s.proveQuiet()
	w.s.proveQuiet()
	for _, r := range w.ranges {
		if h := r.head; h != nil {
			h.shard.mu.Lock()
			if h.proved > 0 && h.proved == h.durable.Load() {
				w.seen["quiet"]++
			}
			h.shard.mu.Unlock()
		}
	}
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
	gap := w.hold != nil && w.gaps()
	if killed = w.rng.IntN(4) == 0 && !old.Cut(); killed {
		w.seen["kill"]++
		if gap {
			w.seen["kill behind a late one"]++
		}
		w.unsettled = true
		w.d = old.Kill()
		w.release()
		abandon(s)
	} else {
		w.unsettled = false
		if gap {
			w.seen["cut behind a late one"]++
		}
		w.d = old.Crash(w.rng)
		w.release()
		if err := s.Close(); err != nil && !old.Cut() {
			w.t.Errorf("close: %v", err)
		}
		if n := old.Arena().InUse(); n != 0 {
			w.t.Errorf("%d bytes of the arena are in use after the end", n)
		}
		must(w.t, old.Arena().Check())
	}
	must(w.t, w.d.Check())
	w.lender = newLender(w.t, w.rng.Uint64(), lent) // with the process, what was on its way has ended
	for _, r := range w.ranges {
		r.head = nil
		for _, p := range r.producers {
			p.flying = nil
		}
	}
	w.aloft = 0
	return killed
}
