package segfile

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"github.com/ringfence/ringfence/fence"
	"github.com/ringfence/ringfence/segfile/disk"
)

// A segment file. Integers are little-endian, bytes not listed are zero.
//
//	position size
//	       0 4096 header
//	    4096 4096 latch slot A   all zero while the segment is open
//	    8192 4096 latch slot B   the same as A; both are written by one durable write
//	   12288 4096 latch slot C   all zero, or the settlement
//	   16384      flushes        each on a boundary of 4,096, frames in it on boundaries
//	                             of 64, padded with zeros; the first is the start mark,
//	                             the second the pointer to a checkpoint
//	                      footer wherever the latch says
//
// The header never changes after the file got its name:
//
//	 off size field
//	   0    8 magic    "RFsegmnt"
//	   8    2 version  1
//	  10    1 life     0: what lies behind the flushes is zeros; 1: bytes of an earlier segment
//	  12    4 segment  number of the segment in its range
//	  16   16 topic    identity
//	  32    4 range    number of the range in its topic
//	  36    4 length   of the topic's name
//	  40    8 start    key slice of the range: its first position
//	  48    8 end      the position after its last, up to 2^32
//	  56    8 base     offset of the first record
//	  64    8 salt     what all other checksums of the file begin with
//	  72    8 writer   incarnation of the one writer
//	  80    8 created  milliseconds since 1970
//	  88    8 blocks   size of the file when it got this header: what is behind was written since
//	  96    8 stale    salt of the earlier life, 0 when unknown
//	 104    n name     of the topic
//	4092    4 crc      CRC-32C of the 4,092 bytes before it
//
// In every later version magic, version and crc stay where they are.
const (
	block = disk.Block

	slotA     = 1 * block
	slotB     = 2 * block
	slotC     = 3 * block
	DataStart = 4 * block // position of the first flush

	// HeaderSize is how many bytes the header takes.
	HeaderSize = block

	headerMagic   = "RFsegmnt"
	headerVersion = 1

	hoVersion = 8
	hoLife    = 10
	hoSegment = 12
	hoTopic   = 16
	hoRange   = 32
	hoNameLen = 36
	hoStart   = 40
	hoEnd     = 48
	hoBase    = 56
	hoSalt    = 64
	hoWriter  = 72
	hoCreated = 80
	hoBlocks  = 88
	hoStale   = 96
	hoName    = 104

	blockCRC = block - 4 // where the CRC of a header or slot is

	// MaxTopicName is the longest topic name a header holds.
	MaxTopicName = 1024
)

// The fields end where the name starts, the longest name ends before the checksum.
const (
	_ = uint(hoName - hoStale - 8)
	_ = uint(hoStale + 8 - hoName)
	_ = uint(blockCRC - hoName - MaxTopicName)
)

// Meta is what a segment file's header says about the segment.
type Meta struct {
	ID         fence.SegmentID
	Topic      string // name of the topic
	Start, End uint64 // key slice [Start, End) of the range
	Base       uint64 // offset of the first record
	Salt       uint64 // random, the same in every replica
	Writer     uint64 // incarnation of the one primary that may append
	Created    int64  // ms since the epoch
}

// Check says whether a segment can be like this.
func (m *Meta) Check() error {
	switch {
	case m.ID.Range.Topic.IsZero():
		return errors.New("segfile: a segment of no topic")
	case len(m.Topic) == 0 || len(m.Topic) > MaxTopicName:
		return fmt.Errorf("segfile: topic name of %d bytes; 1 to %d are possible", len(m.Topic), MaxTopicName)
	case m.Start >= m.End || m.End > 1<<32:
		return fmt.Errorf("segfile: key slice [%d, %d) is not one of 2^32 positions", m.Start, m.End)
	case m.Salt == 0:
		return errors.New("segfile: salt 0 is for frames that were not stored yet")
	}
	return nil
}

// header is a header block, read.
type header struct {
	Meta
	recycled bool   // behind the flushes lie bytes of an earlier life
	blocks   int64  // size of the file when it got this header
	stale    uint64 // salt of that life, 0 when unknown
}

