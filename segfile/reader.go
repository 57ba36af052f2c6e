package segfile

import (
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"

	"github.com/ringfence/ringfence/fence"
	"github.com/ringfence/ringfence/segfile/disk"
)

// Reader reads the frames of one segment file up to its end. It may be shared.
type Reader struct {
	d     disk.Disk
	name  string
	hdr   header
	latch fence.Latch
	end   fence.End

	index  index
	table  *ProducerTable
	holes  []Hole
	cut    Cut
	sums   footer // frames, digest and times
	faults []*CorruptError
	slot   slot // what it was opened by, when the footer itself was not read

	opening sync.Mutex // guards closed, and f becoming set; held while the file is opened
	closed  bool
	f       atomic.Pointer[disk.File] // nil until it is needed
}

// OpenReader opens a fenced segment file. End, index and producer table come from
// the footer, or its copy in the latch where it is short enough for one; where neither
// can be read the file's frame headers are read instead, and Faults says so. A file that is not fenced, or whose latch cannot be read, is an
// [ErrOpen] and needs [Recover]; what is no segment is refused with an error that
// says what it is.
func OpenReader(d disk.Disk, name string) (*Reader, error) {
	o, err := openFile(d, name, true)
	if err != nil {
		return nil, err
	}
	r, err := o.reader(d)
	if err != nil {
		o.close()
		return nil, err
	}
	o.release()
	return r, nil
}

// Look is [OpenReader] of a file that is fenced and [Recover] of one that is not, for who
// does not know which it is: one of the two comes back, or an error.
func Look(d disk.Disk, name string) (*Reader, *Verdict, error) {
	o, err := openFile(d, name, true)
	if err != nil {
		return nil, nil, err
	}
	r, err := o.reader(d)
	if err == nil {
		o.release()
		return r, nil, nil
	}
	defer o.close()
	if !errors.Is(err, ErrOpen) {
		return nil, nil, err
	}
	v, err := o.recover(d)
	return nil, v, err
}

func (o *opened) reader(d disk.Disk) (*Reader, error) {
	if err := o.refuse(); err != nil {
		return nil, err
	}
	r := &Reader{d: d, name: o.name, hdr: o.hdr}
	r.f.Store(&o.f)
	if o.verd == fileRestored {
		r.faults = append(r.faults, &CorruptError{File: o.name, Reason: o.why})
	}
	r.faults = append(r.faults, o.slots.faults(o.name)...)
	var err error
	if r.latch, err = o.slots.latch(o.hdr.Base); err != nil {
		return nil, fmt.Errorf("%w, as far as can be told: %w", ErrOpen, &CorruptError{File: o.name, Byte: slotA, Reason: err.Error()})
	}
	s, closed := o.slots.current()
	if !closed {
		return nil, fmt.Errorf("%w: %s", ErrOpen, o.name)
	}
	r.end = s.end
	f, err := o.shortFooter(s)
	if isRead(err) {
		return nil, err
	}
	if s.copied != "" && err == nil {
		r.slot = s
	}
	if err != nil {
		r.faults = append(r.faults, &CorruptError{File: o.name, Byte: s.footer, Reason: err.Error()})
		if f, err = o.rebuild(s); err != nil {
			return nil, err
		}
	}
	r.take(&f)
	return r, nil
}

// take gives a Reader what a footer says.
func (r *Reader) take(f *footer) {
	r.index.set(f.index)
	r.table, r.holes, r.cut, r.sums = f.table, f.holes, f.cut, *f
}

// Open is a Reader of a recovered file, fenced or not, up to the end that was
// found: for those who look into files that no engine has open.
func (v *Verdict) Open() (*Reader, error) {
	if v.refusal != nil {
		return nil, v.refusal
	}
	if v.Latch.State() != fence.Open {
		return OpenReader(v.d, v.Name)
	}
	f, err := v.d.Open(v.Name, true)
	if err != nil {
		return nil, err
	}
	r := &Reader{d: v.d, name: v.Name, hdr: v.hdr, latch: v.Latch, end: v.End, faults: v.Faults}
	r.f.Store(&f)
	ft := v.tally.footer(v.hdr.Base, v.End.Position, v.Holes, v.Cut)
	r.take(&ft)
	return r, nil
}

// Reader reads a recovered file that [Verdict.Fence] has fenced, without reading back
// what is known, through a file that it opens when that is needed.
func (v *Verdict) Reader() (*Reader, error) {
	if v.refusal != nil {
		return nil, v.refusal
	}
	end, fenced := v.Latch.End()
	if !fenced {
		return nil, fmt.Errorf("%w: %s", ErrOpen, v.Name)
	}
	r := &Reader{d: v.d, name: v.Name, hdr: v.hdr, latch: v.Latch, end: end}
	ft := v.tally.footer(v.hdr.Base, end.Position, v.Holes, v.Cut)
	r.take(&ft)
	return r, nil
}

