package segfile

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/ringfence/ringfence/segfile/disk"
	"github.com/ringfence/ringfence/segfile/record"
)

// opened is a file under a segment's name, with its first five blocks looked at.
type opened struct {
	name   string
	f      disk.File
	size   int64
	win    *window
	verd   fileVerdict
	why    string // what is wrong with the header
	hdr    header
	slots  slots
	blocks []byte // the first five, zeros behind the end of the file; of firstBlocks

	mark    record.Head // the start mark
	hasMark bool
	table   *ProducerTable // in it
}

// fileVerdict is what the first blocks of a file make of it.
type fileVerdict uint8

const (
	fileUsed      fileVerdict = iota // a segment
	fileRestored                     // a segment whose header is damaged and whose start mark has the copy
	fileLost                         // something was stored, and no header says what
	fileNeverUsed                    // nothing was ever stored
	fileForeign                      // not ours, or not of this name
	fileNewer                        // a later version's
)

// fileRow is a row of the table of what a file may look like. Where a field is
// nil the answer does not depend on it.
type fileRow struct {
	header headerState
	named  *bool // the header says what the name says
	mark   *bool // the start mark's copy of the header is valid and says what the name says
	data   *bool // behind the header there is something
	verd   fileVerdict
}

var yes, no = ptr(true), ptr(false)

func ptr(b bool) *bool { return &b }

// fileRows: a name stands for a file only after its header was durable, so only
// rot, or a hand, makes the rows that are not fileUsed. Nothing that holds
// anything is ever called never used.
var fileRows = []fileRow{
	{header: headerValid, named: yes, verd: fileUsed},
	{header: headerValid, named: no, verd: fileForeign},
	{header: headerNewer, verd: fileNewer},
	{header: headerZero, mark: yes, verd: fileRestored},
	{header: headerZero, mark: no, data: yes, verd: fileLost},
	{header: headerZero, mark: no, data: no, verd: fileNeverUsed},
	{header: headerBad, mark: yes, verd: fileRestored},
	{header: headerBad, mark: no, data: yes, verd: fileLost},
	{header: headerBad, mark: no, data: no, verd: fileNeverUsed},
	{header: headerForeign, mark: yes, verd: fileRestored},
	{header: headerForeign, mark: no, verd: fileForeign},
}

func (r *fileRow) matches(s headerState, named, mark, data bool) bool {
	is := func(want *bool, have bool) bool { return want == nil || *want == have }
	return r.header == s && is(r.named, named) && is(r.mark, mark) && is(r.data, data)
}

func decideFile(s headerState, named, mark, data bool) fileVerdict {
	for i := range fileRows {
		if fileRows[i].matches(s, named, mark, data) {
			return fileRows[i].verd
		}
	}
	panic("segfile: a file that no row describes")
}

// openFile opens a file and looks at its first blocks.
func openFile(d disk.Disk, name string, readOnly bool) (*opened, error) {
	id, ok := ParseName(name)
	if !ok {
		return nil, fmt.Errorf("%w: %s is no segment's name", ErrForeign, name)
	}
	f, err := d.Open(name, readOnly)
	if err != nil {
		return nil, err
	}
	o := &opened{name: name, f: f}
	fail := func(err error) (*opened, error) {
		o.close()
		return nil, fmt.Errorf("segfile: %s: %w", name, err)
	}
	if o.size, err = f.Size(); err != nil {
		return fail(err)
	}
	o.blocks = *firstBlocks.Get().(*[]byte)
	n, err := f.ReadAt(o.blocks, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return fail(err)
	}
	clear(o.blocks[n:])
	o.win = newWindow(d, f, o.size)

	hdr, state, why := readHeader(o.blocks)
	o.hdr, o.why = hdr, why
	named := state == headerValid && hdr.ID == id
	var mark, data bool
	if state == headerValid {
		if !named {
			o.why = "the header says that it is " + Name(hdr.ID)
		}
	} else {
		copied, err := o.headerCopy()
		if err != nil {
			return fail(err)
		}
		if mark = copied != nil && copied.ID == id; mark {
			o.hdr = *copied
		} else if data, err = o.holdsData(state); err != nil {
			return fail(err)
		}
	}
	o.verd = decideFile(state, named, mark, data)
	if o.readable() {
		o.slots = readSlots(o.blocks, o.hdr.Salt)
	}
	return o, nil
}

