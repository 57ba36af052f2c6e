package engine

import (
	"errors"
	"fmt"

	"github.com/ringfence/ringfence/segfile/disk"
	"github.com/ringfence/ringfence/segfile/record"
)

// A program on this host that shares memory with the engine lends it the frames that it builds
// there: they go to the device from where they lie, even if the program changes them
// meanwhile (store/foreign.go). Frames whose content is needed again are copied: compressed
// ones, those whose records belong to several ranges, and those that a split overtakes.

// Register lets frames be lent from memory that is shared with another process. All of mem is
// mapped and writable, in whole blocks of disk.Block; memory that the kernel cannot write from
// is refused. unregister accepts no more loans and waits until all are returned; then the
// memory may be unmapped.
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

// loan is somebody else's memory that holds a frame.
type loan struct {
	from    *disk.Memory
	release func()
	header  [record.HeaderSize]byte // as it was when the frame was lent; the one in the memory is not read again
}

func (l *loan) end() {
	l.from.Release()
	l.release()
}

// Lend takes a frame that lies in registered memory, at the start of a block of disk.Block. All
// of its last block belongs to the frame: the engine overwrites the rest of that block, and
// the frame's header. release is called once, from any goroutine, when neither the engine nor
// the kernel uses the memory any more: before the outcome is told, or when the frame is
// discarded. It must not block.
//
// If the memory is changed before release, the frame may be refused with ErrChanged, and with
// it the frames that were sent after it.
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
