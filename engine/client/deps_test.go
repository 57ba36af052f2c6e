package client

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// A program that only talks to a server links no storage, no io_uring and no Raft.
func TestLinksNoEngine(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	const module = "github.com/ringfence/ringfence/"
	deps := strings.Fields(string(out))
	if !slices.Contains(deps, module+"engine/wire") {
		t.Fatalf("the list of dependencies is wrong: %q", deps)
	}
	for _, far := range []string{"ring", "segfile", "segfile/disk", "cp/host", "engine/store", "engine"} {
		if slices.Contains(deps, module+far) {
			t.Errorf("the client links %s", far)
		}
	}
}
