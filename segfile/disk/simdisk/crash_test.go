package simdisk_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"github.com/ringfence/ringfence/segfile/disk"
	"github.com/ringfence/ringfence/segfile/disk/simdisk"
)

const (
	block  = disk.Block
	sector = 512
)

// seeds is how many times a test with chance in it runs.
func seeds(short int) uint64 {
	if os.Getenv("RINGFENCE_LONG") != "" {
		return uint64(short) * 50
	}
	return uint64(short)
}

// tagged is n bytes of which every sector begins with the tag.
func tagged(p []byte, tag uint64) []byte {
	for i := 0; i < len(p); i += sector {
		binary.LittleEndian.PutUint64(p[i:], tag)
	}
	return p
}

func tagsOf(t *testing.T, f disk.File) []uint64 {
	t.Helper()
	size, err := f.Size()
	must(t, err)
	p := make([]byte, size)
	if _, err := f.ReadAt(p, 0); err != nil && size > 0 {
		t.Fatal(err)
	}
	var tags []uint64
	for i := 0; i+8 <= len(p); i += sector {
		tags = append(tags, binary.LittleEndian.Uint64(p[i:]))
	}
	return tags
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Helper()
		t.Fatal(err)
	}
}

func create(t *testing.T, d disk.Disk, name string) disk.File {
	t.Helper()
	f, err := d.Create(name)
	must(t, err)
	return f
}

// lasting makes a file whose name is durable.
func lasting(t *testing.T, d disk.Disk, name string) disk.File {
	t.Helper()
	f := create(t, d, name)
	must(t, d.SyncDir(""))
	return f
}

func open(t *testing.T, d disk.Disk, name string) disk.File {
	t.Helper()
	f, err := d.Open(name, false)
	must(t, err)
	return f
}

// history is an independent account of what each sector of one file may hold after
// a crash: the first entry is durable, the others came later.
type history struct {
	sectors map[int][]uint64
	sizes   []int
}

func newHistory() *history { return &history{sectors: map[int][]uint64{}, sizes: []int{0}} }

func (h *history) wrote(at, n int, tag uint64) {
	for s := at; s < at+n; s++ {
		if len(h.sectors[s]) == 0 {
			h.sectors[s] = []uint64{0}
		}
		h.sectors[s] = append(h.sectors[s], tag)
	}
}

func (h *history) durable(at, n int, tag uint64) {
	for s := at; s < at+n; s++ {
		h.sectors[s] = []uint64{tag}
	}
}

func (h *history) synced() {
	for s, tags := range h.sectors {
		h.sectors[s] = tags[len(tags)-1:]
	}
	h.sizes = h.sizes[len(h.sizes)-1:]
}

func (h *history) size() int { return h.sizes[len(h.sizes)-1] }

// check compares a file after a crash, and counts what became of what was open.
func (h *history) check(tags []uint64, old, fresh *int) error {
	if !slices.Contains(h.sizes, len(tags)*sector) {
		return fmt.Errorf("size %d is none of %v", len(tags)*sector, h.sizes)
	}
	for s, tag := range tags {
		may := h.sectors[s]
		if len(may) == 0 {
			may = []uint64{0}
		}
		i := slices.Index(may, tag)
		if i < 0 {
			return fmt.Errorf("sector %d holds %d, which is none of %v", s, tag, may)
		}
		if len(may) > 1 && i == 0 {
			*old++
		} else if len(may) > 1 {
			*fresh++
		}
	}
	return nil
}

