package disk_test

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ringfence/ringfence/segfile/disk"
)

// buffered opens a file for buffered reads, where the file system is one for them.
func buffered(t testing.TB, f disk.File) *os.File {
	t.Helper()
	h, err := f.(disk.Buffered).Buffered()
	if errors.Is(err, errors.ErrUnsupported) {
		t.Skip(err)
	}
	must(t, err)
	t.Cleanup(func() { h.Close() })
	return h
}

// C12: what a direct write was durable for is what buffered reads see from then on,
// whatever the page cache had before, also while others fill it. What a socket has taken
// of a file before it was written again is sent as it was.
func TestC12BufferedReadsBesideDirectWrites(t *testing.T) {
	for _, engine := range []string{"auto", "pool"} {
		t.Run(engine, func(t *testing.T) {
			d := openIn(t, t.TempDir(), engine)
			f, err := d.Create("f")
			must(t, err)
			const size = 256 * block
			old := bytes.Repeat([]byte{1}, size)
			must(t, f.WriteAt(old, 0))
			h := buffered(t, f)

			var filling sync.WaitGroup
			stop := make(chan struct{})
			filling.Go(func() { // a reader that has the page cache full of what it finds
				b := make([]byte, size)
				for {
					select {
					case <-stop:
						return
					default:
						_, _ = h.ReadAt(b, 0)
					}
				}
			})
			defer filling.Wait()
			defer close(stop)

			q, err := d.NewQueue(1)
			must(t, err)
			slab, ok := d.Arena().Alloc(64 * block)
			if !ok {
				t.Fatal("no memory")
			}
			defer d.Arena().Free(slab)
			rng := rand.New(rand.NewPCG(1, 2))
			got := make([]byte, size)
			for round := byte(2); round < 250; round++ {
				from, n := rng.IntN(192), 1+rng.IntN(64)
				b := slab[:n*block]
				for i := range b {
					b[i] = round
				}
				if round%2 == 0 {
					must(t, f.WriteAt(b, int64(from)*block))
				} else {
					var failed error
					must(t, q.Push(&disk.Op{Kind: disk.Write, Durable: true, File: f, Buf: b, Off: int64(from) * block, Done: func(op *disk.Op) { failed = op.Err }}))
					must(t, q.Submit())
					_, err := q.Wait(1)
					must(t, errors.Join(err, failed))
				}
				copy(old[from*block:], b)
				_, err := h.ReadAt(got, 0)
				must(t, err)
				if !bytes.Equal(got, old) {
					t.Fatalf("round %d: %d blocks from %d on were written, and read back otherwise", round, n, from)
				}
			}
			must(t, q.Close())

			sent := taken(t, h, func() { must(t, f.WriteAt(make([]byte, size), 0)) })
			if len(sent) == 0 || !bytes.Equal(sent, old[:len(sent)]) {
				t.Errorf("%d bytes were sent as they were written afterwards", len(sent))
			}
		})
	}
}

// taken is what a socket has taken of a file, without anybody reading it, before do.
func taken(t *testing.T, h *os.File, do func()) []byte {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer l.Close()
	in, err := net.Dial("tcp", l.Addr().String())
	must(t, err)
	defer in.Close()
	out, err := l.Accept()
	must(t, err)
	raw, err := out.(*net.TCPConn).SyscallConn()
	must(t, err)
	var n int
	must(t, raw.Control(func(fd uintptr) {
		off := int64(0)
		n, err = unix.Sendfile(int(fd), int(h.Fd()), &off, 128*block)
	}))
	must(t, err)
	do()
	must(t, out.Close())
	got, err := io.ReadAll(in)
	must(t, err)
	if len(got) != n {
		t.Errorf("%d bytes came of %d", len(got), n)
	}
	return got
}

// Buffered reads are of the file that was opened, and of no other under its name.
func TestBufferedFollowsTheFile(t *testing.T) {
	dir := t.TempDir()
	d := openIn(t, dir, "pool")
	f, err := d.Create("a")
	must(t, err)
	must(t, f.WriteAt(bytes.Repeat([]byte{7}, block), 0))
	must(t, d.Rename("a", "b"))
	h := buffered(t, f)
	b := make([]byte, 1)
	if _, err := h.ReadAt(b, 0); err != nil || b[0] != 7 {
		t.Fatalf("read %d, %v", b[0], err)
	}
	must(t, os.Rename(dir+"/b", dir+"/c"))
	must(t, os.WriteFile(dir+"/b", make([]byte, block), 0o600))
	if h, err := f.(disk.Buffered).Buffered(); !errors.Is(err, disk.ErrInvalid) {
		t.Errorf("another file was opened: %v %v", h, err)
	}
	must(t, f.Close())
	if _, err := f.(disk.Buffered).Buffered(); !errors.Is(err, disk.ErrClosed) {
		t.Errorf("opened a closed file: %v", err)
	}
}

// The mark of a file that was given away stays with it, whatever its name and whoever has
// the tree open, and no other file has it.
func TestGivenFileIsMarked(t *testing.T) {
	dir := t.TempDir()
	d := openIn(t, dir, "pool")
	given := func(d disk.Disk, name string) bool {
		f, err := d.Open(name, true)
		must(t, err)
		defer f.Close()
		is, err := f.(disk.Giver).Given()
		must(t, err)
		return is
	}
	for _, name := range []string{"a", "b"} {
		f, err := d.Create(name)
		must(t, err)
		must(t, f.WriteAt(make([]byte, block), 0))
		must(t, f.Close())
	}
	if given(d, "a") {
		t.Fatal("a new file is marked")
	}
	f, err := d.Open("a", false)
	must(t, err)
	must(t, f.(disk.Giver).Give())
	must(t, f.(disk.Giver).Give())
	must(t, f.WriteAt(bytes.Repeat([]byte{1}, block), 0))
	must(t, f.Close())
	must(t, d.Rename("a", "c"))
	if !given(d, "c") || given(d, "b") {
		t.Errorf("given: %v, the other one %v", given(d, "c"), given(d, "b"))
	}
	must(t, d.Close())
	if d := openIn(t, dir, "auto"); !given(d, "c") {
		t.Error("the next process does not know that it was given")
	}
	if err := f.(disk.Giver).Give(); !errors.Is(err, disk.ErrClosed) {
		t.Errorf("a closed file: %v", err)
	}
}
