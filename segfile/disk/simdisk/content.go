package simdisk

import (
	"maps"
	"math/rand/v2"
	"slices"
	"syscall"

	"github.com/ringfence/ringfence/segfile/disk"
)

const (
	blockSize  = disk.Block
	sectorSize = 512 // what a power cut keeps or loses as one
	allSectors = uint8(1<<(blockSize/sectorSize) - 1)
)

// data is one block's bytes. It is never changed once it is stored, so that copies
// of a disk share it; nil is all zeros.
type data = *[blockSize]byte

// content is what a file holds, and how much of it is durable.
type content struct {
	blocks    map[int64]*block // by number; others are holes
	dirty     map[int64]*block // those of them with versions
	size      int64            // as everybody sees it
	durSize   int64
	sizes     []sizeVersion // later than durSize and not durable, in order
	allocated int64         // blocks that take space
}

// block holds the bytes that everybody sees, the durable ones, and every state of
// them that a crash may also leave.
type block struct {
	cur, dur  data
	versions  []version // not durable, in the order they took effect
	allocated bool
}

// version is one write's part in a block.
type version struct {
	write
	bytes   data
	sectors uint8 // which of bytes it wrote
}

type sizeVersion struct {
	write
	size int64
}

// write says how far a change has got.
type write struct {
	id   uint64
	done uint64 // the tree's clock when it completed; 0 while in flight
	lost bool   // a sync that covered it failed: no later one proves it
}

func (w write) coveredBy(snapshot uint64) bool { return w.done != 0 && w.done <= snapshot && !w.lost }

// versionsMax bounds how many unsynced states of one block a crash can choose from.
const versionsMax = 6

func (c *content) at(number int64) *block {
	b := c.blocks[number]
	if b == nil {
		b = &block{}
		c.blocks[number] = b
	}
	return b
}

// put makes the given sectors of a block visible, not durable.
func (c *content) put(number int64, w write, bytes data, sectors uint8) {
	b := c.at(number)
	c.dirty[number] = b
	if sectors != allSectors {
		bytes = merge(b.cur, bytes, sectors)
	}
	b.cur = bytes
	b.versions = append(b.versions, version{w, bytes, sectors})
	for i := 1; len(b.versions) > versionsMax && i < len(b.versions)-1; i++ {
		old, next := b.versions[i], &b.versions[i+1]
		if old.done == 0 || next.done == 0 || old.lost != next.lost {
			continue
		}
		// Together they count as the earlier: being durable too early is allowed.
		next.bytes, next.sectors = merge(old.bytes, next.bytes, next.sectors), old.sectors|next.sectors
		next.done = old.done
		b.versions = slices.Delete(b.versions, i, i+1)
	}
}

// harden makes the versions that pick chooses durable, and with each what it
// replaced.
func (c *content) harden(number int64, pick func(write) bool) {
	b := c.dirty[number]
	if b == nil {
		return
	}
	for i := 0; i < len(b.versions); i++ {
		v := b.versions[i]
		if !pick(v.write) {
			continue
		}
		b.dur = merge(b.dur, v.bytes, v.sectors)
		kept := b.versions[:0]
		for j, o := range b.versions {
			if j < i {
				o.sectors &^= v.sectors
			}
			if j != i && o.sectors != 0 {
				kept = append(kept, o)
			}
		}
		i -= len(b.versions) - len(kept)
		b.versions = kept
	}
	if len(b.versions) == 0 {
		b.versions, b.dur = nil, b.cur
		delete(c.dirty, number)
	}
}

// merge is over with some sectors of it replaced.
func merge(under, over data, sectors uint8) data {
	switch {
	case sectors == 0 || under == over:
		return under
	case sectors == allSectors:
		return over
	}
	out := new([blockSize]byte)
	if under != nil {
		*out = *under
	}
	for s := range blockSize / sectorSize {
		if sectors&(1<<s) == 0 {
			continue
		}
		part := out[s*sectorSize : (s+1)*sectorSize]
		if over == nil {
			clear(part)
		} else {
			copy(part, over[s*sectorSize:])
		}
	}
	return out
}

func newData(p []byte) data {
	p = p[:blockSize]
	if allZero(p) {
		return nil
	}
	return data((*[blockSize]byte)(slices.Clone(p)))
}

func allZero(p []byte) bool {
	for _, b := range p {
		if b != 0 {
			return false
		}
	}
	return true
}

// write makes p visible at off. Where space ends it stops, and says so with the
// count. tear, if not nil, chooses the sectors of each block that are written.
func (t *tree) write(n *node, w write, p []byte, off int64, tear func() uint8) (int, error) {
	for done := 0; done < len(p); done += blockSize {
		number := (off + int64(done)) / blockSize
		if b := n.blocks[number]; b == nil || !b.allocated {
			if t.used+blockSize > t.capacity {
				return done, syscall.ENOSPC
			}
			n.at(number).allocated = true
			n.allocated++
			t.used += blockSize
		}
		sectors := allSectors
		if tear != nil {
			sectors = tear()
		}
		if sectors != 0 {
			n.put(number, w, newData(p[done:]), sectors)
		}
		n.grow(w, off+int64(done)+blockSize)
	}
	return len(p), nil
}

func (c *content) grow(w write, size int64) {
	if size > c.size {
		c.resize(w, size)
	}
}

