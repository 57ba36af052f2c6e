package record

import (
	"bytes"
	"encoding/hex"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the golden files anew")

// The bytes of every kind of frame are pinned. What compressors write may change
// with their versions, so there only reading is.
func TestGolden(t *testing.T) {
	one := consecutive(0, Record{Key: []byte("k"), Value: []byte("v"), Timestamp: 1_700_000_000_000})
	many := variety()
	for _, c := range []struct {
		name    string
		codec   Codec
		prev    uint64
		records []sequenced
	}{
		{"one", None, 0, one},
		{"variety", None, 4, many},
		{"variety-s2", S2, 4, many},
		{"variety-zstd", Zstd, 4, many},
	} {
		t.Run(c.name, func(t *testing.T) {
			frame, err := Compress(nil, mustBuild(t, 0xabcd, c.prev, c.records), c.codec)
			if err != nil {
				t.Fatal(err)
			}
			Stamp(frame, 1000, 1<<20, testSalt)
			pinned := golden(t, c.name, frame)
			if c.codec == None && !bytes.Equal(frame, pinned) {
				t.Errorf("builds\n%swant\n%s", hex.Dump(frame), hex.Dump(pinned))
			}
			b := mustVerify(t, pinned, testSalt)
			if b.Head.Codec != c.codec || b.Head.Base != 1000 || b.Head.Durable != 1<<20 || b.Head.PrevSeq != c.prev {
				t.Errorf("header reads %+v", b.Head)
			}
			if d := difference(&b, 0xabcd, c.records); d != "" {
				t.Error(d)
			}
		})
	}
	t.Run("mark", func(t *testing.T) {
		frame, err := BuildMark(nil, []byte("what segfile keeps"))
		if err != nil {
			t.Fatal(err)
		}
		Stamp(frame, 1000, 1<<20, testSalt)
		pinned := golden(t, "mark", frame)
		if !bytes.Equal(frame, pinned) {
			t.Errorf("builds\n%swant\n%s", hex.Dump(frame), hex.Dump(pinned))
		}
		b := mustVerify(t, pinned, testSalt)
		if b.Len() != 0 || !b.Head.Mark() || string(b.Payload()) != "what segfile keeps" {
			t.Errorf("reads %+v, %q", b.Head, b.Payload())
		}
	})
	t.Run("lent", func(t *testing.T) {
		built := mustBuild(t, 0xabcd, 4, many)
		Stamp(built, 1000, 1<<20, 0)
		frame := lentOf(t, built, testSalt)
		pinned := golden(t, "lent", frame)
		if !bytes.Equal(frame, pinned) {
			t.Errorf("builds\n%swant\n%s", hex.Dump(frame), hex.Dump(pinned))
		}
		b := mustVerify(t, pinned, testSalt)
		if !b.Head.Lent() || b.Head.Void() || b.Head.Mark() || b.Head.Base != 1000 || b.Head.Durable != 1<<20 {
			t.Errorf("reads %+v", b.Head)
		}
		if d := difference(&b, 0xabcd, many); d != "" {
			t.Error(d)
		}
	})
	t.Run("void", func(t *testing.T) {
		built := mustBuild(t, 0xabcd, 4, many)
		Stamp(built, 1000, 1<<20, testSalt)
		h := mustVerify(t, built, testSalt).Head
		frame := voidOf(h, testSalt)
		pinned := golden(t, "void", frame)
		if !bytes.Equal(frame, pinned) {
			t.Errorf("builds\n%swant\n%s", hex.Dump(frame), hex.Dump(pinned))
		}
		b := mustVerify(t, pinned, testSalt)
		want := h.AsVoid()
		if b.Len() != 0 || !b.Head.Void() || b.Head.Mark() || b.Head != want || b.Head.Next() != h.Next() || b.Head.FrameLen != h.FrameLen {
			t.Errorf("reads %+v", b.Head)
		}
	})
	t.Run("numbers", func(t *testing.T) {
		for _, c := range []struct{ got, want uint32 }{
			{Position([]byte("key")), 0xbbea0d63},
			{Position([]byte{}), 0x2d068005},
			{KeylessPosition(1, 1), 0x1c0fd71d},
			{KeylessPosition(1, 1023), 0x1c0fd71d},
			{KeylessPosition(1, 1024), 0xd7b992e8},
		} {
			if c.got != c.want {
				t.Errorf("position %#x, want %#x", c.got, c.want)
			}
		}
	})
}

// golden answers the frame pinned as a hex dump in testdata.
func golden(t *testing.T, name string, frame []byte) []byte {
	t.Helper()
	file := filepath.Join("testdata", name+".hex")
	if *update {
		if err := os.WriteFile(file, []byte(hex.Dump(frame)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var out []byte
	for line := range strings.Lines(string(text)) {
		_, line, _ = strings.Cut(line, "  ")
		line, _, _ = strings.Cut(line, "|")
		b, err := hex.DecodeString(strings.ReplaceAll(strings.TrimSpace(line), " ", ""))
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		out = append(out, b...)
	}
	return out
}
