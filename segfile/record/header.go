package record

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
)

// A frame is a header of 128 bytes, then the payload. Integers are little-endian,
// bytes not listed are zero. Frames lie on boundaries of 64 bytes in a flush; no
// length includes that padding.
//
//	off size field
//	  0    4 magic     "RFrm"
//	  4    2 version   1; 2 of a lent frame
//	  6    1 codec     0 none, 1 s2, 2 zstd
//	  7    1 flags     one at most. bit 0: a mark, no records; bit 1: void, its records are
//	                   not stored; bit 2: lent, in version 2 alone
//	  8    4 frame     length of header and payload
//	 12    4 payload   length of the payload as it lies here
//	 16    4 raw       length of the payload decompressed
//	 20    4 count     records
//	 24    8 base      offset of the first record, given by the primary; 0 until then
//	 32    8 min time  smallest timestamp, milliseconds since 1970
//	 40    8 max time  largest
//	 48    4 min pos   smallest key position, of 32 bits
//	 52    4 max pos   largest
//	 56    8 producer
//	 64    8 first     sequence of the first record; 0: none has one
//	 72    8 last      sequence of the last record
//	 80    8 prev      the producer's last sequence on this range before first, 0 for none
//	 88    8 hash      XXH3-64 of the payload as it lies here
//	 96   16 zero
//	112    8 durable   bytes of this copy known to be durable when the frame was written
//	120    4 zero
//	124    4 crc       CRC-32C of the 124 bytes before it, begun with the salt
//
// The CRC begins with the upper half of the product of the segment's salt and
// 0x9e3779b97f4a7c15, in place of 0, so bytes of another segment, or of a recycled
// file's earlier life, do not verify. A frame that was not stored yet has salt 0:
// a plain CRC-32C. In every later version magic, version and CRC stay where they
// are.
//
// A frame's identity, the same on every replica, is everything before durable.
//
// A void frame takes the place of a frame that was not stored, offsets and all: its
// header is that frame's, but that the payload is zeros, whatever the codec was.
//
// A lent frame was written from memory that its producer could change all the while. Its
// header is the writer's own, as with any other, and so is a header that does not verify
// damage like any other; a payload that does not verify is, most likely, what the producer
// made of it, so it is that producer's loss alone: readers say so and go on behind it. It has
// a version of its own because a program that does not know the flag is to refuse the file
// as a newer one's, and not to take such a frame for damage. Only who stores frames makes
// one lent: none is sent, or answered, as one with salt 0.
const (
	HeaderSize = 128
	FrameAlign = 64 // where frames start inside a flush

	magic       = "RFrm"
	version     = 1
	versionLent = 2 // the last one

	offVersion  = 4
	offCodec    = 6
	offFlags    = 7
	offFrame    = 8
	offPayload  = 12
	offRaw      = 16
	offCount    = 20
	offBase     = 24
	offMinTime  = 32
	offMaxTime  = 40
	offMinPos   = 48
	offMaxPos   = 52
	offProducer = 56
	offFirst    = 64
	offLast     = 72
	offPrev     = 80
	offHash     = 88
	offZeroA    = 96
	offDurable  = 112
	offZeroB    = 120
	offCRC      = 124
)

// The header ends at its checksum, fills whole alignment units, and keeps its
// 8-byte fields on 8-byte boundaries.
const (
	_ = uint(HeaderSize - offCRC - 4)
	_ = uint(offCRC + 4 - HeaderSize)
	_ = uint(0 - HeaderSize%FrameAlign)
	_ = uint(0 - (offBase|offMinTime|offMaxTime|offProducer|offFirst|offLast|offPrev|offHash|offDurable)%8)
	_ = uint(offHash + 8 - offZeroA)
	_ = uint(offZeroA - offHash - 8)
)

// Flags. From a mark and from a void frame no record can be read.
const (
	FlagMark = 1 << iota // there never were any
	FlagVoid             // they were not stored, and nobody was told that they were
	FlagLent             // they were written from memory that their producer could change
)

