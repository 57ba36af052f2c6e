package record

import (
	"bytes"
	"encoding/binary"
	"testing"
)

func fuzzSeeds(f *testing.F) [][]byte {
	plain := mustBuild(f, 1, 4, variety())
	lone := mustBuild(f, 1, 0, consecutive(0, Record{Key: []byte("k"), Value: []byte("v"), Timestamp: 5}))
	mark, err := BuildMark(nil, []byte("mark"))
	if err != nil {
		f.Fatal(err)
	}
	head, err := ParseHead(plain, 0)
	if err != nil {
		f.Fatal(err)
	}
	seeds := [][]byte{plain, lone, mark, voidOf(head, 0), lentOf(f, plain, 0), lone[:HeaderSize], append(bytes.Clone(lone), lone...), make([]byte, 200)}
	for _, c := range []Codec{S2, Zstd} {
		frame, err := Compress(nil, plain, c)
		if err != nil {
			f.Fatal(err)
		}
		seeds = append(seeds, frame)
	}
	return seeds
}

// Verify takes anything: it never panics, and what it accepts can be read by every
// accessor and by generated code, and is what it becomes when it is built anew.
func FuzzVerify(f *testing.F) {
	for _, seed := range fuzzSeeds(f) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, input []byte) {
		if _, err := Verify(input, testSalt, nil); err == nil {
			t.Fatal("verifies as it comes, under a salt that nothing here has")
		}
		if len(input) < HeaderSize || len(input) > MaxFrame {
			return
		}
		frame := bytes.Clone(input)
		// With checksums that match, and a header that says what the records do.
		restamp(frame, testSalt)
		acceptable(t, frame, testSalt)
		h := Head{Producer: uint64(frame[offProducer]), FirstSeq: uint64(frame[offFirst]), MinTime: int64(frame[offMinTime])}
		acceptable(t, frameOf(frame[HeaderSize:], h), testSalt)
	})
}

func acceptable(t *testing.T, frame []byte, salt uint64) {
	b, err := Verify(frame, salt, nil)
	if err != nil || b.Head.Mark() || b.Head.Void() {
		return
	}
	records := make([]sequenced, b.Len())
	for i := range records {
		records[i] = sequenced{b.Record(i), b.Seq(i)}
	}
	if d := difference(&b, b.Head.Producer, readGenerated(b.Payload(), &b.Head)); d != "" {
		t.Fatalf("generated code: %s", d)
	}
	anew, err := Trim(nil, b, b.Head.PrevSeq, func(int) bool { return true })
	if err != nil {
		t.Fatalf("does not build anew: %v", err)
	}
	Stamp(anew, b.Head.Base, b.Head.Durable, salt)
	again, err := Verify(anew, salt, nil)
	if err != nil {
		t.Fatalf("does not verify again: %v", err)
	}
	if d := difference(&again, b.Head.Producer, records); d != "" {
		t.Fatal(d)
	}
}

// ParseHead takes anything, and what it accepts it writes back byte for byte.
func FuzzParseHead(f *testing.F) {
	for _, seed := range fuzzSeeds(f) {
		f.Add(seed[:HeaderSize], uint64(testSalt))
		f.Add(seed[:HeaderSize/2], uint64(0))
	}
	f.Fuzz(func(t *testing.T, input []byte, salt uint64) {
		b := bytes.Clone(input)
		if len(b) >= HeaderSize {
			copy(b, magic)
			binary.LittleEndian.PutUint16(b[offVersion:], (&Head{Flags: b[offFlags]}).version())
			binary.LittleEndian.PutUint32(b[offCRC:], headerCRC(b, salt))
		}
		h, err := ParseHead(b, salt)
		if err != nil {
			return
		}
		var out [HeaderSize]byte
		h.Put(out[:], salt)
		if !bytes.Equal(out[:], b[:HeaderSize]) {
			t.Fatalf("accepts %x but writes %x", b[:HeaderSize], out)
		}
	})
}

// FuzzRoundTrip builds records cut from its input and reads them back.
func FuzzRoundTrip(f *testing.F) {
	f.Add([]byte("keyvalue"), []byte{0x38, 0x05, 1, 2, 0x80, 0x40, 0, 1}, uint64(1), uint16(4096))
	f.Add(bytes.Repeat([]byte("x"), 300), []byte{0xff, 0xff, 0xff, 0xff, 7, 7, 7, 7, 1, 0, 0, 0}, uint64(0), uint16(600))
	f.Fuzz(func(t *testing.T, data, script []byte, first uint64, memory uint16) {
		cut := func(n byte) []byte {
			if n == 0xff {
				return nil
			}
			piece := data[:min(int(n), len(data))]
			data = data[len(piece):]
			return append([]byte{}, piece...)
		}
		var b Builder
		b.Reset(make([]byte, memory), 3)
		var want []sequenced
		for seq := first; len(script) >= 4; script = script[4:] {
			r := sequenced{Record{Key: cut(script[0]), Value: cut(script[1]), Timestamp: int64(script[2])}, seq}
			for range script[3] & 3 {
				r.Headers = append(r.Headers, Header{Key: cut(script[3] >> 5), Value: cut(script[3] >> 3)})
			}
			if b.Add(&r.Record, r.seq) == nil {
				want = append(want, r)
			}
			if first != 0 {
				seq += 1 + uint64(script[3]>>2)
			}
		}
		frame, err := b.Finish(0)
		if len(want) == 0 {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		for c := None; c <= codecs; c++ {
			packed, err := Compress(nil, frame, c)
			if err != nil {
				t.Fatal(err)
			}
			got, err := Verify(packed, 0, nil)
			if err != nil {
				t.Fatal(err)
			}
			if d := difference(&got, 3, want); d != "" {
				t.Fatalf("%s: %s", c, d)
			}
		}
	})
}
