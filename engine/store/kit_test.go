package store

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/ringfence/ringfence/fence"
	"github.com/ringfence/ringfence/segfile"
	"github.com/ringfence/ringfence/segfile/disk"
	"github.com/ringfence/ringfence/segfile/disk/simdisk"
	"github.com/ringfence/ringfence/segfile/record"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// seeds is how many seeds a test with chance in it runs: n, or many more with RINGFENCE_LONG=1.
func seeds(n int) uint64 {
	if os.Getenv("RINGFENCE_LONG") != "" {
		n *= 50
	}
	return uint64(n)
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

var testTopic = fence.TopicID{0xaa, 1, 2, 3, 15: 0xbb}

func segID(rng, seq uint32) fence.SegmentID {
	return fence.SegmentID{Range: fence.RangeID{Topic: testTopic, Seq: rng}, Seq: seq}
}

func metaOf(id fence.SegmentID, base uint64) segfile.Meta {
	return segfile.Meta{
		ID: id, Topic: "orders", Start: 0, End: 1 << 32, Base: base,
		Salt: 0x1122334455667788 + uint64(id.Range.Seq)<<32 + uint64(id.Seq), Writer: 42, Created: testNow,
	}
}

const testNow = 1_700_000_000_000

// testOptions are for small simulated disks: no reserve, and free space is looked at
// only when a test says so.
func testOptions() Options {
	return Options{
		SegmentBytes: 1 << 20, ReserveBytes: 1, SpaceEvery: time.Hour,
		Now: func() time.Time { return time.UnixMilli(testNow) },
	}
}

func newDisk(seed uint64) *simdisk.Disk {
	return simdisk.New(simdisk.Options{Seed: seed, ArenaBytes: 32 << 20})
}

// openStore opens a store that the test's end closes, after which nothing of the
// arena may be in use and no goroutine be left.
func openStore(t testing.TB, d disk.Disk, o Options) (*Store, *Recovery) {
	t.Helper()
	s, rec, err := Open(d, o, nil)
	if err != nil {
		t.Fatal(err)
	}
	left := &atomic.Pointer[Store]{}
	left.Store(s)
	unclosed.Store(s, left)
	t.Cleanup(func() {
		if s := left.Load(); s != nil {
			closeStore(t, s)
		}
	})
	return s, rec
}

// unclosed are the stores that the ends of their tests are to close. What a test has
// closed itself it lets go of: with many seeds they would not all fit.
var unclosed sync.Map // *Store -> *atomic.Pointer[Store]

// closeStore closes s, once, and checks that it gave everything back.
func closeStore(t testing.TB, s *Store) {
	t.Helper()
	if left, ok := unclosed.LoadAndDelete(s); ok {
		left.(*atomic.Pointer[Store]).Store(nil)
	}
	arena := s.Disk().Arena()
	if err := s.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
	if n := arena.InUse(); n != 0 {
		t.Errorf("%d bytes of the arena are still in use", n)
	}
	if err := arena.Check(); err != nil {
		t.Error(err)
	}
}

func newSegment(t testing.TB, s *Store, id fence.SegmentID, base uint64, table *segfile.ProducerTable) *Segment {
	t.Helper()
	seg, err := s.Create(context.Background(), metaOf(id, base), table)
	if err != nil {
		t.Fatal(err)
	}
	return seg
}

// source makes the batches of one producer. Every value names its producer and
// sequence, so that a record that is read tells where it came from.
type source struct {
	id   uint64
	seq  uint64 // of the last record made
	prev uint64 // of the last record in the batch before
	keys int    // how many keys; 0 means 16
}

// batch is what was sent: to make the frame again, and to compare with what is read.
type batch struct {
	producer, first, prev uint64
	values                [][]byte
	keys                  [][]byte
	codec                 record.Codec
}

func (b *batch) last() uint64 {
	if b.first == 0 {
		return 0
	}
	return b.first + uint64(len(b.values)) - 1
}

// next is a batch of n records with values of about size bytes.
func (p *source) next(rng *rand.Rand, n, size int) *batch {
	b := &batch{producer: p.id, first: p.seq + 1, prev: p.prev}
	keys := max(p.keys, 1)
	if p.keys == 0 {
		keys = 16
	}
	for range n {
		p.seq++
		v := make([]byte, 16+size)
		binary.LittleEndian.PutUint64(v, p.id)
		binary.LittleEndian.PutUint64(v[8:], p.seq)
		for i := 16; i < len(v); i += 8 {
			var word [8]byte
			binary.LittleEndian.PutUint64(word[:], rng.Uint64())
			copy(v[i:], word[:])
		}
		b.values = append(b.values, v)
		b.keys = append(b.keys, fmt.Append(nil, "key-", rng.IntN(keys)))
	}
	p.prev = p.seq
	return b
}

// frame builds b in memory from the arena, which the caller frees.
func (b *batch) frame(t testing.TB, arena *disk.Arena) []byte {
	t.Helper()
	size := 4096
	for i := range b.values {
		size += len(b.values[i]) + len(b.keys[i]) + 128
	}
	slab, err := arena.AllocWait(t.Context(), size)
	if err != nil {
		t.Fatal(err)
	}
	var build record.Builder
	build.Reset(slab, b.producer)
	for i := range b.values {
		seq := uint64(0)
		if b.first != 0 {
			seq = b.first + uint64(i)
		}
		must(t, build.Add(&record.Record{Key: b.keys[i], Value: b.values[i], Timestamp: testNow + int64(seq)}, seq))
	}
	f, err := build.Finish(b.prev)
	must(t, err)
	if b.codec != record.None {
		out, err := arena.AllocWait(t.Context(), size)
		must(t, err)
		c, err := record.Compress(out, f, b.codec)
		must(t, err)
		if &c[0] == &f[0] {
			arena.Free(out)
		} else {
			arena.Free(slab)
			return out[:len(c)]
		}
	}
	return slab[:len(f)]
}

// flying is an append on its way.
type flying struct {
	Append
	b    *batch
	seg  *Segment
	size int // of the frame, where somebody sums it up
	done chan struct{}
}

// send hands b to seg. The frame's memory is freed when it is answered.
func send(t testing.TB, seg *Segment, b *batch) (*flying, error) {
	t.Helper()
	f := &flying{b: b, seg: seg, done: make(chan struct{})}
	arena := seg.store.Disk().Arena()
	f.Frame = b.frame(t, arena)
	f.Done = func(a *Append) {
		arena.Free(a.Frame)
		close(f.done)
	}
	if err := seg.Append(&f.Append); err != nil {
		arena.Free(f.Frame)
		return nil, err
	}
	return f, nil
}

// put sends b and waits for a good answer.
func put(t testing.TB, seg *Segment, b *batch) *flying {
	t.Helper()
	f, err := send(t, seg, b)
	must(t, err)
	f.wait(t)
	if f.Err != nil {
		t.Fatal(f.Err)
	}
	return f
}

const patience = 20 * time.Second

// wait returns when f is answered.
func (f *flying) wait(t testing.TB) {
	t.Helper()
	select {
	case <-f.done:
	case <-time.After(patience):
		buf := make([]byte, 1<<20)
		t.Fatalf("an append was never answered\n%s", buf[:runtime.Stack(buf, true)])
	}
}

func (f *flying) answered() bool {
	select {
	case <-f.done:
		return true
	default:
		return false
	}
}

// item is a record as it was read.
type item struct {
	offset        uint64
	producer, seq uint64
	value         []byte
}

// readSegment reads a segment from an offset to where it ends now.
func readSegment(seg *Segment, from uint64) (items []item, err error) {
	sc, err := seg.Scan(from)
	if err != nil {
		return nil, err
	}
	defer sc.Close()
	return drain(sc, from)
}

func drain(sc *Scanner, from uint64) (items []item, err error) {
	for {
		b, err := sc.Next()
		if errors.Is(err, io.EOF) {
			return items, nil
		}
		if err != nil {
			return items, err
		}
		got, err := itemsOf(b)
		if err != nil {
			return items, err
		}
		for i := range got {
			if got[i].offset >= from {
				items = append(items, got[i])
			}
		}
	}
}

func itemsOf(b *record.Batch) (items []item, err error) {
	for i := range b.Len() {
		v := slices.Clone(b.Value(i))
		it := item{offset: b.Offset(i), value: v}
		if len(v) >= 16 {
			it.producer, it.seq = binary.LittleEndian.Uint64(v), binary.LittleEndian.Uint64(v[8:])
		}
		if len(v) < 16 || it.producer != b.Head.Producer {
			return items, fmt.Errorf("record at offset %d is none that was sent", it.offset)
		}
		items = append(items, it)
	}
	return items, nil
}

// contiguous fails unless items hold every offset of [from, to) once.
func contiguous(t testing.TB, items []item, from, to uint64) {
	t.Helper()
	for i := range items {
		if items[i].offset != from+uint64(i) {
			t.Fatalf("record %d has offset %d, want %d", i, items[i].offset, from+uint64(i))
		}
	}
	if uint64(len(items)) != to-from {
		t.Fatalf("%d records, want %d", len(items), to-from)
	}
}

// holds fails unless seg holds exactly these batches, in order.
func holds(t testing.TB, seg *Segment, want ...*batch) {
	t.Helper()
	items, err := readSegment(seg, seg.Base())
	if err != nil {
		t.Fatal(err)
	}
	i := 0
	for _, b := range want {
		for j, v := range b.values {
			if i >= len(items) || !bytes.Equal(items[i].value, v) {
				t.Fatalf("record %d of %d is not sequence %d of producer %d", i, len(items), b.first+uint64(j), b.producer)
			}
			i++
		}
	}
	contiguous(t, items, seg.Base(), seg.Base()+uint64(i))
}

// sound verifies every byte of a segment's file.
func sound(t testing.TB, d disk.Disk, name string) {
	t.Helper()
	rep, err := segfile.Verify(d, name, nil)
	if err != nil || len(rep.Problems) > 0 {
		t.Fatalf("%s: %v %v", name, err, rep.Problems)
	}
}

// eventually waits for what another goroutine is about to do.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); {
		if time.Now().After(end) {
			buf := make([]byte, 1<<20)
			t.Fatalf("never: %s\n%s", what, buf[:runtime.Stack(buf, true)])
		}
		time.Sleep(100 * time.Microsecond)
	}
}

