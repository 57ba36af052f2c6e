package engine

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"

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
//	 21   12 each     range number (4), next offset (8), by ascending number
//	  …    4 CRC-32C  of all before it
//
// and is written as unpadded base64url.
const (
	cursorVersion    = 1
	cursorFixed      = 21
	cursorSource     = 12
	maxCursorSources = 1 << 14
	maxCursorText    = (cursorFixed+cursorSource*maxCursorSources+4)*4/3 + 4
)

// Test with errors.Is.
var (
	ErrInvalidCursor = errors.New("cursor is not one of this program's")   // start over from a group, a time, the start or the end
	ErrForeignCursor = errors.New("cursor belongs to another topic")       // a topic made anew under the same name is another one
	ErrCursorPastEnd = errors.New("cursor lies past what the topic holds") // the topic was restored from a backup, or the cursor is not from here
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func encodeCursor(topic fence.TopicID, pos cp.Position) string {
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
	}
	b = binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
	return base64.RawURLEncoding.EncodeToString(b)
}

// decodeCursor reads any text; what it accepts encodeCursor writes again.
func decodeCursor(topic fence.TopicID, text string) (cp.Position, error) {
	if len(text) > maxCursorText {
		return nil, fmt.Errorf("%w: %d characters, at most %d", ErrInvalidCursor, len(text), maxCursorText)
	}
	b, err := base64.RawURLEncoding.Strict().DecodeString(text)
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
	n := int(binary.LittleEndian.Uint32(body[17:]))
	if n > maxCursorSources || len(body) != cursorFixed+cursorSource*n {
		return nil, fmt.Errorf("%w: its length does not fit its %d sources", ErrInvalidCursor, n)
	}
	if fence.TopicID(body[1:17]) != topic {
		return nil, fmt.Errorf("%w: identity %s, this topic is %s", ErrForeignCursor, fence.TopicID(body[1:17]), topic)
	}
	pos := make(cp.Position, n)
	last := int64(-1)
	for i := range n {
		at := cursorFixed + cursorSource*i
		seq := binary.LittleEndian.Uint32(body[at:])
		if int64(seq) <= last {
			return nil, fmt.Errorf("%w: its sources are out of order", ErrInvalidCursor)
		}
		last = int64(seq)
		pos[fence.RangeID{Topic: topic, Seq: seq}] = binary.LittleEndian.Uint64(body[at+4:])
	}
	return pos, nil
}
