package frontend

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"

	"github.com/ringfence/ringfence/cp"
	"github.com/ringfence/ringfence/fence"
)

// Origin says where the position came from that a read began at.
type Origin uint8

const (
	FromCursor Origin = iota // somebody had read up to there
	FromStart                // the start of everything: nobody had a position to lose
)

func (o Origin) String() string {
	if o == FromStart {
		return "start"
	}
	return "cursor"
}

// Skip reports that a read moved past offsets that are no longer stored. It is reported with
// the page whose position has moved past it, and never twice.
type Skip struct {
	Range   fence.RangeID // whose consumer it was
	Source  fence.RangeID // whose offsets they are: the range itself or an ancestor
	From    uint64        // the first of them
	Offsets uint64        // how many, never 0
	Exact   bool          // all were this range's; otherwise at most so many, as only some keys of an ancestor are
	Origin  Origin
}

// Page is a stretch of a range's stream and the position behind it.
type Page struct {
	Records  []Record
	Position cp.Position
	Skips    []Skip // oldest first
	// End says that there was no more: a consumer is caught up, a history is at its end. Only
	// then is a page without records a statement about the range.
	End bool
}

// HistoryEnd is the offset of the range itself in the position behind the last page of its
// history.
const HistoryEnd = math.MaxUint64

// maxReads bounds the calls to a ReadFunc for one page, so that a consumer whose keys are rare
// in a long history gets its position back now and then.
const maxReads = 256

// A lane is one range to read for a consumer of a range.
type lane struct {
	id         fence.RangeID
	start, end uint64 // the slice of keys that the consumer wants of it
	whole      bool   // that is all of its keys
}

// wants says whether the consumer takes a record.
func (l *lane) wants(r *Record) bool {
	return l.whole || l.start <= uint64(r.Position) && uint64(r.Position) < l.end
}

// sources are the lanes of a range: its ancestors, oldest first, each cut to the range's own
// slice of the keys, then the range itself. Ancestors that never had any of its keys are left
// out. Consuming asks for the end of every range to be known.
func (f *Frontend) sources(id fence.RangeID, position cp.Position, consuming bool) ([]lane, cp.Position, error) {
	f.meta.RLock()
	defer f.meta.RUnlock()
	state := f.view.ofID(id.Topic)
	if state == nil || state.Range(id) == nil {
		return nil, nil, rangeErr(id, cp.ErrNoSuchRange)
	}
	r := state.Range(id)
	if consuming && f.Unrecovered(id) {
		return nil, nil, rangeErr(id, ErrMetadataUnavailable)
	}
	pos, err := openPosition(state, r, position)
	if err != nil {
		return nil, nil, err
	}
	var lanes []lane
	for _, p := range slices.SortedFunc(maps.Keys(pos), fence.RangeID.Compare) { // parents before their children
		s := state.Range(p)
		lanes = append(lanes, lane{id: p, start: r.Start, end: r.End, whole: r.Start <= s.Start && s.End <= r.End})
	}
	return lanes, pos, nil
}

// openPosition is a position as a map of every source that is not finished, the range itself
// always among them. A nil position is the start of everything.
func openPosition(state *cp.State, r *cp.Range, position cp.Position) (cp.Position, error) {
	pos := cp.Position{}
	if position == nil || len(position) == 0 && r.Phase == cp.Active {
		for s := range state.Ancestors(r.ID, 0) {
			if overlap(s, r) && !isRead(state, s, 0) {
				pos[s.ID] = 0
			}
		}
		pos[r.ID] = 0
		return pos, nil
	}
	for source, offset := range position {
		if source != r.ID && !state.IsAncestor(source, r.ID) {
			return nil, rangeErr(r.ID, fmt.Errorf("%w: %s is not an ancestor", ErrInvalidPosition, source))
		}
		s := state.Range(source)
		switch {
		case source == r.ID:
			pos[source] = offset
		case !overlap(s, r), isRead(state, s, offset):
			// none of its keys are the range's, or all of them are read
		default:
			pos[source] = offset
		}
	}
	if _, ok := pos[r.ID]; !ok {
		pos[r.ID] = 0
		if r.Phase == cp.Sealed {
			pos[r.ID] = r.NextOffset // a sealed range that is not listed is finished
		}
	}
	return pos, nil
}

func overlap(a, b *cp.Range) bool { return a.Start < b.End && b.Start < a.End }

// ReadConsume returns up to max records of a range's live stream from a position: what its
// ancestors hold of its keys, oldest first, then its own. A nil position is the start. The
// position in the page goes on behind the last record returned; a caught-up reader keeps it
// and asks again.
//
// Errors: cp.ErrNoSuchRange, [ErrMetadataUnavailable], [ErrInvalidPosition], [ErrUnreadable], or
// the ReadFunc's. The page is then empty and the position given stays good.
func (f *Frontend) ReadConsume(id fence.RangeID, position cp.Position, max int, read ReadFunc) (Page, error) {
	if max < 1 {
		return Page{}, fmt.Errorf("%w: max is %d, want 1 or more", ErrOptions, max)
	}
	lanes, pos, err := f.sources(id, position, true)
	if err != nil {
		return Page{}, err
	}
	c := consumer{f: f, id: id, pos: pos, room: max, max: max, read: read, reads: maxReads}
	if len(position) == 0 {
		c.page.Origin = FromStart
	}
	for i := range lanes {
		more, err := c.drain(&lanes[i], i == len(lanes)-1)
		if err != nil {
			return Page{}, err
		}
		if !more {
			break
		}
	}
	c.page.Position = pos
	return c.page.Page, nil
}

