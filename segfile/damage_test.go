package segfile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"testing"

	"github.com/ringfence/ringfence/fence"
	"github.com/ringfence/ringfence/segfile/disk"
	"github.com/ringfence/ringfence/segfile/record"
)

// change edits a file in place, as rot or a hand would.
func change(t testing.TB, d disk.Disk, name string, edit func(b []byte) []byte) {
	t.Helper()
	f, err := d.Open(name, false)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	size, err := f.Size()
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, alignBlock(size))
	if n, err := f.ReadAt(b, 0); err != nil && !errors.Is(err, io.EOF) || int64(n) != size {
		t.Fatal(n, err)
	}
	b = edit(b[:size])
	size = int64(len(b))
	b = append(b, make([]byte, alignBlock(size)-size)...)
	if err := f.Truncate(0); err != nil {
		t.Fatal(err)
	}
	if len(b) > 0 {
		if err := f.WriteAt(b, 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Truncate(size); err != nil {
		t.Fatal(err)
	}
}

// patch edits [from, to) of a file in place.
func patch(t testing.TB, d disk.Disk, name string, from, to int64, edit func(b []byte)) {
	t.Helper()
	f, err := d.Open(name, false)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	size, err := f.Size()
	if err != nil || from < 0 || to > size {
		t.Fatal(size, err)
	}
	start := from &^ (block - 1)
	b := make([]byte, alignBlock(to)-start)
	if _, err := f.ReadAt(b, start); err != nil && !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	edit(b[from-start : to-start])
	must(t, f.WriteAt(b, start))
	must(t, f.Truncate(size))
}

func flip(t testing.TB, d disk.Disk, name string, at int64, mask byte) {
	t.Helper()
	patch(t, d, name, at, at+1, func(b []byte) { b[0] ^= mask })
}

func wipe(t testing.TB, d disk.Disk, name string, from, to int64) {
	t.Helper()
	patch(t, d, name, from, to, func(b []byte) { clear(b) })
}

func cutTo(t testing.TB, d disk.Disk, name string, size int64) {
	t.Helper()
	change(t, d, name, func(b []byte) []byte { return b[:size] })
}

func contents(t testing.TB, d disk.Disk, name string) (got []byte) {
	t.Helper()
	change(t, d, name, func(b []byte) []byte { got = append(got, b...); return b })
	return got
}

var seg1 = Name(testID(1))

// write makes a segment of frames with n records and values of size bytes, one a
// flush, and gives where they lie.
func write(t testing.TB, w *Writer, rng *rand.Rand, frames, n, size int) (list []sent) {
	t.Helper()
	g := &producerModel{id: 3}
	for range frames {
		f := g.frame(rng, n, size)
		pos := w.Position()
		put(t, w, f)
		h, err := record.ParseHead(f, w.Meta().Salt)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, sent{pos, f, h})
	}
	return list
}

// Every row of the table of files matches its inputs alone, and every input has a row.
func TestFileRows(t *testing.T) {
	seen := make([]int, len(fileRows))
	for s := headerValid; s <= headerBad; s++ {
		for bits := range 8 {
			named, mark, data := bits&1 != 0, bits&2 != 0, bits&4 != 0
			n := 0
			for i := range fileRows {
				if fileRows[i].matches(s, named, mark, data) {
					n++
					seen[i]++
				}
			}
			if n != 1 {
				t.Errorf("header %d, named %v, mark %v, data %v: %d rows", s, named, mark, data, n)
			}
			decideFile(s, named, mark, data)
		}
	}
	for i, n := range seen {
		if n == 0 {
			t.Errorf("row %d matches nothing", i)
		}
	}
}

