package segfile

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/ringfence/ringfence/segfile/record"
)

// MaxProducers is how many entries a table holds. Beyond it the producers that
// were quiet longest are forgotten; they must start again under a new id.
const MaxProducers = 16384

// ProducerTable is what a range knows of its producers: for every producer and
// key slice, the sequence of the last record. It goes from segment to segment (in
// the start mark and in the footer), a split gives each child its part
// ([ProducerTable.Slice]), a merge keeps both parents' slices side by side
// ([MergeTables]) and judges every record by the slice its position lies in.
//
// The order of producers, by their last batch, is part of the table: tables that
// saw the same batches are equal byte for byte. One goroutine at a time uses it.
type ProducerTable struct {
	start, end uint64 // key slice of the range
	producers  map[uint64]*producer
	oldest     *producer // by last batch
	newest     *producer
	entries    int // slices of all producers
	limit      int
	keeping    bool
	kept       []tableChange // while keeping: what Update did, in order
}

// producer has slices that are sorted, join and cover the range's key slice.
type producer struct {
	id           uint64
	time         int64 // largest time in its last batch, ms; 0 = unknown
	slices       []keySlice
	older, newer *producer
}

type keySlice struct {
	first, last uint32 // positions, both in it
	seq         uint64 // of the last record in it, 0 for none
}

// NewProducerTable is the table of a range that no producer wrote to yet.
func NewProducerTable(start, end uint64) *ProducerTable {
	if start >= end || end > 1<<32 {
		panic(fmt.Sprintf("segfile: producer table over key slice [%d, %d)", start, end))
	}
	return &ProducerTable{start: start, end: end, producers: map[uint64]*producer{}, limit: MaxProducers}
}

// Len is how many entries (producer and key slice) there are.
func (t *ProducerTable) Len() int { return t.entries }

// Bounds is the key slice [start, end) of the range.
func (t *ProducerTable) Bounds() (start, end uint64) { return t.start, t.end }

// Lookup answers the last sequence of a producer at a key position, and the time
// of its last batch; false when the producer is unknown.
func (t *ProducerTable) Lookup(id uint64, pos uint32) (seq uint64, time int64, ok bool) {
	p := t.producers[id]
	if p == nil {
		return 0, 0, false
	}
	for i := range p.slices {
		if s := &p.slices[i]; s.first <= pos && pos <= s.last {
			return s.seq, p.time, true
		}
	}
	return 0, p.time, true
}

// Judgement says what of a batch is new.
type Judgement uint8

const (
	Fresh     Judgement = iota // all of it
	Duplicate                  // nothing; it is stored already
	Overlap                    // some of it: trim with Seen
)

// Judge says what of a batch is new, from its header alone. Records without
// sequences are always new. [ErrSequenceGap] when the batch before this one never
// came, [ErrUnknownProducer] when there is no telling.
func (t *ProducerTable) Judge(h *record.Head) (Judgement, error) {
	if h.FirstSeq == 0 {
		return Fresh, nil
	}
	p := t.producers[h.Producer]
	if p == nil {
		if h.PrevSeq != 0 {
			return Fresh, fmt.Errorf("%w (producer %#x, sequence %d after %d)", ErrUnknownProducer, h.Producer, h.FirstSeq, h.PrevSeq)
		}
		return Fresh, nil
	}
	var top, low, high uint64
	low = ^uint64(0)
	for i := range p.slices {
		s := &p.slices[i]
		top = max(top, s.seq)
		if s.first <= h.MaxPos && h.MinPos <= s.last {
			low, high = min(low, s.seq), max(high, s.seq)
		}
	}
	switch {
	case h.PrevSeq > top:
		return Fresh, fmt.Errorf("%w (producer %#x: have %d, the batch follows %d)", ErrSequenceGap, h.Producer, top, h.PrevSeq)
	case h.FirstSeq > high:
		return Fresh, nil
	case h.LastSeq <= low:
		return Duplicate, nil
	}
	return Overlap, nil
}

// Seen says whether a record is stored already: what trimming an Overlap drops.
func (t *ProducerTable) Seen(id, seq uint64, pos uint32) bool {
	last, _, ok := t.Lookup(id, pos)
	return ok && seq != 0 && seq <= last
}

