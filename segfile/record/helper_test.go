package record

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"testing"

	"github.com/zeebo/xxh3"
)

const testSalt = 0x1122334455667788

// sequenced is a record with its sequence.
type sequenced struct {
	Record
	seq uint64
}

// consecutive gives records the sequences from first on, or 0 to all.
func consecutive(first uint64, records ...Record) []sequenced {
	out := make([]sequenced, len(records))
	for i, r := range records {
		out[i].Record = r
		if first != 0 {
			out[i].seq = first + uint64(i)
		}
	}
	return out
}

// variety has every kind of key, value, header, time and sequence.
func variety() []sequenced {
	return []sequenced{
		{Record{Key: []byte("key"), Value: []byte("value"), Timestamp: 1_700_000_000_000}, 5},
		{Record{Key: nil, Value: []byte("no key"), Timestamp: 1_700_000_000_001}, 6},
		{Record{Key: []byte{}, Value: []byte("empty key"), Timestamp: 0}, 9},
		{Record{Key: []byte("tombstone"), Value: nil, Timestamp: -1}, 10},
		{Record{Key: []byte("empty value"), Value: []byte{}, Timestamp: 1_700_000_000_000}, 2000},
		{Record{Key: nil, Value: nil, Timestamp: 1_700_000_000_000}, 3000},
		{Record{Key: []byte("headers"), Value: []byte("v"), Timestamp: 1_700_000_000_000, Headers: []Header{
			{[]byte("name"), []byte("value")},
			{[]byte("name"), []byte("again")},
			{[]byte{}, []byte{}},
			{[]byte("null"), nil},
		}}, 3001},
		{Record{Key: []byte{0, 0xff}, Value: bytes.Repeat([]byte("x"), 300), Timestamp: 7}, 3002},
		{Record{Key: []byte("last"), Value: nil, Timestamp: 8, Headers: []Header{{[]byte("h"), []byte("w")}}}, 3003},
	}
}

func mustBuild(tb testing.TB, producer, prev uint64, records []sequenced) []byte {
	tb.Helper()
	var b Builder
	b.Reset(make([]byte, MaxFrame), producer)
	for i := range records {
		if err := b.Add(&records[i].Record, records[i].seq); err != nil {
			tb.Fatalf("record %d: %v", i, err)
		}
	}
	frame, err := b.Finish(prev)
	if err != nil {
		tb.Fatal(err)
	}
	return bytes.Clone(frame)
}

// voidOf is the void frame that takes the place of the frame of h.
func voidOf(h Head, salt uint64) []byte {
	frame := make([]byte, h.FrameLen)
	h = h.AsVoid()
	h.Put(frame, salt)
	return frame
}

// lentOf makes a frame of Finish what it is when it is written from memory that was lent.
func lentOf(tb testing.TB, frame []byte, salt uint64) []byte {
	tb.Helper()
	h, err := ParseHead(frame, 0)
	if err != nil {
		tb.Fatal(err)
	}
	h.Flags = FlagLent
	frame = bytes.Clone(frame)
	h.Put(frame, salt)
	return frame
}

func mustVerify(tb testing.TB, frame []byte, salt uint64) Batch {
	tb.Helper()
	b, err := Verify(frame, salt, new(Scratch))
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

// difference says where a batch differs from records, "" for nowhere.
func difference(b *Batch, producer uint64, records []sequenced) string {
	if b.Len() != len(records) || int(b.Head.Count) != len(records) {
		return fmt.Sprintf("%d records, want %d", b.Len(), len(records))
	}
	exact := func(a, b []byte) bool { return bytes.Equal(a, b) && (a == nil) == (b == nil) }
	for i, want := range records {
		got := b.Record(i)
		pos := Position(want.Key)
		if want.Key == nil {
			pos = KeylessPosition(producer, want.seq)
		}
		switch {
		case !exact(got.Key, want.Key):
			return fmt.Sprintf("record %d: key %q, want %q", i, got.Key, want.Key)
		case !exact(got.Value, want.Value):
			return fmt.Sprintf("record %d: value %q, want %q", i, got.Value, want.Value)
		case got.Timestamp != want.Timestamp:
			return fmt.Sprintf("record %d: time %d, want %d", i, got.Timestamp, want.Timestamp)
		case b.Seq(i) != want.seq:
			return fmt.Sprintf("record %d: sequence %d, want %d", i, b.Seq(i), want.seq)
		case b.Position(i) != pos || pos < b.Head.MinPos || pos > b.Head.MaxPos:
			return fmt.Sprintf("record %d: position %d, want %d", i, b.Position(i), pos)
		case b.Offset(i) != b.Head.Base+uint64(i):
			return fmt.Sprintf("record %d: offset %d", i, b.Offset(i))
		case len(got.Headers) != len(want.Headers):
			return fmt.Sprintf("record %d: %d headers, want %d", i, len(got.Headers), len(want.Headers))
		}
		for j, h := range got.Headers {
			if !bytes.Equal(h.Key, want.Headers[j].Key) || !exact(h.Value, want.Headers[j].Value) {
				return fmt.Sprintf("record %d: header %d is %q, want %q", i, j, h, want.Headers[j])
			}
		}
	}
	return ""
}

// restamp makes both checksums of a damaged frame right again, and the lengths
// that follow from its size, so that the damage reaches the checks behind them.
func restamp(frame []byte, salt uint64) {
	le := binary.LittleEndian
	copy(frame, magic)
	le.PutUint16(frame[offVersion:], (&Head{Flags: frame[offFlags]}).version())
	le.PutUint32(frame[offFrame:], uint32(len(frame)))
	le.PutUint32(frame[offPayload:], uint32(len(frame)-HeaderSize))
	if Codec(frame[offCodec]) == None {
		le.PutUint32(frame[offRaw:], uint32(len(frame)-HeaderSize))
	}
	le.PutUint64(frame[offHash:], xxh3.Hash(frame[HeaderSize:]))
	clear(frame[offZeroA:offDurable])
	clear(frame[offZeroB:offCRC])
	le.PutUint32(frame[offCRC:], headerCRC(frame, salt))
}

// frameOf puts a header before a payload of unknown origin that says about the
// records what they say themselves, as far as they can be read.
func frameOf(payload []byte, h Head) []byte {
	h.FrameLen, h.PayloadLen = uint32(HeaderSize+len(payload)), uint32(len(payload))
	h.RawLen, h.Hash = h.PayloadLen, xxh3.Hash(payload)
	b := Batch{Head: h}
	var err error
	if b.columns, err = locate(payload); err == nil {
		h.Count = uint32(b.count)
		if f, err := b.walk(); err == nil {
			h.MinPos, h.MaxPos, h.MinTime, h.MaxTime, h.LastSeq = f.minPos, f.maxPos, f.minTime, f.maxTime, f.lastSeq
		}
	}
	frame := append(make([]byte, HeaderSize), payload...)
	h.Put(frame, testSalt)
	return frame
}

func wantCorrupt(t *testing.T, what string, err error) {
	t.Helper()
	var where *FrameError
	if !errors.Is(err, ErrCorrupt) || !errors.As(err, &where) {
		t.Errorf("%s: got %v, want a FrameError", what, err)
	}
}
