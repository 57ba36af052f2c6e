package main

import (
	"os"
	"strings"
	"testing"

	"github.com/ringfence/ringfence/segfile"
)

// spoil changes bytes of a file in place, as a bad disk does.
func spoil(t *testing.T, file string, at int64, n int) {
	t.Helper()
	f, err := os.OpenFile(file, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b := make([]byte, n)
	if _, err := f.ReadAt(b, at); err != nil {
		t.Fatal(err)
	}
	for i := range b {
		b[i] ^= 0xff
	}
	if _, err := f.WriteAt(b, at); err != nil {
		t.Fatal(err)
	}
}

// Damage in a segment that a server still writes: everything that tells of it says that
// the segment is closed first, and with what. What it says works, while the server runs,
// and nobody counts the damage any more once its loss was accepted.
func TestDamageInAnOpenSegment(t *testing.T) {
	dir, _ := filled(t, 10)
	s := serveIt(t, "--data-dir", dir)
	in := func(args ...string) []string { return append(args, "--server", s.address(t)) }
	ok(t, lines(300000), in("produce", "t", "--batch", "64KiB")...) // more than is kept in memory for readers of the end
	d := parse[detailReport](t, ok(t, "", in("topic", "describe", "t", "--json")...))
	all := d.All[0].Segments
	last := all[len(all)-1]
	if !last.Active || last.Bytes < 8<<20 {
		t.Fatalf("the last segment is %+v", last)
	}
	spoil(t, last.File, 2<<20, 4096)

	const roll = "'ringfence topic roll t"
	says := func(what string, r ran, code int) {
		t.Helper()
		if text := r.out + r.err; r.code != code || !strings.Contains(text, roll) {
			t.Errorf("%s: exit %d, want %d and %q:\n%s", what, r.code, code, roll, text)
		}
	}
	says("consume", ringfence(t, "", in("consume", "t")...), exitDamaged)
	says("topic describe", ringfence(t, "", in("topic", "describe", "t")...), exitOK)
	says("segment verify", ringfence(t, "", "segment", "verify", last.File), exitDamaged)
	says("segment accept-loss", ringfence(t, "", "segment", "accept-loss", last.File, "--yes"), exitConflict)

	if out := ok(t, "", in("topic", "roll", "t")...); !strings.Contains(out, "closed 1 segment of t") {
		t.Errorf("topic roll: %s", out)
	}
	if list := parse[[]topicReport](t, ok(t, "", in("topic", "ls", "--json")...)); list[0].Damaged != 1 {
		t.Errorf("before its loss is accepted: %+v", list)
	}
	ok(t, "", "segment", "accept-loss", last.File, "--yes")
	if r := ringfence(t, "", in("consume", "t")...); r.code != exitOK || !strings.Contains(r.err, "their loss was accepted") {
		t.Errorf("consume after its loss was accepted: exit %d: %s", r.code, r.err)
	}
	if list := parse[[]topicReport](t, ok(t, "", in("topic", "ls", "--json")...)); list[0].Damaged != 0 {
		t.Errorf("its loss was accepted: %+v", list)
	}
	if out := ok(t, "", in("topic", "describe", "t")...); strings.Contains(out, "segment is damaged at byte") {
		t.Errorf("its loss was accepted: %s", out)
	}
}

// A file that is missing is not given up under a running server, and what is said to do
// can be done.
func TestMissingUnderAServer(t *testing.T) {
	dir, _ := filled(t, 10)
	file := segments(t, dir)[0]
	serveIt(t, "--data-dir", dir).address(t)
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	r := ringfence(t, "", "segment", "accept-loss", file, "--yes")
	if r.code != exitLocked || !strings.Contains(r.err, "stop that process first") || strings.Contains(r.err, "--server") {
		t.Errorf("%+v", r)
	}
	if r := ringfence(t, "", "segment", "verify", "--data-dir", dir); r.code != exitOK || !strings.Contains(r.err, "topic describe") || strings.Contains(r.out, "missing") {
		t.Errorf("verify of a directory that is open: %+v", r)
	}
}

// A header and its copy are gone: the error names the file as it is found from anywhere,
// and what to do.
func TestDestroyedHeader(t *testing.T) {
	dir, _ := filled(t, 10)
	file := segments(t, dir)[0]
	spoil(t, file, segfile.DataStart, 4096) // the copy
	for what, at := range map[string]int64{"its checksum": 20, "all of it": 0} {
		spoil(t, file, at, 64)
		for _, cmd := range []string{"consume", "topic describe"} {
			r := ringfence(t, "", append(strings.Fields(cmd), "t", "--data-dir", dir)...)
			text := r.out + r.err
			if r.code == exitOK && cmd == "consume" || !strings.Contains(text, file) || !strings.Contains(text, "put it back from a copy") || !strings.Contains(text, "segment accept-loss' of its name") {
				t.Errorf("%s, %s: exit %d:\n%s", what, cmd, r.code, text)
			}
		}
		spoil(t, file, at, 64)
	}
}

// Inspect reads less than verify, and calls nothing whole that verify calls damaged.
func TestInspectClaimsNoMoreThanItRead(t *testing.T) {
	for what, at := range map[string]int64{"header": 20, "latch": 4096 + 8, "frames": segfile.DataStart + 8192} {
		dir, _ := filled(t, 3000)
		file := segments(t, dir)[0]
		spoil(t, file, at, 16)
		if r := ringfence(t, "", "segment", "verify", file); r.code != exitDamaged {
			t.Fatalf("%s: verify ends with %d: %s", what, r.code, r.out)
		}
		r := ringfence(t, "", "segment", "inspect", file)
		unread := what == "frames" && r.code == exitOK && strings.Contains(r.out, "records were not read")
		if strings.Contains(r.out, "clean") || r.code != exitDamaged && !unread {
			t.Errorf("%s: inspect ends with %d:\n%s", what, r.code, r.out)
		}
	}
}
