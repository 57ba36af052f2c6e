package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ringfence/ringfence/engine"
)

// A segment file that is missing: every command says so, reads fail until its loss is
// accepted, and then skip just what was in it and say why.
func TestMissingSegmentFile(t *testing.T) {
	dir, first := filled(t, 100)
	in := func(args ...string) []string { return append(args, "--data-dir", dir) }
	for range 2 {
		ok(t, lines(100), in("produce", "t")...)
	}
	file := segments(t, dir)[1]
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if r := ringfence(t, "", in("consume", "t")...); r.code != exitDamaged || !strings.Contains(r.err, "is missing, with records [100,200): put it back") {
		t.Errorf("reading it: %+v", r)
	}
	list := parse[[]topicReport](t, ok(t, "", in("topic", "ls", "--json")...))
	if list[0].Damaged != 1 || list[0].Records != 200 {
		t.Errorf("topic ls: %+v", list)
	}
	if text := ok(t, "", in("topic", "ls")...); !strings.Contains(text, "DAMAGE") || !strings.Contains(text, "1 segment\n") {
		t.Errorf("topic ls: %s", text)
	}
	if text := ok(t, "", in("topic", "describe", "t")...); !strings.Contains(text, "LOST "+file) || !strings.Contains(text, "segment 1 of range 0: ") ||
		!strings.Contains(text, "reads of 100 records fail") {
		t.Errorf("topic describe: %s", text)
	}

	// Of all the files one is missing, and it alone is damage.
	r := ringfence(t, "", in("segment", "verify")...)
	if r.code != exitDamaged || !strings.Contains(r.out, file+": missing: 100 records cannot be read") || strings.Count(r.out, ": ok, fenced") != 2 ||
		!strings.Contains(r.out, "2 files checked, 1 missing") {
		t.Errorf("segment verify of the directory: %+v", r)
	}
	for _, tt := range []struct {
		in, file string
		code     int
		says     string
	}{
		{"no\n", file, exitFailed, "Give up 100 records of topic t, offsets [100,200) of range 0"},
		{"", strings.Replace(file, "-00000001", "-00000009", 1), exitNotFound, "the metadata knows no such segment"},
		{"", filepath.Join(dir, "x.seg"), exitNotFound, "not named like a segment file"},
	} {
		if r := ringfence(t, tt.in, "segment", "accept-loss", tt.file); r.code != tt.code || !strings.Contains(r.err, tt.says) {
			t.Errorf("accept-loss %s: %+v, want %d with %q", tt.file, r, tt.code, tt.says)
		}
	}
	holes := parse[[]holeReport](t, ok(t, "yes\n", "segment", "accept-loss", file, "--json"))
	if len(holes) != 1 || holes[0] != (holeReport{Offset: 100, Records: 100, Accepted: true}) {
		t.Errorf("accepted %+v", holes)
	}
	r = ringfence(t, "", in("consume", "t")...)
	if r.code != 0 || r.out != first+lines(100) || !strings.Contains(r.err, "range 0: 100 offsets from 100 on are gone: they were damaged or missing, and their loss was accepted") {
		t.Errorf("after it was accepted: exit %d, %d bytes: %s", r.code, len(r.out), r.err)
	}
	if out := ok(t, "", "segment", "accept-loss", file); !strings.Contains(out, "already on record: the loss of 100 records") {
		t.Errorf("again: %s", out)
	}
	reps := parse[[]verifyReport](t, ok(t, "", in("segment", "verify", "--json")...))
	if len(reps) != 3 || reps[2].File != file || !reps[2].Accepted || !reps[2].OK || reps[0].Accepted {
		t.Errorf("segment verify of the directory: %+v", reps)
	}
	d := parse[detailReport](t, ok(t, "", in("topic", "describe", "t", "--json")...))
	if s := d.All[0].Segments[1]; d.Damaged != 0 || !s.Missing || s.Lost != 100 || s.GivenUp != 100 || s.Damage == "" {
		t.Errorf("described as %+v", s)
	}

	// A file that the metadata does not know is set aside, and told of.
	b, err := os.ReadFile(segments(t, dir)[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(strings.Replace(file, "-00000001", "-00000009", 1), b, 0o600); err != nil {
		t.Fatal(err)
	}
	if text := ok(t, "", in("topic", "ls")...); !strings.Contains(text, "1 file set aside") {
		t.Errorf("topic ls: %s", text)
	}
	if text := ok(t, "", in("topic", "describe", "t")...); !strings.Contains(text, "1 file of this topic in log/quarantine") {
		t.Errorf("topic describe: %s", text)
	}
}

// A segment file of which nothing is left is not one that held nothing, where the metadata
// knows it.
func TestEmptiedSegmentFile(t *testing.T) {
	dir, _ := filled(t, 100)
	file := segments(t, dir)[0]
	for _, size := range []int64{0, 1 << 20} {
		for _, to := range []int64{0, size} {
			if err := os.Truncate(file, to); err != nil {
				t.Fatal(err)
			}
		}
		r := ringfence(t, "", "segment", "verify", "--data-dir", dir)
		if r.code != exitDamaged || !strings.Contains(r.out, file+": ") || !strings.Contains(r.out, "nothing of it is left") || strings.Contains(r.out, "no record is lost") ||
			!strings.Contains(r.out, "1 file checked, 0 missing") {
			t.Errorf("%d bytes: %+v", size, r)
		}
	}
}

// A file that is whole for itself and is not the one that the metadata knows is a loss:
// verify tells what is lost and accept-loss what to do, and that does it.
func TestFileThatTheMetadataDoesNotKnow(t *testing.T) {
	for name, change := range map[string]func(now, old []byte) (b []byte, found string, code int){
		"cut to nothing": func(_, _ []byte) ([]byte, string, int) {
			return nil, "found     nothing of it is left: the file is empty", exitDamaged
		},
		"zeroed": func(now, _ []byte) ([]byte, string, int) {
			return make([]byte, len(now)), "found     nothing of it is left: the file is empty", exitDamaged
		},
		"an older copy": func(_, old []byte) ([]byte, string, int) {
			return old, "found     10 records, offsets [0,10)", exitDamaged
		},
		"no segment": func(now, _ []byte) ([]byte, string, int) {
			copy(now, bytes.Repeat([]byte("no"), 1<<14))
			return now, "no segment header\n", exitForeign
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "data")
			e, err := engine.Open(dir, engine.Options{})
			if err != nil {
				t.Fatal(err)
			}
			if err := e.CreateTopic(t.Context(), "t", engine.TopicOptions{}); err != nil {
				t.Fatal(err)
			}
			p, err := e.NewProducer(engine.ProducerOptions{Topic: "t"})
			if err != nil {
				t.Fatal(err)
			}
			write := func(n int) []byte {
				for range n {
					if _, err := p.Produce(t.Context(), engine.Record{Value: []byte("v")}); err != nil {
						t.Fatal(err)
					}
				}
				b, err := os.ReadFile(segments(t, dir)[0])
				if err != nil {
					t.Fatal(err)
				}
				return b
			}
			old := write(10)
			now := write(10)
			if err := e.Close(); err != nil {
				t.Fatal(err)
			}
			in := func(args ...string) []string { return append(args, "--data-dir", dir) }
			ok(t, lines(5), in("produce", "t")...)
			file := segments(t, dir)[0]
			b, found, code := change(now, old)
			if err := os.WriteFile(file, b, 0o600); err != nil {
				t.Fatal(err)
			}

			const lost = "was closed with 20 records, offsets [0,20) of range 0 of topic t: they cannot be read"
			for range 2 {
				r := ringfence(t, "", in("segment", "verify")...)
				if r.code != code || !strings.Contains(r.out, file+": damaged: the metadata says that it "+lost) || !strings.Contains(r.out, found) ||
					!strings.Contains(r.out, "accept-loss "+file) || strings.Count(r.out, ": ok, fenced") != 1 {
					t.Errorf("verify: %+v", r)
				}
			}
			r := ringfence(t, "", in("segment", "verify", "--json")...)
			if reps := parse[[]verifyReport](t, r.out); r.code != code || len(reps) != 2 || reps[0].OK || reps[0].ExitCode != code ||
				reps[0].Lost == nil || *reps[0].Lost != (holeReport{Records: 20}) || reps[1].Lost != nil {
				t.Errorf("verify --json: %+v", r)
			}
			if r := ringfence(t, "yes\n", "segment", "accept-loss", file); r.code == 0 || !strings.Contains(r.err, "move it out of the data directory") {
				t.Errorf("accept-loss: %+v", r)
			}
			if r := ringfence(t, "", in("consume", "t")...); r.code != code || !strings.Contains(r.err, "move it out") {
				t.Errorf("consume: %+v", r)
			}
			if err := os.Rename(file, filepath.Join(t.TempDir(), "away")); err != nil {
				t.Fatal(err)
			}
			ok(t, "yes\n", "segment", "accept-loss", file)
			ok(t, "", in("segment", "verify")...)
			if got := ok(t, "", in("consume", "t")...); got != lines(5) {
				t.Errorf("read %q", got)
			}
		})
	}
}

// Damage that no record is lost with is mended by whatever opens the directory: the file is
// whole again, byte for byte.
func TestDamagedHeaderIsWrittenAgain(t *testing.T) {
	dir, text := filled(t, 50)
	file := segments(t, dir)[0]
	good, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, at := range []int{20, 4096 + 100, 8192 + 100} {
		b := bytes.Clone(good)
		b[at] ^= 1
		if err := os.WriteFile(file, b, 0o600); err != nil {
			t.Fatal(err)
		}
		if r := ringfence(t, "", "segment", "verify", file); r.code != exitDamaged || !strings.Contains(r.out, "writes a header, latch slot or footer again") {
			t.Errorf("byte %d: %+v", at, r)
		}
		ok(t, "", "segment", "verify", "--data-dir", dir)
		if now, err := os.ReadFile(file); err != nil || !bytes.Equal(now[:at+4096], good[:at+4096]) {
			t.Errorf("byte %d: not what it was: %v", at, err)
		}
	}
	if got := ok(t, "", "consume", "t", "--data-dir", dir); got != text {
		t.Errorf("read %q", got)
	}
}
