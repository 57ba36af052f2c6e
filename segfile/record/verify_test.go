package record

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"testing"

	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/zstd"
	"github.com/zeebo/xxh3"
)

// Any flipped bit of any kind of frame is found, by Check already.
func TestEveryFlippedBitIsFound(t *testing.T) {
	frames := map[string][]byte{"plain": mustBuild(t, 1, 4, variety())}
	for _, c := range []Codec{S2, Zstd} {
		frame, err := Compress(nil, frames["plain"], c)
		if err != nil || codecOf(frame) != c {
			t.Fatal(err)
		}
		frames[c.String()] = frame
	}
	frames["mark"], _ = BuildMark(nil, []byte("payload"))
	for name, frame := range frames {
		Stamp(frame, 10, 4096, testSalt)
		mustVerify(t, frame, testSalt)
		for i := range frame {
			for b := range 8 {
				frame[i] ^= 1 << b
				if _, err := Check(frame, testSalt); !errors.Is(err, ErrCorrupt) {
					t.Fatalf("%s: bit %d of byte %d: %v", name, b, i, err)
				}
				if _, err := Verify(frame, testSalt, nil); !errors.Is(err, ErrCorrupt) {
					t.Fatalf("%s: bit %d of byte %d verifies: %v", name, b, i, err)
				}
				frame[i] ^= 1 << b
			}
		}
	}
}

// A frame verifies under its own salt alone, at its own length or with more behind.
func TestSaltAndLength(t *testing.T) {
	frame := mustBuild(t, 1, 0, variety())
	Stamp(frame, 0, 0, testSalt)
	for _, salt := range []uint64{0, 1, testSalt + 1, testSalt ^ 1<<63, ^uint64(testSalt)} {
		if _, err := ParseHead(frame, salt); !errors.Is(err, ErrCorrupt) {
			t.Errorf("salt %x: %v", salt, err)
		}
	}
	for n := range frame {
		_, err := Verify(frame[:n], testSalt, nil)
		wantCorrupt(t, "cut short", err)
		_, err = ParseHead(frame[:n], testSalt)
		if (err == nil) != (n >= HeaderSize) {
			t.Errorf("header in %d bytes: %v", n, err)
		}
	}
	b := mustVerify(t, append(bytes.Clone(frame), "what follows"...), testSalt)
	if !bytes.Equal(b.Frame(), frame) {
		t.Error("the frame took what follows along")
	}
}

// Every field of the header that says something about the records is recomputed:
// a lie is found though both checksums are right.
func TestHeaderLies(t *testing.T) {
	honest := mustBuild(t, 1, 4, variety())
	h, err := ParseHead(honest, 0)
	if err != nil {
		t.Fatal(err)
	}
	for name, lie := range map[string]func(*Head){
		"codec":             func(h *Head) { h.Codec = 3 },
		"other codec":       func(h *Head) { h.Codec = S2 },
		"flags":             func(h *Head) { h.Flags = 2 },
		"mark":              func(h *Head) { h.Flags = FlagMark },
		"frame 0":           func(h *Head) { h.FrameLen = 0 },
		"frame short":       func(h *Head) { h.FrameLen, h.PayloadLen = h.FrameLen-4, h.PayloadLen-4 },
		"frame long":        func(h *Head) { h.FrameLen, h.PayloadLen = h.FrameLen+1, h.PayloadLen+1 },
		"frame huge":        func(h *Head) { h.FrameLen = math.MaxUint32 },
		"frame over":        func(h *Head) { h.FrameLen, h.PayloadLen = MaxFrame+1, MaxFrame+1-HeaderSize },
		"payload":           func(h *Head) { h.PayloadLen++ },
		"raw":               func(h *Head) { h.RawLen-- },
		"raw huge":          func(h *Head) { h.Codec, h.RawLen = Zstd, math.MaxUint32 },
		"count 0":           func(h *Head) { h.Count = 0 },
		"count less":        func(h *Head) { h.Count-- },
		"count more":        func(h *Head) { h.Count++ },
		"count huge":        func(h *Head) { h.Count = math.MaxUint32 },
		"base overflows":    func(h *Head) { h.Base = math.MaxUint64 - 3 },
		"min time":          func(h *Head) { h.MinTime-- },
		"max time":          func(h *Head) { h.MaxTime++ },
		"times swapped":     func(h *Head) { h.MinTime, h.MaxTime = h.MaxTime, h.MinTime },
		"min position":      func(h *Head) { h.MinPos-- },
		"max position":      func(h *Head) { h.MaxPos++ },
		"positions swapped": func(h *Head) { h.MinPos, h.MaxPos = h.MaxPos, h.MinPos },
		"all positions":     func(h *Head) { h.MinPos, h.MaxPos = 0, math.MaxUint32 },
		"producer":          func(h *Head) { h.Producer++ }, // keyless records lie elsewhere then
		"first sequence":    func(h *Head) { h.FirstSeq-- },
		"no sequences":      func(h *Head) { h.FirstSeq, h.LastSeq, h.PrevSeq = 0, 0, 0 },
		"no first sequence": func(h *Head) { h.FirstSeq = 0 },
		"last sequence":     func(h *Head) { h.LastSeq++ },
		"last before first": func(h *Head) { h.LastSeq = h.FirstSeq - 1 },
		"span":              func(h *Head) { h.LastSeq = h.FirstSeq + 1<<32 },
		"predecessor":       func(h *Head) { h.PrevSeq = h.FirstSeq },
		"hash":              func(h *Head) { h.Hash++ },
		"durable":           func(h *Head) { h.Durable = -1 },
	} {
		lying, frame := h, bytes.Clone(honest)
		lie(&lying)
		if lying == h {
			t.Fatalf("%s: no lie", name)
		}
		lying.Put(frame, testSalt)
		_, err := Verify(frame, testSalt, nil)
		wantCorrupt(t, name, err)
	}
	for name, at := range map[string]int{"reserved": offZeroA, "reserved end": offDurable - 1, "reserved behind": offZeroB + 3} {
		frame := bytes.Clone(honest)
		frame[at] = 1
		Stamp(frame, 0, 0, testSalt)
		_, err := Verify(frame, testSalt, nil)
		wantCorrupt(t, name, err)
	}
	// What may be set freely: the place in the log.
	free, frame := h, bytes.Clone(honest)
	free.Base, free.Durable, free.PrevSeq = math.MaxUint64-uint64(h.Count), math.MaxInt64, h.FirstSeq-1
	free.Put(frame, testSalt)
	mustVerify(t, frame, testSalt)
}

