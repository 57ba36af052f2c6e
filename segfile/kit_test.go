package segfile

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/ringfence/ringfence/fence"
	"github.com/ringfence/ringfence/segfile/disk"
	"github.com/ringfence/ringfence/segfile/disk/simdisk"
	"github.com/ringfence/ringfence/segfile/record"
)

// seeds is how many seeds a crash test runs: n, or many more with RINGFENCE_LONG=1.
func seeds(n int) uint64 {
	if os.Getenv("RINGFENCE_LONG") != "" {
		n *= 50
	}
	return uint64(n)
}

func testID(seq uint32) fence.SegmentID {
	return fence.SegmentID{Range: fence.RangeID{Topic: fence.TopicID{0xaa, 1, 2, 3, 15: 0xbb}, Seq: 7}, Seq: seq}
}

func testMeta(seq uint32) Meta {
	return Meta{
		ID: testID(seq), Topic: "orders.eu-1", Start: 0, End: 1 << 32, Base: 1000,
		Salt: 0x1122334455667788 + uint64(seq), Writer: 42, Created: 1_700_000_000_123,
	}
}

const testNow = 1_700_000_100_000

// life is what a segment's file was before.
type life int

const (
	lifeGrown    life = iota // nothing
	lifePrepared             // zeros
	lifeRecycled             // another segment
	lives
)

func (l life) String() string { return [...]string{"grown", "prepared", "recycled"}[l] }

