package segfile

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/ringfence/ringfence/fence"
)

// The footer says what is in the file, so that nobody has to read all of it. It
// lies on a boundary of 4,096 behind the flushes, or behind what recovery cut off.
//
//	off size field
//	  0    8 magic     "RFfooter"
//	  8    2 version   1
//	 12    4 index     entries
//	 16    8 length    of the footer, checksum included
//	 24    8 base      offset of the first record
//	 32    8 offset    where the segment ends: offset after the last record
//	 40    8 position  byte behind the last flush
//	 48    8 bytes     frames without padding
//	 56    8 frames    that have records
//	 64    8 digest    of all their identities, in order
//	 72    8 min time  smallest, ms; 0 = no record has a time
//	 80    8 max time  largest
//	 88    4 holes
//	 92    4 table     length of the producer table, 0 = not known
//	 96    8 cut       where recovery cut off bytes that it could not prove; 0 = nowhere
//	104    8 cut bytes
//	112    8 cut records, 0 = unknown
//	128      index     24 bytes each: offset, position, largest time before it
//	         holes     32 bytes each: position, length, first offset, records
//	         table
//	       4 crc       CRC-32C of all before it, begun with the salt
//
// and then zeros up to a boundary of 4,096.
const (
	footerMagic   = "RFfooter"
	footerVersion = 1

	foVersion  = 8
	foIndex    = 12
	foLength   = 16
	foBase     = 24
	foOffset   = 32
	foPosition = 40
	foBytes    = 48
	foFrames   = 56
	foDigest   = 64
	foMinTime  = 72
	foMaxTime  = 80
	foHoles    = 88
	foTable    = 92
	foCut      = 96
	foCutBytes = 104
	foCutRecs  = 112
	foFree     = 120

	footerFixed = 128
	entrySize   = 24
	holeSize    = 32
	maxHoles    = 4096

	maxFooter = footerFixed + indexMax*entrySize + maxHoles*holeSize + maxTable + 4
)

// Cut is what recovery could not prove and did not drop: it stays in the file,
// between the last frame and the footer.
type Cut struct {
	Position, Length int64
	Records          uint64 // offsets in it, 0 = unknown
}

// footer is a footer, read.
type footer struct {
	base             uint64
	end              fence.End
	frames           uint64
	digest           uint64
	minTime, maxTime int64
	index            []entry
	holes            []Hole
	table            *ProducerTable
	cut              Cut
}

func (t *tally) footer(base uint64, position int64, holes []Hole, cut Cut) footer {
	return footer{
		base: base, end: fence.End{Offset: t.next, Position: position, Bytes: t.bytes},
		frames: t.frames, digest: t.digest, minTime: t.minTime, maxTime: t.maxTime,
		index: t.index.entries, holes: holes, table: t.table, cut: cut,
	}
}

// encode returns the footer, padded to whole blocks, and its length without that.
func (f *footer) encode(salt uint64) (b []byte, length int64) {
	room := alignBlock(int64(footerFixed + len(f.index)*entrySize + len(f.holes)*holeSize + f.table.size() + 4))
	b = f.appendTo(make([]byte, 0, room), salt)
	length = int64(len(b))
	return append(b, make([]byte, alignBlock(length)-length)...), length
}

// appendTo appends the footer to buf, not padded.
func (f *footer) appendTo(buf []byte, salt uint64) []byte {
	le := binary.LittleEndian
	from := len(buf)
	buf = append(buf, make([]byte, footerFixed)...)
	b := buf[from:]
	for _, e := range f.index {
		b = le.AppendUint64(b, e.offset)
		b = le.AppendUint64(b, uint64(e.pos))
		b = le.AppendUint64(b, uint64(e.before))
	}
	for i := range f.holes {
		b = appendHole(b, &f.holes[i])
	}
	at := len(b)
	if f.table != nil {
		b, _ = f.table.AppendBinary(b) // it has no errors
	}
	length := len(b) + 4

	copy(b, footerMagic)
	le.PutUint16(b[foVersion:], footerVersion)
	le.PutUint32(b[foIndex:], uint32(len(f.index)))
	le.PutUint64(b[foLength:], uint64(length))
	le.PutUint64(b[foBase:], f.base)
	le.PutUint64(b[foOffset:], f.end.Offset)
	le.PutUint64(b[foPosition:], uint64(f.end.Position))
	le.PutUint64(b[foBytes:], f.end.Bytes)
	le.PutUint64(b[foFrames:], f.frames)
	le.PutUint64(b[foDigest:], f.digest)
	le.PutUint64(b[foMinTime:], uint64(f.minTime))
	le.PutUint64(b[foMaxTime:], uint64(f.maxTime))
	le.PutUint32(b[foHoles:], uint32(len(f.holes)))
	le.PutUint32(b[foTable:], uint32(len(b)-at))
	le.PutUint64(b[foCut:], uint64(f.cut.Position))
	le.PutUint64(b[foCutBytes:], uint64(f.cut.Length))
	le.PutUint64(b[foCutRecs:], f.cut.Records)
	return append(buf[:from], le.AppendUint32(b, saltedCRC(b, salt))...)
}