// firstBlocks keeps memory for opened.blocks: a start opens every file.
var firstBlocks = sync.Pool{New: func() any {
	b := make([]byte, DataStart+block)
	return &b
}}

// release gives the memory back and leaves the file open.
func (o *opened) release() {
	if o.win != nil {
		o.win.close()
	}
	if b := o.blocks; b != nil {
		o.blocks = nil
		firstBlocks.Put(&b)
	}
}

func (o *opened) close() error {
	o.release()
	return o.f.Close()
}

// readable says whether there is a header to read the rest with.
func (o *opened) readable() bool { return o.verd == fileUsed || o.verd == fileRestored }

// refuse is the error that reading the file answers, nil when it can be read.
func (o *opened) refuse() error {
	switch o.verd {
	case fileLost:
		return &CorruptError{File: o.name, Reason: o.why + ", and there is no valid copy in a start mark"}
	case fileNeverUsed:
		return fmt.Errorf("%w: %s", ErrNeverUsed, o.name)
	case fileForeign:
		return fmt.Errorf("%w: %s: %s", ErrForeign, o.name, o.why)
	case fileNewer:
		return fmt.Errorf("%w: %s: %s", ErrNewer, o.name, o.why)
	}
	return nil
}

// headerCopy is the header in the start mark, nil when there is none. Its own salt
// must open the mark.
func (o *opened) headerCopy() (*header, error) {
	at := DataStart + record.HeaderSize + markFixed + hoSalt
	salt := binary.LittleEndian.Uint64(o.blocks[at:])
	p, err := o.startPayload(salt)
	if err != nil || p == nil {
		return nil, err
	}
	h, _, ok := splitStart(p)
	if !ok || h.Salt != salt {
		return nil, nil
	}
	return &h, nil
}

// startPayload reads the first frame, when it is a whole mark of that salt.
func (o *opened) startPayload(salt uint64) ([]byte, error) {
	h, err := record.ParseHead(o.blocks[DataStart:], salt)
	if err != nil || !h.Mark() || int64(h.FrameLen) > o.size-DataStart {
		return nil, nil
	}
	if h.PayloadLen > markFixed+block+maxTable {
		return nil, nil
	}
	frame := make([]byte, h.FrameLen)
	if n := copy(frame, o.blocks[DataStart:]); n < len(frame) {
		if _, err := o.f.ReadAt(frame, DataStart); err != nil && !errors.Is(err, io.EOF) {
			return nil, err
		}
	}
	if _, err := record.Check(frame, salt); err != nil {
		return nil, nil
	}
	o.mark = h
	return frame[record.HeaderSize:], nil
}

// readStart reads the start mark of a file whose header is known; hasMark says
// whether it is whole.
func (o *opened) readStart() error {
	p, err := o.startPayload(o.hdr.Salt)
	if err != nil || p == nil {
		return err
	}
	h, b, ok := splitStart(p)
	if !ok || h != o.hdr || o.mark.Base != o.hdr.Base {
		return nil
	}
	t, err := DecodeProducerTable(b)
	if err != nil || t.start != h.Start || t.end != h.Meta.End {
		return nil
	}
	o.hasMark, o.table = true, t
	return nil
}

// holdsData says whether anything was stored behind a header that cannot be read:
// behind a zero header any byte, behind a half-written one the start of a frame.
func (o *opened) holdsData(s headerState) (bool, error) {
	limit := o.size
	if s != headerZero {
		limit = min(limit, DataStart+searchMax)
	}
	for at := int64(block); at < limit; {
		b, err := o.win.some(at)
		if err != nil {
			return false, err
		}
		if s == headerZero {
			if !isZero(b) {
				return true, nil
			}
		} else {
			for i := int64(0); i+4 <= int64(len(b)); i += record.FrameAlign {
				if string(b[i:i+4]) == frameMagic {
					return true, nil
				}
			}
		}
		at += int64(len(b))
	}
	return false, nil
}

// frameMagic is how every frame starts; a test holds it to package record.
const frameMagic = "RFrm"
