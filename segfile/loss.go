package segfile

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"

	"github.com/ringfence/ringfence/fence"
	"github.com/ringfence/ringfence/segfile/disk"
)

// A file <segment>.loss beside a segment lists the holes in it that somebody may
// decide on accepted: readers skip them and say so. Without it they answer an
// error.
//
//	off size field
//	  0    8 magic    "RFlosses"
//	  8    2 version  1
//	 12    4 count    holes
//	 16      holes    32 bytes each, as in a footer
//	       4 crc      CRC-32C of all before it, begun with the segment's salt
//
// and then zeros up to a boundary of 4,096. One hole of no bytes at byte 0 with all
// records of the segment says that the file is missing and was given up ([GiveUp]);
// once a file is there again it says nothing.
const (
	lossMagic   = "RFlosses"
	lossVersion = 1
	lossFixed   = 16
)

// AcceptLoss looks through a fenced segment and puts every stretch of it that
// cannot be read on record as a loss that readers may skip. It answers all such
// stretches. Nothing in the segment's file changes.
func AcceptLoss(d disk.Disk, name string) ([]Hole, error) {
	rep, err := Verify(d, name, nil)
	if err != nil && !errors.Is(err, ErrDamaged) {
		return nil, err
	}
	if rep.Latch.State() == fence.Open {
		return nil, fmt.Errorf("%w: %s", ErrOpen, name)
	}
	if len(rep.Holes) == 0 {
		return nil, nil
	}
	if len(rep.Holes) > maxHoles {
		return nil, fmt.Errorf("segfile: %s: %d damaged stretches are more than a record of losses holds", name, len(rep.Holes))
	}
	for i := range rep.Holes {
		rep.Holes[i].Accepted = true
	}
	return rep.Holes, writeLosses(d, name, rep.Meta.Salt, rep.Holes)
}

// writeLosses puts holes on record beside a segment.
func writeLosses(d disk.Disk, name string, salt uint64, holes []Hole) error {
	b := make([]byte, lossFixed, alignBlock(int64(lossFixed+len(holes)*holeSize+4)))
	copy(b, lossMagic)
	le := binary.LittleEndian
	le.PutUint16(b[8:], lossVersion)
	le.PutUint32(b[12:], uint32(len(holes)))
	for i := range holes {
		b = appendHole(b, &holes[i])
	}
	b = le.AppendUint32(b, saltedCRC(b, salt))
	return writeBeside(d, name+lossSuffix, b[:cap(b)])
}

// missing is the hole that stands for a whole file.
func missing(base, records uint64) Hole { return Hole{Offset: base, Records: records, Accepted: true} }

// GiveUp puts on record that the file of a sealed segment is missing and that all its
// records are lost. An fs.ErrExist when there is a file.
func GiveUp(d disk.Disk, id fence.SegmentID, salt, base, records uint64) error {
	name := Name(id)
	switch f, err := d.Open(name, true); {
	case err == nil:
		return errors.Join(fmt.Errorf("segfile: %s: %w", name, fs.ErrExist), f.Close())
	case !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("segfile: %s: %w", name, err)
	}
	// The directory may have gone with the file.
	if err := errors.Join(d.Mkdir(Dir(id.Range.Topic)), d.SyncDir(topicsDir)); err != nil {
		return fmt.Errorf("segfile: %s: %w", name, err)
	}
	return writeLosses(d, name, salt, []Hole{missing(base, records)})
}

// GivenUp says whether [GiveUp] has put on record that just these records of a segment
// are lost with its file.
func GivenUp(d disk.Disk, id fence.SegmentID, salt, base, records uint64) (bool, error) {
	holes, err := readLosses(d, Name(id), salt)
	return err == nil && len(holes) == 1 && holes[0] == missing(base, records), err
}

// Unlist removes the record of losses of a segment that has no file any more.
func Unlist(d disk.Disk, id fence.SegmentID) error {
	if err := d.Remove(Name(id) + lossSuffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("segfile: %w", err)
	}
	return nil
}

// writeBeside puts b under a name, all of it or nothing.
func writeBeside(d disk.Disk, name string, b []byte) error {
	tmp := name + ".tmp"
	if err := d.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("segfile: %s: %w", name, err)
	}
	f, err := d.Create(tmp)
	if err != nil {
		return fmt.Errorf("segfile: %s: %w", name, err)
	}
	err = f.WriteAt(b, 0)
	err = errors.Join(err, f.Close())
	if err == nil {
		err = d.Rename(tmp, name)
	}
	if err == nil {
		err = d.SyncDir(path.Dir(name))
	}
	if err != nil {
		return fmt.Errorf("segfile: %s: %w", name, err)
	}
	return nil
}

func appendHole(b []byte, h *Hole) []byte {
	le := binary.LittleEndian
	b = le.AppendUint64(b, uint64(h.Position))
	b = le.AppendUint64(b, uint64(h.Length))
	b = le.AppendUint64(b, h.Offset)
	return le.AppendUint64(b, h.Records)
}

