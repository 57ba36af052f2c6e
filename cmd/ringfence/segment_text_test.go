package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ringfence/ringfence/segfile"
)

// Whatever state a file is in, verify and accept-loss say which file it is, as it was
// given, what is wrong, at which byte, and what to do next.
func TestWhatIsSaidOfAFile(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	for i := range 2 {
		ok(t, lines(400), "produce", "t", "--create", "--data-dir", dir, "--batch", "4KiB", "--producer-id", fmt.Sprint(i+1))
	}
	file := segments(t, dir)[0]
	good, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	at := bytes.Index(good, []byte("thing number 200"))
	if at < 0 {
		t.Fatal("the record to damage is not in the file")
	}
	var hit frameReport // the frame that is damaged
	for _, line := range strings.Split(strings.TrimSpace(ok(t, "", "segment", "dump", file, "--frames", "--json")), "\n") {
		if f := parse[frameReport](t, line); f.Byte <= int64(at) {
			hit = f
		}
	}
	n, rest := fmt.Sprint(hit.Records), fmt.Sprint(400-hit.Records)
	where := fmt.Sprint("byte ", hit.Byte)
	changed := func(change func(b []byte) []byte) []byte { return change(bytes.Clone(good)) }
	open := func(b []byte) []byte { clear(b[4096:segfile.DataStart]); return b }
	flip := func(at int) func([]byte) []byte { return func(b []byte) []byte { b[at] ^= 1; return b } }
	for name, tt := range map[string]struct {
		b              []byte
		verify, accept int
		says, accepts  []string
	}{
		"whole":      {good, exitOK, exitOK, []string{": ok, fenced, 400 records"}, []string{"no loss to accept: nothing is damaged"}},
		"open":       {changed(open), exitOK, exitOK, []string{": ok, open, 400 records", "next      nothing"}, []string{"no loss to accept: the segment is open"}},
		"never used": {make([]byte, 1<<20), exitIncomplete, exitDamaged, []string{": nothing is in it", "only the metadata knows"}, []string{"was closed with 400 records, offsets [0,400) of range 0 of topic t: they cannot be read", "move it out", "accept-loss "}},
		"torn": {changed(func(b []byte) []byte { return open(b)[:at] }), exitIncomplete, exitIncomplete,
			[]string{": incomplete from " + where + ": " + fmt.Sprint(hit.Base) + " records before that are whole", "tail      ", "bytes from " + where, "next      if no process has the data directory open, open it"},
			[]string{"no loss to accept: the segment is open, and incomplete from " + where, "opening the data directory recovers it"}},
		"damaged": {changed(flip(at)), exitDamaged, exitFailed,
			[]string{": damaged: " + rest + " records can be read, " + n + " cannot", "damage    " + where + ": ", "bytes from " + where + ", " + n + " records from offset " + fmt.Sprint(hit.Base), "next      put a good copy", "accept-loss " + file + "'"},
			[]string{": damaged: " + rest + " records can be read, " + n + " cannot", "damage    " + where + ": ", "Give up " + n + " records for good?"}},
		"its header": {changed(flip(20)), exitDamaged, exitOK,
			[]string{": damaged: all of its 400 records can be read", "damage    byte 20: ", "reads do not need what is damaged"}, []string{"every record can be read"}},
		"all of its beginning": {changed(func(b []byte) []byte { copy(b, bytes.Repeat([]byte("no"), segfile.DataStart)); return b }), exitForeign, exitForeign,
			[]string{"no segment header", "a good copy", "move it out"}, []string{"no segment header", "move it out"}},
		"its header and the copy": {changed(func(b []byte) []byte { clear(b[segfile.DataStart : segfile.DataStart+4096]); return flip(20)(b) }), exitDamaged, exitDamaged,
			[]string{": damaged: nothing of it can be read", "next      put a good copy", "move it out"}, []string{"nothing of it can be read: put a good copy"}},
	} {
		t.Run(name, func(t *testing.T) {
			if err := os.WriteFile(file, tt.b, 0o600); err != nil {
				t.Fatal(err)
			}
			for _, c := range []struct {
				args []string
				code int
				says []string
			}{{[]string{"segment", "verify", file}, tt.verify, tt.says}, {[]string{"segment", "accept-loss", file}, tt.accept, tt.accepts}} {
				r := ringfence(t, "no\n", c.args...)
				all := r.out + r.err
				for _, words := range c.says {
					if !strings.Contains(all, words) {
						t.Errorf("%s: no %q in\n%s", c.args[1], words, all)
					}
				}
				if r.code != c.code || !strings.Contains(all, filepath.Base(file)) || strings.Contains(all, "%!") {
					t.Errorf("%s: exit %d, want %d:\n%s", c.args[1], r.code, c.code, all)
				}
				if what, _, _ := strings.Cut(all, "'ringfence"); strings.Count(what, filepath.Base(file)) != 1 {
					t.Errorf("the file is not named once:\n%s", all)
				}
			}
			if now, err := os.ReadFile(file); err != nil || !bytes.Equal(now, tt.b) {
				t.Errorf("the file was changed: %v", err)
			}
		})
	}
}

// One record is not "1 records", and more are counted as everywhere else.
func TestSegmentDumpCountsInWords(t *testing.T) {
	for n, says := range map[int]string{1: "\t1 record from 0, producer ", 1200: " records from "} {
		dir, _ := filled(t, n)
		file := segments(t, dir)[0]
		if out := ok(t, "", "segment", "dump", file, "--frames"); !strings.Contains(out, says) || strings.Contains(out, "\t1 records") {
			t.Errorf("%d: %q is missing in: %s", n, says, out)
		}
	}
}
