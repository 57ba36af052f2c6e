package simdisk_test

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"path"
	"slices"
	"testing"

	"github.com/ringfence/ringfence/segfile/disk"
	"github.com/ringfence/ringfence/segfile/disk/simdisk"
)

// files walks a tree and returns which tags are under which names.
func files(t *testing.T, d *simdisk.Disk) map[uint64][]string {
	t.Helper()
	found := map[uint64][]string{}
	var walk func(dir string)
	walk = func(dir string) {
		entries, err := d.List(dir)
		must(t, err)
		for _, e := range entries {
			name := path.Join(dir, e.Name)
			if e.Dir {
				walk(name)
				continue
			}
			tag := uint64(0)
			if tags := tagsOf(t, open(t, d, name)); len(tags) > 0 {
				tag = tags[0]
			}
			found[tag] = append(found[tag], name)
		}
	}
	walk("")
	return found
}

// C04: a name is durable after SyncDir of its directory and of those above, and not
// before; until then it may be there or not, whatever the content.
func TestC04NamesNeedSyncDir(t *testing.T) {
	for _, tc := range []struct {
		name string
		sync []string
		safe bool
	}{
		{"nothing", nil, false},
		{"the directory only", []string{"a/b"}, false},
		{"the parent only", []string{"a"}, false},
		{"all but the root", []string{"a/b", "a"}, false},
		{"all but the parent", []string{"a/b", ""}, false},
		{"all", []string{"a/b", "a", ""}, true},
		{"all, from the top", []string{"", "a", "a/b"}, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			there := 0
			n := seeds(100)
			for seed := range n {
				d := simdisk.New(simdisk.Options{Seed: seed})
				must(t, d.Mkdir("a"))
				must(t, d.Mkdir("a/b"))
				f := create(t, d, "a/b/f")
				must(t, f.WriteAt(tagged(make([]byte, block), 5), 0))
				for _, dir := range tc.sync {
					must(t, d.SyncDir(dir))
				}
				after := d.Crash(nil)
				must(t, after.Check())
				if f, err := after.Open("a/b/f", true); err == nil {
					there++
					if tagsOf(t, f)[0] != 5 {
						t.Fatalf("seed %d: durable bytes are gone", seed)
					}
				}
			}
			if tc.safe && there != int(n) || !tc.safe && (there == 0 || there == int(n)) {
				t.Fatalf("the file survived %d of %d crashes", there, n)
			}
		})
	}
}

func TestRenameIsAtomicAndNotDurable(t *testing.T) {
	for _, tc := range []struct {
		name     string
		from, to string
		sync     []string
		safe     bool
	}{
		{"in one directory", "d/x", "d/y", nil, false},
		{"in one directory, synced", "d/x", "d/y", []string{"d"}, true},
		{"across", "d/x", "e/y", nil, false},
		{"across, the old one synced", "d/x", "e/y", []string{"d"}, false},
		{"across, the new one synced", "d/x", "e/y", []string{"e"}, true},
		{"into a new directory, not durable itself", "d/x", "new/y", []string{"new"}, false},
		{"into a new directory", "d/x", "new/y", []string{"new", ""}, true},
		{"over another", "d/x", "d/old", []string{"d"}, true},
		{"over another, not synced", "d/x", "d/old", nil, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			moved := 0
			n := seeds(100)
			for seed := range n {
				d := simdisk.New(simdisk.Options{Seed: seed})
				must(t, d.Mkdir("d"))
				must(t, d.Mkdir("e"))
				must(t, create(t, d, "d/x").WriteAt(tagged(make([]byte, block), 5), 0))
				must(t, create(t, d, "d/old").WriteAt(tagged(make([]byte, block), 6), 0))
				for _, dir := range []string{"", "d", "e"} {
					must(t, d.SyncDir(dir))
				}
				must(t, d.Mkdir("new"))
				must(t, d.Rename(tc.from, tc.to))
				for _, dir := range tc.sync {
					must(t, d.SyncDir(dir))
				}
				found := files(t, d.Crash(nil))
				if at := found[5]; len(at) != 1 || at[0] != tc.from && at[0] != tc.to {
					t.Fatalf("seed %d: the file is at %q", seed, at)
				}
				if found[5][0] == tc.to {
					moved++
				}
				if replaced := tc.to == "d/old" && found[5][0] == tc.to; replaced != (len(found[6]) == 0) {
					t.Fatalf("seed %d: the file is at %q, the replaced one at %q", seed, found[5], found[6])
				}
			}
			if tc.safe && moved != int(n) || !tc.safe && (moved == 0 || moved == int(n)) {
				t.Fatalf("the rename survived %d of %d crashes", moved, n)
			}
		})
	}
}

