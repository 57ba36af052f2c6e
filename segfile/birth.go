package segfile

import (
	"context"
	"fmt"
	"io/fs"

	"github.com/ringfence/ringfence/fence"
	"github.com/ringfence/ringfence/segfile/disk"
)

// Create makes the file of a new segment and starts it with what the range knows
// of its producers (nil: nothing). The Writer keeps the table. When it returns,
// header, empty latch, start mark and every name up to the root are durable.
func (p *Pool) Create(ctx context.Context, m Meta, table *ProducerTable) (*Writer, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := m.Check(); err != nil {
		return nil, err
	}
	if table == nil {
		table = NewProducerTable(m.Start, m.End)
	}
	if start, end := table.Bounds(); start != m.Start || end != m.End {
		return nil, fmt.Errorf("segfile: %s: producer table covers [%d, %d), the range [%d, %d)", m.ID, start, end, m.Start, m.End)
	}
	if p.exists(Name(m.ID)) {
		return nil, fmt.Errorf("segfile: create %s: %w", Name(m.ID), fs.ErrExist)
	}
	if err := p.ensureDir(m.ID.Range.Topic); err != nil {
		return nil, err
	}
	f, ready := p.take()
	w, err := p.create(m, table, f, ready)
	if err != nil {
		p.scrap(f)
		return nil, err
	}
	p.mu.Lock()
	switch {
	case !ready:
		p.stats.Grown++
	case f.kind == poolNew:
		p.stats.Prepared++
	default:
		p.stats.Recycled++
	}
	p.mu.Unlock()
	return w, nil
}

// create goes through a segment's birth. Header, latch slots, start mark and pointer
// are one write under the pool's name: a crash in it leaves a pool file. The rename
// comes after, so a segment's name never stands for a half-made file or for an
// earlier life's latch. Then the directory: the new name must not be lost. That the
// pool's may come back until Step has synced its directory is what adopt is for.
func (p *Pool) create(m Meta, table *ProducerTable, pf poolFile, ready bool) (*Writer, error) {
	name := poolName(pf.num, pf.kind)
	hdr := header{Meta: m}
	var file disk.File
	var err error
	if ready {
		file, err = p.d.Open(name, false)
	} else {
		file, err = p.d.Create(name)
	}
	if err != nil {
		return nil, fmt.Errorf("segfile: create %s: %w", Name(m.ID), err)
	}
	fail := func(err error) (*Writer, error) {
		file.Close()
		return nil, fmt.Errorf("segfile: create %s: %w", Name(m.ID), err)
	}
	if ready {
		hdr.blocks = pf.size
		if pf.kind == poolOld {
			hdr.recycled, hdr.stale = true, pf.salt
		}
	}
	check := checkpoints{every: p.o.CheckpointBytes}
	b, err := birth(&hdr, table, ready, &check)
	if err != nil {
		return fail(err)
	}
	if err := file.WriteAt(b, 0); err != nil {
		return fail(err)
	}
	if err := p.d.Rename(name, Name(m.ID)); err != nil {
		return fail(err)
	}
	if err := p.d.SyncDir(Dir(m.ID.Range.Topic)); err != nil {
		// Nothing was acknowledged in it; back under a pool's name it is only waste.
		if p.d.Rename(Name(m.ID), name) != nil {
			err = fmt.Errorf("%w (the empty file is left behind)", err)
		}
		return fail(err)
	}
	p.mu.Lock()
	p.left = true
	p.poke()
	p.mu.Unlock()
	return &Writer{
		d: p.d, pool: p, file: file, hdr: hdr, pos: check.first(), latch: fence.NewLatch(m.Base),
		tally: tally{next: m.Base, table: table},
		check: check,
	}, nil
}

// headStart is how many bytes of zeros a new file begins with: the first flushes, and
// the footer if no more come, need no new blocks then, which would take as long as the
// write itself. Nobody counts on them: recovery takes the file for one that grew.
const headStart = 8 * block

// birth is what a segment's file begins with; it tells check where in it the pointer
// lies. A file that holds no blocks yet gets its head start.
func birth(hdr *header, table *ProducerTable, ready bool, check *checkpoints) (b []byte, err error) {
	mark, err := startMark(hdr, table)
	if err != nil {
		return nil, err
	}
	check.pointer = DataStart + alignBlock(int64(len(mark)))
	check.told = proof{check.first(), hdr.Base}
	size := check.first()
	if !ready {
		size += headStart
	}
	b = make([]byte, size)
	hdr.put(b)
	copy(b[DataStart:], mark)
	return b, check.put(b[check.pointer:], hdr)
}

// scrap has a file removed that a failed Create left in an unknown state.
func (p *Pool) scrap(f poolFile) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dead = append(p.dead, poolName(f.num, f.kind))
	p.poke()
}

// ensureDir makes a topic's directory, once, with its name durable.
func (p *Pool) ensureDir(t fence.TopicID) error {
	p.mu.Lock()
	known := p.dirs[t]
	p.mu.Unlock()
	if known {
		return nil
	}
	if err := p.d.Mkdir(Dir(t)); err != nil {
		return fmt.Errorf("segfile: topic directory: %w", err)
	}
	if err := p.d.SyncDir(topicsDir); err != nil {
		return fmt.Errorf("segfile: topic directory: %w", err)
	}
	p.mu.Lock()
	p.dirs[t] = true
	p.mu.Unlock()
	return nil
}
