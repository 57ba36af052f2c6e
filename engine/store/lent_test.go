package store

import (
	"bytes"
	"errors"
	"log/slog"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/ringfence/ringfence/segfile"
	"github.com/ringfence/ringfence/segfile/disk/simdisk"
	"github.com/ringfence/ringfence/segfile/record"
)

// stranger is a segment with a lent frame between frames of others.
type stranger struct {
	d             *simdisk.Disk
	s             *Store
	seg           *Segment
	first, behind *batch // of another producer, before and behind
	lent          *batch
	lends, other  *source
}

func newStranger(t *testing.T) *stranger {
	t.Helper()
	d, s, l := lentStore(t, testOptions())
	x := &stranger{d: d, s: s, seg: newSegment(t, s, segID(1, 0), 100, nil), lends: &source{id: 1}, other: &source{id: 2}}
	rng := rand.New(rand.NewPCG(9, 9))
	x.first = x.other.next(rng, 2, 9000)
	put(t, x.seg, x.first)
	x.lent = x.lends.next(rng, 3, 20_000)
	f, err := l.lend(t, x.seg, x.lent)
	must(t, err)
	if f.wait(t); f.Err != nil {
		t.Fatal(f.Err)
	}
	x.behind = x.other.next(rng, 2, 9000)
	put(t, x.seg, x.behind)
	return x
}

// places are where a frame with b begins in the segment's file, and where its records are.
func (x *stranger) places(t *testing.T, d *simdisk.Disk, b *batch) (frame, records int64) {
	t.Helper()
	file := contents(t, d, x.seg.File())
	at := bytes.Index(file, b.values[0])
	if at < 0 {
		t.Fatal("the records are not in the file")
	}
	return int64(bytes.LastIndex(file[:at], []byte("RFrm"))), int64(at)
}

// othersAlone reads a segment in which the lent frame is damaged.
func (x *stranger) othersAlone(t *testing.T, seg *Segment) {
	t.Helper()
	items, skips := readSkipping(t, seg)
	want := []item{}
	for _, b := range []*batch{x.first, x.behind} {
		for i := range b.values {
			want = append(want, item{value: b.values[i]})
		}
	}
	if len(items) != len(want) {
		t.Fatalf("%d records are read, want %d", len(items), len(want))
	}
	for i := range items {
		if !bytes.Equal(items[i].value, want[i].value) || items[i].producer != x.other.id {
			t.Errorf("record %d is another one", i)
		}
	}
	if len(skips) != 1 || skips[0] != (Skipped{From: 102, Offsets: 3, Damaged: true}) {
		t.Errorf("skips %+v", skips)
	}
}

// What its producer changed and changed back while it was written is a frame whose payload
// is not what its header says: readers go on behind it and say so, while the segment is open
// and after it was fenced, and it is counted and told once. What the header says holds: the
// offsets, the producer's place. The same damage to a frame that was not lent, and any to a
// header, ends reading as ever. (C10)
func TestC10_DamageOfALentFrame(t *testing.T) {
	x := newStranger(t)
	d, s, seg := x.d, x.s, x.seg
	var log told
	s.log = slog.New(slog.NewTextHandler(&log, nil))
	at, records := x.places(t, d, x.lent)
	must(t, d.Rot(seg.File(), records+17))
	x.othersAlone(t, seg)
	end, err := seg.Fence()
	must(t, err)
	for range 3 {
		x.othersAlone(t, seg)
	}
	if n := s.Stats().Damages; n != 1 || log.count("segment file is damaged") != 1 {
		t.Errorf("%d damages are counted, logged %d times", n, log.count("segment file is damaged"))
	}
	found, err := seg.Found()
	if found != at || !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), "reads skip its records") || !strings.Contains(err.Error(), seg.path()) {
		t.Errorf("found at byte %d: %v, want byte %d", found, err, at)
	}
	table := segfile.NewProducerTable(0, 1<<32)
	must(t, seg.Replay(table))
	have, err := seg.Producers()
	must(t, err)
	for _, p := range []*source{x.lends, x.other} {
		replayed, _, _ := table.Lookup(p.id, 0)
		known, _, _ := have.Lookup(p.id, 0)
		if replayed != p.seq || known != p.seq {
			t.Errorf("producer %d stands at %d, by its frames at %d, want %d", p.id, known, replayed, p.seq)
		}
	}
	closeStore(t, s)

	restarted := func(change func(d *simdisk.Disk)) (*simdisk.Disk, *Store, *Segment) {
		d := x.d.Clone()
		change(d)
		s, _ := openStore(t, d, testOptions())
		return d, s, mustSegment(t, s, seg.ID())
	}
	d, s, again := restarted(func(*simdisk.Disk) {})
	if got, _ := again.Fenced(); got != end {
		t.Errorf("ends at %+v, want %+v", got, end)
	}
	x.othersAlone(t, again)
	must(t, again.Replay(segfile.NewProducerTable(0, 1<<32)))

	rep, err := segfile.Verify(d, seg.File(), nil)
	var where *segfile.CorruptError
	if !errors.As(err, &where) || where.Byte != at || len(rep.Problems) != 1 || !strings.Contains(where.Reason, "reads skip its 3 records") {
		t.Errorf("verified: %v, %v, want byte %d", err, rep.Problems, at)
	}
	if len(rep.Holes) != 1 || !rep.Holes[0].Lent || rep.Holes[0].Offset != 102 || rep.Holes[0].Records != 3 || rep.Records != 4 {
		t.Errorf("verified: %+v", rep)
	}
	holes, err := segfile.AcceptLoss(d, seg.File())
	if must(t, err); len(holes) != 1 || !holes[0].Accepted {
		t.Errorf("accepted %+v", holes)
	}
	if _, err := segfile.Verify(d, seg.File(), nil); err != nil {
		t.Errorf("with its loss accepted: %v", err)
	}
	x.othersAlone(t, again)
	closeStore(t, s)

	_, plain := x.places(t, x.d.Clone(), x.behind)
	for what, at := range map[string]int64{"records of another": plain + 17, "the header": at + 30} {
		d, s, again := restarted(func(d *simdisk.Disk) { must(t, d.Rot(seg.File(), at)) })
		if _, err := readSegment(again, 100); !errors.Is(err, ErrDamaged) || errors.Is(err, ErrStorage) {
			t.Errorf("with %s damaged reading ends with %v", what, err)
		}
		if err := again.Replay(segfile.NewProducerTable(0, 1<<32)); !errors.Is(err, ErrDamaged) {
			t.Errorf("with %s damaged the producers come from it: %v", what, err)
		}
		if _, err := segfile.Verify(d, seg.File(), nil); !errors.Is(err, segfile.ErrDamaged) {
			t.Errorf("with %s damaged it verifies: %v", what, err)
		}
		closeStore(t, s)
	}
}

