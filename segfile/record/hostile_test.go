package record

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/zeebo/xxh3"
)

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

// F06: a panic below Verify is an error of the frame alone.
func TestF06PanicIsARefusal(t *testing.T) {
	frame := mustBuild(t, 1, 0, consecutive(1, Record{Value: []byte("v")}))
	h, err := ParseHead(frame, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := verify(h, frame, nil); err != nil {
		t.Fatal(err)
	}
	h.FrameLen = uint32(cap(frame)) + 1 // which Check would refuse
	if _, err := verify(h, frame, nil); !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), "panicked: runtime error: slice bounds out of range") {
		t.Fatalf("a frame whose reading panics: %v", err)
	}
}
