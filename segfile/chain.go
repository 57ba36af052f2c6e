package segfile

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/ringfence/ringfence/fence"
	"github.com/ringfence/ringfence/segfile/record"
)

// located is a frame head and where it lies.
type located struct {
	pos  int64
	head record.Head
}

// walk recovers an open file.
func (v *Verdict) walk(o *opened) error {
	r := &recovery{v: v, o: o, win: o.win, salt: o.hdr.Salt, pos: DataStart, next: o.hdr.Base}
	v.tally = tally{next: o.hdr.Base}
	if err := o.readStart(); err != nil {
		return err
	}
	if why := o.shortened(); why != "" {
		v.damage(o.size, why)
	}
	// The start mark was durable before the file had its name, whatever it says.
	r.durable = DataStart + block
	if o.hasMark {
		v.tally.table = o.table
		r.durable = DataStart + alignBlock(int64(o.mark.FrameLen))
		if err := r.resume(r.durable); err != nil {
			return err
		}
		if r.blind { // it was durable before the file had its name, too
			v.damage(r.durable, "the pointer is damaged: it does not say any more how far the file reached")
		}
	} else {
		v.damage(DataStart, "the start mark is damaged: what the range knew of its producers is not known")
		if err := r.noStart(); err != nil {
			return err
		}
	}
	v.Start = r.pos
	for {
		if err := r.chain(); err != nil {
			return err
		}
		bad, err := r.settle()
		if err != nil {
			return err
		}
		s, err := r.look(bad)
		if err != nil {
			return err
		}
		done, err := r.decide(bad, s)
		if err != nil || done {
			v.Table, v.Durable = v.tally.table, r.durable
			if err == nil && r.blind && o.hasMark && v.End.Offset == o.hdr.Base {
				v.unknown()
			}
			return err
		}
	}
}

// unknown records the lost pointer as a hole, for the footer of the file: without it nothing
// would show that records may have been lost, because none is left.
func (v *Verdict) unknown() {
	v.Holes = append(v.Holes, Hole{Position: v.End.Position, Length: block, Offset: v.End.Offset})
	v.End.Position += block
	v.footerAt = max(v.footerAt, v.End.Position)
	if v.Cut.Length > 0 {
		v.Cut.Position, v.Cut.Length = v.End.Position, v.Cut.Length-block
	}
	if v.Cut.Length <= 0 {
		v.Cut = Cut{}
	}
}

// shortened says that an open file is shorter than it was when it was made, which only
// somebody else can have done; "" if it is not.
func (o *opened) shortened() string {
	if o.size >= o.hdr.blocks {
		return ""
	}
	return fmt.Sprintf("the file ends here, and was %d bytes long when it was made", o.hdr.blocks)
}

// recovery follows the chain of frames of a file.
type recovery struct {
	v    *Verdict
	o    *opened
	win  *window
	salt uint64

	pos     int64     // of the frame that is next
	due     int64     // where it was expected, before what looked like padding
	next    uint64    // its base offset
	durable int64     // the highest durable position seen
	lag     int64     // the furthest a frame's end was from its durable position
	longest int64     // frame seen
	proof   proof     // what the pointer says to be durable
	step    int64     // after which it is moved
	blind   bool      // the pointer cannot be read: nothing says how far the file reached
	pending []located // frames in the chain that end behind durable
	tail    int64     // end of the last frame with records that was taken, unaligned
	stop    uint64    // records from this offset on are not part of the segment; 0 = all are
	one     bool      // the first frame behind damage is all that is looked for
}

// noStart steps over a damaged start mark whose header still says how long it is.
func (r *recovery) noStart() error {
	r.blind = true
	h, ok, err := r.valid()
	if err != nil || !ok || !h.Mark() {
		return err
	}
	next, err := r.win.after(r.pos, &h)
	if err != nil {
		return err
	}
	r.v.Holes = append(r.v.Holes, Hole{Position: r.pos, Length: next - r.pos, Offset: r.next})
	r.restart(next, r.next)
	return nil
}

// valid reads the head at pos if it can be the chain's next.
func (r *recovery) valid() (record.Head, bool, error) {
	if r.pos >= r.o.size {
		return record.Head{}, false, nil
	}
	h, err := r.win.head(r.pos, r.salt)
	switch {
	case isRead(err):
		return h, false, err
	case err != nil:
		return h, false, newer(r.v.Name, r.pos, err)
	case h.Base != r.next, h.Durable > r.pos, r.pos+int64(h.FrameLen) > r.o.size:
		return h, false, nil
	case r.stop != 0 && h.Base >= r.stop && !h.Mark():
		return h, false, nil
	}
	return h, true, nil
}

// chain follows heads until one is not valid.
func (r *recovery) chain() error {
	for {
		h, ok, err := r.valid()
		if err != nil {
			return err
		}
		if !ok {
			return r.back(false)
		}
		r.prove(h.Durable)
		if r.blind && h.Mark() && h.PayloadLen == pointerLen { // it lies behind a start mark that does not say where it ends
			if _, ok, err := r.pointed(r.pos); err != nil {
				return err
			} else if ok {
				r.blind = false
			}
		}
		end := r.pos + int64(h.FrameLen)
		r.lag, r.longest = max(r.lag, end-h.Durable), max(r.longest, int64(h.FrameLen))
		r.pending = append(r.pending, located{r.pos, h})
		if end <= r.durable {
			r.commit(len(r.pending))
		}
		r.due = alignFrame(end)
		if r.pos, err = r.win.after(r.pos, &h); err != nil {
			return err
		}
		r.next = h.Next()
	}
}

