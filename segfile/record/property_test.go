package record

import (
	"bytes"
	"errors"
	"math"
	"testing"

	"pgregory.net/rapid"
)

func genBytes(label string, t *rapid.T) []byte {
	switch rapid.IntRange(0, 9).Draw(t, label+" kind") {
	case 0, 1:
		return nil
	case 2:
		return []byte{}
	case 3:
		return bytes.Repeat([]byte{byte(rapid.Byte().Draw(t, label))}, rapid.IntRange(0, 64<<10).Draw(t, label+" length"))
	}
	return rapid.SliceOfN(rapid.Byte(), 0, 40).Draw(t, label)
}

func genHeaders(t *rapid.T) []Header {
	switch rapid.IntRange(0, 5).Draw(t, "headers kind") {
	case 0:
		return []Header{{Key: []byte("large"), Value: make([]byte, 64<<10)}}
	case 1, 2:
		out := make([]Header, rapid.IntRange(0, 5).Draw(t, "headers"))
		for i := range out {
			out[i] = Header{
				Key:   rapid.SliceOfN(rapid.Byte(), 0, 10).Draw(t, "name"),
				Value: rapid.OneOf(rapid.Just([]byte(nil)), rapid.SliceOfN(rapid.Byte(), 0, 10)).Draw(t, "header"),
			}
		}
		return out
	}
	return nil
}

// genBatch draws the records of a batch, each with its sequence.
func genBatch(t *rapid.T) []sequenced {
	out := make([]sequenced, rapid.IntRange(1, 40).Draw(t, "records"))
	seq := rapid.OneOf(rapid.Just(uint64(0)), rapid.Uint64Range(1, 5000), rapid.Just(uint64(math.MaxUint64-1<<20))).Draw(t, "first sequence")
	numbered, gaps, timed := seq != 0, rapid.Bool().Draw(t, "gaps"), rapid.Bool().Draw(t, "times")
	plain := rapid.Bool().Draw(t, "plain")
	for i := range out {
		r := &out[i]
		r.Timestamp = 1_700_000_000_000
		if timed {
			r.Timestamp = rapid.Int64().Draw(t, "time")
		}
		r.Key, r.Value = genBytes("key", t), genBytes("value", t)
		if plain {
			r.Key, r.Value = append([]byte{}, r.Key...), append([]byte{}, r.Value...)
		} else {
			r.Headers = genHeaders(t)
		}
		if numbered {
			r.seq = seq
			seq++
			if gaps {
				seq += rapid.Uint64Range(0, 5000).Draw(t, "gap")
			}
		}
	}
	return out
}

// What is added is what is read, in every codec, through generated code too.
func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		records, producer := genBatch(t), rapid.Uint64().Draw(t, "producer")
		var b Builder
		b.Reset(make([]byte, MaxFrame), producer)
		for i := range records {
			if err := b.Add(&records[i].Record, records[i].seq); err != nil {
				t.Fatal(err)
			}
		}
		prev := uint64(0)
		if first := records[0].seq; first != 0 {
			prev = rapid.Uint64Range(0, first-1).Draw(t, "predecessor")
		}
		plain, err := b.Finish(prev)
		if err != nil {
			t.Fatal(err)
		}
		lowest, highest := b.Positions()
		var scratch Scratch
		for _, c := range []Codec{None, S2, Zstd} {
			frame, err := Compress(make([]byte, rapid.IntRange(0, len(plain)).Draw(t, "dst")), plain, c)
			if err != nil {
				t.Fatal(err)
			}
			if len(frame) > len(plain) {
				t.Fatalf("%s made %d bytes of %d", c, len(frame), len(plain))
			}
			base, durable := rapid.Uint64Range(0, 1<<62).Draw(t, "base"), rapid.Int64Range(0, math.MaxInt64).Draw(t, "durable")
			salt := rapid.Uint64().Draw(t, "salt")
			Stamp(frame, base, durable, salt)
			got, err := Verify(frame, salt, &scratch)
			if err != nil {
				t.Fatal(err)
			}
			h := got.Head
			if h.Base != base || h.Durable != durable || h.PrevSeq != prev || h.MinPos != lowest || h.MaxPos != highest || h.Producer != producer {
				t.Fatalf("header reads %+v", h)
			}
			if d := difference(&got, producer, records); d != "" {
				t.Fatalf("%s: %s", c, d)
			}
			if d := difference(&got, producer, readGenerated(got.Payload(), &h)); d != "" {
				t.Fatalf("%s: generated code: %s", c, d)
			}
			if checked, err := Check(frame, salt); err != nil || checked != h {
				t.Fatalf("check answers %+v, %v", checked, err)
			}
			Stamp(plain, 0, 0, 0)
		}
	})
}

