package record

import "encoding/binary"

// Batch is a verified frame. It points into the frame, or into the Scratch that
// the frame was decompressed to, and is good for as long as they are left alone.
// What it answers points there too: not to be changed, and not to be kept for
// longer.
type Batch struct {
	Head    Head
	frame   []byte // header and payload as they were given
	payload []byte // decompressed
	columns
}

func entry(column []byte, i int) uint32 { return binary.LittleEndian.Uint32(column[4*i:]) }

func bit(column []byte, i int) bool { return column[i/8]>>(i%8)&1 != 0 }

// Len is the number of records; 0 for a mark, and for a void frame.
func (b *Batch) Len() int { return b.count }

// Frame is the frame as it was given, without what may have followed it.
func (b *Batch) Frame() []byte { return b.frame }

// Payload is the decompressed payload: the bytes of a mark, or a flatbuffer that
// generated accessors may read.
func (b *Batch) Payload() []byte { return b.payload }

func (b *Batch) start(i int) uint32 {
	if i == 0 {
		return 0
	}
	return entry(b.ends, i-1)
}

// Key of record i, nil where it is null.
func (b *Batch) Key(i int) []byte {
	if b.nullKeys != nil && bit(b.nullKeys, i) {
		return nil
	}
	end := entry(b.keyEnds, i)
	return b.data[b.start(i):end:end]
}

// Value of record i, nil where it is null.
func (b *Batch) Value(i int) []byte {
	if b.nullValues != nil && bit(b.nullValues, i) {
		return nil
	}
	end := entry(b.valueEnds, i)
	return b.data[entry(b.keyEnds, i):end:end]
}

// Headers appends the headers of record i to dst.
func (b *Batch) Headers(i int, dst []Header) []Header {
	for rest := b.headerBytes(i); len(rest) != 0; {
		h, after, ok := nextHeader(rest)
		if !ok {
			panic("record: headers changed after they were verified")
		}
		dst, rest = append(dst, h), after
	}
	return dst
}

func (b *Batch) headerBytes(i int) []byte {
	if b.headerEnds == nil {
		return nil
	}
	return b.data[entry(b.valueEnds, i):entry(b.headerEnds, i)]
}

// Timestamp of record i in milliseconds since 1970.
func (b *Batch) Timestamp(i int) int64 {
	if b.timestamps == nil {
		return b.Head.MinTime
	}
	return int64(binary.LittleEndian.Uint64(b.timestamps[8*i:]))
}

// Seq is the sequence of record i, 0 where records have none.
func (b *Batch) Seq(i int) uint64 {
	switch {
	case b.Head.FirstSeq == 0:
		return 0
	case b.sequences == nil:
		return b.Head.FirstSeq + uint64(i)
	}
	return b.Head.FirstSeq + uint64(entry(b.sequences, i))
}

// Position of record i in the keyspace.
func (b *Batch) Position(i int) uint32 {
	if b.nullKeys != nil && bit(b.nullKeys, i) {
		return KeylessPosition(b.Head.Producer, b.Seq(i))
	}
	return Position(b.Key(i))
}

// Offset of record i in its range, once the frame is stamped.
func (b *Batch) Offset(i int) uint64 { return b.Head.Base + uint64(i) }

// Record is record i as a whole. It allocates where there are headers.
func (b *Batch) Record(i int) Record {
	return Record{Key: b.Key(i), Value: b.Value(i), Headers: b.Headers(i, nil), Timestamp: b.Timestamp(i)}
}
