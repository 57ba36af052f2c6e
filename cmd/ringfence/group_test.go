package main

import (
	"strings"
	"testing"
	"time"

	"github.com/ringfence/ringfence/engine"
)

func TestGroups(t *testing.T) {
	dir, text := filled(t, 1000)
	in := func(args ...string) []string { return append(args, "--data-dir", dir) }
	if out := ok(t, "", in("group", "list")...); !strings.Contains(out, "no groups") {
		t.Errorf("without a group: %s", out)
	}
	ok(t, "", in("consume", "t", "--group", "g", "--max", "400")...)
	list := parse[[]groupReport](t, ok(t, "", in("group", "list", "--json")...))
	if len(list) != 1 || list[0].Group != "g" || list[0].Topic != "t" || list[0].Lag != 600 || list[0].Behind == nil {
		t.Errorf("group list: %+v", list)
	}
	if out := ok(t, "", in("group", "list", "t")...); !strings.Contains(out, "BEHIND") || !strings.Contains(out, "600") {
		t.Errorf("group list: %s", out)
	}
	g := parse[groupReport](t, ok(t, "", in("group", "describe", "t", "g", "--json")...))
	if len(g.Ranges) != 1 || g.Ranges[0].Offset != 400 || g.Ranges[0].End != 1000 || g.Ranges[0].Lag != 600 {
		t.Errorf("group describe: %+v", g)
	}
	if out := ok(t, "", in("group", "describe", "t", "g")...); !strings.Contains(out, "lag 600 records") || !strings.Contains(out, "[400,1000)") {
		t.Errorf("group describe: %s", out)
	}

	// A move says what it skips and what is read again, asks, and is what it said.
	for _, tt := range []struct {
		to                  string
		offset, skip, again uint64
	}{
		{"start", 0, 0, 400}, {"end", 1000, 1000, 0}, {"1h", 0, 0, 1000}, {g.Cursor, 400, 400, 0},
		{time.Now().Add(-time.Hour).Format(time.RFC3339), 0, 0, 400},
	} {
		if r := ringfence(t, "no\n", in("group", "reset", "t", "g", "--to", tt.to)...); r.code != exitFailed || !strings.Contains(r.err, "nothing was changed") ||
			!strings.Contains(r.err, "skips "+plural(tt.skip, "record")+" and reads "+plural(tt.again, "record")+" again") {
			t.Errorf("--to %.20s with a no for an answer: %+v", tt.to, r)
		}
		r := parse[resetReport](t, ok(t, "g\n", in("group", "reset", "t", "g", "--to", tt.to, "--json")...))
		if r.Skipped != tt.skip || r.Again != tt.again || r.After.Ranges[0].Offset != tt.offset || r.After.Lag != 1000-tt.offset {
			t.Errorf("--to %.20s: %+v, want %+v", tt.to, r, tt)
		}
	}
	if out := ok(t, "", in("group", "reset", "t", "g", "--to", "end", "--yes")...); !strings.Contains(out, "skips 1 000 records") || !strings.Contains(out, "[1000,1000)") {
		t.Errorf("group reset: %s", out)
	}
	if out := ok(t, "", in("consume", "t", "--group", "g")...); out != "" {
		t.Errorf("%d bytes behind the end", len(out))
	}

	ok(t, "", in("topic", "create", "other")...)
	for _, tt := range []struct {
		args []string
		code int
		says string
	}{
		{in("group", "reset", "t", "g", "--yes"), exitUsage, "where to?"},
		{in("group", "reset", "t", "g", "--to", "yesterday", "--yes"), exitUsage, `--to is "yesterday"`},
		{in("group", "reset", "t", "g", "--to", time.Now().Add(time.Hour).Format(time.RFC3339), "--yes"), exitUsage, "no record of topic t is of"},
		{in("group", "reset", "t", "h", "--to", "start", "--yes"), exitNotFound, `group "h"`},
		{in("group", "reset", "other", "g", "--to", "start", "--yes"), exitNotFound, `group "g"`},
		{in("group", "reset", "t", "g", "--to", g.Cursor[:len(g.Cursor)-2], "--yes"), exitUsage, "cursor"},
		{in("group", "describe", "t", "h"), exitNotFound, `group "h"`},
		{in("group", "describe", "nope", "g"), exitNotFound, `"nope"`},
		{in("group", "list", "nope"), exitNotFound, `"nope"`},
		{in("group", "delete", "t", "h", "--yes"), exitNotFound, `group "h"`},
		{in("group", "delete", "t", "g"), exitUsage, "nothing was changed"},
	} {
		if r := ringfence(t, "", tt.args...); r.code != tt.code || !strings.Contains(r.err, tt.says) {
			t.Errorf("%v: exit %d, want %d with %q: %s", tt.args, r.code, tt.code, tt.says, r.err)
		}
	}
	if g := parse[groupReport](t, ok(t, "", in("group", "describe", "t", "g", "--json")...)); g.Lag != 0 {
		t.Errorf("what was refused moved the group: %+v", g)
	}
	if out := ok(t, "g\n", in("group", "delete", "t", "g")...); !strings.Contains(out, "deleted group g of topic t") {
		t.Errorf("group delete: %s", out)
	}
	if out := ok(t, "", in("consume", "t", "--group", "g")...); out != text {
		t.Errorf("a group that was deleted got %d bytes of %d", len(out), len(text))
	}
}

// What a move skips and reads again is counted range by range.
func TestMoved(t *testing.T) {
	at := func(lags ...uint64) (list []engine.GroupRange) {
		for i, n := range lags {
			list = append(list, engine.GroupRange{Range: uint32(i), Lag: n})
		}
		return list
	}
	for _, tt := range []struct {
		before, after  []engine.GroupRange
		skipped, again uint64
	}{
		{at(5), at(5), 0, 0}, {at(5), at(2), 3, 0}, {at(2), at(5), 0, 3}, {at(5, 2), at(2, 5), 3, 3},
		{at(5, 7), at(5), 7, 0}, {at(5), at(5, 7), 0, 7}, {nil, at(1), 0, 1}, {at(1), nil, 1, 0},
	} {
		if s, g := moved(tt.before, tt.after); s != tt.skipped || g != tt.again {
			t.Errorf("%v to %v: skips %d, reads %d again", tt.before, tt.after, s, g)
		}
	}
}
