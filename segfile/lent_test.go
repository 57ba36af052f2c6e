package segfile

import (
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/ringfence/ringfence/segfile/record"
)

// putLent writes one flush with a lent frame, durably, and says where.
func putLent(t testing.TB, w *Writer, frame []byte) sent {
	t.Helper()
	pos := w.Position()
	b, heads := flush(w, pos, frame)
	heads[0].Flags = record.FlagLent
	heads[0].Put(b, w.Meta().Salt)
	must(t, w.File().WriteAt(b, pos))
	w.Advance(pos, int64(len(b)), heads)
	return sent{pos, b[:heads[0].FrameLen], heads[0]}
}

// A lent frame whose payload is not what its header says is damage in Verify, which names
// it, and the rest is held against the footer all the same: all else that the frame tells is
// known. A walk gets it without its bytes, and the producers' table comes back. Damage of
// its header is damage like any other. (C10)
func TestC10_LentFrame(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	d := newDisk(1)
	w := create(t, newTestPool(t, d, lifeGrown), testMeta(1))
	frames := write(t, w, rng, 5, 2, 300)
	lends := &producerModel{id: 77}
	lent := putLent(t, w, lends.frame(rng, 3, 2000))
	frames = append(frames, lent)
	frames = append(frames, write(t, w, rng, 5, 2, 300)...)
	table, err := w.Table().AppendBinary(nil)
	must(t, err)
	fenceNow(t, w)
	must(t, w.Close())
	if rep := sound(t, d, seg1); rep.Records != 23 || len(rep.Holes) != 0 {
		t.Errorf("%+v", rep)
	}
	whole, err := Verify(d, seg1, nil)
	must(t, err)
	scan := func() (n, without int, replayed *ProducerTable, err error) {
		r, err := OpenReader(d, seg1)
		must(t, err)
		defer r.Close()
		err = Scan(r, func(pos int64, h record.Head, frame []byte) error {
			if h.Mark() {
				return nil
			}
			if pos != frames[n].pos {
				t.Errorf("frame %d is at %d, want %d", n, pos, frames[n].pos)
			}
			if n++; frame == nil {
				without++
				if h != lent.head {
					t.Errorf("%+v came without its bytes", h)
				}
			}
			return nil
		})
		replayed = NewProducerTable(0, 1<<32)
		return n, without, replayed, errors.Join(err, r.Replay(replayed))
	}
	for _, damaged := range []bool{false, true} {
		if damaged {
			flip(t, d, seg1, lent.pos+record.HeaderSize+1000, 4)
		}
		n, without, replayed, err := scan()
		must(t, err)
		if n != len(frames) || without > 0 != damaged || without > 1 {
			t.Errorf("damaged %v: %d frames of %d, %d without their bytes", damaged, n, len(frames), without)
		}
		if have, _ := replayed.AppendBinary(nil); string(have) != string(table) {
			t.Errorf("damaged %v: the table did not come back", damaged)
		}
	}
	rep, err := Verify(d, seg1, nil)
	var c *CorruptError
	if !errors.As(err, &c) || c.Byte != lent.pos || len(rep.Problems) != 1 || rep.State != Damaged {
		t.Fatalf("%v, %v", err, rep.Problems)
	}
	if len(rep.Holes) != 1 || !rep.Holes[0].Lent || rep.Holes[0].Position != lent.pos || rep.Holes[0].Records != 3 {
		t.Errorf("holes %+v", rep.Holes)
	}
	if rep.Records != 20 || rep.Frames != 10 || rep.Bytes != whole.Bytes || rep.Digest != whole.Digest {
		t.Errorf("%+v, whole %+v", rep, whole)
	}
	// What else is wrong is found as ever, in a footer that goes by all frames, too.
	end, _ := rep.Latch.End()
	flip(t, d, seg1, end.Position+40, 1)
	if rep, _ := Verify(d, seg1, nil); len(rep.Problems) < 2 {
		t.Errorf("with the footer damaged: %v", rep.Problems)
	}
	flip(t, d, seg1, end.Position+40, 1)
	if holes, err := AcceptLoss(d, seg1); err != nil || len(holes) != 1 {
		t.Errorf("accepted %+v: %v", holes, err)
	}
	if rep, err := Verify(d, seg1, nil); err != nil || len(rep.Problems) != 1 || !rep.Problems[0].Accepted {
		t.Errorf("with its loss accepted: %v, %v", err, rep.Problems)
	}
	flip(t, d, seg1, lent.pos+20, 1)
	if _, _, _, err := scan(); !errors.Is(err, ErrDamaged) {
		t.Errorf("with its header damaged: %v", err)
	}
}
