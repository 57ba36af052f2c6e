package host

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"github.com/zeebo/xxh3"
)

// A journal slot is one file. Integers are little-endian, unlisted bytes zero.
//
//	block 0, one sector of it used, so that it is old or new after a crash:
//	  off size field
//	    0    8 magic      "RFraft\x00\x01"
//	    8    4 version    2
//	   12    4 blocks     of 4,096 bytes that the slot had when the generation began, and has until
//	                      the next one: a shorter one was cut. 0 in version 1, which had none
//	   16    8 generation counts rotations; the higher of two slots is the journal
//	   24    8 salt       random per generation, seeds every frame's hash
//	   32    8 start      how often the directory was opened, this time included
//	   40   16 disk       identity of the directory
//	   56    4 crc        CRC-32C of the 56 bytes before it
//	then frames, each on a block boundary and padded with zeros to the next one:
//	    0    8 hash       XXH3-64 of all that follows, seeded with the salt
//	    8    4 magic      0x4d465246
//	   12    4 kind       checkpoint, checkpointEnd, records or mark
//	   16    8 sequence   1, 2, 3 ... within the generation
//	   24    4 length     of the payload
//	   28      payload    records, see record.go
const (
	journalVersion = 2

	offBlocks = 12

	offGeneration, offSalt, offStart, offDisk, offSlotCRC, slotHeaderLen = 16, 24, 32, 40, 56, 60

	offMagic, offKind, offSequence, offLength, frameHeaderLen = 8, 12, 16, 24, 28

	block = 4096

	frameMagic = 0x4d465246
	// maxFrame bounds a frame's payload, so that a damaged length allocates nothing foolish.
	maxFrame = 64 << 20
)

const _ = uint(512 - slotHeaderLen) // the slot header fits one sector

var slotMagic = [8]byte{'R', 'F', 'r', 'a', 'f', 't', 0, 1}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

type frameKind uint32

const (
	kindCheckpoint    frameKind = iota + 1 // part of the state as it was when the generation began
	kindCheckpointEnd                      // the last part; records follow
	kindRecords                            // what was saved since
	kindMark                               // nothing; proves that all before it was durable
)

type slotHeader struct {
	version    uint32
	blocks     uint32
	generation uint64
	salt       uint64
	start      uint64
	disk       [16]byte
}

func (h slotHeader) encode() []byte {
	b := make([]byte, block)
	copy(b, slotMagic[:])
	binary.LittleEndian.PutUint32(b[8:], h.version)
	binary.LittleEndian.PutUint32(b[offBlocks:], h.blocks)
	binary.LittleEndian.PutUint64(b[offGeneration:], h.generation)
	binary.LittleEndian.PutUint64(b[offSalt:], h.salt)
	binary.LittleEndian.PutUint64(b[offStart:], h.start)
	copy(b[offDisk:], h.disk[:])
	binary.LittleEndian.PutUint32(b[offSlotCRC:], crc32.Checksum(b[:offSlotCRC], castagnoli))
	return b
}

var errNeverUsed = errors.New("never used")

// decodeSlotHeader answers errNeverUsed for a block of zeros, which is what a slot
// holds until its first generation is complete.
func decodeSlotHeader(b []byte) (h slotHeader, err error) {
	if zero(b[:slotHeaderLen]) {
		return h, errNeverUsed
	}
	if [8]byte(b[:8]) != slotMagic {
		return h, errors.New("not a journal")
	}
	if crc32.Checksum(b[:offSlotCRC], castagnoli) != binary.LittleEndian.Uint32(b[offSlotCRC:]) {
		return h, errors.New("header checksum does not match")
	}
	if h.version = binary.LittleEndian.Uint32(b[8:]); h.version > journalVersion {
		return h, fmt.Errorf("%w: version %d, this program knows %d", ErrNewer, h.version, journalVersion)
	}
	h.blocks = binary.LittleEndian.Uint32(b[offBlocks:])
	h.generation = binary.LittleEndian.Uint64(b[offGeneration:])
	h.salt = binary.LittleEndian.Uint64(b[offSalt:])
	h.start = binary.LittleEndian.Uint64(b[offStart:])
	h.disk = [16]byte(b[offDisk:])
	if h.generation == 0 || h.version == 0 || h.version == 1 && h.blocks != 0 || !bytes.Equal(h.encode()[:slotHeaderLen], b[:slotHeaderLen]) {
		return h, errors.New("header has values that are never written")
	}
	return h, nil
}

// beginFrame makes room for a frame's header; the payload is appended behind it.
func beginFrame(b []byte) []byte {
	return append(b[:0], make([]byte, frameHeaderLen)...)
}

// endFrame completes a frame whose payload lies behind the header's room and pads
// it to whole blocks.
func endFrame(b []byte, kind frameKind, seq, salt uint64) []byte {
	binary.LittleEndian.PutUint32(b[offMagic:], frameMagic)
	binary.LittleEndian.PutUint32(b[offKind:], uint32(kind))
	binary.LittleEndian.PutUint64(b[offSequence:], seq)
	binary.LittleEndian.PutUint32(b[offLength:], uint32(len(b)-frameHeaderLen))
	binary.LittleEndian.PutUint64(b, xxh3.HashSeed(b[offMagic:], salt))
	return append(b, make([]byte, int(blocks(len(b)))-len(b))...)
}

type frame struct {
	kind    frameKind
	seq     uint64
	payload []byte
}

// frameLen reads the length of a whole frame, without padding, from its header;
// false if these bytes are no frame header.
func frameLen(b []byte) (int, bool) {
	if binary.LittleEndian.Uint32(b[offMagic:]) != frameMagic {
		return 0, false
	}
	n := binary.LittleEndian.Uint32(b[offLength:])
	return frameHeaderLen + int(n), n <= maxFrame
}

// decodeFrame takes a frame without its padding; false if the hash does not match.
func decodeFrame(b []byte, salt uint64) (frame, bool) {
	if binary.LittleEndian.Uint64(b) != xxh3.HashSeed(b[offMagic:], salt) {
		return frame{}, false
	}
	f := frame{
		kind:    frameKind(binary.LittleEndian.Uint32(b[offKind:])),
		seq:     binary.LittleEndian.Uint64(b[offSequence:]),
		payload: b[frameHeaderLen:],
	}
	return f, f.kind >= kindCheckpoint && f.kind <= kindMark
}

// blocks rounds n up to whole blocks.
func blocks(n int) int64 { return (int64(n) + block - 1) &^ (block - 1) }

func zero(b []byte) bool {
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}
