// Package disktest is the contract of package disk as a test. Every implementation
// passes it; code above the seam may rely on what it checks, and on nothing else.
package disktest

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/ringfence/ringfence/segfile/disk"
)

// Run tests an implementation. tree makes a new empty tree and returns what opens
// it, as often as it is called: once more for another process, or again after a
// Close. The trees may end with the test.
func Run(t *testing.T, tree func(t *testing.T) (open func() (disk.Disk, error))) {
	for _, test := range []struct {
		name string
		run  func(*bench)
	}{
		{"Names", testNames},
		{"NamesStayInside", testNamesStayInside},
		{"Directories", testDirectories},
		{"RenameIsFollowed", testRenameIsFollowed},
		{"RemovedFileStaysOpen", testRemovedFileStaysOpen},
		{"ReadsAndWrites", testReadsAndWrites},
		{"Sizes", testSizes},
		{"ReadOnly", testReadOnly},
		{"Lock", testLock},
		{"Reopen", testReopen},
		{"CloseEndsEverything", testCloseEndsEverything},
		{"CloseTellsOfLeaks", testCloseTellsOfLeaks},
		{"Space", testSpace},
		{"QueueRefuses", testQueueRefuses},
		{"QueueDepth", testQueueDepth},
		{"QueueWaits", testQueueWaits},
		{"QueueModel", testQueueModel},
		{"QueueReadsAtTheEnd", testQueueReadsAtTheEnd},
		{"QueueErrors", testQueueErrors},
		{"QueueClose", testQueueClose},
		{"QueueTwoSides", testQueueTwoSides},
		{"Register", testRegister},
		{"RegisterRefuses", testRegisterRefuses},
		{"UnregisterWaits", testUnregisterWaits},
		{"UnregisterLate", testUnregisterLate},
		{"FileCloseLetsOperationsEnd", testFileClose},
		{"ManyFiles", testManyFiles},
		{"Concurrent", testConcurrent},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := &bench{T: t, open: tree(t)}
			b.d = b.reopen()
			test.run(b)
			b.d.Close() // what a test closed already stays closed
		})
	}
}

// bench is a test with a disk.
type bench struct {
	*testing.T
	open func() (disk.Disk, error)
	d    disk.Disk
}

func (b *bench) reopen() disk.Disk {
	b.Helper()
	d, err := b.open()
	if err != nil {
		b.Fatal(err)
	}
	return d
}

func (b *bench) ok(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

func (b *bench) is(err, want error) {
	b.Helper()
	if !errors.Is(err, want) {
		b.Fatalf("got error %v, want one that is %v", err, want)
	}
}

func (b *bench) create(name string) disk.File {
	b.Helper()
	f, err := b.d.Create(name)
	b.ok(err)
	return f
}

func (b *bench) names(dir string) (names []string) {
	b.Helper()
	entries, err := b.d.List(dir)
	b.ok(err)
	for _, e := range entries {
		name := e.Name
		if e.Dir {
			name += "/"
		}
		names = append(names, name)
	}
	return names
}

func (b *bench) want(dir string, names ...string) {
	b.Helper()
	if got := b.names(dir); !slices.Equal(got, names) {
		b.Fatalf("directory %q holds %q, want %q", dir, got, names)
	}
}

// fill is bytes that tell their place.
func fill(n int, seed uint64) []byte {
	p := make([]byte, n)
	r := rand.NewPCG(seed, 1)
	for i := 0; i < n; i += 8 {
		v := r.Uint64()
		for j := i; j < min(n, i+8); j++ {
			p[j] = byte(v >> (8 * (j - i)))
		}
	}
	return p
}

func (b *bench) reads(f disk.File, off int64, want []byte) {
	b.Helper()
	got := make([]byte, len(want))
	if n, err := f.ReadAt(got, off); err != nil || n != len(want) {
		b.Fatalf("read of %d bytes at %d of %s: %d, %v", len(want), off, f.Name(), n, err)
	}
	if i := mismatch(got, want); i >= 0 {
		b.Fatalf("byte %d of %s is %#x, want %#x", off+int64(i), f.Name(), got[i], want[i])
	}
}

func mismatch(a, b []byte) int {
	if bytes.Equal(a, b) {
		return -1
	}
	for i := range a {
		if a[i] != b[i] {
			return i
		}
	}
	return len(a)
}

func testReadsAndWrites(b *bench) {
	f := b.create("f")
	image := fill(300*disk.Block, 7)
	b.ok(f.WriteAt(image, 0)) // more than any internal buffer
	odd := make([]byte, 3*disk.Block+1)
	b.ok(f.WriteAt(odd[1:][:copy(odd[1:], fill(3*disk.Block, 8))], 5*disk.Block)) // memory of odd alignment
	copy(image[5*disk.Block:], odd[1:])
	rng := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		off := rng.IntN(len(image))
		n := rng.IntN(min(len(image)-off, 70000)) + 1
		b.reads(f, int64(off), image[off:off+n])
	}
	b.reads(f, 0, image)
	for _, err := range []error{
		f.WriteAt(image[:100], 0), f.WriteAt(image[:disk.Block], 512), f.WriteAt(image[:disk.Block], -disk.Block),
		f.Truncate(-1), f.Allocate(-1, 1), f.Allocate(0, 0),
	} {
		b.is(err, disk.ErrInvalid)
	}
	_, err := f.ReadAt(odd, -1)
	b.is(err, disk.ErrInvalid)
	b.ok(f.WriteAt(nil, 0))
	if n, err := f.ReadAt(nil, 1<<40); n != 0 || err != nil {
		b.Fatal("reading nothing:", n, err)
	}
	b.reads(f, 0, image)
}