// fileCases makes a file of every row, from a segment of ten frames.
var fileCases = []struct {
	name   string
	damage func(t *testing.T, d disk.Disk)
	verd   fileVerdict
	state  State
	err    error
}{
	{"untouched", func(*testing.T, disk.Disk) {}, fileUsed, Clean, nil},
	{"another segment's file", func(t *testing.T, d disk.Disk) {
		must(t, d.Rename(Name(testID(2)), seg1))
	}, fileForeign, Foreign, ErrForeign},
	{"a newer version", func(t *testing.T, d disk.Disk) {
		change(t, d, seg1, func(b []byte) []byte {
			b[hoVersion]++
			restampHeader(b)
			return b
		})
	}, fileNewer, Newer, ErrNewer},
	{"header zero, the start mark has it", func(t *testing.T, d disk.Disk) {
		wipe(t, d, seg1, 0, block)
	}, fileRestored, Damaged, nil},
	{"header zero, start mark gone", func(t *testing.T, d disk.Disk) {
		wipe(t, d, seg1, 0, block)
		flip(t, d, seg1, DataStart+200, 1)
	}, fileLost, Damaged, ErrDamaged},
	{"all zero (A07)", func(t *testing.T, d disk.Disk) {
		change(t, d, seg1, func(b []byte) []byte { clear(b); return b })
	}, fileNeverUsed, NeverUsed, ErrNeverUsed},
	{"empty (D10)", func(t *testing.T, d disk.Disk) {
		cutTo(t, d, seg1, 0)
	}, fileNeverUsed, NeverUsed, ErrNeverUsed},
	{"header damaged, the start mark has it", func(t *testing.T, d disk.Disk) {
		flip(t, d, seg1, hoSalt, 4)
	}, fileRestored, Damaged, nil},
	{"header damaged, start mark gone, frames follow (A07)", func(t *testing.T, d disk.Disk) {
		flip(t, d, seg1, hoBase, 4)
		flip(t, d, seg1, DataStart+200, 1)
	}, fileLost, Damaged, ErrDamaged},
	{"header half written and nothing behind it (A07)", func(t *testing.T, d disk.Disk) {
		change(t, d, seg1, func(b []byte) []byte { clear(b[512:]); return b })
	}, fileNeverUsed, NeverUsed, ErrNeverUsed},
	{"header's start damaged, the start mark has it", func(t *testing.T, d disk.Disk) {
		flip(t, d, seg1, 0, 4)
	}, fileRestored, Damaged, nil},
	{"something else", func(t *testing.T, d disk.Disk) {
		change(t, d, seg1, func(b []byte) []byte {
			for i := range b {
				b[i] = "text, no segment\n"[i%17]
			}
			return b
		})
	}, fileForeign, Foreign, ErrForeign},
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestFileCases(t *testing.T) {
	rows := map[fileVerdict]int{}
	for _, c := range fileCases {
		t.Run(c.name, func(t *testing.T) {
			d := newDisk(1)
			p := newTestPool(t, d, lifeGrown)
			rng := rand.New(rand.NewPCG(1, 1))
			create(t, p, testMeta(2))
			w := create(t, p, testMeta(1))
			frames := write(t, w, rng, 10, 3, 500)
			w.Close()
			c.damage(t, d)
			o, err := openFile(d, seg1, true)
			must(t, err)
			o.close()
			v := mustRecover(t, d, seg1)
			if o.verd != c.verd || v.State != c.state || !errors.Is(v.Err(), c.err) {
				t.Fatalf("verdict %d, %s, %v; want %d, %s, %v", o.verd, v.State, v.Err(), c.verd, c.state, c.err)
			}
			rows[o.verd]++
			want := c.err
			if want == nil {
				want = ErrOpen
			}
			if _, err := OpenReader(d, seg1); !errors.Is(err, want) {
				t.Errorf("OpenReader: %v", err)
			}
			if r, err := v.Open(); !errors.Is(err, c.err) {
				t.Errorf("Open: %v", err)
			} else if err == nil {
				if end, fenced := r.End(); fenced || end != v.End {
					t.Errorf("the reader ends at %+v, %v", end, fenced)
				}
				must(t, r.Close())
			}
			k, err := Classify(d, seg1)
			must(t, err)
			if want := map[fileVerdict]Kind{fileUsed: KindSegment, fileRestored: KindSegment, fileLost: KindDamaged, fileNeverUsed: KindNeverUsed, fileForeign: KindForeign, fileNewer: KindNewer}[c.verd]; k.Kind != want || (k.Why == nil) != (c.verd == fileUsed) {
				t.Errorf("classified as %s (%v), want %s", k.Kind, k.Why, want)
			}
			if v.Err() != nil {
				if _, err := v.Fence(testNow, 1); !errors.Is(err, c.err) {
					t.Errorf("Fence: %v", err)
				}
				return
			}
			if v.End.Offset != frames[9].head.Next() || v.Meta != w.Meta() {
				t.Errorf("end %+v, meta %+v", v.End, v.Meta)
			}
			_, err = v.Fence(testNow, 1)
			must(t, err)
			holds(t, d, seg1, frames)
			if _, err := Verify(d, seg1, nil); (err == nil) != (c.verd == fileUsed) {
				t.Errorf("Verify: %v", err)
			}
		})
	}
	if len(rows) != int(fileNewer)+1 {
		t.Errorf("only %v of the verdicts were met", rows)
	}
}

func restampHeader(b []byte) {
	h := append([]byte(nil), b[:blockCRC]...)
	putCRC(b[blockCRC:], h, 0)
}

// tailCases makes the end of an open file for every row of the table. The file has
// 20 frames, one a flush; 0 to 14 are proved durable when all is there.
var tailCases = []struct {
	name    string
	life    life
	damage  func(t *testing.T, d disk.Disk, f []sent)
	proof   bool // a proof is written behind the frames, before the damage
	row     string
	state   State
	frames  int // whole frames before the end
	records uint64
	holes   int
}{
	{name: "the file ends", row: "the file ends with the last frame", state: Clean, frames: 20},
	{name: "zeros follow", life: lifePrepared, row: "only zeros follow", state: Clean, frames: 20},
	{name: "an earlier life follows (A04)", life: lifeRecycled, row: "only bytes of the file's earlier life follow", state: Clean, frames: 20},
	{
		name: "a flush is missing", life: lifePrepared, damage: zeroFrame(16), row: "a flush is missing and later ones are there: none of them was proved durable",
		state: Torn, frames: 16, records: 12,
	},
	{
		name: "a proved flush is missing", life: lifePrepared, damage: zeroFrame(3), row: "frames that were durable are zeros",
		state: Damaged, frames: 20, holes: 1,
	},
	{
		name: "a flush is still the earlier life's", life: lifeRecycled, damage: zeroFrame(16), row: "a flush is missing and later ones are there: none of them was proved durable",
		state: Torn, frames: 16, records: 12,
	},
	{
		name: "a proved flush is still the earlier life's", life: lifeRecycled, damage: zeroFrame(3), row: "frames that were durable are gone",
		state: Damaged, frames: 20, holes: 1,
	},
	{
		name: "a fence stopped behind its footer", life: lifePrepared, damage: footerOnly, row: "a fence wrote its footer and not its latch",
		state: Clean, frames: 20,
	},
	{
		name: "the last flush is torn", life: lifePrepared, damage: func(t *testing.T, d disk.Disk, f []sent) {
			wipe(t, d, seg1, f[19].pos+1024, f[19].pos+1536)
		}, row: "the last flush is not whole, and nothing proves that it ever was", state: Torn, frames: 19, records: 3,
	},
	{
		name: "the last flush lost its header's sector", damage: func(t *testing.T, d disk.Disk, f []sent) {
			wipe(t, d, seg1, f[19].pos, f[19].pos+512)
		}, row: "the last flush is not whole, and nothing proves that it ever was", state: Torn, frames: 19,
	},
	{
		name: "a bit of the last flush's header is wrong", life: lifeRecycled, damage: func(t *testing.T, d disk.Disk, f []sent) {
			flip(t, d, seg1, f[19].pos+25, 16)
		}, row: "the last flush is not whole, and nothing proves that it ever was", state: Torn, frames: 19, records: 3,
	},
	{
		name: "several bytes of the last flush's header are wrong", life: lifeRecycled, damage: func(t *testing.T, d disk.Disk, f []sent) {
			flip(t, d, seg1, f[19].pos+25, 16)
			flip(t, d, seg1, f[19].pos+45, 16)
		}, row: "the last flush is not whole, and nothing proves that it ever was", state: Torn, frames: 19,
	},
	{
		name: "the file was cut in the last frame", damage: func(t *testing.T, d disk.Disk, f []sent) {
			cutTo(t, d, seg1, f[19].pos+700)
		}, row: "the last flush is not whole, and nothing proves that it ever was", state: Torn, frames: 19, records: 3,
	},
	{
		name: "an unproved flush is torn and later ones are whole", damage: func(t *testing.T, d disk.Disk, f []sent) {
			flip(t, d, seg1, f[17].pos+900, 1)
		}, row: "a flush is not whole, and neither it nor the later ones were proved durable", state: Torn, frames: 17, records: 9,
	},
	{
		name: "a proved frame's header is damaged (A11)", damage: func(t *testing.T, d disk.Disk, f []sent) {
			flip(t, d, seg1, f[7].pos+16, 1)
		}, row: "frames that were durable are damaged", state: Damaged, frames: 20, holes: 1,
	},
	{
		name: "the last frame's payload is damaged, a proof follows", proof: true, damage: func(t *testing.T, d disk.Disk, f []sent) {
			flip(t, d, seg1, f[19].pos+16, 1)
		}, row: "frames that were durable are damaged", state: Damaged, frames: 20, holes: 1,
	},
	{
		name: "an unproved flush's padding is torn", damage: func(t *testing.T, d disk.Disk, f []sent) {
			flip(t, d, seg1, f[17].pos+alignFrame(int64(f[17].head.FrameLen))+130, 1)
		}, row: "the padding of a flush is not whole", state: Torn, frames: 20, holes: 1,
	},
	{
		name: "padding between proved flushes is damaged", damage: func(t *testing.T, d disk.Disk, f []sent) {
			flip(t, d, seg1, f[7].pos+alignFrame(int64(f[7].head.FrameLen))+1, 1)
		}, row: "padding that was durable is damaged", state: Damaged, frames: 20, holes: 1,
	},
	{
		name: "the start mark is damaged", damage: func(t *testing.T, d disk.Disk, f []sent) {
			flip(t, d, seg1, DataStart+9, 1)
		}, row: "frames that were durable are damaged", state: Damaged, frames: 20, holes: 1,
	},
}

func zeroFrame(i int) func(t *testing.T, d disk.Disk, f []sent) {
	return func(t *testing.T, d disk.Disk, f []sent) {
		wipe(t, d, seg1, f[i].pos, f[i].pos+alignBlock(int64(f[i].head.FrameLen)))
	}
}

func footerOnly(t *testing.T, d disk.Disk, f []sent) {
	v := mustRecover(t, d, seg1)
	_, err := v.Fence(testNow, 1)
	must(t, err)
	wipe(t, d, seg1, slotA, DataStart)
}

// Every row of the table of ends comes from a file that looks like it, and no
// combination has two rows.
func TestTailCases(t *testing.T) {
	met := map[string]bool{}
	for _, c := range tailCases {
		t.Run(c.name, func(t *testing.T) {
			d := newDisk(1)
			w := create(t, newTestPool(t, d, c.life), testMeta(1))
			rng := rand.New(rand.NewPCG(1, 1))
			g := &producerModel{id: 3}
			var frames []sent
			var durable int64
			for i := range 20 {
				f := g.frame(rng, 3, 400)
				pos := w.Position()
				if i < 15 {
					durable = pos
				}
				b, heads := flush(w, durable, f)
				must(t, w.File().WriteAt(b, pos))
				w.Advance(pos, int64(len(b)), heads)
				frames = append(frames, sent{pos, f, heads[0]})
			}
			if c.proof {
				must(t, w.WriteProof())
			}
			w.Close()
			if c.damage != nil {
				c.damage(t, d, frames)
			}
			v := mustRecover(t, d, seg1)
			if v.State != c.state || len(v.Holes) != c.holes || v.Cut.Records != c.records {
				t.Fatalf("%s (%s), %d holes, cut %+v; want %s, %d holes, %d records cut", v.State, v.Why, len(v.Holes), v.Cut, c.state, c.holes, c.records)
			}
			if v.End.Offset != frames[c.frames-1].head.Next() {
				t.Fatalf("ends at %d, want %d", v.End.Offset, frames[c.frames-1].head.Next())
			}
			faulty := false
			for _, f := range v.Faults {
				faulty = faulty || f.Reason == c.row
			}
			if v.Why != c.row && !faulty {
				t.Fatalf("%q, want %q (%v)", v.Why, c.row, v.Faults)
			}
			met[c.row] = true
			if c.state == Torn && c.holes == 0 && v.Cut.Length == 0 {
				t.Error("torn, and nothing was set aside")
			}
			rep, err := Verify(d, seg1, nil)
			if c.state == Damaged {
				if !errors.Is(err, ErrDamaged) || rep.State != Damaged {
					t.Errorf("Verify: %s, %v", rep.State, err)
				}
			} else if err != nil || rep.State != c.state || rep.Cut != v.Cut || rep.End != v.End {
				t.Errorf("Verify: %s, cut %+v, %v", rep.State, rep.Cut, err)
			}
			before := contents(t, d, seg1)
			checkAside(t, refence(t, rng, d, v, frames[:c.frames]), v, before)
		})
	}
	seen := map[tailRow]bool{}
	for _, r := range tailRows {
		if !met[r.why] {
			t.Errorf("no file makes the row %q", r.why)
		}
		key := tailRow{at: r.at, behind: r.behind, proven: r.proven, joined: r.joined}
		if seen[key] {
			t.Errorf("two rows for %+v", key)
		}
		seen[key] = true
		if verd, why := decideTail(r.at, r.behind, r.proven, r.joined); verd != r.verd || why != r.why {
			t.Errorf("row %+v answers %v %q", r, verd, why)
		}
		if r.verd == tailClean && (r.behind || r.proven) || r.verd == tailHole && !r.proven || r.proven && !r.behind || r.joined && !r.behind {
			t.Errorf("row %+v makes no sense", r)
		}
	}
}

// checkAside: what was cut off lies in the file as it did before the fence.
func checkAside(t *testing.T, d disk.Disk, v *Verdict, before []byte) {
	t.Helper()
	if v.Cut.Length == 0 {
		return
	}
	r, err := OpenReader(d, seg1)
	must(t, err)
	defer r.Close()
	if r.Cut() != v.Cut {
		t.Errorf("the footer says that %+v was cut, recovery said %+v", r.Cut(), v.Cut)
	}
	have := contents(t, d, seg1)[v.Cut.Position:min(v.Cut.Position+v.Cut.Length, int64(len(before)))]
	if string(have) != string(before[v.Cut.Position:v.Cut.Position+int64(len(have))]) {
		t.Error("bytes that were set aside changed")
	}
}

// A producer whose last acknowledged batch was damaged goes on behind it: it was
// told that the batch is safe and will not send it again.
func TestDamageKeepsProducersGoing(t *testing.T) {
	for _, at := range []int64{25, record.HeaderSize + 20} { // a bit of the header, or of the payload
		d := newDisk(1)
		w := create(t, newTestPool(t, d, lifeGrown), testMeta(1))
		g := &producerModel{id: 9}
		write(t, w, rand.New(rand.NewPCG(1, 1)), 3, 2, 300)
		pos := w.Position()
		put(t, w, g.frame(rand.New(rand.NewPCG(1, 2)), 4, 300))
		must(t, w.WriteProof())
		must(t, w.Close())
		flip(t, d, seg1, pos+at, 4)
		v := mustRecover(t, d, seg1)
		if at < record.HeaderSize && v.State != Damaged {
			t.Fatalf("%s: %s", v.State, v.Why)
		}
		if j, err := v.Table.Judge(batchOf(9, 4, 5, 6)); j != Fresh || err != nil {
			t.Errorf("byte %d: %v %v", at, j, err)
		}
		_, err := v.Fence(testNow, 1)
		must(t, err)
		rep, err := Verify(d, seg1, nil)
		if !errors.Is(err, ErrDamaged) || len(rep.Problems) != 1 || rep.Problems[0].Byte != pos {
			t.Errorf("byte %d: %v", at, rep.Problems)
		}
	}
}

// Where a start mark is damaged, the table of the segment before and the frames
// give what the file cannot.
func TestReplay(t *testing.T) {
	d := newDisk(1)
	table := NewProducerTable(0, 1<<32)
	table.Update(batchOf(77, 0, 1, 5))
	w, err := newTestPool(t, d, lifeGrown).Create(t.Context(), testMeta(1), table.Clone())
	must(t, err)
	write(t, w, rand.New(rand.NewPCG(1, 1)), 3, 2, 300)
	want, _ := w.Table().AppendBinary(nil)
	must(t, w.Close())
	flip(t, d, seg1, DataStart+300, 1)
	v := mustRecover(t, d, seg1)
	if v.Table != nil || v.State != Damaged {
		t.Fatalf("%s, table %v", v.State, v.Table)
	}
	_, err = v.Fence(testNow, 1)
	must(t, err)
	r, err := OpenReader(d, seg1)
	must(t, err)
	defer r.Close()
	if r.Table() != nil {
		t.Fatal("the footer has a table that nobody knows")
	}
	must(t, r.Replay(table))
	if have, _ := table.AppendBinary(nil); string(have) != string(want) {
		t.Error("the table did not come back")
	}
}

// A17: the record of losses is there, whole, or not at all, whatever happens while
// it is written.
func TestA17LossRecordCrash(t *testing.T) {
	there := map[bool]int{}
	for seed := range uint64(40) {
		rng := rand.New(rand.NewPCG(seed, 12))
		d := newDisk(seed)
		w := create(t, newTestPool(t, d, lifeGrown), testMeta(1))
		frames := write(t, w, rng, 10, 2, 300)
		fenceNow(t, w)
		must(t, w.Close())
		flip(t, d, seg1, frames[4].pos+150, 1)
		d.CutAfter(rng.IntN(5))
		_, err := AcceptLoss(d, seg1)
		d = d.Crash(rng)
		r, rerr := OpenReader(d, seg1)
		must(t, rerr)
		holes, herr := r.Holes()
		must(t, herr)
		must(t, r.Close())
		if len(holes) > 1 || err == nil && len(holes) == 0 || len(holes) == 1 && (!holes[0].Accepted || holes[0].Records != 2) {
			t.Fatalf("seed %d: %v, then holes %+v", seed, err, holes)
		}
		there[len(holes) == 1]++
		if _, err := AcceptLoss(d, seg1); err != nil {
			t.Fatalf("seed %d: again: %v", seed, err)
		}
		for _, n := range list(t, d, Dir(testID(1).Range.Topic)) {
			k, err := Classify(d, Dir(testID(1).Range.Topic)+"/"+n)
			must(t, err)
			if k.Kind != KindSegment && k.Kind != KindLoss || k.ID != testID(1) {
				t.Errorf("%s is %s of %v", n, k.Kind, k.ID)
			}
		}
	}
	if len(there) != 2 {
		t.Errorf("the record was there or not: %v; the test does not test both", there)
	}
}

// A damaged record of losses accepts nothing.
func TestDamagedLossRecord(t *testing.T) {
	d := newDisk(1)
	w := create(t, newTestPool(t, d, lifeGrown), testMeta(1))
	frames := write(t, w, rand.New(rand.NewPCG(1, 1)), 10, 2, 300)
	fenceNow(t, w)
	must(t, w.Close())
	flip(t, d, seg1, frames[4].pos+16, 1)
	_, err := AcceptLoss(d, seg1)
	must(t, err)
	flip(t, d, seg1+lossSuffix, 30, 1)
	r, err := OpenReader(d, seg1)
	must(t, err)
	defer r.Close()
	_, _, err = r.ReadFrames(make([]byte, 8192), frames[4].pos)
	var h *HoleError
	if !errors.Is(err, ErrDamaged) || errors.As(err, &h) && h.Hole.Accepted {
		t.Error(err)
	}
	if _, err := r.Holes(); !errors.Is(err, ErrDamaged) {
		t.Error(err)
	}
}

// D10: files that are none of ours are told apart and stay.
func TestD10Classify(t *testing.T) {
	d := newDisk(1)
	p := newTestPool(t, d, lifeGrown)
	create(t, p, testMeta(1))
	dir := Dir(testID(1).Range.Topic)
	for name, kind := range map[string]Kind{
		seg1: KindSegment, dir + "/notes": KindUnknown, dir + "/00000001.seg": KindUnknown, Name(testID(5)): KindNeverUsed,
		seg1 + lossSuffix: KindLoss, seg1 + lossSuffix + ".tmp": KindLossPartial, poolDir + "/0000000000000009.old": KindPool, poolDir + "/9": KindUnknown, "lock": KindUnknown,
	} {
		if f, err := d.Create(name); err == nil {
			must(t, f.Close())
		}
		k, err := Classify(d, name)
		if err != nil || k.Kind != kind {
			t.Errorf("%s: %s, %v; want %s", name, k.Kind, err, kind)
		}
	}
	if _, err := Classify(d, Name(testID(6))); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}

// A segment without a record is fenced where it began.
func TestEmptySegment(t *testing.T) {
	d := newDisk(1)
	w := create(t, newTestPool(t, d, lifeGrown), testMeta(1))
	l := fenceNow(t, w)
	must(t, Trim(d, seg1))
	if end, _ := l.End(); end.Offset != 1000 || end.Bytes != 0 {
		t.Errorf("%+v", end)
	}
	if rep := sound(t, d, seg1); rep.Marks != 2 || rep.Records != 0 {
		t.Errorf("%+v", rep)
	}
	holds(t, d, seg1, nil)
	r, err := OpenReader(d, seg1)
	must(t, err)
	defer r.Close()
	if _, ok := r.Find(1000); ok {
		t.Error("a record is found")
	}
	if _, ok := r.FindTime(0); ok {
		t.Error("a time is found")
	}
}

// A stretch longer than the search, gone from a file that had zeros or an earlier
// life in it, is not taken for the end: frames far behind it still tell, wherever there
// are as many as lie between two probes.
func TestALongStretchIsGone(t *testing.T) {
	const mib = 1 << 20
	for _, c := range []struct {
		size, gone, behind int64 // of the file, of what is lost in it, and of the frames behind that
		found              bool
	}{
		{16 * mib, 3 * mib, 7 * mib, true},
		{48 * mib, 20 * mib, 16 * mib, true}, // behind the probes at 4 and 16 MiB
		{48 * mib, 20 * mib, 2 * mib, false}, // between that and the next
	} {
		d := newDisk(1)
		p, err := NewPool(d, PoolOptions{SegmentBytes: c.size})
		must(t, err)
		f, err := d.Create(poolName(1, poolNew))
		must(t, err)
		must(t, f.Allocate(0, c.size))
		must(t, f.Close())
		p.keep(poolFile{num: 1, kind: poolNew, size: c.size})
		w := create(t, p, testMeta(1))
		if w.hdr.blocks != c.size {
			t.Fatalf("the file was %d bytes long", w.hdr.blocks)
		}
		rng := rand.New(rand.NewPCG(1, 1))
		write(t, w, rng, 3, 1, 700_000)
		at := w.Position()
		w.pos, w.tally.next = w.pos+c.gone, w.tally.next+1000 // as if a thousand records lay there
		for w.Position() < at+c.gone+c.behind {
			write(t, w, rng, 1, 1, 700_000)
		}
		must(t, w.Close())
		v := mustRecover(t, d, seg1)
		switch {
		case !c.found: // as probe says of itself
			if v.State != Clean || v.End.Position != at {
				t.Errorf("%d MiB gone: %s (%s) at %+v", c.gone/mib, v.State, v.Why, v.End)
			}
		case v.State != Damaged || v.End.Offset != w.NextOffset() || len(v.Holes) != 1 || v.Holes[0].Position != at || v.Holes[0].Records != 1000:
			t.Errorf("%d MiB gone: %s (%s) at %+v, holes %+v", c.gone/mib, v.State, v.Why, v.End, v.Holes)
		}
	}
}

// A frame of a later version is not damage: nothing is decided about the file.
func TestNewerFrame(t *testing.T) {
	d := newDisk(1)
	w := create(t, newTestPool(t, d, lifeGrown), testMeta(1))
	frames := write(t, w, rand.New(rand.NewPCG(1, 1)), 10, 1, 1000)
	patch(t, d, seg1, frames[5].pos, frames[5].pos+record.HeaderSize, func(b []byte) {
		b[4]++
		putCRC(b[record.HeaderSize-4:], b[:record.HeaderSize-4], w.Meta().Salt)
	})
	if _, err := Recover(d, seg1); !errors.Is(err, ErrNewer) {
		t.Errorf("Recover: %v", err)
	}
	fenceNow(t, w)
	r, err := OpenReader(d, seg1)
	must(t, err)
	defer r.Close()
	if err := Scan(r, func(int64, record.Head, []byte) error { return nil }); !errors.Is(err, ErrNewer) {
		t.Errorf("Scan: %v", err)
	}
	if _, err := Verify(d, seg1, nil); !errors.Is(err, ErrNewer) {
		t.Errorf("Verify: %v", err)
	}
}

// A01: the last record of a file that was prepared torn at every boundary of 512
// bytes and of 4,096: open succeeds, the torn one is dropped, all before it is
// there, the next append in a successor gets its offset.
func TestA01TornAtEveryBoundary(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	d := newDisk(1)
	w := create(t, newTestPool(t, d, lifePrepared), testMeta(1))
	frames := write(t, w, rng, 40, 5, 300)
	last := write(t, w, rng, 1, 1, 20_000)[0]
	w.Close()
	whole := contents(t, d, seg1)
	for at := last.pos; at < last.pos+int64(last.head.FrameLen); at += 512 {
		patch(t, d, seg1, last.pos, last.pos+alignBlock(int64(last.head.FrameLen)), func(b []byte) {
			copy(b, whole[last.pos:])
			clear(b[at-last.pos:])
		})
		v := mustRecover(t, d, seg1)
		if v.End.Offset != last.head.Base || v.State == Damaged {
			t.Fatalf("torn at %d: %s at %d, want %d", at-last.pos, v.State, v.End.Offset, last.head.Base)
		}
		if (v.State == Torn) != (at > last.pos) {
			t.Fatalf("torn at %d: %s", at-last.pos, v.State)
		}
		again := mustRecover(t, d, seg1)
		if again.End != v.End || again.Cut != v.Cut {
			t.Fatal("the second recovery says something else")
		}
	}
	v := mustRecover(t, d, seg1)
	_, err := v.Fence(testNow, 1)
	must(t, err)
	holds(t, d, seg1, frames)
}

// A05: a record that cannot be read is never below the end that recovery reports,
// wherever the file was cut.
func TestA05CutAtEveryByte(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	d := newDisk(1)
	w := create(t, newTestPool(t, d, lifeGrown), testMeta(1))
	frames := write(t, w, rng, 3, 2, 100)
	w.Close()
	whole := contents(t, d, seg1)
	last := frames[2]
	for cut := int64(0); cut <= int64(last.head.FrameLen); cut++ {
		change(t, d, seg1, func([]byte) []byte { return append([]byte(nil), whole[:last.pos+cut]...) })
		v := mustRecover(t, d, seg1)
		want := frames[1].head.Next()
		if cut == int64(last.head.FrameLen) {
			want = last.head.Next()
		}
		if v.End.Offset != want {
			t.Fatalf("cut %d bytes into the last frame: ends at %d, want %d", cut, v.End.Offset, want)
		}
		if v.State == Clean != (cut == 0 || cut == int64(last.head.FrameLen)) {
			t.Fatalf("cut %d bytes into the last frame: %s", cut, v.State)
		}
	}
}

// A10: a file in which no record is left still says where numbering goes on.
func TestA10NoRecordLeft(t *testing.T) {
	for _, size := range []int64{block, DataStart, DataStart + 100, DataStart + block} {
		d := newDisk(1)
		w := create(t, newTestPool(t, d, lifeGrown), testMeta(1))
		write(t, w, rand.New(rand.NewPCG(1, 1)), 5, 2, 100)
		w.Close()
		cutTo(t, d, seg1, size)
		v := mustRecover(t, d, seg1)
		if v.End.Offset != 1000 {
			t.Fatalf("cut to %d: ends at %d (%s)", size, v.End.Offset, v.Why)
		}
		if whole := size == DataStart+block; (v.State == Damaged) == whole || (v.Table == nil) == whole {
			t.Errorf("cut to %d: %s (%s), table %v", size, v.State, v.Why, v.Table)
		}
		latch, err := v.Fence(testNow, 1)
		must(t, err)
		if end, _ := latch.End(); end.Offset != 1000 {
			t.Errorf("fenced at %+v", end)
		}
		if v = mustRecover(t, d, seg1); v.Latch.State() != fence.Fenced || v.End.Offset != 1000 {
			t.Errorf("cut to %d: after the fence %v at %+v", size, v.Latch.State(), v.End)
		}
	}
}

// A11: one byte of record 500 of 1,000 is wrong, in an open segment with valid
// records behind it and in a fenced one: damage, with its place; nothing behind it
// reads as if it followed.
func TestA11DamageInTheMiddle(t *testing.T) {
	for _, fenced := range []bool{false, true} {
		t.Run(fmt.Sprint("fenced=", fenced), func(t *testing.T) {
			d := newDisk(1)
			w := create(t, newTestPool(t, d, lifeGrown), testMeta(1))
			frames := write(t, w, rand.New(rand.NewPCG(1, 1)), 1000, 1, 100)
			if fenced {
				fenceNow(t, w)
			}
			w.Close()
			bad := frames[500]
			flip(t, d, seg1, bad.pos+200, 8)
			v := mustRecover(t, d, seg1)
			if v.End.Offset != 2000 {
				t.Fatalf("recovered up to %d", v.End.Offset)
			}
			rep, err := Verify(d, seg1, nil)
			var c *CorruptError
			if !errors.As(err, &c) || c.Byte != bad.pos || !errors.Is(err, ErrDamaged) || len(rep.Problems) != 1 {
				t.Fatalf("Verify: %v %v", err, rep.Problems)
			}
			if len(rep.Holes) != 1 || rep.Holes[0].Offset != 1500 || rep.Holes[0].Records != 1 {
				t.Fatalf("holes %+v", rep.Holes)
			}
			if !fenced {
				_, err = v.Fence(testNow, 1)
				must(t, err)
			}
			r, err := OpenReader(d, seg1)
			must(t, err)
			defer r.Close()
			n := 0
			err = Scan(r, func(_ int64, h record.Head, _ []byte) error { n += int(h.Count); return nil })
			if !errors.As(err, &c) || c.Byte != bad.pos || n != 500 {
				t.Fatalf("%d records, then %v", n, err)
			}
			acceptLoss(t, d, frames, 500)
		})
	}
}

// acceptLoss puts the loss on record and reads around it.
func acceptLoss(t *testing.T, d disk.Disk, frames []sent, bad int) {
	t.Helper()
	holes, err := AcceptLoss(d, seg1)
	if err != nil || len(holes) != 1 {
		t.Fatal(holes, err)
	}
	r, err := OpenReader(d, seg1)
	must(t, err)
	defer r.Close()
	buf := make([]byte, 64<<10)
	pos, skipped, got := int64(DataStart), uint64(0), uint64(0)
	for {
		b, next, err := r.ReadFrames(buf, pos)
		var h *HoleError
		switch {
		case errors.Is(err, io.EOF):
			if skipped != 1 || got+skipped != uint64(len(frames)) {
				t.Fatalf("%d records read, %d skipped of %d", got, skipped, len(frames))
			}
			return
		case errors.As(err, &h):
			if !h.Hole.Accepted {
				t.Fatalf("not accepted: %v", err)
			}
			skipped += h.Hole.Records
			pos = h.Hole.Position + h.Hole.Length
			continue
		case err != nil:
			t.Fatal(err)
		}
		err = Walk(b, pos, r.Meta().Salt, func(at int64, h record.Head, frame []byte) error {
			if _, err := record.Check(frame, r.Meta().Salt); err != nil {
				next = at // as a reader does that verifies what it reads
				return io.EOF
			}
			got += uint64(h.Count)
			return nil
		})
		if err != nil {
			hs, err := r.Holes()
			if err != nil || len(hs) != 1 || hs[0].Position != next || !hs[0].Accepted {
				t.Fatalf("holes %+v %v, damage at %d", hs, err, next)
			}
			skipped += hs[0].Records
			next = hs[0].Position + hs[0].Length
		}
		pos = next
	}
}

// A19: a file says itself which segment it is, whatever lies beside it and in
// whatever order it is listed.
func TestA19StaleFile(t *testing.T) {
	d := newDisk(1)
	p := newTestPool(t, d, lifeGrown)
	rng := rand.New(rand.NewPCG(1, 1))
	for _, seq := range []uint32{1, 2} {
		w := create(t, p, testMeta(seq))
		write(t, w, rng, 3, 1, 10)
		w.Close()
	}
	old := contents(t, d, seg1)
	change(t, d, Name(testID(2)), func([]byte) []byte { return old }) // a stale copy under the newer name
	v := mustRecover(t, d, Name(testID(2)))
	if v.State != Foreign || !errors.Is(v.Err(), ErrForeign) {
		t.Fatalf("%s: %v", v.State, v.Err())
	}
	if v := mustRecover(t, d, seg1); v.State != Clean {
		t.Fatal(v.State)
	}
}

// B16, A12: recovering a fenced file reads its head and its footer, damaged or not
// in between; a footer that is damaged costs the frame heads of that file alone.
func TestB16RecoveryReadsLittle(t *testing.T) {
	d := newDisk(1)
	w := create(t, newTestPool(t, d, lifeGrown), testMeta(1))
	write(t, w, rand.New(rand.NewPCG(1, 1)), 40, 1, 300_000)
	end := w.End()
	fenceNow(t, w)
	w.Close()
	v := mustRecover(t, d, seg1)
	if v.ReadBytes > 64<<10 {
		t.Errorf("%d bytes read for a fenced file", v.ReadBytes)
	}
	flip(t, d, seg1, end.Position+40, 1)
	v = mustRecover(t, d, seg1)
	if v.ReadBytes > 64<<10+40*2*block || len(v.Faults) != 1 || v.State != Clean || v.End != end {
		t.Errorf("%d bytes read, %s at %+v, faults %v", v.ReadBytes, v.State, v.End, v.Faults)
	}
	if v.Table == nil || v.Table.Len() != 1 {
		t.Error("the producer table did not come back")
	}
}

// C04: what a segment's first acknowledged record needs on disk is durable before
// Create returns: the file, its name, the topic directory and topics itself.
func TestC04NamesAreDurable(t *testing.T) {
	for seed := range uint64(100) {
		d := newDisk(seed)
		p := newTestPool(t, d, life(seed%uint64(lives)))
		w := create(t, p, testMeta(1))
		put(t, w, (&producerModel{id: 3}).frame(rand.New(rand.NewPCG(seed, 1)), 3, 100))
		after := d.Crash(rand.New(rand.NewPCG(seed, 2)))
		if v, err := Recover(after, seg1); err != nil || v.End.Offset != 1003 {
			t.Fatalf("seed %d: %v %+v", seed, err, v)
		}
		if f, err := after.Open(poolDir+"/"+"0000000000000000.new", true); !errors.Is(err, fs.ErrNotExist) {
			f.Close()
			t.Fatalf("seed %d: the pool's name came back", seed)
		}
	}
}