// A model of where files may be found after a crash, over random creates, renames,
// removes and directory syncs: a file that was durable once and not removed is found
// exactly once, at a place it has had since it was last proven; no file is ever
// found twice; a removed one is gone once that is proven.
func TestNamesAfterCrashesInRandomWork(t *testing.T) {
	dirs := []string{"", "d", "e"}
	type account struct {
		at      string   // where it is now, "" when removed
		may     []string // where it may be after a crash, "" for nowhere
		removed string   // the directory it was removed from
	}
	stayed, went, resurrected := 0, 0, 0
	for seed := range seeds(300) {
		rng := rand.New(rand.NewPCG(seed, 2))
		d := simdisk.New(simdisk.Options{Seed: seed})
		must(t, d.Mkdir("d"))
		must(t, d.Mkdir("e"))
		must(t, d.SyncDir(""))
		all := map[uint64]*account{}
		at := func(name string) *account {
			for _, a := range all {
				if a.at == name {
					return a
				}
			}
			return nil
		}
		gone := func(a *account, dir string) {
			a.at, a.removed = "", dir
			a.may = append(a.may, "")
		}
		for step := range uint64(60) {
			name := path.Join(dirs[rng.IntN(3)], string(rune('p'+rng.IntN(4))))
			a := at(name)
			switch k := rng.IntN(8); {
			case a == nil && k < 4:
				must(t, create(t, d, name).WriteAt(tagged(make([]byte, block), step+1), 0))
				all[step+1] = &account{at: name, may: []string{"", name}}
			case a != nil && k < 4:
				to := path.Join(dirs[rng.IntN(3)], string(rune('p'+rng.IntN(4))))
				if to == name {
					break
				}
				must(t, d.Rename(name, to))
				if over := at(to); over != nil {
					gone(over, path.Dir("/" + to)[1:])
				}
				a.at = to
				a.may = append(a.may, to)
			case a != nil && k == 4:
				must(t, d.Remove(name))
				gone(a, path.Dir("/" + name)[1:])
			case k == 5:
				dir := dirs[rng.IntN(3)]
				must(t, d.SyncDir(dir))
				for _, a := range all {
					if a.at != "" && path.Dir("/" + a.at)[1:] == dir || a.at == "" && a.removed == dir {
						a.may = []string{a.at}
					}
				}
			}
			if step%6 != 5 {
				continue
			}
			after := d.Crash(rng)
			must(t, after.Check())
			found := files(t, after)
			for tag, a := range all {
				places := found[tag]
				if len(places) == 0 {
					places = []string{""}
				}
				if len(places) != 1 || !slices.Contains(a.may, places[0]) {
					t.Fatalf("seed %d, step %d: file %d is at %q, may be at %q", seed, step, tag, places, a.may)
				}
				switch {
				case places[0] == a.at:
					stayed++
				case a.at == "":
					resurrected++
				default:
					went++
				}
			}
		}
		must(t, d.Check())
	}
	if stayed == 0 || went == 0 || resurrected == 0 {
		t.Fatalf("too tame: %d as they were, %d elsewhere, %d back again", stayed, went, resurrected)
	}
}

// A directory that is removed takes no file with it that had been moved out of it.
func TestRemovedDirectoryLosesNothing(t *testing.T) {
	for seed := range seeds(100) {
		d := simdisk.New(simdisk.Options{Seed: seed})
		must(t, d.Mkdir("d"))
		must(t, create(t, d, "d/f").WriteAt(tagged(make([]byte, block), 5), 0))
		must(t, errors.Join(d.SyncDir("d"), d.SyncDir("")))
		must(t, errors.Join(d.Rename("d/f", "f"), d.Remove("d")))
		if at := files(t, d.Crash(nil))[5]; len(at) != 1 {
			t.Fatalf("seed %d: the file is at %q", seed, at)
		}
		must(t, d.SyncDir(""))
		if at := files(t, d.Crash(nil))[5]; len(at) != 1 || at[0] != "f" {
			t.Fatalf("seed %d: the file is at %q after the sync", seed, at)
		}
	}
}

