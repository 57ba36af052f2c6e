package record

import (
	"encoding/binary"

	"github.com/zeebo/xxh3"
)

// AsVoid is the head of the void frame that takes the place of the frame of h.
func (h Head) AsVoid() Head {
	h.Codec, h.Flags, h.RawLen = None, FlagVoid, h.PayloadLen
	var x xxh3.Hasher
	for left := int(h.PayloadLen); left > 0; left -= len(zeros) {
		_, _ = x.Write(zeros[:min(left, len(zeros))]) // a hash takes everything
	}
	h.Hash = x.Sum64()
	return h
}

var zeros [4096]byte

// checkVoid: nothing is kept where nothing is stored.
func checkVoid(payload []byte) error {
	for at := 0; at < len(payload); at += len(zeros) {
		if n := min(len(payload)-at, len(zeros)); string(payload[at:at+n]) != string(zeros[:n]) {
			return corruptAt(at, "a void frame with a payload that is not zeros")
		}
	}
	return nil
}

// Unchanged says whether mem still holds the frame whose header it was given, stamped:
// these bytes, and a payload that its checksum is true of. mem may change meanwhile.
func Unchanged(header, mem []byte) bool {
	n := binary.LittleEndian.Uint32(header[offFrame:])
	return uint64(n) <= uint64(len(mem)) && string(mem[:HeaderSize]) == string(header[:HeaderSize]) &&
		xxh3.Hash(mem[HeaderSize:n]) == binary.LittleEndian.Uint64(header[offHash:])
}
