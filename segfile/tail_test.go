package segfile

import (
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/ringfence/ringfence/fence"
	"github.com/ringfence/ringfence/segfile/disk"
)

// tailCases makes the end of an open file for every row of the table. The file has
// 20 frames, one a flush; 0 to 14 are proved durable when all is there.
var tailCases = []struct {
	name    string
	life    life
	damage  func(t *testing.T, d disk.Disk, f []sent)
	proof   bool // a proof is written behind the frames, before the damage
	pointer bool // the pointer says that all of them are durable
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
	{
		name: "the file was cut before frames that the pointer proves", pointer: true, damage: func(t *testing.T, d disk.Disk, f []sent) {
			cutTo(t, d, seg1, f[17].pos)
		}, row: "the file ends before frames that were durable", state: Damaged, frames: 20, holes: 1,
	},
	{
		name: "all frames behind one are zeros, and the pointer proves them", pointer: true, life: lifePrepared, damage: zerosFrom(17),
		row: "frames that were durable are zeros, and there are none behind them", state: Damaged, frames: 20, holes: 1,
	},
	{
		name: "all frames behind one are the earlier life's, and the pointer proves them", pointer: true, life: lifeRecycled, damage: zerosFrom(17),
		row: "frames that were durable are gone, and there are none behind them", state: Damaged, frames: 20, holes: 1,
	},
	{
		name: "the last frame is torn, and the pointer proves it", pointer: true, life: lifePrepared, damage: func(t *testing.T, d disk.Disk, f []sent) {
			flip(t, d, seg1, f[19].pos+25, 16)
			flip(t, d, seg1, f[19].pos+45, 16)
		}, row: "frames that were durable are damaged, and there are none behind them", state: Damaged, frames: 20, holes: 1,
	},
	{
		name: "a footer lies over frames that the pointer proves", pointer: true, life: lifeRecycled, damage: footerAtFrame(17, 20),
		row: "a footer lies where frames were durable, and there are none behind it", state: Damaged, frames: 20, holes: 1,
	},
	{
		name: "a footer lies over a frame that the pointer proves, and others follow", pointer: true, life: lifeRecycled, damage: footerAtFrame(17, 18),
		row: "a footer lies where frames were durable", state: Damaged, frames: 20, holes: 1,
	},
}

func zerosFrom(i int) func(t *testing.T, d disk.Disk, f []sent) {
	return func(t *testing.T, d disk.Disk, f []sent) {
		last := f[len(f)-1]
		wipe(t, d, seg1, f[i].pos, last.pos+alignBlock(int64(last.head.FrameLen)))
	}
}

// footerAtFrame writes the footer of a file that ends with frame i over it, and zeros
// over the others up to frame to.
func footerAtFrame(i, to int) func(t *testing.T, d disk.Disk, f []sent) {
	return func(t *testing.T, d disk.Disk, f []sent) {
		old := contents(t, d, seg1)
		zerosFrom(i)(t, d, f)
		wipe(t, d, seg1, DataStart+block, DataStart+2*block) // or nothing is fenced there
		v := mustRecover(t, d, seg1)
		v.End = fence.End{Offset: f[i].head.Base, Position: f[i].pos, Bytes: v.tally.bytes}
		ft := v.tally.footer(v.hdr.Base, v.End.Position, nil, Cut{})
		b, _ := ft.encode(v.hdr.Salt)
		if len(b) > block {
			t.Fatal("the footer reaches over the next frame")
		}
		end := f[len(f)-1].pos + alignBlock(int64(f[len(f)-1].head.FrameLen))
		from := end
		if to < len(f) {
			from = f[to].pos
		}
		patch(t, d, seg1, f[i].pos, end, func(have []byte) {
			copy(have, b)
			copy(have[from-f[i].pos:], old[from:end])
		})
		patch(t, d, seg1, DataStart+block, DataStart+2*block, func(b []byte) { copy(b, old[DataStart+block:]) })
	}
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
			if c.pointer {
				movePointer(t, w, w.End())
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
		if r.verd == tailClean && (r.behind || r.proven) || (r.verd == tailHole) != r.proven || r.joined && !r.behind {
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
