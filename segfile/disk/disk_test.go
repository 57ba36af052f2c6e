package disk_test

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/ringfence/ringfence/segfile/disk"
)

const block = disk.Block

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func openIn(t testing.TB, dir, engine string) disk.Disk {
	t.Helper()
	d, err := disk.Open(dir, disk.Options{Engine: engine, ArenaBytes: 4 << 20})
	must(t, err)
	t.Cleanup(func() { d.Close() })
	return d
}

func TestOpenMakesTheDirectory(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	d := openIn(t, dir, "pool")
	entries, err := d.List("")
	if err != nil || len(entries) != 0 {
		t.Fatalf("a new tree holds %v, %v", entries, err)
	}
	if _, err := disk.Open(filepath.Join(dir, "c"), disk.Options{ReadOnly: true}); !errors.Is(err, fs.ErrNotExist) {
		t.Fatal("opened what does not exist, for reading:", err)
	}
}

func TestOpenChoosesAndSaysWhy(t *testing.T) {
	dir := t.TempDir()
	if info := openIn(t, dir, "pool").Info(); info.Engine != "pool" || info.Reason == "" || info.Registered {
		t.Fatalf("asked for the pool: %+v", info)
	}
	t.Setenv(disk.EngineEnv, "pool")
	for _, engine := range []string{"", "auto"} {
		if info := openIn(t, dir, engine).Info(); info.Engine != "pool" {
			t.Fatalf("the environment asks for the pool: %+v", info)
		}
	}
	t.Setenv(disk.EngineEnv, "floppy")
	for _, o := range []disk.Options{{}, {Engine: "uring"}, {Engine: "pool", Workers: -1}, {Engine: "pool", ArenaBytes: 100}} {
		if _, err := disk.Open(dir, o); !errors.Is(err, disk.ErrInvalid) {
			t.Fatalf("%+v: %v", o, err)
		}
	}
	t.Setenv(disk.EngineEnv, "")
	needRing(t)
	for _, engine := range []string{"", "auto", "io_uring"} {
		if info := openIn(t, dir, engine).Info(); info.Engine != "io_uring" {
			t.Fatalf("%q: %+v", engine, info)
		}
	}
}

func TestOpenCleansOldScratchFiles(t *testing.T) {
	dir := t.TempDir()
	old, young := filepath.Join(dir, ".probe-1-00000001"), filepath.Join(dir, ".probe-1-00000002")
	must(t, os.WriteFile(old, nil, 0o600))
	must(t, os.WriteFile(young, nil, 0o600))
	must(t, os.Chtimes(old, time.Time{}, time.Now().Add(-2*time.Hour)))
	entries, err := openIn(t, dir, "pool").List("")
	if err != nil || len(entries) != 1 || entries[0].Name != filepath.Base(young) {
		t.Fatal(entries, err)
	}
}

// ReadOnly changes nothing in the directory and reads what is there.
func TestOpenReadOnly(t *testing.T) {
	dir := t.TempDir()
	want := bytes.Repeat([]byte("segment "), 2000)
	must(t, os.WriteFile(filepath.Join(dir, "f"), want, 0o600))
	before, err := os.Stat(dir)
	must(t, err)
	d, err := disk.Open(dir, disk.Options{ReadOnly: true, ArenaBytes: 1 << 20})
	must(t, err)
	defer d.Close()
	f, err := d.Open("f", true)
	must(t, err)
	got := make([]byte, len(want))
	if _, err := f.ReadAt(got, 0); err != nil || !bytes.Equal(got, want) {
		t.Fatal(err)
	}
	if after, err := os.Stat(dir); err != nil || after.ModTime() != before.ModTime() {
		t.Fatal("the directory was changed", err)
	}
}

func TestNoLinkLeadsOutside(t *testing.T) {
	outside, dir := t.TempDir(), t.TempDir()
	must(t, os.WriteFile(filepath.Join(outside, "secret"), []byte("x"), 0o600))
	must(t, os.Symlink(outside, filepath.Join(dir, "link")))
	d := openIn(t, dir, "pool")
	_, oerr := d.Open("link/secret", true)
	_, cerr := d.Create("link/new")
	_, lerr := d.List("link")
	for _, err := range []error{oerr, cerr, lerr, d.Remove("link/secret"), d.Mkdir("link/d"), d.SyncDir("link")} {
		if err == nil {
			t.Fatal("a link led out of the tree")
		}
	}
	if left, err := os.ReadDir(outside); err != nil || len(left) != 1 {
		t.Fatal(left, err)
	}
}

