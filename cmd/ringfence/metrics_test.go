package main

import (
	"regexp"
	"testing"
)

// What is said of a metric stands by itself: they are read sorted by name, or alone, and
// never behind the one that "those" once stood for.
func TestMetricsExplainThemselves(t *testing.T) {
	help := regexp.MustCompile(`help: "([^"]*)"`)
	before := regexp.MustCompile(`^Of |\b(of|from|by|for) (those|these|them|it)[.,]|\bthat they (share|read)\b|\b[Ss]uch\b|Frames after which their`)
	for _, old := range []string{"Bytes of those.", "Of it, what is in use.", "Longest such time.", "Memory that they share.", "Bytes of frames that they read from them."} {
		if !before.MatchString(old) {
			t.Fatalf("%q would not be found", old)
		}
	}
	for _, m := range allMetrics {
		if said := help.FindStringSubmatch(m.desc.String()); said == nil || before.MatchString(said[1]) {
			t.Errorf("what is said of it points at another one: %s", m.desc)
		}
	}
}
