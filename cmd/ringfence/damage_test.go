package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ringfence/ringfence/segfile"
)

// Damage inside a closed file that a read through a server meets can be seen afterwards:
// in the log once, among the metrics, and in what topic ls and topic describe say.
func TestDamageThroughAServer(t *testing.T) {
	dir, _ := filled(t, 100)
	ok(t, lines(100), "produce", "t", "--data-dir", dir)
	file := segments(t, dir)[0]
	s := serveIt(t, "--data-dir", dir)
	in := func(args ...string) []string { return append(args, "--server", s.address(t)) }
	if text := ok(t, "", in("topic", "ls")...); strings.Contains(text, "segment\n") {
		t.Fatalf("topic ls before there is damage: %s", text)
	}
	f, err := os.OpenFile(file, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b := make([]byte, 12<<10)
	if _, err := f.ReadAt(b, segfile.DataStart); err != nil && err != io.EOF {
		t.Fatal(err)
	}
	for i := range b {
		b[i] ^= 0xff
	}
	if _, err := f.WriteAt(b, segfile.DataStart); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		r := ringfence(t, "", in("consume", "t")...)
		if r.code != exitDamaged || !strings.Contains(r.err, "segment verify "+file) || !strings.Contains(r.err, "accept-loss") || strings.Count(r.err, "at byte") != 1 {
			t.Errorf("reading it: %+v", r)
		}
	}
	list := parse[[]topicReport](t, ok(t, "", in("topic", "ls", "--json")...))
	if list[0].Damaged != 1 {
		t.Errorf("topic ls: %+v", list)
	}
	if text := ok(t, "", in("topic", "describe", "t")...); !strings.Contains(text, "segment 0 of range 0: segment is damaged at byte") {
		t.Errorf("topic describe: %s", text)
	}
	if n := strings.Count(s.log.String(), "segment file is damaged"); n != 1 {
		t.Errorf("logged %d times:\n%s", n, s.log)
	}
	if _, body := get(t, s.adminURL(t)+"/metrics"); !strings.Contains(body, "\nringfence_damage_total 1\n") {
		t.Errorf("not among the metrics:\n%s", body)
	}
}

// The file that topic describe shows can be given to segment verify as it is, which says
// once what is wrong with it.
func TestDescribedFileIsVerified(t *testing.T) {
	dir, _ := filled(t, 100)
	d := parse[detailReport](t, ok(t, "", "topic", "describe", "t", "--data-dir", dir, "--json"))
	file := d.All[0].Segments[0].File
	if out := ok(t, "", "segment", "verify", file); !strings.Contains(out, ": ok, ") {
		t.Errorf("verified: %s", out)
	}
	if text := ok(t, "", "topic", "describe", "t", "--data-dir", dir); !strings.Contains(text, file) || !filepath.IsAbs(file) {
		t.Errorf("%s is not in %s", file, text)
	}
	if err := os.Truncate(file, segfile.DataStart+100); err != nil {
		t.Fatal(err)
	}
	if r := ringfence(t, "", "segment", "verify", file); r.code != exitDamaged || r.err != "" || !strings.HasPrefix(r.out, file+": damaged: 0 records can be read, 100 cannot\n  damage    byte ") {
		t.Errorf("damaged: %+v", r)
	}
	if r := ringfence(t, "", "segment", "verify", file+"x"); r.code != exitNotFound || r.out != "" || strings.Count(r.err, "no such file") != 1 {
		t.Errorf("not there: %+v", r)
	}
}
