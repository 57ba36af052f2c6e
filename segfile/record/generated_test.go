package record

import (
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	flatbuffers "github.com/google/flatbuffers/go"

	"github.com/ringfence/ringfence/segfile/recfb"
)

// readGenerated reads records the way code generated from the schema does.
func readGenerated(payload []byte, h *Head) []sequenced {
	fb := recfb.GetRootAsBatch(payload, 0)
	data := fb.DataBytes()
	bit := func(j int, length int, get func(int) byte) bool { return length != 0 && get(j/8)>>(j%8)&1 == 1 }
	var out []sequenced
	start := uint32(0)
	for i := range fb.KeyEndsLength() {
		keyEnd, valueEnd := fb.KeyEnds(i), fb.ValueEnds(i)
		r := sequenced{Record: Record{Key: data[start:keyEnd], Value: data[keyEnd:valueEnd], Timestamp: h.MinTime}}
		if bit(i, fb.NullKeysLength(), fb.NullKeys) {
			r.Key = nil
		}
		if bit(i, fb.NullValuesLength(), fb.NullValues) {
			r.Value = nil
		}
		if fb.TimestampsLength() != 0 {
			r.Timestamp = fb.Timestamps(i)
		}
		if h.FirstSeq != 0 {
			r.seq = h.FirstSeq + uint64(i)
			if fb.SequencesLength() != 0 {
				r.seq = h.FirstSeq + uint64(fb.Sequences(i))
			}
		}
		start = valueEnd
		if fb.HeaderEndsLength() != 0 {
			start = fb.HeaderEnds(i)
			for rest := data[valueEnd:start]; len(rest) != 0; {
				keyLen, valueLen := flatbuffers.GetUint32(rest), flatbuffers.GetUint32(rest[4:])
				header := Header{Key: rest[8 : 8+keyLen]}
				rest = rest[8+keyLen:]
				if valueLen != 0xffffffff {
					header.Value, rest = rest[:valueLen], rest[valueLen:]
				}
				r.Headers = append(r.Headers, header)
			}
		}
		out = append(out, r)
	}
	return out
}

// What a Builder writes by hand, flatc's code and the official runtime read.
func TestGeneratedCodeReads(t *testing.T) {
	for name, records := range map[string][]sequenced{
		"variety":     variety(),
		"lone":        variety()[:1],
		"null":        consecutive(1, Record{}),
		"empty":       consecutive(0, Record{Key: []byte{}, Value: []byte{}}),
		"consecutive": consecutive(77, Record{Key: []byte("a")}, Record{Value: []byte("b")}, Record{Key: []byte("c")}),
	} {
		t.Run(name, func(t *testing.T) {
			b := mustVerify(t, mustBuild(t, 3, 0, records), 0)
			if d := difference(&b, 3, readGenerated(b.Payload(), &b.Head)); d != "" {
				t.Error(d)
			}
			if d := difference(&b, 3, records); d != "" {
				t.Error(d)
			}
		})
	}
}

// buildGenerated builds a payload with flatc's code, columns and fields in random
// order, optional columns written or left out where both mean the same.
func buildGenerated(rng *rand.Rand, records []sequenced, unlike func(columnSet) bool) []byte {
	var (
		data, nullKeys, nullValues      []byte
		keyEnds, valueEnds, hdrEnds, sq []uint32
		times                           []int64
		cols                            columnSet
	)
	nullKeys, nullValues = make([]byte, (len(records)+7)/8), make([]byte, (len(records)+7)/8)
	for i, r := range records {
		data = append(data, r.Key...)
		keyEnds = append(keyEnds, uint32(len(data)))
		data = append(data, r.Value...)
		valueEnds = append(valueEnds, uint32(len(data)))
		n, _ := headersSize(r.Headers)
		data = append(data, make([]byte, n)...)
		putHeaders(data[len(data)-n:], r.Headers)
		hdrEnds = append(hdrEnds, uint32(len(data)))
		times = append(times, r.Timestamp)
		sq = append(sq, uint32(r.seq-records[0].seq))
		if r.Key == nil {
			nullKeys[i/8] |= 1 << (i % 8)
			cols |= hasNullKeys
		}
		if r.Value == nil {
			nullValues[i/8] |= 1 << (i % 8)
			cols |= hasNullValues
		}
		if n != 0 {
			cols |= hasHeaders
		}
		if r.Timestamp != records[0].Timestamp {
			cols |= hasTimestamps
		}
		if r.seq != records[0].seq+uint64(i) && r.seq != 0 {
			cols |= hasSequences
		}
	}
	b := flatbuffers.NewBuilder(0)
	var vectors [fields]flatbuffers.UOffsetT
	for _, f := range rng.Perm(fields) {
		if f > fieldValueEnds && cols&(1<<f) == 0 && !unlike(1<<f) {
			continue
		}
		u32 := func(v []uint32) flatbuffers.UOffsetT {
			b.StartVector(4, len(v), 4)
			for i := len(v) - 1; i >= 0; i-- {
				b.PrependUint32(v[i])
			}
			return b.EndVector(len(v))
		}
		switch f {
		case fieldData:
			vectors[f] = b.CreateByteVector(data)
		case fieldKeyEnds:
			vectors[f] = u32(keyEnds)
		case fieldValueEnds:
			vectors[f] = u32(valueEnds)
		case fieldHeaderEnds:
			vectors[f] = u32(hdrEnds)
		case fieldSequences:
			if records[0].seq != 0 {
				vectors[f] = u32(sq)
			}
		case fieldTimestamps:
			recfb.BatchStartTimestampsVector(b, len(times))
			for i := len(times) - 1; i >= 0; i-- {
				b.PrependInt64(times[i])
			}
			vectors[f] = b.EndVector(len(times))
		case fieldNullKeys:
			vectors[f] = b.CreateByteVector(nullKeys)
		case fieldNullValues:
			vectors[f] = b.CreateByteVector(nullValues)
		}
	}
	add := [fields]func(*flatbuffers.Builder, flatbuffers.UOffsetT){
		recfb.BatchAddData, recfb.BatchAddKeyEnds, recfb.BatchAddValueEnds, recfb.BatchAddHeaderEnds,
		recfb.BatchAddTimestamps, recfb.BatchAddSequences, recfb.BatchAddNullKeys, recfb.BatchAddNullValues,
	}
	recfb.BatchStart(b)
	for _, f := range rng.Perm(fields) {
		if vectors[f] != 0 {
			add[f](b, vectors[f])
		}
	}
	b.Finish(recfb.BatchEnd(b))
	return b.FinishedBytes()
}

