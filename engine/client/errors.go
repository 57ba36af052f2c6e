package client

import (
	"errors"
	"fmt"

	"github.com/ringfence/ringfence/engine/api"
	"github.com/ringfence/ringfence/engine/wire"
	"github.com/ringfence/ringfence/segfile/record"
)

// Test with errors.Is. Every error says in words what happened and where. Those that
// package engine has as well are the same.
var (
	ErrNoSuchTopic      = api.ErrNoSuchTopic
	ErrTopicExists      = api.ErrTopicExists
	ErrInvalidTopicName = api.ErrInvalidTopicName
	ErrRecordTooLarge   = api.ErrRecordTooLarge
	ErrOutOfSpace       = api.ErrOutOfSpace
	ErrStorage          = api.ErrStorage
	ErrDamaged          = api.ErrDamaged
	ErrMismatch         = api.ErrMismatch // also: another log than before answers at the address
	ErrClosed           = api.ErrClosed
	ErrOverloaded       = api.ErrOverloaded
	ErrBatchFull        = api.ErrBatchFull
	ErrBatchSent        = api.ErrBatchSent
	ErrHalted           = api.ErrHalted
	ErrTimeout          = api.ErrTimeout // the outcome is not known: it may have taken effect, or still take it

	ErrNoSuchRange   = api.ErrNoSuchRange
	ErrRangeSealed   = api.ErrRangeSealed
	ErrNotBuddies    = api.ErrNotBuddies
	ErrCannotSplit   = api.ErrCannotSplit
	ErrInvalidBits   = api.ErrInvalidBits
	ErrInvalidPolicy = api.ErrInvalidPolicy
	ErrInvalidGroup  = api.ErrInvalidGroup
	ErrInvalidToken  = api.ErrInvalidToken
	ErrNotASource    = api.ErrNotASource
	ErrLimit         = api.ErrLimit

	ErrNoSuchPolicy   = api.ErrNoSuchPolicy
	ErrPolicyInUse    = api.ErrPolicyInUse
	ErrNoSuchGroup    = api.ErrNoSuchGroup
	ErrGroupInUse     = api.ErrGroupInUse     // stop its members first
	ErrRangeMoved     = api.ErrRangeMoved     // what was not committed of the range is read again by another member
	ErrMemberReplaced = api.ErrMemberReplaced // give each process a name of its own
	ErrQuota          = api.ErrQuota          // of a server that refuses a batch with more than the user may send in a second

	ErrNoSuchUser        = api.ErrNoSuchUser
	ErrUserExists        = api.ErrUserExists
	ErrInvalidUser       = api.ErrInvalidUser
	ErrInvalidPassword   = api.ErrInvalidPassword
	ErrInvalidGrant      = api.ErrInvalidGrant
	ErrNoSuchGrant       = api.ErrNoSuchGrant
	ErrNoSuchToken       = api.ErrNoSuchToken
	ErrLastAdministrator = api.ErrLastAdministrator // make one first

	ErrInvalidCursor = api.ErrInvalidCursor
	ErrForeignCursor = api.ErrForeignCursor
	ErrCursorPastEnd = api.ErrCursorPastEnd
	ErrCursorOfOther = api.ErrCursorOfOther

	ErrInvalidAddress = errors.New("invalid address") // of a server: nothing can be reached at it

	ErrUnavailable = errors.New("server cannot be reached, or takes no requests") // nothing was done; try later
	ErrRefused     = errors.New("server refuses this user")                       // the credentials, or what they allow
	ErrProtocol    = errors.New("server does not keep to the protocol")           // the connection was closed
	ErrUnsupported = errors.New("server does not know this request")              // it is of another version
)

// Unknown says of an error whether what was asked for may have been done all the
// same, or may still be. Otherwise it was not done, and will not be.
func Unknown(err error) bool { return errors.Is(err, ErrTimeout) || errors.Is(err, ErrStorage) }

