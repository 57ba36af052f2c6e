package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ringfence/ringfence/segfile"
)

// Any flipped byte of a closed file is found and named, for 200 random positions.
func TestFlippedBytesAreFound(t *testing.T) {
	dir, _ := filled(t, 3000)
	file := segments(t, dir)[0]
	good, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if r := parse[[]verifyReport](t, ok(t, "", "segment", "verify", file, "--json")); !r[0].OK || r[0].Records != 3000 || r[0].Latch != "fenced" {
		t.Fatalf("the file as it was written: %+v", r)
	}
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range 200 {
		at := rng.IntN(len(good))
		if i < 4 {
			at = i * 4096 // header and each latch slot, whatever the dice say
		}
		bad := []byte(string(good))
		bad[at] ^= 1 << rng.IntN(8)
		if err := os.WriteFile(file, bad, 0o600); err != nil {
			t.Fatal(err)
		}
		r := ringfence(t, "", "segment", "verify", file, "--json")
		rep := parse[[]verifyReport](t, r.out)[0]
		if r.code != exitDamaged && r.code != exitForeign || rep.OK {
			t.Fatalf("byte %d of %d flipped: exit %d, %s%s", at, len(good), r.code, r.out, r.err)
		}
		if r.code == exitDamaged && !strings.Contains(r.err, filepath.Base(file)) {
			t.Errorf("byte %d: the error does not name the file: %s", at, r.err)
		}
		for _, p := range rep.Problems {
			if p.Byte/4096 == int64(at)/4096 {
				rep.Problems = nil
				break
			}
		}
		if r.code == exitDamaged && rep.Problems != nil && !near(rep.Problems, int64(at)) {
			t.Errorf("byte %d flipped, reported %+v", at, rep.Problems)
		}
	}
	if err := os.WriteFile(file, good, 0o600); err != nil {
		t.Fatal(err)
	}
	ok(t, "", "segment", "verify", file)
}

// near: a frame's payload is checked as a whole, so its damage is reported at the
// frame's start.
func near(problems []problemReport, at int64) bool {
	for _, p := range problems {
		if p.Byte <= at && at < p.Byte+(512<<10) {
			return true
		}
	}
	return false
}

func TestSegmentInspectAndDump(t *testing.T) {
	dir, text := filled(t, 500)
	file := segments(t, dir)[0]
	r := parse[inspectReport](t, ok(t, "", "segment", "inspect", file, "--json"))
	if r.Topic != "t" || r.Latch != "fenced" || r.State != "fenced" || r.End-r.Base != 500 || r.Fenced == nil || r.Producer != 1 {
		t.Errorf("inspect: %+v", r)
	}
	if out := ok(t, "", "segment", "inspect", file); !strings.Contains(out, "topic t") || !strings.Contains(out, "keys      [0%,100%)") || !strings.Contains(out, "offsets [0,500)") || !strings.Contains(out, "records were not read") || strings.Contains(out, "clean") {
		t.Errorf("inspect: %s", out)
	}
	out := strings.TrimSuffix(ok(t, "", "segment", "dump", file, "--json"), "\n")
	var got strings.Builder
	for i, line := range strings.Split(out, "\n") {
		rec := parse[recordJSON](t, line)
		if rec.Offset != uint64(i) || *rec.Key != strings.Fields(*rec.Value)[0] {
			t.Fatalf("record %d: %s", i, line)
		}
		got.WriteString(*rec.Value + "\n")
	}
	if got.String() != text {
		t.Errorf("dump gave %d bytes of %d", got.Len(), len(text))
	}
	if out := ok(t, "", "segment", "dump", file); strings.Count(out, "\n") != 500 || !strings.Contains(out, `"user0"`) {
		t.Errorf("dump as text: %.300s", out)
	}
	if out := ok(t, "", "segment", "dump", file, "--frames"); !strings.Contains(out, "mark") || !strings.Contains(out, " from 0, producer ") {
		t.Errorf("dump of frames: %s", out)
	}
}

