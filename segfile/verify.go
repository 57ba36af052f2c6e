package segfile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/ringfence/ringfence/fence"
	"github.com/ringfence/ringfence/segfile/disk"
)

// Report is what [Verify] found.
type Report struct {
	Name  string
	Meta  Meta
	State State
	Latch fence.Latch
	End   fence.End

	FileSize int64
	Frames   uint64 // with records, whole
	Records  uint64 // in them
	Marks    uint64
	Voids    uint64 // frames that stand for records that were not stored
	Voided   uint64 // offsets in them
	Bytes    uint64 // of frames with records and of void ones, without padding
	Digest   uint64 // of their identities
	Slack    int64  // bytes behind the footer of a fenced file, which may be given back

	// Cut is the incomplete end of an open file, or what was set aside of a fenced
	// one: no damage, but reported.
	Cut Cut
	// Holes are all stretches without a readable frame.
	Holes []Hole
	// Problems says of each damage where and what it is, in the order of the file.
	Problems []*CorruptError
}

// Verify reads all of a file that matters: header, latch slots, every frame with
// its payload, padding, and the footer, which must be the one that the frames
// give. The error is the first of the Problems that nobody accepted the loss of, or
// says why the file could not be read or is no segment. progress, if not nil, hears after every stretch how many
// bytes are done; an error from it ends the verification.
func Verify(d disk.Disk, name string, progress func(done, total int64) error) (Report, error) {
	v, err := Recover(d, name)
	if err != nil {
		return Report{Name: name}, err
	}
	rep := Report{Name: name, Meta: v.Meta, State: v.State, Latch: v.Latch, End: v.End, Cut: v.Cut}
	if v.refusal != nil {
		rep.Problems = v.Faults
		return rep, v.refusal
	}
	o, err := openFile(d, name, true)
	if err != nil {
		return rep, err
	}
	defer o.close()
	rep.FileSize = o.size
	s := &scrub{v: v, o: o, rep: &rep, progress: progress}
	s.head()
	if err := s.frames(); err != nil {
		return rep, err
	}
	if v.Latch.State() != fence.Open {
		if err := s.footer(); err != nil {
			return rep, err
		}
	} else if why := o.shortened(); why != "" {
		s.problem(o.size, why)
	}
	rep.Bytes, rep.Digest = s.tally.bytes, s.tally.digest
	if len(rep.Problems) > 0 {
		if rep.State == Clean || rep.State == Torn {
			rep.State = Damaged
		}
		return rep, rep.judge(d)
	}
	return rep, nil
}

// judge tells the damage whose loss was accepted from what is left.
func (rep *Report) judge(d disk.Disk) error {
	if rep.Latch.State() != fence.Open {
		accepted, err := losses(d, rep.Name, rep.Meta.Salt, rep.Meta.Base, rep.End)
		var bad *CorruptError
		switch {
		case errors.As(err, &bad):
			rep.Problems = append(rep.Problems, bad)
		case err != nil:
			return fmt.Errorf("segfile: %s: %w", rep.Name, err)
		}
		markAccepted(accepted, rep.Holes, rep.Problems, rep.End)
	}
	for _, p := range rep.Problems {
		if !p.Accepted {
			return p
		}
	}
	return nil
}

// scrub is one verification.
type scrub struct {
	v        *Verdict
	o        *opened
	rep      *Report
	progress func(done, total int64) error
	told     int64
	tally    tally
	framesOK bool
}

func (s *scrub) problem(at int64, why string) {
	s.rep.Problems = append(s.rep.Problems, &CorruptError{File: s.rep.Name, Byte: at, Reason: why})
}

// head checks header and latch slots. They were judged when the file was opened;
// what is left is to say which byte it was.
func (s *scrub) head() {
	want := make([]byte, block)
	s.o.hdr.put(want)
	if i := firstDifference(want, s.o.blocks[:block]); i >= 0 {
		s.problem(int64(i), s.o.why)
	}
	for _, f := range s.o.slots.faults(s.rep.Name) {
		if i := s.slotByte(f.Byte); i > 0 {
			f.Byte = i
		}
		s.rep.Problems = append(s.rep.Problems, f)
	}
}

