package api

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"maps"
	"testing"

	"github.com/ringfence/ringfence/cp"
	"github.com/ringfence/ringfence/fence"
)

var cursorTopic = fence.TopicID{1, 2, 3, 15: 4}

func cursorRange(seq uint32) fence.RangeID { return fence.RangeID{Topic: cursorTopic, Seq: seq} }

// restamp gives bytes a good checksum, or it hides all the code behind it.
func restamp(b []byte) string {
	b = binary.LittleEndian.AppendUint32(b[:len(b):len(b)], crc32.Checksum(b, castagnoli))
	return base64.RawURLEncoding.EncodeToString(b)
}

// L11: whatever is accepted is written again as it was, and nothing panics.
func FuzzCursor(f *testing.F) {
	pos := cp.Position{cursorRange(0): 5, cursorRange(7): 1 << 60}
	good, err := base64.RawURLEncoding.DecodeString(EncodeCursor(cursorTopic, pos, Marks{cursorRange(7): 9}))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good[:len(good)-4], true)
	f.Add([]byte{}, true)
	f.Add([]byte("not base64"), false)
	f.Add(good, false)
	f.Fuzz(func(t *testing.T, b []byte, stamp bool) {
		text := string(b)
		if stamp {
			text = restamp(b)
		}
		pos, m, err := DecodeCursor(cursorTopic, text)
		if err != nil {
			if !errors.Is(err, ErrInvalidCursor) && !errors.Is(err, ErrForeignCursor) {
				t.Fatalf("refused with %v", err)
			}
			return
		}
		if again := EncodeCursor(cursorTopic, pos, m); again != text {
			t.Fatalf("accepts %q and writes %q", text, again)
		}
	})
}

// Cursors that clients have stored must be understood for ever.
func TestCursorGolden(t *testing.T) {
	pos := cp.Position{cursorRange(3): 42, cursorRange(1): 0}
	const golden = "AQECAwAAAAAAAAAAAAAAAAQCAAAAAQAAAAAAAAAAAAAAAAAAAAMAAAAqAAAAAAAAAO_NqwCzpEcF"
	if got := EncodeCursor(cursorTopic, pos, Marks{cursorRange(3): 0xabcdef}); got != golden {
		t.Errorf("wrote %s", got)
	}
	got, m, err := DecodeCursor(cursorTopic, golden)
	if err != nil || !maps.Equal(got, pos) || !maps.Equal(m, Marks{cursorRange(3): 0xabcdef}) {
		t.Errorf("read %v %v %v", got, m, err)
	}
}

func TestTopicOfCursor(t *testing.T) {
	text := EncodeCursor(cursorTopic, cp.Position{cursorRange(1): 2}, nil)
	if got, err := TopicOfCursor(text); err != nil || got != cursorTopic {
		t.Errorf("topic %s, %v", got, err)
	}
	if _, err := TopicOfCursor(text[1:]); !errors.Is(err, ErrInvalidCursor) {
		t.Errorf("a damaged cursor: %v", err)
	}
}