// Update notes a batch that was placed: not a void one, whose producer is to find all
// as it was before. It allocates only for a new producer.
func (t *ProducerTable) Update(h *record.Head) {
	if h.FirstSeq == 0 || h.Mark() || h.Void() {
		return
	}
	p := t.producers[h.Producer]
	if t.keeping {
		t.keep(h, p)
	}
	if p == nil {
		p = &producer{id: h.Producer, slices: []keySlice{{uint32(t.start), uint32(t.end - 1), h.LastSeq}}}
		t.producers[h.Producer] = p
		t.entries++
	} else {
		t.unlink(p)
		hit := false
		for i := range p.slices {
			if s := &p.slices[i]; s.first <= h.MaxPos && h.MinPos <= s.last {
				s.seq = max(s.seq, h.LastSeq)
				hit = true
			}
		}
		if hit && len(p.slices) > 1 {
			t.entries -= p.join()
		}
	}
	p.time = max(h.MaxTime, 0)
	t.link(p)
	t.evict()
}

// join makes one slice of neighbours with the same sequence and says how many
// are gone.
func (p *producer) join() int {
	kept := p.slices[:1]
	for _, s := range p.slices[1:] {
		if l := &kept[len(kept)-1]; l.seq == s.seq {
			l.last = s.last
		} else {
			kept = append(kept, s)
		}
	}
	gone := len(p.slices) - len(kept)
	p.slices = kept
	return gone
}

func (t *ProducerTable) link(p *producer) {
	p.older, p.newer = t.newest, nil
	if t.newest != nil {
		t.newest.newer = p
	} else {
		t.oldest = p
	}
	t.newest = p
}

func (t *ProducerTable) unlink(p *producer) {
	if p.older != nil {
		p.older.newer = p.newer
	} else {
		t.oldest = p.newer
	}
	if p.newer != nil {
		p.newer.older = p.older
	} else {
		t.newest = p.older
	}
}

func (t *ProducerTable) evict() {
	for t.entries > t.limit && t.oldest != t.newest {
		p := t.oldest
		t.unlink(p)
		delete(t.producers, p.id)
		t.entries -= len(p.slices)
		if t.keeping {
			c := &t.kept[len(t.kept)-1]
			c.evicted = append(c.evicted, p)
		}
	}
}

// add links a whole producer as the newest.
func (t *ProducerTable) add(p *producer) {
	t.producers[p.id] = p
	t.entries += len(p.slices)
	t.link(p)
}

// Clone is an independent copy.
func (t *ProducerTable) Clone() *ProducerTable { return t.Slice(t.start, t.end) }

// Slice is the table of a child that takes the key slice [start, end) of the
// range: what a split copies.
func (t *ProducerTable) Slice(start, end uint64) *ProducerTable {
	if start < t.start || end > t.end {
		panic(fmt.Sprintf("segfile: slice [%d, %d) of a producer table over [%d, %d)", start, end, t.start, t.end))
	}
	c := NewProducerTable(start, end)
	first, last := uint32(start), uint32(end-1)
	for p := t.oldest; p != nil; p = p.newer {
		q := &producer{id: p.id, time: p.time}
		some := false
		for _, s := range p.slices {
			if s.first <= last && first <= s.last {
				q.slices = append(q.slices, keySlice{max(s.first, first), min(s.last, last), s.seq})
				some = some || s.seq != 0
			}
		}
		if some {
			c.add(q)
		}
	}
	return c
}

// MergeTables is the table of the range that two neighbours were merged into.
func MergeTables(a, b *ProducerTable) *ProducerTable {
	if b.end == a.start {
		a, b = b, a
	}
	if a.end != b.start {
		panic(fmt.Sprintf("segfile: merge of producer tables over [%d, %d) and [%d, %d)", a.start, a.end, b.start, b.end))
	}
	m := NewProducerTable(a.start, b.end)
	var all []*producer
	for p := a.oldest; p != nil; p = p.newer {
		right := []keySlice{{uint32(b.start), uint32(b.end - 1), 0}}
		time := p.time
		if q := b.producers[p.id]; q != nil {
			right, time = q.slices, max(time, q.time)
		}
		all = append(all, &producer{id: p.id, time: time, slices: slices.Concat(p.slices, right)})
	}
	for q := b.oldest; q != nil; q = q.newer {
		if a.producers[q.id] == nil {
			left := []keySlice{{uint32(a.start), uint32(a.end - 1), 0}}
			all = append(all, &producer{id: q.id, time: q.time, slices: slices.Concat(left, q.slices)})
		}
	}
	slices.SortFunc(all, func(p, q *producer) int { return cmp.Or(cmp.Compare(p.time, q.time), cmp.Compare(p.id, q.id)) })
	for _, p := range all {
		p.join()
		m.add(p)
	}
	m.evict()
	return m
}