func testSizes(b *bench) {
	f := b.create("f")
	size := func(want int64) {
		b.Helper()
		if got, err := f.Size(); err != nil || got != want {
			b.Fatalf("size %d, %v, want %d", got, err, want)
		}
	}
	size(0)
	if n, err := f.ReadAt(make([]byte, 10), 0); n != 0 || err != io.EOF {
		b.Fatal("read of an empty file:", n, err)
	}
	b.ok(f.WriteAt(fill(disk.Block, 1), 3*disk.Block)) // behind a hole
	size(4 * disk.Block)
	b.reads(f, 0, make([]byte, 3*disk.Block))
	b.ok(f.Truncate(3*disk.Block + 1000))
	size(3*disk.Block + 1000)
	for _, at := range []int64{3 * disk.Block, 3*disk.Block + 123} { // across the odd end
		got := make([]byte, 2*disk.Block)
		n, err := f.ReadAt(got, at)
		if want := fill(disk.Block, 1)[at-3*disk.Block : 1000]; err != io.EOF || !bytes.Equal(got[:n], want) {
			b.Fatalf("read at %d across the end: %d bytes, %v", at, n, err)
		}
	}
	b.reads(f, 3*disk.Block+400, fill(disk.Block, 1)[400:1000]) // exactly to the end
	b.ok(f.Truncate(5 * disk.Block))
	want := make([]byte, 2*disk.Block)
	copy(want, fill(disk.Block, 1)[:1000])
	b.reads(f, 3*disk.Block, want)
	b.ok(f.Truncate(0))
	size(0)
	err := f.Allocate(disk.Block, 5*disk.Block)
	if errors.Is(err, errors.ErrUnsupported) {
		b.Skip("this file system cannot allocate:", err)
	}
	b.ok(err)
	size(6 * disk.Block)
	b.reads(f, 0, make([]byte, 6*disk.Block))
	b.ok(f.WriteAt(fill(disk.Block, 3), 2*disk.Block))
	b.ok(f.Allocate(0, 3*disk.Block)) // neither shrinks nor overwrites
	size(6 * disk.Block)
	b.reads(f, 2*disk.Block, fill(disk.Block, 3))
	b.ok(f.Sync())
}

func testReadOnly(b *bench) {
	b.create("f").Close()
	f, err := b.d.Open("f", true)
	b.ok(err)
	for _, err := range []error{f.WriteAt(fill(disk.Block, 1), 0), f.Truncate(10), f.Allocate(0, 10)} {
		if err == nil {
			b.Fatal("changed a file opened for reading")
		}
	}
	if n, err := f.Size(); n != 0 || err != nil {
		b.Fatal(n, err)
	}
	b.ok(f.Close())
	b.is(f.Close(), disk.ErrClosed)
	_, err = f.ReadAt(make([]byte, 1), 0)
	b.is(err, disk.ErrClosed)
	_, err = f.Size()
	b.is(err, disk.ErrClosed)
	b.is(f.Sync(), disk.ErrClosed)
	b.is(f.WriteAt(fill(disk.Block, 1), 0), disk.ErrClosed)
}

func testLock(b *bench) {
	b.ok(b.d.Lock("LOCK"))
	other := b.reopen()
	b.is(other.Lock("LOCK"), disk.ErrLocked)
	b.ok(b.d.Close())
	b.ok(other.Lock("LOCK"))
	b.ok(other.Close())
}

