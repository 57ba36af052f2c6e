package record

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"math/rand/v2"
	"testing"
	"time"

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
	for v, want := range map[uint16]error{0: ErrCorrupt, 2: ErrVersion, math.MaxUint16: ErrVersion} {
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

// J04: whatever a vtable, a table or a vector claims, it is rejected, and says
// where; nothing panics.
func TestJ04Arithmetic(t *testing.T) {
	honest := mustBuild(t, 1, 0, consecutive(1, Record{Key: []byte("key"), Value: []byte("v"), Timestamp: 1},
		Record{Key: []byte("k"), Value: []byte("v"), Timestamp: 2}))[HeaderSize:]
	size := uint32(len(honest))
	u16 := func(at int, v uint16) func([]byte) {
		return func(p []byte) { binary.LittleEndian.PutUint16(p[at:], v) }
	}
	u32 := func(at int, v uint32) func([]byte) {
		return func(p []byte) { binary.LittleEndian.PutUint32(p[at:], v) }
	}
	slot := func(f int) int { return tableAt + 4 + 4*f }
	vector := func(f int) int { return slot(f) + int(binary.LittleEndian.Uint32(honest[slot(f):])) }
	cases := map[string]func([]byte){
		"root 0":                        u32(0, 0),
		"root odd":                      u32(0, tableAt+1),
		"root at the last byte":         u32(0, size-1),
		"root at the end":               u32(0, size),
		"root behind the end":           u32(0, size+4),
		"root 2^31":                     u32(0, 1<<31),
		"root 2^32-4":                   u32(0, math.MaxUint32-3),
		"vtable on the table":           u32(tableAt, 0),
		"vtable on the root":            u32(tableAt, tableAt),
		"vtable before the payload":     u32(tableAt, tableAt+4),
		"vtable far before":             u32(tableAt, math.MaxInt32),
		"vtable far behind":             u32(tableAt, 1<<31),
		"vtable at the end":             u32(tableAt, -(size - tableAt)),
		"vtable at the last bytes":      u32(tableAt, -(size - tableAt - 2)),
		"vtable odd":                    u32(tableAt, 19),
		"vtable size 0":                 u16(vtableAt, 0),
		"vtable size 1":                 u16(vtableAt, 1),
		"vtable size 2":                 u16(vtableAt, 2),
		"vtable size 3":                 u16(vtableAt, 3),
		"vtable size 4: no fields":      u16(vtableAt, 4),
		"vtable size odd":               u16(vtableAt, vtableSize-1),
		"vtable size over 64 KiB":       u16(vtableAt, math.MaxUint16-1),
		"vtable that runs on":           u16(vtableAt, vtableSize+2),
		"table size 0":                  u16(vtableAt+2, 0),
		"table size 3":                  u16(vtableAt+2, 3),
		"table size 4: fields outside":  u16(vtableAt+2, 4),
		"table size behind the payload": u16(vtableAt+2, math.MaxUint16),
		"field in the table's head":     u16(vtableAt+4, 2),
		"field odd":                     u16(vtableAt+4, 5),
		"field at the table's end":      u16(vtableAt+4, tableSize),
		"field 2^16-4":                  u16(vtableAt+4, math.MaxUint16-3),
		"two fields swapped":            u16(vtableAt+4, 8),
		"table longer than vtable says": u16(vtableAt+2, tableSize-4*fields),
	}
	for name, f := range map[string]int{"data": fieldData, "key ends": fieldKeyEnds, "value ends": fieldValueEnds, "timestamps": fieldTimestamps} {
		cases[name+": absent"] = u16(vtableAt+4+2*f, 0)
		if f == fieldTimestamps {
			delete(cases, name+": absent") // found by the header's times: below
		}
		cases[name+": vector on the field"] = u32(slot(f), 0)
		cases[name+": vector odd"] = u32(slot(f), uint32(vector(f)-slot(f))+1)
		cases[name+": vector at the end"] = u32(slot(f), size-uint32(slot(f)))
		cases[name+": vector behind the end"] = u32(slot(f), size)
		cases[name+": vector 2^31"] = u32(slot(f), 1<<31)
		cases[name+": vector wraps"] = u32(slot(f), math.MaxUint32-3)
		cases[name+": length 2^29"] = u32(vector(f), 1<<29)
		cases[name+": length 2^30"] = u32(vector(f), 1<<30)
		cases[name+": length 2^31"] = u32(vector(f), 1<<31)
		cases[name+": length 2^32-1"] = u32(vector(f), math.MaxUint32)
		cases[name+": length to the end and one"] = u32(vector(f), size-uint32(vector(f))-3)
		cases[name+": one less"] = func(p []byte) {
			u32(vector(f), binary.LittleEndian.Uint32(p[vector(f):])-1)(p)
		}
	}
	ends := func(f, i int, v uint32) func([]byte) { return u32(vector(f)+4+4*i, v) }
	cases["key end behind the data"] = ends(fieldKeyEnds, 0, 1<<31)
	cases["key end before the record"] = ends(fieldKeyEnds, 1, 3)
	cases["value end before the key's"] = ends(fieldValueEnds, 0, 2)
	cases["value end behind the data"] = ends(fieldValueEnds, 1, 7)
	cases["value end short of the data"] = ends(fieldValueEnds, 1, 5)
	cases["value end 2^32-1"] = ends(fieldValueEnds, 1, math.MaxUint32)
	for name, damage := range cases {
		p := bytes.Clone(honest)
		damage(p)
		if bytes.Equal(p, honest) {
			t.Errorf("%s: no damage", name)
		}
		frame := frameOf(honest, Head{Producer: 1, FirstSeq: 1})
		copy(frame[HeaderSize:], p)
		restamp(frame, testSalt)
		_, err := Verify(frame, testSalt, nil)
		wantCorrupt(t, name, err)
	}
}

// J01: a damaged table, with checksums that match, is rejected or reads without
// panic: never anything else. Every byte of it takes many values.
func TestJ01DamagedPayloads(t *testing.T) {
	honest := mustBuild(t, 1, 0, variety())
	accepted, rejected := 0, 0
	try := func(frame []byte) {
		restamp(frame, testSalt)
		b, err := Verify(frame, testSalt, nil)
		if err != nil {
			if !errors.Is(err, ErrCorrupt) {
				t.Fatalf("%v", err)
			}
			rejected++
			return
		}
		accepted++
		for i := range b.Len() {
			_ = b.Record(i)
		}
		readGenerated(b.Payload(), &b.Head)
	}
	for at := HeaderSize; at < len(honest); at++ {
		for _, v := range []byte{0, 1, 2, 3, 4, 0x7f, 0x80, 0xff, honest[at] + 1, honest[at] - 1, honest[at] + 4} {
			frame := bytes.Clone(honest)
			frame[at] = v
			try(frame)
		}
	}
	rng := rand.New(rand.NewPCG(1, 1))
	for range 20_000 {
		frame := bytes.Clone(honest)
		for range 1 + rng.IntN(4) {
			at := HeaderSize + rng.IntN(len(honest)-HeaderSize-4)
			switch rng.IntN(3) {
			case 0:
				frame[at] ^= 1 << rng.IntN(8)
			case 1:
				binary.LittleEndian.PutUint32(frame[at:], uint32(rng.IntN(len(honest))))
			case 2:
				copy(frame[at:], honest[HeaderSize+rng.IntN(len(honest)-HeaderSize):])
			}
		}
		try(frame[:len(frame)-rng.IntN(2)*rng.IntN(64)])
	}
	if accepted == 0 || rejected == 0 {
		t.Errorf("%d accepted, %d rejected", accepted, rejected)
	}
}

// J02: garbage of any length is rejected.
func TestJ02Garbage(t *testing.T) {
	rng := rand.New(rand.NewPCG(2, 2))
	for n := range 300 {
		for range 20 {
			b := make([]byte, n)
			for i := range b {
				b[i] = byte(rng.Uint32())
			}
			if _, err := Verify(b, 0, nil); !errors.Is(err, ErrCorrupt) {
				t.Fatalf("%x: %v", b, err)
			}
			if n < HeaderSize {
				continue
			}
			// The same behind a header that has nothing against it.
			h := Head{FrameLen: uint32(n), PayloadLen: uint32(n - HeaderSize), RawLen: uint32(n - HeaderSize), Count: 1, Hash: xxh3.Hash(b[HeaderSize:])}
			h.Put(b, 0)
			if _, err := Verify(b, 0, nil); !errors.Is(err, ErrCorrupt) {
				t.Fatalf("%x: %v", b, err)
			}
		}
	}
}

// J06: the hostile frames that cost most to verify. Fields may share vectors, but
// there is one table and each column is walked once, so the work stays linear. The
// time is reported, not asserted: the machine is shared.
func TestJ06HostileWork(t *testing.T) {
	frames := map[string][]byte{}
	most := make([]sequenced, 0, MaxRecords)
	for i := range MaxRecords - 1 {
		most = append(most, sequenced{Record{Timestamp: int64(i)}, uint64(i)*4095 + 1}) // each in a run of its own
	}
	frames["keyless runs"] = mustFill(t, most)
	headers := Record{Headers: make([]Header, MaxHeaders)}
	var many []sequenced
	for i := range (MaxFrame-64<<10)/(headerPrefix*MaxHeaders) - 1 {
		many = append(many, sequenced{headers, uint64(i) + 1})
	}
	frames["headers of nothing"] = mustFill(t, many)
	zeros := mustFill(t, consecutive(1, Record{Value: make([]byte, 15<<20)}))
	for _, c := range []Codec{S2, Zstd} {
		frame, err := Compress(nil, zeros, c)
		if err != nil || codecOf(frame) != c {
			t.Fatal(err)
		}
		frames["bomb in "+c.String()] = frame
	}
	for name, frame := range frames {
		var s Scratch
		mustVerify(t, frame, 0)
		start := time.Now()
		if _, err := Verify(frame, 0, &s); err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: %d bytes in %v", name, len(frame), time.Since(start))
	}
	// All columns of 32 bits in one vector, which is the data as well.
	p := bytes.Clone(mustBuild(t, 1, 0, consecutive(1, Record{Key: []byte{}, Value: []byte{}}))[HeaderSize:])
	ends := tableAt + 4 + 4*fieldKeyEnds
	vector := ends + int(binary.LittleEndian.Uint32(p[ends:]))
	for _, f := range []int{fieldValueEnds, fieldHeaderEnds, fieldSequences} {
		slot := tableAt + 4 + 4*f
		binary.LittleEndian.PutUint16(p[vtableAt+4+2*f:], uint16(4+4*f))
		binary.LittleEndian.PutUint32(p[slot:], uint32(vector-slot))
	}
	mustVerify(t, frameOf(p, Head{Producer: 1, FirstSeq: 1}), testSalt)
}

func mustFill(t *testing.T, records []sequenced) []byte {
	t.Helper()
	var b Builder
	b.Reset(make([]byte, MaxFrame), 1)
	for i := range records {
		if err := b.Add(&records[i].Record, records[i].seq); errors.Is(err, ErrBatchFull) && i > 0 {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	frame, err := b.Finish(0)
	if err != nil {
		t.Fatal(err)
	}
	return frame
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
