package engine

import (
	"time"

	"github.com/ringfence/ringfence/engine/api"
)

// What a program meets on both ways to the log is told in package engine/api; a
// program changes to engine/client in the line that opens one.
type (
	Record         = api.Record
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
	GroupInfo    = api.GroupInfo
	GroupRange   = api.GroupRange

	TopicError = api.TopicError

	User         = api.User
	UserOptions  = api.UserOptions
	Grant        = api.Grant
	Quota        = api.Quota
	Token        = api.Token
	TokenOptions = api.TokenOptions
)

// Header is a named value on a record: Key and Value, any bytes. A nil Value is not
// the same as an empty one.
type Header = api.Header

// Codec says how the batches of a producer are compressed: [None], [S2] or [Zstd].
type Codec = api.Codec

// What a [Codec] can be: no compression, little of it in little CPU time, or more.
const (
	None = api.None
	S2   = api.S2
	Zstd = api.Zstd
)

// Policy is a set of retention and roll rules under a name ([Engine.SetPolicy]) that
// topics are bound to ([Engine.BindPolicy]): MaxAge and MaxBytes say what is kept,
// SegmentMaxAge and SegmentMaxBytes when an open segment rolls. What is left out
// inherits [Options].Retention. See [api.Policy] for units and limits.
type Policy = api.Policy

// Bound is one limit of a [Policy]: [Limit], [Unlimited], or the zero value, which
// inherits.
type Bound = api.Bound

// MaxBatchBytes is the largest batch a producer makes.
const MaxBatchBytes = api.MaxBatchBytes

// Limit is a [Bound] of n milliseconds or bytes. 0 is a budget of nothing: what is
// sealed goes at once.
func Limit(n int64) Bound { return api.Limit(n) }

// Unlimited is a [Bound] that turns the rule off, whatever [Options].Retention says.
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
	ErrNoSuchGroup      = api.ErrNoSuchGroup      // a group is there once it has committed
	ErrNoSuchRange      = api.ErrNoSuchRange      // Describe tells which there are
	ErrRangeSealed      = api.ErrRangeSealed      // it was split or merged: its children have its keys
	ErrNotBuddies       = api.ErrNotBuddies       // only what was one range is merged to one
	ErrCannotSplit      = api.ErrCannotSplit      // it has one key position
	ErrInvalidBits      = api.ErrInvalidBits      // 1 to 32
	ErrInvalidPolicy    = api.ErrInvalidPolicy    // its name, or a limit of it
	ErrInvalidGroup     = api.ErrInvalidGroup     // 1 to 255 bytes of UTF-8 without control characters
	ErrLimit            = api.ErrLimit            // there are as many of these as there can be
	ErrNoSuchPolicy     = api.ErrNoSuchPolicy     // define it first
	ErrPolicyInUse      = api.ErrPolicyInUse      // bind the topics that it names elsewhere
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
	ErrChanged          = api.ErrChanged          // lent memory is left alone until it is released
	ErrTimeout          = api.ErrTimeout          // it may still take effect

	ErrNoSuchUser      = api.ErrNoSuchUser      // make it first
	ErrUserExists      = api.ErrUserExists      // give it another password, or delete it first
	ErrInvalidUser     = api.ErrInvalidUser     // 1 to 255 bytes of UTF-8 without control characters
	ErrInvalidPassword = api.ErrInvalidPassword // 12 to 1024 bytes
	ErrInvalidGrant    = api.ErrInvalidGrant    // the operation is not one of the kind's, or the pattern is none
	ErrNoSuchGrant     = api.ErrNoSuchGrant
	ErrNoSuchToken     = api.ErrNoSuchToken
	ErrInvalidToken    = api.ErrInvalidToken // its name, or it would have expired already

	ErrInvalidCursor = api.ErrInvalidCursor // start over from a group, a time, the start or the end
	ErrForeignCursor = api.ErrForeignCursor // a topic made anew under the same name is another one
	ErrCursorPastEnd = api.ErrCursorPastEnd // the topic was restored from a backup, or the cursor is not from here
	ErrNotASource    = api.ErrNotASource    // it names a range that the topic does not read from there
	ErrCursorOfOther = api.ErrCursorOfOther // the topic was restored from a backup, and has gone on since
)
