package segfile

import (
	"errors"
	"fmt"
	"slices"

	"github.com/ringfence/ringfence/fence"
	"github.com/ringfence/ringfence/segfile/disk"
)

// Fence closes a recovered copy for good, at the end that was found. Bytes that were cut
// off stay where they are: the footer goes behind them. If the copy is fenced already, a
// lost slot of the latch is written again. After a crash at any time, another Recover finds
// the same end.
func (v *Verdict) Fence(now int64, fenceID uint64) (fence.Latch, error) {
	if v.refusal != nil {
		return v.Latch, v.refusal
	}
	f, err := v.d.Open(v.Name, false)
	if err != nil {
		return v.Latch, err
	}
	defer f.Close()
	if v.Latch.State() != fence.Open {
		return v.Latch, v.mend(f)
	}
	latch, err := v.Latch.Fence(v.End, fenceID, now)
	if err != nil {
		return v.Latch, fmt.Errorf("segfile: %s: %w", v.Name, err)
	}
	ft := v.tally.footer(v.hdr.Base, v.End.Position, v.Holes, v.Cut)
	s := slot{end: v.End, fenceID: fenceID, at: now, footer: v.footerAt}
	if _, err := writeFence(f, &ft, s, v.hdr.Salt); err != nil {
		return v.Latch, err
	}
	v.Latch = latch
	return latch, nil
}

// mend writes the one of the slots A and B that is not valid from the other one, which it
// never touches.
func (v *Verdict) mend(f disk.File) error {
	good, ok := v.slots.fenced()
	if !ok {
		return nil // a settlement alone says where the file ends
	}
	for _, x := range []struct {
		state  *slotState
		letter byte
		at     int64
	}{{&v.slots.sa, 'A', slotA}, {&v.slots.sb, 'B', slotB}} {
		if *x.state == slotValid {
			continue
		}
		if err := good.write(f, x.letter, x.at, v.hdr.Salt); err != nil {
			return err
		}
		*x.state = slotValid
	}
	return nil
}

// write makes one slot of a file durable.
func (s *slot) write(f disk.File, letter byte, at int64, salt uint64) error {
	b := make([]byte, block)
	s.put(b, letter, salt)
	if err := f.WriteAt(b, at); err != nil {
		return fmt.Errorf("segfile: latch: %w", err)
	}
	return nil
}

// RenewLatch writes the latch of a fenced file again as it reads now. It may not be durable:
// the write that made it may have failed, or been under way when a process was killed. Only
// after RenewLatch may anybody count on the fence. One slot is written after the other, so
// that a crash leaves one of them whole.
func RenewLatch(d disk.Disk, name string) error {
	o, err := openSound(d, name)
	if err != nil {
		return err
	}
	defer o.close()
	s, ok := o.slots.fenced()
	if !ok {
		return fmt.Errorf("%w: %s", ErrOpen, name)
	}
	if err := s.write(o.f, 'A', slotA, o.hdr.Salt); err != nil {
		return err
	}
	return s.write(o.f, 'B', slotB, o.hdr.Salt)
}

// Trim gives back the blocks behind the footer of a fenced copy. It may take long.
func Trim(d disk.Disk, name string) error {
	o, err := openSound(d, name)
	if err != nil {
		return err
	}
	defer o.close()
	s, ok := o.slots.current()
	if !ok {
		return fmt.Errorf("%w: %s", ErrOpen, name)
	}
	return trim(o.f, alignBlock(s.footer+s.length))
}

// openSound opens a segment's file for changes, if it can be used as a segment.
func openSound(d disk.Disk, name string) (*opened, error) {
	o, err := openFile(d, name, false)
	if err != nil {
		return nil, err
	}
	if err := o.refuse(); err != nil {
		o.close()
		return nil, err
	}
	return o, nil
}

// replay is a recovery that follows the frames of a fenced file again, up to an offset. A
// fence closes only what is durable, so payloads are not looked at.
func (o *opened) replay(s slot, stop uint64) (*recovery, error) {
	if err := o.readStart(); err != nil {
		return nil, err
	}
	v := &Verdict{Name: o.name, tally: tally{next: o.hdr.Base, table: o.table}}
	return &recovery{v: v, o: o, win: o.win, salt: o.hdr.Salt, pos: DataStart, next: o.hdr.Base, durable: s.end.Position, stop: stop}, nil
}

// rebuild makes the footer of a fenced file again from its frame heads, taking what cannot
// be read for a hole.
func (o *opened) rebuild(s slot) (footer, error) {
	r, err := o.replay(s, s.end.Offset)
	if err != nil {
		return footer{}, err
	}
	r.one = true
	v, size := r.v, o.size
	defer func() { o.size, o.win.size = size, size }()
	o.size = min(o.size, s.end.Position)
	o.win.size = o.size
	for {
		if err := r.chain(); err != nil {
			return footer{}, err
		}
		if r.next >= s.end.Offset {
			break
		}
		if err := r.back(true); err != nil {
			return footer{}, err
		}
		g := sight{}
		if err := r.search(&g, alignFrame(r.pos)+64, s.end.Position); err != nil {
			return footer{}, err
		}
		h := Hole{Position: r.pos, Length: s.end.Position - r.pos, Offset: r.next, Records: s.end.Offset - r.next}
		if g.behind && g.first.head.Base < s.end.Offset {
			h.Length, h.Records = g.first.pos-r.pos, g.first.head.Base-r.next
			r.restart(g.first.pos, g.first.head.Base)
		} else {
			r.restart(s.end.Position, s.end.Offset)
		}
		v.tally.skip(&h)
		v.Holes = append(v.Holes, h)
	}
	cut := Cut{}
	if s.footer > s.end.Position && o.slots.sc != slotValid {
		cut = Cut{Position: s.end.Position, Length: s.footer - s.end.Position}
	}
	f := v.tally.footer(o.hdr.Base, s.end.Position, v.Holes, cut)
	f.end.Bytes = v.tally.bytes
	return f, nil
}

