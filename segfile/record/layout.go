package record

import "encoding/binary"

// A Builder writes the flatbuffer of recfb/batch.fbs forwards, in one fixed
// layout. Behind its vtable every offset points onwards, so the columns, whose
// size is known last, can follow the data.
//
//	off size
//	  0    4 root       where the table is: 24
//	  4    2 vtable     its size: 20
//	  6    2            the table's size: 36
//	  8   16            where each field is in the table, 0 = absent
//	 24    4 table      how far before it its vtable is: 20
//	 28   32            8 fields: how far behind the field its vector is
//	 60    4 data       its length
//	 64    n            keys, values and headers
//
// and then, each on a boundary of 4 bytes with its length before it: key ends,
// value ends, header ends, sequences, timestamps (entries on a boundary of 8),
// null keys, null values. Gaps are zero. In a frame that starts on a boundary of
// 64 bytes the data does too.
//
// Verify accepts any other layout that a flatbuffer may have.
const (
	fieldData = iota
	fieldKeyEnds
	fieldValueEnds
	fieldHeaderEnds
	fieldTimestamps
	fieldSequences
	fieldNullKeys
	fieldNullValues
	fields
)

const (
	vtableAt   = 4
	vtableSize = 4 + 2*fields
	tableAt    = vtableAt + vtableSize
	tableSize  = 4 + 4*fields
	dataAt     = tableAt + tableSize + 4
)

const (
	_ = uint(0 - tableAt%4)
	_ = uint(64 - dataAt)
	_ = uint(dataAt - 64)
)

// minPayload is the size of the smallest payload that has a root and a table.
const minPayload = 8

// maxSpan is the largest difference of sequences in a batch.
const maxSpan = 1<<32 - 1

// columnSet says which of the optional columns a batch has: bit field.
type columnSet uint

const (
	hasHeaders    columnSet = 1 << fieldHeaderEnds
	hasTimestamps columnSet = 1 << fieldTimestamps
	hasSequences  columnSet = 1 << fieldSequences
	hasNullKeys   columnSet = 1 << fieldNullKeys
	hasNullValues columnSet = 1 << fieldNullValues
)

// No batch takes more than this behind its data: a record's entries in all the
// columns, and once the columns' lengths, their padding and a last record.
const (
	columnsBytes = 4*4 + 8 + 2
	columnsFixed = 128
)

// payloadSize is the length of a payload of n records with size bytes of data.
func payloadSize(n, size int, cols columnSet) int {
	at := dataAt + (size+3)&^3 + 2*(4+4*n)
	if cols == 0 {
		return at
	}
	if cols&hasHeaders != 0 {
		at += 4 + 4*n
	}
	if cols&hasSequences != 0 {
		at += 4 + 4*n
	}
	if cols&hasTimestamps != 0 {
		at = (at+4+7)&^7 + 8*n
	}
	if cols&hasNullKeys != 0 {
		at += 4 + (n+7)/8
	}
	if cols&hasNullValues != 0 {
		at = (at+3)&^3 + 4 + (n+7)/8
	}
	return at
}

// trimSize is the length of a frame of at most n such records, whichever they are:
// leaving some out can make sequences that were consecutive need their column.
func trimSize(n, size int, cols columnSet) int {
	return HeaderSize + payloadSize(n, size, cols|hasSequences)
}

// headerPrefix is the size of the two lengths before a header's key.
const headerPrefix = 8

// nullLength is the length of a null header value.
const nullLength = 1<<32 - 1

// headersSize answers how many bytes headers take in the data, or
// ErrRecordTooLarge.
func headersSize(headers []Header) (int, error) {
	if len(headers) > MaxHeaders {
		return 0, ErrRecordTooLarge
	}
	n := 0
	for i := range headers {
		n += len(headers[i].Key) + len(headers[i].Value)
		if n > MaxHeaderBytes {
			return 0, ErrRecordTooLarge
		}
	}
	return n + headerPrefix*len(headers), nil
}

// putHeaders writes headers to b, which is as long as headersSize says.
func putHeaders(b []byte, headers []Header) {
	for i := range headers {
		h := &headers[i]
		binary.LittleEndian.PutUint32(b, uint32(len(h.Key)))
		length := uint32(len(h.Value))
		if h.Value == nil {
			length = nullLength
		}
		binary.LittleEndian.PutUint32(b[4:], length)
		b = b[headerPrefix:]
		b = b[copy(b, h.Key):]
		b = b[copy(b, h.Value):]
	}
}

// nextHeader cuts the first header off b. It answers ok = false where b does not
// start with one.
func nextHeader(b []byte) (h Header, rest []byte, ok bool) {
	if len(b) < headerPrefix {
		return Header{}, nil, false
	}
	keyLen, valueLen := uint64(binary.LittleEndian.Uint32(b)), uint64(binary.LittleEndian.Uint32(b[4:]))
	b = b[headerPrefix:]
	null := valueLen == nullLength
	if null {
		valueLen = 0
	}
	if keyLen+valueLen > uint64(len(b)) {
		return Header{}, nil, false
	}
	h.Key = b[:keyLen:keyLen]
	if !null {
		h.Value = b[keyLen : keyLen+valueLen : keyLen+valueLen]
	}
	return h, b[keyLen+valueLen:], true
}
