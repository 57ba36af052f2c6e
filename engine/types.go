package engine

import (
	"time"

	"github.com/ringfence/ringfence/engine/api"
)

// What engine and engine/client have in common is told in package engine/api.
type (
	Record         = api.Record
	Header         = api.Header
	Codec          = api.Codec
	Placement      = api.Placement
	ConsumedRecord = api.ConsumedRecord
	Page           = api.Page
	Skip           = api.Skip

	ProducerOptions = api.ProducerOptions
	ConsumerOptions = api.ConsumerOptions
	From            = api.From

	TopicOptions = api.TopicOptions
	TopicInfo    = api.TopicInfo
	TopicDetail  = api.TopicDetail
	RangeInfo    = api.RangeInfo
	SegmentInfo  = api.SegmentInfo
	Policy       = api.Policy
	Bound        = api.Bound

	TopicError = api.TopicError
)

// MaxBatchBytes is the largest batch a producer makes.
const MaxBatchBytes = api.MaxBatchBytes

// Compression of batches.
const (
	None = api.None
	S2   = api.S2
	Zstd = api.Zstd
)

// Limit is a bound of n milliseconds or bytes; 0 is a budget of nothing.
func Limit(n int64) Bound { return api.Limit(n) }

// Unlimited turns a bound off, whatever the default.
func Unlimited() Bound { return api.Unlimited() }

// FromGroup is where the group is; where it has no position, at the start. It is
// the zero value of From; without a group it is FromStart.
func FromGroup() From { return api.FromGroup() }

// FromStart is the first record that is still stored.
func FromStart() From { return api.FromStart() }

// FromEnd is behind the last record.
func FromEnd() From { return api.FromEnd() }

// FromCursor is where the consumer was that answered the cursor.
func FromCursor(cursor string) From { return api.FromCursor(cursor) }

// FromTime is, in each range, the first record of that time or later.
func FromTime(t time.Time) From { return api.FromTime(t) }

// Test with errors.Is. Every error says in words what happened and where.
var (
	ErrNoSuchTopic      = api.ErrNoSuchTopic      // create it first
	ErrTopicExists      = api.ErrTopicExists      // use it, or delete it first
	ErrInvalidTopicName = api.ErrInvalidTopicName // letters, digits, '.', '_' and '-', at most 255 bytes
	ErrRecordTooLarge   = api.ErrRecordTooLarge   // raise BatchBytes, or split the record
	ErrOutOfSpace       = api.ErrOutOfSpace       // free space; the engine goes on by itself
	ErrStorage          = api.ErrStorage          // the record may or may not be stored; see the log
	ErrDamaged          = api.ErrDamaged          // the message names file and byte
	ErrLocked           = api.ErrLocked           // another process has the directory
	ErrMismatch         = api.ErrMismatch         // put log and metadata back from one copy
	ErrClosed           = api.ErrClosed           // the engine, producer or consumer was closed
	ErrOverloaded       = api.ErrOverloaded       // retry after acknowledgements
	ErrBatchFull        = api.ErrBatchFull        // send it and make a new one
	ErrBatchSent        = api.ErrBatchSent        // make a new one
	ErrHalted           = api.ErrHalted           // a record was not stored: send all again with a new producer of its ID
	ErrTimeout          = api.ErrTimeout          // it may still take effect

	ErrInvalidCursor = api.ErrInvalidCursor // start over from a group, a time, the start or the end
	ErrForeignCursor = api.ErrForeignCursor // a topic made anew under the same name is another one
	ErrCursorPastEnd = api.ErrCursorPastEnd // the topic was restored from a backup, or the cursor is not from here
	ErrCursorOfOther = api.ErrCursorOfOther // the topic was restored from a backup, and has gone on since
)
