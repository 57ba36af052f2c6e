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
	ample    int    // data and columnsBytes a record that fit, whatever the columns
	producer uint64

	size int       // bytes of data
	cols columnSet // optional columns that the records so far need

	ends                  []ends
	headerEnds, sequences []uint32 // filled from the first record that needs them
	timestamps            []int64  // likewise
	nullKeys, nullValues  []byte   // likewise; as long as the last set bit needs

	firstSeq, lastSeq uint64
	minTime, maxTime  int64
	keyed, unkeyed    span // positions of the records with and without a key
	keyless           keyless

	pending pending
}

// ends is where a record's key and its value end in the data.
type ends struct{ key, value uint32 }

// span is the smallest and the largest of some positions.
type span struct{ lowest, highest uint32 }

// noSpan is the span of nothing: it adds nothing to another.
var noSpan = span{lowest: math.MaxUint32}

func (s *span) add(pos uint32) { s.lowest, s.highest = min(s.lowest, pos), max(s.highest, pos) }

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
	limit := min(len(buf), MaxFrame)
	*b = Builder{
		buf: buf, limit: limit, ample: min(limit, MaxFrame/2) - HeaderSize - dataAt - columnsFixed, producer: producer,
		ends: b.ends[:0], headerEnds: b.headerEnds[:0],
		sequences: b.sequences[:0], timestamps: b.timestamps[:0],
		nullKeys: b.nullKeys[:0], nullValues: b.nullValues[:0],
		minTime: math.MaxInt64, maxTime: math.MinInt64, keyed: noSpan, unkeyed: noSpan,
	}
}

// Len is the number of records so far.
func (b *Builder) Len() int { return len(b.ends) }

// Bytes is the length of the frame if it were finished now, 0 while it is empty.
func (b *Builder) Bytes() int {
	if len(b.ends) == 0 {
		return 0
	}
	return HeaderSize + payloadSize(len(b.ends), b.size, b.cols)
}

// Positions are the smallest and the largest key position so far. They mean
// nothing while the batch is empty.
func (b *Builder) Positions() (lowest, highest uint32) {
	return min(b.keyed.lowest, b.unkeyed.lowest), max(b.keyed.highest, b.unkeyed.highest)
}

// PositionsFrom is what Positions would be if the records had the sequences from
// first on, one after another.
func (b *Builder) PositionsFrom(first uint64) (lowest, highest uint32) {
	s := b.keyed
	for i := 0; i < 8*len(b.nullKeys); i++ {
		if b.nullKeys[i/8]&(1<<(i%8)) != 0 {
			seq := first + uint64(i)
			s.add(KeylessPosition(b.producer, seq))
			i += KeylessRun - 1 - int(seq%KeylessRun) // the rest of the run lies there too
		}
	}
	return s.lowest, s.highest
}

// Sequences are the first and the last sequence so far, 0 for none.
func (b *Builder) Sequences() (first, last uint64) { return b.firstSeq, b.lastSeq }

// Add copies r to the end of the batch. Sequences start at 1 and increase, or are
// all 0 where the producer does not want its retries recognised.
//
// It answers ErrBatchFull when the batch has no room for r, ErrRecordTooLarge when
// an empty one would have none either.
func (b *Builder) Add(r *Record, seq uint64) error { return b.AddAt(r, Position(r.Key), seq) }

// AddAt is Add for callers who know the [Position] of r's key already. A null key
// has none, and pos is ignored.
func (b *Builder) AddAt(r *Record, pos uint32, seq uint64) error {
	cols, err := b.sequenceColumn(seq)
	if err != nil {
		return err
	}
	keyLen, valueLen := len(r.Key), len(r.Value)
	if r.Key == nil {
		keyLen = -1
	}
	if r.Value == nil {
		valueLen = -1
	}
	if err := b.reserve(keyLen, valueLen, r.Headers, r.Timestamp, cols); err != nil {
		return err
	}
	at := HeaderSize + dataAt + b.size
	copy(b.buf[at:], r.Key)
	copy(b.buf[at+len(r.Key):], r.Value)
	b.commit(pos, seq, cols)
	return nil
}