// Damage in the middle: dump steps over it, reads fail, and after accept-loss they
// skip it and say so.
func TestDamageAndAcceptedLoss(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	for i := range 3 { // several frames in one file, and something behind the damage
		ok(t, lines(400), "produce", "t", "--create", "--data-dir", dir, "--batch", "4KiB", "--producer-id", fmt.Sprint(i+1))
	}
	file := segments(t, dir)[0]
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	at := strings.Index(string(b), "thing number 200\n")
	if at < 0 {
		at = strings.Index(string(b), "thing number 200")
	}
	if at < 0 {
		t.Fatal("the record to damage is not in the file")
	}
	b[at] ^= 1
	if err := os.WriteFile(file, b, 0o600); err != nil {
		t.Fatal(err)
	}
	d := ringfence(t, "", "segment", "dump", file, "--json")
	dumped := strings.Count(d.out, "\n")
	if d.code != exitDamaged || dumped == 0 || dumped >= 400 || strings.Contains(d.out, "thing number 200\"") {
		t.Errorf("dump of a damaged file: exit %d, %d records, %s", d.code, dumped, d.err)
	}
	r := ringfence(t, "", "consume", "t", "--data-dir", dir)
	if r.code != exitDamaged || !strings.Contains(r.err, filepath.Base(file)) {
		t.Errorf("reading damage: exit %d: %s", r.code, r.err)
	}
	if r := ringfence(t, "no\n", "segment", "accept-loss", file); r.code != exitFailed {
		t.Errorf("an answer of no: exit %d: %s", r.code, r.err)
	}
	holes := parse[[]holeReport](t, ok(t, "", "segment", "accept-loss", file, "--yes", "--json"))
	if len(holes) != 1 || !holes[0].Accepted || holes[0].Records == 0 {
		t.Fatalf("accepted %+v", holes)
	}
	r = ringfence(t, "", "consume", "t", "--data-dir", dir)
	if want := 1200 - int(holes[0].Records); r.code != exitOK || strings.Count(r.out, "\n") != want || !strings.Contains(r.err, "their loss was accepted") {
		t.Errorf("after accepting %d: exit %d, %d records, want %d: %s", holes[0].Records, r.code, strings.Count(r.out, "\n"), want, r.err)
	}
	checkAccepted(t, file, holes[0].Records)
	if out := ok(t, "", "segment", "accept-loss", segments(t, dir)[1]); !strings.Contains(out, "no loss to accept") {
		t.Errorf("a whole file: %s", out)
	}
}

// checkAccepted holds what the commands say of a file against an accepted loss.
func checkAccepted(t *testing.T, file string, records uint64) {
	t.Helper()
	if rep := parse[[]verifyReport](t, ok(t, "", "segment", "verify", file, "--json"))[0]; !rep.Accepted || rep.State != "damaged" || len(rep.Problems) == 0 || !rep.Holes[0].Accepted {
		t.Errorf("verify --json: %+v", rep)
	}
	given := fmt.Sprintf("the loss of %s was accepted", plural(records, "record"))
	if out := ok(t, "", "segment", "verify", file); !strings.Contains(out, given) {
		t.Errorf("verify: %s", out)
	}
	if out := ok(t, "", "segment", "accept-loss", file); !strings.Contains(out, "already on record") || !strings.Contains(out, given) {
		t.Errorf("accept-loss again: %s", out)
	}
	if rep := parse[inspectReport](t, ok(t, "", "segment", "inspect", file, "--json")); !rep.Accepted || len(rep.Holes) != 1 || !rep.Holes[0].Accepted {
		t.Errorf("inspect --json: %+v", rep)
	}
	ok(t, "", "segment", "inspect", file)
	ok(t, "", "segment", "dump", file)
}

// A closed file that was cut short is damaged until its loss is accepted; damage that
// comes on top is not accepted with it.
func TestAcceptedTruncation(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	for i := range 3 {
		ok(t, lines(400), "produce", "t", "--create", "--data-dir", dir, "--batch", "4KiB", "--producer-id", fmt.Sprint(i+1))
	}
	file := segments(t, dir)[0]
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	at := strings.Index(string(b), "thing number 200")
	if at < 0 {
		t.Fatal("the record to cut at is not in the file")
	}
	if err := os.Truncate(file, int64(at)); err != nil {
		t.Fatal(err)
	}
	for _, cmd := range []string{"verify", "inspect"} {
		if r := ringfence(t, "", "segment", cmd, file); r.code != exitDamaged {
			t.Errorf("%s of a cut file: exit %d: %s", cmd, r.code, r.err)
		}
	}
	holes := parse[[]holeReport](t, ok(t, "", "segment", "accept-loss", file, "--yes", "--json"))
	if len(holes) != 1 || holes[0].Records == 0 {
		t.Fatalf("accepted %+v", holes)
	}
	r := ringfence(t, "", "consume", "t", "--data-dir", dir)
	if want := 1200 - int(holes[0].Records); r.code != exitOK || strings.Count(r.out, "\n") != want || !strings.Contains(r.err, "their loss was accepted") {
		t.Errorf("after accepting %d: exit %d, %d records, want %d: %s", holes[0].Records, r.code, strings.Count(r.out, "\n"), want, r.err)
	}
	checkAccepted(t, file, holes[0].Records)

	first := strings.Index(string(b), "thing number 3")
	b[first] ^= 1
	if err := os.WriteFile(file, b[:at], 0o600); err != nil {
		t.Fatal(err)
	}
	v := ringfence(t, "", "segment", "verify", file, "--json")
	if rep := parse[[]verifyReport](t, v.out)[0]; v.code != exitDamaged || rep.Accepted || len(rep.Holes) != 2 || rep.Holes[0].Accepted || !rep.Holes[1].Accepted {
		t.Errorf("more damage: exit %d, %+v", v.code, rep)
	}
}

