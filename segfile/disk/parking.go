package disk

import (
	"os"
	"syscall"
)

// parking decides which of the files that are only read keep their descriptor: a
// node has more segments than a process may have files open. Those that were not
// used for long go first; the next use opens them again, by their name, and refuses
// another file that has taken it.
type parking struct {
	most  int       // descriptors of files that are only read; set once
	queue []*osFile // guarded by osDisk.mu: those that have one, in the order they are looked at
	gone  int       // likewise: how many in queue are not listed any more
}

// add lists a file that has its descriptor. osDisk.mu is held.
func (p *parking) add(f *osFile) {
	if !f.listed && !f.pinned {
		f.listed = true
		p.queue = append(p.queue, f)
	}
}

// drop takes a file off the list. osDisk.mu is held.
func (p *parking) drop(f *osFile) {
	if !f.listed {
		return
	}
	f.listed = false
	if p.gone++; p.gone > 64 && p.gone > len(p.queue)/2 {
		kept := p.queue[:0]
		for _, f := range p.queue {
			if f.listed {
				kept = append(kept, f)
			}
		}
		clear(p.queue[len(kept):])
		p.queue, p.gone = kept, 0
	}
}

// next is a file to park, nil if there are few enough. One that was used since it
// last came up comes up again later. osDisk.mu is held.
func (p *parking) next() *osFile {
	for tries := len(p.queue); tries > 0 && len(p.queue)-p.gone > p.most; tries-- {
		f := p.queue[0]
		p.queue[0], p.queue = nil, p.queue[1:]
		switch {
		case !f.listed:
			p.gone--
		case f.used.Swap(false):
			p.queue = append(p.queue, f)
		default:
			f.listed = false
			return f
		}
	}
	return nil
}

// park takes descriptors back until there are no more than there may be, as far as
// they are not in use.
func (d *osDisk) park() {
	for range 64 {
		d.mu.Lock()
		f := d.next()
		d.mu.Unlock()
		if f == nil {
			return
		}
		if !f.parkNow() {
			d.mu.Lock()
			d.relist(f)
			d.mu.Unlock()
		}
	}
}

// relist lists a file unless it is closed or parked. mu is held.
func (d *osDisk) relist(f *osFile) {
	if f.state.Load()&(stateClosed|stateParked) == 0 {
		d.add(f)
	}
}

// parkNow takes the file's descriptor back unless it is in use.
func (f *osFile) parkNow() bool {
	if !f.moving.TryLock() {
		return false
	}
	defer f.moving.Unlock()
	f.d.mu.Lock()
	may := !f.pinned && !f.unlinked && f.state.CompareAndSwap(0, stateParked)
	f.d.mu.Unlock()
	if may {
		_ = f.closeHandle() // it is only read: nothing can be lost
	}
	return may
}

// unpark opens a parked file again.
func (f *osFile) unpark() error {
	f.moving.Lock()
	if f.h != nil {
		f.moving.Unlock()
		return nil // somebody else did
	}
	err := f.openHandle(f.Name(), os.O_RDONLY)
	for err == nil {
		s := f.state.Load()
		if s&stateClosed != 0 {
			_ = f.closeHandle()
			err = ErrClosed
		} else if f.state.CompareAndSwap(s, s&^stateParked) {
			break
		}
	}
	f.moving.Unlock()
	if err != nil {
		return err
	}
	f.d.mu.Lock()
	f.d.relist(f)
	f.d.mu.Unlock()
	f.d.park()
	return nil
}

// pin gives the files of a name that is about to go their descriptor for good: who
// has them open goes on seeing them.
func (d *osDisk) pin(name string) {
	var held []*osFile
	d.mu.Lock()
	for _, f := range d.named[name] {
		if f.readOnly {
			f.pinned = true
			d.drop(f)
			held = append(held, f)
		}
	}
	d.mu.Unlock()
	for _, f := range held {
		if f.acquire() == nil { // what cannot be opened any more cannot be kept
			f.release()
		}
	}
}

// fileLimit is how many files the process may have open.
func fileLimit() int {
	var l syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l); err != nil {
		return 1024
	}
	return int(min(max(l.Cur, 64), 1<<20))
}
