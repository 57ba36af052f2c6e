package api

import (
	"time"

	"github.com/ringfence/ringfence/segfile/record"
)

// Header is a named value on a record: Key and Value, any bytes. Names may repeat and
// keep their order; a nil Value is not the same as an empty one.
type Header = record.Header

// Codec says how the batches of a producer are compressed: [None], [S2] or [Zstd].
type Codec = record.Codec

// The values of a [Codec]. A batch that compression does not make smaller is stored as it is.
const (
	None = record.None // no compression
	S2   = record.S2   // little CPU time
	Zstd = record.Zstd // smaller than S2, for more CPU time
)

// MaxBatchBytes is the size, in bytes, of the largest batch that a producer makes.
const MaxBatchBytes = 8 << 20

// Record is one entry to store. A nil Key is a null key: such records are spread over the
// ranges. A nil Value is a tombstone. Neither is the same as an empty one.
type Record struct {
	Key, Value []byte
	Headers    []Header
	Time       time.Time // zero means now; stored in milliseconds
}

// Placement says where records were stored.
type Placement struct {
	Range uint32 // number of the range in its topic
	// First and Last are the offsets of the first and last record in that range; they are
	// equal for a single record.
	First, Last uint64
	// Duplicate: all of the records had been stored before, when the producer sent them
	// for the first time. First and Last are not known then.
	Duplicate bool
	// Repeats is how many of the records had been stored before: all with Duplicate, else
	// some of a batch, or none.
	Repeats uint32
	// Unplaced, from network clients only: the record is stored, but the server did not say
	// where, because its batch was spread over several ranges or had been stored in part
	// before. Which of the batch's records are repeats is not known either: Repeats of its
	// first record says how many.
	Unplaced bool
}

// ConsumedRecord is a record with its place. Key, Value and Headers are the consumer's
// memory: they are valid until its next Poll, Fetch or Close and must not be changed. Copy
// what is to be kept.
type ConsumedRecord struct {
	Range      uint32
	Offset     uint64
	Key, Value []byte
	Headers    []Header
	Time       time.Time
}

// Skip reports offsets that the consumer moved past because no record can be read there: it
// is not stored any more, or never was.
type Skip struct {
	Range   uint32
	From    uint64 // the first offset that was skipped
	Offsets uint64 // how many
	// Damaged: records are lost. They were damaged, or their file is missing, and their loss
	// was accepted. Or they are a batch that was written from memory shared with its
	// producer, and are not what was acknowledged: most likely the producer changed them and
	// changed them back while they were written.
	//
	// Without Damaged, retention removed the records, or they were never acknowledged: a
	// producer that shares its memory changed them while they were written.
	Damaged bool
}

// Page is the result of one Poll or Fetch: records of one range, in order.
type Page struct {
	Records  []ConsumedRecord
	Skips    []Skip
	CaughtUp bool // there was nothing more in any range
}
