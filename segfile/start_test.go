package segfile

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/ringfence/ringfence/segfile/record"
)

// An open file whose start mark is lost, in part or all of it, still has its records,
// to the last. What the range knew of its producers is unknown in it, never nothing,
// and comes back from the segment before and the frames, also once it is fenced.
func TestLostStartMark(t *testing.T) {
	for _, damage := range []struct {
		name string
		do   func(b []byte)
	}{
		{"a bit of the head", func(b []byte) { b[30] ^= 4 }},
		{"a bit of the payload", func(b []byte) { b[record.HeaderSize+100] ^= 1 }},
		{"no head", func(b []byte) { clear(b[:record.HeaderSize]) }},
		{"zeros", func(b []byte) { clear(b) }},
		{"other bytes", func(b []byte) {
			for i := range b {
				b[i] = byte(i*7 + 1)
			}
		}},
	} {
		for l := range lives {
			for _, n := range []int{0, 1, 5} {
				for _, proof := range []bool{false, true} {
					t.Run(fmt.Sprint(damage.name, "/", l, "/frames=", n, "/proof=", proof), func(t *testing.T) {
						d := newDisk(1)
						table := NewProducerTable(0, 1<<32)
						table.Update(batchOf(77, 0, 1, 5))
						w, err := newTestPool(t, d, l).Create(t.Context(), testMeta(1), table.Clone())
						must(t, err)
						frames := write(t, w, rand.New(rand.NewPCG(1, 1)), n, 2, 300)
						if proof {
							must(t, w.WriteProof())
						}
						want, _ := w.Table().AppendBinary(nil)
						end := w.End()
						must(t, w.Close())
						patch(t, d, seg1, DataStart, DataStart+block, damage.do)

						v := mustRecover(t, d, seg1)
						if v.State != Damaged || v.Table != nil || v.End.Offset != end.Offset || v.End.Bytes != end.Bytes {
							t.Fatalf("%s (%s) at %+v, want %+v; table %v", v.State, v.Why, v.End, end, v.Table)
						}
						_, err = v.Fence(testNow, 1)
						must(t, err)
						holds(t, d, seg1, frames)
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
						var c *CorruptError
						if _, err := Verify(d, seg1, nil); !errors.As(err, &c) || c.Byte != DataStart {
							t.Errorf("Verify: %v", err)
						}
					})
				}
			}
		}
	}
}
