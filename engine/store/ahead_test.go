package store

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"sync/atomic"
	"testing"

	"github.com/ringfence/ringfence/segfile/disk/simdisk"
)

// What a scanner reads ahead it reads once, whatever the length of the frames; one
// that follows another reads ahead from its first byte, and one that does not waits
// until it has read some in sequence.
func TestReadAheadReadsOnce(t *testing.T) {
	const mib = 1 << 20
	for _, size := range []int{5000, 300_000, mib, mib + 300_000, 2*mib + 100, 3 * mib, leadMax - 4096, leadMax + 4096, 9 * mib} {
		d := simdisk.New(simdisk.Options{Seed: 5, ArenaBytes: 64 << 20})
		s, _ := openStore(t, d, testOptions())
		rng := rand.New(rand.NewPCG(uint64(size), 23))
		var segs []*Segment
		var sent [][]*batch
		for i := range 2 {
			seg := newSegment(t, s, segID(0, uint32(i)), 0, nil)
			sizes := make([]int, max(3, 24*mib/size))
			for i := range sizes {
				sizes[i] = size
			}
			segs, sent = append(segs, seg), append(sent, bulk(t, s, seg, rng, sizes))
		}
		var read, queued atomic.Int64 // bytes
		count := d.Fail(func(e simdisk.Event) error {
			if e.Action == simdisk.Read {
				read.Add(e.Len)
				if e.Queued {
					queued.Add(e.Len)
				}
			}
			return nil
		})
		var before *Scanner
		for i, seg := range segs {
			read.Store(0)
			queued.Store(0)
			sc, err := seg.Scan(0)
			must(t, err)
			if before != nil {
				sc.Follow(before)
			}
			for at := 0; ; at++ {
				b, err := sc.Next()
				if errors.Is(err, io.EOF) {
					if at != len(sent[i]) {
						t.Fatalf("frames of %d: %d of %d", size, at, len(sent[i]))
					}
					break
				}
				must(t, err)
				if at >= len(sent[i]) || !bytes.Equal(b.Value(0), sent[i][at].values[0]) {
					t.Fatalf("frames of %d: number %d is another one", size, at)
				}
			}
			// Once more: where frames turned out to be longer than what there was room
			// for, and for each frame that is read by itself, with its head in the read before.
			if end, n := seg.Position(), read.Load(); n > end+end/4+2*aheadBytes {
				t.Errorf("frames of %d, segment %d: %d bytes read of %d", size, i, n, end)
			}
			switch n := read.Load() - queued.Load(); {
			case size > leadMax:
			case before == nil && (n < aheadAfter || n > aheadAfter+int64(size)+2*windowBytes):
				t.Errorf("frames of %d: %d bytes before reading ahead", size, n)
			case before != nil && n != 0:
				t.Errorf("frames of %d: %d bytes were not read ahead by a scanner that follows", size, n)
			}
			sc.Close()
			before = sc
		}
		count.Stop()
		closeStore(t, s)
	}
}