// slotByte is the first wrong byte of a damaged latch slot, as far as another slot
// or emptiness tells.
func (s *scrub) slotByte(at int64) int64 {
	have := s.o.blocks[at : at+block]
	want := make([]byte, block)
	if good, ok := s.o.slots.fenced(); ok && at != slotC {
		good.put(want, map[int64]byte{slotA: 'A', slotB: 'B'}[at], s.o.hdr.Salt)
	}
	return at + int64(max(firstDifference(want, have), 0))
}

// frames reads every frame up to the end, and the padding between them.
func (s *scrub) frames() error {
	if err := s.o.readStart(); err != nil {
		return err
	}
	if !s.o.hasMark {
		s.problem(DataStart, "the start mark does not hold the header and a producer table")
	}
	s.tally = tally{next: s.o.hdr.Base, table: s.o.table}
	s.framesOK = s.o.hasMark
	end, pos, holes := s.v.End, int64(DataStart), s.v.Holes
	partial := s.v.Cut.Length > 0 || s.v.Latch.State() == fence.Settled
	r := &recovery{v: &Verdict{Name: s.rep.Name}, o: s.o, win: s.o.win, salt: s.o.hdr.Salt, one: true}
	for pos < end.Position && (s.tally.next < end.Offset || len(holes) > 0 || !partial) {
		if len(holes) > 0 && holes[0].Position == pos {
			if holes[0].Records > 0 || s.v.fault(pos) || end.Offset == s.o.hdr.Base {
				s.problem(pos, fmt.Sprintf("a hole of %d records is on record", holes[0].Records))
			}
			s.rep.Holes = append(s.rep.Holes, holes[0])
			s.framesOK = s.framesOK && holes[0].Records == 0 // what was in it is in the footer alone
			s.tally.skip(&holes[0])
			pos += holes[0].Length
			holes = holes[1:]
			continue
		}
		limit := end
		if len(holes) > 0 {
			limit = fence.End{Offset: holes[0].Offset, Position: holes[0].Position}
		}
		next, err := s.frame(r, pos, limit)
		if err != nil {
			return err
		}
		if err := s.tell(next - pos); err != nil {
			return err
		}
		pos = next
	}
	if s.tally.next != end.Offset || s.tally.bytes != end.Bytes && s.framesOK {
		s.problem(end.Position, fmt.Sprintf("the frames end at offset %d with %d bytes, the segment at %+v", s.tally.next, s.tally.bytes, end))
	}
	return nil
}

// fault says whether recovery found damage at a place.
func (v *Verdict) fault(at int64) bool {
	return slices.ContainsFunc(v.Faults, func(f *CorruptError) bool { return f.Byte == at })
}

// frame checks what lies at pos and says where the next thing is.
func (s *scrub) frame(r *recovery, pos int64, end fence.End) (next int64, err error) {
	r.restart(pos, s.tally.next)
	h, ok, err := r.valid()
	if err != nil {
		return 0, err
	}
	if ok && pos+int64(h.FrameLen) <= end.Position && h.Next() <= end.Offset {
		if ok, err = s.o.win.whole(pos, &h); err != nil {
			return 0, err
		}
		if next, err = s.o.win.after(pos, &h); err != nil {
			return 0, err
		}
		next = min(next, end.Position)
		if !ok && !h.Lent() {
			s.problem(pos, "the frame's payload does not match its checksum")
			s.hole(Hole{Position: pos, Length: next - pos, Offset: s.tally.next, Records: uint64(h.Count)})
			s.tally.next = h.Next()
			return next, nil
		}
		switch {
		case !ok: // its head counts as any other's
			s.problem(pos, fmt.Sprintf("the payload of a lent frame does not match its checksum: its producer changed it while it was written, or it was damaged since; reads skip its %d records, and go on behind it", h.Count))
			s.rep.Holes = append(s.rep.Holes, Hole{Position: pos, Length: next - pos, Offset: h.Base, Records: uint64(h.Count), Lent: true})
		case h.Mark():
			s.rep.Marks++
		case h.Void():
			s.rep.Voids++
			s.rep.Voided += uint64(h.Count)
		default:
			s.rep.Frames++
			s.rep.Records += uint64(h.Count)
		}
		s.tally.add(pos, &h)
		if s.tally.next == end.Offset && s.v.Cut.Length > 0 {
			return next, nil // what shares its block was cut off
		}
		from := pos + int64(h.FrameLen)
		if next, err = s.following(r, alignFrame(from), next, end); err != nil {
			return 0, err
		}
		if !ok {
			s.rep.Holes[len(s.rep.Holes)-1].Length = next - pos
		}
		return next, s.zeros(from, next, "padding behind a frame is not zero")
	}
	return s.skip(r, pos, end)
}

