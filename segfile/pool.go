package segfile

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path"
	"slices"
	"sync"
	"time"

	"github.com/ringfence/ringfence/fence"
	"github.com/ringfence/ringfence/segfile/disk"
)

// PoolOptions says how much a Pool may keep and do. Zero values are production's.
type PoolOptions struct {
	SegmentBytes    int64         // size a segment rolls at; 0 means 64 MiB
	MaxBytes        int64         // most bytes kept ready; 0 means 8 segments, less than 0 none
	PrepareRate     int64         // bytes of zeros written per second at most; 0 means 30 MB/s
	CheckpointBytes int64         // what recovery of an open segment may have to read, about; 0 means 8 MiB
	Window          time.Duration // full segments of this long are what is kept ready; 0 means 30 s
}

func (o PoolOptions) withDefaults() PoolOptions {
	o.SegmentBytes = cmp.Or(o.SegmentBytes, 64<<20)
	o.MaxBytes = max(cmp.Or(o.MaxBytes, 8*o.SegmentBytes), 0)
	o.PrepareRate = cmp.Or(o.PrepareRate, 30e6)
	o.CheckpointBytes = cmp.Or(o.CheckpointBytes, 8<<20)
	o.Window = cmp.Or(o.Window, 30*time.Second)
	return o
}

// Pool makes the files of new segments. A durable write into blocks that were
// written before is a pure data write, so it hands out files of deleted segments
// first, then files of zeros that [Pool.Step] made ahead, and only then new ones. A file
// that was given to another process ([Reader.Give]) is emptied, removed and not used again.
//
// Files are made ahead at the rate at which segments were filled lately, less that at
// which files came back, so neither ten lines into a new topic cost zeros nor a
// retention that keeps up. All methods are safe for concurrent use.
type Pool struct {
	d disk.Disk
	o PoolOptions

	refused error         // what kept files that an earlier run left from being used; set once
	wake    chan struct{} // tells Run that there may be work

	mu    sync.Mutex             // guards what follows; never held across I/O
	num   uint64                 // of the next file
	free  []poolFile             // by size; the last is the next to be taken
	bytes int64                  // of free and making
	dead  []string               // names to remove
	left  bool                   // names left the pool since its directory was synced last
	full  []time.Time            // when segments were filled lately, oldest first
	back  []time.Time            // when files were recycled lately
	clock time.Time              // the latest time that anybody told
	dirs  map[fence.TopicID]bool // topic directories whose names are durable
	lean  Lean
	stats PoolStats

	step   sync.Mutex // held by Step, also across I/O; guards what follows; before mu
	making *making
	paused time.Time // after an error: nothing is made before this
}

// Lean is what a Pool does without while space is short.
type Lean uint8

const (
	Plenty      Lean = iota // nothing
	NoZeros                 // nothing is made ahead
	NothingKept             // nor is a retired file kept
)

type poolFile struct {
	num  uint64
	kind poolKind
	size int64
	salt uint64 // of its earlier life, 0 when unknown
}

// PoolStats counts what a Pool did since it was opened, and what it holds.
type PoolStats struct {
	Files, Bytes                       int64 // ready
	Recycled, Prepared, Grown, Removed uint64
}

// NewPool opens the pool of a tree and takes what an earlier run left in it, but for files
// that it cannot look at: of those [Pool.Run] tells.
func NewPool(d disk.Disk, o PoolOptions) (*Pool, error) {
	p := &Pool{d: d, o: o.withDefaults(), wake: make(chan struct{}, 1), dirs: map[fence.TopicID]bool{}}
	for _, dir := range []string{poolDir, topicsDir} {
		if err := d.Mkdir(dir); err != nil {
			return nil, fmt.Errorf("segfile: pool: %w", err)
		}
	}
	if err := d.SyncDir(""); err != nil {
		return nil, fmt.Errorf("segfile: pool: %w", err)
	}
	list, err := d.List(poolDir)
	if err != nil {
		return nil, fmt.Errorf("segfile: pool: %w", err)
	}
	for _, e := range list {
		n, kind, ok := parsePoolName(e.Name)
		if !ok {
			continue // not ours: Classify reports it
		}
		p.num = max(p.num, n+1)
		if e.Dir {
			continue // not ours either, but the name is taken
		}
		if err := p.adopt(n, kind, e.Size); err != nil {
			// It stays as it is, and nobody uses it.
			p.refused = errors.Join(p.refused, err)
		}
	}
	return p, nil
}

