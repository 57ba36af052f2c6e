package segfile

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ringfence/ringfence/fence"
	"github.com/ringfence/ringfence/segfile/record"
)

var update = flag.Bool("update", false, "write the golden files")

func putCRC(dst, body []byte, salt uint64) {
	binary.LittleEndian.PutUint32(dst, saltedCRC(body, salt))
}

func goldenHeader() header {
	return header{Meta: testMeta(1), recycled: true, blocks: 1 << 26, stale: 0x99}
}

func goldenTable() *ProducerTable {
	t := NewProducerTable(0, 1<<32)
	for i := range uint64(3) {
		t.Update(&record.Head{Producer: 0xa0 + i, FirstSeq: 1, LastSeq: 10 * (i + 1), MaxPos: 1<<32 - 1, Count: 1, MaxTime: testNow + int64(i)})
	}
	low, high := t.Slice(0, 1<<31), t.Slice(1<<31, 1<<32)
	high.Update(&record.Head{Producer: 0xa1, FirstSeq: 21, LastSeq: 25, PrevSeq: 20, MinPos: 1 << 31, MaxPos: 1<<32 - 1, Count: 1, MaxTime: testNow + 9})
	return MergeTables(low, high)
}

func goldenFooter() footer {
	return footer{
		base: 1000, end: fence.End{Offset: 5000, Position: 1 << 20, Bytes: 999_999}, frames: 321, digest: 0xd1d2d3d4d5d6d7d8,
		minTime: testNow, maxTime: testNow + 1000,
		index: []entry{{1000, DataStart + block, 0}, {3000, 500 << 10, testNow + 500}},
		holes: []Hole{{Position: 600 << 10, Length: 8192, Offset: 4000, Records: 12}},
		table: goldenTable(), cut: Cut{Position: 1 << 20, Length: 12288, Records: 4},
	}
}

// The bytes of every structure are those in testdata, whatever the code says.
func TestGolden(t *testing.T) {
	h := goldenHeader()
	head := make([]byte, block)
	h.put(head)
	s := slot{end: fence.End{Offset: 5000, Position: 1 << 20, Bytes: 999_999}, fenceID: 0xfe, at: testNow, footer: 1<<20 + 12288, length: 400}
	var slotBytes [3][]byte
	for i := range slotBytes {
		if i == 1 {
			s.lead([]byte("a footer that is short"))
		}
		slotBytes[i] = make([]byte, block)
		s.put(slotBytes[i], byte('A'+i), h.Salt)
	}
	table, err := goldenTable().AppendBinary(nil)
	must(t, err)
	f := goldenFooter()
	foot, _ := f.encode(h.Salt)
	mark, err := startMark(&h, goldenTable())
	must(t, err)
	loss := appendHole(nil, &f.holes[0])
	idle, _, err := proofMark(5000, 1<<20, h.Salt)
	must(t, err)
	pointer := make([]byte, block)
	told := checkpoints{every: 1 << 23, named: 1 << 20, told: proof{1<<20 + 1<<16, 5000}}
	must(t, told.put(pointer, &h))
	w := Writer{hdr: h, pos: 1 << 20, tally: tally{
		next: 5000, bytes: 999_999, frames: 321, digest: 0xd1d2d3d4d5d6d7d8, table: goldenTable(), minTime: testNow, maxTime: testNow + 1000,
	}, check: checkpoints{lag: 70_000, longest: 60_000}}
	w.tally.index.add(entry{1000, DataStart + block, 0})
	checkpoint, _, err := w.Checkpoint(make([]byte, w.CheckpointSize()), 1<<19)
	must(t, err)
	for name, b := range map[string][]byte{
		"pointer": pointer, "checkpoint": checkpoint, "header": head, "latch-a": slotBytes[0], "latch-b": slotBytes[1], "latch-c": slotBytes[2], "table": table, "footer": foot,
		"startmark-payload": mark[record.HeaderSize:], "proof-payload": idle[record.HeaderSize:][:markFixed], "hole": loss,
	} {
		file := filepath.Join("testdata", name+".hex")
		have := dump(b)
		if *update {
			must(t, os.WriteFile(file, []byte(have), 0o644))
			continue
		}
		want, err := os.ReadFile(file)
		must(t, err)
		if have != string(want) {
			t.Errorf("%s changed:\n%s", file, have)
		}
	}
}

