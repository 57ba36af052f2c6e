package segfile

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/ringfence/ringfence/segfile/disk"
)

// realTree is a pool on real files.
func realTree(t *testing.T) (dir string, d disk.Disk, p *Pool) {
	t.Helper()
	dir = t.TempDir()
	d, err := disk.Open(dir, disk.Options{ArenaBytes: 2 << 20})
	must(t, err)
	t.Cleanup(func() { d.Close() })
	p, err = NewPool(d, PoolOptions{SegmentBytes: 1 << 20})
	must(t, err)
	return dir, d, p
}

// secret is what a segment of another topic says, again and again.
var secret = []byte("a record that others may not read ")

func (p *producerModel) secrets(size int) []byte {
	f := p.frame(rand.New(rand.NewPCG(1, 1)), 1, size)
	copy(f[len(f)-size:], bytes.Repeat(secret, size/len(secret)))
	return f
}

// recycledBehindSecrets is a writer whose file held secrets before, up to its end.
func recycledBehindSecrets(t *testing.T, p *Pool) *Writer {
	t.Helper()
	w := create(t, p, testMeta(900))
	for g := (&producerModel{id: 9}); w.Position() < 800<<10; {
		put(t, w, g.secrets(60<<10))
	}
	fenceNow(t, w)
	must(t, w.Close())
	must(t, p.Recycle(Name(testID(900))))
	w = create(t, p, testMeta(1))
	if p.Stats().Recycled != 1 {
		t.Fatalf("%+v", p.Stats())
	}
	return w
}

// Who gets a file reads all of it: nothing of another segment is in it, nor ever will be,
// also once another process runs the pool. Others are used again.
func TestGivenFileHoldsOneSegment(t *testing.T) {
	dir, d, p := realTree(t)
	w := recycledBehindSecrets(t, p)
	frames := write(t, w, rand.New(rand.NewPCG(3, 3)), 28, 5, 5000)
	fenceNow(t, w)
	must(t, w.Trim())
	must(t, w.Close())
	path := filepath.Join(dir, seg1)
	has := func() bool {
		b, err := os.ReadFile(path)
		must(t, err)
		return bytes.Contains(b, secret)
	}
	if !has() {
		t.Fatal("nothing of the file's earlier life is left: the test tests nothing")
	}
	r, err := OpenReader(d, seg1)
	must(t, err)
	must(t, r.Give())
	must(t, r.Give())
	if has() {
		t.Error("bytes of another segment are in the file that is given away")
	}
	holds(t, d, seg1, frames)
	sound(t, d, seg1)
	f, err := r.File()
	must(t, err)
	if b, ok := f.(disk.Buffered); ok {
		h, err := b.Buffered()
		if !errors.Is(err, errors.ErrUnsupported) {
			must(t, err)
			if _, err := h.WriteAt([]byte("x"), 0); err == nil {
				t.Error("what is given away can be written")
			}
			h.Close()
		}
	}
	must(t, r.Close())
	given, err := os.Open(path)
	must(t, err)
	defer given.Close()

	p, err = NewPool(d, PoolOptions{SegmentBytes: 1 << 20}) // of the next process
	must(t, err)
	filled(t, p, 2, 800<<10)
	must(t, p.Recycle(seg1, Name(testID(2))))
	if s := p.Stats(); s.Files != 1 {
		t.Errorf("the pool holds %d files, want the one that was not given", s.Files)
	}
	steps(t, p, time.UnixMilli(testNow))
	for seq := range uint32(3) {
		filled(t, p, 10+seq, 900<<10)
	}
	if p.Stats().Recycled == 0 {
		t.Error("no file was used again")
	}
	st, err := given.Stat()
	must(t, err)
	if st.Size() != 0 || st.Sys().(*syscall.Stat_t).Blocks != 0 {
		t.Errorf("whoever was given the file keeps %d bytes of it", st.Size())
	}
	for _, seq := range []uint32{10, 11, 12} {
		other, err := os.Stat(filepath.Join(dir, Name(testID(seq))))
		must(t, err)
		if os.SameFile(st, other) {
			t.Errorf("segment %d lies in the given file", seq)
		}
	}
	if names, err := filepath.Glob(filepath.Join(dir, poolDir, "*.del")); err != nil || len(names) > 0 {
		t.Errorf("%v, %v are left", names, err)
	}
}

