package engine

import (
	"os"

	"github.com/ringfence/ringfence/engine/api"
)

// FramePage is a page of stored frames: verified copies of them, or where they lie in a
// file.
type FramePage struct {
	Range uint32
	// First is the offset of the first record to take from the frames, which may begin
	// before it; Next is the offset after the last.
	First, Next uint64
	Mark        uint32 // of the records, for cursors
	Skips       []Skip
	CaughtUp    bool     // there was nothing more
	Finished    []uint32 // ranges of a group's member that are read to their end for good, since the page before
	Frames      []byte   // whole frames without salt, one after another; valid until the next call

	// In place of Frames: Length bytes of File from Position on, as they are stored. The
	// first frame begins at Position and the last one ends with these bytes. Between two
	// frames there are zeros, less than a disk.Block of them, up to a multiple of
	// record.FrameAlign counted from Position. The frames' headers were parsed with Salt;
	// nothing else of them was looked at. The receiver closes File. The bytes do not change
	// until the consumer's next call, or its Close.
	File             *os.File
	Position, Length int64
	Salt             uint64
	// Give says whether a descriptor of File may be given away for good, to a process that
	// may read the topic: the file holds one segment of the topic, and will never hold
	// anything else. It may be called for as long as the bytes do not change.
	Give func() bool
}

// FetchFrames is [Consumer.Fetch] for those who pass frames on: about maxBytes of them, and
// at least one if there is one. With stored, frames of a closed segment may come as they
// lie in its file, if there are enough of them.
//
// It is for the other packages of this module alone.
func (c *Consumer) FetchFrames(maxBytes int, stored bool) (FramePage, error) {
	c.frames = FramePage{Frames: c.frames.Frames[:0]}
	c.frameBytes, c.stored = max(maxBytes, 1), stored
	page, err := c.Fetch(1)
	c.frameBytes = 0
	c.frames.Skips, c.frames.CaughtUp = page.Skips, page.CaughtUp
	if c.share != nil && err == nil {
		c.frames.Finished, c.share.news = c.share.news, nil
	}
	return c.frames, err
}

// rest gives back memory between two pages, whose frames were copied: there may be many
// clients, and they may take their time.
func (c *Consumer) rest() {
	for _, src := range c.open {
		if src.batch == nil {
			src.scan.Rest()
		}
	}
}

// stretch makes frames of the source's file the page, if it can.
func (c *Consumer) stretch(src *source) bool {
	if !c.stored || src.batch != nil {
		return false
	}
	st, ok := src.scan.Stretch(int64(c.frameBytes))
	if !ok {
		return false
	}
	p, salt := &c.frames, src.seg.Meta().Salt
	p.Range, p.First, p.Next, p.Mark, p.Salt = src.id.Seq, c.pos[src.id], st.Next, api.MarkOf(salt), salt
	p.File, p.Position, p.Length, p.Give = st.File, st.Position, st.Length, st.Give
	c.pos[src.id], c.marks[src.id] = p.Next, p.Mark
	return true
}

// gather puts the source's batch on the page of frames, and those behind it that fit and
// can be read now. Skips between them go on the page too.
func (c *Consumer) gather(src *source) {
	p := &c.frames
	p.Range, p.First, p.Mark = src.id.Seq, src.batch.Head.Base+uint64(src.at), api.MarkOf(src.seg.Meta().Salt)
	for {
		at, h := len(p.Frames), &src.batch.Head
		p.Frames = append(p.Frames, src.batch.Frame()...)
		sent := *h
		sent.Flags = 0 // whether it was lent matters where it lies
		sent.Put(p.Frames[at:], 0)
		p.Next = h.Next()
		c.pos[src.id], c.marks[src.id] = p.Next, p.Mark
		src.batch = nil
		if len(p.Frames) >= c.frameBytes || c.advance(src) != nil {
			return // an error comes again with the next page
		}
		if len(p.Frames)+len(src.batch.Frame()) > c.frameBytes {
			return
		}
	}
}
