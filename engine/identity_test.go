package engine

import (
	"errors"
	"io/fs"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ringfence/ringfence/segfile/disk"
	"github.com/ringfence/ringfence/segfile/disk/simdisk"
)

// A17: the power goes at each step of replacing the identity. The old one is there or
// the new one, whole; the new one for sure once save has returned; and the next save
// works.
func TestA17IdentityCrash(t *testing.T) {
	older := identity{Format: identityFormat, Metadata: "m", Opened: 7, State: stateClosed}
	newer := identity{Format: identityFormat, Metadata: "m", Opened: 8, State: stateOpen}
	seen := map[uint64]int{}
	for seed := range uint64(20) {
		for step := 0; ; step++ {
			rng := rand.New(rand.NewPCG(seed, uint64(step)))
			d := simdisk.New(simdisk.Options{Seed: seed, ArenaBytes: 1 << 20})
			must(t, older.save(d))
			d.CutAfter(step)
			err := newer.save(d)
			cut := d.Cut()
			after := d.Crash(rng)
			id, rerr := readIdentity(after, "dir")
			if rerr != nil || id == nil {
				t.Fatalf("seed %d, step %d: %v, %v", seed, step, id, rerr)
			}
			if (err == nil) == cut || err == nil && id.Opened != 8 || id.Opened != 7 && id.Opened != 8 {
				t.Fatalf("seed %d, step %d: save %v, then %+v", seed, step, err, id)
			}
			seen[id.Opened]++
			must(t, older.save(after))
			if id, err = readIdentity(after, "dir"); err != nil || id.Opened != 7 {
				t.Fatalf("seed %d, step %d: saved again: %+v, %v", seed, step, id, err)
			}
			if !cut {
				break
			}
		}
	}
	if seen[7] == 0 || seen[8] <= 20 {
		t.Errorf("the old one %d times, the new one %d: no crash left both", seen[7], seen[8])
	}
}

// B13: an identity that is cut at any length, or has one byte changed, is damaged,
// never another one and never none.
func TestB13IdentityCutAnywhere(t *testing.T) {
	d := simdisk.New(simdisk.Options{Seed: 1, ArenaBytes: 1 << 20})
	must(t, identity{Format: identityFormat, Metadata: "0123456789abcdef", Opened: 7, State: stateClosed}.save(d))
	f, err := d.Open(identityName, true)
	must(t, err)
	whole := make([]byte, disk.Block)
	_, err = f.ReadAt(whole, 0)
	must(t, errors.Join(err, f.Close()))
	text := len(whole)
	for ; whole[text-1] == ' ' || whole[text-1] == '\n'; text-- {
	}
	read := func(b []byte) (*identity, error) {
		t.Helper()
		if err := d.Remove(identityName); err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
		f, err := d.Create(identityName)
		must(t, err)
		full := make([]byte, disk.Block)
		copy(full, b)
		must(t, errors.Join(f.WriteAt(full, 0), f.Truncate(int64(len(b))), f.Close()))
		return readIdentity(d, "dir")
	}
	for n := range text {
		if id, err := read(whole[:n]); !errors.Is(err, ErrDamaged) {
			t.Fatalf("cut to %d bytes: %+v, %v", n, id, err)
		}
		for _, mask := range []byte{1, 4, 0x20, 0x80} {
			b := append([]byte(nil), whole...)
			b[n] ^= mask
			id, err := read(b)
			if err == nil && (id.Metadata != "0123456789abcdef" || id.Opened != 7 || id.State != stateClosed) {
				t.Fatalf("byte %d changed: %+v", n, id)
			}
		}
	}
	if id, err := read(whole); err != nil || id.Opened != 7 {
		t.Fatalf("%+v, %v", id, err)
	}
}

// Damage of the metadata, or of what says whose it is, is told as that: with the file, the
// byte where it is known, and what to do, in one line.
func TestDamagedMetadataIsTold(t *testing.T) {
	for name, c := range map[string]struct {
		file string
		at   int64
		says []string
	}{
		"identity":     {"meta/identity.json", 75, []string{"is damaged: the checksum", "from one copy"}},
		"its syntax":   {"meta/identity.json", 0, []string{"at byte 0: invalid character", "from one copy"}},
		"journal":      {"meta/raft/journal-*", 20, []string{"at byte 0: ", "slot header", "from one copy"}},
		"log's":        {"log/identity.json", 40, []string{"is damaged: the checksum", "remove it and it is written anew"}},
		"log's syntax": {"log/identity.json", 0, []string{"at byte 0: invalid character", "remove it and it is written anew"}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			stored(t, dir)
			files, err := filepath.Glob(filepath.Join(dir, c.file))
			must(t, err)
			for _, file := range files {
				flip(t, file, c.at, 1)
			}
			e, err := Open(dir, Options{})
			if err == nil {
				shut(t, e)
				t.Fatal("it was opened")
			}
			is(t, err, ErrDamaged, append(c.says, files[len(files)-1])...)
			if text := err.Error(); strings.Contains(text, "segment") || strings.Contains(text, "\n") {
				t.Error(text)
			}
		})
	}
}
