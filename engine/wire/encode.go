package wire

import (
	"fmt"

	flatbuffers "github.com/google/flatbuffers/go"
)

// Encoder builds frames in memory that it uses again. The zero value is ready; it
// has one user at a time.
type Encoder struct {
	b *flatbuffers.Builder
}

// Memory that an encoder starts with, and most that it keeps, in bytes.
const (
	encoderStart = 512
	encoderKept  = 64 << 10
)

func (e *Encoder) start() *flatbuffers.Builder {
	if e.b == nil || cap(e.b.Bytes) > encoderKept {
		e.b = flatbuffers.NewBuilder(encoderStart)
	}
	e.b.Reset()
	return e.b
}

// Frame is the head and the message of a frame, valid until the encoder is used
// again. The head's length counts raw bytes more, the record frames that the caller
// writes behind it. Frames that fail or are pushed are replies: FlagReply is set with
// these flags.
//
// Of a message longer than MaxMessage a reply becomes a failure that says so, behind
// which no raw bytes belong, and a request nil.
func (e *Encoder) Frame(key Key, flags uint16, id uint32, m Message, raw int) []byte {
	b := e.start()
	return e.finish(key, flags, id, m.Pack(b), raw)
}

func (e *Encoder) finish(key Key, flags uint16, id uint32, root flatbuffers.UOffsetT, raw int) []byte {
	b := e.b
	b.Finish(root)
	size := uint32(b.Offset())
	if size > MaxMessage {
		if flags == 0 {
			return nil
		}
		return e.Fail(key, id, &Error{
			Code:   CodeFrameTooLarge,
			Detail: fmt.Sprintf("the answer to %s has %d bytes, at most %d can be sent", key, size, MaxMessage),
		})
	}
	if flags != 0 {
		flags |= FlagReply
	}
	// A builder grows downwards, and the size of what is finished is a multiple of 4,
	// so the head goes before it without a gap.
	for range HeadSize / 4 {
		b.PrependUint32(0)
	}
	frame := b.Bytes[b.Head():]
	Head{Length: size + uint32(raw), Key: key, Flags: flags, ID: id, Message: size}.Put(frame)
	return frame
}

// Fail is the frame that answers a request of key and id with err.
func (e *Encoder) Fail(key Key, id uint32, err *Error) []byte {
	return e.Frame(key, FlagReply|FlagFailed, id, err, 0)
}

// Produce is head and message of a request to store a record frame of raw bytes.
func (e *Encoder) Produce(id, producer uint32, raw int) []byte {
	m := Produce{Producer: producer}
	return e.finish(KeyProduce, 0, id, m.Pack(e.start()), raw)
}

// ProduceReply is the frame that says where a record frame was stored.
func (e *Encoder) ProduceReply(id uint32, r ProduceReply) []byte {
	return e.finish(KeyProduce, FlagReply, id, r.Pack(e.start()), 0)
}
