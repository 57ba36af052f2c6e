package record

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"
)

// benchRecords are records of size bytes with keys of 16.
func benchRecords(size, n int) []Record {
	rng := rand.New(rand.NewPCG(1, 2))
	words := [...]string{"INFO ", "block ", "received ", "from ", "10.251.", "namenode ", "exception ", "0123 "}
	records := make([]Record, n)
	for i := range records {
		key := binary.LittleEndian.AppendUint64(make([]byte, 8, 16), rng.Uint64())
		var value []byte
		for len(value) < size-len(key) {
			value = append(value, words[rng.IntN(len(words))]...)
			value = append(value, byte('a'+rng.IntN(26)))
		}
		records[i] = Record{Key: key, Value: value[:size-len(key)], Timestamp: 1_700_000_000_000}
	}
	return records
}

func buildFrame(tb testing.TB, b *Builder, buf []byte, records []Record) []byte {
	tb.Helper()
	b.Reset(buf, 7)
	for i := range records {
		if err := b.Add(&records[i], uint64(i)+1); err != nil {
			tb.Fatal(err)
		}
	}
	frame, err := b.Finish(0)
	if err != nil {
		tb.Fatal(err)
	}
	return frame
}

func perRecord(b *testing.B, n int) {
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/record")
	b.ReportAllocs()
}

// shapes are batches of 1 MiB and of 1,000 records.
var shapes = []struct{ size, n int }{{1024, 1000}, {100, 1000}, {100, 9000}}

func BenchmarkBuild(b *testing.B) {
	for _, s := range shapes {
		b.Run(fmt.Sprintf("size=%d/batch=%d", s.size, s.n), func(b *testing.B) {
			records, buf := benchRecords(s.size, s.n), make([]byte, 2<<20)
			var builder Builder
			b.SetBytes(int64(s.size * s.n))
			for b.Loop() {
				buildFrame(b, &builder, buf, records)
			}
			perRecord(b, s.n)
		})
	}
}

// BenchmarkBuildColumns is BenchmarkBuild with records that need more columns.
func BenchmarkBuildColumns(b *testing.B) {
	for name, change := range map[string]func(i int, r *Record){
		"times":   func(i int, r *Record) { r.Timestamp += int64(i / 10) },
		"keyless": func(_ int, r *Record) { r.Key = nil },
		"headers": func(_ int, r *Record) { r.Headers = []Header{{[]byte("host"), []byte("a-host")}} },
	} {
		b.Run("size=100/batch=1000/"+name, func(b *testing.B) {
			records, buf := benchRecords(100, 1000), make([]byte, 2<<20)
			for i := range records {
				change(i, &records[i])
			}
			var builder Builder
			b.SetBytes(int64(100 * len(records)))
			var frame []byte
			for b.Loop() {
				frame = buildFrame(b, &builder, buf, records)
			}
			perRecord(b, len(records))
			b.StopTimer()
			mustVerify(b, frame, 0)
		})
	}
}

// BenchmarkCopy is the floor of BenchmarkBuild: the same bytes copied to the same
// places, nothing else.
func BenchmarkCopy(b *testing.B) {
	for _, s := range shapes {
		b.Run(fmt.Sprintf("size=%d/batch=%d", s.size, s.n), func(b *testing.B) {
			records, buf := benchRecords(s.size, s.n), make([]byte, 2<<20)
			b.SetBytes(int64(s.size * s.n))
			for b.Loop() {
				at := 0
				for i := range records {
					at += copy(buf[at:], records[i].Key)
					at += copy(buf[at:], records[i].Value)
				}
			}
			perRecord(b, s.n)
		})
	}
}

func BenchmarkVerify(b *testing.B) {
	for _, codec := range []Codec{None, S2, Zstd} {
		for _, s := range shapes {
			b.Run(fmt.Sprintf("codec=%s/size=%d/batch=%d", codec, s.size, s.n), func(b *testing.B) {
				var builder Builder
				frame := buildFrame(b, &builder, make([]byte, 2<<20), benchRecords(s.size, s.n))
				frame, err := Compress(nil, frame, codec)
				if err != nil {
					b.Fatal(err)
				}
				var scratch Scratch
				b.SetBytes(int64(s.size * s.n))
				for b.Loop() {
					if _, err := Verify(frame, 0, &scratch); err != nil {
						b.Fatal(err)
					}
				}
				perRecord(b, s.n)
				b.ReportMetric(float64(len(frame))/float64(s.n*s.size), "ratio")
			})
		}
	}
}

func BenchmarkCheck(b *testing.B) {
	for _, s := range shapes {
		b.Run(fmt.Sprintf("size=%d/batch=%d", s.size, s.n), func(b *testing.B) {
			var builder Builder
			frame := buildFrame(b, &builder, make([]byte, 2<<20), benchRecords(s.size, s.n))
			b.SetBytes(int64(s.size * s.n))
			for b.Loop() {
				if _, err := Check(frame, 0); err != nil {
					b.Fatal(err)
				}
			}
			perRecord(b, s.n)
		})
	}
}

func BenchmarkCompress(b *testing.B) {
	for _, codec := range []Codec{S2, Zstd} {
		b.Run("codec="+codec.String(), func(b *testing.B) {
			var builder Builder
			frame := buildFrame(b, &builder, make([]byte, 2<<20), benchRecords(1024, 1000))
			dst := make([]byte, 2<<20)
			b.SetBytes(int64(len(frame)))
			for b.Loop() {
				if _, err := Compress(dst, frame, codec); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportAllocs()
		})
	}
}

func BenchmarkRead(b *testing.B) {
	var builder Builder
	frame := buildFrame(b, &builder, make([]byte, 2<<20), benchRecords(100, 1000))
	batch, err := Verify(frame, 0, nil)
	if err != nil {
		b.Fatal(err)
	}
	sum := 0
	for b.Loop() {
		for i := range batch.Len() {
			sum += len(batch.Key(i)) + len(batch.Value(i)) + int(batch.Timestamp(i)&1)
		}
	}
	perRecord(b, batch.Len())
	if sum == 0 {
		b.Fatal("nothing read")
	}
}

func BenchmarkStamp(b *testing.B) {
	var builder Builder
	frame := buildFrame(b, &builder, make([]byte, 1<<20), benchRecords(100, 10))
	for b.Loop() {
		Stamp(frame, 5, 4096, 77)
	}
	b.ReportAllocs()
}