// Where no record is lost there is nothing to accept, but the damage is named.
func TestNoLossToAccept(t *testing.T) {
	dir, _ := filled(t, 50)
	file := segments(t, dir)[0]
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	b[4096+100] ^= 1 // one of two copies of the latch
	if err := os.WriteFile(file, b, 0o600); err != nil {
		t.Fatal(err)
	}
	if out := ok(t, "", "segment", "accept-loss", file); !strings.Contains(out, "every record can be read") || !strings.Contains(out, "  damage    byte ") {
		t.Errorf("a damaged latch: %s", out)
	}
	if r := ringfence(t, "", "segment", "verify", file); r.code != exitDamaged {
		t.Errorf("verify of a damaged latch: exit %d: %s", r.code, r.err)
	}
}

// An open segment that a kill left has its own exit code, and opening mends it.
func TestIncompleteTail(t *testing.T) {
	dir, _ := filled(t, 2000)
	file := segments(t, dir)[0]
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var cut int64 // inside a frame
	for _, line := range strings.Split(strings.TrimSpace(ok(t, "", "segment", "dump", file, "--frames", "--json")), "\n") {
		if f := parse[frameReport](t, line); f.Length > 8192 {
			cut = f.Byte + 4096
		}
	}
	if cut == 0 {
		t.Fatal("no frame to cut in two")
	}
	clear(b[4096:segfile.DataStart]) // never fenced
	if err := os.WriteFile(file, b[:cut], 0o600); err != nil {
		t.Fatal(err)
	}
	r := ringfence(t, "", "segment", "verify", file, "--json")
	if rep := parse[[]verifyReport](t, r.out)[0]; r.code != exitIncomplete || rep.Latch != "open" || rep.Cut == nil {
		t.Errorf("a torn tail: exit %d, %+v, %s", r.code, rep, r.err)
	}
	if r := ringfence(t, "", "segment", "inspect", file); r.code != exitIncomplete {
		t.Errorf("inspect of a torn tail: exit %d, %s", r.code, r.err)
	}
}

func TestNotASegment(t *testing.T) {
	dir, _ := filled(t, 10)
	file := segments(t, dir)[0]
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	other := strings.Replace(file, "00000000-00000000", "00000007-00000007", 1)
	if err := os.WriteFile(other, b, 0o600); err != nil {
		t.Fatal(err)
	}
	elsewhere := filepath.Join(t.TempDir(), "x.seg")
	if err := os.WriteFile(elsewhere, b, 0o600); err != nil {
		t.Fatal(err)
	}
	text := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(text, []byte("no segment\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	name := filepath.Base(file)
	for what, tt := range map[string]struct {
		file string
		code int
		says []string
	}{
		"under another name": {other, exitForeign, []string{"the header says that it is", name}},
		"somewhere else":     {elsewhere, exitForeign, []string{elsewhere, "copy of segment 0 of range 0 of topic t", name}},
		"something else":     {text, exitForeign, []string{"does not begin like one"}},
		"missing":            {file + "x", exitNotFound, []string{"no such file"}},
		"a directory":        {dir, exitUsage, []string{"is a directory"}},
	} {
		for _, cmd := range []string{"inspect", "verify", "dump"} {
			r := ringfence(t, "", "segment", cmd, tt.file)
			if r.code != tt.code {
				t.Errorf("%s, segment %s: exit %d, want %d: %s", what, cmd, r.code, tt.code, r.err)
			}
			for _, words := range tt.says {
				if !strings.Contains(r.err, words) {
					t.Errorf("%s, segment %s: said %q, want %q", what, cmd, r.err, words)
				}
			}
		}
	}
	// What it says to do works.
	_, do, _ := strings.Cut(ringfence(t, "", "segment", "verify", elsewhere).err, "mkdir -p /tmp/x/")
	at := filepath.Join(t.TempDir(), strings.Fields(do)[0], name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(at), 0o700), os.WriteFile(at, b, 0o600)); err != nil {
		t.Fatal(err)
	}
	ok(t, "", "segment", "verify", at)
	// Several files: every one is looked at, and the gravest counts.
	r := ringfence(t, "", "segment", "verify", file, other)
	if r.code != exitForeign || !strings.Contains(r.out, "ok, fenced") {
		t.Errorf("two files: %+v", r)
	}
}