// Head is a frame header, read.
type Head struct {
	Codec             Codec
	Flags             uint8
	FrameLen          uint32 // header and payload
	PayloadLen        uint32
	RawLen            uint32 // of the payload decompressed
	Count             uint32
	Base              uint64
	MinTime, MaxTime  int64
	MinPos, MaxPos    uint32
	Producer          uint64
	FirstSeq, LastSeq uint64
	PrevSeq           uint64
	Hash              uint64
	Durable           int64
}

// Mark says whether the frame has no records.
func (h *Head) Mark() bool { return h.Flags&FlagMark != 0 }

// Void says whether the frame stands for records that were not stored.
func (h *Head) Void() bool { return h.Flags&FlagVoid != 0 }

// Lent says whether the payload was written from memory that its producer could change.
func (h *Head) Lent() bool { return h.Flags&FlagLent != 0 }

// version is the format that the frame needs its readers to know.
func (h *Head) version() uint16 {
	if h.Lent() {
		return versionLent
	}
	return version
}

// Next is the offset after the frame's last record.
func (h *Head) Next() uint64 { return h.Base + uint64(h.Count) }

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// saltFactor spreads salts that differ in few bits over the CRC's 32.
const saltFactor = 0x9e3779b97f4a7c15

func headerCRC(b []byte, salt uint64) uint32 {
	return crc32.Update(uint32(salt*saltFactor>>32), castagnoli, b[:offCRC])
}

// Put writes h to the first HeaderSize bytes of b, with the checksum of salt.
func (h *Head) Put(b []byte, salt uint64) {
	b = b[:HeaderSize:HeaderSize]
	le := binary.LittleEndian
	copy(b, magic)
	le.PutUint16(b[offVersion:], h.version())
	b[offCodec], b[offFlags] = uint8(h.Codec), h.Flags
	le.PutUint32(b[offFrame:], h.FrameLen)
	le.PutUint32(b[offPayload:], h.PayloadLen)
	le.PutUint32(b[offRaw:], h.RawLen)
	le.PutUint32(b[offCount:], h.Count)
	le.PutUint64(b[offBase:], h.Base)
	le.PutUint64(b[offMinTime:], uint64(h.MinTime))
	le.PutUint64(b[offMaxTime:], uint64(h.MaxTime))
	le.PutUint32(b[offMinPos:], h.MinPos)
	le.PutUint32(b[offMaxPos:], h.MaxPos)
	le.PutUint64(b[offProducer:], h.Producer)
	le.PutUint64(b[offFirst:], h.FirstSeq)
	le.PutUint64(b[offLast:], h.LastSeq)
	le.PutUint64(b[offPrev:], h.PrevSeq)
	le.PutUint64(b[offHash:], h.Hash)
	clear(b[offZeroA:offDurable])
	le.PutUint64(b[offDurable:], uint64(h.Durable))
	le.PutUint32(b[offZeroB:], 0)
	le.PutUint32(b[offCRC:], headerCRC(b, salt))
}

// Shared, because a search through a file meets them at every step.
var (
	errShort = &FrameError{Reason: "shorter than a frame header"}
	errMagic = &FrameError{Reason: "no frame starts here"}
	errCRC   = &FrameError{Reason: "header checksum does not match (damaged, or written under another salt)", Byte: offCRC}
)

