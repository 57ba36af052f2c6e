package engine

import (
	"context"
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
	"github.com/ringfence/ringfence/segfile/record"
)

// Consumer reads one topic: each range in order, and ranges before those that took over
// their keys. So records with equal keys come in the order in which they were stored. It is
// not safe for concurrent use. Close it before its engine.
type Consumer struct {
	e     *Engine
	opts  ConsumerOptions
	topic fence.TopicID
	watch *store.Watch
	pos   cp.Position // every range that is not finished, with the next offset to deliver
	marks api.Marks   // of the records before those
	open  map[fence.RangeID]*source
	left  *source // the last one that was read to the end of its segment, or nil
	turn  int     // whose turn it is among the readable ranges
	page  Page
	ended bool
	share *share // nil: the consumer reads the whole topic

	generation uint64 // of the group, when the consumer was opened

	frames     FramePage
	frameBytes int  // not 0 in FetchFrames: the page is to be of frames, about so many bytes
	stored     bool // they may be a stretch of a file
}

// source is one range being read.
type source struct {
	id    fence.RangeID
	scan  *store.Scanner
	seg   *store.Segment
	batch *record.Batch // nil, or records from at on are still to be delivered
	at    int
}

// NewConsumer returns a consumer of a topic that exists. Errors: ErrNoSuchTopic,
// ErrInvalidTopicName, ErrInvalidGroup, those of cursors, ErrClosed. A cursor or time needs
// reading, which may fail with ErrDamaged.
func (e *Engine) NewConsumer(o ConsumerOptions) (*Consumer, error) {
	if o.Member != "" {
		return nil, about(o.Topic, -1, errors.New("members of a group read through a server: leave ConsumerOptions.Member empty, or use engine/client"))
	}
	return e.newConsumer(o, nil)
}

func (e *Engine) newConsumer(o ConsumerOptions, m *share) (*Consumer, error) {
	if err := e.begin(); err != nil {
		return nil, err
	}
	defer e.end()
	if err := errors.Join(api.CheckTopic(o.Topic), api.CheckGroup(o.Group)); err != nil {
		return nil, err
	}
	c := &Consumer{e: e, opts: o, marks: api.Marks{}, open: map[fence.RangeID]*source{}, share: m}
	t, err := e.topic(o.Topic)
	if err != nil {
		return nil, about(o.Topic, -1, err)
	}
	c.topic = t.ID()
	c.watch = e.store.Watch(c.topic)
	begin := c.begin
	if m != nil {
		begin = func() error { return m.begin(c) }
	}
	if err := begin(); err != nil {
		return nil, about(o.Topic, -1, err)
	}
	if o.Group != "" {
		err := c.look(func(s *cp.State) error {
			c.generation, _ = s.Generation(o.Group, o.Topic)
			return nil
		})
		if err != nil {
			return nil, about(o.Topic, -1, err)
		}
	}
	c.watch.Join()
	return c, nil
}

// look calls f with the topic's metadata; ErrNoSuchTopic once it is deleted.
func (c *Consumer) look(f func(*cp.State) error) error {
	found := error(cp.ErrNoSuchTopic) // or one of the same name made since
	err := c.e.lookAt(c.opts.Topic, func(s *cp.State, t *cp.Topic) {
		if t.ID == c.topic {
			found = f(s)
		}
	})
	if err != nil {
		return err
	}
	return found
}

// Poll returns the next records, at most max and all of one range, and waits until there
// are some, or a skip to report. If ctx ends first, it returns ctx's error and a page
// without records. The page's memory is the consumer's: it is valid until the next Poll,
// Fetch or Close. Errors: ErrDamaged, which comes again with the next call, ErrNoSuchTopic
// once the topic is deleted, ErrClosed.
func (c *Consumer) Poll(ctx context.Context, max int) (Page, error) {
	for {
		changed := c.watch.Changed()
		page, err := c.Fetch(max)
		if err != nil || len(page.Records) > 0 || len(page.Skips) > 0 {
			return page, err
		}
		if err := c.e.notCalledBack(); err != nil {
			return page, err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return page, ctx.Err()
		case <-c.e.quit:
			return Page{}, ErrClosed
		}
	}
}