// RepairHeader writes the header of a file again, from the copy in its start mark, when it
// is damaged: the same bytes. A crash in it leaves the header damaged, as it was.
func RepairHeader(d disk.Disk, name string) error {
	o, err := openFile(d, name, false)
	if err != nil {
		return err
	}
	defer o.close()
	if o.verd != fileRestored {
		return o.refuse()
	}
	b := make([]byte, block)
	o.hdr.put(b)
	if err := o.f.WriteAt(b, 0); err != nil {
		return fmt.Errorf("segfile: header: %w", err)
	}
	return nil
}

// RepairFooter writes the footer of a fenced file again, from its frames, when it
// is damaged and nothing else is: the same bytes, because nothing but the frames
// goes into it. A crash in it leaves the footer damaged, as it was.
func RepairFooter(d disk.Disk, name string) error {
	o, err := openSound(d, name)
	if err != nil {
		return err
	}
	defer o.close()
	s, ok := o.slots.current()
	if !ok {
		return fmt.Errorf("%w: %s", ErrOpen, name)
	}
	_, err = o.footer(s)
	if err == nil || isRead(err) {
		return err
	}
	f, err := o.rebuild(s)
	if err != nil {
		return err
	}
	b, n := f.encode(o.hdr.Salt)
	if n != s.length || len(f.holes) > 0 || f.end != s.end {
		return &CorruptError{File: name, Byte: s.footer, Reason: "the footer is damaged, and the frames do not give it back"}
	}
	if err := o.f.WriteAt(b, s.footer); err != nil {
		return fmt.Errorf("segfile: footer: %w", err)
	}
	return nil
}

// Settle cuts a fenced copy, once, to the lower end that the control plane recorded for the
// segment; a frame must end there. It writes a new footer behind the old one, then slot C.
// A crash before slot C leaves the copy as it was fenced.
func Settle(d disk.Disk, name string, end uint64, now int64, fenceID uint64) (fence.Latch, error) {
	o, err := openSound(d, name)
	if err != nil {
		return fence.Latch{}, err
	}
	defer o.close()
	latch, err := o.slots.latch(o.hdr.Base)
	if err != nil {
		return latch, &CorruptError{File: name, Byte: slotA, Reason: err.Error()}
	}
	if latch.State() == fence.Open {
		return latch, fmt.Errorf("segfile: %s: %w", name, fence.ErrNotFenced)
	}
	if have, _ := latch.End(); have.Offset == end {
		return latch, nil
	}
	s, _ := o.slots.current()
	if latch.State() == fence.Settled || end > s.end.Offset {
		_, err := latch.Settle(fence.End{Offset: end, Position: s.end.Position, Bytes: s.end.Bytes}, now)
		return latch, fmt.Errorf("segfile: %s: %w", name, err)
	}
	f, err := o.prefix(s, end)
	if err != nil {
		return latch, err
	}
	settled, err := latch.Settle(f.end, now)
	if err != nil {
		return latch, fmt.Errorf("segfile: %s: %w", name, err)
	}
	b, n := f.encode(o.hdr.Salt)
	c := slot{end: f.end, fenceID: fenceID, at: now, footer: alignBlock(s.footer + s.length)}
	c.lead(b[:n])
	if err := o.f.WriteAt(b, c.footer); err != nil {
		return latch, fmt.Errorf("segfile: footer: %w", err)
	}
	blk := make([]byte, block)
	c.put(blk, 'C', o.hdr.Salt)
	if err := o.f.WriteAt(blk, slotC); err != nil {
		return latch, fmt.Errorf("segfile: latch: %w", err)
	}
	return settled, nil
}

// prefix is the footer of a fenced file as if it ended at offset.
func (o *opened) prefix(s slot, offset uint64) (footer, error) {
	if offset < o.hdr.Base {
		return footer{}, fmt.Errorf("segfile: %s: %w: %d is below %d", o.name, fence.ErrBelowBase, offset, o.hdr.Base)
	}
	old, err := o.footer(s)
	if err != nil {
		return footer{}, errors.Join(&CorruptError{File: o.name, Byte: s.footer, Reason: "the footer"}, err)
	}
	r, err := o.replay(s, offset)
	if err != nil {
		return footer{}, err
	}
	v := r.v
	if offset == o.hdr.Base {
		return v.tally.footer(o.hdr.Base, DataStart, nil, Cut{}), nil
	}
	for {
		if err := r.chain(); err != nil {
			return footer{}, err
		}
		if r.next >= offset {
			break
		}
		i := slices.IndexFunc(old.holes, func(h Hole) bool { return h.Position == r.pos })
		if i < 0 {
			return footer{}, &CorruptError{File: o.name, Byte: r.pos, Reason: "no valid frame where one was fenced"}
		}
		h := old.holes[i]
		r.restart(h.Position+h.Length, h.Offset+h.Records)
		v.tally.skip(&h)
		r.tail = r.pos
	}
	if r.next != offset {
		return footer{}, fmt.Errorf("%w: %s: %d", ErrBoundary, o.name, offset)
	}
	end := alignBlock(r.tail)
	holes := slices.DeleteFunc(old.holes, func(h Hole) bool { return h.Position >= r.tail })
	return v.tally.footer(o.hdr.Base, end, holes, Cut{}), nil
}
