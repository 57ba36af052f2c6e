package wire

import (
	"encoding/binary"
	"fmt"
)

// What a connection starts from; see Hello.
const (
	Magic   = 0x31464E52 // "RNF1" in the order of the bytes
	Version = 1
)

// Limits, in bytes. How long a frame may be once the hello is done is what the
// server says in it.
const (
	MaxFirst   = 64 << 10        // behind the head, until hello and authentication are done
	MaxFrame   = 16<<20 + 64<<10 // behind the head, from then on: the default
	MaxMessage = 1 << 20         // of the message of any frame
	MaxText    = 4 << 10         // of a string in a message, if it is no cursor
	MaxCursor  = 512 << 10       // of a cursor
	MaxSecret  = 16 << 10        // of the secret of Authenticate
)

// Flags of a frame. One without any is a request.
const (
	FlagReply  = 1 << iota // from the server
	FlagFailed             // with FlagReply: the message is an Error
	FlagPush               // with FlagReply: one of many, the request goes on
)

// The head of a frame:
//
//	off size field
//	  0    4 length   bytes behind the head: message and record frames
//	  4    2 key
//	  6    2 flags
//	  8    4 id       the client's, the same in request and reply
//	 12    4 message  bytes of the message; what length leaves is record frames
const (
	HeadSize = 16

	offLength  = 0
	offKey     = 4
	offFlags   = 6
	offID      = 8
	offMessage = 12
)

// Head is what every frame starts with.
type Head struct {
	Length  uint32 // bytes behind the head
	Key     Key
	Flags   uint16
	ID      uint32
	Message uint32 // bytes of Length that are the message
}

// Raw is how many bytes of record frames follow the message.
func (h Head) Raw() int { return int(h.Length - h.Message) }

// Put writes h to the first HeadSize bytes of b.
func (h Head) Put(b []byte) {
	b = b[:HeadSize:HeadSize]
	le := binary.LittleEndian
	le.PutUint32(b[offLength:], h.Length)
	le.PutUint16(b[offKey:], uint16(h.Key))
	le.PutUint16(b[offFlags:], h.Flags)
	le.PutUint32(b[offID:], h.ID)
	le.PutUint32(b[offMessage:], h.Message)
}

// ParseHead reads the head at the start of b and holds it against limit, which is
// in bytes behind the head. Any key passes, so that a request of an unknown one can
// be answered. With an error, an *[Error], the head is as it was read, so that the
// refusal can name the request; where the next frame starts is not to be trusted
// then, and the connection ends.
func ParseHead(b []byte, limit uint32) (Head, error) {
	if len(b) < HeadSize {
		return Head{}, &Error{Code: CodeMalformed, Detail: fmt.Sprintf("%d bytes are no frame head, which has %d", len(b), HeadSize)}
	}
	b = b[:HeadSize:HeadSize]
	le := binary.LittleEndian
	h := Head{
		Length:  le.Uint32(b[offLength:]),
		Key:     Key(le.Uint16(b[offKey:])),
		Flags:   le.Uint16(b[offFlags:]),
		ID:      le.Uint32(b[offID:]),
		Message: le.Uint32(b[offMessage:]),
	}
	return h, h.check(limit)
}

func (h Head) check(limit uint32) error {
	bad := func(code Code, format string, a ...any) error {
		return &Error{Code: code, Detail: fmt.Sprintf("%s frame: ", h.Key) + fmt.Sprintf(format, a...)}
	}
	switch {
	case h.Length > limit:
		return bad(CodeFrameTooLarge, "%d bytes, at most %d", h.Length, limit)
	case h.Message > h.Length:
		return bad(CodeMalformed, "a message of %d bytes in %d", h.Message, h.Length)
	case h.Message > MaxMessage:
		return bad(CodeFrameTooLarge, "a message of %d bytes, at most %d", h.Message, MaxMessage)
	case !validFlags(h.Flags):
		return bad(CodeMalformed, "unknown flags %#x", h.Flags)
	case h.Raw() != 0 && !h.mayCarry():
		return bad(CodeMalformed, "%d bytes behind a message that has no record frames", h.Raw())
	}
	return nil
}

func validFlags(f uint16) bool {
	return f == 0 || f == FlagReply || f == FlagReply|FlagFailed || f == FlagReply|FlagPush
}

// mayCarry says whether record frames may follow the message. Of a key that this
// version does not have that is not known.
func (h Head) mayCarry() bool {
	x := exchangeOf(h.Key)
	if x == nil {
		return true
	}
	t := x.table(h.Flags)
	return t == &tableProduce || t == &tablePage
}