// The encoding of a table, little-endian:
//
//	1 version  1
//	8 start, 8 end  key slice of the range
//	4 count    producers, oldest first, each
//	  8 id, 8 time, 4 count  of slices, each
//	    4 first, 4 last, 8 sequence
const (
	tableVersion = 1
	tableFixed   = 1 + 8 + 8 + 4
	tablePerID   = 8 + 8 + 4
	tablePer     = 4 + 4 + 8

	maxTable = tableFixed + MaxProducers*(tablePerID+tablePer)
)

// size is at least the length of the encoding.
func (t *ProducerTable) size() int {
	if t == nil {
		return 0
	}
	return tableFixed + len(t.producers)*tablePerID + t.entries*tablePer
}

// AppendBinary appends the encoding of t to b.
func (t *ProducerTable) AppendBinary(b []byte) ([]byte, error) {
	le := binary.LittleEndian
	b = append(b, tableVersion)
	b = le.AppendUint64(b, t.start)
	b = le.AppendUint64(b, t.end)
	b = le.AppendUint32(b, uint32(len(t.producers)))
	for p := t.oldest; p != nil; p = p.newer {
		b = le.AppendUint64(b, p.id)
		b = le.AppendUint64(b, uint64(p.time))
		b = le.AppendUint32(b, uint32(len(p.slices)))
		for _, s := range p.slices {
			b = le.AppendUint32(b, s.first)
			b = le.AppendUint32(b, s.last)
			b = le.AppendUint64(b, s.seq)
		}
	}
	return b, nil
}

// DecodeProducerTable reads exactly what AppendBinary writes.
func DecodeProducerTable(b []byte) (*ProducerTable, error) {
	bad := func(why string) (*ProducerTable, error) {
		return nil, fmt.Errorf("segfile: producer table: %s", why)
	}
	le := binary.LittleEndian
	if len(b) < tableFixed || b[0] != tableVersion {
		return bad("too short, or of another version")
	}
	start, end, n := le.Uint64(b[1:]), le.Uint64(b[9:]), int(le.Uint32(b[17:]))
	b = b[tableFixed:]
	if start >= end || end > 1<<32 || n > MaxProducers || n*(tablePerID+tablePer) > len(b) {
		return bad("bounds")
	}
	t := NewProducerTable(start, end)
	for range n {
		if len(b) < tablePerID {
			return bad("cut off")
		}
		p := &producer{id: le.Uint64(b), time: int64(le.Uint64(b[8:]))}
		m := int(le.Uint32(b[16:]))
		b = b[tablePerID:]
		if m == 0 || m > MaxProducers || m*tablePer > len(b) || t.producers[p.id] != nil || p.time < 0 {
			return bad("a producer's entries")
		}
		at := start
		for i := range m {
			s := keySlice{le.Uint32(b), le.Uint32(b[4:]), le.Uint64(b[8:])}
			b = b[tablePer:]
			if uint64(s.first) != at || s.last < s.first || uint64(s.last) >= end || i > 0 && p.slices[i-1].seq == s.seq {
				return bad("a producer's slices do not join")
			}
			at = uint64(s.last) + 1
			p.slices = append(p.slices, s)
		}
		if at != end {
			return bad("a producer's slices do not cover the range")
		}
		t.add(p)
	}
	if len(b) != 0 || t.entries > MaxProducers {
		return bad("bytes left over, or too many entries")
	}
	return t, nil
}

// Check walks the table and reports the first broken invariant.
func (t *ProducerTable) Check() error {
	n, seen := 0, 0
	var older *producer
	for p := t.oldest; p != nil; older, p = p, p.newer {
		if p.older != older || t.producers[p.id] != p {
			return fmt.Errorf("segfile: producer table: producer %#x is linked wrongly", p.id)
		}
		at := t.start
		for i, s := range p.slices {
			if uint64(s.first) != at || s.last < s.first || i > 0 && p.slices[i-1].seq == s.seq {
				return fmt.Errorf("segfile: producer table: slices of %#x do not join: %v", p.id, p.slices)
			}
			at = uint64(s.last) + 1
		}
		if at != t.end {
			return fmt.Errorf("segfile: producer table: slices of %#x end at %d, not %d", p.id, at, t.end)
		}
		n += len(p.slices)
		seen++
	}
	if older != t.newest || n != t.entries || seen != len(t.producers) || n > t.limit && seen > 1 {
		return fmt.Errorf("segfile: producer table: %d entries of %d producers counted, %d of %d kept", n, seen, t.entries, len(t.producers))
	}
	return nil
}
