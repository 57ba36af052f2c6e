package record

import (
	"bytes"
	"errors"
	"math"
	"math/rand/v2"
	"testing"
)

// Null, empty and the largest of everything come back as they were given; so do
// times that make no sense (M01), which are for others to judge.
func TestKindsOfRecords(t *testing.T) {
	manyHeaders := make([]Header, MaxHeaders)
	for i := range manyHeaders {
		manyHeaders[i] = Header{Key: []byte{byte(i)}}
	}
	for name, r := range map[string]Record{
		"null key and value":      {},
		"empty key and value":     {Key: []byte{}, Value: []byte{}},
		"tombstone":               {Key: []byte("k")},
		"only a key":              {Key: []byte("k"), Value: []byte{}},
		"huge key":                {Key: bytes.Repeat([]byte("k"), 1<<20)},
		"huge value":              {Value: bytes.Repeat([]byte("v"), 15<<20)},
		"header of 64 KiB":        {Headers: []Header{{Key: []byte("name"), Value: make([]byte, 64<<10)}}},
		"headers at the limit":    {Headers: []Header{{Key: make([]byte, MaxHeaderBytes/2), Value: make([]byte, MaxHeaderBytes/2)}}},
		"most headers":            {Headers: manyHeaders},
		"no headers, but a list":  {Headers: []Header{}},
		"header of nothing":       {Headers: []Header{{}}},
		"header of empty":         {Headers: []Header{{Key: []byte{}, Value: []byte{}}}},
		"time of 0":               {Timestamp: 0},
		"time before 1970":        {Timestamp: -1},
		"smallest time":           {Timestamp: math.MinInt64},
		"largest time":            {Timestamp: math.MaxInt64},
		"a key like a keyless id": {Key: make([]byte, 16)},
	} {
		t.Run(name, func(t *testing.T) {
			for _, records := range [][]sequenced{
				consecutive(1, r),
				consecutive(0, r),
				consecutive(math.MaxUint64-2, Record{Key: []byte("before")}, r, Record{Timestamp: 5}),
			} {
				b := mustVerify(t, mustBuild(t, 1, 0, records), 0)
				if d := difference(&b, 1, records); d != "" {
					t.Error(d)
				}
			}
		})
	}
}

func TestLimits(t *testing.T) {
	over := map[string]Record{
		"too many headers":  {Headers: make([]Header, MaxHeaders+1)},
		"headers too large": {Headers: []Header{{Value: make([]byte, MaxHeaderBytes+1)}}},
		"key too large":     {Key: make([]byte, MaxFrame)},
		"value too large":   {Value: make([]byte, MaxFrame-HeaderSize)},
		"together":          {Key: make([]byte, MaxFrame/2), Value: make([]byte, MaxFrame/2)},
	}
	for name, r := range over {
		var b Builder
		b.Reset(make([]byte, MaxFrame+4096), 1)
		if err := b.Add(&r, 1); !errors.Is(err, ErrRecordTooLarge) || b.Len() != 0 || b.Bytes() != 0 {
			t.Errorf("%s: alone: %v", name, err)
		}
		if err := b.Add(&Record{}, 1); err != nil {
			t.Fatal(err)
		}
		if err := b.Add(&r, 2); !errors.Is(err, ErrRecordTooLarge) || b.Len() != 1 {
			t.Errorf("%s: as the second: %v", name, err)
		}
	}
	t.Run("no room at all", func(t *testing.T) {
		for _, n := range []int{0, 1, HeaderSize, HeaderSize + dataAt, HeaderSize + payloadSize(1, 0, 0) - 1} {
			var b Builder
			b.Reset(make([]byte, n), 1)
			if err := b.Add(&Record{Key: []byte{}, Value: []byte{}}, 1); !errors.Is(err, ErrRecordTooLarge) {
				t.Errorf("%d bytes: %v", n, err)
			}
			if _, err := b.Finish(0); !errors.Is(err, ErrEmpty) {
				t.Errorf("%d bytes: finishes: %v", n, err)
			}
		}
	})
	t.Run("the largest record", func(t *testing.T) {
		var b Builder
		b.Reset(make([]byte, MaxFrame), 1)
		r := Record{Key: []byte{}, Value: make([]byte, MaxFrame-trimSize(1, 0, 0))}
		if err := b.Add(&r, 1); err != nil {
			t.Fatal(err)
		}
		frame, err := b.Finish(0)
		if err != nil {
			t.Fatal(err)
		}
		mustVerify(t, frame, 0)
		b.Reset(make([]byte, MaxFrame), 1)
		r.Value = append(r.Value, make([]byte, 4)...)
		if err := b.Add(&r, 1); !errors.Is(err, ErrRecordTooLarge) {
			t.Errorf("four bytes more: %v", err)
		}
	})
}

