package segfile

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"path"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ringfence/ringfence/segfile/disk"
	"github.com/ringfence/ringfence/segfile/disk/simdisk"
)

// list names what is in a directory.
func list(t testing.TB, d disk.Disk, dir string) (names []string) {
	t.Helper()
	entries, err := d.List(dir)
	must(t, err)
	for _, e := range entries {
		names = append(names, e.Name)
	}
	return names
}

// steps runs the pool's background work until there is none, and counts the pieces.
func steps(t testing.TB, p *Pool, now time.Time) (n int, waited time.Duration) {
	t.Helper()
	for ; n < 10_000; n++ {
		wait, err := p.Step(now)
		must(t, err)
		if wait < 0 {
			return n, waited
		}
		waited += wait
	}
	t.Fatal("the pool's work never ends")
	return 0, 0
}

// filled makes a segment of size bytes, fences and closes it.
func filled(t testing.TB, p *Pool, seq uint32, size int64) []sent {
	t.Helper()
	w := create(t, p, testMeta(seq))
	rng := rand.New(rand.NewPCG(uint64(seq), 1))
	var frames []sent
	g := &producerModel{id: 3}
	for w.Position() < size {
		f := g.frame(rng, 4, 10_000)
		pos := w.Position()
		b, heads := flush(w, pos, f)
		must(t, w.File().WriteAt(b, pos))
		w.Advance(pos, int64(len(b)), heads)
		frames = append(frames, sent{pos, f, heads[0]})
	}
	fenceNow(t, w)
	must(t, w.Trim())
	must(t, w.Close())
	return frames
}

// A few lines cost no zeros; segments that fill cost as many as filled lately, at
// the rate and no more than the bound, until recycled files do.
func TestPoolFollowsTheRate(t *testing.T) {
	d := newDisk(1)
	p, err := NewPool(d, PoolOptions{SegmentBytes: 1 << 20, MaxBytes: 3 << 20, Window: 30 * time.Second})
	must(t, err)
	now := time.UnixMilli(testNow)
	w := create(t, p, testMeta(1))
	put(t, w, (&producerModel{id: 3}).frame(rand.New(rand.NewPCG(1, 1)), 10, 100))
	fenceNow(t, w)
	if n, _ := steps(t, p, now); n != 0 || p.Stats().Bytes != 0 {
		t.Fatalf("ten lines made the pool work %d times for %d bytes", n, p.Stats().Bytes)
	}
	for seq := range uint32(2) {
		filled(t, p, 10+seq, 1<<20)
	}
	before := d.Counts()
	n, waited := steps(t, p, now)
	if s := p.Stats(); s.Files != 2 || s.Bytes != 2<<20 {
		t.Fatalf("after two full segments: %+v", s)
	}
	written := d.Counts().BytesWritten - before.BytesWritten
	if written != 2<<20 || n != int(written/prepareChunk) {
		t.Errorf("%d bytes in %d pieces", written, n)
	}
	if rate := float64(written) / waited.Seconds(); rate > 31e6 {
		t.Errorf("%.0f bytes a second", rate)
	}
	for seq := range uint32(20) {
		filled(t, p, 20+seq, 1<<20)
	}
	steps(t, p, now)
	if s := p.Stats(); s.Bytes > 3<<20 || s.Files != 3 || s.Prepared != 2 {
		t.Errorf("after many full segments: %+v", s)
	}
	// An hour later they are no reason any more; what is ready stays.
	create(t, p, testMeta(100))
	if n, _ := steps(t, p, now.Add(time.Hour)); n != 0 || p.Stats().Files != 2 {
		t.Errorf("an hour later: %d pieces of work, %+v", n, p.Stats())
	}
	// Recycled files take the place of zeros.
	create(t, p, testMeta(102))
	must(t, p.Recycle(Name(testID(20)), Name(testID(21))))
	if s := p.Stats(); s.Files != 2 || s.Bytes > 3<<20 {
		t.Errorf("after two were recycled: %+v", s)
	}
	create(t, p, testMeta(101))
	if s := p.Stats(); s.Recycled != 1 {
		t.Errorf("the next segment got no recycled file: %+v", s)
	}
}