// meanings of the codes; a code that is not here has no sentinel.
var meanings = map[wire.Code]error{
	wire.CodeUnknownKey:         ErrUnsupported,
	wire.CodeUnsupportedVersion: ErrUnsupported,
	wire.CodeUnsupported:        ErrUnsupported,
	wire.CodeQuotaTooSmall:      ErrQuota,
	wire.CodeFrameTooLarge:      ErrRecordTooLarge,
	wire.CodeNotAuthenticated:   ErrRefused,
	wire.CodeInvalidCredentials: ErrRefused,
	wire.CodePermissionDenied:   ErrRefused,
	wire.CodeNoSuchTopic:        ErrNoSuchTopic,
	wire.CodeTopicExists:        ErrTopicExists,
	wire.CodeInvalidName:        ErrInvalidTopicName,
	wire.CodeNoSuchRange:        api.ErrNoSuchRange,
	wire.CodeRangeSealed:        api.ErrRangeSealed,
	wire.CodeNotBuddies:         api.ErrNotBuddies,
	wire.CodeCannotSplit:        api.ErrCannotSplit,
	wire.CodeInvalidBits:        api.ErrInvalidBits,
	wire.CodeInvalidPolicy:      api.ErrInvalidPolicy,
	wire.CodeInvalidGroup:       api.ErrInvalidGroup,
	wire.CodeInvalidUser:        api.ErrInvalidUser,
	wire.CodeInvalidPassword:    api.ErrInvalidPassword,
	wire.CodeInvalidGrant:       api.ErrInvalidGrant,
	wire.CodeInvalidToken:       api.ErrInvalidToken,
	wire.CodeNotASource:         api.ErrNotASource,
	wire.CodeLimit:              api.ErrLimit,
	wire.CodeMismatch:           ErrMismatch,
	wire.CodeWriteFailed:        ErrStorage,
	wire.CodeRecordTooLarge:     ErrRecordTooLarge,
	wire.CodeDamaged:            ErrDamaged,
	wire.CodeStorageFailed:      ErrStorage,
	wire.CodeProducerHalted:     ErrHalted,
	wire.CodeCorruptFrame:       record.ErrCorrupt,
	wire.CodeNoSuchPolicy:       api.ErrNoSuchPolicy,
	wire.CodePolicyInUse:        api.ErrPolicyInUse,
	wire.CodeNoSuchGroup:        api.ErrNoSuchGroup,
	wire.CodeGroupInUse:         api.ErrGroupInUse,
	wire.CodeInvalidCursor:      ErrInvalidCursor,
	wire.CodeForeignCursor:      ErrForeignCursor,
	wire.CodeCursorPastEnd:      ErrCursorPastEnd,
	wire.CodeCursorOfOther:      ErrCursorOfOther,
	wire.CodeNoSuchUser:         api.ErrNoSuchUser,
	wire.CodeUserExists:         api.ErrUserExists,
	wire.CodeNoSuchGrant:        api.ErrNoSuchGrant,
	wire.CodeNoSuchToken:        api.ErrNoSuchToken,
	wire.CodeLastAdministrator:  api.ErrLastAdministrator,
	wire.CodeOutOfSpace:         ErrOutOfSpace,
	wire.CodeOverloaded:         ErrOverloaded,
	wire.CodeOutcomeUnknown:     ErrTimeout,
	wire.CodeUnavailable:        ErrUnavailable,
	wire.CodeShuttingDown:       ErrUnavailable,
	wire.CodeRateLimited:        ErrOverloaded,
	wire.CodeTooManyConnections: ErrOverloaded,
}

// serverError is a refusal of the server: its words, and what they mean.
type serverError struct {
	wire  *wire.Error
	means error
}

func (e *serverError) Error() string {
	if e.wire.Detail != "" {
		return e.wire.Detail
	}
	if e.means != nil {
		return e.means.Error()
	}
	return e.wire.Error()
}

func (e *serverError) Unwrap() []error {
	if e.means == nil {
		return []error{e.wire}
	}
	return []error{e.means, e.wire}
}

// meant gives an error of the server its meaning for callers.
func meant(err error) error {
	var we *wire.Error
	if !errors.As(err, &we) || errors.As(err, new(*serverError)) {
		return err
	}
	return &serverError{we, meanings[we.Code]}
}

// lostError is a connection that ended before the answer came.
type lostError struct {
	sent  bool // some of the request may have reached the server
	cause error
}

func (e *lostError) Error() string {
	if e.sent {
		return "connection lost before the answer came: " + e.cause.Error()
	}
	return "connection lost: " + e.cause.Error()
}

func (e *lostError) Unwrap() []error { return []error{ErrUnavailable, e.cause} }

// unknown marks an error as one that leaves the outcome open.
func unknown(err error) error {
	if Unknown(err) {
		return err
	}
	return fmt.Errorf("%w: %w", ErrTimeout, err)
}

// about adds the topic to an error that does not name one yet.
func about(topic string, err error) error {
	if err == nil || errors.Is(err, ErrClosed) {
		return err
	}
	if t := (*api.TopicError)(nil); errors.As(err, &t) {
		return err
	}
	return &api.TopicError{Topic: topic, Range: -1, Err: meant(err)}
}
