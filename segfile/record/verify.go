package record

import (
	"encoding/binary"
	"math"
)

// Scratch is where Verify decompresses to. The zero value is ready; using it again
// ends the Batch before.
type Scratch struct {
	raw []byte
}

// Verify reads a frame that may be anything, and answers its records if every
// byte of it is as a Builder, or another correct writer, would have put it: header
// and payload against their checksums, the flatbuffer's structure, and each field
// of the header against the records. frame may have more bytes behind. Without a
// Scratch it allocates to decompress.
//
// Every word of the payload's table and columns is read once and then checked, so
// memory that changes meanwhile can make the answer wrong but cannot make Verify
// panic; what it answers must then not be used.
func Verify(frame []byte, salt uint64, s *Scratch) (Batch, error) {
	h, err := Check(frame, salt)
	if err != nil {
		return Batch{}, err
	}
	b := Batch{Head: h, frame: frame[:h.FrameLen:h.FrameLen]}
	b.payload = b.frame[HeaderSize:]
	if h.Mark() {
		return b, nil
	}
	if h.Codec != None {
		if s == nil {
			s = new(Scratch)
		}
		if b.payload, err = s.decompress(h.Codec, b.payload, int(h.RawLen)); err != nil {
			return Batch{}, err
		}
	}
	if err := b.locate(b.payload, int(h.Count)); err != nil {
		return Batch{}, err
	}
	if trimSize(b.Len(), len(b.data), b.set()) > MaxFrame {
		return Batch{}, corrupt(offRaw, "batch leaves no room to trim it")
	}
	b.ends = b.valueEnds
	if b.headerEnds != nil {
		b.ends = b.headerEnds
	}
	if err := b.walk(); err != nil {
		return Batch{}, err
	}
	if err := b.walkTimes(); err != nil {
		return Batch{}, err
	}
	return b, nil
}

// corruptAt says where in the payload.
func corruptAt(at int, reason string) error { return corrupt(HeaderSize+at, reason) }

// locate finds the vectors of a flatbuffer of count records in p. Any layout is
// allowed that keeps the alignment every flatbuffer has.
func (c *columns) locate(p []byte, count int) error {
	le := binary.LittleEndian
	if len(p) < minPayload {
		return corruptAt(0, "payload is too short for a flatbuffer")
	}
	table := uint64(le.Uint32(p))
	if table < 4 || table%4 != 0 || table+4 > uint64(len(p)) {
		return corruptAt(0, "root is not in the payload")
	}
	at := int(table)
	vtable := int64(table) - int64(int32(le.Uint32(p[at:])))
	if vtable < 4 || vtable%2 != 0 || vtable+4 > int64(len(p)) {
		return corruptAt(at, "vtable is not in the payload")
	}
	vt := int(vtable)
	vtSize, tSize := int(le.Uint16(p[vt:])), int(le.Uint16(p[vt+2:]))
	if vtSize < 4 || vtSize%2 != 0 || vt+vtSize > len(p) {
		return corruptAt(vt, "vtable size out of bounds")
	}
	if tSize < 4 || at+tSize > len(p) {
		return corruptAt(vt+2, "table size out of bounds")
	}
	for f := 0; 4+2*f < vtSize; f++ {
		slot := int(le.Uint16(p[vt+4+2*f:]))
		switch {
		case slot == 0:
			continue
		case f >= fields:
			return corruptAt(vt+4+2*f, "field that this version does not have")
		case slot < 4 || slot%4 != 0 || slot+4 > tSize:
			return corruptAt(vt+4+2*f, "field is not in the table")
		}
		if err := c.vector(p, f, at+slot, count); err != nil {
			return err
		}
	}
	if c.data == nil || c.keyEnds == nil || c.valueEnds == nil {
		return corruptAt(at, "a column that every batch has is absent")
	}
	return nil
}

// vector finds the vector that the field at slot points to, and checks that it has
// an entry for each of count records. An empty one counts as absent.
func (c *columns) vector(p []byte, f, slot, count int) error {
	le := binary.LittleEndian
	at := uint64(slot) + uint64(le.Uint32(p[slot:]))
	if at == uint64(slot) || at%4 != 0 || at+4 > uint64(len(p)) {
		return corruptAt(slot, "vector is not in the payload")
	}
	entries, size, want := uint64(le.Uint32(p[at:])), uint64(4), uint64(count)
	switch f {
	case fieldData:
		size, want = 1, entries
	case fieldTimestamps:
		size = 8
		if entries != 0 && (at+4)%8 != 0 {
			return corruptAt(slot, "vector is not aligned")
		}
	case fieldNullKeys, fieldNullValues:
		size, want = 1, uint64(count+7)/8
	}
	start := at + 4
	if entries*size > uint64(len(p))-start { // entries < 2^32, so the product does not overflow
		return corruptAt(int(at), "vector is longer than the payload")
	}
	if entries == 0 && f != fieldData {
		return nil
	}
	if entries != want {
		return corruptAt(int(at), "column does not match the record count")
	}
	end := start + entries*size
	v := p[start:end:end]
	switch f {
	case fieldData:
		c.data = v
	case fieldKeyEnds:
		c.keyEnds = v
	case fieldValueEnds:
		c.valueEnds = v
	case fieldHeaderEnds:
		c.headerEnds = v
	case fieldTimestamps:
		c.timestamps = v
	case fieldSequences:
		c.sequences = v
	case fieldNullKeys:
		c.nullKeys = v
		return spareBits(v, count, int(at))
	case fieldNullValues:
		c.nullValues = v
		return spareBits(v, count, int(at))
	}
	return nil
}

