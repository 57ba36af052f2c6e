// Command tally reads `go test -json` and prints what a person wants to see: a
// line per package as it finishes, the whole output of what failed, the reason of
// each skipped test, and last the counts. It fails if anything failed or no test ran.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"sort"
	"strings"
	"time"
)

// event is one line of `go test -json` (go doc test2json, go help buildjson).
type event struct {
	Action     string
	Package    string
	ImportPath string
	Test       string
	Output     string
	Elapsed    float64
}

type tally struct {
	output  map[string][]string // lines of a package, test or build until its end
	counts  map[string]*[3]int  // passed, failed, skipped tests of a package
	skips   map[string][]string // reason -> tests
	broken  []string            // what failed, in order
	passed  int
	failed  int
	skipped int
	live    bool // a terminal: keep one line that says what runs now
}

func main() {
	t := &tally{output: map[string][]string{}, counts: map[string]*[3]int{}, skips: map[string][]string{}}
	if st, err := os.Stderr.Stat(); err == nil {
		t.live = st.Mode()&os.ModeCharDevice != 0
	}
	start := time.Now()
	in := bufio.NewReaderSize(os.Stdin, 1<<20)
	for {
		line, err := in.ReadBytes('\n')
		if len(line) > 0 {
			var e event
			if json.Unmarshal(line, &e) == nil && e.Action != "" {
				t.take(e)
			} else {
				t.clear()
				os.Stdout.Write(line) // the go command's own words
			}
		}
		if err != nil {
			break
		}
	}
	os.Exit(t.report(time.Since(start)))
}

func (t *tally) take(e event) {
	key := e.Package + " " + e.Test
	switch e.Action {
	case "build-output":
		t.output["build "+e.ImportPath] = append(t.output["build "+e.ImportPath], e.Output)
	case "build-fail":
		t.fail("build of "+e.ImportPath, t.output["build "+e.ImportPath])
	case "run":
		t.show(e.Package, e.Test)
	case "output":
		t.output[key] = append(t.output[key], e.Output)
	case "pass", "fail", "skip":
		if e.Test == "" {
			t.endPackage(e)
		} else {
			t.endTest(e)
		}
		delete(t.output, key)
	}
}

func (t *tally) endTest(e event) {
	c := t.counts[e.Package]
	if c == nil {
		c = new([3]int)
		t.counts[e.Package] = c
	}
	out := t.output[e.Package+" "+e.Test]
	switch e.Action {
	case "pass":
		c[0]++
		t.passed++
	case "fail":
		c[1]++
		t.failed++
		t.fail(short(e.Package)+" "+e.Test, out)
	case "skip":
		c[2]++
		t.skipped++
		reason := skipReason(out)
		t.skips[reason] = append(t.skips[reason], short(e.Package)+" "+e.Test)
	}
}

func (t *tally) endPackage(e event) {
	t.clear()
	c := t.counts[e.Package]
	switch {
	case e.Action == "fail":
		if c == nil || c[1] == 0 { // no test to blame: a panic, a time-out, os.Exit, a build
			t.failed++
			t.fail(short(e.Package)+" (the package as a whole)", t.output[e.Package+" "])
		}
		fmt.Printf("FAIL  %-28s %6.1f s\n", short(e.Package), e.Elapsed)
	case c == nil:
		fmt.Printf("  -   %-28s no tests\n", short(e.Package))
	default:
		fmt.Printf("  ok  %-28s %6.1f s  %d tests\n", short(e.Package), e.Elapsed, c[0])
	}
}

func (t *tally) fail(what string, out []string) {
	t.clear()
	t.broken = append(t.broken, what)
	fmt.Printf("FAIL: %s\n", what)
	for _, line := range out {
		fmt.Print("      ", line)
	}
}

func (t *tally) report(took time.Duration) int {
	t.clear()
	if t.skipped > 0 {
		fmt.Println("\nSkipped:")
		reasons := make([]string, 0, len(t.skips))
		for r := range t.skips {
			reasons = append(reasons, r)
		}
		sort.Strings(reasons)
		for _, r := range reasons {
			fmt.Printf("  %s: %s\n", strings.Join(t.skips[r], ", "), r)
		}
	}
	if len(t.broken) > 0 {
		fmt.Printf("\nFailed:\n  %s\n", strings.Join(t.broken, "\n  "))
	}
	fmt.Printf("\n%d packages in %.0f s\n", len(t.counts), took.Seconds())
	fmt.Printf("%d passed, %d failed, %d skipped\n", t.passed, t.failed, t.skipped)
	if t.passed+t.failed == 0 {
		fmt.Println("no test ran")
		return 1
	}
	if len(t.broken) > 0 {
		return 1
	}
	return 0
}

// skipReason is the text given to t.Skip: what stands between the RUN and SKIP marks.
func skipReason(out []string) string {
	for _, line := range out {
		s := strings.TrimSpace(line)
		if s != "" && !strings.HasPrefix(s, "===") && !strings.HasPrefix(s, "---") {
			if _, text, ok := strings.Cut(s, ": "); ok {
				return text
			}
			return s
		}
	}
	return "no reason given"
}

func short(pkg string) string {
	return strings.TrimPrefix(pkg, "github.com/ringfence/ringfence/")
}

func (t *tally) show(pkg, test string) {
	if t.live {
		fmt.Fprintf(os.Stderr, "\r\x1b[K%d passed, %d failed; now %s %s", t.passed, t.failed, short(pkg), test)
	}
}

func (t *tally) clear() {
	if t.live {
		fmt.Fprint(os.Stderr, "\r\x1b[K")
	}
}
