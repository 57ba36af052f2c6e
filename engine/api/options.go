package api

import "time"

// ProducerOptions choose how a producer gathers and sends. Only Topic has to be set; the
// zero values of the others are meant for production.
type ProducerOptions struct {
	Topic string
	// ID is the number under which the producer's repeats are recognised; 0 draws a random
	// one. A program that sends the same records again, in the same order and under the
	// same ID, after a crash or an error, stores each of them once. For that, a producer
	// with an ID stops with ErrHalted at the first record that fails: a record stored after
	// the failed one would make that one look stored, too. Whoever may produce to the topic
	// can use the ID as well, and have the producer's later records taken for repeats.
	ID uint64
	// BatchBytes is the most that a batch takes, in memory and on disk: 4 KiB to
	// MaxBatchBytes, and at most a quarter of the memory for batches. 0 means 256 KiB.
	BatchBytes int
	// Linger keeps a batch open for more records even when nothing is in flight.
	// 0, the default, sends at once: what arrives while batches are in flight
	// gathers anyway.
	Linger time.Duration
	// MaxInFlight is how many batches of one range may be in flight; 0 means 5. As many
	// again may wait for their turn before calls block.
	MaxInFlight int
	// Codec compresses batches: None, S2 or Zstd.
	Codec Codec
	// NotIdempotent turns the recognition of repeats and of gaps off.
	NotIdempotent bool
}

// ConsumerOptions say what to read.
type ConsumerOptions struct {
	Topic string
	// Group is the name under which Commit keeps the position; "" for none.
	Group string
	// Member, for network clients only, makes the consumer a member of the group. Members
	// share the topic's ranges: each range is read by one of them at a time, and when a
	// member leaves or falls silent, the others take over its ranges. A process that is
	// started again under the same name takes its old place. See client.Consumer.
	Member string
	From   From // where to start; the zero value is FromGroup
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

// FromGroup starts where the group is or, if it has no position yet, at the start. It is the
// zero value of From; without a group it is the same as FromStart.
func FromGroup() From { return From{} }

// FromStart starts at the first record that is still stored.
func FromStart() From { return From{Kind: AtStart} }

// FromEnd starts after the last record.
func FromEnd() From { return From{Kind: AtEnd} }

// FromCursor starts where the consumer was that returned the cursor.
func FromCursor(cursor string) From { return From{Kind: AtCursor, Cursor: cursor} }

// FromTime starts, in each range, at the first record of that time or later.
func FromTime(t time.Time) From { return From{Kind: AtTime, Time: t} }
