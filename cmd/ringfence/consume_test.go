package main

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/ringfence/ringfence/engine"
)

func TestConsumeFrom(t *testing.T) {
	dir, text := filled(t, 1000)
	in := func(args ...string) []string { return append([]string{"consume", "t", "--data-dir", dir}, args...) }

	if got := ok(t, "", in()...); got != text {
		t.Errorf("without --from: %d bytes, want %d", len(got), len(text))
	}
	if got := ok(t, "", in("--from", "end")...); got != "" {
		t.Errorf("from the end: %q", got)
	}
	head := ringfence(t, "", in("--from", "start", "--max", "300")...)
	m := regexp.MustCompile(`300 records; go on with --from (\S+)`).FindStringSubmatch(head.err)
	if m == nil {
		t.Fatalf("no cursor in %q", head.err)
	}
	tail := ok(t, "", in("--from", m[1])...)
	if head.out+tail != text {
		t.Errorf("a cursor after 300 lines splits %d bytes into %d and %d", len(text), len(head.out), len(tail))
	}
	if got := ok(t, "", in("--from", time.Now().Add(time.Hour).Format(time.RFC3339))...); got != "" {
		t.Errorf("from a time to come: %d bytes", len(got))
	}
	if got := ok(t, "", in("--from", "1h")...); got != text {
		t.Errorf("from an hour ago: %d bytes, want %d", len(got), len(text))
	}
	if got := ok(t, "", in("--format", "raw")...); got != strings.ReplaceAll(text, "\n", "") {
		t.Errorf("raw: %d bytes", len(got))
	}
	for _, bad := range []string{"", "yesterday", "12:30", m[1][:len(m[1])-3], m[1] + "AAAA", strings.Repeat("A", 1<<20)} {
		if r := ringfence(t, "", in("--from", bad)...); r.code != exitUsage || r.out != "" {
			t.Errorf("--from %.30q: exit %d, %.200s", bad, r.code, r.err)
		}
	}
	ok(t, "", "topic", "create", "other", "--data-dir", dir)
	if r := ringfence(t, "", "consume", "other", "--data-dir", dir, "--from", m[1]); r.code != exitUsage || !strings.Contains(r.err, "another topic") {
		t.Errorf("a cursor of another topic: %+v", r)
	}
	for _, bad := range [][]string{{"--format", "xml"}, {"--max", "-1"}} {
		if r := ringfence(t, "", in(bad...)...); r.code != exitUsage {
			t.Errorf("%v: %+v", bad, r)
		}
	}
}

func TestConsumeGroups(t *testing.T) {
	dir, text := filled(t, 1000)
	in := func(args ...string) []string {
		return append([]string{"consume", "t", "--data-dir", dir, "--group", "g"}, args...)
	}
	first := ok(t, "", in("--max", "400")...)
	second := ok(t, "", in()...)
	if first+second != text {
		t.Errorf("a group read %d and %d bytes of %d", len(first), len(second), len(text))
	}
	if again := ok(t, "", in()...); again != "" {
		t.Errorf("a finished group got %d bytes again", len(again))
	}
	if other := ok(t, "", "consume", "t", "--data-dir", dir, "--group", "h"); other != text {
		t.Errorf("another group got %d bytes of %d", len(other), len(text))
	}
	if d := parse[detailReport](t, ok(t, "", "topic", "describe", "t", "--data-dir", dir, "--json")); fmt.Sprint(d.Groups) != "[g h]" {
		t.Errorf("groups %v", d.Groups)
	}
	r := ringfence(t, "", in("--json")...)
	if s := parse[consumeReport](t, r.err); s.Records != 0 || s.Cursor == "" || s.Topic != "t" {
		t.Errorf("report %+v", s)
	}
}

// A follower prints what comes later and ends well when it is interrupted.
func TestConsumeFollows(t *testing.T) {
	dir, text := filled(t, 10)
	cmd := process(t.Context(), "consume", "t", "--data-dir", dir, "--follow", "--group", "g")
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	got := ""
	read := bufio.NewReader(out)
	for range 10 {
		line, err := read.ReadString('\n')
		if err != nil {
			t.Fatalf("%v: %s", err, errs.String())
		}
		got += line
	}
	if got != text {
		t.Errorf("followed %q", got)
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v: %s", err, errs.String())
	}
	if again := ok(t, "", "consume", "t", "--data-dir", dir, "--group", "g"); again != "" {
		t.Errorf("the follower's group got %q again: it had not committed", again)
	}
}

// Null, empty and binary are told apart in JSON.
func TestRecordsAsJSON(t *testing.T) {
	var b bytes.Buffer
	binary := []byte{0xff, 0, 1}
	at := time.UnixMilli(1_700_000_000_123)
	headers := []engine.Header{{Key: []byte("n"), Value: nil}, {Key: []byte("b"), Value: binary}}
	if err := writeRecordJSON(&b, 3, 9, at, nil, []byte{}, headers); err != nil {
		t.Fatal(err)
	}
	want := `{"range":3,"offset":9,"time":"2023-11-14T22:13:20.123Z","key":null,"value":"","headers":[{"name":"n","value":null},{"name":"b","value":null,"value_base64":"` + base64.StdEncoding.EncodeToString(binary) + `"}]}` + "\n"
	if b.String() != want {
		t.Errorf("got  %swant %s", b.String(), want)
	}
	b.Reset()
	if err := writeRecordJSON(&b, 0, 0, at, binary, nil, nil); err != nil {
		t.Fatal(err)
	}
	r := parse[recordJSON](t, b.String())
	if r.Key != nil || r.KeyBase64 == "" || r.Value != nil || r.ValueBase64 != "" {
		t.Errorf("binary key, null value: %s", b.String())
	}
}
