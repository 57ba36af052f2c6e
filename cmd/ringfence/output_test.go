package main

import (
	"bytes"
	"errors"
	"fmt"
	"iter"
	"strings"
	"testing"
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