// What is no plain file is refused, and does not keep anybody waiting.
func TestPipesAreRefused(t *testing.T) {
	dir := t.TempDir()
	must(t, syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o600))
	d := openIn(t, dir, "pool")
	for _, readOnly := range []bool{true, false} {
		if _, err := d.Open("pipe", readOnly); !errors.Is(err, disk.ErrInvalid) {
			t.Fatal(err)
		}
	}
}

func TestLockNamesItsHolder(t *testing.T) {
	dir := t.TempDir()
	must(t, openIn(t, dir, "pool").Lock("LOCK"))
	err := openIn(t, dir, "pool").Lock("LOCK")
	if !errors.Is(err, disk.ErrLocked) || !strings.Contains(err.Error(), fmt.Sprintf("process %d", os.Getpid())) || !strings.Contains(err.Error(), dir) {
		t.Fatal(err)
	}
}

// C12: a reader of a file that is being extended always reads the right bytes below
// what is known to be written, however it reads, also where it read before.
func TestC12ReadsBesideDirectWrites(t *testing.T) {
	for _, engine := range []string{"io_uring", "pool"} {
		t.Run(engine, func(t *testing.T) {
			if engine == "io_uring" {
				needRing(t)
			}
			d := openIn(t, t.TempDir(), engine)
			f, err := d.Create("f")
			must(t, err)
			blocks := 300
			if os.Getenv("RINGFENCE_LONG") != "" {
				blocks = 20000
			}
			must(t, f.Allocate(0, int64(blocks/2)*block)) // half into prepared blocks, half growing
			var mark, reads atomic.Int64
			var readers sync.WaitGroup
			stop := make(chan struct{})
			for r := range 3 {
				readers.Go(func() {
					g, err := d.Open("f", true)
					if err != nil {
						t.Error(err)
						return
					}
					buf := make([]byte, 2*block)
					for i := 0; ; i++ {
						select {
						case <-stop:
							return
						default:
						}
						end := mark.Load()
						g.ReadAt(buf, end) // what comes next: zeros, or nothing
						if end == 0 {
							continue
						}
						from := max(0, end-int64(1+(i*37+r*11)%(2*block)))
						n := int(end - from)
						if _, err := g.ReadAt(buf[:n], from); err != nil {
							t.Error(err)
							return
						}
						for j := range n {
							if at := from + int64(j); buf[j] != byte(at/block)+byte(at) {
								t.Errorf("byte %d reads as %#x, written %#x", at, buf[j], byte(at/block)+byte(at))
								return
							}
						}
						reads.Add(1)
					}
				})
			}
			q, err := d.NewQueue(2)
			must(t, err)
			buf, _ := d.Arena().Alloc(block)
			for i := 0; i < blocks && !t.Failed(); i++ {
				for j := range buf {
					buf[j] = byte(i) + byte(j)
				}
				op := &disk.Op{Kind: disk.Write, Durable: i%8 == 0, File: f, Buf: buf, Off: int64(i) * block, Done: func(*disk.Op) {}}
				must(t, q.Push(op))
				must(t, q.Submit())
				_, err := q.Wait(1)
				must(t, err)
				must(t, op.Err)
				mark.Store(int64(i+1) * block)
			}
			close(stop)
			readers.Wait()
			if reads.Load() == 0 {
				t.Fatal("nothing was read")
			}
			d.Arena().Free(buf)
		})
	}
}

