package engine

import (
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"slices"
	"strings"
	"testing"
	"time"
)

// L11: a cursor that is cut, changed in any bit, of another topic or version, or
// absurdly long is refused for what it is.
func TestL11_CursorHygiene(t *testing.T) {
	e := open(t, t.TempDir(), Options{})
	newTopic(t, e, "t")
	newTopic(t, e, "u")
	produce(t, newProducer(t, e, ProducerOptions{Topic: "t"}), "k", "1", "2", "3")
	produce(t, newProducer(t, e, ProducerOptions{Topic: "u"}), "k", "secret")
	c := newConsumer(t, e, ConsumerOptions{Topic: "t"})
	_, err := c.Fetch(2)
	must(t, err)
	cursor := c.Cursor()
	at := func(topic, cursor string) error {
		c, err := e.NewConsumer(ConsumerOptions{Topic: topic, From: FromCursor(cursor)})
		if err == nil {
			c.Close()
		}
		return err
	}
	must(t, at("t", cursor))
	is(t, at("u", cursor), ErrForeignCursor, `"u"`)
	for i := range len(cursor) {
		is(t, at("t", cursor[:i]), ErrInvalidCursor)
	}
	raw, err := base64.RawURLEncoding.DecodeString(cursor)
	must(t, err)
	for bit := range len(raw) * 8 {
		bad := slices.Clone(raw)
		bad[bit/8] ^= 1 << (bit % 8)
		is(t, at("t", base64.RawURLEncoding.EncodeToString(bad)), ErrInvalidCursor)
	}
	for _, bad := range []string{
		"", " ", cursor + " ", cursor + "A", "=" + cursor, strings.Repeat("A", 1<<20), cursor + "\n", "héllo", cursor + cursor,
	} {
		is(t, at("t", bad), ErrInvalidCursor)
	}
	body := raw[:len(raw)-4]
	change := func(at int, to ...byte) string {
		b := slices.Clone(body)
		copy(b[at:], to)
		b = binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli)) // or it hides what is behind it
		return base64.RawURLEncoding.EncodeToString(b)
	}
	is(t, at("t", change(0, 2)), ErrInvalidCursor, "version 2")
	is(t, at("t", change(17, 0, 0, 0, 0)), ErrInvalidCursor, "0 sources")
	is(t, at("t", change(17, 0xff, 0xff, 0xff, 0xff)), ErrInvalidCursor)
	is(t, at("t", change(21, 9)), ErrCursorPastEnd, "no range 9")
	is(t, at("t", change(25, 0xff, 0xff)), ErrCursorPastEnd, "range 0 ends")
	is(t, at("t", change(33, 1, 2, 3, 4)), ErrCursorOfOther)
	must(t, at("t", change(33, 0, 0, 0, 0))) // says nothing of the records before
}

// L10: a cursor from before a topic was put back from a copy does not fit the records
// that have taken the place of those it was made with, and says so.
func TestL10_CursorOfALostTime(t *testing.T) {
	dir := t.TempDir()
	stored(t, dir)
	backup := copyTree(t, dir)
	read := func(n int) (cursor string) {
		t.Helper()
		e := open(t, dir, Options{})
		fill(t, e)
		c := newConsumer(t, e, ConsumerOptions{Topic: "t"})
		for range n {
			_, err := c.Fetch(1)
			must(t, err)
		}
		cursor = c.Cursor()
		must(t, c.Close())
		shut(t, e)
		return cursor
	}
	before, inside := read(3), read(5)
	replace(t, dir, backup)
	e := open(t, dir, Options{})
	_, err := e.NewConsumer(ConsumerOptions{Topic: "t", From: FromCursor(inside)})
	is(t, err, ErrCursorPastEnd)
	fill(t, e)
	_, err = e.NewConsumer(ConsumerOptions{Topic: "t", From: FromCursor(inside)})
	is(t, err, ErrCursorOfOther, "offset 5")
	if got := readAll(t, e, "t", FromCursor(before)); len(got) != 3 {
		t.Errorf("a cursor that fits read %q", got)
	}
}

// From a time: of each range all from the first record of that time on, also where
// ranges between were finished before it.
func TestFromTime(t *testing.T) {
	e := open(t, t.TempDir(), Options{})
	newTopic(t, e, "t")
	p := newProducer(t, e, ProducerOptions{Topic: "t"})
	at := func(ms int64, key string) {
		t.Helper()
		_, err := p.Produce(within(t), Record{Key: []byte(key), Value: text("%s@%d", key, ms), Time: time.UnixMilli(ms)})
		must(t, err)
	}
	keys := func() (list []string) {
		for i := range 16 {
			list = append(list, fmt.Sprint("k", i))
		}
		return list
	}()
	for _, k := range keys {
		at(100, k)
	}
	at(300, "k0")
	split := func(seq uint32) {
		t.Helper()
		_, _, err := e.SplitRange(within(t), "t", seq)
		must(t, err)
	}
	split(0)
	for _, k := range keys {
		at(50, k) // a clock that was behind
	}
	split(1)
	split(2)
	at(400, "k1")
	if got := readAll(t, e, "t", FromTime(time.UnixMilli(100))); len(got) != 18 {
		t.Errorf("from 100: %d records, want the 17 of range 0 and the last", len(got))
	}
	for ms, want := range map[int64][]string{
		0: nil, 200: {"k0@300", "k1@400"}, 300: {"k0@300", "k1@400"}, 301: {"k1@400"}, 400: {"k1@400"}, 401: {},
	} {
		got := readAll(t, e, "t", FromTime(time.UnixMilli(ms)))
		switch {
		case want == nil && len(got) != 34:
			t.Errorf("from %d: %d records, want all 34", ms, len(got))
		case want != nil && !slices.Equal(got, want):
			t.Errorf("from %d: %q, want %q", ms, got, want)
		}
	}
}