func readHole(b []byte) Hole {
	le := binary.LittleEndian
	return Hole{Position: int64(le.Uint64(b)), Length: int64(le.Uint64(b[8:])), Offset: le.Uint64(b[16:]), Records: le.Uint64(b[24:])}
}

// losses reads the losses accepted in a segment's file; none when there is no such
// record.
func losses(d disk.Disk, name string, salt, base uint64, end fence.End) ([]Hole, error) {
	holes, err := readLosses(d, name, salt)
	if err != nil || len(holes) == 1 && holes[0] == missing(holes[0].Offset, holes[0].Records) {
		return nil, err
	}
	if err := checkHoles(holes, base, end); err != nil {
		return nil, &CorruptError{File: name + lossSuffix, Reason: err.Error()}
	}
	return holes, nil
}

// readLosses reads what is on record beside a segment, as it is.
func readLosses(d disk.Disk, name string, salt uint64) ([]Hole, error) {
	f, err := d.Open(name+lossSuffix, true)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	size, err := f.Size()
	if err != nil {
		return nil, err
	}
	bad := func(why string) ([]Hole, error) {
		return nil, &CorruptError{File: name + lossSuffix, Reason: why}
	}
	if size > alignBlock(lossFixed+maxHoles*holeSize+4) || size < block {
		return bad("no record of losses")
	}
	b := make([]byte, size)
	if _, err := f.ReadAt(b, 0); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	n := int64(binary.LittleEndian.Uint32(b[12:]))
	at := lossFixed + n*holeSize
	if string(b[:8]) != lossMagic || binary.LittleEndian.Uint16(b[8:]) != lossVersion || at+4 > size {
		return bad("no record of losses")
	}
	if binary.LittleEndian.Uint32(b[at:]) != saltedCRC(b[:at], salt) {
		return bad("checksum does not match")
	}
	var holes []Hole
	for i := range n {
		h := readHole(b[lossFixed+i*holeSize:])
		h.Accepted = true
		holes = append(holes, h)
	}
	return holes, nil
}

// markAccepted marks the holes that lie in an accepted one, and the faults that go
// with them: what is in such a hole, the padding before it where the file was cut,
// and the footer where the file was lost up to its end.
func markAccepted(accepted, holes []Hole, faults []*CorruptError, end fence.End) {
	for i := range holes {
		h := &holes[i]
		h.Accepted = h.Accepted || slices.ContainsFunc(accepted, func(a Hole) bool {
			return a.Position <= h.Position && h.Position+h.Length <= a.Position+a.Length &&
				a.Offset <= h.Offset && h.Offset+h.Records <= a.Offset+a.Records
		})
	}
	for _, f := range faults {
		if slices.ContainsFunc(holes, func(h Hole) bool {
			return !h.Accepted && h.Position <= f.Byte && f.Byte < h.Position+h.Length
		}) {
			continue
		}
		f.Accepted = slices.ContainsFunc(accepted, func(a Hole) bool {
			to := a.Position + a.Length
			return a.Position <= f.Byte && f.Byte < to ||
				f.Byte > DataStart && alignBlock(f.Byte) == a.Position ||
				f.Byte >= end.Position && to == end.Position
		})
	}
}

// Losses are the Holes and what was accepted as lost beside them, with the Faults
// that go with an accepted loss marked. settled says that nothing but accepted losses
// makes the file a damaged one.
func (v *Verdict) Losses() (holes []Hole, settled bool, err error) {
	if v.refusal != nil || v.Latch.State() == fence.Open {
		return v.Holes, false, nil
	}
	accepted, err := losses(v.d, v.Name, v.hdr.Salt, v.hdr.Base, v.End)
	if err != nil {
		return v.Holes, false, err
	}
	holes = joinHoles(accepted, v.Holes)
	markAccepted(accepted, holes, v.Faults, v.End)
	settled = len(accepted) > 0 &&
		!slices.ContainsFunc(holes, func(h Hole) bool { return !h.Accepted && h.Records > 0 }) &&
		!slices.ContainsFunc(v.Faults, func(f *CorruptError) bool { return !f.Accepted })
	return holes, settled, nil
}

// allHoles joins the holes in the footer with those on record as accepted.
func (r *Reader) allHoles() ([]Hole, error) {
	all, err := losses(r.d, r.name, r.hdr.Salt, r.hdr.Base, r.end)
	if err != nil {
		return nil, err
	}
	return joinHoles(all, r.holes), nil
}

// joinHoles adds the holes on record to the accepted ones, in the order of the file.
func joinHoles(accepted, holes []Hole) []Hole {
	all := slices.Clone(accepted)
	for _, h := range holes {
		if !slices.ContainsFunc(all, func(a Hole) bool { return a.Position <= h.Position && h.Position < a.Position+a.Length }) {
			all = append(all, h)
		}
	}
	slices.SortFunc(all, func(a, b Hole) int { return int(min(max(a.Position-b.Position, -1), 1)) })
	return all
}
