package wire

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

// Every message comes back as it was sent, with its head before it and the bytes
// that follow counted.
func TestRoundTrip(t *testing.T) {
	var e Encoder
	for _, k := range everyMessage() {
		t.Run(k.String(), func(t *testing.T) {
			m := sample(k.table)
			raw := 0
			if (Head{Key: k.key, Flags: k.flags}).mayCarry() {
				raw = 77
			}
			frame := e.Frame(k.key, k.flags, 99, m, raw)
			h, err := ParseHead(frame, MaxFrame)
			if err != nil {
				t.Fatal(err)
			}
			want := Head{Length: uint32(len(frame) - HeadSize + raw), Key: k.key, Flags: k.flags, ID: 99, Message: uint32(len(frame) - HeadSize)}
			if h != want || h.Raw() != raw {
				t.Errorf("head %+v, want %+v", h, want)
			}
			got, err := decode(k.key, k.flags, frame[HeadSize:])
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(got, m) {
				t.Errorf("got  %+v\nwant %+v", got, m)
			}
		})
	}
}

// decode is Request or Reply, whichever the flags say.
func decode(key Key, flags uint16, msg []byte) (any, error) {
	if flags == 0 {
		return Request(key, msg)
	}
	m, err := Reply(key, flags, msg)
	if flags&FlagFailed != 0 && m != nil {
		err = nil
	}
	return m, err
}

// What a message leaves out is zero, and never a nil pointer.
func TestAbsentFields(t *testing.T) {
	for _, k := range everyMessage() {
		m, err := decode(k.key, k.flags, emptyMessage())
		if err != nil {
			t.Errorf("%s: %v", k, err)
			continue
		}
		if n := reflect.ValueOf(m).Elem().NumField(); n != len(k.table.fields) {
			t.Errorf("%s: %d fields of %d", k, n, len(k.table.fields))
		}
		for _, v := range everyField(reflect.ValueOf(m)) {
			if v.Kind() == reflect.Pointer && v.IsNil() {
				t.Errorf("%s: a nil %s", k, v.Type())
			}
		}
	}
	var e Encoder
	frame := e.Frame(KeyListPolicies, FlagReply, 1, &ListPoliciesReply{Policies: []*Policy{{Name: "p"}}}, 0)
	m, err := Reply(KeyListPolicies, FlagReply, frame[HeadSize:])
	if err != nil || m.(*ListPoliciesReply).Policies[0].MaxAge == nil {
		t.Errorf("a policy in a list is not completed: %v", err)
	}
}

// everyField lists v and all that is in it.
func everyField(v reflect.Value) []reflect.Value {
	all := []reflect.Value{v}
	switch {
	case v.Kind() == reflect.Pointer && !v.IsNil():
		return append(all, everyField(v.Elem())...)
	case v.Kind() == reflect.Struct:
		for i := range v.NumField() {
			all = append(all, everyField(v.Field(i))...)
		}
	case v.Kind() == reflect.Slice:
		for i := range v.Len() {
			all = append(all, everyField(v.Index(i))...)
		}
	}
	return all
}

