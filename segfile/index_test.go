package segfile

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/ringfence/ringfence/segfile/record"
)

// B09: a rebuilt index is the one that was written, for frames of any size around
// the stretches that are read at once.
func TestB09IndexOfAnySize(t *testing.T) {
	sizes := []int{windowMax - 300, windowMax - record.HeaderSize, windowMax, windowMax + 1, 2 * windowMax, record.MaxFrame - 4096}
	d := newDisk(1)
	w := create(t, newTestPool(t, d, lifeGrown), testMeta(1))
	rng := rand.New(rand.NewPCG(1, 6))
	g := &producerModel{id: 3}
	for _, n := range sizes {
		put(t, w, g.frame(rng, 1, n), g.frame(rng, 2, 100))
	}
	v := mustRecover(t, d, seg1)
	if v.End != w.End() || v.State != Clean {
		t.Fatalf("%s at %+v, want %+v", v.State, v.End, w.End())
	}
	mine, theirs := w.tally.footer(1000, w.pos, nil, Cut{}), v.tally.footer(1000, w.pos, nil, Cut{})
	a, _ := mine.encode(1)
	b, _ := theirs.encode(1)
	if !bytes.Equal(a, b) {
		t.Error("recovery counts something else than the writer")
	}
	if len(mine.index) != len(sizes)+1 { // the small frame behind the largest is far enough from it
		t.Errorf("%d index entries", len(mine.index))
	}
	fenceNow(t, w)
	sound(t, d, seg1)
	r, err := OpenReader(d, seg1)
	must(t, err)
	defer r.Close()
	n := 0
	must(t, Scan(r, func(int64, record.Head, []byte) error { n++; return nil }))
	if n != 2*len(sizes)+2 { // with start mark and pointer
		t.Errorf("%d frames", n)
	}
}

// Find and FindTime lead to a frame at or before what is looked for, and never
// more than an index entry's distance before it. (M01: a record without a time is
// no old one)
func TestFind(t *testing.T) {
	d := newDisk(1)
	w := create(t, newTestPool(t, d, lifeGrown), testMeta(1))
	rng := rand.New(rand.NewPCG(1, 9))
	if _, _, ok := w.Times(); ok {
		t.Error("no record, and a time")
	}
	g := &producerModel{id: 3}
	var list []sent
	for i := range 300 {
		f := g.frame(rng, 3, 1000)
		if i%10 == 0 { // a batch whose records have no time
			var b record.Builder
			b.Reset(make([]byte, 4096), 4)
			r := record.Record{Value: []byte("x"), Timestamp: int64(-i)}
			must(t, b.Add(&r, 0))
			var err error
			f, err = b.Finish(0)
			must(t, err)
		}
		pos := w.Position()
		b, heads := flush(w, pos, f)
		must(t, w.File().WriteAt(b, pos))
		w.Advance(pos, int64(len(b)), heads)
		list = append(list, sent{pos, f, heads[0]})
	}
	low, high, ok := w.Times()
	if !ok || low < testNow || high != testNow+g.time {
		t.Errorf("times %d to %d, %v", low, high, ok)
	}
	fenceNow(t, w)
	r, err := OpenReader(d, seg1)
	must(t, err)
	defer r.Close()
	if l, h, ok := r.Times(); !ok || l != low || h != high {
		t.Errorf("the reader says %d to %d", l, h)
	}
	for _, s := range list {
		for offset := s.head.Base; offset < s.head.Next(); offset++ {
			pos, ok := r.Find(offset)
			if !ok || pos > s.pos || s.pos-pos > indexEvery+2*block || w.Find(offset) != pos {
				t.Fatalf("offset %d is at %d, found %d", offset, s.pos, pos)
			}
		}
		if s.head.MaxTime <= 0 {
			continue
		}
		pos, ok := r.FindTime(s.head.MaxTime)
		if !ok || pos > s.pos || w.FindTime(s.head.MaxTime) != pos {
			t.Fatalf("time %d is at %d, found %d", s.head.MaxTime, s.pos, pos)
		}
		for _, o := range list {
			if o.head.MaxTime >= s.head.MaxTime {
				if o.pos < pos {
					t.Fatalf("time %d first comes at %d, found %d", s.head.MaxTime, o.pos, pos)
				}
				break
			}
		}
	}
	end := w.NextOffset()
	for _, offset := range []uint64{0, 999, end, end + 1} {
		if _, ok := r.Find(offset); ok {
			t.Errorf("offset %d is found", offset)
		}
	}
	if _, ok := r.FindTime(high + 1); ok {
		t.Error("a time behind all is found")
	}
}

// The index stays bounded however long the file is, and is as fine as promised.
func TestIndexIsBounded(t *testing.T) {
	var x index
	pos := int64(DataStart)
	for i := range uint64(200_000) {
		x.add(entry{i, pos, 0})
		pos += 4096 * int64(1+i%7)
	}
	if len(x.entries) > indexMax {
		t.Fatalf("%d entries", len(x.entries))
	}
	last := int64(DataStart)
	for _, e := range x.entries {
		if gap := e.pos - last; gap > max(indexEvery, pos/1024)+8*4096 {
			t.Fatalf("a gap of %d bytes in %d", gap, pos)
		}
		last = e.pos
	}
}
