package segfile

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/ringfence/ringfence/fence"
	"github.com/ringfence/ringfence/segfile/disk/simdisk"
	"github.com/ringfence/ringfence/segfile/record"
)

// A table takes batches back that turn out void, whatever came behind them, and is then
// byte for byte the one that never saw them: also when it forgets producers, and where
// their slices came unequally far.
func TestTableWithoutVoid(t *testing.T) {
	evicted, joined := 0, 0
	for seed := range seeds(300) {
		rng := rand.New(rand.NewPCG(seed, 71))
		table, want := NewProducerTable(0, 1<<32), NewProducerTable(0, 1<<32)
		if rng.IntN(2) == 0 {
			a, b := NewProducerTable(0, 1<<31), NewProducerTable(1<<31, 1<<32)
			for id := range uint64(4) {
				a.Update(&record.Head{Producer: id, FirstSeq: 1, LastSeq: 1 + id})
				b.Update(&record.Head{Producer: id, FirstSeq: 1, LastSeq: 2, MinPos: 1 << 31, MaxPos: 1 << 31})
			}
			table, want = MergeTables(a, b), MergeTables(a, b)
		}
		table.limit = 3 + rng.IntN(6)
		want.limit = table.limit
		table.evict()
		want.evict()
		var heads []record.Head
		base := uint64(0)
		for range 1 + rng.IntN(20) {
			h := record.Head{Producer: rng.Uint64N(8), FirstSeq: base + 1, LastSeq: base + 3, Count: 3, Base: base, MaxTime: int64(rng.IntN(9)), MaxPos: rng.Uint32()}
			if rng.IntN(5) == 0 {
				h.FirstSeq, h.LastSeq = 0, 0
			}
			base += 3
			heads = append(heads, h)
		}
		from := rng.IntN(len(heads))
		void := map[uint64]*record.Head{}
		for i := range heads {
			h := &heads[i]
			if i == from {
				table.keeping = true
			}
			before, slices := len(table.producers), table.Len()
			fresh := h.FirstSeq != 0 && table.producers[h.Producer] == nil
			table.Update(h)
			if fresh && len(table.producers) <= before {
				evicted++
			}
			if table.Len() < slices {
				joined++
			}
			if rng.IntN(3) == 0 {
				table.Update(h) // as a flush that is planned does
			}
			if i >= from && rng.IntN(3) == 0 {
				void[h.Base] = h
			} else {
				want.Update(h)
			}
		}
		table.void(void)
		a, _ := table.AppendBinary(nil)
		b, _ := want.AppendBinary(nil)
		if !bytes.Equal(a, b) {
			t.Fatalf("seed %d: %d of %d batches void: the table differs", seed, len(void), len(heads)-from)
		}
		must(t, table.Check())
	}
	if evicted == 0 || joined == 0 {
		t.Errorf("%d producers were forgotten and %d slices joined: the test does not test it", evicted, joined)
	}
}

// voider writes frames of which some turn void, as a store does: the void ones and what
// their producers sent behind them are overwritten, the last first.
type voider struct {
	*testing.T
	rng    *rand.Rand
	w      *Writer
	from   []*producerModel
	want   []sent // durable and acknowledged, void or not
	flying []flying
	voids  int
}

// flying are the frames of a flush that was written and is not acknowledged.
type flying struct {
	pos    int64
	b      []byte
	frames []sent
}

// round plans flushes, writes them, and makes some frames void. A power cut ends it.
func (v *voider) round() error {
	w := v.w
	durable := w.Position()
	v.flying = nil
	for range 1 + v.rng.IntN(5) {
		var frames [][]byte
		for range 1 + v.rng.IntN(3) {
			frames = append(frames, v.from[v.rng.IntN(len(v.from))].frame(v.rng, 1+v.rng.IntN(4), v.rng.IntN(5000)))
		}
		pos := w.Position()
		b, heads := flush(w, durable, frames...)
		w.Doubt(heads[len(heads)-1].Next())
		for i := range heads {
			w.Table().Update(&heads[i])
		}
		w.Advance(pos, int64(len(b)), heads)
		fl, at := flying{pos: pos, b: b}, int64(0)
		for i := range heads {
			fl.frames = append(fl.frames, sent{pos + at, b[at : at+int64(heads[i].FrameLen)], heads[i]})
			at += alignFrame(int64(heads[i].FrameLen))
		}
		v.flying = append(v.flying, fl)
		if v.rng.IntN(6) == 0 {
			buf := make([]byte, w.CheckpointSize())
			pos := w.Position()
			c, head, err := w.Checkpoint(buf, durable)
			must(v, err)
			w.Advance(pos, int64(len(c)), []record.Head{head})
			if err := w.File().WriteAt(c, pos); err != nil {
				return err
			}
		}
	}
	changed := v.rng.IntN(3) == 0
	victim := v.rng.IntN(len(v.flying))
	for i, fl := range v.flying {
		b := bytes.Clone(fl.b)
		if changed && i == victim && v.rng.IntN(2) == 0 {
			b[record.HeaderSize+v.rng.IntN(int(fl.frames[0].head.PayloadLen))] ^= 1 // else only in memory, when the disk had it
		}
		if err := w.File().WriteAt(b, fl.pos); err != nil {
			return err
		}
	}
	if changed {
		if err := v.void(victim); err != nil {
			return err
		}
	}
	w.Sure(w.NextOffset())
	if w.Doubting() || len(w.doubt.frames)+len(w.tally.table.kept) > 0 {
		v.Fatal("there is doubt about what is durable")
	}
	for _, fl := range v.flying {
		v.want = append(v.want, fl.frames...)
	}
	if w.PointerDue(w.Position()) {
		buf := make([]byte, block)
		pos, err := w.Pointer(buf, w.Position())
		must(v, err)
		return w.File().WriteAt(buf, pos)
	}
	return nil
}

