package record

import (
	"bytes"
	"errors"
	"sync"
	"testing"
)

func TestCodecNames(t *testing.T) {
	for _, c := range []Codec{None, S2, Zstd} {
		if got, err := ParseCodec(c.String()); err != nil || got != c {
			t.Errorf("%s is read as %s: %v", c, got, err)
		}
	}
	for _, s := range []string{"", "gzip", "codec(3)", "S2"} {
		if c, err := ParseCodec(s); err == nil {
			t.Errorf("%q is read as %s", s, c)
		}
	}
}

// What does not shrink stays plain; what is no plain frame is not compressed.
func TestCompressRefuses(t *testing.T) {
	small := mustBuild(t, 1, 0, consecutive(1, Record{Value: []byte("x")}))
	noise := benchRecords(1000, 1)[0]
	for i := range noise.Value {
		noise.Value[i] = byte(i*i*i>>3 ^ i*7)
	}
	for _, c := range []Codec{None, S2, Zstd} {
		got, err := Compress(nil, small, c)
		if err != nil || c == None && &got[0] != &small[0] || len(got) > len(small) {
			t.Errorf("%s: %d bytes of %d: %v", c, len(got), len(small), err)
		}
	}
	packed, err := Compress(nil, mustBuild(t, 1, 0, variety()), S2)
	if err != nil || codecOf(packed) != S2 {
		t.Fatal(err)
	}
	mark, _ := BuildMark(nil, make([]byte, 1000))
	for name, frame := range map[string][]byte{"compressed": packed, "mark": mark, "cut": small[:len(small)-1]} {
		if _, err := Compress(nil, frame, Zstd); !errors.Is(err, ErrUsage) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := Compress(nil, small, Zstd+1); !errors.Is(err, ErrUsage) {
		t.Errorf("unknown codec: %v", err)
	}
	if _, err := Compress(nil, []byte("no frame"), Zstd); !errors.Is(err, ErrCorrupt) {
		t.Errorf("no frame: %v", err)
	}
}

// Coders are shared: more goroutines than there are coders get their own bytes.
func TestCodersAreShared(t *testing.T) {
	var wg sync.WaitGroup
	for g := range 3 * coders() {
		wg.Go(func() {
			records := consecutive(1, Record{Value: bytes.Repeat([]byte{byte(g)}, 10_000)}, Record{Key: []byte{byte(g)}})
			plain := mustBuild(t, uint64(g), 0, records)
			var s Scratch
			for i := range 20 {
				frame, err := Compress(nil, plain, []Codec{S2, Zstd}[i%2])
				if err != nil {
					t.Error(err)
					return
				}
				b, err := Verify(frame, 0, &s)
				if err != nil || b.Head.Codec == None {
					t.Errorf("codec %s: %v", b.Head.Codec, err)
					return
				}
				if d := difference(&b, uint64(g), records); d != "" {
					t.Error(d)
				}
			}
		})
	}
	wg.Wait()
}
