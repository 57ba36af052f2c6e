package segfile

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/ringfence/ringfence/segfile/disk"
	"github.com/ringfence/ringfence/segfile/disk/simdisk"
	"github.com/ringfence/ringfence/segfile/record"
)

// Also where no pointer tells, as when a power cut took it back: frames far behind a
// stretch that is gone still do, wherever there are as many as lie between two probes.
func TestALongStretchIsGone(t *testing.T) {
	const mib = 1 << 20
	for _, c := range []struct {
		size, gone, behind int64 // of the file, of what is lost in it, and of the frames behind that
		frame              int
		found              bool
	}{
		{16 * mib, 3 * mib, 7 * mib, 700_000, true},
		{48 * mib, 20 * mib, 16 * mib, 700_000, true}, // behind the probes at 4 and 16 MiB
		{48 * mib, 20 * mib, 2 * mib, 700_000, false}, // between that and the next
		{48 * mib, 20*mib + mib/2, mib, 3_000, true},  // small frames are looked for more often
		{48 * mib, 20*mib + mib/2, mib / 4, 3_000, false},
		{48 * mib, 20 * mib, 4 * mib, 60_000, true},
	} {
		w := largeFile(t, newDisk(1), c.size, poolNew)
		d := w.d
		rng := rand.New(rand.NewPCG(1, 1))
		write(t, w, rng, 3, 1, c.frame)
		at := w.Position()
		w.pos, w.tally.next = w.pos+c.gone, w.tally.next+1000 // as if a thousand records lay there
		for w.Position() < at+c.gone+c.behind {
			write(t, w, rng, 1, 1, c.frame)
		}
		must(t, w.Close())
		v := mustRecover(t, d, seg1)
		switch {
		case !c.found: // as probe says of itself
			if v.State != Clean || v.End.Position != at {
				t.Errorf("%d MiB gone: %s (%s) at %+v", c.gone/mib, v.State, v.Why, v.End)
			}
			// The search, and 3 probes of large frames or 48 of small ones.
			if limit := int64(8*mib + 3*c.frame); v.ReadBytes > limit {
				t.Errorf("%d MiB gone: %d bytes were read, more than %d", c.gone/mib, v.ReadBytes, limit)
			}
		case v.State != Damaged || v.End.Offset != w.NextOffset() || len(v.Holes) != 1 || v.Holes[0].Position != at || v.Holes[0].Records != 1000:
			t.Errorf("%d MiB gone: %s (%s) at %+v, holes %+v", c.gone/mib, v.State, v.Why, v.End, v.Holes)
		}
	}
}

// largeFile is a new segment in a file of that size, which had zeros or an earlier life.
func largeFile(t *testing.T, d disk.Disk, size int64, kind poolKind) *Writer {
	t.Helper()
	p, err := NewPool(d, PoolOptions{SegmentBytes: size, MaxBytes: size})
	must(t, err)
	f, err := d.Create(poolName(1, kind))
	must(t, err)
	must(t, f.Allocate(0, size))
	must(t, f.Close())
	p.keep(poolFile{num: 1, kind: kind, size: size})
	w := create(t, p, testMeta(1))
	if w.hdr.blocks != size || w.hdr.recycled != (kind == poolOld) {
		t.Fatalf("the file was %d bytes long, recycled: %v", w.hdr.blocks, w.hdr.recycled)
	}
	return w
}

// rotting writes a segment as a store does, checkpoints and pointers included, on a disk
// that forgets all frames in a stretch of the file.
type rotting struct {
	t        *testing.T
	rng      *rand.Rand
	w        *Writer
	g        producerModel
	from, to int64 // what is forgotten
	frame    int   // length of a frame, about
	ahead    int   // flushes that are not durable yet

	flights []proof // not durable
	durable proof
	lost    []proof // ends of the flushes that were forgotten
}

// put sends one flush.
func (r *rotting) put() {
	w, pos := r.w, r.w.Position()
	h := record.Head{Base: w.NextOffset(), Count: 1, Durable: r.durable.position, FrameLen: uint32(record.HeaderSize + r.frame + 200), Producer: r.g.id}
	if forgotten := pos >= r.from && pos < r.to; forgotten {
		r.g.seq++
		h.FirstSeq, h.LastSeq, h.PrevSeq = r.g.seq, r.g.seq, r.g.seq-1
		w.Advance(pos, alignBlock(int64(h.FrameLen)), []record.Head{h})
		r.lost = append(r.lost, proof{w.Position(), w.NextOffset()})
	} else {
		b, heads := flush(w, r.durable.position, r.g.frame(r.rng, 1, r.frame))
		must(r.t, w.File().WriteAt(b, pos))
		w.Advance(pos, int64(len(b)), heads)
	}
	r.flights = append(r.flights, proof{w.Position(), w.NextOffset()})
	if w.PointerDue(r.durable.position) {
		buf := make([]byte, block)
		at, err := w.Pointer(buf, r.durable.position)
		must(r.t, err)
		must(r.t, w.File().WriteAt(buf, at))
	} else if w.CheckpointDue() {
		at := w.Position()
		b, h, err := w.Checkpoint(make([]byte, w.CheckpointSize()), r.durable.position)
		must(r.t, err)
		if at < r.from || at >= r.to {
			must(r.t, w.File().WriteAt(b, at))
		}
		w.Advance(at, int64(len(b)), []record.Head{h})
		r.flights = append(r.flights, proof{w.Position(), w.NextOffset()})
	}
	for len(r.flights) > r.ahead {
		r.durable, r.flights = r.flights[0], r.flights[1:]
	}
}

