package cp

import (
	"hash/crc32"
	"maps"
	"slices"

	"github.com/ringfence/ringfence/fence"
)

// An exported topic:
//
//	off size field
//	  0    1 format version, 1
//	  1      name (length u32, bytes), identity (16), bits, phase, policy,
//	         created, revision,
//	         ranges (count u32, then by sequence: start, end, phase, sequences of
//	         direct parents, next offset, next sequence, segments),
//	         groups (count u32, then by name: name, generation, positions)
//	end-4  4 CRC-32C of everything before it
//
// What follows from that is left out and computed on the way in: the ids, the
// lines, the children and the list of active ranges. A migration's fence
// belongs to a vnode and is not exported.
const exportVersion = 1

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func (t *topic) export() []byte {
	e := encoder{b: make([]byte, 0, 256)}
	e.u8(exportVersion)
	e.topic(t)
	e.u32(crc32.Checksum(e.b, castagnoli))
	return e.b
}

// importTopic reads an export, which it believes only when it is consistent in
// itself. Nobody owns the topic yet.
func importTopic(b []byte) (*topic, error) {
	if len(b) > 0 && b[0] > exportVersion {
		return nil, ErrUnsupported
	}
	if len(b) < 5 || b[0] != exportVersion {
		return nil, ErrInvalidExport
	}
	body, sum := b[:len(b)-4], decoder{b: b[len(b)-4:]}
	if crc32.Checksum(body, castagnoli) != sum.u32() {
		return nil, ErrInvalidExport
	}
	d := decoder{b: body[1:], nodeID: map[string]NodeID{}}
	t := d.topic()
	if !d.done() || t.check() != nil {
		return nil, ErrInvalidExport
	}
	return t, nil
}

// exportedName is the topic that an export names, "" if it is damaged.
func exportedName(b []byte) string {
	if len(b) < 1 || b[0] != exportVersion {
		return ""
	}
	d := decoder{b: b[1:]}
	return d.string()
}

func (e *encoder) topic(t *topic) {
	e.string(t.rec.Name)
	e.topicID(t.rec.ID)
	e.u8(t.rec.Bits)
	e.u8(uint8(t.rec.Phase))
	e.string(t.rec.Policy)
	e.i64(t.rec.Created)
	e.u64(t.revision)
	e.u32(uint32(len(t.ranges)))
	for _, r := range t.ranges {
		e.rng(r)
	}
	e.u32(uint32(len(t.groups)))
	for _, name := range slices.Sorted(maps.Keys(t.groups)) {
		g := t.groups[name]
		e.string(name)
		e.u64(g.generation)
		e.u32(uint32(len(g.positions)))
		for _, seq := range slices.Sorted(maps.Keys(g.positions)) {
			e.u32(seq)
			p := g.positions[seq]
			e.u32(uint32(len(p)))
			for _, source := range slices.SortedFunc(maps.Keys(p), fence.RangeID.Compare) {
				e.u32(source.Seq)
				e.u64(p[source])
			}
		}
	}
}

func (e *encoder) rng(r *rng) {
	e.u64(r.rec.Start)
	e.u64(r.rec.End)
	e.u8(uint8(r.rec.Phase))
	e.u8(uint8(len(r.rec.From)))
	for _, id := range r.rec.From {
		e.u32(id.Seq)
	}
	e.u64(r.rec.NextOffset)
	e.u32(r.rec.NextSequence)
	n := uint32(len(r.sealed))
	if r.head != nil {
		n++
	}
	e.u32(n)
	for _, seg := range r.sealed {
		e.segment(seg)
	}
	if r.head != nil {
		e.segment(r.head)
	}
}

func (e *encoder) segment(s *Segment) {
	e.u32(s.ID.Seq)
	e.u8(uint8(s.Phase))
	e.u64(s.Start)
	e.u64(s.Length)
	e.u64(s.Bytes)
	e.i64(s.SealedAt)
	e.i64(s.OpenedAt)
	e.u64(s.Salt)
	e.u64(s.Writer)
	e.nodes(s.Replicas)
}

const (
	segmentMin  = 4 + 1 + 7*8 + 4
	rangeMin    = 8 + 8 + 1 + 1 + 8 + 4 + 4
	groupMin    = 4 + 8 + 4
	sourceLen   = 4 + 8
	positionMin = 4 + 4
)

