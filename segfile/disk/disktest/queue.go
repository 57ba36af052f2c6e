package disktest

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/ringfence/ringfence/segfile/disk"
)

func (b *bench) alloc(n int) []byte {
	b.Helper()
	p, ok := b.d.Arena().Alloc(n)
	if !ok {
		b.Fatalf("no %d bytes in the arena", n)
	}
	return p
}

func (b *bench) queue(depth int) disk.Queue {
	b.Helper()
	q, err := b.d.NewQueue(depth)
	b.ok(err)
	return q
}

// drain waits until nothing is in flight.
func (b *bench) drain(q disk.Queue) {
	b.Helper()
	b.ok(q.Submit())
	for q.InFlight() > 0 {
		_, err := q.Wait(1)
		b.ok(err)
	}
}

func testQueueRefuses(b *bench) {
	f := b.create("f")
	q := b.queue(4)
	buf := b.alloc(4 * disk.Block)
	done := func(*disk.Op) { b.Error("a refused operation was done") }
	for name, op := range map[string]*disk.Op{
		"no file":         {Kind: disk.Write, Buf: buf, Done: done},
		"no Done":         {Kind: disk.Write, File: f, Buf: buf},
		"no buffer":       {Kind: disk.Write, File: f, Done: done},
		"odd length":      {Kind: disk.Write, File: f, Buf: buf[:100], Done: done},
		"odd position":    {Kind: disk.Write, File: f, Buf: buf, Off: 512, Done: done},
		"negative":        {Kind: disk.Read, File: f, Buf: buf, Off: -disk.Block, Done: done},
		"odd read":        {Kind: disk.Read, File: f, Buf: buf[:disk.Block+1], Done: done},
		"unknown kind":    {Kind: disk.Sync + 1, File: f, Buf: buf, Done: done},
		"heap":            {Kind: disk.Write, File: f, Buf: make([]byte, 4*disk.Block), Done: done},
		"beyond its end":  {Kind: disk.Write, File: f, Buf: b.d.Arena().Bytes()[:8*disk.Block], Done: done},
		"freed":           {Kind: disk.Write, File: f, Buf: b.freed(disk.Block), Done: done},
		"somebody else's": {Kind: disk.Sync, File: b.foreign(), Done: done},
	} {
		if err := q.Push(op); !errors.Is(err, disk.ErrInvalid) {
			b.Errorf("%s: Push gives %v", name, err)
		}
	}
	if q.InFlight() != 0 {
		b.Fatal("refused operations are in flight")
	}
	b.drain(q)
	for _, depth := range []int{0, -1, disk.MaxDepth + 1} {
		_, err := b.d.NewQueue(depth)
		b.is(err, disk.ErrInvalid)
	}
	b.d.Arena().Free(buf)
}

func (b *bench) freed(n int) []byte {
	p := b.alloc(n)
	b.d.Arena().Free(p)
	return p
}

// foreign is a file of another view of the tree.
func (b *bench) foreign() disk.File {
	other := b.reopen()
	b.Cleanup(func() { other.Close() })
	f, err := other.Open("f", false)
	b.ok(err)
	return f
}

func testQueueDepth(b *bench) {
	f := b.create("f")
	for _, depth := range []int{1, 3, 64} {
		q := b.queue(depth)
		if q.Depth() != depth {
			b.Fatalf("queue of %d has depth %d", depth, q.Depth())
		}
		ops := make([]disk.Op, depth+1)
		count := 0
		for i := range ops {
			ops[i] = disk.Op{Kind: disk.Sync, File: f, Done: func(*disk.Op) { count++ }}
		}
		for round := range 3 {
			for i := range depth {
				b.ok(q.Push(&ops[i]))
			}
			b.is(q.Push(&ops[depth]), disk.ErrFull)
			if q.InFlight() != depth {
				b.Fatalf("%d in flight of %d pushed", q.InFlight(), depth)
			}
			b.ok(q.Submit())
			n, err := q.Wait(depth)
			b.ok(err)
			if n != depth || count != depth*(round+1) || q.InFlight() != 0 {
				b.Fatalf("depth %d: Wait says %d, %d Dones, %d in flight", depth, n, count, q.InFlight())
			}
		}
		b.ok(q.Close())
	}
}

func testQueueWaits(b *bench) {
	f := b.create("f")
	q := b.queue(4)
	none := func(min int) {
		b.Helper()
		if n, err := q.Wait(min); n != 0 || err != nil {
			b.Fatalf("Wait(%d) with nothing submitted: %d, %v", min, n, err)
		}
	}
	none(0)
	none(1)
	op := &disk.Op{Kind: disk.Sync, File: f}
	rounds := 0
	op.Done = func(o *disk.Op) {
		if o != op || o.Err != nil {
			b.Error("wrong operation or error:", o.Err)
		}
		if rounds++; rounds < 5 {
			if err := q.Push(o); err != nil { // at once again
				b.Error(err)
			}
		}
	}
	b.ok(q.Push(op))
	none(3) // pushed, not submitted: it would be waited for in vain
	for want := 1; want <= 5; want++ {
		b.ok(q.Submit())
		if n, err := q.Wait(4); n != 1 || err != nil || rounds != want { // more than there are
			b.Fatal(n, err, rounds)
		}
	}
	b.ok(q.Submit()) // nothing
	none(1)
}

