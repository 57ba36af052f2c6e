package main

import (
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
	"time"
)

func TestSizes(t *testing.T) {
	for text, want := range map[string]int64{
		"0": 0, "4096": 4096, "64KiB": 64 << 10, "64k": 64 << 10, "1MiB": 1 << 20, "1 MiB": 1 << 20, "2GiB": 2 << 30, "1TiB": 1 << 40, "7b": 7,
	} {
		if got, err := parseSize(text); err != nil || got != want {
			t.Errorf("%q: %d, %v; want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", "MiB", "-1", "1.5MiB", "1XiB", "9223372036854775807KiB", "1 2", "0x10"} {
		if got, err := parseSize(text); err == nil {
			t.Errorf("%q was taken for %d", text, got)
		}
	}
	for n, want := range map[sizeFlag]string{4096: "4KiB", 1000: "1000", 1 << 20: "1MiB", 0: ""} {
		if got := n.String(); got != want {
			t.Errorf("%d prints as %q, want %q", int64(n), got, want)
		}
	}
}

func TestAges(t *testing.T) {
	for text, want := range map[string]time.Duration{"7d": 168 * time.Hour, "90m": 90 * time.Minute, "0d": 0, "1h30m": 90 * time.Minute} {
		var a ageFlag
		if err := a.Set(text); err != nil || time.Duration(a) != want {
			t.Errorf("%q: %s, %v; want %s", text, time.Duration(a), err, want)
		}
	}
	for _, text := range []string{"", "d", "-1d", "-5m", "soon", "99999d"} {
		var a ageFlag
		if err := a.Set(text); err == nil {
			t.Errorf("%q was taken for %s", text, time.Duration(a))
		}
	}
}

// Lines come out byte for byte, however the input is cut up.
func TestLines(t *testing.T) {
	long := strings.Repeat("x", 600<<10)
	for name, tt := range map[string]struct {
		in    string
		limit int
		want  []string
		err   string
	}{
		"plain":             {"a\nb\n", 100, []string{"a", "b"}, ""},
		"no last newline":   {"a\nb", 100, []string{"a", "b"}, ""},
		"empty lines":       {"\n\nx\n\n", 100, []string{"", "", "x", ""}, ""},
		"carriage returns":  {"a\r\nb\rc\n", 100, []string{"a\r", "b\rc"}, ""},
		"nothing":           {"", 100, nil, ""},
		"any bytes":         {"\x00\xff\n", 100, []string{"\x00\xff"}, ""},
		"long":              {long + "\nx\n", 1 << 20, []string{long, "x"}, ""},
		"long at the end":   {"x\n" + long, 1 << 20, []string{"x", long}, ""},
		"at the limit":      {"12345\n", 5, []string{"12345"}, ""},
		"over the limit":    {"ok\n123456\n", 5, []string{"ok"}, "line 2 is longer than 5 B"},
		"far over the end":  {"ok\n" + long, 500 << 10, []string{"ok"}, "line 2 is longer"},
		"far over, skipped": {"ok\n" + long + "\nend", -(500 << 10), []string{"ok", "end"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			for _, r := range []io.Reader{strings.NewReader(tt.in), iotest.HalfReader(strings.NewReader(tt.in)), iotest.DataErrReader(strings.NewReader(tt.in))} {
				l := newLineReader(r, max(tt.limit, -tt.limit))
				l.skipLong = tt.limit < 0
				var got []string
				var err error
				for {
					var line []byte
					if line, err = l.next(); err != nil {
						break
					}
					got = append(got, string(line))
				}
				if strings.Join(got, "|") != strings.Join(tt.want, "|") || len(got) != len(tt.want) {
					t.Errorf("%d lines, want %d", len(got), len(tt.want))
				}
				if tt.err == "" && !errors.Is(err, io.EOF) || tt.err != "" && !strings.Contains(err.Error(), tt.err) {
					t.Errorf("ended with %v, want %q", err, tt.err)
				}
				if tt.err == "" && l.read != int64(len(tt.in)) {
					t.Errorf("counted %d bytes of %d", l.read, len(tt.in))
				}
			}
		})
	}
	l := newLineReader(iotest.TimeoutReader(strings.NewReader(long)), 1<<20)
	if _, err := l.next(); !errors.Is(err, iotest.ErrTimeout) || !strings.Contains(err.Error(), "line 1") {
		t.Errorf("a read error came out as %v", err)
	}
}

func TestKeys(t *testing.T) {
	for _, tt := range []struct{ pattern, line, want string }{
		{`^\w+`, "alpha beta", "alpha"},
		{`user=(\w+)`, "x user=bob y", "bob"},
		{`(\d+)-(\d+)`, "12-34", "12"},
		{`nothing`, "alpha", "<null>"},
		{`(x)?a`, "a", "<null>"},
		{`^()`, "abc", ""},
		{"", "abc", "<null>"},
	} {
		f, err := keyFunc(tt.pattern)
		if err != nil {
			t.Fatal(err)
		}
		got := "<null>"
		if key := f([]byte(tt.line)); key != nil {
			got = string(key)
		}
		if got != tt.want {
			t.Errorf("%q on %q: %q, want %q", tt.pattern, tt.line, got, tt.want)
		}
	}
	if _, err := keyFunc("("); exitCode(err) != exitUsage {
		t.Errorf("a broken pattern: %v", err)
	}
	if _, err := parseHeaders([]string{"a=b", "=c"}); exitCode(err) != exitUsage {
		t.Errorf("a header without a name: %v", err)
	}
}

func TestNumbersForPeople(t *testing.T) {
	for got, want := range map[string]string{
		countText(0): "0", countText(999): "999", countText(1000): "1 000", countText(1234567): "1 234 567", countText(-12345): "-12 345",
		bytesText(1023): "1023 B", bytesText(1536): "1.5 KiB", bytesText(5 << 40): "5.00 TiB",
		plural(1, "record"): "1 record", plural(2, "record"): "2 records", plural(2, "entry"): "2 entries",
		timeText(1234567): "1.23ms", timeText(999): "999ns",
	} {
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
