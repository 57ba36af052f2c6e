package segfile

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"strconv"
	"testing"

	"github.com/ringfence/ringfence/fence"
	"github.com/ringfence/ringfence/segfile/disk/simdisk"
	"github.com/ringfence/ringfence/segfile/record"
)

func itoa(n uint64) string { return strconv.FormatUint(n, 10) }

// Whatever is taken for a header is what that header would be written as.
func FuzzHeader(f *testing.F) {
	h := goldenHeader()
	b := make([]byte, block)
	h.put(b)
	f.Add(b[:300])
	f.Add(b[:hoName])
	f.Fuzz(func(t *testing.T, in []byte) {
		b := make([]byte, block)
		copy(b[:blockCRC], in)
		restampHeader(b) // or the checksum hides all the code behind it
		h, state, _ := readHeader(b)
		if state != headerValid {
			return
		}
		again := make([]byte, block)
		h.put(again)
		if !bytes.Equal(again, b) {
			t.Fatalf("takes %x and writes %x", b[:300], again[:300])
		}
	})
}

func FuzzSlot(f *testing.F) {
	s := slot{end: fence.End{Offset: 5000, Position: 1 << 20, Bytes: 999_999}, fenceID: 0xfe, at: testNow, footer: 1 << 20, length: 400}
	b := make([]byte, block)
	s.put(b, 'A', 7)
	f.Add(b[:soCopy])
	f.Fuzz(func(t *testing.T, in []byte) {
		b := make([]byte, block)
		copy(b[:blockCRC], in)
		putCRC(b[blockCRC:], b[:blockCRC], 7)
		s, state := readSlot(b, 'A', 7)
		if state != slotValid {
			return
		}
		again := make([]byte, block)
		s.put(again, 'A', 7)
		if !bytes.Equal(again, b) {
			t.Fatalf("takes %x and writes %x", b[:100], again[:100])
		}
		l := slots{a: s, b: s, sa: slotValid, sb: slotValid}
		if latch, err := l.latch(0); err == nil && latch.State() != fence.Fenced {
			t.Fatal(latch.State())
		}
	})
}

func FuzzFooter(f *testing.F) {
	g := goldenFooter()
	b, n := g.encode(7)
	f.Add(b[:n-4])
	g.table, g.holes, g.index = nil, nil, nil
	b, n = g.encode(7)
	f.Add(b[:n-4])
	f.Fuzz(func(t *testing.T, in []byte) {
		if len(in) > maxFooter {
			return
		}
		n := int64(len(in) + 4)
		b := make([]byte, alignBlock(n))
		copy(b, in)
		putCRC(b[len(in):], in, 7)
		ft, err := readFooter(b, n, 7, g.base, g.end)
		if err != nil {
			return
		}
		if again, m := ft.encode(7); m != n || !bytes.Equal(again, b) {
			t.Fatalf("takes %x and writes %x", b[:n], again[:m])
		}
	})
}

// Whatever a file holds, it is judged without a panic and the same way twice; what
// is fenced after that can be read to its end or says why not.
func FuzzRecover(f *testing.F) {
	f.Add(uint64(1), uint8(0), []byte{1, 2, 3, 4, 5, 6, 7, 8})
	f.Add(uint64(2), uint8(2), []byte{0, 0, 0, 255, 1})
	f.Add(uint64(3), uint8(1), bytes.Repeat([]byte{0x40, 0x10, 0x00, 0x07}, 20))
	f.Fuzz(fuzzOne)
}

var fuzzDisks = map[life]*simdisk.Disk{}

// fuzzDisk is a copy of a disk on which the next segment's file has that life.
func fuzzDisk(t *testing.T, l life) *simdisk.Disk {
	if fuzzDisks[l] == nil {
		fuzzDisks[l] = newDisk(1)
		newTestPool(t, fuzzDisks[l], l)
	}
	return fuzzDisks[l].Clone()
}

func fuzzOne(t *testing.T, seed uint64, l uint8, edits []byte) {
	rng := rand.New(rand.NewPCG(seed, 10))
	d := fuzzDisk(t, []life{lifeGrown, lifeRecycled}[l%2])
	p, err := NewPool(d, PoolOptions{SegmentBytes: 1 << 20})
	must(t, err)
	w := create(t, p, testMeta(1))
	frames := write(t, w, rng, 1+int(seed%12), 2, int(seed>>8%3000))
	if seed&1 != 0 {
		fenceNow(t, w)
	}
	w.Close()
	change(t, d, seg1, func(b []byte) []byte {
		for i := 0; i+4 <= len(edits) && i < 400; i += 4 {
			at := (int(edits[i])<<16 | int(edits[i+1])<<8 | int(edits[i+2])) % len(b)
			switch e := edits[i+3]; {
			case e < 200:
				b[at] ^= e
			case e < 220:
				clear(b[at&^511 : min(at&^511+512, len(b))])
			case e < 240:
				copy(b[at&^63:], b[min(DataStart+block, len(b)):min(DataStart+2*block, len(b))])
			case len(b) > block:
				b = b[:max(at, 1)]
			}
		}
		return b
	})
	v := mustRecover(t, d, seg1)
	again := mustRecover(t, d, seg1)
	if again.State != v.State || again.End != v.End || again.Cut != v.Cut || len(again.Holes) != len(v.Holes) {
		t.Fatalf("%s at %+v, then %s at %+v", v.State, v.End, again.State, again.End)
	}
	_, _ = Verify(d, seg1, nil)
	if v.Err() != nil {
		return
	}
	if _, err := v.Fence(testNow, 1); err != nil {
		t.Fatal(err)
	}
	r, err := OpenReader(d, seg1)
	must(t, err)
	defer r.Close()
	sentAt := map[uint64][]byte{}
	for _, s := range frames {
		sentAt[s.head.Base] = s.frame
	}
	err = Scan(r, func(_ int64, h record.Head, frame []byte) error {
		if !h.Mark() && !bytes.Equal(frame[record.HeaderSize:], sentAt[h.Base][record.HeaderSize:]) {
			t.Fatalf("a frame at offset %d that was never sent", h.Base)
		}
		return nil
	})
	if err != nil && !errors.Is(err, ErrDamaged) {
		t.Fatal(err)
	}
}

// What the fuzzer would find soon, without it.
func TestAnyEdits(t *testing.T) {
	for seed := range seeds(120) {
		rng := rand.New(rand.NewPCG(seed, 13))
		edits := make([]byte, 4*(1+rng.IntN(30)))
		for i := range edits {
			edits[i] = byte(rng.Uint32())
			if i%4 == 0 && rng.IntN(4) > 0 {
				edits[i] = byte(rng.IntN(2)) // most of it where the frames are
			}
		}
		fuzzOne(t, rng.Uint64(), uint8(seed), edits)
	}
}
