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

// What a [Codec] can be. A batch that does not get smaller is stored as it is.
const (
	None = record.None // not at all
	S2   = record.S2   // with little CPU time
	Zstd = record.Zstd // smaller, with more of it
)

// MaxBatchBytes is the largest batch a producer makes.
const MaxBatchBytes = 8 << 20

// Record is one entry to store. A nil Key is a null key: such records spread over
// the ranges. A nil Value is a tombstone; an empty one is not.
type Record struct {
	Key, Value []byte
	Headers    []Header
	Time       time.Time // zero means now; kept in milliseconds
}

// Placement says where records were stored.
type Placement struct {
	Range uint32 // number of the range in its topic
	// First and Last are offsets in that range; for one record they are equal.
	First, Last uint64
	// Duplicate: the producer sent the records before and they were stored then;
	// First and Last are not known.
	Duplicate bool
	// Repeats is how many of the records were stored before: all of them with Duplicate,
	// and of a batch those that were.
	Repeats uint32
	// Unplaced, of a network client alone: the record is stored, and the server did not
	// say where, for its batch was spread over ranges or stored in part before. Then which
	// records of it are repeats is not known either, and the first one tells how many.
	Unplaced bool
}

// ConsumedRecord is a record with its place. Its bytes are valid until the next
// Poll or Fetch of the consumer and must not be changed.
type ConsumedRecord struct {
	Range      uint32
	Offset     uint64
	Key, Value []byte
	Headers    []Header
	Time       time.Time
}

// Skip reports offsets that the consumer moved past because nothing is stored there
// any more, or ever was.
type Skip struct {
	Range   uint32
	From    uint64
	Offsets uint64
	// Damaged: they were damaged, or their file is missing, and their loss was accepted; or
	// they are a batch that was written from memory that its producer lent, and are not what
	// was acknowledged: the producer changed them and changed them back meanwhile, most likely.
	// Otherwise retention took them, or they were never acknowledged: a producer that
	// lends its memory changed it while it was written.
	Damaged bool
}

// Page is what one Poll or Fetch found: records of one range, in order.
type Page struct {
	Records []ConsumedRecord
	Skips   []Skip
	// CaughtUp: there was nothing more in any range.
	CaughtUp bool
}
