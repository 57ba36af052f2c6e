package record

import (
	"encoding/binary"

	"github.com/zeebo/xxh3"
)

// Finish puts the columns behind the data and the header before it, and answers
// the frame: base and durable position 0, salt 0, for a primary to [Stamp].
// prevSeq is the sequence of the last record that the producer sent to the same
// range before, 0 for none. The batch stays as it is: Finish may be called again.
func (b *Builder) Finish(prevSeq uint64) ([]byte, error) {
	n := len(b.ends)
	switch {
	case n == 0:
		return nil, ErrEmpty
	case b.firstSeq == 0 && prevSeq != 0, b.firstSeq != 0 && prevSeq >= b.firstSeq:
		return nil, ErrSequence
	}
	frame := b.buf[:b.Bytes():b.Bytes()]
	payload := frame[HeaderSize:]
	w := columnWriter{b: payload, at: dataAt + b.size}
	binary.LittleEndian.PutUint32(payload[dataAt-4:], uint32(b.size))
	w.start()
	w.field(fieldData, dataAt-4)
	w.ends(b.ends)
	w.uint32s(fieldHeaderEnds, b.headerEnds)
	w.uint32s(fieldSequences, b.sequences)
	w.int64s(fieldTimestamps, b.timestamps)
	w.bits(fieldNullKeys, b.nullKeys, n)
	w.bits(fieldNullValues, b.nullValues, n)
	lowest, highest := b.Positions()
	h := Head{
		FrameLen: uint32(len(frame)), PayloadLen: uint32(len(payload)), RawLen: uint32(len(payload)), Count: uint32(n),
		MinTime: b.minTime, MaxTime: b.maxTime, MinPos: lowest, MaxPos: highest,
		Producer: b.producer, FirstSeq: b.firstSeq, LastSeq: b.lastSeq, PrevSeq: prevSeq,
		Hash: xxh3.Hash(payload),
	}
	h.Put(frame, 0)
	return frame, nil
}

// columnWriter writes the table and the vectors behind the data.
type columnWriter struct {
	b  []byte
	at int
}

func (w *columnWriter) start() {
	le := binary.LittleEndian
	clear(w.b[:dataAt-4])
	le.PutUint32(w.b, tableAt)
	le.PutUint16(w.b[vtableAt:], vtableSize)
	le.PutUint16(w.b[vtableAt+2:], tableSize)
	le.PutUint32(w.b[tableAt:], tableAt-vtableAt)
}

// field points a field at its vector.
func (w *columnWriter) field(f, vector int) {
	slot := 4 + 4*f
	binary.LittleEndian.PutUint16(w.b[vtableAt+4+2*f:], uint16(slot))
	binary.LittleEndian.PutUint32(w.b[tableAt+slot:], uint32(vector-tableAt-slot))
}

// vector starts the vector of a field whose entries are size bytes each.
func (w *columnWriter) vector(f, entries, size int) []byte {
	for w.at%4 != 0 || (w.at+4)%size != 0 && size == 8 {
		w.b[w.at] = 0
		w.at++
	}
	w.field(f, w.at)
	binary.LittleEndian.PutUint32(w.b[w.at:], uint32(entries))
	start := w.at + 4
	w.at = start + entries*size
	return w.b[start:w.at]
}

// ends writes the first two columns, which a Builder keeps side by side.
func (w *columnWriter) ends(column []ends) {
	keys := w.vector(fieldKeyEnds, len(column), 4)
	values := w.vector(fieldValueEnds, len(column), 4)
	le := binary.LittleEndian
	for len(column) >= 2 && len(keys) >= 8 && len(values) >= 8 {
		le.PutUint64(keys, uint64(column[0].key)|uint64(column[1].key)<<32)
		le.PutUint64(values, uint64(column[0].value)|uint64(column[1].value)<<32)
		column, keys, values = column[2:], keys[8:], values[8:]
	}
	for _, e := range column {
		le.PutUint32(keys, e.key)
		le.PutUint32(values, e.value)
	}
}

func (w *columnWriter) uint32s(f int, column []uint32) {
	if len(column) == 0 {
		return
	}
	out := w.vector(f, len(column), 4)
	for len(column) >= 2 && len(out) >= 8 {
		binary.LittleEndian.PutUint64(out, uint64(column[0])|uint64(column[1])<<32)
		column, out = column[2:], out[8:]
	}
	for _, v := range column {
		binary.LittleEndian.PutUint32(out, v)
	}
}

func (w *columnWriter) int64s(f int, column []int64) {
	if len(column) == 0 {
		return
	}
	out := w.vector(f, len(column), 8)
	for _, v := range column {
		binary.LittleEndian.PutUint64(out, uint64(v))
		out = out[8:]
	}
}

func (w *columnWriter) bits(f int, column []byte, records int) {
	if len(column) == 0 {
		return
	}
	out := w.vector(f, (records+7)/8, 1)
	clear(out[copy(out, column):])
}