// Where as many files come back as segments are filled no zeros are written, although
// none is ready now and then; once nothing comes back any more, they are.
func TestNoZerosWhereFilesComeBack(t *testing.T) {
	d := newDisk(3)
	p, err := NewPool(d, PoolOptions{SegmentBytes: 1 << 20, MaxBytes: 3 << 20, Window: 30 * time.Second})
	must(t, err)
	now := time.UnixMilli(testNow)
	filled(t, p, 0, 1<<20)
	filled(t, p, 1, 1<<20)
	must(t, p.Recycle(Name(testID(0)), Name(testID(1))))
	filled(t, p, 2, 1<<20)
	filled(t, p, 3, 1<<20)
	must(t, p.Recycle(Name(testID(2)), Name(testID(3))))
	create(t, p, testMeta(4))
	create(t, p, testMeta(5))
	if s := p.Stats(); s.Files != 0 || s.Recycled != 4 {
		t.Fatalf("four came back and two of them are in use again: %+v", s)
	}
	if steps(t, p, now); p.Stats().Prepared+uint64(p.Stats().Files) != 0 {
		t.Fatalf("zeros were written although files come back: %+v", p.Stats())
	}
	now = now.Add(time.Minute)
	p.noteFull(1<<20, now)
	if n, _ := steps(t, p, now); n == 0 || p.Stats().Files != 1 {
		t.Fatalf("nothing comes back any more, and %d pieces of zeros: %+v", n, p.Stats())
	}
}

// Files that are too small, or too many, are removed, but not while the caller waits.
func TestPoolRemovesInTheBackground(t *testing.T) {
	d := newDisk(1)
	p, err := NewPool(d, PoolOptions{SegmentBytes: 2 << 20, MaxBytes: 2 << 20})
	must(t, err)
	var names []string
	for seq, size := range []int64{1 << 20, 30 << 10, 1 << 20, 1 << 20} {
		filled(t, p, uint32(seq), size)
		names = append(names, Name(testID(uint32(seq))))
	}
	removes := func() (n int) {
		for _, e := range d.Trace() {
			if e.Action == simdisk.Remove && path.Dir(e.Name) == poolDir {
				n++
			}
		}
		return n
	}
	must(t, p.Recycle(names...))
	if n := removes(); n != 0 {
		t.Errorf("%d files removed on the caller's path", n)
	}
	if left := list(t, d, Dir(testID(1).Range.Topic)); len(left) != 0 {
		t.Errorf("still there: %v", left)
	}
	s := p.Stats()
	if s.Bytes > 2<<20 || s.Files != 1 { // two of more than 1 MiB do not fit
		t.Errorf("%+v", s)
	}
	steps(t, p, time.UnixMilli(testNow).Add(time.Hour))
	if n := removes(); n != 3 || len(list(t, d, poolDir)) != 1 {
		t.Errorf("%d files removed, left %v", n, list(t, d, poolDir))
	}
	must(t, p.Recycle(names...)) // nothing happens twice
	if err := p.Recycle("topics/x"); !errors.Is(err, ErrForeign) {
		t.Error(err)
	}
	must(t, p.Shrink(0))
	if s := p.Stats(); s.Files != 0 || s.Bytes != 0 || len(list(t, d, poolDir)) != 0 {
		t.Errorf("after Shrink: %+v %v", s, list(t, d, poolDir))
	}
	must(t, p.RemoveTopic(testID(1).Range.Topic))
	must(t, p.RemoveTopic(testID(1).Range.Topic))
	before := d.Trace()
	last := before[len(before)-1].Seq
	must(t, p.Recycle(names[0])) // its directory may come back with the name, until the one above is synced
	if !slices.ContainsFunc(d.Trace(), func(e simdisk.Event) bool {
		return e.Seq > last && e.Action == simdisk.SyncDir && e.Name == topicsDir && e.Err == nil
	}) {
		t.Error("nothing proves that the directory is gone")
	}
	filled(t, p, 50, 30<<10) // its directory comes back
	if err := p.RemoveTopic(testID(1).Range.Topic); err == nil {
		t.Error("a directory with a segment is removed")
	}
}

