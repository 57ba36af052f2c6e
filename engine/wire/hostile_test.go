package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"strings"
	"testing"
)

// raw is a flatbuffer written by hand, good or bad.
type raw []byte

func (r raw) u16(v ...uint16) raw {
	for _, v := range v {
		r = binary.LittleEndian.AppendUint16(r, v)
	}
	return r
}

func (r raw) u32(v ...uint32) raw {
	for _, v := range v {
		r = binary.LittleEndian.AppendUint32(r, v)
	}
	return r
}

// topicMessage is a Topic: root, vtable at 4 with one field, table at 12, string at 20.
func topicMessage(name string) raw {
	b := raw{}.u32(12).u16(6, 8, 4, 0).u32(8, 4).u32(uint32(len(name)))
	return append(append(b, name...), 0)
}

// Every way to leave the message is refused by name.
func TestHostileMessages(t *testing.T) {
	good := topicMessage("logs")
	if m, err := Request(KeyDeleteTopic, good); err != nil || m.(*Topic).Topic != "logs" {
		t.Fatalf("the message to damage is damaged: %v %v", m, err)
	}
	edit := func(at int, v ...byte) raw {
		b := bytes.Clone(good)
		copy(b[at:], v)
		return b
	}
	for _, c := range []struct {
		name string
		msg  []byte
		want string
	}{
		{"nothing", nil, "shorter than a message can be at byte 0 of 0"},
		{"three bytes", good[:3], "shorter than a message can be"},
		{"root alone", good[:4], "root is not in the message"},
		{"root 0", edit(0, 0), "root is not in the message"},
		{"root on itself", edit(0, 3), "root is not in the message"},
		{"root at the end", edit(0, byte(len(good)-3)), "root is not in the message"},
		{"root far away", edit(0, 0xff, 0xff, 0xff, 0xff), "root is not in the message"},
		{"vtable before", edit(12, 13), "vtable is not in the message at byte 12"},
		{"vtable over the root", edit(12, 9), "vtable is not in the message"},
		{"vtable behind", edit(12, 0, 0, 0, 0x80), "vtable is not in the message"},
		{"vtable at the end", edit(12, 0xf1, 0xff, 0xff, 0xff), "vtable is not in the message"},
		{"vtable too small", edit(4, 2), "vtable size out of bounds at byte 4"},
		{"vtable odd", edit(4, 7), "vtable size out of bounds"},
		{"vtable too large", edit(4, 26), "vtable size out of bounds"},
		{"table too small", edit(6, 3), "table size out of bounds at byte 6"},
		{"table too large", edit(6, byte(len(good)-11)), "table size out of bounds"},
		{"field over the vtable's offset", edit(8, 3), "field is not in the table at byte 8"},
		{"field behind the table", edit(8, 5), "field is not in the table"},
		{"string on itself", edit(16, 0), "vector is not in the message at byte 16"},
		{"string at the end", edit(16, 10), "vector is not in the message"},
		{"string far away", edit(16, 0xff, 0xff, 0xff, 0xff), "vector is not in the message"},
		{"string too long for the message", edit(20, 6), "vector is longer than the message at byte 20"},
		{"string of 4 GiB", edit(20, 0xff, 0xff, 0xff, 0xff), "vector is longer than the message"},
		{"string without end", edit(28, 1), "string does not end in a zero byte at byte 20"},
		{"string to the last byte", edit(20, 5), "string does not end in a zero byte"},
		{"no UTF-8", edit(24, 0xff), "string is not valid UTF-8 at byte 20"},
		{"half a character", edit(27, 0xc3), "string is not valid UTF-8"},
		{"long string", topicMessage(strings.Repeat("x", MaxText+1)), "string is too long at byte 20"},
		{"string in the table", edit(8, 8), "field is not in the table"},
		{"long message", append(bytes.Clone(good), make([]byte, MaxMessage)...), "longer than a message may be"},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := Verify(KeyDeleteTopic, 0, c.msg)
			if !errors.Is(err, CodeMalformed) || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "message Topic: ") {
				t.Errorf("got %v, want %q", err, c.want)
			}
			if m, err := Request(KeyDeleteTopic, c.msg); m != nil || err == nil {
				t.Errorf("unpacks to %v: %v", m, err)
			}
		})
	}
	if err := Verify(KeyDeleteTopic, 0, topicMessage(strings.Repeat("x", MaxText))); err != nil {
		t.Errorf("the longest string: %v", err)
	}
}