// Fetch is Poll without waiting: if there is nothing to return now, the page is CaughtUp.
func (c *Consumer) Fetch(max int) (Page, error) {
	if c.ended {
		return Page{}, ErrClosed
	}
	if err := c.e.begin(); err != nil {
		return Page{}, err
	}
	defer c.e.end()
	if max < 1 {
		return Page{}, fmt.Errorf("engine: a page of %d records", max)
	}
	c.page = Page{Records: c.page.Records[:0]}
	for {
		ids, err := c.readable()
		if err != nil {
			return Page{}, about(c.opts.Topic, -1, err)
		}
		progress := false
		for range ids {
			c.turn++
			id := ids[c.turn%len(ids)]
			moved, err := c.read(id, max)
			if err != nil {
				return Page{}, about(c.opts.Topic, int64(id.Seq), err)
			}
			if c.hasNews() {
				return c.page, nil
			}
			progress = progress || moved
		}
		if len(ids) == 0 && c.share == nil {
			return Page{}, about(c.opts.Topic, -1, cp.ErrNoSuchTopic)
		}
		if !progress {
			c.page.CaughtUp = true
			return c.page, nil
		}
	}
}

// hasNews says whether there is something on the page, of records or of frames, that the
// caller has to see.
func (c *Consumer) hasNews() bool {
	return len(c.page.Records) > 0 || len(c.page.Skips) > 0 || len(c.frames.Frames) > 0 || c.frames.File != nil ||
		c.share != nil && len(c.share.news) > 0
}

// readable lists the unfinished ranges none of whose ancestors is unfinished.
func (c *Consumer) readable() ([]fence.RangeID, error) {
	if len(c.pos) == 1 && c.share == nil {
		for id := range c.pos {
			return []fence.RangeID{id}, nil
		}
	}
	var ids []fence.RangeID
	unread := c.pos
	if c.share != nil && len(c.share.finished) > 0 {
		unread = maps.Clone(c.pos)
		maps.DeleteFunc(unread, func(id fence.RangeID, _ uint64) bool { return c.share.finished[id] })
	}
	err := c.look(func(s *cp.State) error {
		ids = s.Foremost(unread)
		return nil
	})
	return ids, err
}

// read puts the next records of one range on the page, or finds that the range is finished.
// moved says that another call may find more.
func (c *Consumer) read(id fence.RangeID, max int) (moved bool, err error) {
	src := c.open[id]
	if src == nil {
		if src, moved, err = c.enter(id); src == nil || err != nil {
			return moved, err
		}
	}
	if c.frameBytes > 0 && c.stretch(src) {
		return true, nil
	}
	if src.batch == nil {
		err := c.advance(src)
		if errors.Is(err, io.EOF) {
			return c.leave(src)
		}
		if err != nil {
			return false, err
		}
	}
	if c.frameBytes > 0 {
		c.gather(src)
	} else {
		c.deliver(src, max)
	}
	return true, nil
}

// advance makes the source's next batch its batch, to be delivered from where the consumer
// stands.
func (c *Consumer) advance(src *source) error {
	b, err := src.scan.Next()
	if skip, ok := src.scan.Skipped(); ok {
		c.page.Skips = append(c.page.Skips, Skip{Range: src.id.Seq, From: skip.From, Offsets: skip.Offsets, Damaged: skip.Damaged})
		c.pos[src.id] = skip.From + skip.Offsets
		delete(c.marks, src.id)
	}
	if err != nil {
		return err
	}
	src.batch, src.at = b, 0
	if from := c.pos[src.id]; from > b.Head.Base {
		src.at = int(from - b.Head.Base)
	}
	return nil
}

// deliver puts records of the source's batch on the page.
func (c *Consumer) deliver(src *source, max int) {
	b := src.batch
	n := min(b.Len(), src.at+max)
	had := len(c.page.Records)
	c.page.Records = slices.Grow(c.page.Records, n-src.at)[:had+n-src.at]
	for i := src.at; i < n; i++ {
		r := &c.page.Records[had+i-src.at]
		r.Range, r.Offset = src.id.Seq, b.Offset(i)
		r.Key, r.Value, r.Headers = b.Key(i), b.Value(i), b.Headers(i, nil)
		r.Time = time.UnixMilli(b.Timestamp(i))
	}
	c.pos[src.id] = b.Head.Base + uint64(n)
	c.marks[src.id] = api.MarkOf(src.seg.Meta().Salt)
	if src.at = n; n == b.Len() {
		src.batch = nil
	}
}

// leave closes a source at the end of what its segment has now.
func (c *Consumer) leave(src *source) (moved bool, err error) {
	end, closed := src.seg.Fenced()
	if !closed || c.pos[src.id] < end.Offset {
		return closed, nil // more will come, or has come meanwhile
	}
	src.scan.Close()
	delete(c.open, src.id)
	c.left = src
	return true, nil
}

