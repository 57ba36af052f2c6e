package segfile

import (
	"bytes"
	"errors"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/ringfence/ringfence/segfile/record"
)

// modelRange is a range that remembers every record it was given.
type modelRange struct {
	table *ProducerTable
	have  map[modelRecord]bool
}

type modelRecord struct {
	producer, seq uint64
	pos           uint32
}

func (m *modelRange) covers(pos uint32) bool {
	start, end := m.table.Bounds()
	return uint64(pos) >= start && uint64(pos) < end
}

// place sends records as one batch, as a producer does whose batches before it
// were all answered, and holds the judgement to what the range really has.
func (m *modelRange) place(t *rapid.T, id, prev uint64, batch []modelRecord) {
	h := record.Head{Producer: id, PrevSeq: prev, FirstSeq: batch[0].seq, LastSeq: batch[len(batch)-1].seq, MinPos: batch[0].pos, MaxPos: batch[0].pos, Count: uint32(len(batch))}
	dup := 0
	for _, r := range batch {
		h.MinPos, h.MaxPos = min(h.MinPos, r.pos), max(h.MaxPos, r.pos)
		if m.have[r] {
			dup++
		}
		if seen := m.table.Seen(id, r.seq, r.pos); seen != m.have[r] {
			t.Fatalf("producer %d sequence %d at %#x: seen %v, stored %v", id, r.seq, r.pos, seen, m.have[r])
		}
	}
	j, err := m.table.Judge(&h)
	if err != nil {
		t.Fatalf("producer %d, %d to %d after %d: %v", id, h.FirstSeq, h.LastSeq, prev, err)
	}
	if j == Fresh && dup > 0 || j == Duplicate && dup < len(batch) {
		t.Fatalf("judged %d, and %d of %d are stored", j, dup, len(batch))
	}
	if j == Duplicate {
		return
	}
	for _, r := range batch {
		m.have[r] = true
	}
	m.table.Update(&h)
}

// Producers that send in order and send again what they like have no record stored
// twice and none taken for stored that is not, whatever splits and merges happen.
func TestProducerTableModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ranges := []*modelRange{{NewProducerTable(0, 1<<32), map[modelRecord]bool{}}}
		made := map[uint64][]modelRecord{}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			switch op := rapid.IntRange(0, 9).Draw(t, "op"); {
			case op == 0 && len(ranges) < 5:
				ranges = split(ranges, rapid.IntRange(0, len(ranges)-1).Draw(t, "range"))
			case op == 1 && len(ranges) > 1:
				ranges = merge(ranges, rapid.IntRange(0, len(ranges)-2).Draw(t, "range"))
			default:
				id := rapid.Uint64Range(1, 3).Draw(t, "producer")
				again := rapid.IntRange(0, min(len(made[id]), 5)).Draw(t, "again")
				from := len(made[id]) - again
				for range rapid.IntRange(1, 4).Draw(t, "new") {
					made[id] = append(made[id], modelRecord{id, uint64(len(made[id])) + 1, rapid.Uint32().Draw(t, "pos")})
				}
				send(t, ranges, id, made[id], from)
			}
			for _, r := range ranges {
				checkTable(t, r.table)
			}
		}
	})
}

// send brings made[from:] to the ranges, one batch each. The predecessor that a
// batch names is the last record before it that went to the range.
func send(t *rapid.T, ranges []*modelRange, id uint64, made []modelRecord, from int) {
	for _, r := range ranges {
		var batch []modelRecord
		prev := uint64(0)
		for i, rec := range made {
			switch {
			case !r.covers(rec.pos):
			case i < from:
				prev = rec.seq
			default:
				batch = append(batch, rec)
			}
		}
		if len(batch) > 0 {
			r.place(t, id, prev, batch)
		}
	}
}

func split(ranges []*modelRange, i int) []*modelRange {
	r := ranges[i]
	start, end := r.table.Bounds()
	var halves []*modelRange
	for _, b := range [][2]uint64{{start, (start + end) / 2}, {(start + end) / 2, end}} {
		h := &modelRange{r.table.Slice(b[0], b[1]), map[modelRecord]bool{}}
		for rec := range r.have {
			if h.covers(rec.pos) {
				h.have[rec] = true
			}
		}
		halves = append(halves, h)
	}
	return slices.Replace(ranges, i, i+1, halves...)
}

func merge(ranges []*modelRange, i int) []*modelRange {
	a, b := ranges[i], ranges[i+1]
	m := &modelRange{MergeTables(b.table, a.table), map[modelRecord]bool{}}
	for _, r := range []*modelRange{a, b} {
		for rec := range r.have {
			m.have[rec] = true
		}
	}
	return slices.Replace(ranges, i, i+2, m)
}

func checkTable(t *rapid.T, table *ProducerTable) {
	if err := table.Check(); err != nil {
		t.Fatal(err)
	}
	b, _ := table.AppendBinary(nil)
	back, err := DecodeProducerTable(b)
	if err != nil {
		t.Fatal(err)
	}
	again, _ := back.AppendBinary(nil)
	clone, _ := table.Clone().AppendBinary(nil)
	if !bytes.Equal(b, again) || !bytes.Equal(b, clone) || back.Len() != table.Len() {
		t.Fatal("the table changed on its way")
	}
}

func batchOf(id, prev, first, last uint64) *record.Head {
	return &record.Head{Producer: id, PrevSeq: prev, FirstSeq: first, LastSeq: last, MaxPos: 1<<32 - 1, Count: uint32(last - first + 1), MaxTime: testNow}
}

