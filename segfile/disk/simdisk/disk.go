package simdisk

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/ringfence/ringfence/segfile/buddy"
	"github.com/ringfence/ringfence/segfile/disk"
)

// Options say what disk to make; the zero value is a big empty one.
type Options struct {
	Seed       uint64     // of everything random
	Rand       *rand.Rand // instead of Seed
	Capacity   int64      // bytes for file contents; 0 means 1 TiB
	ArenaBytes int        // 0 means 8 MiB
	TraceMax   int        // events kept by Trace, the latest; 0 means 65,536
}

// Disk is one process's view of a simulated tree. It implements disk.Disk.
type Disk struct {
	t *tree

	memories  disk.Memories // of others
	arenaOnce sync.Once
	arena     atomic.Pointer[disk.Arena] // made when first asked for

	// Guarded by t.mu.
	closed bool
	files  map[*file]bool
	queues map[*queue]bool
}

var _ disk.Disk = (*Disk)(nil)

// tree is what is stored, shared by the views of it.
type tree struct {
	opts Options // never set again

	mu       sync.Mutex // guards everything below and the views' fields; never held while a Done runs
	wake     *sync.Cond // a hold ended
	rng      *rand.Rand
	capacity int64
	used     int64 // by blocks of files that have a name or are open
	root     *node
	pending  []nameChange // not durable, in order
	clock    uint64       // counts completed changes of data; orders writes and syncs
	ids      uint64       // of writes
	locks    map[string]*Disk
	views    map[*Disk]bool
	faultState
}

// New makes an empty disk.
func New(o Options) *Disk {
	o.Capacity = cmp.Or(o.Capacity, 1<<40)
	o.ArenaBytes = cmp.Or(o.ArenaBytes, 8<<20)
	o.TraceMax = cmp.Or(o.TraceMax, 1<<16)
	rng := o.Rand
	if rng == nil {
		rng = rand.New(rand.NewPCG(o.Seed, 0x51d15c))
	}
	return newTree(o, rng).view()
}

func newTree(o Options, rng *rand.Rand) *tree {
	t := &tree{opts: o, rng: rng, capacity: o.Capacity, root: newDir(), locks: map[string]*Disk{}, views: map[*Disk]bool{}}
	t.cutAfter = -1
	t.wake = sync.NewCond(&t.mu)
	return t
}

func (t *tree) view() *Disk {
	d := &Disk{t: t, files: map[*file]bool{}, queues: map[*queue]bool{}}
	t.views[d] = true
	return d
}

// Reopen is the view that another process of the same machine has.
func (d *Disk) Reopen() *Disk {
	d.t.mu.Lock()
	defer d.t.mu.Unlock()
	return d.t.view()
}

// SetRand replaces the source of everything random.
func (d *Disk) SetRand(rng *rand.Rand) {
	d.t.mu.Lock()
	defer d.t.mu.Unlock()
	d.t.rng = rng
}

// SetCapacity makes the disk larger or smaller; what is stored stays.
func (d *Disk) SetCapacity(bytes int64) {
	d.t.mu.Lock()
	defer d.t.mu.Unlock()
	d.t.capacity = bytes
}

// fail is the error of an operation on a name or file.
func fail(op Action, name string, err error) error {
	return &disk.OpError{Op: string(op), File: name, Err: err}
}

// named runs an operation on names: checks, faults and the power first, then do,
// which may fail with an errno. A power cut leaves it done or not.
func (d *Disk) named(ev Event, dir bool, do func() error) error {
	if err := disk.CheckName(ev.Name, dir); err != nil {
		return err
	}
	if ev.Action == Rename {
		if err := disk.CheckName(ev.To, false); err != nil {
			return err
		}
	}
	t := d.t
	t.mu.Lock()
	defer t.mu.Unlock()
	if d.closed {
		return fmt.Errorf("%s %s: %w", ev.Action, ev.Name, disk.ErrClosed)
	}
	err := t.admit(ev)
	switch {
	case err == nil:
		err = do()
	case errors.Is(err, errCutNow) && t.rng.IntN(2) == 0:
		do() // the cut came just after, and nobody was told
	}
	if err != nil {
		err = fail(ev.Action, ev.Name, reported(err))
	}
	t.record(ev, 0, err)
	return err
}

