package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"strings"
	"sync"
	"text/tabwriter"
	"time"
)

// heard is standard output, which remembers that a write failed: a report that nobody can
// read is a failure of whatever command made it, and run says so.
type heard struct {
	mu  sync.Mutex // guards all below
	w   io.Writer
	err error
}

func (h *heard) Write(b []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	n, err := h.w.Write(b)
	if h.err == nil {
		h.err = err
	}
	return n, err
}

func (h *heard) failed() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.err
}

// printJSON writes one document, indented for people who look.
func (a *app) printJSON(v any) error {
	enc := json.NewEncoder(a.out)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return fmt.Errorf("writing the report: %w", err)
	}
	return nil
}

// report writes v as JSON when asked to, else calls text.
func (a *app) report(v any, text func()) error {
	if a.json {
		return a.printJSON(v)
	}
	text()
	return nil
}

// tableRows is how many rows are held back to be put in columns together.
const tableRows = 1000

// list prints a list as it comes, without holding all of it: with --json as one array,
// otherwise as tables of a thousand rows under one head. none is said where nothing came.
func list[T any](a *app, all iter.Seq2[T, error], none string, head []string, asJSON func(T) any, row func(T) []string) error {
	n := 0
	rows := [][]string{head}
	for item, err := range all {
		if err != nil {
			if n > 0 && !a.json {
				a.table(rows...)
			}
			return err // what was printed is not all: an array has no end then
		}
		if n++; !a.json {
			if rows = append(rows, row(item)); len(rows) >= tableRows {
				a.table(rows...)
				rows = rows[:0]
			}
			continue
		}
		before := ",\n  "
		if n == 1 {
			before = "[\n  "
		}
		if err := a.element(before, asJSON(item)); err != nil {
			return err
		}
	}
	switch {
	case a.json && n == 0:
		a.printf("[]\n")
	case a.json:
		a.printf("\n]\n")
	case n == 0:
		a.printf("%s\n", none)
	default:
		a.table(rows...)
	}
	return nil
}

// element prints one element of an array.
func (a *app) element(before string, v any) error {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetIndent("  ", "  ")
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return fmt.Errorf("writing the report: %w", err)
	}
	_, err := fmt.Fprintf(a.out, "%s%s", before, bytes.TrimSuffix(b.Bytes(), []byte("\n")))
	return err
}

func (a *app) printf(format string, args ...any) { fmt.Fprintf(a.out, format, args...) }

// table prints rows in columns; the first row is the head.
func (a *app) table(rows ...[]string) {
	w := tabwriter.NewWriter(a.out, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	w.Flush()
}

// none says that there is nothing of a kind to show. Topics and groups that somebody may
// not describe are not told of.
func (a *app) none(what string) string {
	if a.somebody {
		return "no " + what + " that you may see"
	}
	return "no " + what
}

// bytesText is a size as people read it.
func bytesText[T ~int64 | ~uint64 | ~int](n T) string {
	v := float64(n)
	for _, unit := range []string{"B", "KiB", "MiB", "GiB"} {
		if v < 1024 {
			if unit == "B" {
				return fmt.Sprintf("%d B", int64(n))
			}
			return fmt.Sprintf("%.1f %s", v, unit)
		}
		v /= 1024
	}
	return fmt.Sprintf("%.2f TiB", v)
}

// integer is what records, bytes and the like are counted in.
type integer interface {
	~int64 | ~uint64 | ~uint32 | ~uint8 | ~int
}

// countText groups a number's digits in threes.
func countText[T integer](n T) string {
	s := fmt.Sprint(n)
	if n < 0 {
		return "-" + countText(-n)
	}
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + " " + s[i:]
	}
	return s
}

func plural[T integer](n T, one string) string {
	if n == 1 {
		return "1 " + one
	}
	if strings.HasSuffix(one, "y") {
		return countText(n) + " " + strings.TrimSuffix(one, "y") + "ies"
	}
	return countText(n) + " " + one + "s"
}

// timeText keeps three digits of a duration.
func timeText(d time.Duration) string {
	for unit := time.Duration(1); ; unit *= 10 {
		if d < 1000*unit {
			return d.Round(unit).String()
		}
	}
}

// dateText is a moment in UTC, and says that.
func dateText(ms int64) string {
	if ms == 0 {
		return "-"
	}
	return time.UnixMilli(ms).UTC().Format("2006-01-02 15:04:05.000Z")
}
