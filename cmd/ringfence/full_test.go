package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// repeated is an endless supply of numbered lines, cut off after n bytes.
type repeated struct {
	left int
	n    int
	rest []byte
}

func (r *repeated) Read(p []byte) (n int, err error) {
	for n < len(p) && r.left > 0 {
		if len(r.rest) == 0 {
			r.n++
			r.rest = fmt.Appendf(nil, "%08d %s\n", r.n, strings.Repeat("x", 990))
		}
		c := copy(p[n:min(len(p), n+r.left)], r.rest)
		n, r.left, r.rest = n+c, r.left-c, r.rest[c:]
	}
	if n == 0 {
		return 0, fmt.Errorf("the volume took everything: this test needs a smaller one")
	}
	return n, nil
}

// On a full volume appends end with one clear error, what was acknowledged is
// there, and with space everything goes on (scenario D01).
func TestD01FullVolume(t *testing.T) {
	mount := t.TempDir()
	if err := unix.Mount("tmpfs", mount, "tmpfs", 0, "size=256m"); err != nil {
		t.Skipf("cannot mount a small volume, which takes root: %v", err)
	}
	defer func() {
		if err := unix.Unmount(mount, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	}()
	dir := filepath.Join(mount, "data")
	ok(t, "", "topic", "create", "t", "--data-dir", dir)
	var out, errw strings.Builder
	code := run(t.Context(), []string{"produce", "t", "--data-dir", dir}, &repeated{left: 1 << 30}, &out, &errw)
	if code != exitSpace {
		t.Fatalf("a full volume: exit %d, want %d: %s", code, exitSpace, errw.String())
	}
	m := regexp.MustCompile(`([\d ]+) records stored before this: `).FindStringSubmatch(errw.String())
	if m == nil {
		t.Fatalf("the error does not say how much was stored: %s", errw.String())
	}
	acked, err := strconv.Atoi(strings.ReplaceAll(m[1], " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	got := strings.Split(strings.TrimSuffix(ok(t, "", "consume", "t", "--data-dir", dir), "\n"), "\n")
	if acked < 1000 || len(got) < acked {
		t.Errorf("%d records read, %d acknowledged", len(got), acked)
	}
	for i, line := range got {
		if !strings.HasPrefix(line, fmt.Sprintf("%08d ", i+1)) {
			t.Fatalf("record %d is %.20q", i, line)
		}
	}
	// What the reserve kept free is taken by others, to the last byte.
	filler, err := os.Create(filepath.Join(mount, "filler"))
	if err != nil {
		t.Fatal(err)
	}
	defer filler.Close()
	for chunk := make([]byte, 1<<20); err == nil; {
		_, err = filler.Write(chunk)
	}
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
	if r := ringfence(t, "more\n", "produce", "t", "--data-dir", dir); r.code != exitSpace || !strings.Contains(r.err, "free space") {
		t.Errorf("full: exit %d: %s", r.code, r.err)
	}
	if r := ringfence(t, "", "topic", "describe", "t", "--data-dir", dir); r.code != exitOK {
		t.Errorf("describe on a full volume: exit %d: %s", r.code, r.err)
	}
	if n := strings.Count(ok(t, "", "consume", "t", "--group", "g", "--from", "start", "--data-dir", dir), "\n"); n != len(got) {
		t.Errorf("%d records read by a group on a full volume, want %d", n, len(got))
	}
	if err := unix.Mount("tmpfs", mount, "tmpfs", unix.MS_REMOUNT, "size=512m"); err != nil {
		t.Fatal(err)
	}
	ok(t, "more\n", "produce", "t", "--data-dir", dir)
	after := ok(t, "", "consume", "t", "--data-dir", dir)
	if n := strings.Count(after, "\n"); n != len(got)+1 || !strings.HasSuffix(after, "\nmore\n") {
		t.Errorf("%d records after there was space again, want %d", n, len(got)+1)
	}
}
