package main

import (
	"bytes"
	"errors"
	"fmt"
	"iter"
	"strings"
	"testing"
	"time"
)

// A list is printed as it comes, as one array or in columns, and what was printed before
// an error is no whole list.
func TestList(t *testing.T) {
	type item struct {
		N int `json:"n"`
	}
	broken := errors.New("broken")
	numbers := func(n int, err error) iter.Seq2[int, error] {
		return func(yield func(int, error) bool) {
			for i := range n {
				if !yield(i, nil) {
					return
				}
			}
			if err != nil {
				yield(0, err)
			}
		}
	}
	print := func(asJSON bool, all iter.Seq2[int, error]) (string, error) {
		var out bytes.Buffer
		a := &app{out: &out, json: asJSON}
		err := list(a, all, "none", []string{"HEAD", "N"}, func(n int) any { return item{n} },
			func(n int) []string { return []string{"row", fmt.Sprint(n)} })
		return out.String(), err
	}
	for _, n := range []int{0, 1, 2, tableRows - 2, tableRows - 1, tableRows, 3 * tableRows} {
		out, err := print(true, numbers(n, nil))
		if got := parse[[]item](t, out); err != nil || got == nil || len(got) != n || n > 0 && got[n-1].N != n-1 {
			t.Errorf("%d elements: %d, %v", n, len(got), err)
		}
		out, err = print(false, numbers(n, nil))
		if err != nil || strings.Count(out, "row ") != n || strings.Count(out, "HEAD") != min(n, 1) || (n == 0) != (out == "none\n") {
			t.Errorf("%d rows: %v\n%s", n, err, out)
		}
	}
	var same bytes.Buffer
	if err := (&app{out: &same}).printJSON([]item{{0}, {1}}); err != nil {
		t.Fatal(err)
	}
	if out, _ := print(true, numbers(2, nil)); out != same.String() {
		t.Errorf("%q, at once it is %q", out, same.String())
	}
	if out, err := print(true, numbers(2, broken)); !errors.Is(err, broken) || strings.Contains(out, "]") {
		t.Errorf("%v after %q", err, out)
	}
	if out, err := print(false, numbers(2, broken)); !errors.Is(err, broken) || strings.Count(out, "row ") != 2 {
		t.Errorf("%v after %q", err, out)
	}
	if out, err := print(false, numbers(0, broken)); !errors.Is(err, broken) || out != "" {
		t.Errorf("%v after %q", err, out)
	}
}

// A moment says which time it is in, and a topic without a policy is not bound to one of
// the name none, which a policy can have.
func TestMomentsAndNoPolicy(t *testing.T) {
	if got := dateText(1764553384126); got != "2025-12-01 01:43:04.126Z" {
		t.Error(got)
	}
	dir, _ := filled(t, 10)
	in := func(args ...string) []string { return append(args, "--data-dir", dir) }
	describe := func() string {
		head, _, _ := strings.Cut(ok(t, "", in("topic", "describe", "t")...), "\n")
		return head
	}
	if head := describe(); !strings.HasSuffix(head, "Z, no policy") {
		t.Error(head)
	}
	ok(t, "", in("topic", "policy", "set", "none")...)
	ok(t, "", in("topic", "policy", "bind", "t", "none")...)
	if head := describe(); !strings.HasSuffix(head, "Z, policy none") {
		t.Error(head)
	}
	// A file is called what it was called by who asked, and a range by its number alone.
	file := segments(t, dir)[0]
	if r := parse[inspectReport](t, ok(t, "", "segment", "inspect", file, "--json")); r.File != file {
		t.Errorf("%s is reported as %s", file, r.File)
	}
	if out := ok(t, "", "segment", "inspect", file); !strings.HasPrefix(out, file+"\n") {
		t.Errorf("%s is reported as %s", file, out)
	}
	ok(t, "", in("topic", "split", "t", "0")...)
	for seq, says := range map[string]string{"0": `topic "t", range 0: the range is sealed: `, "9": `topic "t", range 9: no such range: `} {
		if r := ringfence(t, "", in("topic", "split", "t", seq)...); !strings.HasPrefix(r.err, "ringfence: "+says) {
			t.Errorf("range %s: %s", seq, r.err)
		}
	}
}

// Times in a log of JSON have their unit, as in one of text.
func TestTimesInALogOfJSON(t *testing.T) {
	for _, format := range []string{"text", "json"} {
		var said strings.Builder
		log, err := (&serveFlags{logLevel: "info", logFormat: format}).logger(&app{err: &said})
		if err != nil {
			t.Fatal(err)
		}
		log.Info("opened", "took", 1500*time.Millisecond, "records", 7)
		if out := strings.ReplaceAll(said.String(), `"`, ""); !strings.Contains(strings.ReplaceAll(out, ":", "="), "took=1.5s") {
			t.Errorf("%s: %s", format, said.String())
		}
	}
}
