package record

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/zeebo/xxh3"
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
// panic; that answer's Head may be used, its records must not (VerifyShared).
func Verify(frame []byte, salt uint64, s *Scratch) (Batch, error) {
	h, err := Check(frame, salt)
	if err != nil {
		return Batch{}, err
	}
	return verify(h, frame, s)
}

// VerifyShared is Verify for memory that somebody may change meanwhile, but for its
// header, of which the caller has a copy. It answers nothing but that: whoever uses the
// records holds the memory against it afterwards (Unchanged). A compressed frame is an
// ErrUsage: what decompresses may look twice at what it reads, so that it is copied first.
func VerifyShared(header, frame []byte, salt uint64) (Head, error) {
	h, err := ParseHead(header, salt)
	switch {
	case err != nil:
		return Head{}, err
	case h.Codec != None:
		return Head{}, ErrUsage
	case uint64(h.FrameLen) > uint64(len(frame)):
		return Head{}, corrupt(offFrame, "frame is cut short")
	case xxh3.Hash(frame[HeaderSize:h.FrameLen]) != h.Hash:
		return Head{}, corrupt(HeaderSize, "payload checksum does not match")
	}
	b, err := verify(h, frame, nil)
	return b.Head, err
}

// verify is Verify for a frame whose checksums were checked. No bytes are known at which it
// panics; if some do, theirs is the frame that is refused, and everybody else goes on.
func verify(h Head, frame []byte, s *Scratch) (b Batch, err error) {
	defer func() {
		if r := recover(); r != nil {
			b, err = Batch{}, corrupt(HeaderSize, fmt.Sprint("reading the payload panicked: ", r))
		}
	}()
	b = Batch{Head: h, frame: frame[:h.FrameLen:h.FrameLen]}
	b.payload = b.frame[HeaderSize:]
	switch {
	case h.Mark():
		return b, nil
	case h.Void():
		if err := checkVoid(b.payload); err != nil {
			return Batch{}, err
		}
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
	if b.columns, err = locate(b.payload); err != nil {
		return Batch{}, err
	}
	if b.count != int(h.Count) {
		return Batch{}, corrupt(offCount, "record count is not that of the payload")
	}
	if trimSize(b.count, len(b.data), b.set()) > MaxFrame {
		return Batch{}, corrupt(offRaw, "batch leaves no room to trim it")
	}
	told, err := b.walk()
	if err != nil {
		return Batch{}, err
	}
	if err := h.compare(told); err != nil {
		return Batch{}, err
	}
	return b, nil
}

// facts are what the records themselves say about fields of the header.
type facts struct {
	minPos, maxPos   uint32
	minTime, maxTime int64
	lastSeq          uint64
}

func (h *Head) compare(f facts) error {
	switch {
	case f.lastSeq != h.LastSeq:
		return corrupt(offLast, "last sequence is not that of the records")
	case f.minPos != h.MinPos || f.maxPos != h.MaxPos:
		return corrupt(offMinPos, "positions are not those of the records")
	case f.minTime != h.MinTime || f.maxTime != h.MaxTime:
		return corrupt(offMinTime, "times are not those of the records")
	}
	return nil
}

// walk checks how the ends cut up the data and the headers in it, and whether
// sequences increase, and gathers the facts.
func (b *Batch) walk() (facts, error) {
	var (
		h         = &b.Head
		f         = facts{minPos: math.MaxUint32}
		data      = b.data
		keyEnds   = b.keyEnds[:4*b.count]
		valueEnds = b.valueEnds[:4*b.count]
		size      = uint32(len(data))
		start     uint32 // of the record
		seq       = h.FirstSeq
		run       keyless
	)
	if h.FirstSeq == 0 && b.sequences != nil {
		return f, corrupt(offFirst, "sequences without a first one")
	}
	for i := range b.count {
		keyEnd, valueEnd := entry(keyEnds, i), entry(valueEnds, i)
		if keyEnd < start || valueEnd < keyEnd || valueEnd > size {
			return f, b.corruptRecord(i, "ends out of order")
		}
		if i != 0 && h.FirstSeq != 0 {
			seq++
		}
		if b.sequences != nil {
			s := h.FirstSeq + uint64(entry(b.sequences, i))
			if s < seq || i == 0 && s != seq {
				return f, b.corruptRecord(i, "sequences out of order")
			}
			seq = s
		}
		var pos uint32
		if b.nullKeys != nil && bit(b.nullKeys, i) {
			if keyEnd != start {
				return f, b.corruptRecord(i, "null key with bytes")
			}
			pos = run.position(h.Producer, seq)
		} else {
			pos = Position(data[start:keyEnd])
		}
		f.minPos, f.maxPos = min(f.minPos, pos), max(f.maxPos, pos)
		if b.nullValues != nil && bit(b.nullValues, i) && keyEnd != valueEnd {
			return f, b.corruptRecord(i, "null value with bytes")
		}
		start = valueEnd
		if b.headerEnds != nil {
			start = entry(b.headerEnds, i)
			if start < valueEnd || start > size {
				return f, b.corruptRecord(i, "ends out of order")
			}
			if !validHeaders(data[valueEnd:start]) {
				return f, b.corruptRecord(i, "malformed headers, or too many")
			}
		}
	}
	if start != size {
		return f, b.corruptRecord(b.count-1, "data behind the last record")
	}
	f.lastSeq = seq
	f.minTime, f.maxTime = b.times()
	return f, nil
}

// corruptRecord points at the key end of record i.
func (b *Batch) corruptRecord(i int, reason string) error {
	return corruptAt(b.keyEndsAt+4*i, reason)
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

// times are the smallest and the largest timestamp. Without a column both are the
// header's smallest.
func (b *Batch) times() (lowest, highest int64) {
	if b.timestamps == nil {
		return b.Head.MinTime, b.Head.MinTime
	}
	lowest, highest = math.MaxInt64, math.MinInt64
	for v := b.timestamps; len(v) >= 8; v = v[8:] {
		t := int64(binary.LittleEndian.Uint64(v))
		lowest, highest = min(lowest, t), max(highest, t)
	}
	return lowest, highest
}