// Reserve finds the place of the next record and answers where its key and value
// belong, for the caller to fill before [Builder.Commit]. A length of -1 means
// null. Headers are copied now. Another Reserve or Add takes the place back.
func (b *Builder) Reserve(keyLen, valueLen int, headers []Header, timestamp int64) (key, value []byte, err error) {
	cols := columnSet(0)
	if len(b.ends) != 0 {
		cols = hasSequences // the sequence comes with Commit: there must be room for any
	}
	if err := b.reserve(keyLen, valueLen, headers, timestamp, cols); err != nil {
		return nil, nil, err
	}
	p := &b.pending
	data := b.buf[HeaderSize+dataAt:]
	if p.cols&hasNullKeys == 0 {
		key = data[b.size:p.keyEnd:p.keyEnd]
	}
	if p.cols&hasNullValues == 0 {
		value = data[p.keyEnd:p.valueEnd:p.valueEnd]
	}
	return key, value, nil
}

// Commit adds the record that Reserve made room for, as it is filled now.
func (b *Builder) Commit(seq uint64) error {
	if !b.pending.valid {
		return ErrUsage
	}
	cols, err := b.sequenceColumn(seq)
	if err != nil {
		return err
	}
	at := HeaderSize + dataAt
	b.commit(Position(b.buf[at+b.size:at+b.pending.keyEnd]), seq, cols)
	return nil
}

// sequenceColumn says whether a record of this sequence, added now, needs the
// sequences' column, or why it cannot be added.
func (b *Builder) sequenceColumn(seq uint64) (columnSet, error) {
	if n := uint64(len(b.ends)); n == 0 || seq == b.firstSeq+n && b.firstSeq != 0 || seq|b.firstSeq == 0 {
		return 0, nil
	}
	switch {
	case b.firstSeq == 0 || seq <= b.lastSeq:
		return 0, ErrSequence
	case seq-b.firstSeq > maxSpan:
		return 0, ErrBatchFull
	}
	return hasSequences, nil
}

// reserve makes room for a record that also needs the columns cols, and copies its
// headers there.
func (b *Builder) reserve(keyLen, valueLen int, headers []Header, timestamp int64, cols columnSet) error {
	// In place, field by field: a copy of the whole stalls on stores of other sizes.
	p, n := &b.pending, len(b.ends)
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
	if timestamp != b.minTime && n != 0 {
		cols |= hasTimestamps
	}
	p.keyEnd = b.size + keyLen
	p.valueEnd = p.keyEnd + valueLen
	p.headerEnd = p.valueEnd + headerLen
	if p.headerEnd+columnsBytes*n > b.ample && (n == MaxRecords || !b.fits(n+1, p.headerEnd, b.cols|cols)) {
		if !b.fits(1, p.headerEnd-b.size, cols&^(hasTimestamps|hasSequences)) {
			return ErrRecordTooLarge
		}
		return ErrBatchFull
	}
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

// commit adds the pending record, whose key lies at pos. It cannot fail.
func (b *Builder) commit(pos uint32, seq uint64, cols columnSet) {
	p := &b.pending
	if len(b.ends) == 0 {
		b.firstSeq = seq
	}
	if cols |= p.cols; b.cols|cols != 0 {
		b.commitColumns(seq, cols)
	}
	if p.cols&hasNullKeys != 0 {
		b.unkeyed.add(b.keyless.position(b.producer, seq))
	} else {
		b.keyed.add(pos)
	}
	b.minTime, b.maxTime = min(b.minTime, p.timestamp), max(b.maxTime, p.timestamp)
	b.ends = append(b.ends, ends{uint32(p.keyEnd), uint32(p.valueEnd)})
	b.size, b.lastSeq = p.headerEnd, seq
	p.valid = false
}

// commitColumns adds the pending record to the optional columns, and starts those
// of cols that are new: the records before it get what their absence meant.
func (b *Builder) commitColumns(seq uint64, cols columnSet) {
	p, n := &b.pending, len(b.ends)
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
		for _, e := range b.ends {
			b.headerEnds = append(b.headerEnds, e.value)
		}
	}
	if added&hasTimestamps != 0 {
		for range b.ends {
			b.timestamps = append(b.timestamps, b.minTime)
		}
	}
	if added&hasSequences != 0 {
		for i := range b.ends {
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
