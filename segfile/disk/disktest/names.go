package disktest

import (
	"errors"
	"io/fs"

	"github.com/ringfence/ringfence/segfile/disk"
)

func testNames(b *bench) {
	b.want("")
	f := b.create("b")
	_, err := b.d.Create("b")
	b.is(err, fs.ErrExist)
	_, err = b.d.Open("a", false)
	b.is(err, fs.ErrNotExist)
	var place *disk.OpError
	if !errors.As(err, &place) || place.File != "a" {
		b.Fatalf("error %#v does not name its file", err)
	}
	b.ok(f.WriteAt(fill(disk.Block, 1), 0))
	b.ok(f.Close())
	b.create("c").Close()
	b.ok(b.d.Rename("b", "a"))
	b.want("", "a", "c")
	b.is(b.d.Rename("b", "x"), fs.ErrNotExist)
	b.ok(b.d.Rename("a", "c")) // over another
	b.want("", "c")
	g, err := b.d.Open("c", true)
	b.ok(err)
	b.reads(g, 0, fill(disk.Block, 1))
	b.ok(g.Close())
	b.ok(b.d.SyncDir(""))
	b.ok(b.d.Remove("c"))
	b.is(b.d.Remove("c"), fs.ErrNotExist)
	b.want("")
}

func testNamesStayInside(b *bench) {
	b.create("in").Close()
	for _, name := range []string{"", ".", "..", "/x", "../x", "a/../../x", "a//b", "a/", "./a", "a\x00b"} {
		_, err := b.d.Create(name)
		b.is(err, disk.ErrInvalid)
		_, err = b.d.Open(name, true)
		b.is(err, disk.ErrInvalid)
		b.is(b.d.Rename(name, "y"), disk.ErrInvalid)
		b.is(b.d.Rename("in", name), disk.ErrInvalid)
		b.is(b.d.Remove(name), disk.ErrInvalid)
		b.is(b.d.Mkdir(name), disk.ErrInvalid)
		b.is(b.d.Lock(name), disk.ErrInvalid)
		if name != "" {
			_, err = b.d.List(name)
			b.is(err, disk.ErrInvalid)
			b.is(b.d.SyncDir(name), disk.ErrInvalid)
		}
	}
	b.want("", "in")
}

func testDirectories(b *bench) {
	b.ok(b.d.Mkdir("d"))
	b.ok(b.d.Mkdir("d"))
	b.is(b.d.Mkdir("no/d"), fs.ErrNotExist)
	b.ok(b.d.Mkdir("d/e"))
	_, err := b.d.Create("no/f")
	b.is(err, fs.ErrNotExist)
	f := b.create("d/e/f")
	b.ok(f.WriteAt(fill(2*disk.Block, 1), 0))
	b.want("", "d/")
	b.want("d", "e/")
	entries, err := b.d.List("d/e")
	b.ok(err)
	if len(entries) != 1 || entries[0] != (disk.Entry{Name: "f", Size: 2 * disk.Block}) {
		b.Fatalf("listed %+v", entries)
	}
	for _, err := range []error{b.d.Remove("d/e"), b.d.Mkdir("d/e/f"), b.d.SyncDir("d/e/f"), b.d.SyncDir("no")} {
		if err == nil {
			b.Fatal("a directory operation that must fail did not")
		}
	}
	_, err = b.d.List("no")
	b.is(err, fs.ErrNotExist)
	if _, err := b.d.Open("d/e", true); err == nil {
		b.Fatal("opened a directory as a file")
	}
	b.ok(b.d.Rename("d/e/f", "f"))
	b.ok(b.d.SyncDir("d/e"))
	b.ok(b.d.SyncDir(""))
	b.want("d/e")
	b.ok(b.d.Remove("d/e"))
	b.ok(b.d.Remove("d"))
	b.want("", "f")
}

func testRenameIsFollowed(b *bench) {
	b.ok(b.d.Mkdir("d"))
	f, g := b.create("d/f"), b.create("g")
	b.ok(b.d.Rename("d/f", "d/new"))
	if f.Name() != "d/new" {
		b.Fatalf("renamed file is called %q", f.Name())
	}
	b.ok(b.d.Rename("d", "e"))
	if f.Name() != "e/new" || g.Name() != "g" {
		b.Fatalf("after renaming the directory: %q, %q", f.Name(), g.Name())
	}
	b.ok(b.d.Remove("g"))
	h := b.create("g")
	b.ok(b.d.Rename("g", "h"))
	if g.Name() != "g" || h.Name() != "h" {
		b.Fatalf("a removed file followed its successor: %q, %q", g.Name(), h.Name())
	}
	b.ok(b.d.Rename("h", "e/new")) // over f
	b.ok(b.d.Rename("e/new", "x"))
	if f.Name() != "e/new" || h.Name() != "x" {
		b.Fatalf("a replaced file followed its successor: %q, %q", f.Name(), h.Name())
	}
}

func testRemovedFileStaysOpen(b *bench) {
	f := b.create("f")
	b.ok(f.WriteAt(fill(disk.Block, 1), 0))
	b.ok(b.d.Remove("f"))
	b.ok(f.WriteAt(fill(disk.Block, 2), disk.Block))
	b.create("f").Close()
	b.reads(f, 0, append(fill(disk.Block, 1), fill(disk.Block, 2)...))
	b.ok(f.Sync())
	b.ok(f.Close())
}
