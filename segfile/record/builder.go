package record

import "math"

// Builder builds one frame at a time in its caller's memory, forwards and in
// place: a key, a value or a header is copied once, to where it stays. The columns
// that cut the data up wait beside it, some bytes a record, until [Builder.Finish]
// puts them behind the data. A Builder that is used again allocates nothing.
//
// Reset comes first. A record that is refused changes nothing.
type Builder struct {
	buf      []byte // the caller's
	limit    int    // largest frame
	producer uint64

	size int       // bytes of data
	cols columnSet // optional columns that the records so far need

	keyEnds, valueEnds    []uint32
	headerEnds, sequences []uint32 // filled from the first record that needs them
	timestamps            []int64  // likewise
	nullKeys, nullValues  []byte   // likewise; as long as the last set bit needs

	firstSeq, lastSeq uint64
	minTime, maxTime  int64
	minPos, maxPos    uint32
	keyless           keyless

	pending pending
}

// pending is a record whose place is reserved.
type pending struct {
	valid                       bool
	cols                        columnSet // optional columns that it needs, sequences aside
	keyEnd, valueEnd, headerEnd int
	timestamp                   int64
}

// Reset starts an empty batch of a producer in buf, whose first bytes are kept for
// the header. The frame will be at most as long as buf, and as MaxFrame.
func (b *Builder) Reset(buf []byte, producer uint64) {
	*b = Builder{
		buf: buf, limit: min(len(buf), MaxFrame), producer: producer,
		keyEnds: b.keyEnds[:0], valueEnds: b.valueEnds[:0], headerEnds: b.headerEnds[:0],
		sequences: b.sequences[:0], timestamps: b.timestamps[:0],
		nullKeys: b.nullKeys[:0], nullValues: b.nullValues[:0],
		minTime: math.MaxInt64, maxTime: math.MinInt64, minPos: math.MaxUint32,
	}
}

// Len is the number of records so far.
func (b *Builder) Len() int { return len(b.keyEnds) }

// Bytes is the length of the frame if it were finished now, 0 while it is empty.
func (b *Builder) Bytes() int {
	if len(b.keyEnds) == 0 {
		return 0
	}
	return HeaderSize + payloadSize(len(b.keyEnds), b.size, b.cols)
}

// Positions are the smallest and the largest key position so far. They mean
// nothing while the batch is empty.
func (b *Builder) Positions() (lowest, highest uint32) { return b.minPos, b.maxPos }

// Sequences are the first and the last sequence so far, 0 for none.
func (b *Builder) Sequences() (first, last uint64) { return b.firstSeq, b.lastSeq }

// Add copies r to the end of the batch. Sequences start at 1 and increase, or are
// all 0 where the producer does not want its retries recognised.
//
// It answers ErrBatchFull when the batch has no room for r, ErrRecordTooLarge when
// an empty one would have none either.
func (b *Builder) Add(r *Record, seq uint64) error {
	if err := b.checkSequence(seq); err != nil {
		return err
	}
	keyLen, valueLen := len(r.Key), len(r.Value)
	if r.Key == nil {
		keyLen = -1
	}
	if r.Value == nil {
		valueLen = -1
	}
	if err := b.reserve(keyLen, valueLen, r.Headers, r.Timestamp, b.sequenceColumn(seq)); err != nil {
		return err
	}
	at := HeaderSize + dataAt + b.size
	copy(b.buf[at:], r.Key)
	copy(b.buf[at+len(r.Key):], r.Value)
	b.commit(r.Key, seq)
	return nil
}

// Reserve finds the place of the next record and answers where its key and value
// belong, for the caller to fill before [Builder.Commit]. A length of -1 means
// null. Headers are copied now. Another Reserve or Add takes the place back.
func (b *Builder) Reserve(keyLen, valueLen int, headers []Header, timestamp int64) (key, value []byte, err error) {
	cols := columnSet(0)
	if len(b.keyEnds) != 0 {
		cols = hasSequences // the sequence comes with Commit: there must be room for any
	}
	if err := b.reserve(keyLen, valueLen, headers, timestamp, cols); err != nil {
		return nil, nil, err
	}
	at := HeaderSize + dataAt
	p := &b.pending
	if p.cols&hasNullKeys == 0 {
		key = b.buf[at+b.size : at+p.keyEnd : at+p.keyEnd]
	}
	if p.cols&hasNullValues == 0 {
		value = b.buf[at+p.keyEnd : at+p.valueEnd : at+p.valueEnd]
	}
	return key, value, nil
}

// Commit adds the record that Reserve made room for, as it is filled now.
func (b *Builder) Commit(seq uint64) error {
	if !b.pending.valid {
		return ErrUsage
	}
	if err := b.checkSequence(seq); err != nil {
		return err
	}
	at := HeaderSize + dataAt
	b.commit(b.buf[at+b.size:at+b.pending.keyEnd], seq)
	return nil
}

func (b *Builder) checkSequence(seq uint64) error {
	switch {
	case len(b.keyEnds) == 0:
		return nil
	case b.firstSeq == 0 && seq == 0:
		return nil
	case b.firstSeq == 0 || seq <= b.lastSeq:
		return ErrSequence
	case seq-b.firstSeq > maxSpan:
		return ErrBatchFull
	}
	return nil
}

