package disk_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/ringfence/ringfence/segfile/disk"
)

// descriptors counts the files below dir that this process has open.
func descriptors(t *testing.T, dir string) (n int) {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	for _, e := range list {
		to, err := os.Readlink(filepath.Join("/proc/self/fd", e.Name()))
		if err == nil && filepath.Dir(to) == dir {
			n++
		}
	}
	return n
}

func contentOf(i int) []byte { return bytes.Repeat([]byte{byte(i), byte(i >> 8), 7, 9}, disk.Block/4) }

// manyFiles makes n files and opens them to be read, on a disk that keeps few open.
func manyFiles(t *testing.T, engine string, n, keep int) (d disk.Disk, dir string, files []disk.File) {
	t.Helper()
	dir = t.TempDir()
	d, err := disk.Open(dir, disk.Options{Engine: engine, ArenaBytes: 1 << 20, OpenFiles: keep})
	must(t, err)
	t.Cleanup(func() {
		if err := d.Close(); err != nil && !errors.Is(err, disk.ErrClosed) {
			t.Error(err)
		}
	})
	for i := range n {
		name := fmt.Sprintf("f%03d", i)
		f, err := d.Create(name)
		must(t, err)
		must(t, f.WriteAt(contentOf(i), 0))
		must(t, f.Close())
		r, err := d.Open(name, true)
		must(t, err)
		files = append(files, r)
	}
	return d, dir, files
}

func reads(t *testing.T, f disk.File, i int) {
	t.Helper()
	b := make([]byte, disk.Block)
	if _, err := f.ReadAt(b, 0); err != nil || !bytes.Equal(b, contentOf(i)) {
		t.Errorf("file %d (%s): %v", i, f.Name(), err)
	}
}

// More files are open to be read than may have a descriptor: all can be read all the
// time, by calls and by queues, from many goroutines.
func TestParkedFilesAreRead(t *testing.T) {
	for _, engine := range []string{"auto", "pool"} {
		t.Run(engine, func(t *testing.T) {
			const n, keep = 60, 8
			d, dir, files := manyFiles(t, engine, n, keep)
			if open := descriptors(t, dir); open > keep+2 {
				t.Fatalf("%d descriptors, may keep %d", open, keep)
			}
			for i, f := range files {
				reads(t, f, i)
				if size, err := f.Size(); err != nil || size != disk.Block {
					t.Errorf("size %d %v", size, err)
				}
			}
			var group sync.WaitGroup
			for w := range 4 {
				group.Go(func() {
					rng := rand.New(rand.NewPCG(uint64(w), 1))
					q, err := d.NewQueue(4)
					if err != nil {
						t.Error(err)
						return
					}
					defer q.Close()
					for range 300 {
						i := rng.IntN(n)
						if rng.IntN(2) == 0 {
							reads(t, files[i], i)
							continue
						}
						buf, ok := d.Arena().Alloc(disk.Block)
						if !ok {
							t.Error("no memory")
							return
						}
						op := &disk.Op{Kind: disk.Read, File: files[i], Buf: buf, Done: func(*disk.Op) {}}
						if err := errors.Join(q.Push(op), q.Submit()); err != nil {
							t.Error(err)
							return
						}
						for q.InFlight() > 0 {
							if _, err := q.Wait(1); err != nil {
								t.Error(err)
								return
							}
						}
						if op.Err != nil || !bytes.Equal(buf, contentOf(i)) {
							t.Errorf("file %d by a queue: %v", i, op.Err)
						}
						d.Arena().Free(buf)
					}
				})
			}
			group.Wait()
			if open := descriptors(t, dir); open > keep+8 {
				t.Errorf("%d descriptors afterwards, may keep %d", open, keep)
			}
			must(t, d.Close())
			if open := descriptors(t, dir); open != 0 {
				t.Errorf("%d descriptors after Close", open)
			}
		})
	}
}

// A parked file follows its name; one that is removed or replaced goes on being what
// it was for who has it open; and another file in its place, which nobody put there
// through the disk, is refused.
func TestParkedFilesKeepTheirIdentity(t *testing.T) {
	d, dir, files := manyFiles(t, "pool", 40, 4)
	must(t, d.Rename("f000", "moved"))
	reads(t, files[0], 0)
	must(t, d.Remove("f001"))
	must(t, d.Rename("f003", "f002"))
	for _, f := range files[10:] { // park whatever may be parked
		reads(t, f, int(f.Name()[1]-'0')*100+int(f.Name()[2]-'0')*10+int(f.Name()[3]-'0'))
	}
	reads(t, files[0], 0)
	reads(t, files[1], 1)
	reads(t, files[2], 2)
	reads(t, files[3], 3)
	must(t, os.Rename(filepath.Join(dir, "f005"), filepath.Join(dir, "f004")))
	if _, err := files[4].ReadAt(make([]byte, 512), 0); !errors.Is(err, disk.ErrInvalid) {
		t.Errorf("read another file: %v", err)
	}
	if _, err := files[5].ReadAt(make([]byte, 512), 0); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("read a file that is gone: %v", err)
	}
	must(t, files[4].Close())
	must(t, files[6].Close())
	if _, err := files[6].ReadAt(make([]byte, 512), 0); !errors.Is(err, disk.ErrClosed) {
		t.Errorf("read a closed file: %v", err)
	}
	if err := files[6].Close(); !errors.Is(err, disk.ErrClosed) {
		t.Errorf("closed twice: %v", err)
	}
}

// Files are opened, read, parked and closed by many at once.
func TestParkedFilesComeAndGo(t *testing.T) {
	d, dir, files := manyFiles(t, "pool", 30, 3)
	var group sync.WaitGroup
	for w := range 4 {
		group.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(w), 2))
			for range 200 {
				i := rng.IntN(len(files))
				f, err := d.Open(fmt.Sprintf("f%03d", i), true)
				if err != nil {
					t.Error(err)
					return
				}
				reads(t, f, i)
				reads(t, files[i], i)
				if err := f.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
	for _, f := range files {
		must(t, f.Close())
	}
	if open := descriptors(t, dir); open != 0 {
		t.Errorf("%d descriptors are left", open)
	}
}