// What flatc's code builds, in any order it likes, verifies and reads the same.
func TestGeneratedCodeBuilds(t *testing.T) {
	layouts := map[string]bool{}
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 0))
		records := variety()[:1+rng.IntN(len(variety()))]
		if rng.IntN(2) == 0 {
			for i := range records {
				records[i].seq = 0
			}
		}
		payload := buildGenerated(rng, records, func(columnSet) bool { return rng.IntN(2) == 0 })
		frame := frameOf(payload, Head{Producer: 9, FirstSeq: records[0].seq, MinTime: records[0].Timestamp})
		b, err := Verify(frame, testSalt, nil)
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if d := difference(&b, 9, records); d != "" {
			t.Fatalf("seed %d: %s", seed, d)
		}
		layouts[string(payload[:8])] = true
	}
	if len(layouts) < 5 {
		t.Errorf("only %d layouts were tried", len(layouts))
	}
}

// A vtable shared with another table, in front of or behind it, is legal too; so
// is a root that is not the first thing.
func TestOtherLayouts(t *testing.T) {
	records := consecutive(1, Record{Key: []byte("key"), Value: []byte("value")})
	plain := mustBuild(t, 1, 0, records)[HeaderSize:]
	// The vtable moves behind everything: the table's distance to it turns negative.
	moved := append(bytes.Clone(plain), plain[vtableAt:vtableAt+vtableSize]...)
	flatbuffers.WriteInt32(moved[tableAt:], int32(tableAt-len(plain)))
	clear(moved[vtableAt : vtableAt+vtableSize])
	// A vtable that knows fewer fields is one written by older code.
	older := bytes.Clone(plain)
	flatbuffers.WriteUint16(older[vtableAt:], 4+2*3)
	for name, payload := range map[string][]byte{"plain": plain, "vtable last": moved, "short vtable": older} {
		b, err := Verify(frameOf(payload, Head{Producer: 1, FirstSeq: 1}), testSalt, nil)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if d := difference(&b, 1, records); d != "" {
			t.Errorf("%s: %s", name, d)
		}
	}
}

// The committed code is what flatc makes of the schema, and flatc itself, which
// reads with the C++ library, reads what a Builder writes.
func TestFlatc(t *testing.T) {
	flatc, err := exec.LookPath("flatc")
	if err != nil {
		t.Skip("flatc is not installed")
	}
	schema, err := filepath.Abs("../recfb/batch.fbs")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	run := func(args ...string) {
		cmd := exec.Command(flatc, args...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("flatc %v: %v: %s", args, err, out)
		}
	}
	run("--go", "-o", dir, schema)
	made, err := os.ReadFile(filepath.Join(dir, "recfb", "Batch.go"))
	if err != nil {
		t.Fatal(err)
	}
	committed, err := os.ReadFile("../recfb/Batch.go")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(made, committed) {
		t.Error("recfb/Batch.go is not what flatc makes of batch.fbs: run go generate")
	}

	records := variety()
	payload := mustBuild(t, 1, 0, records)[HeaderSize:]
	if err := os.WriteFile(filepath.Join(dir, "batch.bin"), payload, 0o600); err != nil {
		t.Fatal(err)
	}
	run("--json", "--strict-json", "--raw-binary", "-o", dir, schema, "--", "batch.bin")
	text, err := os.ReadFile(filepath.Join(dir, "batch.json"))
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Data       []int    `json:"data"`
		KeyEnds    []uint32 `json:"key_ends"`
		ValueEnds  []uint32 `json:"value_ends"`
		HeaderEnds []uint32 `json:"header_ends"`
		Timestamps []int64  `json:"timestamps"`
		Sequences  []uint32 `json:"sequences"`
		NullKeys   []int    `json:"null_keys"`
		NullValues []int    `json:"null_values"`
	}
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	c, err := locate(payload)
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Data) != len(c.data) || len(got.NullKeys) != 2 || len(got.NullValues) != 2 {
		t.Fatalf("flatc reads %d bytes of data, null marks %v and %v", len(got.Data), got.NullKeys, got.NullValues)
	}
	for i, v := range got.Data {
		if byte(v) != c.data[i] {
			t.Fatalf("flatc reads data byte %d as %d, it is %d", i, v, c.data[i])
		}
	}
	for i, r := range records {
		if got.KeyEnds[i] != entry(c.keyEnds, i) || got.ValueEnds[i] != entry(c.valueEnds, i) || got.HeaderEnds[i] != entry(c.headerEnds, i) ||
			got.Timestamps[i] != r.Timestamp || uint64(got.Sequences[i]) != r.seq-records[0].seq ||
			got.NullKeys[i/8]>>(i%8)&1 == 1 != (r.Key == nil) || got.NullValues[i/8]>>(i%8)&1 == 1 != (r.Value == nil) {
			t.Errorf("flatc reads record %d differently", i)
		}
	}
}