func (c *content) resize(w write, size int64) {
	c.size = size
	if last := len(c.sizes) - 1; last >= 0 && c.sizes[last].id == w.id {
		c.sizes[last].size = size
	} else {
		c.sizes = append(c.sizes, sizeVersion{w, size})
	}
}

// abandon marks the parts of a write that failed: they are what they are, and only
// a new write makes those bytes durable.
func (t *tree) abandon(n *node, id uint64) {
	t.clock++
	gone := func(w *write) {
		if w.id == id {
			w.done, w.lost = t.clock, true
		}
	}
	for i := range n.sizes {
		gone(&n.sizes[i].write)
	}
	for _, b := range n.dirty {
		for i := range b.versions {
			gone(&b.versions[i].write)
		}
	}
}

// complete marks the parts of a write as done, and as durable if they are to be.
func (t *tree) complete(n *node, id uint64, off, length int64, durable bool) {
	t.clock++
	durable = durable && t.truthful()
	for i := range n.sizes {
		if n.sizes[i].id == id {
			n.sizes[i].done = t.clock
		}
	}
	for number := off / blockSize; number < (off+length+blockSize-1)/blockSize; number++ {
		b := n.dirty[number]
		if b == nil {
			continue
		}
		for i := range b.versions {
			if b.versions[i].id == id {
				b.versions[i].done = t.clock
			}
		}
		if durable {
			n.harden(number, func(w write) bool { return w.id == id })
		}
	}
	if durable {
		end := off + length
		n.durSize = max(n.durSize, end)
		n.sizes = slices.DeleteFunc(n.sizes, func(s sizeVersion) bool { return s.size < end })
		n.trimSizes()
	}
}

// trimSizes forgets sizes that a crash could choose anyway.
func (c *content) trimSizes() {
	for len(c.sizes) > 0 && c.sizes[0].size == c.durSize {
		c.sizes = c.sizes[1:]
	}
	if len(c.sizes) == 0 {
		c.sizes = nil
	}
}

// sync makes durable what was done at the time of the snapshot.
func (c *content) sync(snapshot uint64) {
	pick := func(w write) bool { return w.coveredBy(snapshot) }
	for number := range c.dirty {
		c.harden(number, pick)
	}
	for i, s := range slices.Backward(c.sizes) {
		if pick(s.write) {
			c.durSize, c.sizes = s.size, c.sizes[i+1:]
			break
		}
	}
	c.trimSizes()
}

// syncFailed leaves what the sync covered in the balance: some of it reached the
// disk and some never will, and no later sync tells which.
func (c *content) syncFailed(snapshot uint64, rng *rand.Rand) {
	for _, number := range slices.Sorted(maps.Keys(c.dirty)) {
		b := c.dirty[number]
		if rng.IntN(2) == 0 {
			c.harden(number, func(w write) bool { return w.coveredBy(snapshot) })
		}
		for i := range b.versions {
			v := &b.versions[i]
			v.lost = v.lost || v.coveredBy(snapshot)
		}
	}
	for i := range c.sizes {
		s := &c.sizes[i]
		s.lost = s.lost || s.coveredBy(snapshot)
	}
}

// truncate changes the size; what lies beyond it becomes zeros and gives its space
// back.
func (t *tree) truncate(n *node, w write, size int64) {
	if size < n.size {
		first := size / blockSize
		if rest := size % blockSize; rest != 0 {
			n.cutAt(first, w, int(rest))
			first++
		}
		for number, b := range n.blocks {
			if number < first {
				continue
			}
			if b.allocated {
				b.allocated = false
				n.allocated--
				t.used -= blockSize
			}
			if b.cur == nil && b.dur == nil && len(b.versions) == 0 {
				delete(n.blocks, number)
			} else if b.cur != nil {
				n.put(number, w, nil, allSectors)
			}
		}
	}
	if size != n.size {
		n.resize(w, size)
	}
}

// cutAt makes the bytes of a block from at on zeros.
func (c *content) cutAt(number int64, w write, at int) {
	b := c.blocks[number]
	if b == nil || b.cur == nil || allZero(b.cur[at:]) {
		return
	}
	zeroed := *b.cur
	clear(zeroed[at:])
	c.put(number, w, newData(zeroed[:]), allSectors&^uint8(1<<(at/sectorSize)-1))
}

// allocate takes space for a stretch and lets the file cover it.
func (t *tree) allocate(n *node, w write, off, length int64) error {
	end := (off + length + blockSize - 1) / blockSize
	need := int64(0)
	for number := off / blockSize; number < end; number++ {
		if b := n.blocks[number]; b == nil || !b.allocated {
			need++
		}
	}
	if t.used+need*blockSize > t.capacity {
		return syscall.ENOSPC
	}
	for number := off / blockSize; number < end; number++ {
		n.at(number).allocated = true
	}
	n.allocated += need
	t.used += need * blockSize
	n.grow(w, off+length)
	return nil
}

// read copies what everybody sees.
func (c *content) read(p []byte, off int64) int {
	if off >= c.size {
		return 0
	}
	p = p[:min(int64(len(p)), c.size-off)]
	for done := 0; done < len(p); {
		at := off + int64(done)
		part := p[done:min(len(p), done+blockSize-int(at%blockSize))]
		if b := c.blocks[at/blockSize]; b != nil && b.cur != nil {
			copy(part, b.cur[at%blockSize:])
		} else {
			clear(part)
		}
		done += len(part)
	}
	return len(p)
}
