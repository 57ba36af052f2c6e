package wire

import (
	"fmt"
	"maps"
	"slices"
)

// Code says why a request failed. It is an error itself, to test for with errors.Is.
type Code uint16

// The codes. A number never gets another meaning.
const (
	CodeMalformed          Code = 1
	CodeUnknownKey         Code = 2
	CodeUnsupportedVersion Code = 3
	CodeFrameTooLarge      Code = 4
	CodeNotAuthenticated   Code = 5
	CodeInvalidCredentials Code = 6
	CodePermissionDenied   Code = 7
	CodeInternal           Code = 8
	CodeUnsupported        Code = 9
	CodeQuotaTooSmall      Code = 10
	CodeNoSuchTopic        Code = 16
	CodeTopicExists        Code = 17
	CodeInvalidName        Code = 18
	CodeNoSuchRange        Code = 19
	CodeInvalidArgument    Code = 20
	CodeRecordTooLarge     Code = 21
	CodeDamaged            Code = 22
	CodeStorageFailed      Code = 23 // the record may or may not be stored
	CodeProducerHalted     Code = 24
	CodeCorruptFrame       Code = 25
	CodeNoSuchHandle       Code = 26
	CodeNoSuchPolicy       Code = 27
	CodeNoSuchGroup        Code = 28
	CodePolicyInUse        Code = 29
	CodeGroupInUse         Code = 30
	CodeInvalidCursor      Code = 32
	CodeForeignCursor      Code = 33
	CodeCursorPastEnd      Code = 34
	CodeCursorOfOther      Code = 35
	CodeStaleGeneration    Code = 36
	CodeUnknownMember      Code = 37
	CodeRangeSealed        Code = 38
	CodeNotBuddies         Code = 39
	CodeCannotSplit        Code = 40
	CodeInvalidBits        Code = 41
	CodeInvalidPolicy      Code = 42
	CodeInvalidGroup       Code = 43
	CodeNotASource         Code = 44
	CodeLimit              Code = 45
	CodeMismatch           Code = 46
	CodeNoSuchUser         Code = 48
	CodeUserExists         Code = 49
	CodeNoSuchGrant        Code = 50
	CodeNoSuchToken        Code = 51
	CodeInvalidUser        Code = 52
	CodeInvalidPassword    Code = 53
	CodeInvalidGrant       Code = 54
	CodeInvalidToken       Code = 55
	CodeLastAdministrator  Code = 56

	CodeOutOfSpace         Code = retryable | 1
	CodeOverloaded         Code = retryable | 2
	CodeOutcomeUnknown     Code = retryable | 3 // it may still take effect
	CodeUnavailable        Code = retryable | 4
	CodeShuttingDown       Code = retryable | 5
	CodeRateLimited        Code = retryable | 6
	CodeTooManyConnections Code = retryable | 7
	CodeWriteFailed        Code = retryable | 8 // as CodeStorageFailed; opened again, the producer goes on elsewhere
)

// retryable is the bit of codes after which the same request may succeed later.
const retryable = 0x8000

var codeNames = map[Code]string{
	CodeMalformed:          "malformed",
	CodeUnknownKey:         "unknown_key",
	CodeUnsupportedVersion: "unsupported_version",
	CodeFrameTooLarge:      "frame_too_large",
	CodeNotAuthenticated:   "not_authenticated",
	CodeInvalidCredentials: "invalid_credentials",
	CodePermissionDenied:   "permission_denied",
	CodeInternal:           "internal",
	CodeUnsupported:        "unsupported",
	CodeQuotaTooSmall:      "quota_too_small",
	CodeNoSuchTopic:        "no_such_topic",
	CodeTopicExists:        "topic_exists",
	CodeInvalidName:        "invalid_name",
	CodeNoSuchRange:        "no_such_range",
	CodeInvalidArgument:    "invalid_argument",
	CodeRecordTooLarge:     "record_too_large",
	CodeDamaged:            "damaged",
	CodeStorageFailed:      "storage_failed",
	CodeProducerHalted:     "producer_halted",
	CodeCorruptFrame:       "corrupt_frame",
	CodeNoSuchHandle:       "no_such_handle",
	CodeNoSuchPolicy:       "no_such_policy",
	CodeNoSuchGroup:        "no_such_group",
	CodePolicyInUse:        "policy_in_use",
	CodeGroupInUse:         "group_in_use",
	CodeInvalidCursor:      "invalid_cursor",
	CodeForeignCursor:      "foreign_cursor",
	CodeCursorPastEnd:      "cursor_past_end",
	CodeCursorOfOther:      "cursor_of_other",
	CodeStaleGeneration:    "stale_generation",
	CodeUnknownMember:      "unknown_member",
	CodeRangeSealed:        "range_sealed",
	CodeNotBuddies:         "not_buddies",
	CodeCannotSplit:        "cannot_split",
	CodeInvalidBits:        "invalid_bits",
	CodeInvalidPolicy:      "invalid_policy",
	CodeInvalidGroup:       "invalid_group",
	CodeNotASource:         "not_a_source",
	CodeLimit:              "limit_reached",
	CodeMismatch:           "mismatch",
	CodeNoSuchUser:         "no_such_user",
	CodeUserExists:         "user_exists",
	CodeNoSuchGrant:        "no_such_grant",
	CodeNoSuchToken:        "no_such_token",
	CodeInvalidUser:        "invalid_user",
	CodeInvalidPassword:    "invalid_password",
	CodeInvalidGrant:       "invalid_grant",
	CodeInvalidToken:       "invalid_token",
	CodeLastAdministrator:  "last_administrator",
	CodeOutOfSpace:         "out_of_space",
	CodeOverloaded:         "overloaded",
	CodeOutcomeUnknown:     "outcome_unknown",
	CodeUnavailable:        "unavailable",
	CodeShuttingDown:       "shutting_down",
	CodeRateLimited:        "rate_limited",
	CodeTooManyConnections: "too_many_connections",
	CodeWriteFailed:        "write_failed",
}

// Codes are those that this version has.
func Codes() []Code { return slices.Sorted(maps.Keys(codeNames)) }

func (c Code) String() string {
	if s, ok := codeNames[c]; ok {
		return s
	}
	return fmt.Sprintf("code %#x", uint16(c))
}

func (c Code) Error() string { return c.String() }

// Retryable says whether the same request may succeed later. It holds for codes
// that this version does not know, too.
func (c Code) Retryable() bool { return c&retryable != 0 }
