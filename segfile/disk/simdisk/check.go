package simdisk

import (
	"fmt"
	"path"
	"slices"
)

// Check walks the tree and reports the first broken invariant of the simulation.
func (d *Disk) Check() error {
	t := d.t
	t.mu.Lock()
	defer t.mu.Unlock()
	used, seen := int64(0), map[*node]string{}
	var walk func(n *node, name string) error
	walk = func(n *node, name string) error {
		if other, ok := seen[n]; ok {
			return fmt.Errorf("simdisk: %s and %s are one file", other, name)
		}
		seen[n] = name
		if n.dir {
			for base, child := range n.cur {
				if err := walk(child, name+"/"+base); err != nil {
					return err
				}
			}
			return nil
		}
		used += n.allocated * blockSize
		return n.check(name)
	}
	if err := walk(t.root, ""); err != nil {
		return err
	}
	for view := range t.views {
		for f := range view.files {
			if _, ok := seen[f.n]; !ok {
				seen[f.n] = f.Name()
				used += f.n.allocated * blockSize
			}
		}
	}
	for _, fl := range t.flights() {
		if _, ok := seen[fl.f.n]; !ok {
			seen[fl.f.n] = fl.f.Name()
			used += fl.f.n.allocated * blockSize
		}
	}
	if used != t.used {
		return fmt.Errorf("simdisk: %d bytes are used and %d counted", used, t.used)
	}
	return nil
}

func (c *content) check(name string) error {
	allocated := int64(0)
	for number, b := range c.blocks {
		if b.allocated {
			allocated++
		}
		if (len(b.versions) > 0) != (c.dirty[number] == b) {
			return fmt.Errorf("simdisk: %s: block %d has %d versions and is dirty: %v", name, number, len(b.versions), c.dirty[number] == b)
		}
		seen := b.dur
		for _, v := range b.versions {
			seen = merge(seen, v.bytes, v.sectors)
		}
		if !sameBytes(seen, b.cur) {
			return fmt.Errorf("simdisk: %s: block %d is not what its versions make", name, number)
		}
	}
	if allocated != c.allocated {
		return fmt.Errorf("simdisk: %s has %d blocks and counts %d", name, allocated, c.allocated)
	}
	if n := len(c.sizes); n > 0 && c.sizes[n-1].size != c.size || n == 0 && c.durSize != c.size {
		return fmt.Errorf("simdisk: %s has size %d, durable %d, between %v", name, c.size, c.durSize, c.sizes)
	}
	return nil
}

func sameBytes(a, b data) bool {
	var zero [blockSize]byte
	if a == nil {
		a = &zero
	}
	if b == nil {
		b = &zero
	}
	return *a == *b
}

// Unsynced lists what a crash now could undo: names of files with bytes or a size
// that are not durable, and the new or old names that no SyncDir covers, as
// "file NAME" and "name NAME", sorted.
func (d *Disk) Unsynced() []string {
	t := d.t
	t.mu.Lock()
	defer t.mu.Unlock()
	var out []string
	dirs := map[*node]string{}
	var walk func(n *node, name string)
	walk = func(n *node, name string) {
		dirs[n] = name
		if !n.dir && (len(n.dirty) > 0 || len(n.sizes) > 0) {
			out = append(out, "file "+name)
		}
		for base, child := range n.cur {
			walk(child, path.Join(name, base))
		}
	}
	walk(t.root, "")
	for _, c := range t.pending {
		for _, s := range []slot{c.from, c.to} {
			if dir, ok := dirs[s.dir]; ok && s.dir != nil {
				out = append(out, "name "+path.Join(dir, s.name))
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}
