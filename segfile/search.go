package segfile

import (
	"encoding/binary"

	"github.com/ringfence/ringfence/fence"
	"github.com/ringfence/ringfence/segfile/record"
)

// How far behind a break valid frames are searched for:
//   - to the end of the file, if bytes behind the break are known to have been durable, or
//     if nothing says how far they were;
//   - else as far as the largest frame reaches, if something of this segment lies there;
//   - else as far as writes may have come: one step of the pointer behind what it proves,
//     with what is in flight meanwhile, and twice as far as the segment's writes ever ran
//     ahead of what was durable, but at least searchMin.
const (
	searchMax = record.MaxFrame + 2*block
	searchMin = 1 << 20
)

// reach is how far behind a break of that kind to search.
func (r *recovery) reach(kind breakKind) int64 {
	whole := r.o.size - r.pos
	if r.durable > r.pos || r.blind || r.o.size > r.o.hdr.blocks { // what lies behind the size it began with was written since
		return whole
	}
	lag := min(r.lag, searchMax)
	n := max(searchMin, min(2*lag, searchMax))
	if kind == breakOurs {
		n = searchMax
	}
	// The pointer is due behind the first flush that ends a step behind it, and is
	// written beside the next one.
	return max(n, r.proof.position+r.step+lag+2*r.longest-r.pos)
}

// sight is what lies at a break and behind it.
type sight struct {
	kind    breakKind
	behind  bool    // valid frames follow
	joined  bool    // the first of them starts the block behind the break, with the offset that is due
	first   located // the first of them
	durable int64   // the highest durable position they state
	next    uint64  // offset after the last record seen, damaged or not
	end     int64   // end of what is ours, on a boundary of a block
	resume  int64   // where the frame behind a damaged payload starts

	lost *record.Head // the header of the frame at the break, if it can still be read
}

// look says what lies at r.pos, where the chain broke, and behind it. bad is the
// frame there, when only its payload is damaged.
func (r *recovery) look(bad *located) (s sight, err error) {
	s.end, s.next, s.durable = r.pos, r.next, 0
	from := alignFrame(r.pos + 1)
	switch {
	case bad != nil:
		s.kind, s.next, s.lost = breakOurs, bad.head.Next(), &bad.head
		if s.resume, err = r.win.after(bad.pos, &bad.head); err != nil {
			return s, err
		}
		from = s.resume
		s.end = alignBlock(min(bad.pos+int64(bad.head.FrameLen), r.o.size))
	case r.pos >= r.o.size:
		s.kind = breakEOF
		return s, nil
	default:
		if err := r.classify(&s); err != nil {
			return s, err
		}
		if s.kind == breakFooter && r.durable <= r.pos { // it says that all there was is before it
			return s, nil
		}
	}
	to := r.pos + r.reach(s.kind)
	if err := r.search(&s, from, to); err != nil {
		return s, err
	}
	if !s.behind && (s.kind == breakBlank || s.kind == breakStale) {
		if err := r.probe(&s, from, to); err != nil {
			return s, err
		}
	}
	if f := &s.first; s.behind && bad == nil && r.pos%block != 0 && f.pos == alignBlock(r.pos) && f.head.Base == r.next {
		s.joined, err = r.win.whole(f.pos, &f.head)
	}
	return s, err
}

// If a power cut took the pointer back, or frames were larger than any before, a loss may be
// longer than the search. So the rest of the file is probed at some places, which are
// probeLeast to probeMost apart, so that they are about a 64th of it: every place costs a
// read, however short.
const (
	probeFirst = 4 << 20
	probeLeast = 1 << 20
	probeMost  = 16 << 20
)

// probe looks for frames far behind. Wherever frames were written, a stretch as long as the
// longest of them holds a header. So a loss, with what lies behind it, is overlooked only if
// it is longer than the search and everything behind it lies between two probes, or is made
// of frames longer than any before.
func (r *recovery) probe(s *sight, from, searched int64) error {
	far := *r
	far.one = true
	length := min(r.longest+2*block, searchMax)
	every := min(max(64*length, probeLeast), probeMost)
	for off := min(probeFirst, every); r.pos+off < r.o.size; off = off/every*every + every {
		at := r.pos + off
		if at+length <= searched {
			continue
		}
		var found sight
		if err := far.search(&found, at, at+length); err != nil {
			return err
		}
		if found.behind {
			return r.search(s, from, found.first.pos+searchMax)
		}
	}
	return nil
}