// An arena that is touched behind Open is used before and after it is registered.
func TestTouchLater(t *testing.T) {
	d, err := disk.Open(t.TempDir(), disk.Options{ArenaBytes: 8 << 20, TouchLater: true})
	if err != nil {
		t.Fatal(err)
	}
	q, err := d.NewQueue(4)
	if err != nil {
		t.Fatal(err)
	}
	f, err := d.Create("f")
	if err != nil {
		t.Fatal(err)
	}
	buf, ok := d.Arena().Alloc(disk.Block)
	if !ok {
		t.Fatal("no memory")
	}
	want := make([]byte, 0, 300*disk.Block)
	for i := range 300 { // some of it before, most of it after
		for j := range buf {
			buf[j] = byte(i + j)
		}
		want = append(want, buf...)
		op := disk.Op{Kind: disk.Write, File: f, Buf: buf, Off: int64(i) * disk.Block, Done: func(*disk.Op) {}}
		if err := errors.Join(q.Push(&op), q.Submit()); err != nil {
			t.Fatal(err)
		}
		if _, err := q.Wait(1); err != nil || op.Err != nil {
			t.Fatal(err, op.Err)
		}
	}
	got := make([]byte, len(want))
	if _, err := f.ReadAt(got, 0); err != nil || !bytes.Equal(got, want) {
		t.Fatal("other bytes read than written", err)
	}
	d.Arena().Free(buf)
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	eager, err := disk.Open(t.TempDir(), disk.Options{ArenaBytes: 8 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer eager.Close()
	if have, want := d.Info(), eager.Info(); have.Registered != want.Registered || have.HugePages != want.HugePages {
		t.Errorf("touched later: %+v, at once: %+v", have, want)
	}
}

// A closed file leaves the ring's table, so that it frees its space when it is removed
// and makes room for the next; those for which there is no room work all the same.
func TestRegisteredFilesComeAndGo(t *testing.T) {
	needRing(t)
	d := openIn(t, t.TempDir(), "io_uring")
	q, err := d.NewQueue(1)
	must(t, err)
	sync := func(f disk.File) {
		op := &disk.Op{Kind: disk.Sync, File: f, Done: func(*disk.Op) {}}
		must(t, q.Push(op))
		must(t, q.Submit())
		_, err := q.Wait(1)
		must(t, errors.Join(err, op.Err))
	}
	var open []disk.File
	for i := range 520 { // the table has 512 places
		f, err := d.Create(fmt.Sprint(i))
		must(t, err)
		sync(f)
		open = append(open, f)
	}
	if !disk.Registered(open[511]) || disk.Registered(open[512]) {
		t.Fatal("the table does not end where it should")
	}
	for _, f := range open {
		must(t, f.Close())
		must(t, d.Remove(f.Name()))
	}
	for i := range 520 { // one at a time there is always room
		f, err := d.Create(fmt.Sprint(i))
		must(t, err)
		sync(f)
		if !disk.Registered(f) {
			t.Fatalf("no room for file %d", i)
		}
		must(t, f.Close())
	}
}

// Moving data through io_uring allocates nothing.
func TestRingQueueDoesNotAllocate(t *testing.T) {
	needRing(t)
	d := openIn(t, t.TempDir(), "io_uring")
	f, err := d.Create("f")
	must(t, err)
	q, err := d.NewQueue(4)
	must(t, err)
	buf, _ := d.Arena().Alloc(block)
	ops := []*disk.Op{
		{Kind: disk.Write, File: f, Buf: buf}, {Kind: disk.Write, Durable: true, File: f, Buf: buf}, {Kind: disk.Read, File: f, Buf: buf}, {Kind: disk.Sync, File: f},
	}
	for _, op := range ops {
		op.Done = func(op *disk.Op) {
			if op.Err != nil {
				t.Error(op.Err)
			}
		}
	}
	if n := testing.AllocsPerRun(50, func() {
		for _, op := range ops {
			must(t, q.Push(op))
		}
		must(t, q.Submit())
		for q.InFlight() > 0 {
			if _, err := q.Wait(1); err != nil {
				t.Fatal(err)
			}
		}
	}); n != 0 {
		t.Fatalf("%v allocations for %d operations", n, len(ops))
	}
	d.Arena().Free(buf)
}

func BenchmarkDurableWrite(b *testing.B) {
	for _, engine := range []string{"io_uring", "pool"} {
		for _, size := range []int{4 << 10, 64 << 10, 1 << 20} {
			b.Run(fmt.Sprintf("engine=%s/size=%dKiB", engine, size>>10), func(b *testing.B) {
				d := openIn(b, b.TempDir(), engine)
				f, err := d.Create("f")
				must(b, err)
				for i := range 16 {
					must(b, f.WriteAt(make([]byte, 1<<20), int64(i)<<20))
				}
				q, err := d.NewQueue(1)
				must(b, err)
				buf, _ := d.Arena().Alloc(size)
				op := &disk.Op{Kind: disk.Write, Durable: true, File: f, Buf: buf, Done: func(*disk.Op) {}}
				b.SetBytes(int64(size))
				for b.Loop() {
					must(b, q.Push(op))
					must(b, q.Submit())
					q.Wait(1)
					must(b, op.Err)
					op.Off = (op.Off + int64(size)) % (16 << 20)
				}
				b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N), "us/op")
				d.Arena().Free(buf)
			})
		}
	}
}
