package segfile

import (
	"encoding/binary"

	"github.com/zeebo/xxh3"

	"github.com/ringfence/ringfence/segfile/record"
)

// tally is what the frames of a file add up to, taken one by one in order: what
// the footer records. The writer adds as it plans, recovery and verification as
// they read, and all three come to the same.
//
// Marks count for nothing: a copy may have more of them than another. Void frames
// count as the frames they stand for, except that no producer sent them.
type tally struct {
	next   uint64 // offset after the last record
	bytes  uint64 // frames without padding
	frames uint64
	digest uint64
	index  index
	table  *ProducerTable // nil: not known

	minTime, maxTime int64 // ms, of records with a time; both 0 = none had one

	link link // of add; kept here so that a frame allocates nothing
}

// link is what the digest hashes for a frame: the digest before it and its header.
type link [8 + record.HeaderSize]byte

// identitySize is how much of a header belongs to a frame's identity: everything
// before the durable position. The payload is in it by its hash.
const identitySize = 112

func (t *tally) add(pos int64, h *record.Head) {
	if h.Mark() {
		return
	}
	t.index.add(entry{offset: h.Base, pos: pos, before: t.maxTime})
	t.next = h.Next()
	t.bytes += uint64(h.FrameLen)
	t.frames++
	t.digest = t.link.hash(t.digest, h)
	if t.table != nil {
		t.table.Update(h)
	}
	// A time of 0 or less is no time: nothing may be thought old because of it.
	if h.MaxTime > 0 {
		low := h.MinTime
		if low <= 0 {
			low = h.MaxTime
		}
		t.maxTime = max(t.maxTime, h.MaxTime)
		if t.minTime == 0 || low < t.minTime {
			t.minTime = low
		}
	}
}

// skip steps over a hole. One that had records counts with its length, because
// what they took is not known, and a segment with records has bytes.
func (t *tally) skip(h *Hole) {
	t.next = h.Offset + h.Records
	if h.Records > 0 {
		t.bytes += uint64(h.Length)
	}
}

// hash adds one frame's identity to a digest of those before it.
func (l *link) hash(digest uint64, h *record.Head) uint64 {
	binary.LittleEndian.PutUint64(l[:], digest)
	h.Put(l[8:], 0)
	return xxh3.Hash(l[:8+identitySize])
}