func spareBits(v []byte, count, at int) error {
	if count%8 != 0 && v[len(v)-1]>>(count%8) != 0 {
		return corruptAt(at, "bits behind the last record are set")
	}
	return nil
}

// walk checks how the ends cut up the data, the headers in it, the sequences and
// the key positions.
func (b *Batch) walk() error {
	var (
		h          = &b.Head
		data       = b.data
		n          = int(h.Count)
		keyEnds    = b.keyEnds[:4*n]
		valueEnds  = b.valueEnds[:4*n]
		start      = uint32(0)
		seq        = h.FirstSeq
		minPos     = uint32(math.MaxUint32)
		maxPos     = uint32(0)
		run        keyless
		difference = uint32(0)
	)
	if h.FirstSeq == 0 && b.sequences != nil {
		return corrupt(offFirst, "sequences without a first one")
	}
	for i := range n {
		keyEnd, valueEnd := entry(keyEnds, i), entry(valueEnds, i)
		if keyEnd < start || valueEnd < keyEnd || uint64(valueEnd) > uint64(len(data)) {
			return b.badRecord(i, "ends out of order")
		}
		if b.sequences != nil {
			d := entry(b.sequences, i)
			if i == 0 && d != 0 || i != 0 && d <= difference {
				return b.badRecord(i, "sequences out of order")
			}
			difference = d
			seq = h.FirstSeq + uint64(d)
		} else if i != 0 && h.FirstSeq != 0 {
			seq++
		}
		var pos uint32
		if b.nullKeys != nil && bit(b.nullKeys, i) {
			if keyEnd != start {
				return b.badRecord(i, "null key with bytes")
			}
			pos = run.position(h.Producer, seq)
		} else {
			pos = Position(data[start:keyEnd])
		}
		minPos, maxPos = min(minPos, pos), max(maxPos, pos)
		if b.nullValues != nil && bit(b.nullValues, i) && keyEnd != valueEnd {
			return b.badRecord(i, "null value with bytes")
		}
		start = valueEnd
		if b.headerEnds != nil {
			start = entry(b.headerEnds, i)
			if start < valueEnd || uint64(start) > uint64(len(data)) {
				return b.badRecord(i, "ends out of order")
			}
			if !validHeaders(data[valueEnd:start]) {
				return b.badRecord(i, "malformed or too many headers")
			}
		}
	}
	switch {
	case uint64(start) != uint64(len(data)):
		return b.badRecord(n-1, "data behind the last record")
	case seq != h.LastSeq:
		return corrupt(offLast, "last sequence is not that of the records")
	case minPos != h.MinPos || maxPos != h.MaxPos:
		return corrupt(offMinPos, "positions are not those of the records")
	}
	return nil
}

// badRecord says where record i's key end lies.
func (b *Batch) badRecord(i int, reason string) error {
	return corruptAt(cap(b.payload)-cap(b.keyEnds)+4*i, reason)
}

func validHeaders(b []byte) bool {
	bytes := 0
	for n := 0; len(b) != 0; n++ {
		h, rest, ok := nextHeader(b)
		bytes += len(h.Key) + len(h.Value)
		if !ok || n == MaxHeaders || bytes > MaxHeaderBytes {
			return false
		}
		b = rest
	}
	return true
}

// walkTimes checks the smallest and largest timestamp.
func (b *Batch) walkTimes() error {
	h := &b.Head
	if b.timestamps == nil {
		if h.MinTime != h.MaxTime {
			return corrupt(offMinTime, "one time for all records, but two in the header")
		}
		return nil
	}
	lowest, highest := int64(math.MaxInt64), int64(math.MinInt64)
	for v := b.timestamps; len(v) >= 8; v = v[8:] {
		t := int64(binary.LittleEndian.Uint64(v))
		lowest, highest = min(lowest, t), max(highest, t)
	}
	if lowest != h.MinTime || highest != h.MaxTime {
		return corrupt(offMinTime, "times are not those of the records")
	}
	return nil
}
