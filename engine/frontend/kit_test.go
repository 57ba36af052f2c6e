package frontend

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync/atomic"

	"github.com/ringfence/ringfence/cp"
	"github.com/ringfence/ringfence/fence"
	"github.com/ringfence/ringfence/segfile/record"
)

// dice are deterministic bits for Options.Bits.
func dice() func() uint64 {
	var n atomic.Uint64
	return func() uint64 { return n.Add(0x9e3779b97f4a7c15) }
}

// topicID makes identities that fall into different shards.
func topicID(n uint64) (id fence.TopicID) {
	binary.LittleEndian.PutUint64(id[:], n)
	id[15] = byte(n >> 3)
	return id
}

// at builds a record by key and position.
func at(key string, position uint32) Record {
	return Record{Record: record.Record{Key: []byte(key), Value: []byte("v-" + key), Timestamp: 7}, Position: position}
}

// many builds n records spread evenly over the keyspace.
func many(n int) []Record {
	list := make([]Record, n)
	for i := range list {
		list[i] = at(fmt.Sprintf("k%03d", i), uint32(uint64(i)*positions/uint64(n)))
	}
	return list
}

// copies is a store: one copy of every segment, which assigns offsets and can be fenced.
type copies struct {
	m     map[fence.SegmentID]*logCopy
	reads int
	fail  map[fence.SegmentID]error // what a read of the segment answers
	short map[fence.SegmentID]int   // records that the copy has lost at its end
}

type logCopy struct {
	base    uint64
	records []Record
	fenced  bool
}

func newCopies() *copies {
	return &copies{m: map[fence.SegmentID]*logCopy{}, fail: map[fence.SegmentID]error{}, short: map[fence.SegmentID]int{}}
}

func (l *logCopy) end() uint64 { return l.base + uint64(len(l.records)) }

func (s *copies) open(id fence.SegmentID, base uint64) *logCopy {
	if s.m[id] == nil {
		s.m[id] = &logCopy{base: base}
	}
	return s.m[id]
}

// append is a ReplicateFunc.
func (s *copies) append(d Dispatch) (uint64, error) {
	l := s.open(d.Segment, d.Base)
	if l.fenced {
		return 0, fence.Sealed{End: fence.End{Offset: l.end()}}
	}
	for _, r := range d.Records {
		r.Offset = l.end()
		l.records = append(l.records, r)
	}
	return l.end() - 1, nil
}

// fence latches a copy and answers where it ends.
func (s *copies) fence(r Roll) (end, bytes uint64) {
	l := s.open(r.Segment, r.Start)
	l.fenced = true
	return l.end(), uint64(len(l.records)) * 10
}

// read is a ReadFunc. It answers a record more on either side than was asked for, as frames do.
func (s *copies) read(q ReadRequest) ([]Record, error) {
	s.reads++
	if err := s.fail[q.Segment.ID]; err != nil {
		return nil, err
	}
	l := s.m[q.Segment.ID]
	if l == nil {
		return nil, io.EOF
	}
	have := l.records[:len(l.records)-s.short[q.Segment.ID]]
	var out []Record
	for _, r := range have {
		if r.Offset+1 >= q.From && len(out) < q.Max+2 {
			out = append(out, r)
		}
	}
	if len(out) == 0 || out[len(out)-1].Offset < q.From {
		return nil, io.EOF
	}
	return out, nil
}

// tb is what both testing.T and rapid.T have.
type tb interface {
	Helper()
	Cleanup(func())
	Error(...any)
	Fatal(...any)
	Fatalf(string, ...any)
}

// world is a frontend with an in-memory control plane, one topic and a store.
type world struct {
	t tb
	f *Frontend
	s *copies
}

const testTopic = "logs"

func newWorld(t tb, change ...func(*Options)) *world {
	t.Helper()
	w := &world{t: t, f: newFrontend(t, change...), s: newCopies()}
	if _, err := w.f.CreateTopic(testTopic, 8, topicID(1), 100); err != nil {
		t.Fatal(err)
	}
	return w
}

func newFrontend(t tb, change ...func(*Options)) *Frontend {
	t.Helper()
	o := Options{Self: "n1", Bits: dice(), Writer: 9}
	for _, c := range change {
		c(&o)
	}
	f, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Check(); err != nil {
			t.Error(err)
		}
	})
	return f
}

func root() fence.RangeID { return fence.RangeID{Topic: topicID(1)} }

func seg(r fence.RangeID, n uint32) fence.SegmentID { return fence.SegmentID{Range: r, Seq: n} }

// produce stores records and fails the test on any error.
func (w *world) produce(records ...Record) Placements {
	w.t.Helper()
	p, err := w.f.Produce(testTopic, records, 1000, w.s.append)
	if err != nil {
		w.t.Fatal(err)
	}
	return p
}

// n stores n records of one key in the range that owns position 0.
func (w *world) n(n int) {
	w.t.Helper()
	for i := range n {
		w.produce(at(fmt.Sprintf("r%d", i), 0))
	}
}

// roll fences the range's head, records the seal and returns the end.
func (w *world) roll(id fence.RangeID) uint64 {
	w.t.Helper()
	r, ok := w.f.ActiveRoll(id)
	if !ok {
		w.t.Fatalf("%v has no head", id)
	}
	end, bytes := w.s.fence(r)
	if err := w.f.RecordSeal(r, end, bytes, 2000); err != nil {
		w.t.Fatal(err)
	}
	return end
}

// split closes the range's head, if it has one, and splits it.
func (w *world) split(id fence.RangeID) (left, right fence.RangeID) {
	w.t.Helper()
	if _, ok := w.f.ActiveRoll(id); ok {
		w.roll(id)
	}
	left, right, err := w.f.SplitRange(id)
	if err != nil {
		w.t.Fatal(err)
	}
	return left, right
}

func (w *world) merge(a, b fence.RangeID) fence.RangeID {
	w.t.Helper()
	for _, id := range []fence.RangeID{a, b} {
		if _, ok := w.f.ActiveRoll(id); ok {
			w.roll(id)
		}
	}
	child, err := w.f.MergeRanges(a, b)
	if err != nil {
		w.t.Fatal(err)
	}
	return child
}

func (w *world) segment(id fence.SegmentID) *cp.Segment { return w.f.Metadata().Segment(id) }

// keys lists the keys of records.
func keys(records []Record) (list []string) {
	for _, r := range records {
		list = append(list, string(r.Key))
	}
	return list
}

// wantErr fails unless err is the target.
func wantErr(t tb, err, target error) {
	t.Helper()
	if !errors.Is(err, target) {
		t.Fatalf("got error %v, want %v", err, target)
	}
}

func want[T any](t tb, what string, got, want T) {
	t.Helper()
	if a, b := fmt.Sprintf("%+v", got), fmt.Sprintf("%+v", want); a != b {
		t.Fatalf("%s:\n got %s\nwant %s", what, a, b)
	}
}

// hot is a picture of everything that is not in the view, to see that nothing moved.
func (f *Frontend) hot() string {
	var lines []string
	for i := range f.shards {
		s := &f.shards[i]
		for id, r := range s.ranges {
			if r.known || r.open || r.nextSeq > 0 || r.unrecovered {
				lines = append(lines, fmt.Sprintf("%v next %d %v durable %d seq %d unrecovered %v open %v %v", id, r.next, r.known, r.durable, r.nextSeq, r.unrecovered, r.open, r.head))
			}
		}
		lines = append(lines, fmt.Sprint(s.ledger.Due()))
	}
	slices.Sort(lines)
	return fmt.Sprint(lines)
}
