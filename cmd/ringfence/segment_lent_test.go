package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/ringfence/ringfence/segfile"
	"github.com/ringfence/ringfence/segfile/record"
)

// A batch that was written from memory of its producer and is not what its header says is
// told by verify, dump and accept-loss with file and byte, and that readers skip it: they do,
// and say so, whether its loss was accepted or not.
func TestDamagedLentFrame(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	for i := range 2 {
		ok(t, lines(400), "produce", "t", "--create", "--data-dir", dir, "--batch", "4KiB", "--producer-id", fmt.Sprint(i+1))
	}
	file := segments(t, dir)[0]
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	at := bytes.Index(b, []byte("thing number 200"))
	frame := bytes.LastIndex(b[:at], []byte("RFrm"))
	salt, err := strconv.ParseUint(parse[inspectReport](t, ok(t, "", "segment", "inspect", file, "--json")).Salt, 16, 64)
	if err != nil {
		t.Fatal(err)
	}
	h, err := record.ParseHead(b[frame:], salt)
	if err != nil {
		t.Fatal(err)
	}
	h.Flags = record.FlagLent
	h.Put(b[frame:], salt)
	clear(b[4096:segfile.DataStart]) // the next one to open the directory closes it, with a footer of these frames
	put := func() {
		t.Helper()
		if err := os.WriteFile(file, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put()
	if out := ok(t, "", "consume", "t", "--data-dir", dir); strings.Count(out, "\n") != 800 {
		t.Fatalf("%d records", strings.Count(out, "\n"))
	}
	if out := ok(t, "", "segment", "verify", file); !strings.Contains(out, ": ok, fenced, 400 records") {
		t.Fatalf("a whole one: %s", out)
	}
	if out := ok(t, "", "segment", "dump", file, "--frames"); strings.Count(out, "lent: ") != 1 {
		t.Errorf("dump --frames: %s", out)
	}
	if b, err = os.ReadFile(file); err != nil {
		t.Fatal(err)
	}
	b[at] ^= 1
	put()

	n, rest := fmt.Sprint(h.Count), fmt.Sprint(400-h.Count)
	where := fmt.Sprint("byte ", frame)
	says := func(code int, in string, args []string, words ...string) {
		t.Helper()
		r := ringfence(t, in, args...)
		if r.code != code {
			t.Errorf("%s: exit %d, want %d", args, r.code, code)
		}
		for _, w := range words {
			if !strings.Contains(r.out+r.err, w) {
				t.Errorf("%s: no %q in\n%s%s", args, w, r.out, r.err)
			}
		}
	}
	says(exitDamaged, "", []string{"segment", "verify", file}, file+": damaged: "+rest+" records can be read, "+n+" cannot", "damage    "+where+": the payload of a lent frame",
		n+" records from offset "+fmt.Sprint(h.Base)+": its producer's memory was written from: reads skip it", "next      put a good copy", "it can stay: reads skip what is lost")
	rep := parse[[]verifyReport](t, ringfence(t, "", "segment", "verify", file, "--json").out)[0]
	if rep.OK || rep.Accepted || len(rep.Problems) != 1 || rep.Problems[0].Byte != int64(frame) || len(rep.Holes) != 1 || !rep.Holes[0].Lent || rep.Records != uint64(400-h.Count) {
		t.Errorf("verify --json: %+v", rep)
	}
	says(exitDamaged, "", []string{"segment", "dump", file}, "frame at "+where+" is damaged: "+n+" records from offset "+fmt.Sprint(h.Base)+" missing here, which reads skip", "thing number 399")
	says(exitOK, "", []string{"segment", "inspect", file}, "fenced")
	skipped := "range 0: " + n + " offsets from " + fmt.Sprint(h.Base) + " on are gone"
	says(exitOK, "", []string{"consume", "t", "--data-dir", dir}, skipped, "their producer damaged them")
	says(exitFailed, "no\n", []string{"segment", "accept-loss", file}, "damage    "+where, "Give up "+n+" records for good?")
	says(exitOK, "", []string{"segment", "accept-loss", file, "--yes"}, "the loss of "+n+" records is on record; reads skipped them before")
	checkAccepted(t, file, uint64(h.Count))
	says(exitOK, "", []string{"consume", "t", "--data-dir", dir}, skipped)
}
