package disk

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ringfence/ringfence/ring"
)

// fakeCalls is a file in memory behind the system calls, which does as told.
type fakeCalls struct {
	image   []byte
	script  []result // of the next calls of pread and pwrite, in order; then all goes well
	noDsync bool
	log     []string
	durable int // calls of pwrite with the flag that succeeded
	syncs   int
	syncErr []error
}

// result is how a call ends: with an error, or after so many bytes.
type result struct {
	n   int
	err error
}

func (c *fakeCalls) next(n int) result {
	r := result{n: n}
	if len(c.script) > 0 {
		r, c.script = c.script[0], c.script[1:]
	}
	r.n = min(r.n, n)
	return r
}

func (c *fakeCalls) pread(_ int, p []byte, off int64) (int, error) {
	c.log = append(c.log, fmt.Sprintf("read %d+%d", off, len(p)))
	if off%Block != 0 || len(p)%Block != 0 {
		return 0, unix.EINVAL
	}
	left := max(0, min(len(p), len(c.image)-int(off)))
	r := c.next(left)
	if r.err == nil {
		copy(p[:r.n], c.image[min(int(off), len(c.image)):])
	}
	return r.n, r.err
}

func (c *fakeCalls) pwrite(_ int, p []byte, off int64, durable bool) (int, error) {
	c.log = append(c.log, fmt.Sprintf("write %d+%d", off, len(p)))
	if off%Block != 0 || len(p)%Block != 0 {
		return 0, unix.EINVAL
	}
	if durable && c.noDsync {
		return 0, unix.EOPNOTSUPP
	}
	r := c.next(len(p))
	if r.err == nil {
		copy(c.image[off:], p[:r.n])
		if durable {
			c.durable++
		}
	}
	return r.n, r.err
}

func (c *fakeCalls) fdatasync(int) error {
	c.syncs++
	if len(c.syncErr) > 0 {
		err := c.syncErr[0]
		c.syncErr = c.syncErr[1:]
		return err
	}
	return nil
}

func fakeFile(c *fakeCalls) *osFile {
	f := &osFile{d: &osDisk{calls: c, align: Block}, direct: true}
	name := "f"
	f.name.Store(&name)
	return f
}

func pages(n int, tag byte) []byte {
	b := make([]byte, (n+1)*Block)
	b = b[-address(b)%Block:][:n*Block]
	for i := range b {
		b[i] = tag + byte(i/Block) + byte(i)
	}
	return b
}

// E01: whatever part of a write storage takes, it goes on from a block boundary with
// the same bytes, boundedly, and touches nothing beside.
func TestE01ShortWrites(t *testing.T) {
	counts := []int{0, 1, 511, 512, 4095, 4096, 4097, 8192, 12289, 4*Block - 1}
	for _, first := range counts {
		for _, second := range counts {
			c := &fakeCalls{image: bytes.Repeat([]byte{0xee}, 8*Block), script: []result{{n: first}, {n: second}}}
			p := pages(4, 1)
			want := slices.Clone(c.image)
			copy(want[2*Block:], p)
			if err := fakeFile(c).WriteAt(p, 2*Block); err != nil {
				t.Fatalf("short after %d, then %d: %v (%q)", first, second, err, c.log)
			}
			if !bytes.Equal(c.image, want) || len(c.script) != 0 || len(c.log) > 4 {
				t.Fatalf("short after %d, then %d: image equal %v, calls %q", first, second, bytes.Equal(c.image, want), c.log)
			}
			if c.durable != len(c.log) {
				t.Fatalf("%d of %d parts were written durably", c.durable, len(c.log))
			}
		}
	}
}

func TestE01NoProgressEnds(t *testing.T) {
	for _, n := range []int{0, 1, 4095} {
		c := &fakeCalls{image: make([]byte, 8*Block), script: slices.Repeat([]result{{n: n}}, 1000)}
		err := fakeFile(c).WriteAt(pages(4, 1), 0)
		var place *OpError
		if !errors.Is(err, ErrShort) || !errors.As(err, &place) || place.Len != 4*Block || len(c.log) > 2*maxStalls {
			t.Fatalf("storage takes %d bytes each time: %v after %d calls", n, err, len(c.log))
		}
		c = &fakeCalls{image: pages(8, 3), script: slices.Repeat([]result{{n: n}}, 1000)}
		got, _ := fakeFile(c).ReadAt(pages(4, 0), 0)
		if got > n || len(c.log) > 2*maxStalls { // it cannot be told from the end of the file
			t.Fatalf("storage gives %d bytes each time: read %d in %d calls", n, got, len(c.log))
		}
	}
}

// E01 for reads, also at the end of the file.
func TestE01ShortReads(t *testing.T) {
	for _, size := range []int{8 * Block, 3*Block + 777, 3 * Block, 100} {
		for _, first := range []int{1, 511, 512, 4095, 4096, 4097, 12288, 4*Block - 1} {
			image := pages(8, 5)[:size]
			c := &fakeCalls{image: image, script: []result{{n: first}}}
			p := pages(4, 0)
			n, err := fakeFile(c).ReadAt(p, 0)
			want := min(size, 4*Block)
			if n != want || !bytes.Equal(p[:n], image[:n]) || (err == nil) != (n == len(p)) || len(c.log) > 4 {
				t.Fatalf("size %d, short after %d: %d bytes, %v, calls %q", size, first, n, err, c.log)
			}
		}
	}
}

