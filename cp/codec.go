package cp

import (
	"encoding/binary"
	"maps"
	"math"
	"slices"

	"github.com/ringfence/ringfence/fence"
)

// The encodings of this package are little-endian, of fixed width, with a
// length before everything that varies, and maps in the order of their keys. So
// a value has one encoding, and a decoder accepts no other.

// encoder appends a value's bytes.
type encoder struct {
	b []byte
}

func (e *encoder) u8(v uint8)   { e.b = append(e.b, v) }
func (e *encoder) u16(v uint16) { e.b = binary.LittleEndian.AppendUint16(e.b, v) }
func (e *encoder) u32(v uint32) { e.b = binary.LittleEndian.AppendUint32(e.b, v) }
func (e *encoder) u64(v uint64) { e.b = binary.LittleEndian.AppendUint64(e.b, v) }
func (e *encoder) i64(v int64)  { e.u64(uint64(v)) }

func (e *encoder) bool(v bool) {
	if v {
		e.u8(1)
	} else {
		e.u8(0)
	}
}

func (e *encoder) bytes(v []byte) {
	e.u32(uint32(len(v)))
	e.b = append(e.b, v...)
}

func (e *encoder) string(v string) {
	e.u32(uint32(len(v)))
	e.b = append(e.b, v...)
}

func (e *encoder) topicID(v fence.TopicID) { e.b = append(e.b, v[:]...) }

func (e *encoder) rangeID(v fence.RangeID) {
	e.topicID(v.Topic)
	e.u32(v.Seq)
}

func (e *encoder) segmentID(v fence.SegmentID) {
	e.rangeID(v.Range)
	e.u32(v.Seq)
}

func (e *encoder) nodes(v []NodeID) {
	e.u32(uint32(len(v)))
	for _, n := range v {
		e.string(string(n))
	}
}

func (e *encoder) position(p Position) {
	e.u32(uint32(len(p)))
	for _, source := range slices.SortedFunc(maps.Keys(p), fence.RangeID.Compare) {
		e.rangeID(source)
		e.u64(p[source])
	}
}

func (e *encoder) bound(v Bound) {
	e.u8(uint8(v.Setting))
	e.i64(v.N)
}

func (e *encoder) policy(p Policy) {
	e.bound(p.MaxAge)
	e.bound(p.MaxBytes)
	e.bound(p.SegmentMaxAge)
	e.bound(p.SegmentMaxBytes)
	e.u8(uint8(p.SpreadBy.Setting))
	e.string(p.SpreadBy.Attribute)
}

// decoder takes a value's bytes from the front of b. It remembers that it
// failed and answers zeros from then on; a length is never believed beyond the
// bytes that are there.
type decoder struct {
	b      []byte
	failed bool
	nodeID map[string]NodeID // one string for each name; nil to share none
}

// maxString bounds a decoded name. It is wider than any valid one, so that what
// is wrong with a name is answered by the check of the command.
const maxString = 4096

func (d *decoder) fail() { d.failed, d.b = true, nil }

// done says whether everything was there and nothing is left.
func (d *decoder) done() bool { return !d.failed && len(d.b) == 0 }

func (d *decoder) take(n int) []byte {
	if n > len(d.b) {
		d.fail()
		return nil
	}
	v := d.b[:n:n]
	d.b = d.b[n:]
	return v
}

func (d *decoder) u8() uint8 {
	if v := d.take(1); v != nil {
		return v[0]
	}
	return 0
}

func (d *decoder) u16() uint16 {
	if v := d.take(2); v != nil {
		return binary.LittleEndian.Uint16(v)
	}
	return 0
}

func (d *decoder) u32() uint32 {
	if v := d.take(4); v != nil {
		return binary.LittleEndian.Uint32(v)
	}
	return 0
}

func (d *decoder) u64() uint64 {
	if v := d.take(8); v != nil {
		return binary.LittleEndian.Uint64(v)
	}
	return 0
}

func (d *decoder) i64() int64 { return int64(d.u64()) }

func (d *decoder) bool() bool {
	v := d.u8()
	if v > 1 {
		d.fail()
	}
	return v == 1
}

// count reads how many things of at least size bytes follow.
func (d *decoder) count(size int) int {
	n := d.u32()
	if uint64(n)*uint64(size) > uint64(len(d.b)) {
		d.fail()
		return 0
	}
	return int(n)
}

func (d *decoder) bytes() []byte {
	n := d.count(1)
	if n == 0 {
		return nil
	}
	return slices.Clone(d.take(n))
}

func (d *decoder) string() string {
	n := d.count(1)
	if n > maxString {
		d.fail()
		return ""
	}
	return string(d.take(n))
}

func (d *decoder) node() NodeID {
	n := d.count(1)
	if n > maxString {
		d.fail()
		return ""
	}
	b := d.take(n)
	if id, ok := d.nodeID[string(b)]; ok {
		return id
	}
	id := NodeID(b)
	if d.nodeID != nil {
		d.nodeID[string(id)] = id
	}
	return id
}

func (d *decoder) topicID() (v fence.TopicID) {
	copy(v[:], d.take(len(v)))
	return v
}

func (d *decoder) rangeID() fence.RangeID { return fence.RangeID{Topic: d.topicID(), Seq: d.u32()} }

func (d *decoder) segmentID() fence.SegmentID {
	return fence.SegmentID{Range: d.rangeID(), Seq: d.u32()}
}

func (d *decoder) nodes() []NodeID {
	n := d.count(4)
	if n == 0 {
		return nil
	}
	set := make([]NodeID, n)
	for i := range set {
		set[i] = d.node()
	}
	return set
}

const rangeIDLen = 20

func (d *decoder) position() Position {
	n := d.count(rangeIDLen + 8)
	p := make(Position, n)
	var last fence.RangeID
	for i := range n {
		source := d.rangeID()
		if i > 0 && source.Compare(last) <= 0 {
			d.fail()
			return nil
		}
		p[source], last = d.u64(), source
	}
	return p
}

func (d *decoder) bound() Bound { return Bound{Setting: Setting(d.u8()), N: d.i64()} }

func (d *decoder) policy() Policy {
	return Policy{
		MaxAge:          d.bound(),
		MaxBytes:        d.bound(),
		SegmentMaxAge:   d.bound(),
		SegmentMaxBytes: d.bound(),
		SpreadBy:        Spread{Setting: Setting(d.u8()), Attribute: d.string()},
	}
}

const _ = uint(math.MaxInt - math.MaxUint32) // a count of 32 bits fits an int
