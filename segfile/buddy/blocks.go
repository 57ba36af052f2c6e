package buddy

import "math/bits"

// blocks are the free ones among the blocks of one order, a bit for each.
type blocks struct {
	words []uint64
	count int
}

func newBlocks(n int) blocks { return blocks{words: make([]uint64, (n+63)/64)} }

func (b *blocks) set(i int) {
	b.words[i/64] |= 1 << (i % 64)
	b.count++
}

func (b *blocks) clear(i int) {
	b.words[i/64] &^= 1 << (i % 64)
	b.count--
}

// from is the first free block from i on, -1 for none.
func (b *blocks) from(i int) int {
	at := i / 64
	if b.count == 0 || at >= len(b.words) {
		return -1
	}
	word := b.words[at] &^ (1<<(i%64) - 1)
	for word == 0 {
		if at++; at == len(b.words) {
			return -1
		}
		word = b.words[at]
	}
	return at*64 + bits.TrailingZeros64(word)
}
