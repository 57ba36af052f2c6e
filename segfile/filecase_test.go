package segfile

import (
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/ringfence/ringfence/segfile/disk"
)

// Every row of the table of files matches its inputs alone, and every input has a row.
func TestFileRows(t *testing.T) {
	seen := make([]int, len(fileRows))
	for s := headerValid; s <= headerBad; s++ {
		for bits := range 8 {
			named, mark, data := bits&1 != 0, bits&2 != 0, bits&4 != 0
			n := 0
			for i := range fileRows {
				if fileRows[i].matches(s, named, mark, data) {
					n++
					seen[i]++
				}
			}
			if n != 1 {
				t.Errorf("header %d, named %v, mark %v, data %v: %d rows", s, named, mark, data, n)
			}
			decideFile(s, named, mark, data)
		}
	}
	for i, n := range seen {
		if n == 0 {
			t.Errorf("row %d matches nothing", i)
		}
	}
}

// fileCases makes a file of every row, from a segment of ten frames.
var fileCases = []struct {
	name   string
	damage func(t *testing.T, d disk.Disk)
	verd   fileVerdict
	state  State
	err    error
}{
	{"untouched", func(*testing.T, disk.Disk) {}, fileUsed, Clean, nil},
	{"another segment's file", func(t *testing.T, d disk.Disk) {
		must(t, d.Rename(Name(testID(2)), seg1))
	}, fileForeign, Foreign, ErrForeign},
	{"a newer version", func(t *testing.T, d disk.Disk) {
		change(t, d, seg1, func(b []byte) []byte {
			b[hoVersion]++
			restampHeader(b)
			return b
		})
	}, fileNewer, Newer, ErrNewer},
	{"header zero, the start mark has it", func(t *testing.T, d disk.Disk) {
		wipe(t, d, seg1, 0, block)
	}, fileRestored, Damaged, nil},
	{"header zero, start mark gone", func(t *testing.T, d disk.Disk) {
		wipe(t, d, seg1, 0, block)
		flip(t, d, seg1, DataStart+200, 1)
	}, fileLost, Damaged, ErrDamaged},
	{"all zero (A07)", func(t *testing.T, d disk.Disk) {
		change(t, d, seg1, func(b []byte) []byte { clear(b); return b })
	}, fileNeverUsed, NeverUsed, ErrNeverUsed},
	{"empty (D10)", func(t *testing.T, d disk.Disk) {
		cutTo(t, d, seg1, 0)
	}, fileNeverUsed, NeverUsed, ErrNeverUsed},
	{"header damaged, the start mark has it", func(t *testing.T, d disk.Disk) {
		flip(t, d, seg1, hoSalt, 4)
	}, fileRestored, Damaged, nil},
	{"header damaged, start mark gone, frames follow (A07)", func(t *testing.T, d disk.Disk) {
		flip(t, d, seg1, hoBase, 4)
		flip(t, d, seg1, DataStart+200, 1)
	}, fileLost, Damaged, ErrDamaged},
	{"header half written and nothing behind it (A07)", func(t *testing.T, d disk.Disk) {
		change(t, d, seg1, func(b []byte) []byte { clear(b[512:]); return b })
	}, fileNeverUsed, NeverUsed, ErrNeverUsed},
	{"header's start damaged, the start mark has it", func(t *testing.T, d disk.Disk) {
		flip(t, d, seg1, 0, 4)
	}, fileRestored, Damaged, nil},
	{"something else", func(t *testing.T, d disk.Disk) {
		change(t, d, seg1, func(b []byte) []byte {
			for i := range b {
				b[i] = "text, no segment\n"[i%17]
			}
			return b
		})
	}, fileForeign, Foreign, ErrForeign},
}

func TestFileCases(t *testing.T) {
	rows := map[fileVerdict]int{}
	for _, c := range fileCases {
		t.Run(c.name, func(t *testing.T) {
			d := newDisk(1)
			p := newTestPool(t, d, lifeGrown)
			rng := rand.New(rand.NewPCG(1, 1))
			create(t, p, testMeta(2))
			w := create(t, p, testMeta(1))
			frames := write(t, w, rng, 10, 3, 500)
			w.Close()
			c.damage(t, d)
			o, err := openFile(d, seg1, true)
			must(t, err)
			o.close()
			v := mustRecover(t, d, seg1)
			if o.verd != c.verd || v.State != c.state || !errors.Is(v.Err(), c.err) {
				t.Fatalf("verdict %d, %s, %v; want %d, %s, %v", o.verd, v.State, v.Err(), c.verd, c.state, c.err)
			}
			rows[o.verd]++
			want := c.err
			if want == nil {
				want = ErrOpen
			}
			if _, err := OpenReader(d, seg1); !errors.Is(err, want) {
				t.Errorf("OpenReader: %v", err)
			}
			if r, err := v.Open(); !errors.Is(err, c.err) {
				t.Errorf("Open: %v", err)
			} else if err == nil {
				if end, fenced := r.End(); fenced || end != v.End {
					t.Errorf("the reader ends at %+v, %v", end, fenced)
				}
				must(t, r.Close())
			}
			if v.Err() != nil {
				if _, err := v.Fence(testNow, 1); !errors.Is(err, c.err) {
					t.Errorf("Fence: %v", err)
				}
				return
			}
			if v.End.Offset != frames[9].head.Next() || v.Meta != w.Meta() {
				t.Errorf("end %+v, meta %+v", v.End, v.Meta)
			}
			_, err = v.Fence(testNow, 1)
			must(t, err)
			holds(t, d, seg1, frames)
			if _, err := Verify(d, seg1, nil); (err == nil) != (c.verd == fileUsed) {
				t.Errorf("Verify: %v", err)
			}
		})
	}
	if len(rows) != int(fileNewer)+1 {
		t.Errorf("only %v of the verdicts were met", rows)
	}
}

// A19: a file says itself which segment it is, whatever lies beside it and in
// whatever order it is listed.
func TestA19StaleFile(t *testing.T) {
	d := newDisk(1)
	p := newTestPool(t, d, lifeGrown)
	rng := rand.New(rand.NewPCG(1, 1))
	for _, seq := range []uint32{1, 2} {
		w := create(t, p, testMeta(seq))
		write(t, w, rng, 3, 1, 10)
		w.Close()
	}
	old := contents(t, d, seg1)
	change(t, d, Name(testID(2)), func([]byte) []byte { return old }) // a stale copy under the newer name
	v := mustRecover(t, d, Name(testID(2)))
	if v.State != Foreign || !errors.Is(v.Err(), ErrForeign) {
		t.Fatalf("%s: %v", v.State, v.Err())
	}
	if v := mustRecover(t, d, seg1); v.State != Clean {
		t.Fatal(v.State)
	}
}