func testReopen(b *bench) {
	b.ok(b.d.Mkdir("d"))
	f := b.create("d/f")
	b.ok(f.WriteAt(fill(9*disk.Block, 4), 0))
	b.ok(b.d.Close())
	b.d = b.reopen()
	f, err := b.d.Open("d/f", false)
	b.ok(err)
	b.reads(f, 0, fill(9*disk.Block, 4))
	b.want("", "d/")
}

func testCloseEndsEverything(b *bench) {
	f := b.create("f")
	q, err := b.d.NewQueue(2)
	b.ok(err)
	b.ok(b.d.Close())
	b.is(b.d.Close(), disk.ErrClosed)
	b.is(f.Sync(), disk.ErrClosed)
	b.is(f.Close(), disk.ErrClosed)
	b.is(q.Submit(), disk.ErrClosed)
	_, err = q.Wait(0)
	b.is(err, disk.ErrClosed)
	b.is(q.Close(), disk.ErrClosed)
	_, err = b.d.NewQueue(2)
	b.is(err, disk.ErrClosed)
	_, err = b.d.Create("g")
	b.is(err, disk.ErrClosed)
	_, err = b.d.Open("f", true)
	b.is(err, disk.ErrClosed)
	_, err = b.d.List("")
	b.is(err, disk.ErrClosed)
	_, _, err = b.d.Space()
	b.is(err, disk.ErrClosed)
	for _, err := range []error{b.d.Rename("f", "g"), b.d.Remove("f"), b.d.Mkdir("d"), b.d.SyncDir(""), b.d.Lock("l")} {
		b.is(err, disk.ErrClosed)
	}
}

func testCloseTellsOfLeaks(b *bench) {
	leak, ok := b.d.Arena().Alloc(disk.Block)
	if !ok {
		b.Fatal("no memory")
	}
	if err := b.d.Close(); err == nil || errors.Is(err, disk.ErrClosed) {
		b.Fatal("closed with memory allocated, and said nothing of it:", err)
	}
	leak[0]++ // must still be there
	other := b.reopen()
	b.ok(other.Close())
}

func testSpace(b *bench) {
	total, free, err := b.d.Space()
	if err != nil || total == 0 || free > total {
		b.Fatal(total, free, err)
	}
	info := b.d.Info()
	if info.Engine == "" || info.FileSystem == "" || info.Direct != (info.Align > 0) || info.Align > disk.Block {
		b.Fatalf("%+v", info)
	}
}

func testManyFiles(b *bench) {
	const files = 40
	q, err := b.d.NewQueue(8)
	b.ok(err)
	for round := range 5 {
		var open []disk.File
		for i := range files {
			f := b.create("f" + string(rune('A'+i)))
			open = append(open, f)
			op := &disk.Op{Kind: disk.Write, Durable: true, File: f, Buf: b.alloc(disk.Block), Done: func(*disk.Op) {}}
			copy(op.Buf, fill(disk.Block, uint64(round*files+i)))
			b.ok(q.Push(op))
			b.ok(q.Submit())
			for q.InFlight() > 0 {
				_, err := q.Wait(1)
				b.ok(err)
			}
			b.ok(op.Err)
			b.d.Arena().Free(op.Buf)
		}
		for i, f := range open {
			b.reads(f, 0, fill(disk.Block, uint64(round*files+i)))
			b.ok(f.Close())
			b.ok(b.d.Remove(f.Name()))
		}
	}
	b.ok(q.Close())
}

func testConcurrent(b *bench) {
	f := b.create("f")
	var group sync.WaitGroup
	for w := range 6 {
		group.Go(func() {
			at := int64(w) * 16 * disk.Block
			for i := range 30 {
				want := fill(4*disk.Block, uint64(w*100+i))
				off := at + int64(i%4)*4*disk.Block
				if err := f.WriteAt(want, off); err != nil {
					b.Error(err)
					return
				}
				got := make([]byte, len(want))
				if _, err := f.ReadAt(got, off); err != nil || !bytes.Equal(got, want) {
					b.Errorf("writer %d reads something else: %v", w, err)
					return
				}
				name := "n" + string(rune('a'+w))
				g, err := b.d.Create(name)
				if err == nil {
					err = errors.Join(g.Close(), b.d.Rename(name, name+"2"), b.d.SyncDir(""), b.d.Remove(name+"2"))
				}
				if _, lerr := b.d.List(""); err != nil || lerr != nil {
					b.Error(err, lerr)
					return
				}
			}
		})
	}
	group.Wait()
	b.want("", "f")
}