// topic reads a topic and what follows from it. It may answer nonsense that
// check finds, but nothing that check, or anything before it, would trip over.
func (d *decoder) topic() *topic {
	t := &topic{rec: &Topic{Name: d.string(), ID: d.topicID(), Bits: d.u8(), Phase: d.phase(), Policy: d.string(), Created: d.i64()}}
	t.revision = d.u64()
	n := d.count(rangeMin)
	t.ranges = make([]*rng, 0, n)
	for range n {
		r := d.rng(t)
		if r == nil {
			break
		}
		t.ranges = append(t.ranges, r)
	}
	t.rec.NextRangeSeq = uint32(n)
	for _, r := range t.ranges {
		if r.rec.Phase == Active {
			t.active = append(t.active, r.rec)
		}
	}
	slices.SortStableFunc(t.active, func(a, b *Range) int {
		if a.Start < b.Start {
			return -1
		} else if a.Start > b.Start {
			return 1
		}
		return 0
	})
	d.groups(t)
	return t
}

func (d *decoder) phase() Phase {
	p := d.u8()
	if p > uint8(Sealed) {
		d.fail()
	}
	return Phase(p)
}

// rng reads the next range of t and makes it known to its parents.
func (d *decoder) rng(t *topic) *rng {
	rec := &Range{ID: t.rangeID(uint32(len(t.ranges))), Start: d.u64(), End: d.u64(), Phase: d.phase()}
	parents := make([]*rng, d.u8())
	for i := range parents {
		p := t.rng(d.u32())
		if p == nil || len(parents) > 2 {
			d.fail()
			return nil
		}
		parents[i] = p
		rec.From = append(rec.From, p.rec.ID)
	}
	rec.NextOffset, rec.NextSequence = d.u64(), d.u32()
	r := &rng{rec: rec}
	for range d.count(segmentMin) {
		seg := d.segment(rec.ID)
		switch {
		case r.head != nil:
			d.fail() // an active segment is the last
		case seg.Phase == Active:
			r.head = seg
		default:
			r.sealed = append(r.sealed, seg)
		}
	}
	if d.failed {
		return nil
	}
	var l line
	switch len(parents) {
	case 1:
		l = t.half(parents[0])
	case 2:
		l = t.sum(parents[0], parents[1])
	}
	r.over, r.ancestors = l.over, l.ancestors
	if len(parents) != 1 || len(parents[0].rec.Children) == 0 { // else its other half was counted
		t.ancestors += l.ancestors
	}
	for _, p := range parents {
		p.rec.Children = append(p.rec.Children, rec.ID)
	}
	return r
}

func (d *decoder) segment(id fence.RangeID) *Segment {
	return &Segment{
		ID:    fence.SegmentID{Range: id, Seq: d.u32()},
		Phase: d.phase(),
		Start: d.u64(), Length: d.u64(), Bytes: d.u64(),
		SealedAt: d.i64(), OpenedAt: d.i64(),
		Salt: d.u64(), Writer: d.u64(),
		Replicas: d.nodes(),
	}
}

func (d *decoder) groups(t *topic) {
	last := ""
	for range d.count(groupMin) {
		name := d.string()
		if name <= last {
			d.fail()
			return
		}
		last = name
		if t.groups == nil {
			t.groups = map[string]*group{}
		}
		t.groups[name] = d.group(t)
	}
}

func (d *decoder) group(t *topic) *group {
	g := &group{generation: d.u64()}
	n := d.count(positionMin)
	g.positions = make(map[uint32]Position, n)
	next := uint64(0) // the least sequence that may follow
	for range n {
		seq := d.u32()
		if uint64(seq) < next || t.rng(seq) == nil {
			d.fail()
			return g
		}
		next = uint64(seq) + 1
		g.positions[seq] = d.sources(t)
	}
	return g
}

func (d *decoder) sources(t *topic) Position {
	n := d.count(sourceLen)
	p := make(Position, n)
	next := uint64(0)
	for range n {
		source := d.u32()
		if uint64(source) < next || t.rng(source) == nil {
			d.fail()
			return p
		}
		next = uint64(source) + 1
		p[t.rangeID(source)] = d.u64()
	}
	return p
}

// adopt gives a topic that was read an owner.
func (t *topic) adopt(own *owner) {
	t.own = own
	for _, r := range t.ranges {
		r.own = own
	}
}
