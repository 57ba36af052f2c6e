package wire

import (
	"math"
	"strings"
	"time"
	"unicode/utf8"

	flatbuffers "github.com/google/flatbuffers/go"

	"github.com/ringfence/ringfence/engine/wire/wirefb"
)

// Error is why a request failed, on either side of the connection. errors.Is finds
// its Code. It is a Message, the one of a frame with FlagFailed.
type Error struct {
	Code   Code
	Detail string // what happened, to what, and what to do
	// RetryAfter is when to try again at the earliest; 0 says nothing.
	RetryAfter time.Duration
}

func (e *Error) Error() string {
	if e.Detail == "" {
		return e.Code.String()
	}
	return e.Code.String() + ": " + e.Detail
}

func (e *Error) Unwrap() error { return e.Code }

// Pack writes e as the schema has it: a detail that is too long is cut, one that is
// not valid UTF-8 mended, and RetryAfter rounded up to milliseconds.
func (e *Error) Pack(b *flatbuffers.Builder) flatbuffers.UOffsetT {
	ms := max(e.RetryAfter, 0) / time.Millisecond
	if e.RetryAfter > ms*time.Millisecond {
		ms++
	}
	t := wirefb.ErrorT{
		Code:         uint16(e.Code),
		Detail:       clip(e.Detail, MaxText),
		RetryAfterMs: uint32(min(ms, math.MaxUint32)),
	}
	return t.Pack(b)
}

// Clip is as much of a text as a message takes.
func Clip(s string) string {
	if len(s) <= MaxText && utf8.ValidString(s) {
		return s
	}
	return clip(s, MaxText)
}

// clip is at most limit bytes of s as valid UTF-8: what takes the place of bytes that
// are none, or of a character cut in two, is no longer than these.
func clip(s string, limit int) string {
	return strings.ToValidUTF8(s[:min(len(s), limit)], "?")
}

func unpackError(msg []byte) any {
	t := wirefb.GetRootAsError(msg, 0).UnPack()
	return &Error{Code: Code(t.Code), Detail: t.Detail, RetryAfter: time.Duration(t.RetryAfterMs) * time.Millisecond}
}