// After a crash at any moment, every sector holds its durable state or a later one,
// and the size is the durable one or a later one. Both kinds of outcome occur.
func TestCrashKeepsWhatIsDurable(t *testing.T) {
	old, fresh, sizes := 0, 0, map[string]int{}
	for seed := range seeds(300) {
		rng := rand.New(rand.NewPCG(seed, 1))
		d := simdisk.New(simdisk.Options{Seed: seed})
		f, h := lasting(t, d, "f"), newHistory()
		for step := range uint64(40) {
			tag := step + 1
			at, n := rng.IntN(6), 1+rng.IntN(3)
			p := tagged(make([]byte, n*block), tag)
			end := max(h.size(), (at+n)*block)
			switch rng.IntN(6) {
			case 0: // durable: its own bytes, and the size as far as they reach
				must(t, f.WriteAt(p, int64(at*block)))
				h.durable(at*8, n*8, tag)
				reach := (at + n) * block
				h.sizes = append(h.sizes, end)
				h.sizes[0] = max(h.sizes[0], reach)
				h.sizes = slices.DeleteFunc(h.sizes, func(s int) bool { return s < reach })
			case 1:
				must(t, f.Sync())
				h.synced()
			case 2:
				size := rng.IntN(9) * block
				must(t, f.Truncate(int64(size)))
				if size < h.size() {
					h.wrote(size/sector, (h.size()-size)/sector, 0)
				}
				h.sizes = append(h.sizes, size)
			default:
				writeThrough(t, d, f, p, int64(at*block))
				h.wrote(at*8, n*8, tag)
				h.sizes = append(h.sizes, end)
			}
			if step%8 != 7 {
				continue
			}
			after := d.Crash(rng)
			tags := tagsOf(t, open(t, after, "f"))
			if err := h.check(tags, &old, &fresh); err != nil {
				t.Fatalf("seed %d, step %d: %v", seed, step, err)
			}
			if len(h.sizes) > 1 {
				sizes[map[bool]string{true: "durable", false: "later"}[len(tags)*sector == h.sizes[0]]]++
			}
			must(t, after.Check())
			// What is left is durable: a second crash changes nothing.
			if again := tagsOf(t, open(t, after.Crash(rng), "f")); !slices.Equal(again, tags) {
				t.Fatalf("seed %d, step %d: a second crash changed the file", seed, step)
			}
		}
		must(t, d.Check())
	}
	if old < 1000 || fresh < 1000 || sizes["durable"] < 20 || sizes["later"] < 20 {
		t.Fatalf("too tame: %d old sectors, %d new ones, sizes %v", old, fresh, sizes)
	}
}

// writeThrough writes without durability: only a queue does that.
func writeThrough(t *testing.T, d *simdisk.Disk, f disk.File, p []byte, off int64) {
	t.Helper()
	q, err := d.NewQueue(1)
	must(t, err)
	buf, ok := d.Arena().Alloc(len(p))
	if !ok {
		t.Fatal("no memory")
	}
	copy(buf, p)
	op := &disk.Op{Kind: disk.Write, File: f, Buf: buf, Off: off, Done: func(*disk.Op) {}}
	must(t, q.Push(op))
	must(t, q.Submit())
	_, err = q.Wait(1)
	must(t, err)
	must(t, op.Err)
	d.Arena().Free(buf)
	must(t, q.Close())
}

// A write can be torn: some sectors new and some old, also within one block.
func TestCrashTearsWrites(t *testing.T) {
	torn, whole, none := 0, 0, 0
	for seed := range seeds(200) {
		d := simdisk.New(simdisk.Options{Seed: seed})
		f := lasting(t, d, "f")
		must(t, f.WriteAt(tagged(make([]byte, block), 1), 0))
		writeThrough(t, d, f, tagged(make([]byte, block), 2), 0)
		tags := tagsOf(t, open(t, d.Crash(nil), "f"))
		switch n := len(slices.DeleteFunc(tags, func(tag uint64) bool { return tag == 1 })); n {
		case 0:
			none++
		case 8:
			whole++
		default:
			torn++
		}
	}
	if torn == 0 || whole == 0 || none == 0 {
		t.Fatalf("%d torn, %d whole, %d lost", torn, whole, none)
	}
}

// Neither a durable write nor a sync proves another file, and a durable write proves
// no earlier write of its own file.
func TestDurabilityIsNotContagious(t *testing.T) {
	lostOther, lostOwn, shorter := 0, 0, 0
	for seed := range seeds(100) {
		d := simdisk.New(simdisk.Options{Seed: seed})
		f, g := lasting(t, d, "f"), lasting(t, d, "g")
		writeThrough(t, d, f, tagged(make([]byte, block), 1), 0)
		writeThrough(t, d, g, tagged(make([]byte, block), 1), 0)
		must(t, g.WriteAt(tagged(make([]byte, block), 2), block))
		must(t, g.Sync())
		writeThrough(t, d, g, tagged(make([]byte, block), 3), 0)
		writeThrough(t, d, g, tagged(make([]byte, block), 5), 4*block)
		must(t, g.WriteAt(tagged(make([]byte, block), 4), block))
		after := d.Crash(nil)
		if tags := tagsOf(t, open(t, after, "f")); !slices.Contains(tags, 1) {
			lostOther++
		}
		tags := tagsOf(t, open(t, after, "g"))
		if tags[8] != 4 || tags[0] != 1 && tags[0] != 3 {
			t.Fatalf("seed %d: acknowledged bytes are gone: %v", seed, tags)
		}
		if !slices.Contains(tags, 3) {
			lostOwn++
		}
		if len(tags) < 5*8 {
			shorter++
		}
	}
	if lostOther == 0 || lostOwn == 0 || shorter == 0 {
		t.Fatalf("lost %d times of another file, %d of the same, %d ends", lostOther, lostOwn, shorter)
	}
}

