package wire

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"flag"
	"os"
	"reflect"
	"testing"
	"time"

	"github.com/ringfence/ringfence/engine/wire/wirefb"
	"github.com/ringfence/ringfence/segfile/record"
)

var update = flag.Bool("update", false, "write the golden files anew")

const vectorFile = "testdata/vectors.json"

// vector is one frame as bytes and as what they mean, for clients in any language.
type vector struct {
	Name    string          `json:"name"`
	Key     Key             `json:"key"`
	Flags   uint16          `json:"flags"`
	ID      uint32          `json:"id"`
	Table   string          `json:"table"`
	Message json.RawMessage `json:"message"`
	Frame   string          `json:"frame"`             // head and message, hex
	Records string          `json:"records,omitempty"` // the record frames behind them, hex
}

// Clients of any age meet servers of any age: what a frame means is pinned. A field
// that is added to the schema changes vectors; nothing else may.
func TestGoldenVectors(t *testing.T) {
	want := buildVectors(t)
	if *update {
		var b bytes.Buffer
		e := json.NewEncoder(&b)
		e.SetIndent("", " ")
		e.SetEscapeHTML(false)
		if err := e.Encode(want); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(vectorFile, b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(vectorFile)
	if err != nil {
		t.Fatal(err)
	}
	var pinned []vector
	if err := json.Unmarshal(text, &pinned); err != nil {
		t.Fatal(err)
	}
	if len(pinned) != len(want) {
		t.Fatalf("%s has %d vectors, want %d", vectorFile, len(pinned), len(want))
	}
	for i, v := range pinned {
		t.Run(v.Name, func(t *testing.T) {
			var compact bytes.Buffer
			if err := json.Compact(&compact, v.Message); err != nil {
				t.Fatal(err)
			}
			v.Message = compact.Bytes()
			if !reflect.DeepEqual(v, want[i]) {
				t.Errorf("builds %+v\npinned %+v", want[i], v)
			}
			v.read(t)
		})
	}
}

// read holds the bytes of a vector against its meaning.
func (v vector) read(t *testing.T) {
	frame, err := hex.DecodeString(v.Frame)
	if err != nil {
		t.Fatal(err)
	}
	records, err := hex.DecodeString(v.Records)
	if err != nil {
		t.Fatal(err)
	}
	h, err := ParseHead(frame, MaxFirst)
	if err != nil || h.Key != v.Key || h.Flags != v.Flags || h.ID != v.ID || h.Raw() != len(records) {
		t.Fatalf("head reads %+v: %v", h, err)
	}
	m, err := decode(h.Key, h.Flags, frame[HeadSize:][:h.Message])
	if err != nil {
		t.Fatal(err)
	}
	if got := meaning(t, m); !bytes.Equal(got, v.Message) {
		t.Errorf("reads %s\npinned %s", got, v.Message)
	}
	salt := uint64(0)
	if p, ok := m.(*Page); ok {
		salt = p.Salt
	}
	for len(records) != 0 {
		b, err := record.Verify(records, salt, nil)
		if err != nil {
			t.Fatal(err)
		}
		records = records[len(b.Frame()):]
		if salt != 0 {
			records = bytes.TrimLeft(records, "\x00")
		}
	}
}

// meaning is a message as JSON: the schema's names, numbers whole, bytes in base64.
func meaning(t *testing.T, m any) json.RawMessage {
	if e, ok := m.(*Error); ok {
		m = &wirefb.ErrorT{Code: uint16(e.Code), Detail: e.Detail, RetryAfterMs: uint32(e.RetryAfter / time.Millisecond)}
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(m); err != nil {
		t.Fatal(err)
	}
	return bytes.TrimSpace(b.Bytes())
}

// buildVectors makes one vector of each message, two failures, and a message with
// nothing in it.
func buildVectors(t *testing.T) (all []vector) {
	var e Encoder
	add := func(name string, k kindOfMessage, id uint32, m Message) {
		var records []byte
		p, isPage := m.(*Page)
		if (Head{Key: k.key, Flags: k.flags}).mayCarry() && (!isPage || p.FileBytes == 0) {
			records = recordFrame(t)
			if k.flags != 0 { // what is stored has offsets; readers get any number of frames
				second := bytes.Clone(records)
				salt := uint64(0)
				if isPage && p.Salt != 0 { // as they lie in a file, two flushes
					salt = p.Salt
					second = append(make([]byte, 4096-len(records)), second...)
				}
				record.Stamp(records, 1000, 0, salt)
				record.Stamp(second[len(second)-len(records):], 1003, 4096, salt)
				records = append(records, second...)
			}
		}
		all = append(all, vector{
			Name: name, Key: k.key, Flags: k.flags, ID: id, Table: k.table.name, Message: meaning(t, m),
			Frame:   hex.EncodeToString(e.Frame(k.key, k.flags, id, m, len(records))),
			Records: hex.EncodeToString(records),
		})
	}
	for _, k := range everyMessage() {
		if k.flags&FlagFailed == 0 {
			m := sample(k.table)
			if p, ok := m.(*Page); ok { // most have their frames with them
				p.FileFrom, p.FileBytes = 0, 0
			}
			add(k.String(), k, uint32(len(all))+1, m)
		}
	}
	failed := kindOfMessage{KeyFetch, FlagReply | FlagFailed, &tableError}
	add(failed.String(), failed, 1<<32-1, sample(&tableError))
	failed.key = 0
	add("connection.failed", failed, 0, &Error{Code: CodeFrameTooLarge})
	nothing := kindOfMessage{KeySetPolicy, 0, &tableSetPolicy}
	add("SetPolicy.request, nothing set", nothing, 1, blank(&tableSetPolicy))
	verified := sample(&tablePage).(*Page)
	verified.Salt, verified.FileFrom, verified.FileBytes = 0, 0, 0
	add("Fetch.reply, verified frames", kindOfMessage{KeyFetch, FlagReply, &tablePage}, 1, verified)
	add("Fetch.reply, frames in a file", kindOfMessage{KeyFetch, FlagReply, &tablePage}, 1, sample(&tablePage))
	return all
}

// recordFrame is a frame of three records: one with all that a record can have, one
// with nothing, one with what is empty.
func recordFrame(t *testing.T) []byte {
	var b record.Builder
	b.Reset(make([]byte, 4096), 42)
	for i, r := range []record.Record{
		{Key: []byte("key"), Value: []byte("value"), Timestamp: 1_700_000_000_000, Headers: []record.Header{{Key: []byte("h"), Value: []byte("1")}, {Key: []byte("null")}}},
		{Timestamp: 1_700_000_000_001},
		{Key: []byte{}, Value: []byte{}, Timestamp: 1_699_999_999_999},
	} {
		if err := b.Add(&r, uint64(7+i)); err != nil {
			t.Fatal(err)
		}
	}
	frame, err := b.Finish(0)
	if err != nil {
		t.Fatal(err)
	}
	return frame
}