// What a Trim leaves is what was asked for, whatever the batch was compressed
// with, and trimming once to a set is trimming twice to it.
func TestTrimKeeps(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		records := genBatch(t)
		var b Builder
		b.Reset(make([]byte, MaxFrame), 9)
		for i := range records {
			if err := b.Add(&records[i].Record, records[i].seq); err != nil {
				t.Fatal(err)
			}
		}
		frame, err := b.Finish(0)
		if err != nil {
			t.Fatal(err)
		}
		if frame, err = Compress(nil, frame, rapid.SampledFrom([]Codec{None, S2, Zstd}).Draw(t, "codec")); err != nil {
			t.Fatal(err)
		}
		batch, err := Verify(frame, 0, nil)
		if err != nil {
			t.Fatal(err)
		}
		kept := rapid.SliceOfN(rapid.Bool(), len(records), len(records)).Draw(t, "keep")
		var want []sequenced
		for i, k := range kept {
			if k {
				want = append(want, records[i])
			}
		}
		dst := make([]byte, 0, rapid.SampledFrom([]int{0, 300, MaxFrame}).Draw(t, "dst"))
		trimmed, err := Trim(dst, batch, 0, func(i int) bool { return kept[i] })
		if len(want) == 0 {
			if !errors.Is(err, ErrEmpty) {
				t.Fatalf("nothing kept: %v", err)
			}
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		if cap(dst) >= len(trimmed) && &dst[:1][0] != &trimmed[0] {
			t.Fatal("not built in the memory given")
		}
		got, err := Verify(trimmed, 0, nil)
		if err != nil {
			t.Fatal(err)
		}
		if d := difference(&got, 9, want); d != "" {
			t.Fatal(d)
		}
		direct := bytes.Clone(trimmed)
		again, err := Trim(nil, got, 0, func(int) bool { return true })
		if err != nil || !bytes.Equal(again, direct) {
			t.Fatalf("trimmed to all of it differs: %v", err)
		}
	})
}

// A batch is filled to the brim by Add, refuses what is more, and stays what it
// was.
func TestFull(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		buf := make([]byte, rapid.IntRange(0, 4096).Draw(t, "memory"))
		records := genBatch(t)
		var b Builder
		b.Reset(buf, 1)
		var want []sequenced
		for i := range records {
			before := b.Bytes()
			switch err := b.Add(&records[i].Record, records[i].seq); {
			case err == nil:
				want = append(want, records[i])
				if b.Bytes() > len(buf) || b.Bytes() <= before {
					t.Fatalf("%d bytes after %d, of %d", b.Bytes(), before, len(buf))
				}
			case !errors.Is(err, ErrBatchFull) && !errors.Is(err, ErrRecordTooLarge):
				t.Fatal(err)
			case errors.Is(err, ErrBatchFull) && len(want) == 0:
				t.Fatal("an empty batch is full")
			case b.Bytes() != before:
				t.Fatal("a refused record changed the batch")
			case errors.Is(err, ErrBatchFull):
				var alone Builder
				alone.Reset(make([]byte, len(buf)), 1)
				if err := alone.Add(&records[i].Record, records[i].seq); err != nil {
					t.Fatalf("called full, but alone: %v", err)
				}
			}
		}
		frame, err := b.Finish(0)
		if len(want) == 0 {
			if !errors.Is(err, ErrEmpty) {
				t.Fatal(err)
			}
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		got, err := Verify(frame, 0, nil)
		if err != nil {
			t.Fatal(err)
		}
		if d := difference(&got, 1, want); d != "" {
			t.Fatal(d)
		}
	})
}
