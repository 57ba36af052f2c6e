package server

import (
	"context"
	"errors"
	"fmt"

	"github.com/ringfence/ringfence/cp"
	"github.com/ringfence/ringfence/engine/api"
	"github.com/ringfence/ringfence/engine/wire"
	"github.com/ringfence/ringfence/segfile/record"
)

// codes of the engine's errors. The first that fits is told, so what leaves open whether
// records were stored stands before what says that they were not.
var codes = []struct {
	is   error
	code wire.Code
}{
	{api.ErrTimeout, wire.CodeOutcomeUnknown},
	{api.ErrStorage, wire.CodeStorageFailed},
	{api.ErrOutOfSpace, wire.CodeOutOfSpace},
	{api.ErrHalted, wire.CodeProducerHalted},
	{api.ErrOverloaded, wire.CodeOverloaded},
	{api.ErrChanged, wire.CodeCorruptFrame},
	{api.ErrNoSuchTopic, wire.CodeNoSuchTopic},
	{api.ErrTopicExists, wire.CodeTopicExists},
	{api.ErrInvalidTopicName, wire.CodeInvalidName},
	{api.ErrInvalidGroup, wire.CodeInvalidGroup},
	{api.ErrNoSuchRange, wire.CodeNoSuchRange},
	{api.ErrRangeSealed, wire.CodeRangeSealed},
	{api.ErrNotBuddies, wire.CodeNotBuddies},
	{cp.ErrDifferentTopic, wire.CodeInvalidArgument},
	{api.ErrCannotSplit, wire.CodeCannotSplit},
	{api.ErrInvalidBits, wire.CodeInvalidBits},
	{api.ErrNoSuchPolicy, wire.CodeNoSuchPolicy},
	{api.ErrNoSuchGroup, wire.CodeNoSuchGroup},
	{api.ErrPolicyInUse, wire.CodePolicyInUse},
	{api.ErrInvalidPolicy, wire.CodeInvalidPolicy},
	{api.ErrLimit, wire.CodeLimit},
	{cp.ErrStaleGeneration, wire.CodeStaleGeneration},
	{api.ErrNoSuchUser, wire.CodeNoSuchUser},
	{api.ErrUserExists, wire.CodeUserExists},
	{api.ErrInvalidUser, wire.CodeInvalidUser},
	{api.ErrInvalidPassword, wire.CodeInvalidPassword},
	{api.ErrInvalidGrant, wire.CodeInvalidGrant},
	{api.ErrNoSuchGrant, wire.CodeNoSuchGrant},
	{api.ErrNoSuchToken, wire.CodeNoSuchToken},
	{api.ErrInvalidToken, wire.CodeInvalidToken},
	{api.ErrLastAdministrator, wire.CodeLastAdministrator},
	{api.ErrInvalidCursor, wire.CodeInvalidCursor},
	{api.ErrForeignCursor, wire.CodeForeignCursor},
	{api.ErrNotASource, wire.CodeNotASource},
	{api.ErrCursorPastEnd, wire.CodeCursorPastEnd},
	{api.ErrCursorOfOther, wire.CodeCursorOfOther},
	{api.ErrRecordTooLarge, wire.CodeRecordTooLarge},
	{api.ErrDamaged, wire.CodeDamaged}, // a stored frame that is corrupt is this
	{api.ErrMismatch, wire.CodeMismatch},
	{record.ErrCorrupt, wire.CodeCorruptFrame},
	{record.ErrVersion, wire.CodeCorruptFrame},
	{record.ErrSequence, wire.CodeCorruptFrame},
	{api.ErrClosed, wire.CodeShuttingDown},
	{context.DeadlineExceeded, wire.CodeOutcomeUnknown},
	{context.Canceled, wire.CodeOutcomeUnknown},
}

// told is the one place where an error becomes what a client is told. Its words are the
// engine's.
func told(err error) *wire.Error {
	if e := (*wire.Error)(nil); errors.As(err, &e) {
		return e
	}
	for _, c := range codes {
		if errors.Is(err, c.is) {
			return &wire.Error{Code: c.code, Detail: err.Error()}
		}
	}
	return &wire.Error{Code: wire.CodeInternal, Detail: err.Error()}
}

// refusal is an error that the server itself answers.
func refusal(code wire.Code, format string, a ...any) *wire.Error {
	return &wire.Error{Code: code, Detail: fmt.Sprintf(format, a...)}
}