// E07 for blocking calls: interrupted and refused calls are made again, boundedly.
func TestE07TemporaryErrors(t *testing.T) {
	for _, errno := range []error{unix.EINTR, unix.EAGAIN} {
		c := &fakeCalls{image: make([]byte, 4*Block), script: []result{{err: errno}, {n: Block}, {err: errno}}}
		p := pages(2, 9)
		if err := fakeFile(c).WriteAt(p, 0); err != nil || !bytes.Equal(c.image[:2*Block], p) {
			t.Fatal(err)
		}
		for _, do := range []func(f *osFile) error{
			func(f *osFile) error { return f.WriteAt(p, 0) },
			func(f *osFile) error { _, err := f.ReadAt(p, 0); return err },
		} {
			c = &fakeCalls{image: make([]byte, 4*Block), script: slices.Repeat([]result{{err: errno}}, 1000)}
			if err := do(fakeFile(c)); !errors.Is(err, errno) || len(c.log) > maxTries+1 {
				t.Fatal(err, len(c.log))
			}
		}
	}
	c := &fakeCalls{syncErr: []error{unix.EINTR, unix.EINTR}}
	if err := fakeFile(c).Sync(); err != nil || c.syncs != 3 {
		t.Fatal(err, c.syncs)
	}
}

// A kernel without RWF_DSYNC: all is written, then the file is synced, and a failing
// sync is a failing write. A real error is never tried again.
func TestDurableWriteWithoutDsync(t *testing.T) {
	p := pages(2, 9)
	c := &fakeCalls{image: make([]byte, 4*Block), noDsync: true, script: []result{{n: 100}}}
	if err := fakeFile(c).WriteAt(p, 0); err != nil || c.syncs != 1 || !bytes.Equal(c.image[:2*Block], p) {
		t.Fatal(err, c.syncs)
	}
	c = &fakeCalls{image: make([]byte, 4*Block), noDsync: true, syncErr: []error{unix.EIO}}
	if err := fakeFile(c).WriteAt(p, 0); !errors.Is(err, unix.EIO) || c.syncs != 1 {
		t.Fatal(err, c.syncs)
	}
	for _, errno := range []error{unix.EIO, unix.ENOSPC, unix.EDQUOT} {
		c = &fakeCalls{image: make([]byte, 4*Block), script: []result{{n: Block}, {err: errno}}}
		err := fakeFile(c).WriteAt(p, 0)
		if !errors.Is(err, errno) || errors.Is(err, ErrNoSpace) != (errno != unix.EIO) || len(c.log) != 2 || c.syncs != 0 {
			t.Fatal(err, c.log)
		}
	}
}

// What a queue asks of io_uring: a durable write carries the flag, a sync is one of
// data.
func TestRingOperations(t *testing.T) {
	buf := pages(1, 0)
	for _, tc := range []struct {
		op    Op
		code  ring.Code
		flags ring.Flags
	}{
		{Op{Kind: Write, Buf: buf, Off: Block}, ring.Write, 0},
		{Op{Kind: Write, Durable: true, Buf: buf, Off: Block}, ring.Write, ring.DSync},
		{Op{Kind: Read, Durable: true, Buf: buf, Off: Block}, ring.Read, 0},
		{Op{Kind: Sync, Durable: true}, ring.Sync, ring.Datasync},
	} {
		s := ringSlot{user: &tc.op}
		s.fill(7, ring.FixedFile)
		if s.op.Code != tc.code || s.op.Flags != tc.flags|ring.FixedFile || s.op.FD != 7 || s.op.Off != tc.op.Off || len(s.op.Buf) != len(tc.op.Buf) {
			t.Errorf("%+v became %+v", tc.op, s.op)
		}
	}
}

func TestE17Alignment(t *testing.T) {
	for _, tc := range []struct {
		known    bool
		mem, off uint32
		align    int
		refused  bool
	}{
		{true, 512, 512, 512, false}, {true, 4, 512, 512, false}, {true, 512, 4096, 4096, false}, {true, 4096, 512, 4096, false},
		{true, 512, 16384, 0, true}, {true, 65536, 512, 0, true}, {true, 0, 0, 0, true}, {true, 512, 0, 0, true},
		{true, 512, 1000, 0, true}, {false, 0, 0, Block, false},
	} {
		align, why := judgeAlign(tc.known, tc.mem, tc.off)
		if align != tc.align || (why != "") != tc.refused {
			t.Errorf("%+v: aligned to %d, %q", tc, align, why)
		}
	}
}

// C11: kernels known to be bad are warned about, others are not.
func TestC11Warnings(t *testing.T) {
	for _, tc := range []struct {
		fs, release string
		warned      bool
	}{
		{"ext4", "6.1.64-custom", true}, {"ext4", "6.1.65", true}, {"ext4", "6.1.66", false}, {"xfs", "6.1.64", false},
		{"ext4", "6.18.44", false}, {"ext4", "strange", false}, {"fuse", "6.18.0", true}, {"btrfs", "6.15.0", true}, {"tmpfs", "6.15.0", true},
	} {
		if w := warnings(tc.fs, tc.release); (len(w) > 0) != tc.warned {
			t.Errorf("%s on %s: %q", tc.fs, tc.release, w)
		}
	}
}
