package main

import (
	"runtime"
	"strings"
	"testing"
)

func TestVersion(t *testing.T) {
	word := ok(t, "", "version")
	if !strings.HasPrefix(word, "ringfence ") || !strings.Contains(word, runtime.Version()) || strings.Count(word, "\n") != 1 {
		t.Errorf("version: %q", word)
	}
	if flag := ok(t, "", "--version"); flag != word {
		t.Errorf("--version says %q, version %q", flag, word)
	}
	if v := parse[versionReport](t, ok(t, "", "version", "--json")); v.Version == "" || v.Go != runtime.Version() {
		t.Errorf("version --json: %+v", v)
	}
}
