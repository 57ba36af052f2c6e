package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"
)

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

func (a *app) printf(format string, args ...any) { fmt.Fprintf(a.out, format, args...) }

// table prints rows in columns; the first row is the head.
func (a *app) table(rows ...[]string) {
	w := tabwriter.NewWriter(a.out, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	w.Flush()
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

// countText groups a number's digits in threes.
func countText[T ~int64 | ~uint64 | ~int](n T) string {
	s := fmt.Sprint(n)
	if n < 0 {
		return "-" + countText(-n)
	}
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + " " + s[i:]
	}
	return s
}

func plural[T ~int64 | ~uint64 | ~int](n T, one string) string {
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

func dateText(ms int64) string {
	if ms == 0 {
		return "-"
	}
	return time.UnixMilli(ms).UTC().Format("2006-01-02 15:04:05.000")
}