// A process that dies leaves what it did, durable or not, and frees its locks.
func TestKillKeepsWhatWasDone(t *testing.T) {
	seen := map[uint64]int{}
	for seed := range seeds(60) {
		d := simdisk.New(simdisk.Options{Seed: seed})
		must(t, d.Lock("LOCK"))
		f := create(t, d, "f")
		writeThrough(t, d, f, tagged(make([]byte, block), 1), 0)
		q, err := d.NewQueue(2)
		must(t, err)
		buf, _ := d.Arena().Alloc(block)
		must(t, q.Push(&disk.Op{Kind: disk.Write, File: f, Buf: tagged(buf, 2), Off: block, Done: func(*disk.Op) { t.Error("reported to a dead process") }}))
		must(t, q.Submit())
		other := d.Reopen()
		if err := other.Lock("LOCK"); !errors.Is(err, disk.ErrLocked) {
			t.Fatal(err)
		}
		next := d.Kill()
		must(t, next.Lock("LOCK"))
		tags := append(tagsOf(t, open(t, next, "f")), make([]uint64, 8)...)
		if tags[0] != 1 {
			t.Fatalf("seed %d: what was done before the kill is gone: %v", seed, tags)
		}
		seen[tags[8]]++
		if _, err := q.Wait(0); !errors.Is(err, disk.ErrClosed) {
			t.Fatal(err)
		}
		if _, err := f.Size(); !errors.Is(err, disk.ErrClosed) {
			t.Fatal(err)
		}
		must(t, next.Check())
	}
	if seen[0] == 0 || seen[2] == 0 {
		t.Fatalf("what was in flight always ended the same way: %v", seen)
	}
}

func TestCloneIsIndependent(t *testing.T) {
	d := simdisk.New(simdisk.Options{Seed: 3})
	must(t, d.Mkdir("d"))
	f := create(t, d, "d/f")
	must(t, f.WriteAt(tagged(make([]byte, block), 1), 0))
	writeThrough(t, d, f, tagged(make([]byte, block), 2), 0)
	c := d.Clone()
	must(t, c.Check())
	must(t, f.WriteAt(tagged(make([]byte, block), 3), 0))
	must(t, d.Remove("d/f"))
	if tags := tagsOf(t, open(t, c, "d/f")); tags[0] != 2 {
		t.Fatal("the copy changed with the original:", tags)
	}
	old, fresh, nameless := 0, 0, 0
	for seed := range uint64(100) { // the copy knows what is durable, and what is not
		after := c.Crash(rand.New(rand.NewPCG(seed, 0)))
		g, err := after.Open("d/f", true)
		if errors.Is(err, fs.ErrNotExist) {
			nameless++
			continue
		}
		must(t, err)
		switch tagsOf(t, g)[0] {
		case 1:
			old++
		case 2:
			fresh++
		default:
			t.Fatal("neither state")
		}
	}
	if old == 0 || fresh == 0 || nameless == 0 {
		t.Fatal(old, fresh, nameless)
	}
}

// The same seed gives the same disk: trace, content and crash.
func TestSameSeedSameDisk(t *testing.T) {
	run := func(seed uint64) string {
		rng := rand.New(rand.NewPCG(seed, 9))
		d := simdisk.New(simdisk.Options{Seed: seed})
		d.Fail(func(e simdisk.Event) error {
			if e.Action == simdisk.Write && e.Off == 7*block {
				return fs.ErrInvalid
			}
			return nil
		})
		must(t, d.Mkdir("d"))
		q, err := d.NewQueue(8)
		must(t, err)
		var fl []disk.File
		for i := range 4 {
			fl = append(fl, create(t, d, fmt.Sprintf("d/%d", i)))
		}
		buf, _ := d.Arena().Alloc(8 * block)
		for i := range 8 {
			op := &disk.Op{Kind: disk.Write, File: fl[rng.IntN(4)], Off: int64(rng.IntN(9)) * block, Buf: tagged(buf[i*block:][:block], uint64(i+1)), Durable: rng.IntN(2) == 0}
			op.Done = func(op *disk.Op) {
				if op.Off > 0 {
					op.Off -= block
					must(t, q.Push(op))
				}
			}
			must(t, q.Push(op))
		}
		for q.InFlight() > 0 {
			must(t, q.Submit())
			_, err := q.Wait(1)
			must(t, err)
		}
		after := d.Crash(nil)
		out := fmt.Sprintln(d.Trace(), d.Counts())
		for _, view := range []*simdisk.Disk{d, after} {
			found := files(t, view)
			out += fmt.Sprintln(found)
			for i := range fl {
				if f, err := view.Open(fmt.Sprintf("d/%d", i), true); err == nil {
					out += fmt.Sprintln(tagsOf(t, f))
				}
			}
		}
		return out
	}
	if a, b := run(5), run(5); a != b {
		t.Fatalf("two runs differ:\n%s\n%s", a, b)
	}
	if run(5) == run(6) {
		t.Fatal("the seed has no effect")
	}
}