// The key and the flags decide what a message is, and some pairs are nothing.
func TestUnknownMessages(t *testing.T) {
	for _, c := range []struct {
		key   Key
		flags uint16
		want  Code
	}{
		{0, 0, CodeUnknownKey},
		{4, 0, CodeUnknownKey},
		{71, FlagReply, CodeUnknownKey},
		{0xffff, FlagReply | FlagPush, CodeUnknownKey},
		{KeyCredit, FlagReply, CodeMalformed},
		{KeyFetch, FlagReply | FlagPush, CodeMalformed},
		{KeyFetch, FlagPush, CodeMalformed},
		{KeyFetch, FlagFailed, CodeMalformed},
		{KeyFetch, 8, CodeMalformed},
		{KeyFetch, FlagReply | FlagPush | FlagFailed, CodeMalformed},
	} {
		if err := Verify(c.key, c.flags, emptyMessage()); !errors.Is(err, c.want) {
			t.Errorf("%s with flags %#x: %v", c.key, c.flags, err)
		}
	}
	if m, err := Reply(KeyFetch, 0, emptyMessage()); m != nil || !errors.Is(err, CodeMalformed) {
		t.Errorf("a request is a reply: %v %v", m, err)
	}
	if err := Verify(4, FlagReply|FlagFailed, emptyMessage()); err != nil {
		t.Errorf("the failure of an unknown key: %v", err)
	}
}

// A part that is used more than once makes a message that unpacks to more than it
// is: refused, at any depth, in time linear in its length.
func TestNothingIsUsedTwice(t *testing.T) {
	const n = 30_000
	// A vector of n offsets to one string, as the groups of a ListGroupsReply.
	texts := func(n int) raw {
		b := raw{}.u32(12).u16(6, 8, 4, 0).u32(8, 4).u32(uint32(n))
		for i := range n {
			b = b.u32(uint32(4 * (n - i)))
		}
		return append(b.u32(MaxText), make([]byte, MaxText+1)...)
	}
	if err := Verify(KeyListGroups, FlagReply, texts(1)); err != nil {
		t.Fatalf("one string that is used once: %v", err)
	}
	if err := Verify(KeyListGroups, FlagReply, texts(n)); !errors.Is(err, CodeMalformed) || !strings.Contains(err.Error(), usedTwice) {
		t.Errorf("%d times one string: %v", n, err)
	}
	// A vector of n offsets to one empty table, as the skips of a Page.
	skips := func(n int) raw {
		b := raw{}.u32(20).u16(16, 8, 0, 0, 0, 0, 0, 4).u32(16, 4).u32(uint32(n))
		for i := range n {
			b = b.u32(uint32(4*(n-i) + 4))
		}
		return b.u16(4, 4).u32(4)
	}
	if err := Verify(KeyFetch, FlagReply, skips(1)); err != nil {
		t.Fatalf("one empty table that is used once: %v", err)
	}
	if err := Verify(KeyFetch, FlagReply, skips(n)); !errors.Is(err, CodeMalformed) || !strings.Contains(err.Error(), usedTwice) {
		t.Errorf("%d times one empty table: %v", n, err)
	}
	// A vector of n offsets to one table, which has the same vector as its segments.
	tables := func(n int) raw {
		// root, vtable of the message (ranges is field 1), table, vtable of a range
		// (segments is field 6), then the vector and behind it the range.
		b := raw{}.u32(12).u16(8, 8, 0, 4).u32(8, 24)
		b = b.u16(18, 8, 0, 0, 0, 0, 0, 0, 4, 0)
		b = b.u32(uint32(n))
		for i := range n {
			b = b.u32(uint32(4 * (n - i)))
		}
		at := len(b)
		b = b.u32(uint32(at-20), 4) // a range, whose segments are the vector behind
		b = b.u32(uint32(n))
		for i := range n {
			b = b.u32(uint32(4*(n-i) + 4))
		}
		return b.u16(4, 4).u32(4)
	}
	if err := Verify(KeyDescribeTopic, FlagReply, tables(1)); err != nil {
		t.Fatalf("one table that is used once: %v", err)
	}
	if err := Verify(KeyDescribeTopic, FlagReply, tables(n)); !errors.Is(err, CodeMalformed) || !strings.Contains(err.Error(), usedTwice) {
		t.Errorf("%d times %d times one table: %v", n, n, err)
	}
}