// A given file that a pool of an earlier version took is not used again either.
func TestGivenFileInThePool(t *testing.T) {
	dir, d, p := realTree(t)
	filled(t, p, 1, 800<<10)
	r, err := OpenReader(d, seg1)
	must(t, err)
	must(t, errors.Join(r.Give(), r.Close()))
	must(t, d.Rename(seg1, poolName(70, poolOld)))
	p, err = NewPool(d, PoolOptions{SegmentBytes: 1 << 20})
	must(t, err)
	steps(t, p, time.UnixMilli(testNow))
	if _, err := os.Stat(filepath.Join(dir, poolName(70, poolOld))); !errors.Is(err, os.ErrNotExist) || p.Stats().Files != 0 {
		t.Errorf("the pool keeps it: %v, %+v", err, p.Stats())
	}
}

// A file is given whole, so one with bytes that readers do not get is not given at all.
func TestFilesThatAreNotGiven(t *testing.T) {
	no := func(t *testing.T, d disk.Disk) {
		t.Helper()
		r, err := OpenReader(d, seg1)
		must(t, err)
		defer r.Close()
		if err := r.Give(); !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("giving says %v", err)
		}
		f, err := d.Open(seg1, true)
		must(t, err)
		defer f.Close()
		if is, err := f.(disk.Giver).Given(); is || err != nil {
			t.Errorf("it is marked: %v, %v", is, err)
		}
	}
	damaged := func(t *testing.T, harm func(path string, frames []sent)) disk.Disk {
		dir, d, p := realTree(t)
		w := create(t, p, testMeta(1))
		frames := write(t, w, rand.New(rand.NewPCG(3, 3)), 10, 5, 5000)
		must(t, w.WriteProof())
		must(t, w.Close())
		harm(filepath.Join(dir, seg1), frames)
		v := mustRecover(t, d, seg1)
		_, err := v.Fence(testNow, 5)
		must(t, err)
		return d
	}
	zero := func(path string, from, n int64) {
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		must(t, err)
		_, err = f.WriteAt(make([]byte, n), from)
		must(t, errors.Join(err, f.Close()))
	}
	t.Run("holes", func(t *testing.T) {
		no(t, damaged(t, func(path string, frames []sent) { zero(path, frames[4].pos, 64) }))
	})
	t.Run("cut", func(t *testing.T) {
		d := damaged(t, func(path string, frames []sent) {
			last := frames[len(frames)-1]
			must(t, os.Truncate(path, last.pos+block))
			zero(path, last.pos+128, 64)
			zero(path, frames[8].pos+4000, 64)
		})
		r, err := OpenReader(d, seg1)
		must(t, err)
		if holes, _ := r.Holes(); r.Cut() == (Cut{}) && len(holes) == 0 {
			t.Fatal("nothing is set aside")
		}
		r.Close()
		no(t, d)
	})
	t.Run("settled", func(t *testing.T) {
		_, d, p := realTree(t)
		w := create(t, p, testMeta(1))
		frames := write(t, w, rand.New(rand.NewPCG(3, 3)), 10, 5, 5000)
		fenceNow(t, w)
		must(t, w.Close())
		_, err := Settle(d, seg1, frames[5].head.Next(), testNow, 9)
		must(t, err)
		no(t, d)
	})
	t.Run("no descriptors", func(t *testing.T) {
		d := newDisk(1)
		fenced(t, d, rand.New(rand.NewPCG(1, 8)), lifeGrown, 60<<10)
		r, err := OpenReader(d, seg1)
		must(t, err)
		defer r.Close()
		if err := r.Give(); !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("giving says %v", err)
		}
	})
}
