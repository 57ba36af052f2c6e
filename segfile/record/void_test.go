package record

import (
	"bytes"
	"errors"
	"testing"
)

// A void frame verifies, and nothing can be read from it: it has zeros where records
// were, no codec, and all that its place in a segment depends on.
func TestVoid(t *testing.T) {
	for _, codec := range []Codec{None, Zstd} {
		frame, err := Compress(nil, mustBuild(t, 7, 4, variety()), codec)
		if err != nil {
			t.Fatal(err)
		}
		Stamp(frame, 1000, 1<<20, testSalt)
		h := mustVerify(t, frame, testSalt).Head
		void := voidOf(h, testSalt)
		b := mustVerify(t, void, testSalt)
		if b.Len() != 0 || b.Head.Count != h.Count || b.Head.Base != h.Base || b.Head.LastSeq != h.LastSeq || b.Head.Durable != h.Durable {
			t.Errorf("codec %v: reads %+v, of %+v", codec, b.Head, h)
		}
		if Identity(void) == Identity(frame) || Identity(void) != IdentityOfChecked(void) {
			t.Errorf("codec %v: identity %#x, of the frame it was %#x", codec, Identity(void), Identity(frame))
		}
		if _, err := Trim(nil, b, 0, func(int) bool { return true }); !errors.Is(err, ErrEmpty) {
			t.Errorf("codec %v: trims to %v", codec, err)
		}
		plain := voidOf(h, 0)
		if _, err := Compress(nil, plain, S2); !errors.Is(err, ErrUsage) {
			t.Errorf("codec %v: compresses: %v", codec, err)
		}
	}
}

// What only looks like one is corrupt, checksums or not.
func TestVoidRefused(t *testing.T) {
	frame := mustBuild(t, 7, 4, variety())
	h, err := ParseHead(frame, 0)
	if err != nil {
		t.Fatal(err)
	}
	for name, edit := range map[string]func(b []byte){
		"both flags":     func(b []byte) { b[offFlags] = FlagMark | FlagVoid },
		"lent, too":      func(b []byte) { b[offFlags] = FlagVoid | FlagLent },
		"a later flag":   func(b []byte) { b[offFlags] = FlagLent << 1 },
		"compressed":     func(b []byte) { b[offCodec] = byte(Zstd) },
		"a byte left":    func(b []byte) { b[len(b)-1] = 1 },
		"a byte in it":   func(b []byte) { b[HeaderSize+70] = 1 },
		"the old record": func(b []byte) { copy(b[HeaderSize:], frame[HeaderSize:]) },
	} {
		void := voidOf(h, 0)
		edit(void)
		restamp(void, 0)
		if b, err := Verify(void, 0, nil); !errors.Is(err, ErrCorrupt) || b.Frame() != nil {
			t.Errorf("%s: %v, %+v", name, err, b.Head)
		}
	}
	void := voidOf(h, 0)
	void[len(void)-1] = 1 // the checksum still that of zeros
	if _, err := Check(void, 0); !errors.Is(err, ErrCorrupt) || bytes.Equal(void, frame) {
		t.Errorf("a changed payload passes: %v", err)
	}
}

// VerifyShared accepts what Verify accepts, but nothing compressed, and Unchanged holds
// until any byte is another.
func TestSharedFrames(t *testing.T) {
	frame := mustBuild(t, 7, 4, variety())
	h, err := VerifyShared(frame[:HeaderSize], frame, 0)
	if want := mustVerify(t, frame, 0).Head; err != nil || h != want {
		t.Fatalf("%v, %+v, want %+v", err, h, want)
	}
	small, err := Compress(nil, frame, Zstd)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := VerifyShared(small[:HeaderSize], small, 0); !errors.Is(err, ErrUsage) {
		t.Errorf("a compressed one: %v", err)
	}
	header := bytes.Clone(frame[:HeaderSize])
	if !Unchanged(header, frame) || !Unchanged(header, append(bytes.Clone(frame), 1)) || Unchanged(header, frame[:len(frame)-1]) {
		t.Error("the frame is not what it is")
	}
	for at := range frame {
		frame[at] ^= 0x10
		if Unchanged(header, frame) {
			t.Errorf("byte %d is another", at)
		}
		if _, err := VerifyShared(frame[:HeaderSize], frame, 0); err == nil {
			t.Errorf("verifies with byte %d changed", at)
		}
		if _, err := VerifyShared(frame[:min(at, HeaderSize)], frame[:at], 0); err == nil {
			t.Errorf("verifies with %d bytes", at)
		}
		frame[at] ^= 0x10
	}
}
