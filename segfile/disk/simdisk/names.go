package simdisk

import (
	"strings"
	"syscall"
)

// node is a file or a directory.
type node struct {
	dir      bool
	cur, dur map[string]*node // of a directory: its names as everybody sees them, and the durable ones
	named    bool             // it has a name that everybody sees
	users    int              // open files, and operations in flight
	gone     bool             // neither: its blocks are given back
	content                   // of a file
}

func newDir() *node {
	return &node{dir: true, cur: map[string]*node{}, dur: map[string]*node{}}
}

func newFile() *node {
	return &node{content: content{blocks: map[int64]*block{}, dirty: map[int64]*block{}}}
}

// slot is a place for a name.
type slot struct {
	dir  *node
	name string
}

// nameChange is one change of the tree: node leaves from (if any) and appears at
// to (if any) in one step, in place of over.
type nameChange struct {
	from, to   slot
	node, over *node
	synced     bool // a SyncDir proved it; it waits for the name of its own directory
}

// keys are things that changes have in common: nodes, slots and the following.
type (
	keys     map[any]bool
	inside   struct{ dir *node } // a name in dir changed
	emptied  struct{ dir *node } // dir went, which takes the changes in it for granted
	creation struct{ dir *node } // dir came to be
)

// dependsOn says whether c cannot stand without an earlier change among those
// added to k; with the order turned around, whether a later one needs it.
func (c nameChange) dependsOn(k keys) bool {
	if k[c.node] || c.over != nil && k[c.over] {
		return true
	}
	for _, s := range []slot{c.from, c.to} {
		if s.dir != nil && (k[s] || k[emptied{s.dir}]) {
			return true
		}
	}
	return c.removes() != nil && k[inside{c.removes()}]
}

func (c nameChange) addTo(k keys) {
	k[c.node] = true
	if c.over != nil {
		k[c.over] = true
	}
	for _, s := range []slot{c.from, c.to} {
		if s.dir != nil {
			k[s], k[inside{s.dir}] = true, true
		}
	}
	if dir := c.removes(); dir != nil {
		k[emptied{dir}] = true
	}
	if c.node.dir && c.from.dir == nil {
		k[creation{c.node}] = true
	}
}

// removes is the directory that c takes out of the tree, or nil.
func (c nameChange) removes() *node {
	switch {
	case c.node.dir && c.to.dir == nil:
		return c.node
	case c.over != nil && c.over.dir:
		return c.over
	}
	return nil
}

// apply makes the change in one of a directory's two maps.
func (c nameChange) apply(names func(*node) map[string]*node) {
	if c.from.dir != nil {
		delete(names(c.from.dir), c.from.name)
	}
	if c.to.dir != nil {
		names(c.to.dir)[c.to.name] = c.node
	}
}

func current(n *node) map[string]*node { return n.cur }
func durable(n *node) map[string]*node { return n.dur }

// lookup finds what has a name now; "" is the root.
func (t *tree) lookup(name string) (*node, error) {
	n := t.root
	for name != "" {
		var part string
		part, name, _ = strings.Cut(name, "/")
		if !n.dir {
			return nil, syscall.ENOTDIR
		}
		if n = n.cur[part]; n == nil {
			return nil, syscall.ENOENT
		}
	}
	return n, nil
}

// parent finds the directory of a name, and the last part of the name.
func (t *tree) parent(name string) (*node, string, error) {
	dir, base := "", name
	if i := strings.LastIndexByte(name, '/'); i >= 0 {
		dir, base = name[:i], name[i+1:]
	}
	n, err := t.lookup(dir)
	if err == nil && !n.dir {
		err = syscall.ENOTDIR
	}
	return n, base, err
}

// change makes a change visible and remembers that it is not durable.
func (t *tree) change(c nameChange) {
	c.apply(current)
	c.node.named = c.to.dir != nil
	t.pending = append(t.pending, c)
	t.release(c.node)
	if c.over != nil {
		c.over.named = false
		t.release(c.over)
	}
}

// release gives the blocks of a file back when nobody can reach it any more. What
// a crash may bring back stays remembered.
func (t *tree) release(n *node) {
	if !n.named && n.users == 0 && !n.gone {
		n.gone = true
		t.used -= n.allocated * blockSize
	}
}

// syncDir proves every change that put a name into dir or took one away for good,
// and what those depend on. A rename out of dir is proven by a sync of the
// directory it went to.
func (t *tree) syncDir(dir *node) {
	needed := keys{}
	for i := len(t.pending) - 1; i >= 0; i-- {
		c := &t.pending[i]
		if c.to.dir == dir || c.to.dir == nil && c.from.dir == dir || c.dependsOn(needed) {
			c.synced = true
			c.addTo(needed)
		}
	}
	t.pending = settle(t.pending, durable, func(c nameChange) bool { return c.synced })
}

// settle applies those changes that pick chooses and that do not depend on one it
// leaves, and returns the others. A name in a directory whose own name is left
// behind is left too, so that a file renamed into it is still where it was.
func settle(changes []nameChange, names func(*node) map[string]*node, pick func(nameChange) bool) []nameChange {
	left, rest := keys{}, changes[:0:0]
	for _, c := range changes {
		if pick(c) && !c.dependsOn(left) && !left[creation{c.to.dir}] {
			c.apply(names)
			continue
		}
		c.addTo(left)
		rest = append(rest, c)
	}
	return rest
}
