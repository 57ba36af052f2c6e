package segfile

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/ringfence/ringfence/segfile/disk"
)

// Writing zeros beside durable appends costs the appends little at 30 MB/s with one
// write of 256 KiB at a time, and much at full speed.
const prepareChunk = 256 << 10

// making is a file of zeros that is not long enough yet.
type making struct {
	file disk.File // nil until it was created
	num  uint64
	size int64
}

const pauseAfterError = time.Minute

// Run does the pool's background work until ctx ends.
func (p *Pool) Run(ctx context.Context, report func(error)) {
	if p.refused != nil && report != nil {
		report(p.refused)
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			p.step.Lock()
			defer p.step.Unlock()
			if p.making != nil {
				p.making.file.Close() // the next start takes it as it is
				p.making = nil
			}
			return
		case <-timer.C:
		case <-p.wake:
		}
		wait, err := p.Step(time.Now())
		if err != nil && report != nil {
			report(err)
		}
		if wait >= 0 {
			timer.Reset(wait)
		}
	}
}

// Step does a piece of background work, removing one file or writing zeros for
// some milliseconds' worth of the rate, and says how long to wait before the next; less
// than 0 means until a segment is filled, taken or recycled. Run calls it.
func (p *Pool) Step(now time.Time) (wait time.Duration, err error) {
	p.step.Lock()
	defer p.step.Unlock()
	p.mu.Lock()
	dead, left, lean := len(p.dead), p.left, p.lean
	p.left = false
	p.mu.Unlock()
	if left {
		if err := p.d.SyncDir(poolDir); err != nil {
			return pauseAfterError, fmt.Errorf("segfile: pool: %w", err)
		}
	}
	if dead > 0 {
		return 0, p.removeOne()
	}
	if lean != Plenty {
		if p.making == nil {
			return -1, nil
		}
		p.abandon()
		return 0, nil
	}
	if p.making == nil && !p.needed(now) {
		return -1, nil
	}
	if now.Before(p.paused) {
		return p.paused.Sub(now), nil
	}
	if err := p.prepare(); err != nil {
		p.abandon()
		p.paused = now.Add(pauseAfterError)
		return pauseAfterError, fmt.Errorf("segfile: prepare: %w", err)
	}
	return time.Duration(int64(time.Second) * prepareChunk / p.o.PrepareRate), nil
}

// needed says whether fewer files are ready, or will be if as many come back as did
// lately, than segments were filled lately.
func (p *Pool) needed(now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clock = now
	p.full, p.back = p.lately(p.full), p.lately(p.back)
	ready := 0
	for _, f := range p.free {
		if f.size >= p.o.SegmentBytes/2 {
			ready++
		}
	}
	return ready+len(p.back) < len(p.full) && p.bytes+p.o.SegmentBytes <= p.o.MaxBytes
}

// lately drops the times that are longer ago than the window.
func (p *Pool) lately(list []time.Time) []time.Time {
	old := 0
	for old < len(list) && p.clock.Sub(list[old]) > p.o.Window {
		old++
	}
	return append(list[:0], list[old:]...)
}

// zeros is never written to, so that it takes no memory.
var zeros [prepareChunk]byte

// prepare writes the next zeros of the file that is being made. Its size grows
// with them, so that what is there after a crash was written.
func (p *Pool) prepare() error {
	m := p.making
	if m == nil {
		p.mu.Lock()
		m = &making{num: p.num}
		p.num++
		p.bytes += p.o.SegmentBytes
		p.mu.Unlock()
		p.making = m
		var err error
		if m.file, err = p.d.Create(poolName(m.num, poolNew)); err != nil {
			return err
		}
	}
	n := min(prepareChunk, alignBlock(p.o.SegmentBytes)-m.size)
	if err := m.file.WriteAt(zeros[:n], m.size); err != nil {
		return err
	}
	if m.size += n; m.size < p.o.SegmentBytes {
		return nil
	}
	if err := m.file.Close(); err != nil {
		return err
	}
	p.making = nil
	p.mu.Lock()
	defer p.mu.Unlock()
	p.bytes -= p.o.SegmentBytes
	p.keep(poolFile{num: m.num, kind: poolNew, size: m.size})
	return nil
}

// abandon gives up the file that is being made.
func (p *Pool) abandon() {
	m := p.making
	p.making = nil
	if m == nil {
		return
	}
	if m.file != nil {
		m.file.Close()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.bytes -= p.o.SegmentBytes
	p.dead = append(p.dead, poolName(m.num, poolNew))
	p.poke() // it may be what fills the disk
}

// removeOne removes a file. With the discard mount option that takes a second per
// GiB.
func (p *Pool) removeOne() error {
	p.mu.Lock()
	if len(p.dead) == 0 {
		p.mu.Unlock()
		return nil
	}
	name := p.dead[0]
	p.dead = p.dead[1:]
	p.mu.Unlock()
	if err := p.Drop(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("segfile: pool: %w", err)
	}
	p.mu.Lock()
	p.stats.Removed++
	p.mu.Unlock()
	return nil
}

// Drop removes a file that nobody of this process has open. One that was given to another
// process is emptied as well: whoever keeps it open would keep its blocks.
func (p *Pool) Drop(name string) error {
	f, err := p.d.Open(name, false)
	if err != nil {
		return p.d.Remove(name)
	}
	defer f.Close()
	given, err := isGiven(f)
	if err := p.d.Remove(name); err != nil {
		return err
	}
	if given || err != nil {
		return f.Truncate(0)
	}
	return nil
}
