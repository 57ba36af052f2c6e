package segfile

import (
	"fmt"
	"sort"
	"sync/atomic"
)

// The index is sparse: one entry per indexEvery bytes of the file, or, when it is
// so long that there were more than indexMax, every two, four, ... times as far
// apart. It depends on nothing but where the frames lie, so that an index built
// again from the file is the one that was lost.
const (
	indexEvery = 64 << 10
	indexMax   = 2048
)

// entry is a frame that can be found without reading those before it.
type entry struct {
	offset uint64 // of its first record
	pos    int64
	before int64 // largest time in all frames before it, ms; 0 = unknown
}

// index is added to by its owner and may be read by anybody at the same time:
// readers take a slice that never changes under them.
type index struct {
	every   int64
	entries []entry // owner's
	shared  atomic.Pointer[[]entry]
}

func (x *index) add(e entry) {
	if x.every == 0 {
		x.every = indexEvery
	}
	if n := len(x.entries); n > 0 && e.pos-x.entries[n-1].pos < x.every {
		return
	}
	x.entries = append(x.entries, e) // behind what readers see
	if len(x.entries) > indexMax {
		x.every *= 2
		thin := make([]entry, 0, indexMax)
		for _, e := range x.entries {
			if n := len(thin); n == 0 || e.pos-thin[n-1].pos >= x.every {
				thin = append(thin, e)
			}
		}
		x.entries = thin
	}
	view := x.entries
	x.shared.Store(&view)
}

// set replaces all entries; nobody may read yet.
func (x *index) set(entries []entry) {
	x.entries = entries
	x.shared.Store(&entries)
}

func (x *index) view() []entry {
	if p := x.shared.Load(); p != nil {
		return *p
	}
	return nil
}

// find is the last entry at or before offset; false when there is none.
func (x *index) find(offset uint64) (entry, bool) {
	v := x.view()
	i := sort.Search(len(v), func(i int) bool { return v[i].offset > offset })
	if i == 0 {
		return entry{}, false
	}
	return v[i-1], true
}

// findTime is the last entry before which every time is smaller than ms.
func (x *index) findTime(ms int64) (entry, bool) {
	v := x.view()
	i := sort.Search(len(v), func(i int) bool { return v[i].before >= ms })
	if i == 0 {
		if len(v) == 0 {
			return entry{}, false
		}
		i = 1
	}
	return v[i-1], true
}

// checkIndex says whether entries can be an index of frames in [base, end.Offset)
// that lie before end: B06 is what a wrong one does to a reader.
func checkIndex(entries []entry, base uint64, lastOffset uint64, lastPos int64) error {
	if len(entries) > indexMax {
		return fmt.Errorf("%d index entries", len(entries))
	}
	for i, e := range entries {
		switch {
		case e.offset < base || e.offset >= lastOffset || e.pos < DataStart || e.pos >= lastPos || e.before < 0:
			return fmt.Errorf("index entry %d lies outside the segment", i)
		case i > 0 && (e.offset <= entries[i-1].offset || e.pos <= entries[i-1].pos || e.before < entries[i-1].before):
			return fmt.Errorf("index entry %d is not behind the one before it", i)
		}
	}
	return nil
}