// consumer is one ReadConsume in progress.
type consumer struct {
	f         *Frontend
	id        fence.RangeID
	pos       cp.Position
	max, room int
	reads     int
	read      ReadFunc
	page      struct {
		Page
		Origin Origin
	}
}

// drain reads one source until it has no more (true: go on with the next one) or the page is
// full (false).
func (c *consumer) drain(l *lane, last bool) (more bool, err error) {
	for {
		o := c.pos[l.id]
		p, err := c.f.look(l.id, o)
		if err != nil {
			return false, err
		}
		var records []Record
		if err = io.EOF; p.found {
			if c.reads == 0 {
				return false, nil
			}
			c.reads--
			records, err = readExtent(p.Extent, c.max, c.read)
		}
		switch {
		case err == nil:
			if full := c.take(l, o, records); full {
				return false, nil
			}
		case !errors.Is(err, io.EOF):
			return false, err
		case p.final && !last:
			c.skip(l, o, p.floor)
			delete(c.pos, l.id)
			return true, nil
		case p.final:
			c.skip(l, o, p.floor)
			c.pos[l.id] = max(o, p.floor)
			c.page.End = true
			return false, nil
		default:
			// Caught up. What expired below the first stored offset is behind the reader for
			// good; a hole further on is reported with the records behind it.
			c.skip(l, o, p.earliest)
			c.pos[l.id] = max(o, p.earliest)
			c.page.End = last
			return false, nil
		}
	}
}

// take keeps the records that are the consumer's, moves its position behind the last one taken
// or passed over, and says whether the page is full.
func (c *consumer) take(l *lane, o uint64, records []Record) (full bool) {
	for i := range records {
		if c.room == 0 {
			return true
		}
		c.skip(l, o, records[i].Offset)
		o = records[i].Offset + 1
		c.pos[l.id] = o
		if l.wants(&records[i]) {
			c.page.Records = append(c.page.Records, records[i])
			c.room--
		}
	}
	return c.room == 0
}

// skip reports that the position of a source moves from one offset to another without records.
func (c *consumer) skip(l *lane, from, to uint64) {
	if to <= from {
		return
	}
	c.page.Skips = append(c.page.Skips, Skip{
		Range: c.id, Source: l.id, From: from, Offsets: to - from, Exact: l.whole, Origin: c.page.Origin,
	})
}

// StreamHistory returns one page of everything a range and its ancestors still hold of its keys,
// from at most one read; a page may be empty and not the end. It is silent about holes and
// answers also while the range's end is not known, up to where it is known. Page.End is set at
// the end, and the position given then leads there for ever. Errors: as [Frontend.ReadConsume],
// without [ErrMetadataUnavailable].
func (f *Frontend) StreamHistory(id fence.RangeID, position cp.Position, max int, read ReadFunc) (Page, error) {
	if max < 1 {
		return Page{}, fmt.Errorf("%w: max is %d, want 1 or more", ErrOptions, max)
	}
	lanes, pos, err := f.sources(id, position, false)
	if err != nil {
		return Page{}, err
	}
	for i := range lanes {
		l := &lanes[i]
		p, err := f.look(l.id, pos[l.id])
		if err != nil {
			return Page{}, err
		}
		var records []Record
		if err = io.EOF; p.found {
			records, err = readExtent(p.Extent, max, read)
		}
		if errors.Is(err, io.EOF) {
			delete(pos, l.id)
			continue
		}
		if err != nil {
			return Page{}, err
		}
		page := Page{Position: pos}
		for j := range records {
			if l.wants(&records[j]) {
				page.Records = append(page.Records, records[j])
			}
		}
		pos[l.id] = records[len(records)-1].Offset + 1
		return page, nil
	}
	return Page{Position: cp.Position{id: HistoryEnd}, End: true}, nil
}

// historyPage is how many records ReadHistory asks for at a time.
const historyPage = 1000

// ReadHistory returns all that a range and its ancestors hold of its keys. It keeps everything in
// memory and is meant for administration and tests.
func (f *Frontend) ReadHistory(id fence.RangeID, read ReadFunc) ([]Record, error) {
	var all []Record
	var pos cp.Position
	for {
		page, err := f.StreamHistory(id, pos, historyPage, read)
		if err != nil {
			return nil, err
		}
		all = append(all, page.Records...)
		if page.End {
			return all, nil
		}
		pos = maps.Clone(page.Position)
	}
}
