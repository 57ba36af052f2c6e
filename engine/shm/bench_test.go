package shm

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

func init() {
	// flood submits n frames of size bytes each, as many at a time as there are slots, or
	// one by one.
	children["flood"] = func(arg string) error {
		f := strings.Fields(arg)
		n, _ := strconv.Atoi(f[1])
		size, _ := strconv.Atoi(f[2])
		window, _ := strconv.Atoi(f[3])
		g, c, err := attachTo(f[0])
		if err != nil {
			return err
		}
		defer c.Close()
		var blocks [][]byte
		for range window {
			b, _ := g.Arena().Alloc(size)
			blocks = append(blocks, b)
		}
		from := make([]byte, size)
		for sent, seen := 0, 0; seen < n; {
			if sent < n && sent-seen < window {
				b := blocks[sent%window]
				copy(b, from)
				g.send(uint32(sent), 0, b)
				sent++
				continue
			}
			if _, err := g.Next(); err != nil {
				return err
			}
			seen++
		}
		return g.Close()
	}
}

// BenchmarkRing is what submitting a frame and hearing of it costs between two processes
// where the engine does nothing but look at the frame: with one under way, and with as many
// as there are slots.
func BenchmarkRing(b *testing.B) {
	for _, window := range []int{1, small.Slots} {
		for _, size := range []int{64, 1 << 10, 8 << 10} {
			b.Run(fmt.Sprintf("size=%d/window=%d", size, window), func(b *testing.B) { benchRing(b, size, window) })
		}
	}
}

func benchRing(b *testing.B, size, window int) {
	path := filepath.Join(b.TempDir(), "s")
	l, err := Listen(path, 0o600)
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	cmd := child("flood", fmt.Sprint(path, " ", b.N, " ", size, " ", window))
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	h, c := hostFor(b, l, Options{Geometry: small})
	defer c.Close()
	sum := byte(0)
	b.SetBytes(int64(size))
	b.ResetTimer()
	for range b.N {
		s, err := h.Next()
		if err != nil {
			b.Fatal(err)
		}
		for _, v := range h.Bytes(s) {
			sum += v
		}
		h.Complete(Completion{ID: s.ID, Range: uint32(sum)})
	}
	b.StopTimer()
	if err := cmd.Wait(); err != nil {
		b.Fatal(err)
	}
	if err := h.Close(); err != nil {
		b.Fatal(err)
	}
}