// A start that finds a lent frame damaged keeps what others sent behind it, which says that
// all before was durable; where nothing is behind it, the frame is the end that was torn,
// and nobody else's is cut off. (C10)
func TestC10_StartWithADamagedLentFrame(t *testing.T) {
	for _, last := range []bool{false, true} {
		x := newStranger(t)
		d := x.d.Clone()
		_, records := x.places(t, d, x.lent)
		must(t, d.Rot(x.seg.File(), records+17))
		if last {
			at, _ := x.places(t, d, x.behind)
			b := contents(t, d, x.seg.File())
			clear(b[at:])
			write(t, d, x.seg.File(), b)
		}
		s, rec := openStore(t, d, testOptions())
		seg := mustSegment(t, s, x.seg.ID())
		end, fenced := seg.Fenced()
		if !fenced || len(rec.Damaged) != 0 {
			t.Fatalf("fenced %v, %+v", fenced, rec)
		}
		switch {
		case last:
			if items, err := readSegment(seg, 100); err != nil || len(items) != 2 || end.Offset != 102 {
				t.Errorf("%d records up to %d: %v", len(items), end.Offset, err)
			}
		case end.Offset != 107:
			t.Errorf("ends at offset %d", end.Offset)
		default:
			x.othersAlone(t, seg)
		}
		closeStore(t, s)
	}
}

// Only frames that are written from foreign memory as they are say that they were lent, and
// nobody can hand one in that says so.
func TestWhichFramesAreLent(t *testing.T) {
	x := newStranger(t)
	sc, err := x.seg.Scan(100)
	must(t, err)
	var lent []uint64
	for {
		b, err := sc.Next()
		if err != nil {
			break
		}
		if b.Head.Lent() {
			lent = append(lent, b.Head.Producer)
		}
	}
	sc.Close()
	if len(lent) != 1 || lent[0] != x.lends.id {
		t.Errorf("lent are frames of producers %v", lent)
	}
	f := &flying{seg: x.seg}
	arena := x.s.Disk().Arena()
	f.Frame = x.other.next(rand.New(rand.NewPCG(1, 1)), 1, 5000).frame(t, arena)
	h, err := record.ParseHead(f.Frame, 0)
	must(t, err)
	h.Flags = record.FlagLent
	h.Put(f.Frame, 0)
	if err := x.seg.Append(&f.Append); !errors.Is(err, record.ErrUsage) {
		t.Errorf("a frame that says it was lent is taken: %v", err)
	}
	f.Foreign, f.Head = true, h
	if err := x.seg.Append(&f.Append); !errors.Is(err, record.ErrUsage) {
		t.Errorf("a foreign frame that says it was lent is taken: %v", err)
	}
	arena.Free(f.Frame)
}
