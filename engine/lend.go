package engine

import (
	"errors"
	"fmt"

	"github.com/ringfence/ringfence/segfile/disk"
	"github.com/ringfence/ringfence/segfile/record"
)

// A frame that a program of this host builds in memory which it shares with the engine is
// lent to it: it goes to the device from where it lies, however it is changed meanwhile
// (store/foreign.go). What has to be looked into again is copied: a compressed frame, one
// whose records belong to several ranges, and one that is overtaken by a split.

// Register lets frames be lent from memory that is shared with another process. It is
// mapped and writable as a whole, in whole blocks of disk.Block; what the kernel cannot
// write from is refused. unregister takes no more loans, waits until all are returned, and
// then the memory may go.
//
// It is for the other packages of this module alone.
func (e *Engine) Register(mem []byte) (unregister func() error, err error) {
	if err := e.begin(); err != nil {
		return nil, err
	}
	defer e.end()
	m, err := e.lenders.Add(mem, e.arena)
	if err != nil {
		return nil, err
	}
	undo, err := e.store.Disk().Register(mem)
	if err != nil {
		m.Remove()
		return nil, err
	}
	return func() error {
		m.Remove()
		return undo()
	}, nil
}

// loan is memory of others that holds a frame.
type loan struct {
	from    *disk.Memory
	release func()
	header  [record.HeaderSize]byte // as it was when the frame was lent; what stands there is not looked at again
}

func (l *loan) end() {
	l.from.Release()
	l.release()
}

// Lend takes a frame that lies in memory which was registered, at the begin of a block of
// disk.Block, all of whose last block is the frame's, too: what is behind it there is
// overwritten, and so is its header. release is called once, by any goroutine, when
// neither the engine nor the kernel uses the memory any more: before the outcome is told,
// or when the frame is discarded. It must not block.
//
// Whoever changes the memory before that may have the frame refused with an ErrChanged,
// and with it those that were sent behind it.
//
// It is for the other packages of this module alone.
func (p *Producer) Lend(frame []byte, release func()) (*Frame, error) {
	size, room := len(frame), (len(frame)+disk.Block-1)/disk.Block*disk.Block
	switch most := p.MaxFrame(); {
	case size <= record.HeaderSize || size > most:
		return nil, about(p.name, -1, fmt.Errorf("%w: a frame of %d bytes, at most %d", ErrRecordTooLarge, size, most))
	case cap(frame) < room:
		return nil, about(p.name, -1, errors.New("a frame that is lent without the rest of its last block"))
	}
	slab := frame[:room:room]
	from := p.e.lenders.Claim(slab)
	if from == nil {
		return nil, about(p.name, -1, errors.New("a frame that is lent from memory that is not registered, or not from the begin of a block on"))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		from.Release()
		return nil, ErrClosed
	}
	b := p.spareBatch()
	b.build.Reset(nil, p.opts.ID)
	b.slab, b.loan = slab, &loan{from, release, [record.HeaderSize]byte(slab)}
	return &Frame{p: p, b: b, size: size}, nil
}