// What a run leaves in the pool, the next one uses; what is not the pool's stays.
func TestPoolSurvivesRestarts(t *testing.T) {
	d := newDisk(1)
	o := PoolOptions{SegmentBytes: 1 << 20}
	p, err := NewPool(d, o)
	must(t, err)
	for _, seq := range []uint32{1, 2, 5} {
		filled(t, p, seq, 1<<20)
	}
	must(t, p.Recycle(seg1))
	for range 3 { // zeros, not finished
		if _, err := p.Step(time.UnixMilli(testNow)); err != nil {
			t.Fatal(err)
		}
	}
	f, err := d.Create(poolDir + "/notes.txt")
	must(t, err)
	must(t, f.Close())
	d = d.Kill()
	p, err = NewPool(d, o)
	must(t, err)
	if s := p.Stats(); s.Files != 2 || s.Bytes < 1<<20+3*prepareChunk {
		t.Errorf("%+v of %v", s, list(t, d, poolDir))
	}
	w := create(t, p, testMeta(3))
	if !w.hdr.recycled || w.hdr.stale != testMeta(1).Salt || w.hdr.blocks < 1<<20 {
		t.Errorf("recycled %v, stale %#x, %d blocks", w.hdr.recycled, w.hdr.stale, w.hdr.blocks)
	}
	w = create(t, p, testMeta(4))
	if !w.hdr.recycled || w.hdr.stale != 0 || w.hdr.blocks != 3*prepareChunk {
		t.Errorf("recycled %v, stale %#x, %d blocks", w.hdr.recycled, w.hdr.stale, w.hdr.blocks)
	}
	if left := list(t, d, poolDir); len(left) != 1 || left[0] != "notes.txt" {
		t.Errorf("left %v", left)
	}
}

// A name in the pool of a file whose header names a living segment is another name
// of that segment's file: it goes, the segment stays.
func TestPoolDropsASecondName(t *testing.T) {
	d := newDisk(1)
	o := PoolOptions{SegmentBytes: 1 << 20}
	p, err := NewPool(d, o)
	must(t, err)
	frames := filled(t, p, 1, 1<<20)
	whole := contents(t, d, seg1)
	f, err := d.Create(poolName(77, poolOld))
	must(t, err)
	must(t, f.WriteAt(whole, 0))
	must(t, f.Close())
	p, err = NewPool(d, o)
	must(t, err)
	if s := p.Stats(); s.Files != 0 || len(list(t, d, poolDir)) != 0 {
		t.Errorf("%+v %v", s, list(t, d, poolDir))
	}
	holds(t, d, seg1, frames)
}

// A directory that has the name of the pool's next file is stepped over. (D10)
func TestPoolStepsOverADirectory(t *testing.T) {
	d := newDisk(1)
	must(t, d.Mkdir(poolDir))
	must(t, d.Mkdir(poolName(0, poolNew)))
	frames := filled(t, newTestPool(t, d, lifeGrown), 1, 64<<10)
	holds(t, d, seg1, frames)
	if have := list(t, d, poolDir); len(have) != 1 {
		t.Errorf("left %v", have)
	}
}

// A power cut at any moment while a segment's file goes to the next one: the old
// name, if it is still there, has the old segment whole, and the new segment all
// that was acknowledged in it. (A04)
func TestRecycleCrash(t *testing.T) {
	old, gone, born := 0, 0, 0
	for seed := range seeds(80) {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 11))
			d := newDisk(seed)
			o := PoolOptions{SegmentBytes: 64 << 10}
			p, err := NewPool(d, o)
			must(t, err)
			frames := filled(t, p, 1, 64<<10)
			d.CutAfter(rng.IntN(12))
			recycled := p.Recycle(seg1)
			var acked uint64
			w, err := p.Create(t.Context(), testMeta(2), nil)
			if err == nil {
				g := &producerModel{id: 3}
				for range rng.IntN(6) {
					b, heads := flush(w, w.Position(), g.frame(rng, 2, 3000))
					if w.File().WriteAt(b, w.Position()) != nil {
						break
					}
					w.Advance(w.Position(), int64(len(b)), heads)
					acked = w.NextOffset()
				}
			}
			d = d.Crash(rng)
			p, err = NewPool(d, o)
			must(t, err)
			if f, err := d.Open(seg1, true); err == nil {
				f.Close()
				if recycled == nil {
					t.Fatal("the name of a segment that was recycled came back")
				}
				holds(t, d, seg1, frames)
				sound(t, d, seg1)
				old++
			} else {
				gone++
			}
			v, err := Recover(d, Name(testID(2)))
			if err != nil {
				if acked > 0 || !errors.Is(err, fs.ErrNotExist) {
					t.Fatalf("acknowledged up to %d: %v", acked, err)
				}
				return
			}
			born++
			if v.State != Clean && v.State != Torn || v.End.Offset < acked {
				t.Fatalf("%s at %d, acknowledged up to %d", v.State, v.End.Offset, acked)
			}
			// What the pool has left may be used at once, and harms neither.
			n := p.Stats().Files
			for seq := range uint32(n) + 1 {
				put(t, create(t, p, testMeta(10+seq)), (&producerModel{id: 4}).frame(rng, 1, 10))
			}
			if again := mustRecover(t, d, v.Name); again.End != v.End {
				t.Fatalf("ends at %+v, was %+v", again.End, v.End)
			}
		})
	}
	if old == 0 || gone == 0 || born == 0 {
		t.Errorf("%d old names, %d gone, %d new segments: the test does not test them", old, gone, born)
	}
}

