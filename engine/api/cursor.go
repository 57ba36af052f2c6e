package api

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"
	"strings"

	"github.com/ringfence/ringfence/cp"
	"github.com/ringfence/ringfence/fence"
)

// A cursor is a consumer's place in a topic as text that programs store and hand
// back and do not look into. Decoded it is, little-endian:
//
//	off size field
//	  0    1 version  1
//	  1   16 topic identity
//	 17    4 count    of sources, at most maxCursorSources
//	 21   16 each     range number (4), next offset (8), mark (4), by ascending number
//	  …    4 CRC-32C  of all before it
//
// and is written as unpadded base64url. A mark tells the record before the next
// offset from another one that stands there after the topic was put back from a
// copy: it is of the segment that the record was read from. 0 says nothing.
const (
	cursorVersion    = 1
	cursorFixed      = 21
	cursorSource     = 16
	maxCursorSources = 1 << 14
	maxCursorText    = (cursorFixed+cursorSource*maxCursorSources+4)*4/3 + 4
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Marks are those of a position's sources; one without is not known.
type Marks map[fence.RangeID]uint32

// MarkOf is the mark of the records of a segment, by its salt, which is random.
//
// It is for the other packages of this module alone.
func MarkOf(salt uint64) uint32 { return max(uint32(salt^salt>>32), 1) }

// EncodeCursor is the text of a position in a topic.
func EncodeCursor(topic fence.TopicID, pos cp.Position, m Marks) string {
	ids := make([]fence.RangeID, 0, len(pos))
	for id := range pos {
		ids = append(ids, id)
	}
	slices.SortFunc(ids, fence.RangeID.Compare)
	b := make([]byte, 0, cursorFixed+cursorSource*len(ids)+4)
	b = append(b, cursorVersion)
	b = append(b, topic[:]...)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(ids)))
	for _, id := range ids {
		b = binary.LittleEndian.AppendUint32(b, id.Seq)
		b = binary.LittleEndian.AppendUint64(b, pos[id])
		b = binary.LittleEndian.AppendUint32(b, m[id])
	}
	b = binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
	return base64.RawURLEncoding.EncodeToString(b)
}

// openCursor decodes any text as far as its checksum.
func openCursor(text string) ([]byte, error) {
	if len(text) > maxCursorText {
		return nil, fmt.Errorf("%w: %d characters, at most %d", ErrInvalidCursor, len(text), maxCursorText)
	}
	b, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if err == nil && strings.ContainsAny(text, "\r\n") {
		err = errors.New("it has line breaks") // which the decoder ignores
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalidCursor, err)
	}
	if len(b) < cursorFixed+4 {
		return nil, fmt.Errorf("%w: it is too short", ErrInvalidCursor)
	}
	body, sum := b[:len(b)-4], binary.LittleEndian.Uint32(b[len(b)-4:])
	if crc32.Checksum(body, castagnoli) != sum {
		return nil, fmt.Errorf("%w: its checksum does not match", ErrInvalidCursor)
	}
	if body[0] != cursorVersion {
		return nil, fmt.Errorf("%w: version %d, this program writes %d", ErrInvalidCursor, body[0], cursorVersion)
	}
	return body, nil
}

// TopicOfCursor is the topic that a cursor belongs to.
func TopicOfCursor(text string) (fence.TopicID, error) {
	body, err := openCursor(text)
	if err != nil {
		return fence.TopicID{}, err
	}
	return fence.TopicID(body[1:17]), nil
}

// DecodeCursor reads any text; what it accepts EncodeCursor writes again.
func DecodeCursor(topic fence.TopicID, text string) (cp.Position, Marks, error) {
	body, err := openCursor(text)
	if err != nil {
		return nil, nil, err
	}
	n := int(binary.LittleEndian.Uint32(body[17:]))
	if n == 0 || n > maxCursorSources || len(body) != cursorFixed+cursorSource*n {
		return nil, nil, fmt.Errorf("%w: its length does not fit its %d sources", ErrInvalidCursor, n)
	}
	if fence.TopicID(body[1:17]) != topic {
		return nil, nil, fmt.Errorf("%w: identity %s, this topic is %s", ErrForeignCursor, fence.TopicID(body[1:17]), topic)
	}
	pos, m := make(cp.Position, n), Marks{}
	last := int64(-1)
	for i := range n {
		at := cursorFixed + cursorSource*i
		seq := binary.LittleEndian.Uint32(body[at:])
		if int64(seq) <= last {
			return nil, nil, fmt.Errorf("%w: its sources are out of order", ErrInvalidCursor)
		}
		last = int64(seq)
		id := fence.RangeID{Topic: topic, Seq: seq}
		pos[id] = binary.LittleEndian.Uint64(body[at+4:])
		if mark := binary.LittleEndian.Uint32(body[at+12:]); mark != 0 {
			m[id] = mark
		}
	}
	return pos, m, nil
}
