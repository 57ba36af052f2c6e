package record

import (
	"encoding/binary"

	"github.com/zeebo/xxh3"
)

// Limits of the format. A frame beyond them is never built and never verifies.
const (
	MaxFrame       = 16 << 20              // bytes of a frame, header included, also before compression
	MaxRecords     = 1 << 20               // records in a frame
	MaxHeaders     = 1 << 10               // headers of a record
	MaxHeaderBytes = 128 << 10             // keys and values of one record's headers: one of 64 KiB fits, whatever its name
	MaxMark        = MaxFrame - HeaderSize // payload of a mark
)

// Record is one entry of a log. A nil key is a null key, a nil value a tombstone;
// empty ones that are not nil are something else, and both survive.
type Record struct {
	Key, Value []byte
	Headers    []Header
	Timestamp  int64 // milliseconds since 1970
}

// Header is a named value beside a record's own. Names may repeat and keep their
// order. A nil value is null; a nil key is an empty one.
type Header struct {
	Key, Value []byte
}

// keylessSeed keeps keyless records off the positions of keys that happen to be
// 16 bytes of the same content.
const keylessSeed = 0x6b65796c6573736b

// KeylessRun is how many sequences in a row, from a multiple of it on, give keyless
// records one position, so that batches do not straddle ranges.
const KeylessRun = 1024

// Position is where a key lies in the keyspace: the upper half of its XXH3-64. A
// topic with 2^bits positions uses the topmost bits. Null keys have a
// [KeylessPosition] instead.
func Position(key []byte) uint32 { return uint32(xxh3.Hash(key) >> 32) }

// KeylessPosition is where a record without a key lies: all of it is in the frame,
// so retries and the filters of split ranges agree on it for ever. Records without
// a sequence (0) share the one position of their producer.
func KeylessPosition(producer, seq uint64) uint32 {
	var b [16]byte
	binary.LittleEndian.PutUint64(b[:8], producer)
	binary.LittleEndian.PutUint64(b[8:], seq/KeylessRun)
	return uint32(xxh3.HashSeed(b[:], keylessSeed) >> 32)
}

// keyless remembers the position of the current run.
type keyless struct {
	run   uint64
	pos   uint32
	known bool
}

func (k *keyless) position(producer, seq uint64) uint32 {
	if run := seq / KeylessRun; !k.known || run != k.run {
		*k = keyless{run: run, pos: KeylessPosition(producer, seq), known: true}
	}
	return k.pos
}