func TestJudge(t *testing.T) {
	table := NewProducerTable(0, 1<<32)
	table.Update(batchOf(1, 0, 1, 10))
	for _, c := range []struct {
		h    *record.Head
		want Judgement
		err  error
	}{
		{batchOf(1, 10, 11, 15), Fresh, nil},
		{batchOf(1, 5, 11, 15), Fresh, nil},
		{batchOf(1, 0, 1, 10), Duplicate, nil},
		{batchOf(1, 3, 4, 5), Duplicate, nil},
		{batchOf(1, 8, 9, 12), Overlap, nil},
		{batchOf(1, 11, 12, 13), Fresh, ErrSequenceGap},
		{batchOf(2, 0, 1, 3), Fresh, nil},
		{batchOf(2, 0, 7, 9), Fresh, nil},
		{batchOf(2, 3, 4, 9), Fresh, ErrUnknownProducer},
		{&record.Head{Producer: 1, Count: 5}, Fresh, nil}, // no sequences
	} {
		j, err := table.Judge(c.h)
		if j != c.want || !errors.Is(err, c.err) {
			t.Errorf("%d to %d after %d: %v %v, want %v %v", c.h.FirstSeq, c.h.LastSeq, c.h.PrevSeq, j, err, c.want, c.err)
		}
	}
	if table.Seen(1, 0, 0) || table.Seen(3, 1, 0) || !table.Seen(1, 10, 0) || table.Seen(1, 11, 0) {
		t.Error("Seen")
	}
}

// A merged range judges a record by the half that it comes from.
func TestMergedHalves(t *testing.T) {
	whole := NewProducerTable(0, 1<<32)
	whole.Update(batchOf(1, 0, 1, 10))
	low, high := whole.Slice(0, 1<<31), whole.Slice(1<<31, 1<<32)
	h := batchOf(1, 10, 14, 15)
	h.MinPos = 1 << 31
	high.Update(h)
	m := MergeTables(low, high)
	if m.Len() != 2 {
		t.Fatalf("%d entries", m.Len())
	}
	// 13 belongs to the lower half, was never stored, and comes after 15.
	late := &record.Head{Producer: 1, PrevSeq: 10, FirstSeq: 13, LastSeq: 13, MinPos: 5, MaxPos: 5, Count: 1}
	if j, err := m.Judge(late); j != Fresh || err != nil {
		t.Errorf("%v %v", j, err)
	}
	late.MinPos, late.MaxPos = 1<<31, 1<<31
	if j, err := m.Judge(late); j != Duplicate || err != nil {
		t.Errorf("%v %v", j, err)
	}
	m.Update(batchOf(1, 15, 16, 20))
	if m.Len() != 1 {
		t.Errorf("%d entries after a batch over both halves", m.Len())
	}
}

// The table stays bounded; who was quiet longest is forgotten first, and told so.
func TestProducersAreForgotten(t *testing.T) {
	table := NewProducerTable(0, 1<<32)
	for i := range uint64(MaxProducers + 10) {
		table.Update(batchOf(i+1, 0, 1, 1))
		if i == 5 {
			table.Update(batchOf(1, 1, 2, 2)) // 1 is heard of again
		}
	}
	if table.Len() != MaxProducers {
		t.Fatalf("%d entries", table.Len())
	}
	if err := table.Check(); err != nil {
		t.Fatal(err)
	}
	for id, known := range map[uint64]bool{1: false, 2: false, 10: false, 11: true, MaxProducers + 10: true} {
		if _, _, ok := table.Lookup(id, 0); ok != known {
			t.Errorf("producer %d known: %v", id, ok)
		}
	}
	if _, err := table.Judge(batchOf(2, 1, 2, 2)); !errors.Is(err, ErrUnknownProducer) {
		t.Error(err)
	}
	b, _ := table.AppendBinary(nil)
	if len(b) > maxTable {
		t.Errorf("%d bytes", len(b))
	}
	if back, err := DecodeProducerTable(b); err != nil || back.Len() != MaxProducers {
		t.Error(err)
	}
}

func TestTableAllocatesNothing(t *testing.T) {
	table := NewProducerTable(0, 1<<32)
	h := batchOf(1, 0, 1, 1)
	table.Update(h)
	if n := testing.AllocsPerRun(100, func() {
		h.PrevSeq, h.FirstSeq, h.LastSeq = h.LastSeq, h.LastSeq+1, h.LastSeq+1
		if j, err := table.Judge(h); j != Fresh || err != nil {
			t.Fatal(j, err)
		}
		table.Update(h)
	}); n != 0 {
		t.Errorf("%v allocations for a batch", n)
	}
}

func BenchmarkProducerTable(b *testing.B) {
	for _, n := range []uint64{1, 1000, MaxProducers} {
		b.Run("producers="+itoa(n), func(b *testing.B) {
			table := NewProducerTable(0, 1<<32)
			h := batchOf(1, 0, 1, 1)
			i := uint64(0)
			for b.Loop() {
				h.Producer = i%n + 1
				h.FirstSeq, h.LastSeq, h.PrevSeq = i+1, i+1, 0
				i++
				if _, err := table.Judge(h); err != nil {
					b.Fatal(err)
				}
				table.Update(h)
			}
		})
	}
}

func FuzzProducerTable(f *testing.F) {
	b, _ := goldenTable().AppendBinary(nil)
	f.Add(b)
	b, _ = NewProducerTable(1<<31, 1<<32).AppendBinary(nil)
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		table, err := DecodeProducerTable(b)
		if err != nil {
			return
		}
		if err := table.Check(); err != nil {
			t.Fatal(err)
		}
		if again, _ := table.AppendBinary(nil); !bytes.Equal(again, b) {
			t.Fatalf("takes %x and writes %x", b, again)
		}
	})
}