// back moves pos back to where the frame of offset next was expected, if it must have
// started there: the next block starts with a later frame; or, if the file is closed, that
// block starts with no header at all and what looked like padding is not all zeros. So a
// frame whose header was turned to zeros inside a block is not taken for padding. If the
// zeros reach beyond the end of the block, nobody can tell, and damage is named from the next
// block on: that is how storage loses things. In an open file the bytes behind a break may be
// anything, so only a later frame is proof.
func (r *recovery) back(closed bool) error {
	if r.due == 0 || r.due >= r.pos {
		return nil
	}
	b, err := r.win.get(r.due, int(r.pos-r.due)+record.HeaderSize)
	if err != nil {
		return &readError{err}
	}
	n := min(int(r.pos-r.due), len(b))
	h, _ := r.trace(b[n:])
	switch {
	case h != nil && h.Base > r.next:
	case closed && h == nil && !bytes.HasPrefix(b[n:], []byte(frameMagic)) && !isZero(b[:n]):
	default:
		return nil
	}
	r.pos = r.due
	return nil
}

// prove takes note of a durable position, and commits all frames that end before it.
func (r *recovery) prove(durable int64) {
	if durable <= r.durable {
		return
	}
	r.durable = durable
	n := 0
	for n < len(r.pending) && r.pending[n].pos+int64(r.pending[n].head.FrameLen) <= durable {
		n++
	}
	r.commit(n)
}

// commit takes the first n pending frames for good.
func (r *recovery) commit(n int) {
	for i := range r.pending[:n] {
		p := &r.pending[i]
		r.v.tally.add(p.pos, &p.head)
		if !p.head.Mark() {
			r.tail = p.pos + int64(p.head.FrameLen)
		}
	}
	r.pending = append(r.pending[:0], r.pending[n:]...)
}

// settle checks the payloads of the frames that nothing proves to have been durable, in
// order. The chain breaks at the first one that is not whole.
func (r *recovery) settle() (bad *located, err error) {
	for i := range r.pending {
		p := &r.pending[i]
		ok, err := r.win.whole(p.pos, &p.head)
		if err != nil {
			return nil, err
		}
		if !ok {
			b := *p
			r.commit(i)
			r.restart(b.pos, b.head.Base)
			return &b, nil
		}
		rough, err := r.rough(p)
		if err != nil {
			return nil, err
		}
		if rough {
			end, next := alignFrame(p.pos+int64(p.head.FrameLen)), p.head.Next()
			r.commit(i + 1)
			r.restart(end, next)
			return nil, nil
		}
	}
	r.commit(len(r.pending))
	return nil, nil
}

// restart forgets what was read behind pos.
func (r *recovery) restart(pos int64, next uint64) {
	r.pending = r.pending[:0]
	r.pos, r.due, r.next = pos, pos, next
}

// rough says whether the rest of the block behind a frame begins like padding but is not all
// zeros.
func (r *recovery) rough(p *located) (bool, error) {
	end := alignFrame(p.pos + int64(p.head.FrameLen))
	next, err := r.win.after(p.pos, &p.head)
	if err != nil || next == end {
		return false, err
	}
	b, err := r.win.get(end, int(next-end))
	return !isZero(b), err
}

// decide acts on one break; done when it is the end.
func (r *recovery) decide(bad *located, s sight) (done bool, err error) {
	v := r.v
	verd, why := decideTail(s.kind, s.behind, max(s.durable, r.durable) > r.pos, s.joined)
	switch verd {
	case tailClean:
		if v.Why == "" {
			v.Why = why
		}
	case tailCut:
		v.State, v.Why = max(v.State, Torn), why
		v.Cut = Cut{Position: r.pos, Length: s.end - r.pos}
		if s.next > r.next {
			v.Cut.Records = s.next - r.next
		}
	case tailStep:
		v.State, v.Why = max(v.State, Torn), why
		r.over(bad, s)
		return false, nil
	case tailHole:
		v.damage(r.pos, why)
		r.over(bad, s)
		return false, nil
	default:
		panic(fmt.Sprintf("segfile: %s: no row for a break of kind %d at %d, behind %v, durable %d, joined %v", v.Name, s.kind, r.pos, s.behind, s.durable, s.joined))
	}
	v.End = fence.End{Offset: v.tally.next, Position: alignBlock(r.pos), Bytes: v.tally.bytes}
	v.footerAt = alignBlock(max(r.pos, s.end))
	return true, nil
}

// over records a hole at the break and goes on behind it: where a damaged payload ends, at
// the first valid frame that follows, or where the file is known to have been durable.
func (r *recovery) over(bad *located, s sight) {
	h := Hole{Position: r.pos, Offset: r.next}
	var to proof
	switch {
	case bad != nil:
		to = proof{s.resume, bad.head.Next()}
	case s.behind:
		to = proof{s.first.pos, s.first.head.Base}
	default:
		to = proof{r.durable, r.next} // nothing is left: how many records there were is not known
	}
	// Behind what the pointer proves, up to the frames that follow, nothing may have been
	// acknowledged: then that is not part of the hole.
	if p := r.proof; bad == nil && p.position > r.pos && p.position <= to.position && p.position >= s.durable && p.offset >= r.next {
		to = p
	}
	h.Length, h.Records = to.position-r.pos, to.offset-r.next
	r.v.Holes = append(r.v.Holes, h)
	r.restart(to.position, to.offset)
	r.v.tally.skip(&h)
	if s.lost != nil && s.lost.Next() <= to.offset && r.v.tally.table != nil {
		// Its records are gone, but its producer was told that they are stored, and will name
		// them as the predecessor of its next batch.
		r.v.tally.table.Update(s.lost)
	}
	r.prove(s.durable)
}

// newer passes on that a frame is of a later version: then nothing may be decided.
func newer(file string, pos int64, err error) error {
	if errors.Is(err, record.ErrVersion) {
		return damaged(file, pos, err)
	}
	return nil
}
