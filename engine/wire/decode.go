package wire

import (
	"fmt"

	flatbuffers "github.com/google/flatbuffers/go"

	"github.com/ringfence/ringfence/engine/wire/wirefb"
)

// accessor is a pointer to a type of wirefb that reads a table where it lies.
type accessor[A any] interface {
	*A
	Init([]byte, flatbuffers.UOffsetT)
}

// by reads verified messages by the method that unpacks them.
func by[A any, P accessor[A], T any](unpack func(P) *T) func(msg []byte) any {
	return func(msg []byte) any {
		root := P(new(A))
		root.Init(msg, flatbuffers.GetUOffsetT(msg))
		m := unpack(root)
		complete(m)
		return m
	}
}

// complete puts empty tables where a message left them out, as it does with numbers
// that are 0, so that no pointer in it is nil.
func complete(m any) {
	switch m := m.(type) {
	case *DescribeTopicReply:
		m.Topic = orNew(m.Topic)
	case *SetPolicy:
		m.Policy = orNew(m.Policy)
		complete(m.Policy)
	case *ListPoliciesReply:
		for _, p := range m.Policies {
			complete(p)
		}
	case *UserGrant:
		m.Grant = orNew(m.Grant)
	case *SetQuota:
		m.Quota = orNew(m.Quota)
	case *CreateTokenReply:
		m.Token = orNew(m.Token)
	case *ListUsersReply:
		for _, u := range m.Users {
			complete(u)
		}
	case *UserInfo:
		m.Quota = orNew(m.Quota)
	case *Policy:
		m.MaxAge, m.MaxBytes = orNew(m.MaxAge), orNew(m.MaxBytes)
		m.SegmentMaxAge, m.SegmentMaxBytes = orNew(m.SegmentMaxAge), orNew(m.SegmentMaxBytes)
	}
}

func orNew[T any](p *T) *T {
	if p == nil {
		return new(T)
	}
	return p
}

// Request verifies the message of a request and answers it unpacked, a pointer to
// the type that the key has: *[CreateTopic] and so on. No pointer in it is nil. Strings
// are copies; the secret of an Authenticate lies in msg. An error is an *[Error].
func Request(key Key, msg []byte) (m any, err error) {
	defer refused(key, &m, &err)
	t, err := verified(key, 0, msg)
	if err != nil {
		return nil, err
	}
	return t.unpack(msg), nil
}

// Reply verifies the message of a frame with FlagReply and answers it unpacked, as
// [Request] does. Where the request failed both results are the *[Error] that the
// server sent. A nil message means that the bytes are no reply to such a request:
// then the error, an *[Error] too, says why.
func Reply(key Key, flags uint16, msg []byte) (m any, err error) {
	defer refused(key, &m, &err)
	if flags == 0 {
		return nil, &Error{Code: CodeMalformed, Detail: key.String() + ": a request where a reply is due"}
	}
	t, err := verified(key, flags, msg)
	if err != nil {
		return nil, err
	}
	m = t.unpack(msg)
	if failed, ok := m.(*Error); ok {
		return failed, failed
	}
	return m, nil
}

// refused makes an error of a panic in a decoder. No message is known that causes one; if
// one does, the connection that it came on is the only one that notices.
func refused(key Key, m *any, err *error) {
	if r := recover(); r != nil {
		*m, *err = nil, &Error{Code: CodeInternal, Detail: fmt.Sprintf("%s: reading the message panicked: %v", key, r)}
	}
}

// ParseProduce verifies the message of a request to store and answers the producer's
// handle. It allocates nothing.
func ParseProduce(msg []byte) (producer uint32, err error) {
	if err := tableProduce.verify(msg); err != nil {
		return 0, err
	}
	var m wirefb.Produce
	m.Init(msg, flatbuffers.GetUOffsetT(msg))
	return m.Producer(), nil
}

// ParseProduceReply verifies the message of a reply without FlagFailed. It allocates
// nothing.
func ParseProduceReply(msg []byte) (r ProduceReply, err error) {
	if err := tableProduceReply.verify(msg); err != nil {
		return r, err
	}
	var m wirefb.ProduceReply
	m.Init(msg, flatbuffers.GetUOffsetT(msg))
	m.UnPackTo(&r)
	return r, nil
}