// testQueueModel writes and reads at random through a queue and compares with a
// model. Operations in flight at one time never overlap.
func testQueueModel(b *bench) {
	const blocks, depth = 96, 12
	f := b.create("f")
	q := b.queue(depth)
	rng := rand.New(rand.NewPCG(11, 7))
	model := make([]byte, blocks*disk.Block)
	b.ok(f.WriteAt(model, 0))
	type job struct {
		op   disk.Op
		busy bool
		n    int
	}
	jobs := make([]job, depth)
	owner := make([]*job, blocks)
	finished, reordered, lastStart := 0, 0, 0
	for i := range jobs {
		j := &jobs[i]
		j.op.File = f
		j.op.Done = func(op *disk.Op) {
			if op != &j.op || !j.busy {
				b.Error("an operation ended that was not running")
			}
			j.busy = false
			finished++
			if j.n < lastStart {
				reordered++
			}
			lastStart = max(lastStart, j.n)
			data := slices.Concat(append([][]byte{op.Buf}, op.More...)...)
			if op.Err != nil || op.Kind != disk.Sync && op.N != len(data) {
				b.Errorf("%s ended with %d bytes, %v", op.Kind, op.N, op.Err)
			}
			for k := range owner {
				if owner[k] == j {
					owner[k] = nil
				}
			}
			if want := model[op.Off:]; op.Kind == disk.Write {
				copy(want, data)
			} else if op.Kind == disk.Read && !bytes.Equal(op.Buf, want[:len(op.Buf)]) {
				b.Errorf("a read of %d bytes at %d differs from the model", len(op.Buf), op.Off)
			}
			if op.Kind != disk.Sync {
				b.d.Arena().Free(op.Buf)
				for _, piece := range op.More {
					b.d.Arena().Free(piece)
				}
				op.More = nil
			}
		}
	}
	started, vectors := 0, 0
	const total = 1500
	for finished < total && !b.Failed() {
		for i := range jobs {
			j := &jobs[i]
			if j.busy || started == total || rng.IntN(3) == 0 {
				continue
			}
			at, n := rng.IntN(blocks-8), 1+rng.IntN(8)
			taken := false
			for _, o := range owner[at : at+n] {
				taken = taken || o != nil
			}
			if taken {
				continue
			}
			started++
			j.busy, j.n = true, started
			j.op.Kind, j.op.Durable, j.op.Off, j.op.Buf = disk.Kind(rng.IntN(3)), rng.IntN(2) == 0, int64(at)*disk.Block, nil
			if j.op.Kind != disk.Sync {
				for k := at; k < at+n; k++ {
					owner[k] = j
				}
				first := n
				if j.op.Kind == disk.Write {
					first = 1 + rng.IntN(n) // the rest in pieces
				}
				j.op.Buf = b.alloc(first * disk.Block)
				copy(j.op.Buf, fill(first*disk.Block, rng.Uint64()))
				for left := n - first; left > 0; {
					size := 1 + rng.IntN(left)
					piece := b.alloc(size * disk.Block)
					copy(piece, fill(size*disk.Block, rng.Uint64()))
					j.op.More = append(j.op.More, piece)
					left -= size
				}
				vectors += min(len(j.op.More), 1)
			}
			b.ok(q.Push(&j.op))
		}
		b.ok(q.Submit())
		_, err := q.Wait(rng.IntN(4))
		b.ok(err)
	}
	b.drain(q)
	if finished != total {
		b.Fatalf("%d of %d operations ended", finished, total)
	}
	if vectors == 0 {
		b.Fatal("nothing was written in pieces")
	}
	b.reads(f, 0, model)
	b.Logf("%d of %d operations ended after a later one", reordered, total)
	b.ok(q.Close())
	if n := b.d.Arena().InUse(); n != 0 {
		b.Fatalf("%d bytes leaked", n)
	}
}

func testQueueReadsAtTheEnd(b *bench) {
	f := b.create("f")
	image := fill(2*disk.Block, 3)
	b.ok(f.WriteAt(image, 0))
	b.ok(f.Truncate(disk.Block + 777))
	q := b.queue(4)
	for _, tc := range []struct{ off, n, want int }{
		{0, 1, disk.Block}, {0, 2, disk.Block + 777}, {0, 4, disk.Block + 777}, {1, 1, 777}, {1, 3, 777}, {2, 1, 0}, {50, 2, 0},
	} {
		op := &disk.Op{Kind: disk.Read, File: f, Off: int64(tc.off) * disk.Block, Buf: b.alloc(tc.n * disk.Block), Done: func(*disk.Op) {}}
		b.ok(q.Push(op))
		b.drain(q)
		if op.Err != nil || op.N != tc.want || op.N > 0 && !bytes.Equal(op.Buf[:op.N], image[tc.off*disk.Block:][:op.N]) {
			b.Fatalf("read of %d blocks at %d: %d bytes, %v, want %d", tc.n, tc.off, op.N, op.Err, tc.want)
		}
		b.d.Arena().Free(op.Buf)
	}
}

