package segfile

import (
	"fmt"
	"slices"

	"github.com/ringfence/ringfence/segfile/record"
)

// A frame that is written from memory which others can change may turn out not to be
// what was planned. Then it is overwritten by a void frame before it, or anything
// behind it, counts as durable, and what the Writer planned on top of it is put right.

// doubt is what a Writer keeps to be able to do so.
type doubt struct {
	to     uint64    // frames before this offset may become void; 0 for none
	frames []doubted // planned since the first of them, in order
}

type doubted struct {
	pos    int64
	head   record.Head
	digest uint64 // of all before it
}

// Doubt says that the frames planned next, up to offset to, may become void. Call it
// before the first of them is in the Table. Frames without doubt may follow.
func (w *Writer) Doubt(to uint64) {
	w.doubt.to = max(w.doubt.to, to)
	w.tally.table.keeping = true
}

// Doubting says whether anything may become void still.
func (w *Writer) Doubting() bool { return w.doubt.to != 0 }

// Sure says that frames before an offset are durable as they were planned, or void.
func (w *Writer) Sure(offset uint64) {
	d, t := &w.doubt, w.tally.table
	if offset >= d.to {
		clear(t.kept)
		*d, t.keeping, t.kept = doubt{frames: d.frames[:0]}, false, t.kept[:0]
		return
	}
	n := 0
	for n < len(d.frames) && d.frames[n].head.Next() <= offset {
		n++
	}
	d.frames = slices.Delete(d.frames, 0, n)
	t.sure(offset)
}

// Void makes the frames of heads, which are in doubt, in their order, void: it returns
// the heads that are to be written in their place. Producers are known in the Table as
// if they had not sent them, so no later frame of theirs may stay: it would look like
// the next one. Nothing else may be planned until the void frames are durable.
func (w *Writer) Void(heads []record.Head) []record.Head {
	d := &w.doubt
	void := make(map[uint64]*record.Head, len(heads))
	out := make([]record.Head, len(heads))
	for i := range heads {
		out[i] = heads[i].AsVoid()
		void[heads[i].Base] = &out[i]
	}
	first := slices.IndexFunc(d.frames, func(f doubted) bool { return void[f.head.Base] != nil })
	if first < 0 {
		panic(fmt.Sprintf("segfile: %s: no frame that is void was in doubt", w.file.Name()))
	}
	w.tally.digest = d.frames[first].digest
	for i := first; i < len(d.frames); i++ {
		f := &d.frames[i]
		if h := void[f.head.Base]; h != nil {
			f.head = *h
		}
		f.digest, w.tally.digest = w.tally.digest, w.tally.link.hash(w.tally.digest, &f.head)
	}
	w.tally.table.void(void)
	if c := &w.check; c.at > d.frames[first].pos {
		c.at, c.cost = 0, c.every // it lies behind, and nothing points to it yet
	}
	return out
}

// tableChange is what an Update did to a table.
type tableChange struct {
	head    record.Head
	fresh   bool       // there was no entry
	slices  []keySlice // that the entry had
	time    int64
	older   *producer // behind which it was, nil for none
	evicted []*producer
}

// keep notes how the entry of h's producer, nil for none, is before an Update.
func (t *ProducerTable) keep(h *record.Head, p *producer) {
	c := tableChange{head: *h, fresh: p == nil}
	if p != nil {
		c.slices, c.time, c.older = slices.Clone(p.slices), p.time, p.older
	}
	t.kept = append(t.kept, c)
}

// sure forgets changes by frames before an offset.
func (t *ProducerTable) sure(offset uint64) {
	n := 0
	for n < len(t.kept) && t.kept[n].head.Next() <= offset {
		n++
	}
	t.kept = slices.Delete(t.kept, 0, n)
}

// void takes the changes by void frames, and what came behind the first of them, back
// and does the others again: the table is the one that never saw void frames.
func (t *ProducerTable) void(void map[uint64]*record.Head) {
	first := slices.IndexFunc(t.kept, func(c tableChange) bool { return void[c.head.Base] != nil })
	if first < 0 {
		return // they had no sequences
	}
	again := slices.Clone(t.kept[first:])
	for i := len(t.kept) - 1; i >= first; i-- {
		t.undo(&t.kept[i])
	}
	clear(t.kept[first:])
	t.kept = t.kept[:first]
	for i := range again {
		if h := &again[i].head; void[h.Base] == nil {
			t.Update(h)
		}
	}
}

// undo takes the last change back.
func (t *ProducerTable) undo(c *tableChange) {
	for _, p := range slices.Backward(c.evicted) {
		p.older, p.newer = nil, t.oldest
		t.oldest.older = p
		t.oldest = p
		t.producers[p.id] = p
		t.entries += len(p.slices)
	}
	p := t.newest // the one that was updated
	t.unlink(p)
	t.entries -= len(p.slices)
	if c.fresh {
		delete(t.producers, p.id)
		return
	}
	p.slices, p.time = c.slices, c.time
	t.entries += len(p.slices)
	p.older = c.older
	if c.older != nil {
		p.newer, c.older.newer = c.older.newer, p
	} else {
		p.newer, t.oldest = t.oldest, p
	}
	if p.newer != nil {
		p.newer.older = p
	} else {
		t.newest = p
	}
}