func TestVersions(t *testing.T) {
	frame := mustBuild(t, 1, 0, variety())
	for v, want := range map[uint16]error{0: ErrCorrupt, versionLent: ErrCorrupt, versionLent + 1: ErrVersion, math.MaxUint16: ErrVersion} {
		newer := bytes.Clone(frame)
		binary.LittleEndian.PutUint16(newer[offVersion:], v)
		if _, err := Verify(newer, 0, nil); !errors.Is(err, ErrCorrupt) || errors.Is(err, ErrVersion) {
			t.Errorf("version %d by damage: %v", v, err)
		}
		Stamp(newer, 0, 0, testSalt)
		_, err := Verify(newer, testSalt, nil)
		if !errors.Is(err, want) || want == ErrVersion && errors.Is(err, ErrCorrupt) {
			t.Errorf("version %d: %v, want %v", v, err, want)
		}
	}
}

// An error names the byte, for whoever looks at the file.
func TestErrorsSayWhere(t *testing.T) {
	frame := mustBuild(t, 1, 0, variety())
	frame[HeaderSize+dataAt] ^= 1
	_, err := Check(frame, 0)
	if want := "record: corrupt frame: payload checksum does not match at byte 128"; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	h, _ := ParseHead(frame, 0)
	h.Count++
	h.Put(frame, 0)
	restamp(frame, 0)
	_, err = Verify(frame, 0, nil)
	var where *FrameError
	if !errors.As(err, &where) || where.Byte != offCount {
		t.Errorf("got %v, want byte %d", err, offCount)
	}
}

// A mark says nothing about records, whatever its payload.
func TestMarks(t *testing.T) {
	for _, n := range []int{0, 1, 63, 4096, MaxMark} {
		payload := bytes.Repeat([]byte{0x5a}, n)
		buf := make([]byte, HeaderSize+n)
		copy(buf[HeaderSize:], payload)
		frame, err := BuildMark(buf, buf[HeaderSize:]) // in place
		if err != nil {
			t.Fatal(err)
		}
		if &frame[0] != &buf[0] {
			t.Error("not built in the memory given")
		}
		Stamp(frame, 7, 4096, testSalt)
		b := mustVerify(t, frame, testSalt)
		if b.Len() != 0 || !b.Head.Mark() || !bytes.Equal(b.Payload(), payload) || b.Head.Next() != 7 || b.Head.Durable != 4096 {
			t.Errorf("%d bytes: %+v", n, b.Head)
		}
	}
	if _, err := BuildMark(nil, make([]byte, MaxMark+1)); !errors.Is(err, ErrRecordTooLarge) {
		t.Errorf("over the limit: %v", err)
	}
	frame, _ := BuildMark(nil, []byte("x"))
	h, _ := ParseHead(frame, 0)
	for name, lie := range map[string]func(*Head){
		"count":    func(h *Head) { h.Count = 1 },
		"producer": func(h *Head) { h.Producer = 1 },
		"sequence": func(h *Head) { h.FirstSeq, h.LastSeq = 1, 1 },
		"time":     func(h *Head) { h.MaxTime = 1 },
		"position": func(h *Head) { h.MaxPos = 1 },
		"codec":    func(h *Head) { h.Codec = S2 },
	} {
		lying := h
		lie(&lying)
		lying.Put(frame, 0)
		_, err := Verify(frame, 0, nil)
		wantCorrupt(t, name, err)
	}
}