// A file that a crash left shorter, in the middle of a block, holds nothing behind
// its end that growing could bring back.
func TestCrashLeavesNothingBehindTheEnd(t *testing.T) {
	cut := 0
	for seed := range seeds(40) {
		d := simdisk.New(simdisk.Options{Seed: seed})
		f := lasting(t, d, "f")
		must(t, f.WriteAt(tagged(make([]byte, 2*block), 1), 0))
		must(t, f.Truncate(1000))
		f = open(t, d.Crash(nil), "f")
		size, err := f.Size()
		must(t, err)
		if size == 1000 {
			cut++
			must(t, f.Truncate(2*block))
			if tags := tagsOf(t, f); tags[0] == 0 && tags[1] == 0 || slices.Contains(tags[2:], 1) {
				t.Fatalf("seed %d: %v", seed, tags)
			}
		}
	}
	if cut == 0 {
		t.Fatal("the truncation never survived")
	}
}

// C08: a sync that is in flight beside a write, or was submitted before the write
// ended, does not cover it, though it succeeds.
func TestC08SyncDoesNotCoverWritesInFlight(t *testing.T) {
	lost, lostDone := 0, 0
	for seed := range seeds(200) {
		d := simdisk.New(simdisk.Options{Seed: seed})
		f := lasting(t, d, "f")
		q, err := d.NewQueue(4)
		must(t, err)
		buf, _ := d.Arena().Alloc(block)
		var order []disk.Kind
		done := func(op *disk.Op) { order = append(order, op.Kind); must(t, op.Err) }
		must(t, q.Push(&disk.Op{Kind: disk.Write, File: f, Buf: tagged(buf, 7), Done: done}))
		must(t, q.Push(&disk.Op{Kind: disk.Sync, File: f, Done: done}))
		must(t, q.Submit())
		for len(order) < 2 {
			_, err := q.Wait(1)
			must(t, err)
		}
		if tags := tagsOf(t, open(t, d.Crash(nil), "f")); !slices.Contains(tags, 7) {
			lost++
			if order[0] == disk.Write {
				lostDone++
			}
		}
		must(t, f.Sync()) // one that starts after the write does
		if tags := tagsOf(t, open(t, d.Crash(nil), "f")); len(tags) != 8 || tags[0] != 7 {
			t.Fatalf("seed %d: a later sync proved nothing: %v", seed, tags)
		}
	}
	if lostDone == 0 || lost == lostDone {
		t.Fatalf("%d writes lost, %d of them though they ended before the sync: the trap never closed", lost, lostDone)
	}
}

// C02: after a failed sync the next one succeeds and says nothing about what the
// failed one covered; writing again makes it durable.
func TestC02FailedSyncIsNeverMadeUpFor(t *testing.T) {
	lost, kept := 0, 0
	eio := errors.New("input/output error")
	for seed := range seeds(100) {
		d := simdisk.New(simdisk.Options{Seed: seed})
		f := lasting(t, d, "f")
		must(t, f.WriteAt(tagged(make([]byte, 2*block), 1), 0))
		writeThrough(t, d, f, tagged(make([]byte, 2*block), 2), 0)
		fault := d.Fail(simdisk.Nth(1, eio, simdisk.On(simdisk.Sync)))
		if err := f.Sync(); !errors.Is(err, eio) || fault.ErrorCount() != 1 {
			t.Fatal(err, fault.ErrorCount())
		}
		writeThrough(t, d, f, tagged(make([]byte, block), 3), 4*block)
		must(t, f.Sync())
		tags := tagsOf(t, open(t, d.Crash(nil), "f"))
		if len(tags) != 5*8 || tags[32] != 3 {
			t.Fatalf("seed %d: the second sync did not do its own work: %v", seed, tags)
		}
		if slices.Contains(tags, 1) {
			lost++
		} else {
			kept++
		}
		must(t, f.WriteAt(tagged(make([]byte, 2*block), 4), 0))
		if tags := tagsOf(t, open(t, d.Crash(nil), "f")); slices.ContainsFunc(tags[:16], func(tag uint64) bool { return tag != 4 }) {
			t.Fatalf("seed %d: written again and still not durable: %v", seed, tags)
		}
	}
	if lost == 0 || kept == 0 {
		t.Fatalf("%d lost, %d kept", lost, kept)
	}
}

