package wire

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"reflect"
	"testing"
)

// K01: whatever length a head announces, it is held against the limit of the phase
// before anything is made of it.
func TestK01FrameLength(t *testing.T) {
	for _, limit := range []uint32{MaxFirst, MaxFrame} {
		for _, c := range []struct {
			length, message uint32
			want            error
		}{
			{0, 0, nil},
			{1, 0, nil},
			{1, 1, nil},
			{1, 2, CodeMalformed},
			{0, 1, CodeMalformed},
			{0, 1<<32 - 1, CodeMalformed},
			{limit, 0, nil},
			{limit, min(limit, MaxMessage), nil},
			{limit, limit + 1, CodeMalformed},
			{limit + 1, 0, CodeFrameTooLarge},
			{limit + 1, limit + 1, CodeFrameTooLarge},
			{1<<31 - 1, 0, CodeFrameTooLarge},
			{1 << 31, 1 << 31, CodeFrameTooLarge},
			{1<<32 - 1, 1<<32 - 1, CodeFrameTooLarge},
		} {
			h := Head{Length: c.length, Message: c.message, Key: KeyProduce, ID: 7}
			var b [HeadSize]byte
			h.Put(b[:])
			got, err := ParseHead(b[:], limit)
			if !errors.Is(err, c.want) {
				t.Errorf("length %d, message %d, limit %d: %v, want %v", c.length, c.message, limit, err, c.want)
			}
			if got != h {
				t.Errorf("the head of what is refused reads %+v, want %+v", got, h)
			}
		}
	}
	for length, want := range map[uint32]error{MaxMessage: nil, MaxMessage + 1: CodeFrameTooLarge} {
		var b [HeadSize]byte
		Head{Length: length, Message: length, Key: KeyCommit}.Put(b[:])
		if _, err := ParseHead(b[:], MaxFrame); !errors.Is(err, want) {
			t.Errorf("a message of %d bytes: %v, want %v", length, err, want)
		}
	}
	for n := range HeadSize {
		if _, err := ParseHead(make([]byte, n), MaxFrame); !errors.Is(err, CodeMalformed) {
			t.Errorf("%d bytes of a head: %v", n, err)
		}
	}
}

// Only messages with record frames may have bytes behind them; of a key of a later
// version that is not known.
func TestRecordFramesOnlyWhereTheyBelong(t *testing.T) {
	carry := map[string]bool{"Produce.request": true, "Fetch.reply": true, "Subscribe.push": true}
	for _, k := range everyMessage() {
		var b [HeadSize]byte
		Head{Length: 20, Message: 12, Key: k.key, Flags: k.flags}.Put(b[:])
		if _, err := ParseHead(b[:], MaxFrame); (err == nil) != carry[k.String()] {
			t.Errorf("%s with record frames: %v", k, err)
		}
	}
	var b [HeadSize]byte
	Head{Length: 20, Message: 12, Key: 1000}.Put(b[:])
	if _, err := ParseHead(b[:], MaxFrame); err != nil {
		t.Errorf("a key of a later version: %v", err)
	}
	for flags := range uint16(1 << 4) {
		Head{Key: 1000, Flags: flags}.Put(b[:])
		if _, err := ParseHead(b[:], MaxFrame); (err == nil) != (flags == 0 || flags == 1 || flags == 3 || flags == 5) {
			t.Errorf("flags %#x: %v", flags, err)
		}
	}
}

// K09: control and data share a connection and its ids, and each frame is read as
// what its own head says it is.
func TestK09FrameTypeDecidesTheParser(t *testing.T) {
	const seed, frames, run = 9, 100_000, 1000
	rng := rand.New(rand.NewPCG(seed, 0))
	all := everyMessage()
	type sent struct {
		head Head
		kind kindOfMessage
		m    Message
		raw  []byte
	}
	var e Encoder
	seen := map[string]int{}
	for range frames / run {
		var stream []byte
		var want []sent
		for range run {
			s := sent{kind: all[rng.IntN(len(all))]}
			s.head = Head{Key: s.kind.key, Flags: s.kind.flags, ID: rng.Uint32N(4)} // the same ids everywhere
			if rng.IntN(20) == 0 {
				s.head.Key += 1000 // of a later version
			}
			if s.head.mayCarry() {
				s.raw = bytes.Repeat([]byte{byte(rng.Uint32())}, rng.IntN(100))
			}
			s.m = random(s.kind.table, rng)
			frame := e.Frame(s.head.Key, s.head.Flags, s.head.ID, s.m, len(s.raw))
			s.head.Message = uint32(len(frame) - HeadSize)
			s.head.Length = s.head.Message + uint32(len(s.raw))
			stream = append(append(stream, frame...), s.raw...)
			want = append(want, s)
		}
		for i, w := range want {
			h, err := ParseHead(stream, MaxFrame)
			if err != nil || h != w.head {
				t.Fatalf("seed %d, frame %d: head %+v, sent %+v: %v", seed, i, h, w.head, err)
			}
			body := stream[HeadSize:][:h.Length]
			stream = stream[HeadSize+h.Length:]
			m, err := decode(h.Key, h.Flags, body[:h.Message])
			if !h.Key.Known() && h.Flags&FlagFailed == 0 {
				if !errors.Is(err, CodeUnknownKey) {
					t.Fatalf("seed %d, frame %d: %s: %v", seed, i, h.Key, err)
				}
				seen["unknown"]++
				continue
			}
			if err != nil || !reflect.DeepEqual(m, any(w.m)) {
				t.Fatalf("seed %d, frame %d: %s reads %+v, sent %+v: %v", seed, i, w.kind, m, w.m, err)
			}
			if !bytes.Equal(body[h.Message:], w.raw) {
				t.Fatalf("seed %d, frame %d: other bytes behind the message", seed, i)
			}
			seen[w.kind.String()]++
		}
		if len(stream) != 0 {
			t.Fatalf("seed %d: %d bytes are left", seed, len(stream))
		}
	}
	if len(seen) != len(all)+1 {
		t.Errorf("%d of %d kinds of frames were in the mix", len(seen), len(all)+1)
	}
}
