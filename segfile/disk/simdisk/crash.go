package simdisk

import (
	"cmp"
	"maps"
	"math/rand/v2"
	"slices"
	"syscall"

	"github.com/ringfence/ringfence/segfile/disk"
)

// choice is how a power cut deals with what is not durable. Most leave each sector
// to chance; some keep or drop whole blocks or everything, because a bug that needs
// that would wait too long for such luck.
type choice struct {
	rng         *rand.Rand
	names, data keep
	wholeBlocks bool
}

type keep uint8

const (
	keepSome keep = iota
	keepNone
	keepAll
)

func choose(rng *rand.Rand) *choice {
	pick := func() keep { return []keep{keepSome, keepSome, keepSome, keepNone, keepAll}[rng.IntN(5)] }
	return &choice{rng: rng, names: pick(), data: pick(), wholeBlocks: rng.IntN(3) == 0}
}

func (c *choice) of(k keep) bool { return k == keepAll || k == keepSome && c.rng.IntN(2) == 0 }

// Crash returns the disk as it may be found after a power cut at this moment. This
// disk goes on as if nothing had happened. A nil rng means the disk's own.
func (d *Disk) Crash(rng *rand.Rand) *Disk {
	t := d.t
	t.mu.Lock()
	defer t.mu.Unlock()
	if rng == nil {
		rng = t.rng
	}
	c := choose(rng)
	after := newTree(t.opts, rand.New(rand.NewPCG(rng.Uint64(), rng.Uint64())))
	after.capacity = t.capacity

	names := map[*node]map[string]*node{}
	durableCopy := func(n *node) map[string]*node {
		if names[n] == nil {
			names[n] = maps.Clone(n.dur)
		}
		return names[n]
	}
	settle(t.pending, durableCopy, func(ch nameChange) bool { return ch.synced || c.of(c.names) })

	flights := t.flights()
	var survive func(n *node) *node
	survive = func(n *node) *node {
		if !n.dir {
			return after.keepFile(n, flights, c)
		}
		out := newDir()
		out.named = true
		for _, name := range slices.Sorted(maps.Keys(durableCopy(n))) {
			child := survive(names[n][name])
			out.cur[name], out.dur[name] = child, child
		}
		return out
	}
	after.root = survive(t.root)
	return after.view()
}

// flights lists what is in flight in all queues, in order of submission.
func (t *tree) flights() []*flight {
	var all []*flight
	for d := range t.views {
		for q := range d.queues {
			all = append(all, q.flying...)
		}
	}
	slices.SortFunc(all, func(a, b *flight) int { return cmp.Compare(a.order, b.order) })
	return all
}

// keepFile makes the file that n is after the cut.
func (t *tree) keepFile(n *node, flights []*flight, c *choice) *node {
	from := n.content.clone()
	for _, fl := range flights {
		if fl.f.n == n {
			from.leave(fl, c)
		}
	}
	out := newFile()
	out.named = true
	out.size = from.durSize
	if i := c.pick(len(from.sizes)); i > 0 {
		out.size = from.sizes[i-1].size
	}
	out.durSize = out.size
	for _, number := range slices.Sorted(maps.Keys(from.blocks)) {
		b := from.blocks[number]
		start := number * blockSize
		if start >= out.size {
			continue
		}
		kept := b.resolve(c)
		if rest := out.size - start; rest < blockSize && kept != nil {
			cut := *kept
			clear(cut[rest:])
			kept = newData(cut[:])
		}
		if kept != nil || b.allocated {
			out.blocks[number] = &block{cur: kept, dur: kept, allocated: true}
			out.allocated++
		}
	}
	t.used += out.allocated * blockSize
	return out
}

// leave is what an operation in flight may have done when the power went.
func (c *content) leave(fl *flight, ch *choice) {
	switch {
	case fl.op.Kind == disk.Sync && ch.of(ch.data):
		c.sync(fl.snapshot)
	case fl.op.Kind == disk.Write && !fl.started && !fl.f.readOnly:
		data := bytesOf(fl.op)
		for done := 0; done < len(data); done += blockSize {
			off := fl.op.Off + int64(done)
			c.put(off/blockSize, fl.w, newData(data[done:]), allSectors)
			c.grow(fl.w, off+blockSize)
		}
	}
}

func (c *content) clone() *content {
	out := *c
	out.sizes = slices.Clone(c.sizes)
	out.blocks, out.dirty = make(map[int64]*block, len(c.blocks)), make(map[int64]*block, len(c.dirty))
	for number, b := range c.blocks {
		copied := *b
		copied.versions = slices.Clone(b.versions)
		out.blocks[number] = &copied
		if len(copied.versions) > 0 {
			out.dirty[number] = &copied
		}
	}
	return &out
}