// The verifier's tables are those of the schema.
func TestTablesAreTheSchema(t *testing.T) {
	src, err := os.ReadFile("wirefb/wire.fbs")
	if err != nil {
		t.Fatal(err)
	}
	ours := map[string]*table{"TopicInfo": &tableTopicInfo, "SegmentInfo": &tableSegmentInfo, "RangeInfo": &tableRangeInfo,
		"Bound": &tableBound, "Policy": &tablePolicy, "Skip": &tableSkip, "GroupRange": &tableGroupRange,
		"Grant": &tableGrant, "Quota": &tableQuota, "UserInfo": &tableUserInfo, "TokenInfo": &tableTokenInfo}
	for _, k := range everyMessage() {
		ours[k.table.name] = k.table
	}
	text := regexp.MustCompile(`//.*`).ReplaceAllString(string(src), "")
	found := regexp.MustCompile(`table (\w+)\s*\{([^}]*)\}`).FindAllStringSubmatch(text, -1)
	if len(found) != len(ours) {
		t.Errorf("the schema has %d tables, the verifier %d", len(found), len(ours))
	}
	for _, f := range found {
		tab := ours[f[1]]
		if tab == nil {
			t.Errorf("the verifier has no table %s, or no message leads to it", f[1])
			continue
		}
		if tab.name != f[1] {
			t.Errorf("table %s calls itself %s", f[1], tab.name)
		}
		fields := regexp.MustCompile(`(\w+)\s*:\s*(\S+?)\s*;`).FindAllStringSubmatch(f[2], -1)
		if len(fields) != len(tab.fields) {
			t.Errorf("%s has %d fields, the verifier knows %d", f[1], len(fields), len(tab.fields))
			continue
		}
		for i, sf := range fields {
			if want := schemaField(sf[1], sf[2], ours); tab.fields[i] != want {
				t.Errorf("%s.%s: the verifier has %+v, want %+v", f[1], sf[1], tab.fields[i], want)
			}
		}
	}
}

func schemaField(name, typ string, tables map[string]*table) field {
	switch typ {
	case "bool", "ubyte":
		return byte1
	case "ushort":
		return byte2
	case "uint":
		return byte4
	case "long", "ulong":
		return byte8
	case "string":
		if name == "cursor" {
			return cursor
		}
		return text
	case "[string]":
		return texts
	case "[uint]":
		return numbers
	case "[ubyte]":
		return secret
	}
	if entries, ok := strings.CutPrefix(typ, "["); ok {
		return many(tables[strings.TrimSuffix(entries, "]")])
	}
	return one(tables[typ])
}

// The hot paths allocate nothing, and read and write what the others do.
func TestHotPaths(t *testing.T) {
	var e, other Encoder
	reply := ProduceReply{Range: 3, First: 1 << 40, Last: 1<<40 + 9, Repeats: 4}
	if got, want := e.ProduceReply(7, reply), other.Frame(KeyProduce, FlagReply, 7, &reply, 0); !bytes.Equal(got, want) {
		t.Errorf("ProduceReply writes %x, want %x", got, want)
	}
	if got, want := e.Produce(7, 5, 100), other.Frame(KeyProduce, 0, 7, &Produce{Producer: 5}, 100); !bytes.Equal(got, want) {
		t.Errorf("Produce writes %x, want %x", got, want)
	}
	request := bytes.Clone(e.Produce(7, 5, 100))
	answer := bytes.Clone(e.ProduceReply(7, reply))
	for name, f := range map[string]func(){
		"ParseProduce": func() {
			if producer, err := ParseProduce(request[HeadSize:]); err != nil || producer != 5 {
				t.Fatal(producer, err)
			}
		},
		"ParseProduceReply": func() {
			if r, err := ParseProduceReply(answer[HeadSize:]); err != nil || r != reply {
				t.Fatal(r, err)
			}
		},
		"ParseHead": func() {
			if h, err := ParseHead(request, MaxFrame); err != nil || h.Raw() != 100 {
				t.Fatal(h, err)
			}
		},
		"Produce":      func() { e.Produce(7, 5, 100) },
		"ProduceReply": func() { e.ProduceReply(7, reply) },
		"Verify": func() {
			if err := Verify(KeyProduce, FlagReply, answer[HeadSize:]); err != nil {
				t.Fatal(err)
			}
		},
	} {
		if n := testing.AllocsPerRun(100, f); n != 0 {
			t.Errorf("%s allocates %v times", name, n)
		}
	}
}

