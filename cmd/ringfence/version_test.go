package main

import (
	"runtime"
	"runtime/debug"
	"strings"
	"testing"
)

func TestVersion(t *testing.T) {
	word := ok(t, "", "version")
	if !strings.HasPrefix(word, "ringfence "+release) || !strings.Contains(word, runtime.Version()) || strings.Count(word, "\n") != 1 {
		t.Errorf("version: %q", word)
	}
	if flag := ok(t, "", "--version"); flag != word {
		t.Errorf("--version says %q, version %q", flag, word)
	}
	if v := parse[versionReport](t, ok(t, "", "version", "--json")); v.Version != release || v.Go != runtime.Version() {
		t.Errorf("version --json: %+v", v)
	}
}

func TestVersionOfABuild(t *testing.T) {
	vcs := []debug.BuildSetting{{Key: "vcs.revision", Value: "abc"}, {Key: "vcs.modified", Value: "true"}}
	rest := " " + runtime.Version() + " " + runtime.GOOS + "/" + runtime.GOARCH
	for name, tt := range map[string]struct {
		version, revision, module string
		vcs                       []debug.BuildSetting
		want                      string
	}{
		"nothing known":         {module: "(devel)", want: release},
		"go build in a tree":    {module: "v0.0.0-20260101000000-abcdefabcdef+dirty", vcs: vcs, want: release + " (revision abc, modified)"},
		"go install of a tag":   {module: "v1.2.3", want: "1.2.3"},
		"of a tag before it":    {module: "v1.2.3-rc.1", want: "1.2.3-rc.1"},
		"make build":            {module: "(devel)", revision: "def", want: release + " (revision def)"},
		"make build, modified":  {module: "(devel)", revision: "def+", want: release + " (revision def, modified)"},
		"a packager's":          {module: "v1.2.3", version: "1.2.3-7debian", want: "1.2.3-7debian"},
		"told and found by git": {revision: "def", vcs: vcs, want: release + " (revision def)"},
	} {
		got := versionOf(tt.version, tt.revision, &debug.BuildInfo{Main: debug.Module{Version: tt.module}, Settings: tt.vcs})
		if want := "ringfence " + tt.want + rest; got.String() != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}