// pick chooses among the durable state (0) and n later ones.
func (c *choice) pick(n int) int {
	switch {
	case n == 0 || c.data == keepNone:
		return 0
	case c.data == keepAll:
		return n
	}
	return c.rng.IntN(n + 1)
}

// resolve chooses what a crash leaves of the block.
func (b *block) resolve(c *choice) data {
	if len(b.versions) == 0 {
		return b.dur
	}
	out, whole := b.dur, c.pick(len(b.versions))
	for s := range blockSize / sectorSize {
		n := whole
		if !c.wholeBlocks {
			n = c.pick(len(b.versions))
		}
		for ; n > 0; n-- {
			if v := b.versions[n-1]; v.sectors&(1<<s) != 0 {
				out = merge(out, v.bytes, 1<<s)
				break
			}
		}
	}
	return out
}

// Kill ends this view as the death of its process does: what it had in flight
// happened or not, nothing is reported any more, and its files and locks are free.
// The power stays on, so what was done stays visible, durable or not. It returns
// the view of the restarted process.
func (d *Disk) Kill() *Disk {
	t := d.t
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, fl := range t.flights() {
		if fl.f.d != d {
			continue
		}
		t.outlive(fl)
		fl.f.n.users--
	}
	for q := range d.queues {
		for _, fl := range q.pushed {
			fl.f.n.users--
		}
		q.pushed, q.flying, q.closed = nil, nil, true
	}
	clear(d.queues)
	t.leave(d)
	t.wake.Broadcast()
	return t.view()
}

// outlive is what an operation in flight does when its process dies: all, nothing,
// or a write in part.
func (t *tree) outlive(fl *flight) {
	n, op, luck := fl.f.n, fl.op, t.rng.IntN(3)
	switch {
	case op.Kind == disk.Sync && luck == 0:
		n.sync(fl.snapshot)
	case op.Kind != disk.Write || fl.f.readOnly:
	case luck == 0:
		err := fl.err
		if !fl.started {
			_, err = t.write(n, fl.w, bytesOf(op), op.Off, nil)
		}
		t.endWrite(n, fl.w, op.Off, int64(op.Len()), op.Durable, err)
	default:
		if !fl.started && luck == 1 {
			t.write(n, fl.w, bytesOf(op), op.Off, t.tear)
		}
		t.abandon(n, fl.w.id)
	}
}

// Clone returns an independent copy: what is stored, what of it is durable, and
// nothing that is open or in flight, no faults and no trace. Its random source
// follows from the seed and from how much has happened.
func (d *Disk) Clone() *Disk {
	t := d.t
	t.mu.Lock()
	defer t.mu.Unlock()
	out := newTree(t.opts, rand.New(rand.NewPCG(t.opts.Seed, uint64(t.counts.Events))))
	out.capacity, out.clock, out.ids = t.capacity, t.clock, t.ids
	copies := map[*node]*node{}
	var copyOf func(n *node) *node
	copyNames := func(names map[string]*node) map[string]*node {
		m := make(map[string]*node, len(names))
		for name, n := range names {
			m[name] = copyOf(n)
		}
		return m
	}
	copyOf = func(n *node) *node {
		if n == nil || copies[n] != nil {
			return copies[n]
		}
		c := &node{dir: n.dir, named: n.named, gone: !n.named}
		copies[n] = c
		if n.dir {
			c.cur, c.dur = copyNames(n.cur), copyNames(n.dur)
			return c
		}
		c.content = *n.content.clone()
		if c.named {
			out.used += c.allocated * blockSize
		}
		return c
	}
	out.root = copyOf(t.root)
	for _, ch := range t.pending {
		ch.node, ch.over, ch.from.dir, ch.to.dir = copyOf(ch.node), copyOf(ch.over), copyOf(ch.from.dir), copyOf(ch.to.dir)
		out.pending = append(out.pending, ch)
	}
	return out.view()
}

// Rot flips bits of one stored byte of a file, as a decaying disk does.
func (d *Disk) Rot(name string, at int64) error {
	t := d.t
	t.mu.Lock()
	defer t.mu.Unlock()
	n, err := t.lookup(name)
	switch {
	case err != nil:
	case n.dir:
		err = syscall.EISDIR
	case at < 0 || at >= n.size:
		err = syscall.EINVAL
	}
	if err != nil {
		return &disk.OpError{Op: "rot", File: name, Off: at, Len: 1, Err: err}
	}
	b, mask := n.at(at/blockSize), byte(1+t.rng.IntN(255))
	flip := func(p *data) {
		fresh := new([blockSize]byte)
		if *p != nil {
			*fresh = **p
		}
		fresh[at%blockSize] ^= mask
		*p = fresh
	}
	flip(&b.cur)
	flip(&b.dur)
	for i := range b.versions {
		flip(&b.versions[i].bytes)
	}
	t.record(Event{Action: Note, Name: "rot " + name, Off: at, Len: 1}, 0, nil)
	return nil
}