// Secrets have a limit of their own, cursors a higher one than other strings.
func TestLongFields(t *testing.T) {
	var e Encoder
	for size, want := range map[int]error{MaxSecret: nil, MaxSecret + 1: CodeMalformed} {
		frame := e.Frame(KeyAuthenticate, 0, 1, &Authenticate{Secret: make([]byte, size)}, 0)
		if err := Verify(KeyAuthenticate, 0, frame[HeadSize:]); !errors.Is(err, want) {
			t.Errorf("a secret of %d bytes: %v, want %v", size, err, want)
		}
	}
	for size, want := range map[int]error{MaxCursor: nil, MaxCursor + 1: CodeMalformed} {
		frame := e.Frame(KeyLag, 0, 1, &Lag{Cursor: strings.Repeat("x", size)}, 0)
		if err := Verify(KeyLag, 0, frame[HeadSize:]); !errors.Is(err, want) {
			t.Errorf("a cursor of %d bytes: %v, want %v", size, err, want)
		}
	}
}

// A message of a later version has more fields; one that leaves fields out, or that
// other code laid out, is as good.
func TestCompatibility(t *testing.T) {
	// Two fields more than a Topic has: a number, and an offset that leads nowhere.
	newer := raw{}.u32(16).u16(10, 20, 4, 8, 16, 0).u32(12, 16, 0xffffffff, 0xffffffff, 0xffffffff).u32(4)
	newer = append(newer, "logs\x00"...)
	m, err := Request(KeyDeleteTopic, newer)
	if err != nil || m.(*Topic).Topic != "logs" {
		t.Errorf("newer: %v %v", m, err)
	}
	// Not aligned, and the vtable behind the table.
	odd := append(raw{}.u32(5), 0).u32(0xffffffff-8+1, 10).u16(6, 8, 4).u32(4)
	odd = append(odd, "logs\x00"...)
	m, err = Request(KeyDeleteTopic, odd)
	if err != nil || m.(*Topic).Topic != "logs" {
		t.Errorf("laid out by other code: %v %v", m, err)
	}
}

// F06: a panic in a decoder is an error of the message alone.
func TestF06PanicIsARefusal(t *testing.T) {
	x := &exchanges[KeyDeleteTopic]
	before := *x
	defer func() { *x = before }()
	panics := table{"Topic", []field{text}, func([]byte) any { panic("broken decoder") }}
	x.request, x.reply = &panics, &panics
	msg := topicMessage("logs")
	_, request := Request(KeyDeleteTopic, msg)
	_, reply := Reply(KeyDeleteTopic, FlagReply, msg)
	for _, err := range []error{request, reply} {
		if !errors.Is(err, CodeInternal) || !strings.Contains(err.Error(), "DeleteTopic: reading the message panicked: broken decoder") {
			t.Errorf("a message whose reading panics: %v", err)
		}
	}
	if m, err := Request(KeyRollTopic, msg); err != nil || m.(*Topic).Topic != "logs" {
		t.Errorf("another one: %v, %v", m, err)
	}
}
