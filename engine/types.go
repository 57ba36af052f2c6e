package engine

import (
	"time"

	"github.com/ringfence/ringfence/engine/api"
)

// The types that linked programs and network clients share live in package engine/api, which
// describes every field. A program that moves to engine/client changes only the line that
// opens the log.

// Record is one entry to store: Key, Value, Headers and Time. Records with a nil Key are
// spread over the ranges; a nil Value is a tombstone. See [api.Record].
type Record = api.Record

// Placement says where records were stored: Range, First and Last offset, and how many of
// them had been stored before (Duplicate, Repeats). See [api.Placement].
type Placement = api.Placement

// ConsumedRecord is a record with its place: Range, Offset, Key, Value, Headers, Time. Its
// bytes are valid until the consumer's next Poll, Fetch or Close. See [api.ConsumedRecord].
type ConsumedRecord = api.ConsumedRecord

// Page is the result of one Poll or Fetch: Records of one range, Skips, and whether there
// was nothing more (CaughtUp). See [api.Page].
type Page = api.Page

// Skip is a stretch of offsets that a consumer moved past, because retention removed the
// records or the loss of damaged ones was accepted: Range, From, Offsets, Damaged. See
// [api.Skip].
type Skip = api.Skip

// ProducerOptions are of [Engine.NewProducer]: Topic, ID, BatchBytes, Linger, MaxInFlight,
// Codec, NotIdempotent. All but Topic may be zero. See [api.ProducerOptions].
type ProducerOptions = api.ProducerOptions

// ConsumerOptions are of [Engine.NewConsumer]: Topic, Group, From. Member is for network
// clients only. See [api.ConsumerOptions].
type ConsumerOptions = api.ConsumerOptions

// From is where a consumer starts: [FromGroup], [FromStart], [FromEnd], [FromCursor] or
// [FromTime].
type From = api.From

// TopicOptions are of [Engine.CreateTopic]: Bits, so that the topic has at most 2^Bits
// ranges, and Policy. See [api.TopicOptions].
type TopicOptions = api.TopicOptions

// TopicInfo sums up a topic: Name, ID, Bits, Policy, Created, how many Ranges, Segments,
// Records and Bytes it has, and what is Damaged or SetAside. See [api.TopicInfo].
type TopicInfo = api.TopicInfo

// TopicDetail is a TopicInfo with AllRanges and Groups. See [api.TopicDetail].
type TopicDetail = api.TopicDetail

// RangeInfo is one range: Seq, its keys [Start, End), Active, Parents, NextOffset, Segments.
// See [api.RangeInfo].
type RangeInfo = api.RangeInfo

// SegmentInfo is one segment: Seq, Active, Start, Records, Bytes, its times, its File, and
// what is wrong with it. See [api.SegmentInfo].
type SegmentInfo = api.SegmentInfo

// GroupInfo is where a group is: Name, Ranges, Lag, Cursor, and through a server Members and
// Generation. See [api.GroupInfo].
type GroupInfo = api.GroupInfo

// GroupRange is where a consumer or a group is in one range: Range, Offset, End, Lag,
// Behind, Member. See [api.GroupRange].
type GroupRange = api.GroupRange

// TopicError is an error with the Topic and the Range (-1 for none) that it is about.
// errors.Is finds what it wraps.
type TopicError = api.TopicError

// User sums up a user: Name, whether there is a Password, how many Grants and Tokens, and
// the Quota. See [api.User].
type User = api.User

// UserOptions are of [Engine.PutUser]: Replace and Grants. See [api.UserOptions].
type UserOptions = api.UserOptions

// Grant allows a user an operation (Op) on a Kind of thing whose names fit a Pattern. See
// [api.Grant].
type Grant = api.Grant

// Quota is what a user may produce per second: Records and Bytes, 0 for no limit. See
// [api.Quota].
type Quota = api.Quota

// Token describes a token without its secret: ID, User, Name, Created, Expires. See
// [api.Token].
type Token = api.Token

// TokenOptions are of [Engine.CreateToken]: Name and Expires. See [api.TokenOptions].
type TokenOptions = api.TokenOptions

// Header is a named value on a record: Key and Value, any bytes. A nil Value is not
// the same as an empty one.
type Header = api.Header

// Codec says how the batches of a producer are compressed: [None], [S2] or [Zstd].
type Codec = api.Codec

// The values of a [Codec]: no compression, fast compression, or smaller results for more
// CPU.
const (
	None = api.None
	S2   = api.S2
	Zstd = api.Zstd
)

// Policy is a set of retention and roll rules under a name ([Engine.SetPolicy]) that
// topics are bound to ([Engine.BindPolicy]): MaxAge and MaxBytes say what is kept,
// SegmentMaxAge and SegmentMaxBytes when an open segment rolls. Limits that are not set
// are those of [Options].Retention. See [api.Policy] for units and limits.
type Policy = api.Policy

// Bound is one limit of a [Policy]: [Limit], [Unlimited], or the zero value, which
// inherits.
type Bound = api.Bound

// MaxBatchBytes is the largest batch a producer makes.
const MaxBatchBytes = api.MaxBatchBytes

// Limit is a [Bound] of n milliseconds or bytes. 0 keeps nothing: what is sealed is removed
// at once. For no limit use [Unlimited].
func Limit(n int64) Bound { return api.Limit(n) }

// Unlimited is a [Bound] that turns the rule off, whatever [Options].Retention says.
func Unlimited() Bound { return api.Unlimited() }

// FromGroup starts where the group is or, if it has no position yet, at the start. It is the
// zero value of From; without a group it is the same as FromStart.
func FromGroup() From { return api.FromGroup() }

// FromStart starts at the first record that is still stored.
func FromStart() From { return api.FromStart() }

// FromEnd starts after the last record.
func FromEnd() From { return api.FromEnd() }

// FromCursor starts where the consumer was that returned the cursor.
func FromCursor(cursor string) From { return api.FromCursor(cursor) }

// FromTime starts, in each range, at the first record of that time or later.
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

	ErrNoSuchUser        = api.ErrNoSuchUser      // make it first
	ErrUserExists        = api.ErrUserExists      // give it another password, or delete it first
	ErrInvalidUser       = api.ErrInvalidUser     // 1 to 255 bytes of UTF-8 without control characters
	ErrInvalidPassword   = api.ErrInvalidPassword // 12 to 1024 bytes
	ErrInvalidGrant      = api.ErrInvalidGrant    // the operation is not one of the kind's, or the pattern is none
	ErrNoSuchGrant       = api.ErrNoSuchGrant
	ErrNoSuchToken       = api.ErrNoSuchToken
	ErrLastAdministrator = api.ErrLastAdministrator // make one first
	ErrInvalidToken      = api.ErrInvalidToken      // its name, or it would have expired already

	ErrInvalidCursor = api.ErrInvalidCursor // start over from a group, a time, the start or the end
	ErrForeignCursor = api.ErrForeignCursor // a topic made anew under the same name is another one
	ErrCursorPastEnd = api.ErrCursorPastEnd // the topic was restored from a backup, or the cursor is not from here
	ErrNotASource    = api.ErrNotASource    // it names a range that the topic does not read from there
	ErrCursorOfOther = api.ErrCursorOfOther // the topic was restored from a backup, and has gone on since
)