func (d *Disk) Create(name string) (f disk.File, err error) {
	err = d.named(Event{Action: Create, Name: name}, false, func() error {
		dir, base, err := d.t.parent(name)
		if err != nil {
			return err
		}
		if dir.cur[base] != nil {
			return syscall.EEXIST
		}
		if d.t.used >= d.t.capacity {
			return syscall.ENOSPC
		}
		n := newFile()
		d.t.change(nameChange{to: slot{dir, base}, node: n})
		f = d.open(n, name, false)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return f, nil
}

func (d *Disk) Open(name string, readOnly bool) (f disk.File, err error) {
	err = d.named(Event{Action: Open, Name: name}, false, func() error {
		n, err := d.t.lookup(name)
		if err != nil {
			return err
		}
		if n.dir {
			return syscall.EISDIR
		}
		f = d.open(n, name, readOnly)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return f, nil
}

func (d *Disk) Mkdir(name string) error {
	return d.named(Event{Action: Mkdir, Name: name}, false, func() error {
		dir, base, err := d.t.parent(name)
		if err != nil {
			return err
		}
		if old := dir.cur[base]; old != nil && old.dir {
			return nil
		} else if old != nil {
			return syscall.EEXIST
		}
		if d.t.used >= d.t.capacity {
			return syscall.ENOSPC
		}
		d.t.change(nameChange{to: slot{dir, base}, node: newDir()})
		return nil
	})
}

func (d *Disk) Remove(name string) error {
	return d.named(Event{Action: Remove, Name: name}, false, func() error {
		dir, base, err := d.t.parent(name)
		if err != nil {
			return err
		}
		n := dir.cur[base]
		if n == nil {
			return syscall.ENOENT
		}
		if len(n.cur) > 0 {
			return syscall.ENOTEMPTY
		}
		d.t.change(nameChange{from: slot{dir, base}, node: n})
		return nil
	})
}

func (d *Disk) Rename(from, to string) error {
	return d.named(Event{Action: Rename, Name: from, To: to}, false, func() error {
		fromDir, fromBase, err := d.t.parent(from)
		if err != nil {
			return err
		}
		toDir, toBase, err := d.t.parent(to)
		if err != nil {
			return err
		}
		n, old := fromDir.cur[fromBase], toDir.cur[toBase]
		switch {
		case n == nil:
			return syscall.ENOENT
		case n == old:
			return nil
		case n.dir && strings.HasPrefix(to, from+"/"):
			return syscall.EINVAL
		case old != nil && old.dir && !n.dir:
			return syscall.EISDIR
		case old != nil && !old.dir && n.dir:
			return syscall.ENOTDIR
		case old != nil && len(old.cur) > 0:
			return syscall.ENOTEMPTY
		}
		d.t.change(nameChange{from: slot{fromDir, fromBase}, to: slot{toDir, toBase}, node: n, over: old})
		for f := range d.files {
			if f.n == n {
				f.name.Store(&to)
			} else if rest, ok := strings.CutPrefix(f.Name(), from+"/"); ok && n.dir {
				moved := to + "/" + rest
				f.name.Store(&moved)
			}
		}
		return nil
	})
}

func (d *Disk) SyncDir(name string) error {
	return d.named(Event{Action: SyncDir, Name: name}, true, func() error {
		n, err := d.t.lookup(name)
		if err != nil {
			return err
		}
		if !n.dir {
			return syscall.ENOTDIR
		}
		if d.t.truthful() {
			d.t.syncDir(n)
		}
		return nil
	})
}

func (d *Disk) List(dir string) (entries []disk.Entry, err error) {
	err = d.named(Event{Action: List, Name: dir}, true, func() error {
		n, err := d.t.lookup(dir)
		if err != nil {
			return err
		}
		if !n.dir {
			return syscall.ENOTDIR
		}
		for _, name := range slices.Sorted(maps.Keys(n.cur)) {
			e := n.cur[name]
			entries = append(entries, disk.Entry{Name: name, Size: e.size, Dir: e.dir})
		}
		return nil
	})
	return entries, err
}

func (d *Disk) Space() (total, free uint64, err error) {
	err = d.named(Event{Action: Space}, true, func() error {
		total, free = uint64(d.t.capacity), uint64(max(0, d.t.capacity-d.t.used))
		return nil
	})
	return total, free, err
}

func (d *Disk) Lock(name string) error {
	return d.named(Event{Action: Lock, Name: name}, false, func() error {
		if owner := d.t.locks[name]; owner != nil {
			return disk.ErrLocked
		}
		dir, base, err := d.t.parent(name)
		if err != nil {
			return err
		}
		if n := dir.cur[base]; n == nil {
			d.t.change(nameChange{to: slot{dir, base}, node: newFile()})
		} else if n.dir {
			return syscall.EISDIR
		}
		d.t.locks[name] = d
		return nil
	})
}

func (d *Disk) Arena() *disk.Arena {
	d.arenaOnce.Do(func() { d.arena.Store(buddy.New(make([]byte, d.t.opts.ArenaBytes+disk.Block))) })
	return d.arena.Load()
}

// Register takes any memory, of the heap too.
func (d *Disk) Register(mem []byte) (func() error, error) {
	m, err := d.memories.Add(mem, d.Arena())
	if err != nil {
		return nil, err
	}
	return func() error {
		m.Remove()
		return nil
	}, nil
}

func (d *Disk) Info() disk.Info {
	return disk.Info{Engine: "sim", FileSystem: "sim", Direct: true, Align: disk.Block}
}

func (d *Disk) Close() error {
	t := d.t
	t.mu.Lock()
	if d.closed {
		t.mu.Unlock()
		return disk.ErrClosed
	}
	queues := slices.SortedFunc(maps.Keys(d.queues), func(a, b *queue) int { return cmp.Compare(a.id, b.id) })
	t.mu.Unlock()
	for _, q := range queues {
		q.Close()
	}
	t.mu.Lock()
	t.leave(d)
	t.mu.Unlock()
	if a := d.arena.Load(); a != nil && a.InUse() > 0 {
		return fmt.Errorf("disk: closed with %d bytes of the arena still allocated", a.InUse())
	}
	return nil
}

// leave ends a view: its files are closed and its locks free. The caller holds mu.
func (t *tree) leave(d *Disk) {
	d.closed = true
	for f := range d.files {
		f.closeLocked()
	}
	for name, owner := range t.locks {
		if owner == d {
			delete(t.locks, name)
		}
	}
	delete(t.views, d)
}
