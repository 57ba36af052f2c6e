package engine

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/ringfence/ringfence/cp"
	"github.com/ringfence/ringfence/engine/api"
	"github.com/ringfence/ringfence/engine/store"
	"github.com/ringfence/ringfence/fence"
)

// begin sets the position that the options ask for.
func (c *Consumer) begin() error {
	switch c.opts.From.Kind {
	case api.AtCursor:
		return c.beginAtCursor()
	case api.AtEnd, api.AtTime:
		return c.beginLate()
	}
	return c.look(func(s *cp.State) error {
		c.pos = cp.Position{}
		if c.opts.From.Kind == api.AtGroup && c.opts.Group != "" {
			c.resume(s)
		}
		if len(c.pos) == 0 {
			for r := range s.Ranges(c.opts.Topic) {
				if len(r.From) == 0 {
					c.pos[r.ID] = 0
				}
			}
		}
		return nil
	})
}

// resume joins what the group committed for each range.
func (c *Consumer) resume(s *cp.State) {
	for _, r := range s.ActiveRanges(c.opts.Topic) {
		p, ok := s.Position(c.opts.Group, r.ID)
		if !ok {
			continue
		}
		for id, offset := range p {
			if have, known := c.pos[id]; !known || offset < have {
				c.pos[id] = offset
			}
		}
	}
	// What comes from one that is not finished follows by itself, when that is.
	first := s.Foremost(c.pos)
	maps.DeleteFunc(c.pos, func(id fence.RangeID, offset uint64) bool { return offset == 0 && !slices.Contains(first, id) })
}

func (c *Consumer) beginAtCursor() error {
	pos, m, err := api.DecodeCursor(c.topic, c.opts.From.Cursor)
	if err != nil {
		return err
	}
	c.pos, c.marks = pos, m
	return c.look(c.check)
}

// check refuses a place that the topic does not have.
func (c *Consumer) check(s *cp.State) error {
	for id, offset := range c.pos {
		r := s.Range(id)
		if r == nil {
			return fmt.Errorf("%w: there is no range %d", ErrCursorPastEnd, id.Seq)
		}
		if head := s.Head(id); head != nil && c.e.whyLost(head.ID) != nil {
			continue // its end is not known; reading says why
		}
		if end := c.e.endOf(s, r); offset > end {
			return fmt.Errorf("%w: range %d ends at offset %d, the cursor stands at %d", ErrCursorPastEnd, id.Seq, end, offset)
		}
		if offset == 0 {
			continue
		}
		seg := holding(s, id, offset-1)
		if mark, known := c.marks[id]; known && seg != nil && seg.Start < offset && api.MarkOf(seg.Salt) != mark {
			return fmt.Errorf("%w: in front of offset %d of range %d", ErrCursorOfOther, offset, id.Seq)
		}
	}
	return nil
}

// endOf is the first offset of a range that holds no durable record.
func (e *Engine) endOf(s *cp.State, r *cp.Range) uint64 {
	if head := s.Head(r.ID); head != nil {
		if seg, err := e.store.Segment(head.ID); err == nil {
			return seg.CommitMark()
		}
		return head.Start
	}
	return r.NextOffset
}

// beginLate finds the end, or the first record of a time, in every range.
func (c *Consumer) beginLate() error {
	type part struct {
		r        *cp.Range
		end      uint64
		segments []*cp.Segment
	}
	var parts []part
	err := c.look(func(s *cp.State) error {
		for r := range s.Ranges(c.opts.Topic) {
			parts = append(parts, part{r, c.e.endOf(s, r), slices.Collect(s.Segments(r.ID))})
		}
		return nil
	})
	if err != nil {
		return err
	}
	c.pos = cp.Position{}
	read := map[fence.RangeID]bool{} // those in c.pos and what follows them by itself
	for _, p := range parts {        // parents first
		offset := p.end
		if c.opts.From.Kind == api.AtTime {
			for _, seg := range p.segments {
				found, ok, err := c.e.findTime(seg, c.opts.From.Time)
				if err != nil {
					return err
				}
				if ok {
					offset = found
					break
				}
			}
		}
		after := slices.ContainsFunc(p.r.From, func(a fence.RangeID) bool { return read[a] })
		read[p.r.ID] = after || offset < p.end || p.r.Phase == cp.Active
		if read[p.r.ID] && !(after && offset == 0) { // else it is not read, or from its start behind its parents
			c.pos[p.r.ID] = offset
		}
	}
	return nil
}

// findTime is the offset of a segment's first record of a time or later.
func (e *Engine) findTime(s *cp.Segment, at time.Time) (uint64, bool, error) {
	if e.isGivenUp(s.ID) {
		return 0, false, nil
	}
	if err := e.whyLost(s.ID); err != nil {
		return 0, false, err
	}
	seg, err := e.store.Segment(s.ID)
	if err != nil {
		return 0, false, e.missing(s.ID) // expired, or not written yet
	}
	scan, err := seg.ScanTime(at.UnixMilli())
	if errors.Is(err, store.ErrNoSegment) {
		return 0, false, nil // expired meanwhile
	}
	if err != nil {
		return 0, false, err
	}
	defer scan.Close()
	for {
		b, err := scan.Next()
		if errors.Is(err, io.EOF) {
			return 0, false, nil
		}
		if err != nil {
			return 0, false, err
		}
		if b.Head.MaxTime < at.UnixMilli() {
			continue
		}
		for i := range b.Len() {
			if b.Timestamp(i) >= at.UnixMilli() {
				return b.Offset(i), true, nil
			}
		}
	}
}
