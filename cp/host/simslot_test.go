package host

import (
	"errors"
	"io"
	"math/rand/v2"
	"slices"
	"sync"
	"syscall"
)

// simDisk is the two slots of a journal in memory. It counts every durable write
// and can die in one: then some sectors of that write are new, the rest are old,
// and nothing works any more until reboot.
type simDisk struct {
	mu       sync.Mutex
	slots    [2]*simSlot
	rng      *rand.Rand
	capacity int64 // of both files together; 0 means plenty
	dieAt    int   // the write in which it dies, counted from 1; 0 means never
	writes   int
	dead     bool
	died     string // what the fatal write was
	fail     error  // every write fails with it
	wait     chan struct{}
}

type simSlot struct {
	disk *simDisk
	data []byte
}

var errDead = errors.New("power is off")

func newSimDisk(rng *rand.Rand) *simDisk {
	d := &simDisk{rng: rng}
	for i := range d.slots {
		d.slots[i] = &simSlot{disk: d}
	}
	return d
}

// reboot returns a disk with what this one holds.
func (d *simDisk) reboot() *simDisk {
	n := newSimDisk(d.rng)
	n.capacity = d.capacity
	for i := range d.slots {
		n.slots[i].data = slices.Clone(d.slots[i].data)
	}
	return n
}

func (d *simDisk) files() [2]slotFile { return [2]slotFile{d.slots[0], d.slots[1]} }

func (s *simSlot) WriteAt(p []byte, off int64) error {
	d := s.disk
	d.mu.Lock()
	wait := d.wait
	d.mu.Unlock()
	if wait != nil {
		<-wait
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(p)%block != 0 || off%block != 0 {
		panic("write is not whole blocks")
	}
	if d.dead {
		return errDead
	}
	if d.fail != nil {
		return d.fail
	}
	end := off + int64(len(p))
	if d.capacity > 0 && end > int64(len(s.data)) {
		used := int64(len(d.slots[0].data)+len(d.slots[1].data)) + end - int64(len(s.data))
		if used > d.capacity {
			return syscall.ENOSPC
		}
	}
	if grow := end - int64(len(s.data)); grow > 0 {
		s.data = append(s.data, make([]byte, grow)...)
	}
	d.writes++
	if d.writes != d.dieAt {
		copy(s.data[off:], p)
		return nil
	}
	d.dead = true
	switch {
	case off == 0 && end == block:
		d.died = "header"
	case zero(p):
		d.died = "growth"
	case p[offKind] == byte(kindRecords) || p[offKind] == byte(kindMark):
		d.died = "records"
	default:
		d.died = "checkpoint"
	}
	for i := 0; i < len(p); i += 512 {
		if d.rng.IntN(2) == 0 {
			copy(s.data[off+int64(i):], p[i:i+512])
		}
	}
	return errDead
}

func (s *simSlot) ReadAt(p []byte, off int64) (int, error) {
	s.disk.mu.Lock()
	defer s.disk.mu.Unlock()
	if off >= int64(len(s.data)) {
		return 0, io.EOF
	}
	n := copy(p, s.data[off:])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

func (s *simSlot) Truncate(size int64) error {
	s.disk.mu.Lock()
	defer s.disk.mu.Unlock()
	if s.disk.dead {
		return errDead
	}
	s.data = s.data[:size]
	return nil
}

func (s *simSlot) Size() (int64, error) {
	s.disk.mu.Lock()
	defer s.disk.mu.Unlock()
	return int64(len(s.data)), nil
}

func (s *simSlot) Close() error { return nil }
