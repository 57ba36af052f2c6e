package record

import (
	"encoding/binary"

	"github.com/zeebo/xxh3"
)

// Stamp sets what the one who stores a frame decides: the offset of its first
// record, the bytes of this copy known to be durable, and the salt of the segment.
// The frame is one that verified or was just built.
func Stamp(frame []byte, base uint64, durable int64, salt uint64) {
	h := frame[:HeaderSize:HeaderSize]
	binary.LittleEndian.PutUint64(h[offBase:], base)
	binary.LittleEndian.PutUint64(h[offDurable:], uint64(durable))
	binary.LittleEndian.PutUint32(h[offCRC:], headerCRC(h, salt))
}

// Check reads the header and holds the payload against its checksum: the bytes are
// those that were written, whoever wrote them. frame may have more bytes behind.
func Check(frame []byte, salt uint64) (Head, error) {
	h, err := ParseHead(frame, salt)
	if err != nil {
		return Head{}, err
	}
	if uint64(h.FrameLen) > uint64(len(frame)) {
		return Head{}, corrupt(offFrame, "frame is cut short")
	}
	if xxh3.Hash(frame[HeaderSize:h.FrameLen]) != h.Hash {
		return Head{}, corrupt(HeaderSize, "payload checksum does not match")
	}
	return h, nil
}

// Identity is a digest of what every replica's copy of a frame has in common: all
// but the durable position and the header's checksum. It reads the whole payload.
func Identity(frame []byte) uint64 {
	n := binary.LittleEndian.Uint32(frame[offFrame:])
	return identity(frame, xxh3.Hash(frame[HeaderSize:n]))
}

// IdentityOfChecked is the Identity of a frame that passed Check, Verify or Finish
// and of which the header is enough: the payload's checksum stands for it.
func IdentityOfChecked(header []byte) uint64 {
	return identity(header, binary.LittleEndian.Uint64(header[offHash:]))
}

// identity hashes the header up to the durable position, then the payload's hash.
func identity(header []byte, payload uint64) uint64 {
	var b [offDurable + 8]byte
	copy(b[:offDurable], header)
	binary.LittleEndian.PutUint64(b[offDurable:], payload)
	return xxh3.Hash(b[:])
}

// BuildMark builds a mark around payload, in buf where that is large enough:
// payload may lie there already, at HeaderSize. Base and durable position come
// with Stamp.
func BuildMark(buf, payload []byte) ([]byte, error) {
	if len(payload) > MaxMark {
		return nil, ErrRecordTooLarge
	}
	frame := sized(buf, HeaderSize+len(payload))
	copy(frame[HeaderSize:], payload)
	h := Head{
		Flags: FlagMark, FrameLen: uint32(len(frame)), PayloadLen: uint32(len(payload)), RawLen: uint32(len(payload)),
		Hash: xxh3.Hash(frame[HeaderSize:]),
	}
	h.Put(frame, 0)
	return frame, nil
}

// sized is buf with length n, or fresh memory where buf is too small.
func sized(buf []byte, n int) []byte {
	if cap(buf) < n {
		return make([]byte, n)
	}
	return buf[:n:n]
}