// footerAt says whether b starts like the footer of a file that ends at end: what
// a fence that was cut short leaves behind.
func footerAt(b []byte, end fence.End) bool {
	le := binary.LittleEndian
	return len(b) >= footerFixed && string(b[:foVersion]) == footerMagic &&
		le.Uint64(b[foOffset:]) == end.Offset && int64(le.Uint64(b[foPosition:])) == end.Position && le.Uint64(b[foBytes:]) == end.Bytes
}

// readFooter reads a footer of length bytes and holds it to its checksum, to the
// limits of the format and to the latch that led to it.
func readFooter(b []byte, length int64, salt, base uint64, end fence.End) (f footer, err error) {
	le := binary.LittleEndian
	if int64(len(b)) < length || length < footerFixed+4 {
		return f, errors.New("footer is cut off")
	}
	if string(b[:foVersion]) != footerMagic {
		return f, errors.New("no footer where the latch says")
	}
	body := b[:length-4]
	if le.Uint32(b[length-4:]) != saltedCRC(body, salt) {
		return f, errors.New("footer checksum does not match")
	}
	if le.Uint16(b[foVersion:]) != footerVersion || int64(le.Uint64(b[foLength:])) != length {
		return f, errors.New("footer version or length")
	}
	if !isZero(b[foVersion+2:foIndex]) || !isZero(b[foFree:footerFixed]) || !isZero(b[length:]) {
		return f, errors.New("unused bytes of the footer are not zero")
	}
	n, m, k := int64(le.Uint32(b[foIndex:])), int64(le.Uint32(b[foHoles:])), int64(le.Uint32(b[foTable:]))
	if n > indexMax || m > maxHoles || footerFixed+n*entrySize+m*holeSize+k+4 != length {
		return f, errors.New("footer parts do not fit its length")
	}
	f = footer{
		base:    le.Uint64(b[foBase:]),
		end:     fence.End{Offset: le.Uint64(b[foOffset:]), Position: int64(le.Uint64(b[foPosition:])), Bytes: le.Uint64(b[foBytes:])},
		frames:  le.Uint64(b[foFrames:]),
		digest:  le.Uint64(b[foDigest:]),
		minTime: int64(le.Uint64(b[foMinTime:])), maxTime: int64(le.Uint64(b[foMaxTime:])),
		cut: Cut{Position: int64(le.Uint64(b[foCut:])), Length: int64(le.Uint64(b[foCutBytes:])), Records: le.Uint64(b[foCutRecs:])},
	}
	if f.base != base || f.end != end {
		return f, fmt.Errorf("footer says [%d, %+v), header and latch say [%d, %+v)", f.base, f.end, base, end)
	}
	f.index = make([]entry, n)
	at := int64(footerFixed)
	for i := range f.index {
		f.index[i] = entry{le.Uint64(b[at:]), int64(le.Uint64(b[at+8:])), int64(le.Uint64(b[at+16:]))}
		at += entrySize
	}
	if err := checkIndex(f.index, base, end.Offset, end.Position); err != nil {
		return f, err
	}
	for range m {
		f.holes = append(f.holes, readHole(b[at:]))
		at += holeSize
	}
	if err := checkHoles(f.holes, base, end); err != nil {
		return f, err
	}
	if k != 0 {
		f.table, err = DecodeProducerTable(b[at : at+k])
	}
	return f, err
}

// checkHoles says whether holes lie in the segment, one behind the other.
func checkHoles(holes []Hole, base uint64, end fence.End) error {
	pos, offset := int64(DataStart), base
	for i, h := range holes {
		if h.Position < pos || h.Length <= 0 || h.Position+h.Length > end.Position || h.Position+h.Length < 0 ||
			h.Offset < offset || h.Offset+h.Records > end.Offset || h.Offset+h.Records < h.Offset {
			return fmt.Errorf("hole %d lies outside the segment or the ones before it", i)
		}
		pos, offset = h.Position+h.Length, h.Offset+h.Records
	}
	return nil
}