// following is where the frame behind one that ends at due starts: at next, or at due
// if it is missing and was taken for padding.
func (s *scrub) following(r *recovery, due, next int64, end fence.End) (int64, error) {
	if due >= next || s.tally.next >= end.Offset {
		return next, nil
	}
	r.restart(next, s.tally.next)
	if next < end.Position {
		_, ok, err := r.valid()
		if err != nil || ok {
			return next, err
		}
	}
	r.due = due
	err := r.back(true)
	return r.pos, err
}

// skip looks for the next valid frame behind damage at pos.
func (s *scrub) skip(r *recovery, pos int64, end fence.End) (next int64, err error) {
	why := "no valid frame"
	if _, perr := s.o.win.head(pos, r.salt); perr != nil {
		if isRead(perr) {
			return 0, perr
		}
		why = perr.Error()
	}
	s.problem(pos, why)
	g := sight{}
	if err := r.search(&g, alignFrame(pos+1), end.Position); err != nil {
		return 0, err
	}
	h := Hole{Position: pos, Length: end.Position - pos, Offset: s.tally.next, Records: end.Offset - s.tally.next}
	if g.behind && g.first.pos < end.Position && g.first.head.Base <= end.Offset {
		h.Length, h.Records = g.first.pos-pos, g.first.head.Base-s.tally.next
	}
	s.hole(h)
	s.tally.next += h.Records
	return pos + h.Length, nil
}

func (s *scrub) hole(h Hole) {
	s.framesOK = false
	s.rep.Holes = append(s.rep.Holes, h)
}

// zeros checks that [from, to) is zero.
func (s *scrub) zeros(from, to int64, why string) error {
	for from < to {
		b, err := s.o.win.some(from)
		if err != nil {
			return err
		}
		if len(b) == 0 {
			s.problem(from, "the file ends before the segment does")
			return nil
		}
		b = b[:min(int64(len(b)), to-from)]
		if i := firstNonZero(b); i >= 0 {
			s.problem(from+int64(i), why)
			return nil
		}
		from += int64(len(b))
	}
	return nil
}

// footer checks the footer: by its checksum, and byte for byte against the one
// that the frames give.
func (s *scrub) footer() error {
	c, ok := s.o.slots.current()
	if !ok {
		return nil
	}
	s.rep.Slack = max(s.o.size-alignBlock(c.footer+c.length), 0)
	have := make([]byte, alignBlock(c.length))
	n, err := s.o.f.ReadAt(have, c.footer)
	if err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("segfile: %s: %w", s.rep.Name, err)
	}
	have = have[:n]
	_, ferr := readFooter(have, c.length, s.o.hdr.Salt, s.o.hdr.Base, c.end)
	if !s.framesOK {
		if ferr != nil {
			s.problem(c.footer, ferr.Error())
		}
		return nil
	}
	f := s.tally.footer(s.o.hdr.Base, c.end.Position, s.v.Holes, s.v.Cut)
	want, _ := f.encode(s.o.hdr.Salt)
	if i := firstDifference(want, have); i >= 0 {
		why := "the footer is not the one that the frames give"
		if ferr != nil {
			why = ferr.Error()
		}
		s.problem(c.footer+int64(i), why)
	}
	return nil
}

// tell counts bytes done.
func (s *scrub) tell(n int64) error {
	s.told += n
	if s.progress == nil {
		return nil
	}
	return s.progress(s.told, s.v.End.Position-DataStart)
}

// firstDifference is the index of the first byte in which a and b differ, or -1.
func firstDifference(a, b []byte) int {
	if bytes.Equal(a, b) {
		return -1
	}
	n := min(len(a), len(b))
	for i := range n {
		if a[i] != b[i] {
			return i
		}
	}
	return n
}