// dump writes bytes as lines of position and hex, without lines of zeros.
func dump(b []byte) string {
	var s strings.Builder
	for i := 0; i < len(b); i += 16 {
		if line := b[i:min(i+16, len(b))]; !isZero(line) {
			fmt.Fprintf(&s, "%06x  %s\n", i, hex.EncodeToString(line))
		}
	}
	fmt.Fprintf(&s, "%06x\n", len(b))
	return s.String()
}

// What is written reads back, and the constants of the frame match package record.
func TestRoundTrips(t *testing.T) {
	h := goldenHeader()
	b := make([]byte, block)
	h.put(b)
	if back, state, why := readHeader(b); state != headerValid || back != h {
		t.Errorf("header: %v %s %+v", state, why, back)
	}
	f := goldenFooter()
	enc, n := f.encode(h.Salt)
	back, err := readFooter(enc, n, h.Salt, f.base, f.end)
	must(t, err)
	again, m := back.encode(h.Salt)
	if n != m || !bytes.Equal(enc, again) {
		t.Error("the footer changed on its way")
	}
	mark, err := startMark(&h, goldenTable())
	must(t, err)
	if string(mark[:4]) != frameMagic || binary.LittleEndian.Uint32(mark) != frameWord {
		t.Errorf("frames start with %q", mark[:4])
	}
	record.Stamp(mark, 5, 6, h.Salt)
	if n := record.HeaderSize - 4; saltedCRC(mark[:n], h.Salt) != binary.LittleEndian.Uint32(mark[n:]) {
		t.Error("package record takes the salt in another way")
	}
	copied, table, ok := splitStart(mark[record.HeaderSize:])
	if !ok || copied != h {
		t.Errorf("start mark: %v %+v", ok, copied)
	}
	if _, err := DecodeProducerTable(table); err != nil {
		t.Error(err)
	}
	hd, err := record.ParseHead(mark, h.Salt)
	must(t, err)
	var zero record.Head
	var p [record.HeaderSize]byte
	hd.Put(p[:], 0)
	hd.Durable = 1 << 40
	var q [record.HeaderSize]byte
	hd.Put(q[:], 0)
	if !bytes.Equal(p[:identitySize], q[:identitySize]) || new(link).hash(1, &hd) == new(link).hash(1, &zero) {
		t.Error("a frame's identity takes in its durable position, or too little")
	}
}

// Any flipped bit of a header, latch slot or footer is found.
func TestEveryBitCounts(t *testing.T) {
	h := goldenHeader()
	b := make([]byte, block)
	h.put(b)
	s := slot{end: fence.End{Offset: 5000, Position: 1 << 20, Bytes: 999_999}, fenceID: 0xfe, at: testNow, footer: 1 << 20, length: 400}
	sb := make([]byte, block)
	s.put(sb, 'A', h.Salt)
	f := goldenFooter()
	fb, n := f.encode(h.Salt)
	zero := make([]byte, block)
	for bit := range 8 * block {
		i, m := bit/8, byte(1)<<(bit%8)
		b[i] ^= m
		if _, state, _ := readHeader(b); state == headerValid || state == headerZero {
			t.Fatalf("header with bit %d wrong is %v", bit, state)
		}
		b[i] ^= m
		sb[i] ^= m
		if _, state := readSlot(sb, 'A', h.Salt); state != slotBad {
			t.Fatalf("slot with bit %d wrong is %v", bit, state)
		}
		sb[i] ^= m
		zero[i] ^= m
		if _, state := readSlot(zero, 'C', h.Salt); state != slotBad {
			t.Fatalf("empty slot with bit %d wrong is %v", bit, state)
		}
		zero[i] ^= m
		if i < len(fb) {
			fb[i] ^= m
			if _, err := readFooter(fb, n, h.Salt, f.base, f.end); err == nil {
				t.Fatalf("footer with bit %d wrong is taken", bit)
			}
			fb[i] ^= m
		}
	}
	if _, state := readSlot(sb, 'B', h.Salt); state != slotBad {
		t.Error("slot A is taken for slot B")
	}
	if _, state := readSlot(sb, 'A', h.Salt+1); state != slotBad {
		t.Error("another segment's slot is taken")
	}
}

