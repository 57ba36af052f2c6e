package main

import (
	"strings"
	"testing"

	"github.com/ringfence/ringfence/engine"
)

// What is not there is not asked to be created, but looked for; in a data directory and
// through a server alike.
func TestWhereToLook(t *testing.T) {
	dir, _ := filled(t, 1)
	look := func(at ...string) {
		t.Helper()
		for _, args := range [][]string{{"topic", "delete", "nope", "--yes"}, {"topic", "describe", "nope"}, {"topic", "split", "nope", "0"}} {
			r := ringfence(t, "", append(args, at...)...)
			if r.code != exitNotFound || strings.Contains(r.err, "create") || !strings.Contains(r.err, "'ringfence topic ls'") {
				t.Errorf("%v: %+v", args, r)
			}
		}
		if r := ringfence(t, "", append([]string{"topic", "split", "t", "77"}, at...)...); r.code != exitNotFound || !strings.Contains(r.err, "'ringfence topic describe t'") {
			t.Errorf("a range: %+v", r)
		}
	}
	look("--data-dir", dir)
	s := serveIt(t, "--data-dir", dir)
	look("--server", s.address(t))

	// The directory of a server is in use, which is said once, with the way to it.
	r := ringfence(t, "", "topic", "ls", "--data-dir", dir)
	if r.code != exitLocked || strings.Count(r.err, "in use") != 1 || !strings.Contains(r.err, dir) || !strings.Contains(r.err, "--server") {
		t.Errorf("in use: %+v", r)
	}
	if code, text := serveRefused(t, "--data-dir", dir); code != exitLocked || strings.Count(text, engine.ErrLocked.Error()) != 1 {
		t.Errorf("served twice: %d %s", code, text)
	}
}