// appendWrite is a condition: a flush of some segment file, in the queue.
func appendWrite(e simdisk.Event) bool { return e.Action == simdisk.Write && e.Queued }

func contents(t testing.TB, d disk.Disk, name string) []byte {
	t.Helper()
	f, err := d.Open(name, true)
	must(t, err)
	defer f.Close()
	size, err := f.Size()
	must(t, err)
	b := make([]byte, size)
	if size > 0 {
		_, err = f.ReadAt(b, 0)
		must(t, err)
	}
	return b
}

// write puts a file of whole blocks there, in place of what was.
func write(t testing.TB, d disk.Disk, name string, b []byte) {
	t.Helper()
	d.Remove(name)
	f, err := d.Create(name)
	must(t, err)
	if n := len(b) / disk.Block * disk.Block; n > 0 {
		must(t, f.WriteAt(b[:n], 0))
	}
	if len(b)%disk.Block != 0 {
		must(t, f.WriteAt(append(slices.Clone(b[len(b)/disk.Block*disk.Block:]), make([]byte, disk.Block-len(b)%disk.Block)...), int64(len(b)/disk.Block*disk.Block)))
		must(t, f.Truncate(int64(len(b))))
		must(t, f.Sync())
	}
	must(t, f.Close())
}

func mustSegment(t testing.TB, s *Store, id fence.SegmentID) *Segment {
	t.Helper()
	seg, err := s.Segment(id)
	must(t, err)
	return seg
}