// enter opens the segment that holds the range's next offset. If there is none, either the
// range is finished and its children take its place, or there is nothing to read yet.
func (c *Consumer) enter(id fence.RangeID) (src *source, moved bool, err error) {
	var segment fence.SegmentID
	var start, end uint64
	var children []fence.RangeID
	found, finished := false, false
	err = c.look(func(s *cp.State) error {
		r := s.Range(id)
		if r == nil {
			return cp.ErrNoSuchRange
		}
		seg := holding(s, id, c.pos[id])
		if seg != nil {
			segment, start, end, found = seg.ID, seg.Start, seg.Start+seg.Length, true
			return nil
		}
		if s.Head(id) == nil && c.pos[id] < r.NextOffset {
			start, found = r.NextOffset, true // all that was left of it has expired
		}
		finished = r.Phase == cp.Sealed && s.Head(id) == nil
		children = r.Children
		return nil
	})
	if err != nil {
		return nil, false, err
	}
	switch {
	case found && start > c.pos[id]:
		c.skip(id, start, false)
		return nil, true, nil
	case found && c.e.isGivenUp(segment):
		c.skip(id, end, true)
		return nil, true, nil
	case found:
		return c.scan(id, segment)
	case finished:
		c.finish(id, children)
		return nil, true, nil
	}
	return nil, false, nil
}

// finish puts a range's children in its place. A member of a group keeps it instead, for
// the group to commit its end.
func (c *Consumer) finish(id fence.RangeID, children []fence.RangeID) {
	if c.share != nil {
		c.share.finish(id)
		return
	}
	delete(c.pos, id)
	delete(c.marks, id)
	for _, child := range children {
		if _, ok := c.pos[child]; !ok {
			c.pos[child] = 0
		}
	}
}

// skip moves past what is not stored any more, up to an offset, and reports it.
func (c *Consumer) skip(id fence.RangeID, to uint64, damaged bool) {
	from := c.pos[id]
	c.page.Skips = append(c.page.Skips, Skip{Range: id.Seq, From: from, Offsets: to - from, Damaged: damaged})
	c.pos[id] = to
	delete(c.marks, id)
}

// holding is the segment that holds an offset or, if none does, the next one after it.
func holding(s *cp.State, id fence.RangeID, offset uint64) *cp.Segment {
	for seg := range s.Segments(id) {
		if seg.Phase == cp.Active || seg.Length > 0 && offset < seg.Start+seg.Length {
			return seg
		}
	}
	return nil
}

func (c *Consumer) scan(id fence.RangeID, segment fence.SegmentID) (*source, bool, error) {
	if err := c.e.whyLost(segment); err != nil {
		return nil, false, err
	}
	seg, err := c.e.store.Segment(segment)
	if err != nil {
		return nil, false, c.e.missing(segment)
	}
	scan, err := seg.Scan(c.pos[id])
	if errors.Is(err, store.ErrNoSegment) {
		return nil, true, nil // deleted meanwhile: look again
	}
	if err != nil {
		return nil, false, err
	}
	if c.left != nil && c.left.id == id {
		scan.Follow(c.left.scan)
		c.left = nil
	}
	src := &source{id: id, scan: scan, seg: seg}
	c.open[id] = src
	return src, true, nil
}

// missing says why a segment that the metadata lists is not in the store. Without an error
// it was registered a moment ago or has just expired; otherwise its file is gone, which
// must not be taken for an empty segment.
func (e *Engine) missing(id fence.SegmentID) error {
	for range 2 {
		sealed := false
		err := e.withTopic(id.Range.Topic, func(s *cp.State, t *cp.Topic) {
			seg := s.Segment(id)
			sealed = seg != nil && seg.Phase == cp.Sealed
		})
		if err != nil || !sealed {
			return err
		}
		// A sealed one had its file before it was sealed, and loses it after it has
		// expired: it may have come, or gone, since it was looked for.
		if _, err := e.store.Segment(id); err == nil {
			return nil
		}
	}
	return fmt.Errorf("%w: the file of segment %s is not there", ErrDamaged, id)
}

// Close ends the consumer and gives its memory back. It commits nothing. Calling it again
// does nothing.
func (c *Consumer) Close() error {
	if c.ended {
		return nil
	}
	c.ended = true
	if c.e.begin() == nil {
		defer c.e.end()
	} else {
		<-c.e.closed // scanners do not end beside the store
	}
	for _, src := range c.open {
		src.scan.Close()
	}
	c.open = nil
	c.watch.Leave()
	return nil
}
