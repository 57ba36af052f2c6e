package record

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"
)

// A lent frame is one like any other but for the flag, which goes with a version of its own:
// a program that does not know it is to refuse the frame as a newer one's, and not to take
// it for damage. What is made of the frame is not lent.
func TestLent(t *testing.T) {
	built := mustBuild(t, 7, 4, variety())
	frame := lentOf(t, built, testSalt)
	if frame[offVersion] != versionLent || built[offVersion] != version || versionLent <= version {
		t.Errorf("version %d, of others %d", frame[offVersion], built[offVersion])
	}
	b := mustVerify(t, frame, testSalt)
	if d := difference(&b, 7, variety()); d != "" || !b.Head.Lent() {
		t.Errorf("reads %+v: %s", b.Head, d)
	}
	trimmed, err := Trim(nil, b, 0, func(i int) bool { return i > 0 })
	if err != nil {
		t.Fatal(err)
	}
	if h := mustVerify(t, trimmed, 0).Head; h.Flags != 0 {
		t.Errorf("trimmed it is %+v", h)
	}
	if h := b.Head.AsVoid(); h.Lent() || !h.Void() {
		t.Errorf("void it is %+v", h)
	}
	if _, err := Compress(nil, lentOf(t, built, 0), S2); !errors.Is(err, ErrUsage) {
		t.Errorf("compresses: %v", err)
	}
	stamped := bytes.Clone(built)
	Stamp(stamped, 0, 0, testSalt)
	if Identity(frame) == Identity(stamped) || Identity(frame) != IdentityOfChecked(frame) {
		t.Errorf("identity %#x, not lent %#x", Identity(frame), Identity(stamped))
	}
}

// The flag in another version, the version with other flags, and versions that are none
// are refused, each in the right way.
func TestLentRefused(t *testing.T) {
	built := mustBuild(t, 7, 4, variety())
	for _, c := range []struct {
		version uint16
		flags   byte
		want    error
	}{
		{0, 0, ErrCorrupt},
		{0, FlagLent, ErrCorrupt},
		{version, FlagLent, ErrCorrupt},
		{versionLent, 0, ErrCorrupt},
		{versionLent, FlagMark, ErrCorrupt},
		{versionLent, FlagLent | FlagMark, ErrCorrupt},
		{versionLent, FlagLent | FlagVoid, ErrCorrupt},
		{versionLent, FlagLent << 1, ErrCorrupt},
		{versionLent + 1, FlagLent, ErrVersion},
		{versionLent + 1, 0, ErrVersion},
	} {
		frame := bytes.Clone(built)
		frame[offFlags] = c.flags
		frame[offVersion] = byte(c.version)
		binary.LittleEndian.PutUint32(frame[offCRC:], headerCRC(frame, testSalt))
		if _, err := Verify(frame, testSalt, nil); !errors.Is(err, c.want) {
			t.Errorf("version %d with flags %#x: %v, want %v", c.version, c.flags, err, c.want)
		}
	}
}