// put writes h to the first block of b.
func (h *header) put(b []byte) {
	b = b[:block:block]
	clear(b)
	le := binary.LittleEndian
	copy(b, headerMagic)
	le.PutUint16(b[hoVersion:], headerVersion)
	if h.recycled {
		b[hoLife] = 1
	}
	le.PutUint32(b[hoSegment:], h.ID.Seq)
	copy(b[hoTopic:], h.ID.Range.Topic[:])
	le.PutUint32(b[hoRange:], h.ID.Range.Seq)
	le.PutUint32(b[hoNameLen:], uint32(len(h.Topic)))
	le.PutUint64(b[hoStart:], h.Start)
	le.PutUint64(b[hoEnd:], h.Meta.End)
	le.PutUint64(b[hoBase:], h.Base)
	le.PutUint64(b[hoSalt:], h.Salt)
	le.PutUint64(b[hoWriter:], h.Writer)
	le.PutUint64(b[hoCreated:], uint64(h.Created))
	le.PutUint64(b[hoBlocks:], uint64(h.blocks))
	le.PutUint64(b[hoStale:], h.stale)
	copy(b[hoName:], h.Topic)
	le.PutUint32(b[blockCRC:], crc32.Checksum(b[:blockCRC], castagnoli))
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// headerState is what a header block turned out to be.
type headerState uint8

const (
	headerValid headerState = iota
	headerZero
	headerNewer
	headerForeign // it does not start like a header
	headerBad     // it does, and is not valid
)

// readHeader reads the first block of b.
func readHeader(b []byte) (h header, s headerState, why string) {
	if isZero(b[:block]) {
		return h, headerZero, "header is all zero"
	}
	b = b[:block:block]
	le := binary.LittleEndian
	if string(b[:hoVersion]) != headerMagic {
		return h, headerForeign, "no segment header"
	}
	if le.Uint32(b[blockCRC:]) != crc32.Checksum(b[:blockCRC], castagnoli) {
		return h, headerBad, "header checksum does not match"
	}
	if v := le.Uint16(b[hoVersion:]); v > headerVersion {
		return h, headerNewer, fmt.Sprintf("header has version %d, this build reads %d", v, headerVersion)
	} else if v < headerVersion {
		return h, headerBad, "header has version 0"
	}
	n := int(le.Uint32(b[hoNameLen:]))
	if n > MaxTopicName || !isZero(b[hoName+n:blockCRC]) || b[hoLife] > 1 || b[hoLife+1] != 0 {
		return h, headerBad, "unused bytes of the header are not zero"
	}
	h = header{
		Meta: Meta{
			ID:      fence.SegmentID{Range: fence.RangeID{Topic: fence.TopicID(b[hoTopic:hoRange]), Seq: le.Uint32(b[hoRange:])}, Seq: le.Uint32(b[hoSegment:])},
			Topic:   string(b[hoName : hoName+n]),
			Start:   le.Uint64(b[hoStart:]),
			End:     le.Uint64(b[hoEnd:]),
			Base:    le.Uint64(b[hoBase:]),
			Salt:    le.Uint64(b[hoSalt:]),
			Writer:  le.Uint64(b[hoWriter:]),
			Created: int64(le.Uint64(b[hoCreated:])),
		},
		recycled: b[hoLife] == 1,
		blocks:   int64(le.Uint64(b[hoBlocks:])),
		stale:    le.Uint64(b[hoStale:]),
	}
	if err := h.Check(); err != nil || h.blocks < 0 {
		return h, headerBad, fmt.Sprintf("header fields out of bounds: %v", err)
	}
	return h, headerValid, ""
}

// saltedCRC is a CRC-32C that begins with the salt, as frame headers' do (see
// record/header.go), so that bytes of another segment, or of the file's earlier
// life, do not pass.
func saltedCRC(b []byte, salt uint64) uint32 {
	return crc32.Update(uint32(salt*saltFactor>>32), castagnoli, b)
}

// saltFactor spreads salts that differ in few bits over the CRC's 32.
const saltFactor = 0x9e3779b97f4a7c15

func alignBlock(n int64) int64 { return (n + block - 1) &^ (block - 1) }

func isZero(b []byte) bool { return firstNonZero(b) < 0 }

// firstNonZero is the index of the first byte that is not zero, or -1.
func firstNonZero(b []byte) int {
	i := 0
	for ; i+8 <= len(b); i += 8 {
		if binary.LittleEndian.Uint64(b[i:]) != 0 {
			break
		}
	}
	for ; i < len(b); i++ {
		if b[i] != 0 {
			return i
		}
	}
	return -1
}