// reads says whether n bytes of the file are all c.
func reads(t *testing.T, d disk.Disk, from, n int64, c byte) bool {
	t.Helper()
	f, err := d.Open(seg1, true)
	must(t, err)
	defer f.Close()
	b := make([]byte, n)
	_, err = f.ReadAt(b, from)
	must(t, err)
	return bytes.Count(b, []byte{c}) == len(b)
}

// A stretch of more than 16 MiB that was durable and is gone, wherever it lies in a file
// that had zeros or an earlier life in it, is not taken for the end: not if anything is
// left behind it, and not if nothing is and the pointer came to lie beyond its start. A
// file that lost nothing is not read to its end for that.
func TestRotOfALongStretch(t *testing.T) {
	const mib = 1 << 20
	behind, nothing, silent, whole := 0, 0, 0, 0
	for seed := range seeds(40) {
		rng := rand.New(rand.NewPCG(seed, 31))
		w := largeFile(t, simdisk.New(simdisk.Options{Seed: seed, ArenaBytes: 4 * mib}), 64*mib, []poolKind{poolNew, poolOld}[rng.IntN(2)])
		r := &rotting{t: t, rng: rng, w: w, g: producerModel{id: 3}, frame: []int{3_000, 60_000, 250_000, 1_000_000}[rng.IntN(4)], ahead: rng.IntN(5)}
		r.durable = proof{w.Position(), w.NextOffset()}
		r.from = int64(rng.IntN(24 * mib))
		r.to = r.from + 16*mib + int64(rng.IntN(16*mib))
		if rng.IntN(8) == 0 {
			r.to = r.from // nothing is lost
		}
		end := r.to + int64(rng.IntN(int(62*mib-r.to)))
		switch rng.IntN(3) {
		case 0:
			end = r.to // nothing is left behind
		case 1:
			end = min(r.to+int64(rng.IntN(mib)), end)
		}
		for w.Position() < end {
			r.put()
		}
		must(t, w.Close())
		d := w.d.(*simdisk.Disk)
		v := mustRecover(t, d, seg1)
		if len(r.lost) == 0 {
			whole++
			if limit := int64(16*mib + 14*r.frame); v.State != Clean || v.End != w.End() || v.ReadBytes > limit {
				t.Fatalf("seed %d: %s (%s) at %+v, want %+v, %d bytes read of %d at most", seed, v.State, v.Why, v.End, w.End(), v.ReadBytes, limit)
			}
			continue
		}
		first := r.lost[0]
		gone := r.lost[len(r.lost)-1].position - r.from
		if gone < 15*mib || !reads(t, d, first.position, gone-2*mib, 0) || r.durable.position < first.position+8*mib {
			t.Fatalf("seed %d: the test lost nothing: %d bytes, durable to %+v", seed, gone, r.durable)
		}
		// What is left and was acknowledged is to be found, else what the pointer says.
		known := w.check.told
		if last := r.lost[len(r.lost)-1]; r.durable.position > last.position {
			known = r.durable
			behind++
		} else if known.position >= first.position {
			nothing++
		} else {
			silent++
			continue // the last of what was written is gone, and nothing ever said that it was there
		}
		before := v.Start > first.position // a checkpoint behind it is there: reads and Verify are to find it
		found := v.State == Damaged && len(v.Holes) > 0 && v.Holes[0].Position <= first.position && v.Holes[0].Records > 0
		if v.End.Offset < known.offset || found == before {
			t.Fatalf("seed %d: %s (%s) at %+v, want at least %+v; holes %+v, %d MiB lost from %d on, %d behind",
				seed, v.State, v.Why, v.End, known, v.Holes, gone/mib, r.from, w.Position()-r.to)
		}
		if _, err := v.Fence(testNow, 1); err != nil {
			t.Fatal(err)
		}
		if rep, err := Verify(d, seg1, nil); !errors.Is(err, ErrDamaged) || rep.End != v.End || len(rep.Holes) == 0 || rep.Holes[0].Position > first.position {
			t.Fatalf("seed %d: verified to %+v: %v, holes %+v", seed, rep.End, err, rep.Holes)
		}
	}
	if behind < 5 || nothing < 3 || whole == 0 {
		t.Errorf("%d times something was left behind, %d times nothing, %d times nothing told, %d times all was whole", behind, nothing, silent, whole)
	}
}