// newPool makes a pool whose next file has that life.
func newTestPool(t testing.TB, d disk.Disk, l life) *Pool {
	t.Helper()
	p, err := NewPool(d, PoolOptions{SegmentBytes: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	switch l {
	case lifePrepared:
		p.noteFull(1<<20, time.UnixMilli(testNow))
		for p.Stats().Files == 0 {
			if _, err := p.Step(time.UnixMilli(testNow)); err != nil {
				t.Fatal(err)
			}
		}
	case lifeRecycled:
		rng := rand.New(rand.NewPCG(1, 2))
		w := create(t, p, testMeta(900))
		g := &producerModel{id: 9}
		for w.Position() < 800<<10 {
			put(t, w, g.frame(rng, 1+rng.IntN(20), rng.IntN(3000)))
		}
		fenceNow(t, w)
		if err := w.Trim(); err != nil {
			t.Fatal(err)
		}
		w.Close()
		if err := p.Recycle(Name(testID(900))); err != nil {
			t.Fatal(err)
		}
	}
	if have, want := p.Stats().Files, map[life]int64{lifePrepared: 1, lifeRecycled: 1}[l]; have != want {
		t.Fatalf("the pool has %d files, want %d", have, want)
	}
	return p
}

func create(t testing.TB, p *Pool, m Meta) *Writer {
	t.Helper()
	w, err := p.Create(context.Background(), m, nil)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func fenceNow(t testing.TB, w *Writer) fence.Latch {
	t.Helper()
	l, err := w.Fence(w.End(), testNow, 77)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// producerModel makes frames of one producer.
type producerModel struct {
	id, seq uint64
	time    int64
}

// frame is a batch of n records with values of size bytes, not stamped.
func (p *producerModel) frame(rng *rand.Rand, n, size int) []byte {
	var b record.Builder
	b.Reset(make([]byte, record.HeaderSize+1024+n*(size+128)), p.id)
	prev := p.seq
	for range n {
		p.seq++
		p.time += int64(rng.IntN(5))
		value := make([]byte, size)
		for i := 0; i+8 <= size; i += 8 {
			binary.LittleEndian.PutUint64(value[i:], rng.Uint64())
		}
		key := binary.LittleEndian.AppendUint64(nil, rng.Uint64())
		r := record.Record{Key: key, Value: value, Timestamp: testNow + p.time}
		if err := b.Add(&r, p.seq); err != nil {
			panic(err)
		}
	}
	f, err := b.Finish(prev)
	if err != nil {
		panic(err)
	}
	return f
}

// flush packs frames into one flush, stamped for w, and gives their heads.
func flush(w *Writer, durable int64, frames ...[]byte) (b []byte, heads []record.Head) {
	next := w.NextOffset()
	for _, f := range frames {
		b = append(b, make([]byte, alignFrame(int64(len(b)))-int64(len(b)))...)
		record.Stamp(f, next, durable, w.Meta().Salt)
		h, err := record.ParseHead(f, w.Meta().Salt)
		if err != nil {
			panic(err)
		}
		b = append(b, f...)
		heads = append(heads, h)
		next = h.Next()
	}
	return append(b, make([]byte, alignBlock(int64(len(b)))-int64(len(b)))...), heads
}

// put writes one flush durably.
func put(t testing.TB, w *Writer, frames ...[]byte) {
	t.Helper()
	b, heads := flush(w, w.Position(), frames...)
	if err := w.File().WriteAt(b, w.Position()); err != nil {
		t.Fatal(err)
	}
	w.Advance(w.Position(), int64(len(b)), heads)
}

// sent is a frame that was handed to the disk.
type sent struct {
	pos   int64
	frame []byte
	head  record.Head
}

// driver writes flushes through a queue, several at once, and acknowledges the
// contiguous prefix, as an engine does.
type driver struct {
	t     testing.TB
	rng   *rand.Rand
	d     disk.Disk
	w     *Writer
	q     disk.Queue
	from  []*producerModel
	depth int

	sent    []sent
	flights []*flightModel // not acknowledged, in order
	durable int64
	acked   uint64

	pointers int // that were moved
}

type flightModel struct {
	end  int64
	next uint64
	done bool
	buf  []byte
}

func newDriver(t testing.TB, rng *rand.Rand, d disk.Disk, w *Writer) *driver {
	t.Helper()
	q, err := d.NewQueue(8)
	if err != nil {
		t.Fatal(err)
	}
	dr := &driver{t: t, rng: rng, d: d, w: w, q: q, durable: w.Position(), acked: w.NextOffset(), depth: 1 + rng.IntN(5)}
	for i := range 1 + rng.IntN(3) {
		dr.from = append(dr.from, &producerModel{id: uint64(100 + i)})
	}
	return dr
}

// step plans one flush or takes completions.
func (dr *driver) step() {
	if dr.q.InFlight() >= dr.depth {
		dr.wait()
		return
	}
	var frames [][]byte
	for range 1 + dr.rng.IntN(3) {
		size := dr.rng.IntN(600)
		switch dr.rng.IntN(12) {
		case 0:
			size = 4096 - record.HeaderSize // near a block
		case 1:
			size = dr.rng.IntN(40_000)
		}
		frames = append(frames, dr.from[dr.rng.IntN(len(dr.from))].frame(dr.rng, 1+dr.rng.IntN(4), size))
	}
	pos := dr.w.Position()
	b, heads := flush(dr.w, dr.durable, frames...)
	buf, ok := dr.d.Arena().Alloc(len(b))
	if !ok {
		dr.t.Fatal("the arena is full")
	}
	copy(buf, b)
	dr.w.Advance(pos, int64(len(b)), heads)
	at := pos
	for i := range heads {
		dr.sent = append(dr.sent, sent{at, frames[i], heads[i]})
		at += alignFrame(int64(heads[i].FrameLen))
	}
	dr.push(&disk.Op{Durable: true, Buf: buf, Off: pos})
	if dr.rng.IntN(8) == 0 && dr.w.check.at == 0 {
		dr.checkpoint()
	} else if dr.w.PointerDue(dr.durable) && dr.rng.IntN(2) == 0 {
		buf, ok := dr.d.Arena().Alloc(block)
		if !ok {
			dr.t.Fatal("the arena is full")
		}
		pos, err := dr.w.Pointer(buf, dr.durable)
		must(dr.t, err)
		dr.push(&disk.Op{Buf: buf, Off: pos})
		dr.pointers++
	}
}

// checkpoint plans a checkpoint.
func (dr *driver) checkpoint() {
	buf, ok := dr.d.Arena().Alloc(dr.w.CheckpointSize())
	if !ok {
		dr.t.Fatal("the arena is full")
	}
	pos := dr.w.Position()
	b, head, err := dr.w.Checkpoint(buf, dr.durable)
	must(dr.t, err)
	dr.w.Advance(pos, int64(len(b)), []record.Head{head})
	dr.push(&disk.Op{Durable: true, Buf: b, Off: pos})
}

// push hands a write to the disk.
func (dr *driver) push(op *disk.Op) {
	fl := &flightModel{end: dr.w.Position(), next: dr.w.NextOffset(), buf: op.Buf}
	dr.flights = append(dr.flights, fl)
	op.Kind, op.File = disk.Write, dr.w.File()
	op.Done = func(o *disk.Op) {
		if o.Err == nil {
			fl.done = true
		}
	}
	if err := dr.q.Push(op); err != nil {
		dr.t.Fatal(err)
	}
	if err := dr.q.Submit(); err != nil {
		dr.t.Fatal(err)
	}
}

func (dr *driver) wait() {
	if _, err := dr.q.Wait(1); err != nil {
		dr.t.Fatal(err)
	}
	for len(dr.flights) > 0 && dr.flights[0].done {
		fl := dr.flights[0]
		dr.durable, dr.acked = fl.end, fl.next
		dr.d.Arena().Free(fl.buf)
		dr.flights = dr.flights[1:]
	}
}

func (dr *driver) drain() {
	for len(dr.flights) > 0 {
		dr.wait()
	}
}

// prefix is what was sent before offset; it fails the test when no frame ends there.
func (dr *driver) prefix(offset uint64) []sent {
	dr.t.Helper()
	if offset == dr.w.Meta().Base {
		return nil
	}
	for i := range dr.sent {
		if dr.sent[i].head.Next() == offset {
			return dr.sent[:i+1]
		}
	}
	dr.t.Fatalf("no frame that was sent ends at offset %d", offset)
	return nil
}

// holds compares the frames of a fenced file with those that were sent.
func holds(t testing.TB, d disk.Disk, name string, want []sent) {
	t.Helper()
	r, err := OpenReader(d, name)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	i := 0
	err = Scan(r, func(pos int64, h record.Head, frame []byte) error {
		if h.Mark() {
			return nil
		}
		if i >= len(want) {
			return errors.New("a frame that was never sent")
		}
		if pos != want[i].pos || !bytes.Equal(frame, want[i].frame) {
			t.Fatalf("frame %d at %d (offset %d) is not the one that was sent at %d", i, pos, h.Base, want[i].pos)
		}
		i++
		return nil
	})
	if err != nil || i != len(want) {
		t.Fatalf("%s: %d frames back of %d: %v", name, i, len(want), err)
	}
}

func mustRecover(t testing.TB, d disk.Disk, name string) *Verdict {
	t.Helper()
	v, err := Recover(d, name)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// sound verifies a file and wants no damage.
func sound(t testing.TB, d disk.Disk, name string) Report {
	t.Helper()
	rep, err := Verify(d, name, nil)
	if err != nil || len(rep.Problems) > 0 {
		t.Fatalf("%s: %v %v", name, err, rep.Problems)
	}
	return rep
}

func newDisk(seed uint64) *simdisk.Disk {
	return simdisk.New(simdisk.Options{Seed: seed, ArenaBytes: 2 << 20})
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

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// proofMark is a mark that says nothing but how far the file was durable, and its head.
// Writers make none; readers pass over it, as over every mark that they do not know.
func proofMark(base uint64, pos int64, salt uint64) ([]byte, record.Head, error) {
	b := make([]byte, block)
	h, err := stampMark(b, []byte("RFpr\x00\x00\x00\x00"), base, pos, salt)
	return b, h, err
}

// WriteProof writes one behind all that was planned, which is durable.
func (w *Writer) WriteProof() error {
	b, h, err := proofMark(w.tally.next, w.pos, w.hdr.Salt)
	if err == nil {
		err = w.file.WriteAt(b, w.pos)
	}
	if err == nil {
		w.Advance(w.pos, block, []record.Head{h})
	}
	return err
}