// A full disk stops preparing for a while, and gives back what was begun.
func TestPrepareOnAFullDisk(t *testing.T) {
	d := newDisk(1)
	p, err := NewPool(d, PoolOptions{SegmentBytes: 1 << 20})
	must(t, err)
	now := time.UnixMilli(testNow)
	p.noteFull(1<<20, now)
	d.SetCapacity(prepareChunk + 5*block)
	for {
		wait, err := p.Step(now)
		if err == nil {
			continue
		}
		if !errors.Is(err, disk.ErrNoSpace) || wait < time.Second {
			t.Fatalf("%v, wait %v", err, wait)
		}
		break
	}
	writes := d.Counts().Writes
	for range 3 { // removes what was begun, then waits
		_, err := p.Step(now.Add(time.Second))
		must(t, err)
	}
	if left := list(t, d, poolDir); len(left) != 0 || d.Counts().Writes != writes || p.Stats().Bytes != 0 {
		t.Errorf("left %v, %+v", left, p.Stats())
	}
	d.SetCapacity(1 << 30)
	p.noteFull(1<<20, now.Add(pauseAfterError))
	steps(t, p, now.Add(pauseAfterError+time.Second))
	if p.Stats().Files != 1 {
		t.Errorf("space came back, and %+v", p.Stats())
	}
}

// Everything at once, for the race detector.
func TestPoolConcurrently(t *testing.T) {
	d := newDisk(1)
	p, err := NewPool(d, PoolOptions{SegmentBytes: 64 << 10, PrepareRate: 1 << 40})
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	var run, work sync.WaitGroup
	run.Go(func() { p.Run(ctx, func(err error) { t.Error(err) }) })
	for g := range uint32(4) {
		work.Go(func() {
			for i := range uint32(10) {
				filled(t, p, g*100+i, 64<<10)
				if i > 1 {
					must(t, p.Recycle(Name(testID(g*100+i-2))))
				}
				p.Stats()
			}
		})
	}
	work.Wait()
	cancel()
	run.Wait()
	if s := p.Stats(); s.Recycled+s.Prepared+s.Grown != 40 || s.Recycled == 0 {
		t.Errorf("%+v", s)
	}
	for g := range uint32(4) {
		sound(t, d, Name(testID(g*100+9)))
	}
}

// A file whose size was not durable when its process was killed is as long as the next
// segment's header says, also after the power went.
func TestPoolFileKeepsItsSize(t *testing.T) {
	const size = 16 * block
	for seed := range seeds(20) {
		rng := rand.New(rand.NewPCG(seed, 5))
		d := newDisk(seed)
		newTestPool(t, d, lifeGrown)
		f, err := d.Create(poolName(7, poolOld))
		must(t, err)
		must(t, d.SyncDir(poolDir))
		must(t, f.Truncate(size))
		if after := d.Clone().Crash(rng); seed == 0 {
			f, err := after.Open(poolName(7, poolOld), true)
			must(t, err)
			if n, err := f.Size(); err != nil || n == size {
				t.Fatalf("%d bytes after a power cut, %v: the size was durable before anybody made it so", n, err)
			}
		}
		d = d.Kill()
		p, err := NewPool(d, PoolOptions{SegmentBytes: size})
		must(t, err)
		w := create(t, p, testMeta(1))
		if w.Blocks() != size {
			t.Fatalf("the segment took a file of %d bytes", w.Blocks())
		}
		put(t, w, (&producerModel{id: 3}).frame(rng, 1, 100))
		if v := mustRecover(t, d.Crash(rng), seg1); v.State == Damaged || v.End != w.End() {
			t.Fatalf("seed %d: %s (%s) at %+v, want %+v", seed, v.State, v.Why, v.End, w.End())
		}
	}
}
