package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The demo proves what it says: on generated text, small enough for a test.
func TestDemo(t *testing.T) {
	file := filepath.Join(t.TempDir(), "text")
	var b strings.Builder
	for i := range 600_000 {
		fmt.Fprintf(&b, "key%d some text of line %d\n", i%997, i)
	}
	if err := os.WriteFile(file, []byte(b.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	r := ringfence(t, "", "demo", "--file", file, "--dir", t.TempDir(), "--json")
	if r.code != 0 {
		t.Fatalf("exit %d: %s", r.code, r.err)
	}
	rep := parse[struct {
		Records int64    `json:"records"`
		Proved  bool     `json:"proved"`
		Kill    demoKill `json:"kill"`
		Splits  []string `json:"splits"`
		Digest  string   `json:"digest"`
	}](t, r.out)
	switch {
	case !rep.Proved || rep.Records != 600_000 || rep.Digest == "":
		t.Errorf("nothing proved: %s", r.out)
	case rep.Kill.Acked < 300_000 || rep.Kill.Stored < rep.Kill.Acked || rep.Kill.Stored >= 600_000 || rep.Kill.Recovered == 0:
		t.Errorf("the kill was not in the middle: %+v", rep.Kill)
	case len(rep.Splits) == 0:
		t.Error("nothing was split")
	}
}

func TestDemoNeedsEnoughText(t *testing.T) {
	if r := ringfence(t, "a\nb\n", "demo", "--file", "-", "--dir", t.TempDir()); r.code != exitUsage || !strings.Contains(r.err, "has only 2 lines") {
		t.Errorf("two lines: %+v", r)
	}
	if r := ringfence(t, "", "demo", "--file", "/does/not/exist", "--dir", t.TempDir()); r.code != exitNotFound {
		t.Errorf("no file: %+v", r)
	}
}

// The proof sees every way in which records can come back wrong, and accepts what
// is right: the ranges may be read in any order, a key may not.
func TestProofBites(t *testing.T) {
	type rec struct{ key, value string }
	source := []rec{{"a", "1"}, {"b", "1"}, {"a", "2"}, {"", "x"}, {"a", "3"}, {"b", "2"}, {"", "y"}}
	prove := func(recs []rec) *proof {
		p := newProof()
		for _, r := range recs {
			var key []byte
			if r.key != "" {
				key = []byte(r.key)
			}
			p.add(key, []byte(r.value), true)
		}
		return p
	}
	whole := prove(source)
	without := func(i int) []rec {
		return append(append([]rec(nil), source[:i]...), source[i+1:]...)
	}
	swapped := append([]rec(nil), source...)
	swapped[0], swapped[2] = swapped[2], swapped[0]
	interleaved := []rec{{"", "y"}, {"b", "1"}, {"b", "2"}, {"", "x"}, {"a", "1"}, {"a", "2"}, {"a", "3"}}
	for name, tt := range map[string]struct {
		recs      []rec
		beginning bool // of the source
		equal     bool
	}{
		"the source":          {source, true, true},
		"ranges in turn":      {interleaved, true, true},
		"a beginning":         {source[:3], true, false},
		"first of a key gone": {without(0), false, false},
		"last of a key gone":  {without(5), true, false},
		"loose one gone":      {without(3), true, false},
		"twice":               {append(append([]rec(nil), source...), rec{"a", "3"}), false, false},
		"loose one twice":     {append(append([]rec(nil), source...), rec{"", "x"}), false, false},
		"order of a key":      {swapped, false, false},
		"foreign key":         {append(append([]rec(nil), source...), rec{"c", "1"}), false, false},
		"changed value":       {append(without(5), rec{"b", "9"}), false, false},
		"changed loose value": {append(without(6), rec{"", "z"}), true, false},
	} {
		p := prove(tt.recs)
		if err := p.beginningOf(whole); (err == nil) != tt.beginning {
			t.Errorf("%s: beginningOf says %v", name, err)
		}
		if err := p.equal(whole); (err == nil) != tt.equal {
			t.Errorf("%s: equal says %v", name, err)
		}
	}
}

func TestSources(t *testing.T) {
	root := t.TempDir()
	for name, text := range map[string]string{"b.go": "two words\n", "a/a.go": "  _x1 = 2\n\n}\nlast", "c.txt": "not Go\n", "long.go": strings.Repeat("x", longestDemoLine+1) + "\nend\n"} {
		if err := os.MkdirAll(filepath.Join(root, filepath.Dir(name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	files, err := goFiles(root)
	if err != nil || len(files) != 3 {
		t.Fatalf("files %v, %v", files, err)
	}
	var got []string
	read := func(s source) {
		got = nil
		if err := s.each(func(_ int64, line []byte) error {
			got = append(got, fmt.Sprintf("%s|%s", wordOf(line), line))
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	read(source{files: files})
	if want := "_x1|  _x1 = 2;|;|};last|last;two|two words;end|end"; strings.Join(got, ";") != want {
		t.Errorf("got  %s\nwant %s", strings.Join(got, ";"), want)
	}
	read(source{files: files, lines: 2})
	if len(got) != 2 {
		t.Errorf("limited to 2 lines: %v", got)
	}
	read(source{seed: 1, lines: 100})
	first := strings.Join(got, "\n")
	read(source{seed: 1, lines: 100})
	if len(got) != 100 || strings.Join(got, "\n") != first {
		t.Error("the generator does not repeat itself")
	}
	if none, err := goFiles(filepath.Join(root, "missing")); err != nil || len(none) != 0 {
		t.Errorf("a missing tree: %v, %v", none, err)
	}
}