// The slots that a crash, or rot, can leave: what they say together.
func TestLatchTable(t *testing.T) {
	one := slot{end: fence.End{Offset: 5000, Position: 1 << 20, Bytes: 9}, fenceID: 1, footer: 1 << 20, length: 400}
	two := one
	two.fenceID = 2
	low := slot{end: fence.End{Offset: 4000, Position: 1 << 19, Bytes: 8}, fenceID: 1, footer: 1<<20 + block, length: 400}
	for sa := range slotBad + 1 {
		for sb := range slotBad + 1 {
			for sc := range slotBad + 1 {
				s := slots{sa: sa, sb: sb, sc: sc}
				if sa == slotValid {
					s.a = one
				}
				if sb == slotValid {
					s.b = one
				}
				if sc == slotValid {
					s.c = low
				}
				want := latchBad
				switch {
				case sc == slotValid:
					want = latchSettled
				case sa == slotValid || sb == slotValid:
					want = latchFenced
				case sa == slotZero && sb == slotZero && sc == slotZero:
					want = latchOpen
				}
				if have := s.decide(); have != want {
					t.Errorf("A %v, B %v, C %v: %v, want %v", sa, sb, sc, have, want)
				}
				l, err := s.latch(1000)
				if (err != nil) != (want == latchBad) || want == latchOpen != (l.State() == fence.Open && err == nil) {
					t.Errorf("A %v, B %v, C %v: %v %v", sa, sb, sc, l.State(), err)
				}
				end, _ := l.End()
				if cur, ok := s.current(); ok != (want == latchFenced || want == latchSettled) || ok && cur.end != end {
					t.Errorf("A %v, B %v, C %v: current %v %+v, end %+v", sa, sb, sc, ok, cur, end)
				}
				whole := sa == sb && sa != slotBad && sc != slotBad && (sc == slotZero || sa == slotValid)
				if faults := s.faults("f"); (len(faults) == 0) != whole {
					t.Errorf("A %v, B %v, C %v: faults %v", sa, sb, sc, faults)
				}
			}
		}
	}
	s := slots{a: one, b: two, sa: slotValid, sb: slotValid}
	if s.decide() != latchBad || len(s.faults("f")) != 1 {
		t.Error("two fences in one file are taken")
	}
}

func TestNames(t *testing.T) {
	id := testID(0x1f)
	if n := Name(id); n != "topics/aa0102030000000000000000000000bb/00000007-0000001f.seg" {
		t.Error(n)
	}
	if back, ok := ParseName(Name(id)); !ok || back != id {
		t.Error(back, ok)
	}
	for _, n := range []string{
		"", "topics", "pool/0000000000000000.old", Name(id) + "x", "x" + Name(id), strings.ToUpper(Name(id)),
		"topics/aa0102030000000000000000000000bb/7-1f.seg", "topics/aa0102030000000000000000000000bb/00000007-0000001f",
		"other/aa0102030000000000000000000000bb/00000007-0000001f.seg", Name(id) + lossSuffix,
	} {
		if _, ok := ParseName(n); ok {
			t.Errorf("%q is taken for a segment's name", n)
		}
	}
	for k := range poolDel + 1 {
		if n, kind, ok := parsePoolName(strings.TrimPrefix(poolName(77, k), poolDir+"/")); !ok || n != 77 || kind != k {
			t.Error(n, kind, ok)
		}
	}
	for _, n := range []string{"", "x.old", "000000000000004D.old", "000000000000004d.seg", "4d.old"} {
		if _, _, ok := parsePoolName(n); ok {
			t.Errorf("%q is taken for a pool file's name", n)
		}
	}
}
