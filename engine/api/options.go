package api

import "time"

// ProducerOptions choose how a producer gathers and sends; the zero value of all
// but Topic is production.
type ProducerOptions struct {
	Topic string
	// ID names the producer for recognising what it sent before. 0 draws a random
	// one. A program that sends the same records in the same order under the same
	// ID again, after a crash or an error, stores each once. So that it can, such a
	// producer stops with ErrHalted at the first record that fails: what came after it
	// would make it look stored.
	ID uint64
	// BatchBytes is the most a batch takes in memory and on disk; 0 means 256 KiB.
	BatchBytes int
	// Linger keeps a batch open for more records even when nothing is in flight.
	// 0, the default, sends at once: what arrives while batches are in flight
	// gathers anyway.
	Linger time.Duration
	// MaxInFlight is how many batches of one range are on their way at a time; 0 means 5.
	MaxInFlight int
	// Codec compresses batches: None, S2 or Zstd.
	Codec Codec
	// NotIdempotent gives up the recognition of repeats and of gaps.
	NotIdempotent bool
}

// ConsumerOptions say what to read.
type ConsumerOptions struct {
	Topic string
	// Group keeps the position under a name; "" keeps it nowhere.
	Group string
	// Member, of a network client alone, makes the consumer one of the group's members,
	// which share the topic's ranges: each range is read by one of them at a time, and
	// when a member leaves or falls silent the others take over what it had. A process
	// that is started again under the same name takes its own place. See client.Consumer.
	Member string
	From   From
}

// From says where a consumer starts.
type From struct {
	Kind   FromKind
	Cursor string    // of AtCursor
	Time   time.Time // of AtTime
}

// FromKind is one of the places where a consumer can start.
type FromKind uint8

const (
	AtGroup FromKind = iota // the group's position; the start if it has none
	AtStart
	AtEnd
	AtCursor
	AtTime
)

// FromGroup is where the group is; where it has no position, at the start. It is
// the zero value of From; without a group it is FromStart.
func FromGroup() From { return From{} }

// FromStart is the first record that is still stored.
func FromStart() From { return From{Kind: AtStart} }

// FromEnd is behind the last record.
func FromEnd() From { return From{Kind: AtEnd} }

// FromCursor is where the consumer was that answered the cursor.
func FromCursor(cursor string) From { return From{Kind: AtCursor, Cursor: cursor} }

// FromTime is, in each range, the first record of that time or later.
func FromTime(t time.Time) From { return From{Kind: AtTime, Time: t} }