// The largest batch there can be verifies, can be trimmed at will, and takes no
// record more.
func TestMostRecords(t *testing.T) {
	var b Builder
	b.Reset(make([]byte, MaxFrame), 1)
	r := Record{Key: []byte{}, Value: []byte{}}
	for i := range uint64(MaxRecords) {
		if err := b.Add(&r, i+1); err != nil {
			t.Fatalf("record %d: %v", i, err)
		}
	}
	if err := b.Add(&r, MaxRecords+1); !errors.Is(err, ErrBatchFull) {
		t.Fatalf("one more: %v", err)
	}
	frame, err := b.Finish(0)
	if err != nil {
		t.Fatal(err)
	}
	batch := mustVerify(t, frame, 0)
	trimmed, err := Trim(nil, batch, 0, func(i int) bool { return i != 1 })
	if err != nil {
		t.Fatal(err)
	}
	if batch = mustVerify(t, trimmed, 0); batch.Len() != MaxRecords-1 || batch.Seq(1) != 3 {
		t.Errorf("%d records, second has sequence %d", batch.Len(), batch.Seq(1))
	}
}

// A batch that fills MaxFrame with small records can lose any of them and still
// fit, although its sequences then need a column.
func TestFullFrameCanBeTrimmed(t *testing.T) {
	var b Builder
	b.Reset(make([]byte, MaxFrame), 1)
	r := Record{Key: []byte("12345678"), Value: []byte("12345678")}
	n := uint64(0)
	for ; ; n++ {
		if err := b.Add(&r, n+1); errors.Is(err, ErrBatchFull) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	frame, err := b.Finish(0)
	if err != nil {
		t.Fatal(err)
	}
	if spare := MaxFrame - trimSize(b.Len(), b.size, b.cols); spare < 0 || spare > 64 {
		t.Errorf("full with %d bytes to spare", spare)
	}
	trimmed, err := Trim(make([]byte, MaxFrame), mustVerify(t, frame, 0), 0, func(i int) bool { return i != 1 })
	if err != nil {
		t.Fatal(err)
	}
	if got := mustVerify(t, trimmed, 0); got.Len() != int(n)-1 {
		t.Errorf("%d records of %d", got.Len(), n)
	}
}

// Bytes tells the frame's length at every step, and a full batch fills its memory.
func TestBytesIsExact(t *testing.T) {
	records := variety()
	for n := range records {
		var b Builder
		b.Reset(make([]byte, 64<<10), 1)
		for i := range n + 1 {
			if err := b.Add(&records[i].Record, records[i].seq); err != nil {
				t.Fatal(err)
			}
		}
		want := b.Bytes()
		frame, err := b.Finish(0)
		if err != nil || len(frame) != want {
			t.Errorf("%d records: %d bytes, said %d: %v", n+1, len(frame), want, err)
		}
		// Memory of exactly this size holds the batch; one byte less does not.
		for less := range 2 {
			b.Reset(make([]byte, want-less), 1)
			for i := range n {
				if err := b.Add(&records[i].Record, records[i].seq); err != nil {
					t.Fatal(err)
				}
			}
			before := b.Bytes()
			err := b.Add(&records[n].Record, records[n].seq)
			full := errors.Is(err, ErrBatchFull) || n == 0 && errors.Is(err, ErrRecordTooLarge)
			if less == 0 && err != nil || less == 1 && !full && !errors.Is(err, ErrRecordTooLarge) {
				t.Errorf("%d records, %d bytes short: %v", n+1, less, err)
			}
			if err != nil && (b.Len() != n || b.Bytes() != before) {
				t.Errorf("a refused record changed the batch")
			}
		}
	}
}

// The same records give the same bytes whatever was in the memory or the Builder
// before: nothing of another batch leaks out through gaps.
func TestNothingLeaks(t *testing.T) {
	records := variety()
	want := mustBuild(t, 1, 0, records)
	var b Builder
	buf := bytes.Repeat([]byte{0xaa}, 8192)
	for range 2 {
		b.Reset(buf, 1)
		for i := range records {
			if err := b.Add(&records[i].Record, records[i].seq); err != nil {
				t.Fatal(err)
			}
		}
		frame, err := b.Finish(0)
		if err != nil || !bytes.Equal(frame, want) {
			t.Fatalf("differs from the first build: %v", err)
		}
		b.Reset(buf, 2)
		other := Record{Value: bytes.Repeat([]byte{0xbb}, 100), Headers: []Header{{Value: []byte("other")}}, Timestamp: 3}
		for i := range uint64(20) {
			if err := b.Add(&other, i*3+1); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := b.Finish(0); err != nil {
			t.Fatal(err)
		}
	}
}

// A record filled in place is the record added.
func TestReserve(t *testing.T) {
	records := variety()
	want := mustBuild(t, 1, 0, records)
	var b Builder
	b.Reset(make([]byte, 8192), 1)
	length := func(v []byte) int {
		if v == nil {
			return -1
		}
		return len(v)
	}
	if err := b.Commit(1); !errors.Is(err, ErrUsage) {
		t.Errorf("nothing to commit: %v", err)
	}
	for _, r := range records {
		// A place that is given up leaves no trace.
		if _, _, err := b.Reserve(10, 10, []Header{{Value: []byte("given up")}}, 99); err != nil {
			t.Fatal(err)
		}
		key, value, err := b.Reserve(length(r.Key), length(r.Value), r.Headers, r.Timestamp)
		if err != nil {
			t.Fatal(err)
		}
		if len(key) != len(r.Key) || len(value) != len(r.Value) || (key == nil) != (r.Key == nil) || cap(key) != len(key) {
			t.Fatalf("reserved %d and %d bytes for %d and %d", len(key), len(value), len(r.Key), len(r.Value))
		}
		copy(key, r.Key)
		copy(value, r.Value)
		if err := b.Commit(r.seq); err != nil {
			t.Fatal(err)
		}
		if err := b.Commit(r.seq + 1); !errors.Is(err, ErrUsage) {
			t.Errorf("committed twice: %v", err)
		}
	}
	frame, err := b.Finish(0)
	if err != nil || !bytes.Equal(frame, want) {
		t.Fatalf("differs from what Add builds: %v", err)
	}
}

// Whatever sequence comes with Commit, there is room for it.
func TestReserveKeepsRoomForSequences(t *testing.T) {
	for size := 300; size < 400; size++ {
		var b Builder
		b.Reset(make([]byte, size), 1)
		for seq := uint64(1); ; seq += 2 {
			if _, _, err := b.Reserve(3, 3, nil, 0); err != nil {
				break
			}
			if err := b.Commit(seq); err != nil {
				t.Fatal(err)
			}
		}
		frame, err := b.Finish(0)
		if err != nil || b.Len() < 3 {
			t.Fatalf("%d records: %v", b.Len(), err)
		}
		mustVerify(t, frame, 0)
	}
}

func TestSequences(t *testing.T) {
	for _, c := range []struct {
		name string
		seqs []uint64
		prev uint64
		want error // of the last Add, or of Finish
	}{
		{"none", []uint64{0, 0, 0}, 0, nil},
		{"none, but a predecessor", []uint64{0, 0}, 1, ErrSequence},
		{"from 1", []uint64{1, 2, 3}, 0, nil},
		{"with gaps", []uint64{10, 20, 21}, 9, nil},
		{"largest span", []uint64{1, 1 << 32}, 0, nil},
		{"span too large", []uint64{1, 1<<32 + 1}, 0, ErrBatchFull},
		{"to the end", []uint64{math.MaxUint64 - 1, math.MaxUint64}, 5, nil},
		{"repeated", []uint64{1, 1}, 0, ErrSequence},
		{"backwards", []uint64{2, 1}, 0, ErrSequence},
		{"begins without", []uint64{0, 1}, 0, ErrSequence},
		{"goes on without", []uint64{1, 0}, 0, ErrSequence},
		{"predecessor is the first", []uint64{5, 6}, 5, ErrSequence},
	} {
		t.Run(c.name, func(t *testing.T) {
			var b Builder
			b.Reset(make([]byte, 4096), 1)
			var err error
			for _, seq := range c.seqs {
				if err != nil {
					t.Fatal(err)
				}
				err = b.Add(&Record{}, seq)
			}
			var frame []byte
			if err == nil {
				frame, err = b.Finish(c.prev)
			}
			if !errors.Is(err, c.want) {
				t.Fatalf("got %v, want %v", err, c.want)
			}
			if c.want != nil {
				return
			}
			if first, last := b.Sequences(); first != c.seqs[0] || last != c.seqs[len(c.seqs)-1] {
				t.Errorf("sequences %d to %d", first, last)
			}
			got := mustVerify(t, frame, 0)
			for i, seq := range c.seqs {
				if got.Seq(i) != seq {
					t.Errorf("record %d has sequence %d, want %d", i, got.Seq(i), seq)
				}
			}
		})
	}
}

// What the short check of a Builder lets in fits by the exact one, whichever columns
// the records need.
func TestAmpleFits(t *testing.T) {
	all := hasHeaders | hasTimestamps | hasSequences | hasNullKeys | hasNullValues
	var b Builder
	for _, room := range []int{0, 300, 1000, 4096, 1 << 20, MaxFrame/2 - 1, MaxFrame} {
		b.Reset(make([]byte, room), 1)
		for n := 1; columnsBytes*(n-1) <= b.ample; n += 1 + n/8 {
			if size := b.ample - columnsBytes*(n-1); n > MaxRecords || !b.fits(n, size, all) {
				t.Fatalf("%d records with %d bytes of data do not fit %d", n, size, room)
			}
		}
	}
}

// PositionsFrom agrees with the positions of records that are built with these
// sequences.
func TestPositionsFrom(t *testing.T) {
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 0))
		keys := make([][]byte, 1+rng.IntN(4000))
		for i, keyed := 0, rng.IntN(3); i < len(keys); i++ {
			if rng.IntN(2) < keyed {
				keys[i] = []byte{byte(rng.IntN(4))}
			}
		}
		build := func(first uint64) *Builder {
			var b Builder
			b.Reset(make([]byte, 1<<18), 9)
			for i, key := range keys {
				if err := b.Add(&Record{Key: key}, first+uint64(i)); err != nil {
					t.Fatal(err)
				}
			}
			return &b
		}
		first := 1 + rng.Uint64N(1<<40)
		lowest, highest := build(1).PositionsFrom(first)
		if l, h := build(first).Positions(); l != lowest || h != highest {
			t.Fatalf("seed %d: %d to %d, want %d to %d", seed, lowest, highest, l, h)
		}
	}
}