// A queued write that is in flight when the power goes may be there, be missing or
// be torn, also one that asked to be durable.
func TestCrashWithOperationsInFlight(t *testing.T) {
	seen := map[string]int{}
	for seed := range seeds(200) {
		d := simdisk.New(simdisk.Options{Seed: seed})
		f := lasting(t, d, "f")
		must(t, f.WriteAt(tagged(make([]byte, 2*block), 1), 0))
		q, err := d.NewQueue(2)
		must(t, err)
		buf, _ := d.Arena().Alloc(2 * block)
		must(t, q.Push(&disk.Op{Kind: disk.Write, Durable: true, File: f, Buf: tagged(buf, 2), Done: func(*disk.Op) {}}))
		if tags := tagsOf(t, open(t, d.Crash(nil), "f")); slices.Contains(tags, 2) {
			t.Fatalf("seed %d: an operation took effect before it was submitted", seed)
		}
		must(t, q.Submit())
		early := slices.Contains(tagsOf(t, f), 2)
		tags := tagsOf(t, open(t, d.Crash(nil), "f"))
		switch {
		case !slices.Contains(tags, 2):
			seen["missing"]++
		case !early:
			seen["there, though nobody saw it before"]++
		case !slices.Contains(tags, 1):
			seen["there"]++
		default:
			seen["torn"]++
		}
		if early {
			seen["visible early"]++
		}
		_, err = q.Wait(1)
		must(t, err)
		if tags := tagsOf(t, open(t, d.Crash(nil), "f")); slices.Contains(tags, 1) {
			t.Fatalf("seed %d: a durable write was lost after it was done", seed)
		}
	}
	for _, what := range []string{"missing", "there", "torn", "there, though nobody saw it before", "visible early"} {
		if seen[what] == 0 {
			t.Fatalf("never seen: %s (%v)", what, seen)
		}
	}
}

// The power can go in the middle of any operation; up to there the work is the same,
// and what the operation before it made durable is there.
func TestCutAfterVisitsEveryStep(t *testing.T) {
	work := func(d *simdisk.Disk) (steps int, err error) {
		err = d.Mkdir("d")
		if err == nil {
			steps++
			err = d.SyncDir("")
		}
		var f disk.File
		if err == nil {
			steps++
			f, err = d.Create("d/f")
		}
		if err == nil {
			steps++
			err = d.SyncDir("d")
		}
		for i := 0; err == nil && i < 3; i++ {
			steps++
			err = f.WriteAt(tagged(make([]byte, block), uint64(i+1)), int64(i*block))
		}
		return steps, err
	}
	outcomes := map[int]map[string]bool{}
	cut := 0
	for n := 0; ; n++ {
		outcomes[n] = map[string]bool{}
		finished := false
		for seed := range seeds(40) {
			d := simdisk.New(simdisk.Options{Seed: seed})
			d.CutAfter(n)
			steps, err := work(d)
			if !d.Cut() {
				must(t, err)
				finished = true
				break
			}
			cut++
			if !errors.Is(err, simdisk.ErrPowerCut) || steps != n {
				t.Fatalf("cut after %d: stopped after %d steps with %v", n, steps, err)
			}
			if _, err := d.List(""); !errors.Is(err, simdisk.ErrPowerCut) {
				t.Fatal("the disk works without power:", err)
			}
			after := d.Crash(nil)
			tags := []uint64(nil)
			if f, err := after.Open("d/f", true); err == nil {
				tags = tagsOf(t, f)
			} else if n > 3 {
				t.Fatalf("cut after %d: the file is gone: %v", n, err)
			}
			for i := range max(0, n-4) {
				if len(tags) < (i+1)*8 || tags[i*8+3] != uint64(i+1) {
					t.Fatalf("cut after %d: write %d is gone: %v", n, i, tags)
				}
			}
			outcomes[n][fmt.Sprint(tags)] = true
		}
		if finished {
			if n != 7 {
				t.Fatalf("seven steps, but the cut after %d did not happen", n)
			}
			break
		}
	}
	if cut == 0 || len(outcomes[5]) < 4 {
		t.Fatalf("%d cuts; a cut in a write has only %d outcomes", cut, len(outcomes[5]))
	}
}