// classify says what lies at the break itself, as far as one look can tell.
func (r *recovery) classify(s *sight) error {
	if r.pos%block != 0 { // a flush fills its last block with zeros, and here are none
		s.kind, s.end = breakOurs, alignBlock(r.pos)
	}
	b, err := r.win.get(r.pos, 2*record.HeaderSize)
	if err != nil || s.kind == breakOurs && isZero(b) {
		return err
	}
	if s.kind != breakOurs {
		s.kind = breakBlank
		if r.o.hdr.recycled {
			s.kind = breakStale
		}
	}
	if r.pos%block == 0 && footerAt(b, fence.End{Offset: r.v.tally.next, Position: r.pos, Bytes: r.v.tally.bytes}) {
		s.kind = breakFooter
		return nil
	}
	if isZero(b) {
		return nil
	}
	h, ours := r.trace(b)
	if !ours {
		return nil
	}
	s.kind = breakOurs
	if h != nil && h.Base == r.next {
		s.next, s.lost = h.Next(), h
		s.end = alignBlock(min(r.pos+int64(h.FrameLen), r.o.size))
	} else {
		s.end = alignBlock(r.pos + 1)
	}
	return nil
}

// trace says whether b starts with what is left of a header of this segment, and returns the
// header if it can be read: one with a single wrong bit still can.
func (r *recovery) trace(b []byte) (h *record.Head, ours bool) {
	if len(b) < record.HeaderSize {
		return nil, !r.o.hdr.recycled
	}
	b = b[:record.HeaderSize]
	if h, err := record.ParseHead(b, r.salt); err == nil {
		return &h, true
	}
	flip := append([]byte(nil), b...)
	for bit := range 8 * len(flip) {
		flip[bit/8] ^= 1 << (bit % 8)
		if h, err := record.ParseHead(flip, r.salt); err == nil {
			return &h, true
		}
		flip[bit/8] ^= 1 << (bit % 8)
	}
	if !r.o.hdr.recycled {
		return nil, true // there were zeros before
	}
	if string(b[:4]) != frameMagic || r.o.hdr.stale == 0 {
		return nil, false
	}
	// A frame starts here: is it one of the file's earlier life?
	_, err := record.ParseHead(b, r.o.hdr.stale)
	return nil, err != nil
}

// search looks for valid frames in [from, to) and, in a file that held zeros, for anything
// else of this segment. Every frame that it finds extends the search.
func (r *recovery) search(s *sight, from, to int64) error {
	at := from
	for at < min(to, r.o.size) {
		end := alignBlock(min(to, r.o.size))
		b, err := r.win.upTo(at, end)
		if err != nil {
			return err
		}
		b = b[:min(int64(len(b)), end-at)]
		i, stop := r.sift(s, b, at)
		if stop {
			return nil
		}
		if i < 0 {
			at += int64(len(b))
			continue
		}
		pos := at + int64(i)
		h, err := r.win.head(pos, r.salt)
		if err != nil || h.Base < r.next || h.Durable > pos {
			if isRead(err) {
				return err
			}
			if nerr := newer(r.v.Name, pos, err); nerr != nil {
				return nerr
			}
			if !r.o.hdr.recycled {
				s.kind, s.end = breakOurs, max(s.end, alignBlock(pos+1))
			}
			at = pos + record.FrameAlign
			continue
		}
		if !s.behind {
			s.behind, s.first = true, located{pos, h}
		}
		s.durable, s.next = max(s.durable, h.Durable), max(s.next, h.Next())
		s.end = max(s.end, alignBlock(min(pos+int64(h.FrameLen), r.o.size)))
		if max(s.durable, r.durable) > r.pos || r.one {
			return nil // damage at rest: the walk goes on from there anyway
		}
		to = max(to, pos+searchMax)
		if at, err = r.win.after(pos, &h); err != nil {
			return err
		}
	}
	return nil
}

// sift goes through b, which lies at position at: the index of the first place
// that may be a frame's, or -1. In a file that held zeros any other byte before
// it is ours too, unless it is a footer's, behind which there is nothing.
func (r *recovery) sift(s *sight, b []byte, at int64) (i int, stop bool) {
	end := fence.End{Offset: r.v.tally.next, Position: alignBlock(r.pos), Bytes: r.v.tally.bytes}
	for i = 0; i+4 <= len(b); i += record.FrameAlign {
		pos := at + int64(i)
		if pos%block == 0 && pos >= r.durable && footerAt(b[i:], end) {
			return -1, true
		}
		if binary.LittleEndian.Uint32(b[i:]) == frameWord {
			return i, false
		}
		if r.o.hdr.recycled {
			continue
		}
		if !isZero(b[i:min(i+record.FrameAlign, len(b))]) {
			s.kind = breakOurs
			s.end = max(s.end, alignBlock(pos+1))
		}
	}
	return -1, false
}

// frameWord is frameMagic as a number.
const frameWord = 'R' | 'F'<<8 | 'r'<<16 | 'm'<<24