// CheckFooter reads the footer, if that was not done when the file was opened, because
// the latch has a copy. An ErrDamaged says that it is not what it should be, of which
// nobody is the worse as long as there is the copy: [RepairFooter] writes it again.
func (r *Reader) CheckFooter() error {
	if r.slot.copied == "" {
		return nil
	}
	f, err := r.File()
	if err != nil {
		return err
	}
	b := make([]byte, alignBlock(r.slot.length))
	n, err := f.ReadAt(b, r.slot.footer)
	if err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("segfile: %s: footer: %w", r.name, err)
	}
	if _, err := readFooter(b[:n], r.slot.length, r.hdr.Salt, r.hdr.Base, r.end); err != nil {
		return &CorruptError{File: r.name, Byte: r.slot.footer, Reason: err.Error()}
	}
	return nil
}

// shortFooter is footer, from the copy if there is one: then nothing is read. Whether the
// footer itself can be is for [Reader.CheckFooter] and [Verify] to find out.
func (o *opened) shortFooter(s slot) (footer, error) {
	if s.copied == "" || s.footer+s.length > o.size {
		return o.footer(s)
	}
	return readFooter([]byte(s.copied), s.length, o.hdr.Salt, o.hdr.Base, s.end)
}

// footer reads and checks the footer that s leads to.
func (o *opened) footer(s slot) (footer, error) {
	if s.footer+s.length > o.size {
		return footer{}, fmt.Errorf("the file ends at byte %d, before its footer", o.size)
	}
	b := make([]byte, alignBlock(s.length))
	n, err := o.f.ReadAt(b, s.footer)
	if err != nil && !errors.Is(err, io.EOF) {
		return footer{}, &readError{fmt.Errorf("segfile: %s: %w", o.name, err)}
	}
	return readFooter(b[:n], s.length, o.hdr.Salt, o.hdr.Base, s.end)
}

// Name is the file's name, Meta what its header says.
func (r *Reader) Name() string { return r.name }
func (r *Reader) Meta() Meta   { return r.hdr.Meta }

// File is the file, for reads of the caller's own. A Reader of a Writer opens it when
// it is first needed.
func (r *Reader) File() (disk.File, error) {
	if f := r.f.Load(); f != nil {
		return *f, nil
	}
	r.opening.Lock()
	defer r.opening.Unlock()
	if f := r.f.Load(); f != nil {
		return *f, nil
	}
	if r.closed {
		return nil, fmt.Errorf("segfile: %s: %w", r.name, disk.ErrClosed)
	}
	f, err := r.d.Open(r.name, true)
	if err != nil {
		return nil, fmt.Errorf("segfile: read a fenced segment: %w", err)
	}
	r.f.Store(&f)
	return f, nil
}

// Latch is what the file's latch says.
func (r *Reader) Latch() fence.Latch { return r.latch }

// End is where the segment ends, and whether it is fenced there: always, unless
// the Reader comes from [Verdict.Open].
func (r *Reader) End() (end fence.End, fenced bool) {
	return r.end, r.latch.State() != fence.Open
}

// Table is what the range knows of its producers at the segment's end. It is nil
// when the start mark was damaged: that is not knowing, never an empty table. The
// caller clones it before changing it.
func (r *Reader) Table() *ProducerTable { return r.table }

// Times are the smallest and largest time of the records, in ms; false when no
// record has one.
func (r *Reader) Times() (minTime, maxTime int64, ok bool) {
	return r.sums.minTime, r.sums.maxTime, r.sums.minTime > 0
}

// Digest is a hash of the identities of all frames, equal on every replica, and
// how many frames there are.
func (r *Reader) Digest() (digest, frames uint64) { return r.sums.digest, r.sums.frames }

// Faults is what is damaged in the file though it can be read.
func (r *Reader) Faults() []*CorruptError { return r.faults }

// Cut is what recovery set aside behind the end; zero for none.
func (r *Reader) Cut() Cut { return r.cut }

// Holes are the damaged stretches that are on record, those in which somebody
// accepted the loss included.
func (r *Reader) Holes() ([]Hole, error) {
	return r.allHoles()
}

// Find is the position of a frame from which offset can be reached by reading on;
// false when offset lies outside the segment.
func (r *Reader) Find(offset uint64) (pos int64, ok bool) {
	if offset < r.hdr.Base || offset >= r.end.Offset {
		return 0, false
	}
	if e, ok := r.index.find(offset); ok {
		return e.pos, true
	}
	return DataStart, true
}

// FindTime is Find for the first record whose time is ms or later; false when
// there is none.
func (r *Reader) FindTime(ms int64) (pos int64, ok bool) {
	if r.end.Offset == r.hdr.Base || ms > r.sums.maxTime {
		return 0, false
	}
	if e, ok := r.index.findTime(ms); ok {
		return e.pos, true
	}
	return DataStart, true
}

// Close closes the file.
func (r *Reader) Close() error {
	r.opening.Lock()
	defer r.opening.Unlock()
	r.closed = true
	if f := r.f.Load(); f != nil {
		return (*f).Close()
	}
	return nil
}