// ParseHead reads the header at the start of b and holds it against its checksum
// and the limits of the format. It needs HeaderSize bytes, reads each field once,
// and looks at no payload.
func ParseHead(b []byte, salt uint64) (Head, error) {
	if len(b) < HeaderSize {
		return Head{}, errShort
	}
	b = b[:HeaderSize:HeaderSize]
	if string(b[:offVersion]) != magic {
		return Head{}, errMagic
	}
	le := binary.LittleEndian
	if le.Uint32(b[offCRC:]) != headerCRC(b, salt) {
		return Head{}, errCRC
	}
	v := le.Uint16(b[offVersion:])
	if v > versionLent {
		return Head{}, fmt.Errorf("%w (version %d, this build reads %d)", ErrVersion, v, versionLent)
	}
	h := Head{
		Codec:      Codec(b[offCodec]),
		Flags:      b[offFlags],
		FrameLen:   le.Uint32(b[offFrame:]),
		PayloadLen: le.Uint32(b[offPayload:]),
		RawLen:     le.Uint32(b[offRaw:]),
		Count:      le.Uint32(b[offCount:]),
		Base:       le.Uint64(b[offBase:]),
		MinTime:    int64(le.Uint64(b[offMinTime:])),
		MaxTime:    int64(le.Uint64(b[offMaxTime:])),
		MinPos:     le.Uint32(b[offMinPos:]),
		MaxPos:     le.Uint32(b[offMaxPos:]),
		Producer:   le.Uint64(b[offProducer:]),
		FirstSeq:   le.Uint64(b[offFirst:]),
		LastSeq:    le.Uint64(b[offLast:]),
		PrevSeq:    le.Uint64(b[offPrev:]),
		Hash:       le.Uint64(b[offHash:]),
		Durable:    int64(le.Uint64(b[offDurable:])),
	}
	if le.Uint64(b[offZeroA:])|le.Uint64(b[offZeroA+8:])|uint64(le.Uint32(b[offZeroB:])) != 0 {
		return Head{}, corrupt(offZeroA, "reserved header bytes are not zero")
	}
	if err := h.check(); err != nil {
		return Head{}, err
	}
	if v != h.version() {
		return Head{}, corrupt(offVersion, "unknown version, or one that has no such flags")
	}
	return h, nil
}

// check holds h to the limits of the format and its fields to one another.
func (h *Head) check() error {
	switch {
	case h.Codec > codecs:
		return corrupt(offCodec, "unknown codec")
	case h.Flags > FlagLent || h.Flags&(h.Flags-1) != 0: // there is one of them at most
		return corrupt(offFlags, "unknown flags")
	case h.FrameLen < HeaderSize || h.FrameLen > MaxFrame:
		return corrupt(offFrame, "frame length out of bounds")
	case h.PayloadLen != h.FrameLen-HeaderSize:
		return corrupt(offPayload, "payload length does not match the frame's")
	case h.RawLen > MaxFrame-HeaderSize:
		return corrupt(offRaw, "decompressed length out of bounds")
	case h.Codec == None && h.RawLen != h.PayloadLen:
		return corrupt(offRaw, "decompressed length of a plain payload does not match")
	case h.Base+uint64(h.Count) < h.Base:
		return corrupt(offBase, "offsets overflow")
	case h.Durable < 0:
		return corrupt(offDurable, "durable position is negative")
	case h.MinTime > h.MaxTime:
		return corrupt(offMinTime, "times out of order")
	case h.MinPos > h.MaxPos:
		return corrupt(offMinPos, "positions out of order")
	case h.Mark():
		return h.checkMark()
	case h.Count == 0 || h.Count > MaxRecords:
		return corrupt(offCount, "record count out of bounds")
	case h.Void() && h.Codec != None:
		return corrupt(offCodec, "a void frame that is compressed")
	case !h.Void() && h.Count > h.RawLen/4: // whatever the layout, there is one end a record
		return corrupt(offCount, "more records than the payload can hold")
	}
	return h.checkSequences()
}

func (h *Head) checkSequences() error {
	switch {
	case h.FirstSeq == 0 && h.LastSeq|h.PrevSeq != 0:
		return corrupt(offFirst, "sequences without a first one")
	case h.FirstSeq == 0:
		return nil
	case h.LastSeq < h.FirstSeq || h.LastSeq-h.FirstSeq < uint64(h.Count)-1 || h.LastSeq-h.FirstSeq > maxSpan:
		return corrupt(offLast, "sequences do not match the record count")
	case h.PrevSeq >= h.FirstSeq:
		return corrupt(offPrev, "predecessor is not before the first sequence")
	}
	return nil
}

// checkMark: what describes records is zero in a mark.
func (h *Head) checkMark() error {
	zero := Head{
		Flags: h.Flags, FrameLen: h.FrameLen, PayloadLen: h.PayloadLen, RawLen: h.RawLen,
		Base: h.Base, Hash: h.Hash, Durable: h.Durable,
	}
	if *h != zero {
		return corrupt(offFlags, "a mark that describes records")
	}
	return nil
}
