package client

import (
	"encoding/binary"
	"fmt"

	"github.com/ringfence/ringfence/engine/api"
	"github.com/ringfence/ringfence/engine/wire"
	"github.com/ringfence/ringfence/fence"
	"github.com/ringfence/ringfence/segfile/record"
)

// page is an answer to a fetch, while its records are handed out.
type page struct {
	seq              uint32 // of the range
	first, next, end uint64 // offsets of its first record, the next one to hand out, and behind its last
	mark             uint32
	salt             uint64     // of the frames; 0: the server has verified them
	skips            []api.Skip // not told of yet
	caughtUp         bool
	small            bool     // there was little more than this
	cursor           string   // behind the page
	finished         []uint32 // ranges of a member that have come to their ends
	raw              []byte
	frames           []byte       // those not begun
	batch            record.Batch // of the frame that was begun
}

// newPage holds a page against what a server may send: its frames are whole, and the
// offsets of a page are there without a gap that no skip explains. Payloads are
// verified when they are handed out.
func newPage(m *wire.Page, raw []byte, topic fence.TopicID) (*page, error) {
	bad := func(format string, a ...any) error {
		return fmt.Errorf("%w: a page of range %d: %s", ErrProtocol, m.Range, fmt.Sprintf(format, a...))
	}
	if _, _, err := api.DecodeCursor(topic, m.Cursor); err != nil {
		return nil, bad("%v", err)
	}
	p := &page{
		seq: m.Range, first: m.First, next: m.First, end: m.Next, mark: m.Mark, salt: m.Salt,
		caughtUp: m.CaughtUp, cursor: m.Cursor, finished: m.Finished, raw: raw, frames: raw,
	}
	for _, s := range m.Skips {
		if s.From+s.Offsets < s.From {
			return nil, bad("a skip of %d offsets from %d", s.Offsets, s.From)
		}
		p.skips = append(p.skips, api.Skip{Range: s.Range, From: s.From, Offsets: s.Offsets, Damaged: s.Damaged})
	}
	if len(raw) == 0 {
		p.end = p.first
		return p, nil
	}
	at := p.first
	for rest := raw; len(rest) > 0; {
		h, err := record.ParseHead(rest, p.salt)
		switch {
		case err != nil:
			return nil, bad("byte %d: %v", len(raw)-len(rest), err)
		case h.Mark() || h.Void() || h.Lent() && p.salt == 0 || int(h.FrameLen) > len(rest):
			return nil, bad("byte %d: a frame without records, or one of %d bytes in %d", len(raw)-len(rest), h.FrameLen, len(rest))
		case len(rest) == len(raw) && h.Base < at && at < h.Next():
			// The first frame may begin before.
		case h.Base != p.past(at):
			return nil, bad("offsets %d to %d are missing", at, h.Base)
		}
		at = h.Next()
		rest = p.behind(rest, h.FrameLen)
	}
	if at != p.end {
		return nil, bad("its frames end at offset %d, it says %d", at, p.end)
	}
	return p, nil
}

// behind is what comes behind a frame of n bytes at the begin of frames, which reach to
// the end of the page: as frames lie in a file, the next one begins a multiple of
// record.FrameAlign bytes behind the begin of the page, and less than maxGap zeros behind
// the first of these.
func (p *page) behind(frames []byte, n uint32) []byte {
	frames = frames[n:]
	if p.salt == 0 || len(frames) == 0 {
		return frames
	}
	at := len(p.raw) - len(frames)
	frames = frames[min(-at&(record.FrameAlign-1), len(frames)):]
	for gap := record.FrameAlign; gap < maxGap && len(frames) > record.FrameAlign && binary.LittleEndian.Uint32(frames) == 0; gap += record.FrameAlign {
		frames = frames[record.FrameAlign:]
	}
	return frames
}

// maxGap bounds the zeros between two frames, in bytes.
const maxGap = 4096

// past is the next offset that is stored, from at on.
func (p *page) past(at uint64) uint64 {
	for _, s := range p.skips {
		if s.Range == p.seq && s.From == at && s.Offsets > 0 && at > p.first {
			at += s.Offsets
		}
	}
	return at
}

// rest says whether there are records to hand out.
func (p *page) rest() bool { return p.next < p.end }

// frame makes batch the verified frame that holds the next record.
func (p *page) frame(s *record.Scratch) error {
	if p.batch.Len() > 0 && p.next < p.batch.Head.Next() {
		return nil
	}
	b, err := record.Verify(p.frames, p.salt, s)
	if err != nil {
		p.batch = record.Batch{}
		return fmt.Errorf("range %d, a frame of offset %d came damaged: %w", p.seq, p.next, err)
	}
	p.batch, p.frames = b, p.behind(p.frames, b.Head.FrameLen)
	p.next = max(p.next, b.Head.Base) // behind a skip
	return nil
}

// cursorAt is the place in front of the next record: the page's cursor with this
// range put back.
func (p *page) cursorAt(topic fence.TopicID) string {
	pos, marks, err := api.DecodeCursor(topic, p.cursor)
	if err != nil || !p.rest() {
		return p.cursor // newPage has looked at it
	}
	id := fence.RangeID{Topic: topic, Seq: p.seq}
	pos[id] = p.next
	if marks[id] = p.mark; p.mark == 0 {
		delete(marks, id)
	}
	return api.EncodeCursor(topic, pos, marks)
}