// A compressed payload that is longer than its header says, or shorter, or none,
// is rejected, and no more memory is taken than the header may announce.
func TestDecompressionIsBounded(t *testing.T) {
	honest := mustBuild(t, 1, 0, consecutive(1, Record{Value: bytes.Repeat([]byte("x"), 4000)}))
	raw := honest[HeaderSize:]
	h, err := ParseHead(honest, 0)
	if err != nil {
		t.Fatal(err)
	}
	bomb := make([]byte, 64<<20)
	enc, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	var unsized bytes.Buffer // a stream does not announce its length
	stream, err := zstd.NewWriter(&unsized)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Write(bomb); err != nil {
		t.Fatal(err)
	}
	if err := stream.Close(); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name    string
		codec   Codec
		payload []byte
		rawLen  int
		ok      bool
	}{
		{"s2", S2, s2.Encode(nil, raw), len(raw), true},
		{"zstd", Zstd, enc.EncodeAll(raw, nil), len(raw), true},
		{"s2 says more", S2, s2.Encode(nil, raw), len(raw) + 1, false},
		{"s2 says less", S2, s2.Encode(nil, raw), len(raw) - 1, false},
		{"zstd says more", Zstd, enc.EncodeAll(raw, nil), len(raw) + 1, false},
		{"zstd says less", Zstd, enc.EncodeAll(raw, nil), len(raw) - 1, false},
		{"s2 bomb", S2, s2.Encode(nil, bomb), len(raw), false},
		{"zstd bomb", Zstd, enc.EncodeAll(bomb, nil), len(raw), false},
		{"zstd bomb of unknown length", Zstd, unsized.Bytes(), len(raw), false},
		{"zstd, two frames", Zstd, enc.EncodeAll(raw[100:], enc.EncodeAll(raw[:100], nil)), len(raw), true},
		{"zstd cut", Zstd, enc.EncodeAll(raw, nil)[:20], len(raw), false},
		{"s2 cut", S2, s2.Encode(nil, raw)[:20], len(raw), false},
		{"nothing in s2", S2, nil, len(raw), false},
		{"nothing in zstd", Zstd, nil, len(raw), false},
		{"not zstd", Zstd, raw, len(raw), false},
		{"s2 as zstd", Zstd, s2.Encode(nil, raw), len(raw), false},
	} {
		t.Run(c.name, func(t *testing.T) {
			claim := h
			claim.Codec, claim.RawLen = c.codec, uint32(c.rawLen)
			claim.PayloadLen, claim.FrameLen = uint32(len(c.payload)), uint32(len(c.payload)+HeaderSize)
			claim.Hash = xxh3.Hash(c.payload)
			frame := append(make([]byte, HeaderSize), c.payload...)
			claim.Put(frame, 0)
			var s Scratch
			_, err := Verify(frame, 0, &s)
			if c.ok && err != nil {
				t.Fatal(err)
			}
			if !c.ok {
				wantCorrupt(t, c.name, err)
			}
			if cap(s.raw) > len(raw)+4096 {
				t.Errorf("took %d bytes", cap(s.raw))
			}
		})
	}
}

// The digest is that of every replica: only what a copy may stamp for itself and
// the salt's checksum are left out.
func TestIdentity(t *testing.T) {
	frame := mustBuild(t, 1, 0, variety())
	Stamp(frame, 10, 0, testSalt)
	want := Identity(frame)
	if got := IdentityOfChecked(frame[:HeaderSize]); got != want {
		t.Errorf("header alone gives %x, want %x", got, want)
	}
	Stamp(frame, 10, 1<<30, testSalt+1)
	if Identity(frame) != want {
		t.Error("durable position or salt changed the identity")
	}
	Stamp(frame, 11, 1<<30, testSalt)
	if Identity(frame) == want {
		t.Error("another base, the same identity")
	}
	Stamp(frame, 10, 0, testSalt)
	for i := range frame {
		frame[i] ^= 1
		changed := func() bool {
			defer func() { _ = recover() }() // a wrong length may point outside
			return i >= offFrame && i < offPayload || Identity(frame) != want
		}()
		if left := i >= offDurable && i < HeaderSize; changed == left {
			t.Errorf("byte %d: changes the identity: %v", i, changed)
		}
		frame[i] ^= 1
	}
}