// void makes the first frame of a flush void.
func (v *voider) void(victim int) error {
	bad := v.flying[victim].frames[0].head
	var heads []record.Head
	for _, fl := range v.flying[victim:] {
		for _, f := range fl.frames {
			if f.head.Producer == bad.Producer {
				heads = append(heads, f.head)
			}
		}
	}
	void := v.w.Void(heads)
	v.voids += len(void)
	for i := len(v.flying) - 1; i >= victim; i-- {
		fl, hit := &v.flying[i], false
		for j := range fl.frames {
			f := &fl.frames[j]
			if k := slices.IndexFunc(void, func(h record.Head) bool { return h.Base == f.head.Base }); k >= 0 {
				clear(f.frame)
				f.head = void[k]
				f.head.Put(f.frame, v.w.Meta().Salt)
				hit = true
			}
		}
		if hit {
			if err := v.w.File().WriteAt(fl.b, fl.pos); err != nil {
				return err
			}
		}
	}
	for _, p := range v.from {
		if p.id == bad.Producer {
			p.seq = bad.PrevSeq // it sends them again
		}
	}
	return nil
}

// Wherever the power goes off while frames turn void, recovery finds what was
// acknowledged as it was, void frames where those are durable, and producers that stand
// where their last record does. Without a power cut the footer is the one that the
// frames give, and what is sent again after it was refused is new.
func TestVoidCrash(t *testing.T) {
	cuts, voids, states := 0, 0, map[State]int{}
	for seed := range seeds(80) {
		rng := rand.New(rand.NewPCG(seed, 72))
		d := newDisk(seed)
		w := create(t, newTestPool(t, d, life(seed%uint64(lives))), testMeta(1))
		w.check.every = 1 << 20
		v := &voider{T: t, rng: rng, w: w}
		for i := range 1 + rng.IntN(3) {
			v.from = append(v.from, &producerModel{id: uint64(100 + i)})
		}
		if rng.IntN(2) == 0 {
			d.CutAfter(rng.IntN(60))
		}
		var err error
		for range 8 {
			if err = v.round(); err != nil {
				break
			}
			v.flying = nil
		}
		voids += v.voids
		d.CutAfter(-1)
		if err != nil && !errors.Is(err, simdisk.ErrPowerCut) {
			t.Fatal(err)
		}
		if err != nil {
			cuts++
		}
		after := d.Crash(rng)
		got := mustRecover(t, after, seg1)
		states[got.State]++
		if got.State != Clean && got.State != Torn {
			t.Fatalf("seed %d: %s: %s %v", seed, got.State, got.Why, got.Faults)
		}
		if got.Start > DataStart {
			sameWithoutCheckpoint(t, after, got)
		}
		v.recovered(seed, after, got)
		if err != nil {
			continue
		}
		fenceNow(t, w)
		if rep := sound(t, d, seg1); rep.Voids != uint64(v.voids) || rep.Frames+rep.Voids != uint64(len(v.want)) || rep.Records+rep.Voided != w.NextOffset()-1000 {
			t.Fatalf("seed %d: %+v, want %d void", seed, rep, v.voids)
		}
		holds(t, d, seg1, v.want)
	}
	if cuts < 10 || voids < 40 || states[Torn] == 0 || states[Clean] == 0 {
		t.Errorf("%d power cuts, %d void frames, states %v: the test does not test it", cuts, voids, states)
	}
}

// recovered holds a recovered file to what was acknowledged, and its table to its frames.
func (v *voider) recovered(seed uint64, d *simdisk.Disk, got *Verdict) {
	v.Helper()
	if _, err := got.Fence(testNow, 1); err != nil {
		v.Fatal(err)
	}
	sound(v, d, seg1)
	r, err := OpenReader(d, seg1)
	must(v, err)
	defer r.Close()
	last, i := map[uint64]uint64{}, 0
	must(v, Scan(r, func(pos int64, h record.Head, frame []byte) error {
		if h.Mark() {
			return nil
		}
		if i < len(v.want) && !bytes.Equal(frame, v.want[i].frame) {
			return fmt.Errorf("seed %d: acknowledged frame %d, of offset %d, is another one", seed, i, h.Base)
		}
		i++
		if h.Void() {
			return nil
		}
		if last[h.Producer] != h.PrevSeq {
			return fmt.Errorf("seed %d: producer %d goes on at %d behind %d", seed, h.Producer, h.FirstSeq, last[h.Producer])
		}
		last[h.Producer] = h.LastSeq
		return nil
	}))
	if i < len(v.want) {
		v.Fatalf("seed %d: %d frames back of %d that were acknowledged", seed, i, len(v.want))
	}
	for id, seq := range last {
		if have, _, _ := got.Table.Lookup(id, 5); have != seq {
			v.Fatalf("seed %d: producer %d stands at %d, its last record is %d", seed, id, have, seq)
		}
	}
	if got.Table.Len() != len(last) || got.Latch.State() != fence.Fenced {
		v.Fatalf("seed %d: %d producers, want %d", seed, got.Table.Len(), len(last))
	}
}