// adopt takes one file that was in the pool when it was opened.
//
// A crash between the rename of a new segment and the sync of the pool's
// directory may bring the pool's name back beside the segment's: such a name goes
// and the file stays. A file of zeros may have been about to become a segment
// when the crash came, so from now on it counts as one with an earlier life.
func (p *Pool) adopt(n uint64, kind poolKind, size int64) error {
	name := poolName(n, kind)
	var salt uint64
	if kind != poolDel {
		var h *header
		var err error
		var given bool
		h, salt, given, err = p.earlier(name, size)
		if err != nil {
			return err
		}
		if h != nil && p.exists(Name(h.ID)) {
			if err := p.d.Remove(name); err != nil {
				return fmt.Errorf("segfile: pool: %w", err)
			}
			return nil
		}
		if given { // an earlier version did not look
			p.mu.Lock()
			defer p.mu.Unlock()
			p.dead = append(p.dead, name)
			p.poke()
			return nil
		}
	}
	if kind == poolNew {
		if err := p.d.Rename(name, poolName(n, poolOld)); err != nil {
			return fmt.Errorf("segfile: pool: %w", err)
		}
		kind = poolOld
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.keep(poolFile{n, kind, size, salt})
	return nil
}

// keep puts a file into the pool, or on the list of those to remove. The caller
// holds mu.
func (p *Pool) keep(f poolFile) {
	if f.kind == poolDel || p.lean == NothingKept || f.size < p.o.SegmentBytes/16 || p.bytes+f.size > p.o.MaxBytes {
		p.dead = append(p.dead, poolName(f.num, f.kind))
		p.poke()
		return
	}
	i, _ := slices.BinarySearchFunc(p.free, f, func(a, b poolFile) int {
		return cmp.Or(cmp.Compare(a.size, b.size), cmp.Compare(a.kind, b.kind))
	})
	p.free = slices.Insert(p.free, i, f)
	p.bytes += f.size
}

// exists says whether there is a file, or may be one: what cannot be looked at is not taken
// for absent, or a new segment would take its name.
func (p *Pool) exists(name string) bool {
	f, err := p.d.Open(name, true)
	if err != nil {
		return !errors.Is(err, fs.ErrNotExist)
	}
	f.Close()
	return true
}

// earlier reads the header that a pool file has from its earlier life, nil if it
// has none, and the salt of all that is in it, 0 when that is not known. given says that
// others may read it.
func (p *Pool) earlier(name string, size int64) (h *header, salt uint64, given bool, err error) {
	f, err := p.d.Open(name, true)
	if err != nil {
		return nil, 0, false, fmt.Errorf("segfile: pool: %w", err)
	}
	defer f.Close()
	if h, salt, err = earlier(f, size); err == nil {
		given, err = isGiven(f)
	}
	return h, salt, given, err
}

// isGiven says whether a file was given away.
func isGiven(f disk.File) (bool, error) {
	g, ok := f.(disk.Giver)
	if !ok {
		return false, nil
	}
	return g.Given()
}

// earlier does so with an open file, and makes its size durable: a process that was
// killed may have left one that a power cut takes back, and the next header says that
// the file is so long.
func earlier(f disk.File, size int64) (h *header, salt uint64, err error) {
	if err := f.Sync(); err != nil {
		return nil, 0, fmt.Errorf("segfile: pool: %w", err)
	}
	b := make([]byte, DataStart)
	if n, err := f.ReadAt(b, 0); err != nil && !errors.Is(err, io.EOF) {
		return nil, 0, fmt.Errorf("segfile: pool: %w", err)
	} else if n < DataStart {
		return nil, 0, nil
	}
	old, state, _ := readHeader(b)
	if state != headerValid {
		return nil, 0, nil
	}
	s := readSlots(b, old.Salt)
	if end, ok := s.current(); ok && alignBlock(end.footer+end.length) >= size {
		salt = old.Salt // all of the file is of that life
	}
	return &old, salt, nil
}

// take removes the largest file from the pool.
func (p *Pool) take() (f poolFile, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := len(p.free)
	if n == 0 {
		f = poolFile{num: p.num, kind: poolNew}
		p.num++
		return f, false
	}
	f = p.free[n-1]
	p.free = p.free[:n-1]
	p.bytes -= f.size
	p.poke()
	return f, true
}

// RemoveTopic removes a deleted topic's directory if it is empty.
func (p *Pool) RemoveTopic(t fence.TopicID) error {
	p.mu.Lock()
	delete(p.dirs, t)
	p.mu.Unlock()
	if err := p.d.Remove(Dir(t)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("segfile: topic directory: %w", err)
	}
	return nil
}

// Recycle takes the files of deleted segments. Nobody may hold them open any more:
// they may be overwritten as soon as it returns. When it returns, their names are
// durably gone; what is too much or too small to keep is removed by Step.
func (p *Pool) Recycle(names ...string) error {
	var kept []poolFile
	dirs := map[string]bool{}
	var failed error
	for _, name := range names {
		f, err := p.retire(name)
		if errors.Is(err, fs.ErrNotExist) {
			dirs[path.Dir(name)] = true // gone, but perhaps not durably
			continue
		}
		if err != nil {
			failed = errors.Join(failed, err)
			continue
		}
		kept = append(kept, f)
		dirs[path.Dir(name)] = true
	}
	// A name that came back would stand for the next segment's bytes. The new name
	// proves the rename, the old directory that nothing of the old name is left.
	for _, dir := range append([]string{poolDir}, slices.Sorted(maps.Keys(dirs))...) {
		err := p.d.SyncDir(dir)
		if errors.Is(err, fs.ErrNotExist) { // its topic went meanwhile, but perhaps not durably
			err = p.d.SyncDir(topicsDir)
		}
		if err != nil {
			return errors.Join(failed, fmt.Errorf("segfile: recycle: %w", err)) // the files wait in the pool for the next start
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, f := range kept {
		if f.size >= p.o.SegmentBytes/2 && f.kind == poolOld {
			p.back = noteTime(p.back, p.clock)
		}
		p.keep(f)
	}
	return failed
}

// retire moves one file under a name of the pool.
func (p *Pool) retire(name string) (poolFile, error) {
	if _, ok := ParseName(name); !ok {
		return poolFile{}, fmt.Errorf("%w: %s", ErrForeign, name)
	}
	f, err := p.d.Open(name, true)
	if err != nil {
		return poolFile{}, fmt.Errorf("segfile: recycle: %w", err)
	}
	kind := poolOld
	size, err := f.Size()
	var salt uint64
	if err == nil {
		_, salt, err = earlier(f, size)
	}
	if err == nil {
		var given bool
		if given, err = isGiven(f); given {
			kind = poolDel // others may read it for as long as they like
		}
	}
	f.Close()
	if err != nil {
		return poolFile{}, fmt.Errorf("segfile: recycle: %w", err)
	}
	p.mu.Lock()
	pf := poolFile{p.num, kind, size, salt}
	p.num++
	p.mu.Unlock()
	if err := p.d.Rename(name, poolName(pf.num, pf.kind)); err != nil {
		return poolFile{}, fmt.Errorf("segfile: recycle: %w", err)
	}
	if err := p.d.Remove(name + lossSuffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return poolFile{}, fmt.Errorf("segfile: recycle: %w", err)
	}
	return pf, nil
}

// Shrink removes ready files until at most keep bytes are left: what to do first
// when the disk is full.
func (p *Pool) Shrink(keep int64) error {
	p.step.Lock()
	defer p.step.Unlock()
	if p.making != nil {
		p.abandon()
	}
	p.mu.Lock()
	for len(p.free) > 0 && p.bytes > keep {
		f := p.free[len(p.free)-1]
		p.free = p.free[:len(p.free)-1]
		p.bytes -= f.size
		p.dead = append(p.dead, poolName(f.num, f.kind))
	}
	n := len(p.dead)
	p.mu.Unlock()
	var failed error
	for range n {
		failed = errors.Join(failed, p.removeOne())
	}
	return failed
}

// Spare tells the pool how short space is. What it holds already stays: see Shrink.
func (p *Pool) Spare(l Lean) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.lean != l {
		p.lean = l
		p.poke()
	}
}

// Stats says what the pool holds and did.
func (p *Pool) Stats() PoolStats {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.stats
	s.Files, s.Bytes = int64(len(p.free)), p.bytes
	return s
}

// noteFull hears that a segment was fenced at size bytes.
func (p *Pool) noteFull(size int64, now time.Time) {
	if size < p.o.SegmentBytes/2 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clock = now
	p.full = noteTime(p.full, now)
	p.poke()
}

// noteTime adds a time to the latest 256.
func noteTime(list []time.Time, at time.Time) []time.Time {
	if len(list) == 256 {
		list = append(list[:0], list[1:]...)
	}
	return append(list, at)
}

func (p *Pool) poke() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}