// sequenceColumn says whether a record of this sequence, added now, needs one.
func (b *Builder) sequenceColumn(seq uint64) columnSet {
	if n := uint64(len(b.keyEnds)); n == 0 || seq == 0 || seq-b.firstSeq == n {
		return 0
	}
	return hasSequences
}

// reserve makes room for a record that also needs the columns cols, and copies its
// headers there.
func (b *Builder) reserve(keyLen, valueLen int, headers []Header, timestamp int64, cols columnSet) error {
	// In place, field by field: a copy of the whole stalls on stores of other sizes.
	p, n := &b.pending, len(b.keyEnds)
	p.valid = false
	if max(keyLen, valueLen) > MaxFrame { // before a sum can overflow
		return ErrRecordTooLarge
	}
	headerLen := 0
	if len(headers) != 0 {
		var err error
		if headerLen, err = headersSize(headers); err != nil {
			return err
		}
		cols |= hasHeaders
	}
	if keyLen < 0 {
		keyLen, cols = 0, cols|hasNullKeys
	}
	if valueLen < 0 {
		valueLen, cols = 0, cols|hasNullValues
	}
	if n != 0 && timestamp != b.minTime {
		cols |= hasTimestamps
	}
	size := keyLen + valueLen + headerLen
	if n == MaxRecords || !b.fits(n+1, b.size+size, b.cols|cols) {
		if !b.fits(1, size, cols&^(hasTimestamps|hasSequences)) {
			return ErrRecordTooLarge
		}
		return ErrBatchFull
	}
	p.keyEnd = b.size + keyLen
	p.valueEnd = p.keyEnd + valueLen
	p.headerEnd = b.size + size
	p.timestamp, p.cols, p.valid = timestamp, cols&^hasSequences, true
	if headerLen != 0 {
		at := HeaderSize + dataAt
		putHeaders(b.buf[at+p.valueEnd:at+p.headerEnd], headers)
	}
	return nil
}

// fits says whether there is room for a batch of n records: in the memory, and
// within MaxFrame even where a Trim leaves sequences that need their column.
func (b *Builder) fits(n, size int, cols columnSet) bool {
	length := HeaderSize + payloadSize(n, size, cols)
	return length <= b.limit && (length <= MaxFrame/2 || trimSize(n, size, cols) <= MaxFrame)
}

// commit adds the pending record. It cannot fail.
func (b *Builder) commit(key []byte, seq uint64) {
	p := &b.pending
	if len(b.keyEnds) == 0 {
		b.firstSeq = seq
	}
	if cols := p.cols | b.sequenceColumn(seq); b.cols|cols != 0 {
		b.commitColumns(seq, cols)
	}
	var pos uint32
	if p.cols&hasNullKeys != 0 {
		pos = b.keyless.position(b.producer, seq)
	} else {
		pos = Position(key)
	}
	b.minPos, b.maxPos = min(b.minPos, pos), max(b.maxPos, pos)
	b.minTime, b.maxTime = min(b.minTime, p.timestamp), max(b.maxTime, p.timestamp)
	b.keyEnds = append(b.keyEnds, uint32(p.keyEnd))
	b.valueEnds = append(b.valueEnds, uint32(p.valueEnd))
	b.size, b.lastSeq = p.headerEnd, seq
	p.valid = false
}

// commitColumns adds the pending record to the optional columns, and starts those
// of cols that are new: the records before it get what their absence meant.
func (b *Builder) commitColumns(seq uint64, cols columnSet) {
	p, n := &b.pending, len(b.keyEnds)
	if added := cols &^ b.cols; added != 0 {
		b.startColumns(added)
	}
	if b.cols&hasHeaders != 0 {
		b.headerEnds = append(b.headerEnds, uint32(p.headerEnd))
	}
	if b.cols&hasTimestamps != 0 {
		b.timestamps = append(b.timestamps, p.timestamp)
	}
	if b.cols&hasSequences != 0 {
		b.sequences = append(b.sequences, uint32(seq-b.firstSeq))
	}
	if cols&hasNullKeys != 0 {
		b.nullKeys = setBit(b.nullKeys, n)
	}
	if cols&hasNullValues != 0 {
		b.nullValues = setBit(b.nullValues, n)
	}
}

func (b *Builder) startColumns(added columnSet) {
	b.cols |= added
	if added&hasHeaders != 0 {
		b.headerEnds = append(b.headerEnds, b.valueEnds...)
	}
	if added&hasTimestamps != 0 {
		for range b.keyEnds {
			b.timestamps = append(b.timestamps, b.minTime)
		}
	}
	if added&hasSequences != 0 {
		for i := range b.keyEnds {
			b.sequences = append(b.sequences, uint32(i))
		}
	}
}

func setBit(bits []byte, i int) []byte {
	for len(bits) <= i/8 {
		bits = append(bits, 0)
	}
	bits[i/8] |= 1 << (i % 8)
	return bits
}
