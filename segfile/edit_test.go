package segfile

import (
	"errors"
	"io"
	"testing"

	"github.com/ringfence/ringfence/fence"
	"github.com/ringfence/ringfence/segfile/disk"
)

// change edits a file in place, as rot or a hand would.
func change(t testing.TB, d disk.Disk, name string, edit func(b []byte) []byte) {
	t.Helper()
	f, err := d.Open(name, false)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	size, err := f.Size()
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, alignBlock(size))
	if n, err := f.ReadAt(b, 0); err != nil && !errors.Is(err, io.EOF) || int64(n) != size {
		t.Fatal(n, err)
	}
	b = edit(b[:size])
	size = int64(len(b))
	b = append(b, make([]byte, alignBlock(size)-size)...)
	if err := f.Truncate(0); err != nil {
		t.Fatal(err)
	}
	if len(b) > 0 {
		if err := f.WriteAt(b, 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Truncate(size); err != nil {
		t.Fatal(err)
	}
}

// patch edits [from, to) of a file in place.
func patch(t testing.TB, d disk.Disk, name string, from, to int64, edit func(b []byte)) {
	t.Helper()
	f, err := d.Open(name, false)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	size, err := f.Size()
	if err != nil || from < 0 || to > size {
		t.Fatal(size, err)
	}
	start := from &^ (block - 1)
	b := make([]byte, alignBlock(to)-start)
	if _, err := f.ReadAt(b, start); err != nil && !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	edit(b[from-start : to-start])
	must(t, f.WriteAt(b, start))
	must(t, f.Truncate(size))
}

func flip(t testing.TB, d disk.Disk, name string, at int64, mask byte) {
	t.Helper()
	patch(t, d, name, at, at+1, func(b []byte) { b[0] ^= mask })
}

func wipe(t testing.TB, d disk.Disk, name string, from, to int64) {
	t.Helper()
	patch(t, d, name, from, to, func(b []byte) { clear(b) })
}

func cutTo(t testing.TB, d disk.Disk, name string, size int64) {
	t.Helper()
	change(t, d, name, func(b []byte) []byte { return b[:size] })
}

func contents(t testing.TB, d disk.Disk, name string) (got []byte) {
	t.Helper()
	change(t, d, name, func(b []byte) []byte { got = append(got, b...); return b })
	return got
}

func restampHeader(b []byte) {
	h := append([]byte(nil), b[:blockCRC]...)
	putCRC(b[blockCRC:], h, 0)
}

// movePointer makes the pointer say that all before end is durable.
func movePointer(t testing.TB, w *Writer, end fence.End) {
	t.Helper()
	w.check.told, w.check.next = proof{end.Position, end.Offset}, proof{}
	b := make([]byte, block)
	must(t, w.check.put(b, &w.hdr))
	must(t, w.File().WriteAt(b, w.check.pointer))
}
