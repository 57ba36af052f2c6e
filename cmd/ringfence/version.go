package main

import (
	"cmp"
	"regexp"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// release is the version of this source, and of the next release until it is out.
const release = "0.1.0"

// Set by the linker, -X main.revision=...: a build that does not ask git itself
// (go build -buildvcs=false, which works in a foreign checkout) is told so.
var (
	version  string // instead of release
	revision string // of the source; a trailing + says that it was changed
)

// versionReport is which build this is.
type versionReport struct {
	Version  string `json:"version"`
	Revision string `json:"revision,omitempty"`
	Modified bool   `json:"modified,omitempty"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func thisVersion() versionReport {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		info = &debug.BuildInfo{}
	}
	return versionOf(version, revision, info)
}

// tagged is a module version that somebody gave: neither (devel) nor what Go makes
// of a revision that has no tag.
var tagged = regexp.MustCompile(`^v\d+\.\d+\.\d+(-[a-z]+[.\d]*)?$`)

// versionOf prefers what the linker was told to what Go recorded of the module, and
// both to the constant.
func versionOf(version, revision string, info *debug.BuildInfo) versionReport {
	r := versionReport{Version: release, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	if v := info.Main.Version; tagged.MatchString(v) {
		r.Version = v[1:]
	}
	r.Version = cmp.Or(version, r.Version)
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			r.Revision = s.Value
		case "vcs.modified":
			r.Modified = s.Value == "true"
		}
	}
	if n := len(revision); n > 0 {
		r.Modified = revision[n-1] == '+'
		if r.Revision = revision; r.Modified {
			r.Revision = revision[:n-1]
		}
	}
	return r
}

func (v versionReport) String() string {
	text := "ringfence " + v.Version
	if v.Revision != "" {
		text += " (revision " + v.Revision
		if v.Modified {
			text += ", modified"
		}
		text += ")"
	}
	return text + " " + v.Go + " " + v.Platform
}

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Say which build this is",
		RunE: func(*cobra.Command, []string) error {
			v := thisVersion()
			return a.report(v, func() { a.printf("%s\n", v) })
		},
	}
}