// Errors keep their code, and what does not fit the schema is made to.
func TestErrors(t *testing.T) {
	var e Encoder
	sent := &Error{Code: CodeNoSuchTopic, Detail: "topic \"x\"", RetryAfter: 1}
	frame := e.Fail(KeyFetch, 3, sent)
	m, err := Reply(KeyFetch, FlagReply|FlagFailed, frame[HeadSize:])
	var got *Error
	if !errors.Is(err, CodeNoSuchTopic) || errors.Is(err, CodeTopicExists) || !errors.As(err, &got) || m != any(got) {
		t.Fatalf("got %v", err)
	}
	if got.Detail != sent.Detail || got.RetryAfter != time.Millisecond || err.Error() != `no_such_topic: topic "x"` {
		t.Errorf("got %+v: %v", got, err)
	}
	for _, detail := range []string{strings.Repeat("é", MaxText), "x" + strings.Repeat("é", MaxText), "bad \xff\xfe bytes"} {
		frame := e.Fail(0, 0, &Error{Code: 0x8fff, Detail: detail, RetryAfter: math.MaxInt64})
		m, _ := Reply(0, FlagReply|FlagFailed, frame[HeadSize:])
		got, ok := m.(*Error)
		if !ok || !utf8.ValidString(got.Detail) || len(got.Detail) < min(len(detail), MaxText-1)-1 {
			t.Errorf("%.20q became %+v", detail, m)
		} else if got.RetryAfter != math.MaxUint32*time.Millisecond || !got.Code.Retryable() {
			t.Errorf("got %v, retryable %v", got.RetryAfter, got.Code.Retryable())
		}
	}
}

// A message that is too long leaves no frame that the other side must refuse.
func TestMessageTooLong(t *testing.T) {
	var e Encoder
	long := strings.Repeat("x", MaxMessage)
	if frame := e.Frame(KeyCommit, 0, 1, &Commit{Cursor: long}, 0); frame != nil {
		t.Errorf("a request of %d bytes", len(frame))
	}
	frame := e.Frame(KeyListGroups, FlagReply, 8, &ListGroupsReply{Groups: []string{long}}, 0)
	h, err := ParseHead(frame, MaxFirst)
	if err != nil || h.ID != 8 || h.Flags != FlagReply|FlagFailed {
		t.Fatalf("%+v: %v", h, err)
	}
	if _, err := Reply(h.Key, h.Flags, frame[HeadSize:]); !errors.Is(err, CodeFrameTooLarge) {
		t.Errorf("got %v", err)
	}
	e.Frame(KeyPing, 0, 1, &Ping{}, 0)
	if n := cap(e.b.Bytes); n > encoderKept {
		t.Errorf("the encoder keeps %d bytes", n)
	}
}

// Keys and codes have names, each its own.
func TestNames(t *testing.T) {
	seen := map[string]bool{}
	for k := range exchanges {
		if !Key(k).Known() {
			continue
		}
		if s := Key(k).String(); seen[s] || s == "" {
			t.Errorf("key %d is called %q", k, s)
		}
		seen[Key(k).String()] = true
	}
	for c, name := range codeNames {
		if seen[name] || c.String() != name || c.Retryable() != (c >= 0x8000) {
			t.Errorf("code %#x is called %q, retryable %v", uint16(c), c, c.Retryable())
		}
		seen[name] = true
	}
	if s := fmt.Sprint(Key(1000), Code(1000)); s != "key 1000 code 0x3e8" {
		t.Errorf("got %q", s)
	}
}

// Builders let tables share a vtable that differ in their padding alone, so some say that
// they are longer than they are. Such a message is whole.
func TestSharedVtables(t *testing.T) {
	var e Encoder
	m := &ListPoliciesReply{}
	for n := range 1000 {
		m.Policies = append(m.Policies, &Policy{Name: "p", MaxAge: &Bound{}, MaxBytes: &Bound{Setting: byte(n % 3)}, SegmentMaxAge: &Bound{Limit: int64(n % 7)}, SegmentMaxBytes: &Bound{}})
	}
	frame := e.Frame(KeyListPolicies, FlagReply, 1, m, 0)
	got, err := Reply(KeyListPolicies, FlagReply, frame[HeadSize:])
	if err != nil || !reflect.DeepEqual(got, m) {
		t.Errorf("%v", err)
	}
}