func testQueueErrors(b *bench) {
	b.create("f").Close()
	f, err := b.d.Open("f", true)
	b.ok(err)
	q := b.queue(4)
	buf := b.alloc(2 * disk.Block)
	op := &disk.Op{Kind: disk.Write, File: f, Buf: buf, Off: 5 * disk.Block, Done: func(*disk.Op) {}}
	for range 2 { // an operation can be used again after an error
		b.ok(q.Push(op))
		b.drain(q)
		var place *disk.OpError
		if !errors.As(op.Err, &place) || place.Op != "write" || place.File != "f" || place.Off != 5*disk.Block || place.Len != 2*disk.Block {
			b.Fatalf("writing to a file opened for reading: %#v", op.Err)
		}
	}
	op.Kind = disk.Read
	b.ok(q.Push(op))
	b.drain(q)
	b.ok(op.Err)
	b.d.Arena().Free(buf)
	b.ok(f.Close())
	b.is(q.Push(&disk.Op{Kind: disk.Sync, File: f, Done: func(*disk.Op) {}}), disk.ErrClosed)
}

func testQueueClose(b *bench) {
	f := b.create("f")
	q := b.queue(8)
	bufs := b.alloc(8 * disk.Block)
	done, closed := 0, 0
	for i := range 8 {
		op := &disk.Op{Kind: disk.Write, Durable: true, File: f, Buf: bufs[i*disk.Block:][:disk.Block], Off: int64(i) * disk.Block}
		op.Done = func(op *disk.Op) {
			done++
			if errors.Is(op.Err, disk.ErrClosed) {
				closed++
			} else if op.Err != nil {
				b.Error(op.Err)
			}
		}
		b.ok(q.Push(op))
		if i == 4 {
			b.ok(q.Submit())
		}
	}
	b.ok(q.Close())
	if done != 8 || closed < 3 || q.InFlight() != 0 {
		b.Fatalf("%d of 8 operations reported, %d of them as closed, %d in flight", done, closed, q.InFlight())
	}
	b.d.Arena().Free(bufs)
	b.is(q.Push(&disk.Op{Kind: disk.Sync, File: f, Done: func(*disk.Op) {}}), disk.ErrClosed)
	b.is(q.Close(), disk.ErrClosed)
}

// testFileClose closes a file while a queue still has work for it, and lets others
// come in its place: nothing of the old may reach them.
func testFileClose(b *bench) {
	q := b.queue(16)
	for range 10 {
		f := b.create("f")
		buf := b.alloc(8 * disk.Block)
		copy(buf, fill(len(buf), 1))
		done := 0
		for i := range 8 {
			op := &disk.Op{Kind: disk.Write, File: f, Buf: buf[i*disk.Block:][:disk.Block], Off: int64(i) * disk.Block}
			op.Done = func(op *disk.Op) {
				done++
				if op.Err != nil {
					b.Error(op.Err)
				}
			}
			b.ok(q.Push(op))
		}
		b.ok(f.Close())
		g := b.create("g")
		b.ok(g.WriteAt(fill(8*disk.Block, 2), 0))
		op := &disk.Op{Kind: disk.Sync, File: g, Done: func(*disk.Op) {}}
		b.ok(q.Push(op))
		b.drain(q)
		b.d.Arena().Free(buf)
		if done != 8 {
			b.Fatalf("%d of 8 operations of a closed file ended", done)
		}
		b.reads(g, 0, fill(8*disk.Block, 2))
		f, err := b.d.Open("f", true)
		b.ok(err)
		b.reads(f, 0, fill(8*disk.Block, 1))
		b.ok(errors.Join(f.Close(), g.Close(), b.d.Remove("f"), b.d.Remove("g")))
	}
}

// testQueueTwoSides drives a queue from two goroutines, as the contract allows: one
// pushes and submits, one waits.
func testQueueTwoSides(b *bench) {
	const depth, total = 16, 1000
	f := b.create("f")
	q := b.queue(depth)
	buf := b.alloc(depth * disk.Block)
	free := make(chan *disk.Op, depth)
	var done atomic.Int64
	for i := range depth {
		free <- &disk.Op{Kind: disk.Write, File: f, Buf: buf[i*disk.Block:][:disk.Block], Off: int64(i) * disk.Block, Done: func(op *disk.Op) {
			if op.Err != nil {
				b.Error(op.Err)
			}
			done.Add(1)
			free <- op
		}}
	}
	var group sync.WaitGroup
	group.Go(func() {
		for range total {
			if err := errors.Join(q.Push(<-free), q.Submit()); err != nil {
				b.Error(err)
				return
			}
		}
	})
	for done.Load() < total && !b.Failed() {
		if _, err := q.Wait(1); err != nil {
			b.Error(err)
		}
	}
	group.Wait()
	b.drain(q)
	b.ok(q.Close())
	b.d.Arena().Free(buf)
}
